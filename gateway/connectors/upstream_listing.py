"""An upstream's whole list, of tools mostly: every page, within bounds, and whether it changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from gateway.connectors.upstream_headers import HeaderMarks, header_marks
from gateway.connectors.upstream_rpc import broken
from gateway.model import digest

MAX_PAGES = 100
MAX_TOOLS = 10_000
MAX_LISTING_BYTES = 16 * 1024 * 1024

TOO_DEEP = "nested too deeply"

RawTool = dict[str, Any]


async def every_page(
    page: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]],
    upstream: str,
    of: str = "tools",
) -> list[RawTool]:
    """The items of all pages; a list that does not end within its bounds is a failure."""
    tools: list[RawTool] = []
    params: dict[str, Any] = {}
    seen: set[str] = set()
    size = 0
    for _ in range(MAX_PAGES):
        answer = await page(params)
        found, cursor = answer.get(of), answer.get("nextCursor")
        if not isinstance(found, list):
            raise broken(upstream, f"sent a list of {of} that is no list")
        for tool in found:
            if isinstance(tool, dict):
                kept, length = _storable(tool)
                tools.append(kept)
                size += length
        if len(tools) > MAX_TOOLS or size > MAX_LISTING_BYTES or cursor in seen:
            break
        if not isinstance(cursor, str):
            return tools
        seen.add(cursor)
        params = {"cursor": cursor}
    raise broken(upstream, f"has a list of {of} that does not end within its bounds")


def _storable(tool: RawTool) -> tuple[RawTool, int]:
    """A tool and its size. One too deep to be written again is left for the build to skip."""
    try:
        return tool, len(orjson.dumps(tool))
    except TypeError:
        return {"name": str(tool.get("name"))[:128], "inputSchema": TOO_DEEP}, 0


def listing_digest(tools: list[RawTool]) -> str:
    """Changes when the list does, whatever order it comes in."""
    return digest(b"\0".join(sorted(orjson.dumps(t, option=orjson.OPT_SORT_KEYS) for t in tools)))


def marks_by_tool(tools: list[RawTool]) -> dict[str, HeaderMarks]:
    """The tools that want arguments repeated as headers."""
    marks = {str(tool.get("name")): header_marks(tool.get("inputSchema")) for tool in tools}
    return {name: found for name, found in marks.items() if found}
