"""A server whose tool promises what it answers, behind a gateway, for official clients of all ages.

Clients check answers against the output schema that a tool lists. What they must see of a small
answer, one that is too large, a call that the gateway refuses and one that the server fails is
written here once, for the Python clients of both generations and the TypeScript clients.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types

from tests.conftest import OPEN, gateway_on
from tests.definitions import an_object
from tests.peers import until
from tests.peers_mcp import Context, McpPeer, mcp_peer

ROWS = 5000
CLOSED = {"additionalProperties": False}
ROW = an_object({"number": {"type": "integer"}}, "number", **CLOSED)
ROW_LIST = {"type": "array", "items": {"$ref": "#/definitions/Row"}}
OUTPUT: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    **an_object({"rows": ROW_LIST, "error": {"type": ["string", "null"]}}, "rows", "error"),
    **CLOSED,
    "definitions": {"Row": ROW},
}
INPUT = an_object({"rows": {"type": "integer"}, "fail": {"type": "boolean"}}, "rows")
EXPECTED: dict[str, Any] = {
    "promised": ["error", "rows"],  # the properties, as the server names them
    "small": {"rows": [{"number": 0}, {"number": 1}], "error": None},
    "truncated": True,
    "last": [{"number": ROWS - 1}],  # read by its result id
    "refused": "invalid_arguments",
    "failed": "no such report",
}


class ReportPeer(McpPeer):
    """Its one tool reports so many rows."""

    async def list_tools(self, ctx: Context, params: Any) -> types.ListToolsResult:
        tool = types.Tool(name="report", input_schema=INPUT, output_schema=OUTPUT)
        return types.ListToolsResult(tools=[tool])

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        arguments = params.arguments or {}
        if arguments.get("fail"):
            words = types.TextContent(text="no such report")
            return types.CallToolResult(content=[words], is_error=True)
        rows = [{"number": number} for number in range(int(arguments["rows"]))]
        return types.CallToolResult(
            content=[types.TextContent(text=f"{len(rows)} rows")],
            structured_content={"rows": rows, "error": None},
        )


@asynccontextmanager
async def report_gateway() -> AsyncIterator[str]:
    """The MCP address of a gateway with the server behind it; its tool is `far_report`."""
    async with mcp_peer(peer=ReportPeer()) as peer:
        text = OPEN + peer.table("far")
        with tempfile.TemporaryDirectory() as folder:
            async with gateway_on(Path(folder) / "config.toml", text) as gateway:
                await until(lambda: "far_report" in gateway.app.gateway.snapshot.tools)
                yield gateway.mcp
