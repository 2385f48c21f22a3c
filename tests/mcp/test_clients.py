"""The SDK's own client, in both modes, finds everything where it expects it."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, cast

import httpx2
import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    ElicitRequestParams,
    ElicitResult,
    RequestParamsMeta,
    ToolListChangedNotification,
)

from tests.mcp.conftest import TOKENS, Edge, EdgeMaker, with_tokens
from tests.mcp.toolbox import Toolbox

Mode = Literal["legacy", "2026-07-28"]
BOTH = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
META = cast(RequestParamsMeta, {"gateway/idempotency_token": "t"})
NAMES = ["echo", "wait", "fail", "routed"]


@BOTH
async def test_client_lists_and_calls(edge: Edge, mode: Mode) -> None:
    async with Client(edge.url, mode=mode) as client:
        assert [one.name for one in (await client.list_tools()).tools] == NAMES
        result = await client.call_tool("echo", {"a": [1, {"b": "ü"}]})
        assert result.structured_content == {"a": [1, {"b": "ü"}]}


async def test_client_that_negotiates_finds_the_newest_era(edge: Edge) -> None:
    async with Client(edge.url, mode="auto") as client:
        assert client.protocol_version == "2026-07-28"
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.tools.list_changed is True


@BOTH
async def test_client_follows_cursors_to_the_end(make_edge: EdgeMaker, mode: Mode) -> None:
    edge: Edge = await make_edge(toolbox=Toolbox(page_size=3))
    async with Client(edge.url, mode=mode) as client:
        first = await client.list_tools()
        assert first.next_cursor is not None
        second = await client.list_tools(cursor=first.next_cursor)
        assert [one.name for one in (*first.tools, *second.tools)] == NAMES
        assert second.next_cursor is None
        with pytest.raises(MCPError) as refused:
            await client.list_tools(cursor="nonsense")
        assert refused.value.code == -32602


@BOTH
async def test_unknown_tool_is_a_protocol_error_and_a_failed_one_a_result(
    edge: Edge, mode: Mode
) -> None:
    async with Client(edge.url, mode=mode) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("nothing", {})
        assert (refused.value.code, refused.value.message) == (-32602, "Unknown tool: nothing")
        failed = await client.call_tool("fail", {"how": "fixable"})
        assert failed.is_error is True
        assert failed.structured_content == {
            "error": {
                "code": "invalid_arguments",
                "message": "id is missing",
                "hint": "Give an id.",
                "where": "id",
            }
        }
        with pytest.raises(MCPError) as broken:
            await client.call_tool("fail", {})
        assert (broken.value.code, broken.value.message) == (-32603, "Internal error")


@BOTH
async def test_progress_reaches_the_client_that_asked(edge: Edge, mode: Mode) -> None:
    edge.toolbox.put("report")
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(
        progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        seen.append((progress, total, message))

    async with Client(edge.url, mode=mode) as client:
        await client.call_tool("report", {}, progress_callback=on_progress)
        await client.call_tool("report", {})
    assert seen == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def test_client_of_2025_is_asked_on_its_own_stream(edge: Edge) -> None:
    edge.toolbox.put("ask")
    asked: list[str] = []

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"sure": True})

    async with Client(edge.url, mode="legacy", elicitation_callback=answer) as client:
        result = await client.call_tool("ask", {})
    assert asked == ["Go on?"]
    assert result.structured_content == {"action": "accept", "content": {"sure": True}}


async def test_client_that_can_not_be_asked_is_not(edge: Edge) -> None:
    edge.toolbox.put("ask")
    async with Client(edge.url, mode="legacy") as client:
        await client.call_tool("ask", {})
    assert [context.ask for _, _, context in edge.toolbox.calls] == [None]


async def test_2025_client_hears_of_its_change(edge: Edge) -> None:
    heard = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            heard.set()

    async with Client(edge.url, mode="legacy", message_handler=on_message) as client:
        await client.list_tools()
        async with asyncio.timeout(5):
            while not edge.endpoint.figures()["streams"]:  # the client opens it in its own time
                await client.call_tool("echo", {})
            edge.toolbox.put("new")
            await heard.wait()
        assert [one.name for one in (await client.list_tools()).tools] == [*NAMES, "new"]


async def test_2026_client_hears_of_its_change(edge: Edge) -> None:
    async with Client(edge.url, mode="2026-07-28") as client:
        async with client.listen(tools_list_changed=True) as subscription:
            edge.toolbox.put("new")
            async with asyncio.timeout(5):
                await anext(aiter(subscription))
        assert [one.name for one in (await client.list_tools()).tools] == [*NAMES, "new"]


@BOTH
async def test_cancelled_call_stops_working(edge: Edge, mode: Mode) -> None:
    async with Client(edge.url, mode=mode) as client:
        call = asyncio.create_task(client.call_tool("wait", {}))
        async with asyncio.timeout(5):
            await edge.toolbox.started.wait()
            call.cancel()
            await edge.toolbox.ended.wait()
        await client.call_tool("echo", {})
    assert edge.toolbox.cancelled == 1


@BOTH
async def test_call_knows_its_client(make_edge: EdgeMaker, mode: Mode) -> None:
    edge: Edge = await make_edge(with_tokens("ann"))
    headers = {"authorization": f"Bearer {TOKENS['ann']}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(edge.url, http_client=http)
        async with Client(transport, mode=mode) as client:
            await client.call_tool("echo", {}, meta=META)
    [(_, _, context)] = edge.toolbox.calls
    assert context.principal.name == "ann"
    assert context.client.startswith("mcp/")
    assert context.meta["gateway/idempotency_token"] == "t"
    assert context.era == ("2025" if mode == "legacy" else "2026")
    assert (context.session is not None) == (mode == "legacy")


@BOTH
async def test_bundle_and_step_addresses_are_views_of_their_own(edge: Edge, mode: Mode) -> None:
    for path in ("/bundles/a+b", "/steps/flow/step"):
        async with Client(edge.url + path, mode=mode) as client:
            assert (await client.list_tools()).tools == []
