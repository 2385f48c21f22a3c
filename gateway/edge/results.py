"""The wire dicts of tool results that are ours: a value, or an error the model should read."""

from __future__ import annotations

from typing import Any

from gateway.edge.mcp_messages import dump
from gateway.errors import GatewayError


def value_result(value: dict[str, Any]) -> dict[str, Any]:
    """A result with this object as text and as structured content."""
    text = dump(value).decode()
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": value,
        "isError": False,
    }


def error_result(error: GatewayError) -> dict[str, Any]:
    """A failed result: the sentence as text, code and hint as structured content."""
    return {
        "content": [{"type": "text", "text": error.sentence}],
        "structuredContent": {"error": error.as_dict()},
        "isError": True,
    }
