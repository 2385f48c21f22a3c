"""Lines to paste, one for each client people use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

TOKEN = "YOUR_TOKEN"


@dataclass(frozen=True, slots=True)
class Snippet:
    """What to do in one client."""

    id: str
    client: str
    words: str
    text: str


def snippets(url: str, *, with_token: bool) -> list[Snippet]:
    """How each client is pointed at this address."""
    return [
        Snippet("cc", "Claude Code", "Run once in your project:", _claude_code(url, with_token)),
        Snippet(
            "cd",
            "Claude Desktop",
            "It speaks stdio only, so it starts the bridge. In claude_desktop_config.json:",
            _json({"mcpServers": {"gateway": _bridge(url, with_token)}}),
        ),
        Snippet(
            "cu",
            "Cursor",
            "In ~/.cursor/mcp.json:",
            _json({"mcpServers": {"gateway": _http(url, with_token)}}),
        ),
        Snippet(
            "vs",
            "VS Code",
            "In .vscode/mcp.json:",
            _json({"servers": {"gateway": {"type": "http", **_http(url, with_token)}}}),
        ),
    ]


def _claude_code(url: str, with_token: bool) -> str:
    line = f"claude mcp add --transport http gateway {url}"
    return f'{line} \\\n  --header "Authorization: Bearer {TOKEN}"' if with_token else line


def _bridge(url: str, with_token: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"command": "gateway", "args": ["stdio", "--url", url]}
    return entry | ({"env": {"GATEWAY_TOKEN": TOKEN}} if with_token else {})


def _http(url: str, with_token: bool) -> dict[str, Any]:
    headers = {"headers": {"Authorization": f"Bearer {TOKEN}"}}
    return {"url": url} | (headers if with_token else {})


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2)
