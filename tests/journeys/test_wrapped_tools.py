"""A wrapped upstream tool: a token put in, used once, and found again with what the answer said."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import mcp_types as types
from mcp_types import RequestParamsMeta

from tests.conftest import GatewayMaker, Running
from tests.journeys.confirming import TOKENS, client, error_code
from tests.peers import until
from tests.peers_mcp import Context, McpPeer, mcp_peer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"idempotency_token": {"type": "string"}, "room": {"type": "string"}},
    "required": ["idempotency_token", "room"],
}
ANN = f'[principals.ann]\ntoken = "{TOKENS["ann"]}"\n'


class Hotel(McpPeer):
    """Books rooms, one at a time if told to wait."""

    tokens: list[str]
    gate: asyncio.Event

    async def _book(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        arguments = params.arguments or {}
        self.tokens.append(arguments["idempotency_token"])
        await self.gate.wait()
        answer = {"booking": {"booking_id": f"b-{len(self.tokens)}"}, "room": arguments["room"]}
        return types.CallToolResult(
            content=[types.TextContent(text="booked")], structured_content=answer
        )


def hotel() -> Hotel:
    peer = Hotel(tools={"book": SCHEMA})
    peer.tokens, peer.gate = [], asyncio.Event()
    peer.gate.set()
    return peer


def config(url: str) -> str:
    return f"""{ANN}
[network]
allow = ["127.0.0.1/32"]
[permissions]
level = "full_access"
[connections.hotel]
kind = "mcp"
url = "{url}"
wrap = [{{ tool = "book", as = "book_room", idempotency_field = "idempotency_token",
           record = ["booking_id", "/booking/missing"] }}]
""".replace("\n           record", " record")


async def test_wrapped_tool_gets_a_token_and_its_answer_is_found_again(
    make_gateway: GatewayMaker,
) -> None:
    async with mcp_peer(peer=hotel()) as peer:
        assert isinstance(peer, Hotel)
        gateway: Running = await make_gateway(config(peer.url))
        async with client(gateway.url, "ann") as ann:
            [tool] = [t for t in (await ann.list_tools()).tools if t.name == "book_room"]
            assert tool.input_schema["required"] == ["room"]
            result = await ann.call_tool("book_room", {"room": "7"})
            token = (result.meta or {})["gateway/idempotency_token"]
            found = await ann.call_tool("find_execution", {"token": token})
    assert peer.tokens == [token]
    record = found.structured_content or {}
    assert (record["status"], record["recorded"]) == ("completed", {"booking_id": "b-1"})
    assert record["result"]["output"] == {"booking": {"booking_id": "b-1"}, "room": "7"}


async def test_what_is_recorded_of_an_answer_is_found_though_the_answer_was_too_large(
    make_gateway: GatewayMaker,
) -> None:
    async with mcp_peer(peer=hotel()) as peer:
        gateway: Running = await make_gateway(config(peer.url))
        async with client(gateway.url, "ann") as ann:
            result = await ann.call_tool("book_room", {"room": "7" * 100_000})
            token = (result.meta or {})["gateway/idempotency_token"]
            found = await ann.call_tool("find_execution", {"token": token})
    assert (result.structured_content or {})["truncated"] is True
    assert (found.structured_content or {})["recorded"] == {"booking_id": "b-1"}


async def test_equal_calls_at_once_book_one_room(make_gateway: GatewayMaker) -> None:
    async with mcp_peer(peer=hotel()) as peer:
        assert isinstance(peer, Hotel)
        peer.gate.clear()
        gateway: Running = await make_gateway(config(peer.url))
        meta = cast(RequestParamsMeta, {"gateway/idempotency_token": "t-1"})
        async with client(gateway.url, "ann", "2026-07-28") as ann:
            calls = [
                asyncio.create_task(ann.call_tool("book_room", {"room": "7"}, meta=meta))
                for _ in range(20)
            ]
            await until(lambda: bool(peer.tokens))
            peer.gate.set()
            results = await asyncio.gather(*calls)
            other = await ann.call_tool("book_room", {"room": "8"}, meta=meta)
    assert peer.tokens == ["t-1"]
    assert {str(result.structured_content) for result in results} == {
        str({"booking": {"booking_id": "b-1"}, "room": "7"})
    }
    assert error_code(other) == "idempotency_conflict"
