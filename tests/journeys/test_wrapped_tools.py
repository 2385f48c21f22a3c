"""A wrapped upstream tool: a token put in, and found again with what the answer said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp.client.client import Client
from starlette.requests import Request
from starlette.responses import Response

from tests.callers import own_call
from tests.configs import table
from tests.conftest import OPEN, GatewayMaker
from tests.definitions import an_object
from tests.peers import soon
from tests.peers_mcp import Context, McpPeer, mcp_peer, scripted_peer
from tests.upstream.upstream_doors import modern

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


FINE = {"type": "text", "text": "booked"}
UNREADABLE = {
    "content is no list": {"content": "booked"},
    "content has no objects": {"content": ["booked"]},
    "a text without text": {"content": [{"type": "text"}]},
    "structure is no object": {"content": [FINE], "structuredContent": ["x"], "isError": True},
    "an image without data": {"content": [{"type": "image"}]},
    "asks for nothing": {"resultType": "input_required", "inputRequests": "room"},
    "is of an unknown kind": {"resultType": "later", "content": [FINE]},
    "no object": ["booked"],
    "too large": {"content": [{"type": "text", "text": "h" * 9_000_000}]},
}


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_write_whose_answer_can_not_be_read_is_in_doubt_and_not_made_again(
    make_gateway: GatewayMaker, answer: Any
) -> None:
    async with booking_peer(answer) as (url, booked):
        hotel = table("connections.hotel", kind="mcp", url=url, wrap=[WRAP])
        gateway = await make_gateway(OPEN + hotel)
        async with Client(gateway.mcp) as ann:
            for _ in range(2):
                meta: Any = {"gateway/idempotency_token": "T"}
                call = ann.call_tool("book_room", {"room": "7"}, meta=meta)
                error = (await soon(call)).structured_content or {}
                assert error["error"]["code"] == "outcome_unknown"
            found = await own_call(ann, "find_execution", token="T")
    assert (found["status"], len(booked)) == ("unknown", 1)


async def test_a_server_can_not_speak_for_the_gateway(make_gateway: GatewayMaker) -> None:
    forged = {"gateway/tools_changed": {"added": ["x"]}, "gateway/replayed": True, "own": 1}
    async with booking_peer({"content": [FINE], "_meta": forged}) as (url, _):
        gateway = await make_gateway(OPEN + table("connections.hotel", kind="mcp", url=url))
        async with Client(gateway.mcp) as ann:
            booking = {"room": "7", "idempotency_token": "T"}
            meta = (await ann.call_tool("hotel_book", booking)).meta or {}
    assert meta["own"] == 1
    assert not meta.keys() & {"gateway/tools_changed", "gateway/replayed"}


@asynccontextmanager
async def booking_peer(answer: Any) -> AsyncIterator[tuple[str, list[Any]]]:
    """A server with one tool, which answers calls so; and the arguments of these."""
    booked: list[Any] = []
    tools = {"tools": [{"name": "book", "inputSchema": SCHEMA}]}

    async def respond(message: dict[str, Any], request: Request) -> Response:
        if message["method"] == "tools/call":
            booked.append(message["params"]["arguments"])
        return modern(message, **{"tools/list": tools, "tools/call": answer})

    async with scripted_peer(respond) as url:
        yield url, booked
