"""An upstream's list that tests build tools from, and short words for what came of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.connectors.mcp import build_upstream
from gateway.model import Source, Wrap

SOURCE = Source("hotel", "mcp", "Hotel", "hotel_", location="https://mcp.example/path?key=1")
ROOM = {"type": "string", "description": "Which room"}
BOOK_SCHEMA = {
    "type": "object",
    "properties": {"token": {"type": "string"}, "room": ROOM, "email": {"type": "string"}},
    "required": ["token", "room"],
}
BOOK = {"name": "Create_booking", "description": "Books a room.", "inputSchema": BOOK_SCHEMA}
FIND = {"name": "find", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
WRAP = Wrap("Create_booking", "book", "token", ("email",), ("booking_id",))


def source(**changes: Any) -> Source:
    fields = {"display_name": "Hotel", "prefix": "hotel_", **changes}
    return Source("hotel", "mcp", **fields)


def names(*tools: dict[str, Any], **settings: Any) -> list[str]:
    return [tool.name for tool in build_upstream(tools, told(**settings)).tools]


def reasons(*tools: dict[str, Any], **settings: Any) -> list[str]:
    return [skipped.reason for skipped in build_upstream(tools, told(**settings)).skipped]


def told(source: Source = SOURCE, **settings: Any) -> Source:
    return replace(source, **settings)


def with_schema(schema: Any) -> dict[str, Any]:
    return {"name": "t", "inputSchema": schema}
