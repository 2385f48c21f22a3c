"""Sessions of principals: who has one, what another can't see, how many there are, how they end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.errors import GatewayError, Overloaded, UpstreamFailed
from gateway.upstream.protocol import Hooks
from tests.library_peer import library_peer
from tests.peers import until
from tests.peers_mcp import mcp_peer, scripted_peer
from tests.raising import raises
from tests.upstream.test_upstream_life import free_port
from tests.upstream.upstream_doors import (
    QUICK,
    CalledUpstreams,
    Told,
    http,
    running,
    stdio,
    text_of,
    upstreams,
)

NEWS = "fiction://news"


async def pid_of(ups: CalledUpstreams, principal: str | None) -> int:
    return int(text_of(await ups.call("up", "pid", {}, principal=principal)))


class Troubles:
    """The upstreams that are said to be in trouble, one at a time."""

    def __init__(self, ups: CalledUpstreams) -> None:
        self._queue: asyncio.Queue[tuple[str, GatewayError]] = asyncio.Queue()
        ups.on_trouble = lambda name, error: self._queue.put_nowait((name, error))

    async def next(self) -> tuple[str, str]:
        async with asyncio.timeout(15):
            name, error = await self._queue.get()
        return name, error.code


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_what_one_principal_keeps_in_a_child_no_other_one_sees(era: str) -> None:
    async with upstreams(stdio("up", "--era", era)) as ups:
        assert ups.status("up").sharing == "principal"
        for who in ("ann", "bob"):
            await ups.call("up", "keep", {"text": f"a page of {who}"}, principal=who)
        for who in ("ann", "bob"):
            kept = await ups.call("up", "kept", {}, principal=who)
            assert text_of(kept) == f"a page of {who}"
        assert text_of(await ups.call("up", "kept", {}, principal="cat")) == "nothing"
        assert len({await pid_of(ups, who) for who in ("ann", "bob", "cat", None)}) == 4


async def test_a_server_of_2025_is_told_whether_the_clients_of_its_session_offer_sampling() -> None:
    async with upstreams(stdio("up", "--era", "handshake")) as ups:

        async def offered(who: str | None, **capabilities: Any) -> tuple[str, int]:
            asked: dict[str, Any] = {"principal": who, "hooks": Hooks(capabilities=capabilities)}
            said = text_of(await ups.call("up", "offered", {}, **asked))
            return said, int(text_of(await ups.call("up", "pid", {}, **asked)))

        without, first = await offered("ann")
        within, second = await offered("ann", sampling={})
        assert (without, within) == ("elicitation roots", "elicitation roots sampling")
        assert first != second
        assert await offered("ann", elicitation={"form": {}}, roots={}) == (without, first)
        assert await offered("ann", sampling={}, roots={}) == (within, second)
        assert (await offered(None))[0] == within  # that one lists: tools may hang on it


async def test_a_server_of_2026_has_one_session_of_a_principal_whatever_its_clients_offer() -> None:
    async with upstreams(stdio("up", "--era", "modern")) as ups:
        await ups.list_tools("up")
        first = await ups.call("up", "pid", {}, principal="ann")
        able = {"sampling": dict[str, Any]()}
        assert (
            await ups.call("up", "pid", {}, principal="ann", hooks=Hooks(capabilities=able))
            == first
        )


@pytest.mark.parametrize(
    ("era", "configured", "sharing", "sessions"),
    [
        ("handshake", None, "principal", 3),
        ("handshake", "shared", "shared", 1),
        ("modern", None, "shared", 0),
        ("modern", "principal", "principal", 0),
    ],
)
async def test_who_has_a_session_of_its_own_over_http(
    era: Any, configured: Any, sharing: str, sessions: int
) -> None:
    async with mcp_peer(era) as peer, upstreams(http("up", peer.url, session=configured)) as ups:
        await ups.list_tools("up")
        for who in ("ann", "bob", "ann"):
            await ups.call("up", "echo", {"text": "hi"}, principal=who)
        assert ups.status("up").sharing == sharing
        ids = {headers.get("mcp-session-id") for headers in peer.headers} - {None}
        assert len(ids) == sessions


async def test_server_of_2025_without_session_ids_is_shared() -> None:
    async with mcp_peer("handshake", stateless=True) as peer, upstreams(http("up", peer.url)) as up:
        for who in ("ann", "bob"):
            await up.call("up", "echo", {"text": "hi"}, principal=who)
        assert up.status("up").sharing == "shared"
        assert peer.methods.count("POST") <= 6  # one has introduced itself, not three


async def test_one_child_is_everybodys_if_configuration_says_so() -> None:
    async with upstreams(stdio("up", session="shared")) as ups:
        assert len({await pid_of(ups, who) for who in ("ann", "bob", None)}) == 1


async def test_lazy_child_of_a_principal_is_the_only_one_that_is_started(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with upstreams(stdio("up", "--starts", str(starts), lazy=True)) as ups:
        pid = await pid_of(ups, "ann")
        assert starts.read_text().split() == [str(pid)]


async def test_session_idle_longest_makes_room_for_another_principal(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with upstreams(stdio("up", "--starts", str(starts), "--stubborn")) as ups:
        ups.resize(2)
        await ups.list_tools("up")
        first, second = await pid_of(ups, "ann"), await pid_of(ups, "bob")
        await pid_of(ups, "ann")
        third = await pid_of(ups, "cat")
        await until(lambda: not running(second))
        assert running(first) and running(third)
        assert await pid_of(ups, "ann") == first
        children = [int(line) for line in starts.read_text().split()]
        assert sum(map(running, children)) == 3  # and the one that lists


async def test_call_is_refused_while_all_sessions_are_in_use() -> None:
    async with upstreams(stdio("up"), stdio("other")) as ups:
        ups.resize(1)
        entered = asyncio.Event()

        async def progress(done: float, total: float | None, text: str | None) -> None:
            entered.set()

        slow = ups.call(
            "up", "slow", {}, principal="ann", deadline=30, hooks=Hooks(progress=progress)
        )
        call = asyncio.create_task(slow)
        async with asyncio.timeout(15):
            await entered.wait()
        for name in ("up", "other"):
            with raises(Overloaded, code="busy"):
                await ups.call(name, "echo", {"text": "hi"}, principal="bob")
        assert text_of(await ups.call("up", "echo", {"text": "hi"}, principal="ann")) == "hi"
        assert text_of(await ups.call("up", "echo", {"text": "hi"})) == "hi"  # who lists goes on
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert text_of(await ups.call("other", "echo", {"text": "hi"}, principal="bob")) == "hi"


async def test_session_that_watches_a_resource_does_not_make_room() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        ups.resize(1)
        await ups.subscribe("up", "ann", NEWS, 5.0)
        with pytest.raises(Overloaded):
            await ups.request("up", "resources/read", {"uri": NEWS}, principal="bob")
        ups.unsubscribe("up", "ann", NEWS)
        found = await ups.request("up", "resources/read", {"uri": NEWS}, principal="bob")
        assert found["contents"][0]["text"] == f"{NEWS} of fiction"


async def test_fewer_sessions_end_idle_ones_at_once() -> None:
    async with upstreams(stdio("up")) as ups:
        pids = [await pid_of(ups, who) for who in ("ann", "bob", "cat")]
        ups.resize(1)
        await until(lambda: [running(pid) for pid in pids] == [False, False, True])


async def test_child_that_nobody_used_for_long_is_ended_and_started_again_when_needed() -> None:
    pace = replace(QUICK, unused=0.1)
    async with upstreams(stdio("up"), pace=pace) as ups:
        listing, own = await pid_of(ups, None), await pid_of(ups, "ann")
        await until(lambda: not running(own))
        assert running(listing)
        assert await pid_of(ups, "ann") not in (own, listing)


async def test_server_is_told_that_an_idle_session_ends() -> None:
    pace = replace(QUICK, unused=0.05)
    async with mcp_peer("handshake") as peer, upstreams(http("up", peer.url), pace=pace) as ups:
        await ups.call("up", "echo", {"text": "hi"}, principal="ann")
        await until(lambda: "DELETE" in peer.methods)
        assert text_of(await ups.call("up", "echo", {"text": "again"}, principal="ann")) == "again"


async def test_calls_under_way_keep_a_session_from_being_idle() -> None:
    pace = replace(QUICK, unused=0.02)
    async with mcp_peer("handshake") as peer, upstreams(http("up", peer.url), pace=pace) as ups:
        call = asyncio.create_task(ups.call("up", "slow", {}, principal="ann"))
        async with asyncio.timeout(15):
            await peer.entered.wait()
        await ups.call("up", "echo", {"text": "hi"}, principal="bob")
        await until(lambda: "DELETE" in peer.methods)  # bob's has ended
        peer.release.set()
        assert text_of(await call) == "done"


async def test_killed_child_costs_its_principal_one_call_and_the_others_nothing() -> None:
    async with upstreams(stdio("up")) as ups:
        ann, bob = await pid_of(ups, "ann"), await pid_of(ups, "bob")
        call = asyncio.create_task(ups.call("up", "slow", {}, principal="ann"))
        await pid_of(ups, "ann")  # the slow call went out before
        os.kill(ann, signal.SIGKILL)
        with raises(UpstreamFailed, code="upstream_unreachable", sent=True):
            await call
        assert await pid_of(ups, "bob") == bob
        assert await pid_of(ups, "ann") not in (ann, bob)


async def test_cancelled_call_is_told_to_the_principals_own_child() -> None:
    async with upstreams(stdio("up")) as ups:
        call = asyncio.create_task(ups.call("up", "slow", {}, principal="ann"))
        await pid_of(ups, "ann")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        seen = text_of(await ups.call("up", "seen", {}, principal="ann"))
        assert "notifications/cancelled" in seen
        assert "cancelled" not in text_of(await ups.call("up", "seen", {}, principal="bob"))


async def test_replaced_connection_lets_calls_finish_and_ends_the_sessions_of_principals() -> None:
    async with (
        mcp_peer("handshake") as old,
        mcp_peer("handshake") as new,
        upstreams(http("up", old.url)) as ups,
    ):
        call = asyncio.create_task(ups.call("up", "slow", {}, principal="ann"))
        async with asyncio.timeout(15):
            await old.entered.wait()
        ups.replace("up", http("up", new.url))
        assert text_of(await ups.call("up", "echo", {"text": "new"}, principal="ann")) == "new"
        assert new.calls == ["echo"]
        old.release.set()
        assert text_of(await call) == "done"
        await until(lambda: old.methods.count("DELETE") == 2)  # hers, and the one that lists
        ups.replace("up", None)
        await until(lambda: new.methods.count("DELETE") == 2)


async def test_closing_ends_the_children_of_all_principals() -> None:
    async with upstreams(stdio("up")) as ups:
        pids = [await pid_of(ups, who) for who in ("ann", "bob", None)]
    assert not any(map(running, pids))


async def test_changed_list_counts_only_where_the_session_that_lists_tells_of_it() -> None:
    async with upstreams(stdio("up")) as ups:
        told = Told(ups)
        await ups.list_tools("up")
        await ups.call("up", "grow", {}, principal="ann")
        with pytest.raises(TimeoutError):
            await told.next(0.2)
        await ups.call("up", "grow", {})
        assert await told.next() == "up"


async def test_what_a_session_tells_is_for_its_principal_alone() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        heard: asyncio.Queue[tuple[str | None, str]] = asyncio.Queue()

        def hear(name: str, who: str | None, method: str, params: Mapping[str, Any]) -> None:
            heard.put_nowait((who, params["uri"]))

        ups.on_notification = hear
        await ups.subscribe("up", "ann", NEWS, 5.0)
        await peer.tell_updated(NEWS)
        async with asyncio.timeout(15):
            assert await heard.get() == ("ann", NEWS)
        assert heard.empty()


@pytest.mark.parametrize("era", ["handshake", "modern"])
@pytest.mark.parametrize("who", ["ann", None])
async def test_dead_server_is_told_of_by_the_first_call_that_fails_and_again_when_it_is_back(
    era: Any, who: str | None
) -> None:
    port = free_port()
    async with AsyncExitStack() as first, upstreams() as ups:
        peer = await first.enter_async_context(mcp_peer(era, port=port))
        ups.replace("up", http("up", peer.url))
        told, troubles = Told(ups), Troubles(ups)
        await ups.list_tools("up")
        await ups.call("up", "echo", {"text": "hi"}, principal=who)
        await first.aclose()
        with pytest.raises(UpstreamFailed):
            await ups.call("up", "echo", {"text": "hi"}, principal=who)
        assert await troubles.next() == ("up", "upstream_unreachable")
        assert ups.status("up").error is not None
        told.names.clear()
        async with mcp_peer(era, port=port):
            assert await told.next(5) == "up"
            assert len(await ups.list_tools("up")) == 10
            assert ups.status("up").error is None


async def test_server_that_no_longer_answers_is_told_of_soon_after_the_call_that_waited() -> None:
    pace = replace(QUICK, doubt=0.2)
    async with mcp_peer("modern") as peer, upstreams(http("up", peer.url), pace=pace) as ups:
        troubles = Troubles(ups)
        await ups.list_tools("up")
        peer.frozen = True
        with pytest.raises(UpstreamFailed):
            await ups.call("up", "echo", {"text": "hi"}, deadline=0.1)
        assert await troubles.next() == ("up", "upstream_timeout")


async def test_slow_tool_of_a_server_that_is_well_is_no_trouble() -> None:
    pace = replace(QUICK, doubt=0.05)
    async with mcp_peer("modern") as peer, upstreams(http("up", peer.url), pace=pace) as ups:
        troubles = Troubles(ups)
        await ups.list_tools("up")
        listed = peer.methods.count("tools/list")
        with pytest.raises(UpstreamFailed):
            await ups.call("up", "slow", {}, deadline=0.05)
        await until(lambda: peer.methods.count("tools/list") == listed + 3)  # a look: three pages
        await ups.call("up", "echo", {"text": "hi"})
        assert troubles._queue.empty()


async def test_child_that_starts_for_who_lists_but_not_for_a_principal_is_trouble(
    tmp_path: Path,
) -> None:
    starts = tmp_path / "starts"
    async with upstreams(stdio("up", "--starts", str(starts), "--most", "1")) as ups:
        told, troubles = Told(ups), Troubles(ups)
        await ups.list_tools("up")
        with pytest.raises(UpstreamFailed):
            await ups.call("up", "echo", {"text": "hi"}, principal="ann")
        assert await troubles.next() == ("up", "upstream_unreachable")
        with pytest.raises(UpstreamFailed, match='session = "shared"'):
            await ups.list_tools("up")  # so that it is not shown as well again
        starts.unlink()
        for _ in range(100):
            if await _is_well(ups):
                break
            await asyncio.sleep(0.05)
        assert await told.next() == "up"
        assert text_of(await ups.call("up", "echo", {"text": "hi"}, principal="ann")) == "hi"


async def _is_well(ups: CalledUpstreams) -> bool:
    try:
        await ups.list_tools("up")
    except UpstreamFailed:
        return False
    return True


@pytest.mark.parametrize(
    ("protocol", "version"),
    [("auto", "2026-07-28"), ("2025", "2025-11-25"), ("2026", "2026-07-28")],
)
async def test_server_of_both_eras_is_spoken_to_in_the_one_that_is_configured(
    protocol: Any, version: str
) -> None:
    async with mcp_peer("both") as peer, upstreams(http("up", peer.url, protocol=protocol)) as ups:
        for who in (None, "ann"):
            await ups.call("up", "echo", {"text": "hi"}, principal=who)
        assert peer.versions == {version}
        assert ups.status("up").sharing == ("principal" if version < "2026" else "shared")


@pytest.mark.parametrize(("protocol", "era"), [("2025", "modern"), ("2026", "handshake")])
async def test_server_that_does_not_speak_the_configured_era_says_which_key_to_change(
    protocol: Any, era: Any
) -> None:
    async with mcp_peer(era) as peer, upstreams(http("up", peer.url, protocol=protocol)) as ups:
        with pytest.raises(UpstreamFailed) as caught:
            await ups.list_tools("up")
        assert caught.value.code == "upstream_error"
        assert f"protocol of {protocol}" in caught.value.message
        assert "`protocol`" in caught.value.hint


async def test_server_that_begins_to_keep_sessions_is_met_anew() -> None:
    port = free_port()
    async with AsyncExitStack() as first, upstreams() as ups:
        server = mcp_peer("handshake", port=port, stateless=True)
        peer = await first.enter_async_context(server)
        ups.replace("up", http("up", peer.url))
        troubles = Troubles(ups)
        await ups.call("up", "echo", {"text": "hi"}, principal="ann")
        assert ups.status("up").sharing == "shared"
        await first.aclose()
        with pytest.raises(UpstreamFailed):
            await ups.call("up", "echo", {"text": "hi"}, principal="ann")
        await troubles.next()
        async with mcp_peer("handshake", port=port):
            await until(lambda: ups.status("up").sharing == "principal")
            assert text_of(await ups.call("up", "echo", {"text": "hi"}, principal="ann")) == "hi"


@pytest.mark.parametrize("status", [401, 502])
async def test_server_whose_door_refuses_everything_is_trouble(status: int) -> None:
    refusing = asyncio.Event()

    async def answer(message: dict[str, Any], request: Request) -> Response:
        if refusing.is_set():
            return Response(status_code=status)
        found: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
        if message["method"] != "server/discover":
            found = {"tools": [], "content": []}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": found})

    async with scripted_peer(answer) as url, upstreams(http("up", url)) as ups:
        told, troubles = Told(ups), Troubles(ups)
        await ups.list_tools("up")
        await ups.call("up", "any", {})
        refusing.set()
        with pytest.raises(UpstreamFailed):
            await ups.call("up", "any", {})
        assert await troubles.next() == ("up", "upstream_error")
        refusing.clear()
        assert await told.next(5) == "up"


async def test_server_that_was_replaced_troubles_nobody_any_more() -> None:
    port = free_port()
    async with AsyncExitStack() as first, mcp_peer("modern") as new, upstreams() as ups:
        old = await first.enter_async_context(mcp_peer("handshake", port=port))
        ups.replace("up", http("up", old.url))
        call = asyncio.create_task(ups.call("up", "slow", {}, principal="ann"))
        async with asyncio.timeout(15):
            await old.entered.wait()
        ups.replace("up", http("up", new.url))
        troubles = Troubles(ups)
        await ups.list_tools("up")
        await first.aclose()
        with pytest.raises(UpstreamFailed):
            await call
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await troubles._queue.get()
