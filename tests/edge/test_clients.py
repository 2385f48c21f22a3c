"""The SDK's own client, in both modes, finds everything where it expects it."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.edge.conftest import Edge

Mode = Literal["legacy", "2026-07-28"]
BOTH = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


@BOTH
async def test_client_lists_and_calls(edge: Edge, mode: Mode) -> None:
    async with Client(edge.url, mode=mode) as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["echo", "wait", "fail", "routed"]
        result = await client.call_tool("echo", {"a": 1})
        assert result.structured_content == {"a": 1}
