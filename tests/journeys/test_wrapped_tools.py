"""A wrapped upstream tool: a token put in, and found again with what the answer said."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
from mcp.client.client import Client

from tests.callers import own_call
from tests.conftest import OPEN, GatewayMaker
from tests.definitions import an_object
from tests.peers_mcp import Context, McpPeer, mcp_peer

TEXT = {"type": "string"}
SCHEMA = an_object({"idempotency_token": TEXT, "room": TEXT}, "idempotency_token", "room")
WRAP = {
    "tool": "book",
    "as": "book_room",
    "idempotency_field": "idempotency_token",
    "record": ["booking_id", "/booking/missing"],
}


class Hotel(McpPeer):
    """Books rooms, and says by which tokens."""

    async def _book(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        arguments = params.arguments or {}
        answer = {
            "booking": {"booking_id": arguments["idempotency_token"]},
            "room": arguments["room"],
        }
        return types.CallToolResult(
            content=[types.TextContent(text="booked")], structured_content=answer
        )


@pytest.mark.parametrize("room", ["7", "7" * 100_000], ids=["small", "too large to show"])
async def test_wrapped_tool_gets_a_token_and_its_answer_is_found_again(
    make_gateway: GatewayMaker, room: str
) -> None:
    async with mcp_peer(peer=Hotel(tools={"book": SCHEMA})) as peer:
        gateway = await make_gateway(OPEN + peer.table("hotel", wrap=[WRAP]))
        async with Client(gateway.mcp) as ann:
            [tool] = [t for t in (await ann.list_tools()).tools if t.name == "book_room"]
            assert tool.input_schema["required"] == ["room"]
            result = await ann.call_tool("book_room", {"room": room})
            token = (result.meta or {})["gateway/idempotency_token"]
            found = await own_call(ann, "find_execution", token=token)
    assert (found["status"], found["recorded"]) == ("completed", {"booking_id": token})
    shown = result.structured_content or {}
    assert shown.get("truncated") or shown == {"booking": {"booking_id": token}, "room": room}
    assert found["result"]["output"] == shown
