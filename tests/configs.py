"""Configuration as text, from a few words, and the tokens of those who are named in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def toml(value: Any) -> str:
    """A value in the words of TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


def table(heading: str, **values: Any) -> str:
    """A table of a configuration."""
    lines = (f"{key} = {toml(value)}\n" for key, value in values.items())
    return f"[{heading}]\n{''.join(lines)}"


def token_of(name: str) -> str:
    return f"{name}-token-0123456789"


def bearer(name: str) -> dict[str, str]:
    """What a principal proves itself with."""
    return {"Authorization": f"Bearer {token_of(name)}"}


def principal(name: str, **values: Any) -> str:
    """The table of a principal that has its token."""
    return table(f"principals.{name}", token=token_of(name), **values)


LOCAL = table("network", allow=["127.0.0.1/32"])
STDIO_PEER = str(Path(__file__).parent / "stdio_peer.py")


def stdio_table(name: str, *options: str, **values: Any) -> str:
    """A connection to a child that starts at once."""
    child = {"kind": "mcp", "transport": "stdio", "command": sys.executable}
    return table(f"connections.{name}", **child, args=[STDIO_PEER, *options], **values)
