"""Upstreams that are dead, slow, restarted or replaced: who notices, and who has to wait."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.errors import GatewayError, Overloaded, UpstreamFailed
from gateway.limits import MAX_PENDING
from tests.peers import soon, until
from tests.peers_mcp import Era, mcp_peer, scripted_peer
from tests.raising import raises
from tests.raw_server import Connection, answer, raw_server
from tests.upstream.upstream_doors import (
    QUICK,
    CalledUpstreams,
    Told,
    both_eras,
    free_port,
    http,
    modern,
    stdio,
    upstreams,
)


async def failure(ups: CalledUpstreams, name: str, tool: str = "echo") -> tuple[str, bool]:
    with pytest.raises(UpstreamFailed) as caught:
        await ups.call(name, tool, {"text": "hi"})
    return caught.value.code, caught.value.sent


@both_eras
async def test_upstream_dead_at_start_is_told_of_once_it_is_there(era: Era) -> None:
    port = free_port()
    async with upstreams(http("up", f"http://127.0.0.1:{port}/mcp")) as ups:
        told = Told(ups)
        with raises(UpstreamFailed, code="upstream_unreachable", sent=False):
            await ups.list_tools("up")
        assert await failure(ups, "up") == ("upstream_unreachable", False)
        async with mcp_peer(era, port=port):
            assert await told.next() == "up"
            assert len(await ups.list_tools("up")) == 10


async def test_call_does_not_wait_for_a_long_rest_to_end_when_the_upstream_is_back() -> None:
    port = free_port()
    pace = replace(QUICK, longest_rest=60.0, first_rest=0.02)
    async with upstreams(http("up", f"http://127.0.0.1:{port}/mcp"), pace=pace) as ups:
        async with asyncio.timeout(60):
            for _ in range(20):  # each failure makes the next rest longer
                assert await failure(ups, "up") == ("upstream_unreachable", False)
                await asyncio.sleep(0.025)
        async with mcp_peer("2026", port=port), asyncio.timeout(60):
            await asyncio.sleep(0.03)
            assert await ups.text("echo", text="back") == "back"


@both_eras
async def test_upstream_that_forgot_its_sessions_is_met_anew_by_the_call_that_finds_out(
    era: Era,
) -> None:
    port = free_port()
    async with upstreams(http("up", f"http://127.0.0.1:{port}/mcp", lazy=True)) as ups:
        async with mcp_peer(era, port=port) as first:
            assert await ups.text("echo", text="1") == "1"
            assert first.calls == ["echo"]
        async with mcp_peer(era, port=port) as second, asyncio.timeout(60):
            texts = [str(n) for n in range(20)]
            assert await asyncio.gather(*(ups.text("echo", text=text) for text in texts)) == texts
            assert second.calls == ["echo"] * 20
            assert "server/discover" not in second.methods  # what worked before is tried first


async def test_upstream_that_never_keeps_a_session_is_unreachable() -> None:
    async def answer(message: dict[str, Any], request: Request) -> Response:
        if message["method"] != "initialize":
            return Response(status_code=404 if "id" in message else 202)
        found = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}}
        body = {"jsonrpc": "2.0", "id": message["id"], "result": found}
        return JSONResponse(body, headers={"mcp-session-id": "gone"})

    async with scripted_peer(answer) as url, upstreams(http("up", url)) as ups:
        assert await failure(ups, "up") == ("upstream_unreachable", False)


async def test_upstream_killed_during_a_call_may_have_got_it() -> None:
    async def conversation(connection: Connection) -> None:
        while request := await connection.request():
            if b"tools/call" in request:
                return  # hangs up
            found = b'{"supportedVersions":["2026-07-28"],"capabilities":{}}'
            body = b'{"jsonrpc":"2.0","id":1,"result":%s}' % found
            await connection.write(answer(body, headers={"Content-Type": "application/json"}))

    async with raw_server(conversation) as raw, upstreams(http("up", raw.url)) as ups:
        assert await failure(ups, "up") == ("upstream_unreachable", True)


async def test_calls_over_the_bound_are_refused_at_once_and_only_there() -> None:
    async with (
        mcp_peer("2026") as peer,
        upstreams(http("full", peer.url), http("other", peer.url)) as ups,
    ):
        calls = [
            asyncio.create_task(ups.call("full", "slow", {}, deadline=30))
            for _ in range(MAX_PENDING)
        ]
        async with asyncio.timeout(60):
            await peer.entered.wait()
            with raises(Overloaded, code="busy"):
                await ups.call("full", "echo", {"text": "one too many"})
            assert await ups.text("echo", "other", text="fine") == "fine"
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_change_without_a_notice_is_found_by_looking_and_sameness_is_silent() -> None:
    tools = [{"name": "a", "inputSchema": {"type": "object"}}, {"name": "b", "inputSchema": {}}]
    listed = asyncio.Event()

    async def answer(message: dict[str, Any], request: Request) -> Response:
        if message["method"] == "tools/list":
            listed.set()
        return modern(message, **{"tools/list": {"tools": tools}})

    async def looked() -> None:
        listed.clear()
        await soon(listed.wait())

    pace = replace(QUICK, poll=0.05)
    async with scripted_peer(answer) as url, upstreams(http("up", url), pace=pace) as ups:
        told = Told(ups)
        await ups.list_tools("up")
        tools.reverse()  # another order is the same list
        await looked()
        await looked()
        assert told.names == []
        tools.pop()
        assert await told.next() == "up"
        assert len(await ups.list_tools("up")) == 1


async def test_listing_that_failed_for_a_while_is_told_when_it_works_again() -> None:
    broken = asyncio.Event()

    async def answer(message: dict[str, Any], request: Request) -> Response:
        failing = broken.is_set() and message["method"] == "tools/list"
        return Response(status_code=500) if failing else modern(message)

    async with scripted_peer(answer) as url, upstreams(http("up", url)) as ups:
        told = Told(ups)
        assert await ups.list_tools("up") == []
        broken.set()
        with pytest.raises(UpstreamFailed):
            await ups.list_tools("up")
        broken.clear()
        assert await told.next() == "up"
        assert await ups.list_tools("up") == []


@both_eras
async def test_a_change_is_told_and_a_burst_of_notices_once(era: Era) -> None:
    pace = replace(QUICK, spacing=0.1)
    async with mcp_peer(era) as peer, upstreams(http("up", peer.url), pace=pace) as ups:
        told = Told(ups)
        await ups.list_tools("up")
        await soon(peer.listening.wait())
        peer.tools["new"] = {"type": "object"}
        for _ in range(20):
            await peer.announce()
        assert await told.next() == "up"
        assert "new" in [tool["name"] for tool in await ups.list_tools("up")]
        assert len(told.names) <= 2


async def test_lazy_upstream_is_met_at_its_first_use() -> None:
    async with (
        mcp_peer("2026") as peer,
        upstreams(http("lazy", peer.url, lazy=True), http("eager", peer.url)) as ups,
    ):
        await ups.list_tools("eager")
        assert ups.listing_link("lazy").state == "idle"
        assert peer.methods.count("server/discover") == 1
        assert await ups.text("echo", "lazy", text="hi") == "hi"
        assert ups.listing_link("lazy").state == "connected"


async def test_lazy_child_that_failed_is_started_again_at_its_next_use() -> None:
    async with upstreams(stdio("lazy", "--crash", lazy=True)) as ups:
        for _ in range(2):
            assert await failure(ups, "lazy") == ("upstream_unreachable", False)
            await until(lambda: ups.listing_link("lazy").state == "idle")


async def test_same_settings_again_change_nothing() -> None:
    async with mcp_peer("2026") as peer, upstreams(http("up", peer.url)) as ups:
        await ups.list_tools("up")
        ups.replace("up", http("up", peer.url))
        await ups.list_tools("up")
        assert peer.methods.count("server/discover") == 1


@both_eras
async def test_closing_leaves_no_task_behind(era: Era) -> None:
    async with mcp_peer(era) as peer:
        before = asyncio.all_tasks()
        async with upstreams(
            http("up", peer.url),
            http("dead", f"http://127.0.0.1:{free_port()}/mcp"),
            stdio("child"),
            stdio("crashing", "--crash"),
        ) as ups:
            await ups.list_tools("up")
            await ups.list_tools("child")
            with pytest.raises(UpstreamFailed):
                await ups.call("up", "slow", {}, deadline=0.05)
            ups.replace("up", http("up", peer.url, headers={"A": "b"}))
        await until(lambda: "gateway" not in repr(asyncio.all_tasks() - before))


async def test_listener_that_failed_is_told_the_next_time() -> None:
    async with mcp_peer("2026") as peer, upstreams(http("up", peer.url)) as ups:
        heard: asyncio.Queue[str] = asyncio.Queue()

        def failing(name: str) -> None:
            heard.put_nowait(name)
            raise GatewayError("internal", "a listener of ours")

        ups.on_tools_changed = failing
        await ups.list_tools("up")
        async with asyncio.timeout(60):
            await peer.listening.wait()
            for _ in range(2):
                await peer.announce()
                assert await heard.get() == "up"
