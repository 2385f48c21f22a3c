"""Sessions of principals: who has one, what another can't see, how many there are, how they end."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import GatewayError, Overloaded, Refused, UpstreamFailed
from gateway.upstream.protocol import Hooks
from tests.databases import eventually
from tests.library_peer import library_peer
from tests.peers import soon, until
from tests.peers_mcp import mcp_peer, scripted_peer
from tests.raising import raises
from tests.upstream.upstream_doors import (
    QUICK,
    CalledUpstreams,
    Told,
    both_eras,
    free_port,
    http,
    modern,
    running,
    stdio,
    upstreams,
)

NEWS = "fiction://news"


class Troubles:
    """The upstreams that are said to be in trouble, one at a time."""

    def __init__(self, ups: CalledUpstreams) -> None:
        self._queue: asyncio.Queue[tuple[str, GatewayError]] = asyncio.Queue()
        ups.on_trouble = lambda name, error: self._queue.put_nowait((name, error))

    async def next(self) -> tuple[str, str]:
        name, error = await soon(self._queue.get())
        return name, error.code


async def test_a_server_of_2025_is_told_whether_the_clients_of_its_session_offer_sampling() -> None:
    async with upstreams(stdio("up", "--era", "2025")) as ups:

        async def offered(who: str | None, **capabilities: Any) -> tuple[str, int]:
            asked: dict[str, Any] = {"principal": who, "hooks": Hooks(capabilities=capabilities)}
            return await ups.text("offered", **asked), int(await ups.text("pid", **asked))

        without, first = await offered("ann")
        within, second = await offered("ann", sampling={})
        assert (without, within) == ("elicitation roots", "elicitation roots sampling")
        assert first != second
        assert await offered("ann", elicitation={"form": {}}, roots={}) == (without, first)
        assert await offered("ann", sampling={}, roots={}) == (within, second)
        assert (await offered(None))[0] == within  # that one lists: tools may hang on it


async def test_a_server_of_2026_has_one_session_of_a_principal_whatever_its_clients_offer() -> None:
    async with upstreams(stdio("up", "--era", "2026")) as ups:
        await ups.list_tools("up")
        able = Hooks(capabilities={"sampling": dict[str, Any]()})
        again = await ups.text("pid", principal="ann", hooks=able)
        assert int(again) == await ups.pid("ann")


@pytest.mark.parametrize(
    ("era", "configured", "stateless", "sharing", "sessions"),
    [
        ("2025", None, False, "principal", 3),
        ("2025", "shared", False, "shared", 1),
        ("2025", None, True, "shared", 0),
        ("2026", None, False, "shared", 0),
        ("2026", "principal", False, "principal", 0),
    ],
)
async def test_who_has_a_session_of_its_own_over_http(
    era: Any, configured: Any, stateless: bool, sharing: str, sessions: int
) -> None:
    async with (
        mcp_peer(era, stateless=stateless) as peer,
        upstreams(http("up", peer.url, session=configured)) as ups,
    ):
        await ups.list_tools("up")
        for who in ("ann", "bob", "ann"):
            await ups.text("echo", text="hi", principal=who)
        assert ups.listing_link("up").sharing == sharing
        ids = {headers.get("mcp-session-id") for headers in peer.headers} - {None}
        assert len(ids) == sessions


async def test_one_child_is_everybodys_if_configuration_says_so() -> None:
    async with upstreams(stdio("up", session="shared")) as ups:
        assert len({await ups.pid(who) for who in ("ann", "bob", None)}) == 1


async def test_lazy_child_of_a_principal_is_the_only_one_that_is_started(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with upstreams(stdio("up", "--starts", str(starts), lazy=True)) as ups:
        pid = await ups.pid("ann")
        assert starts.read_text().split() == [str(pid)]


async def test_session_idle_longest_makes_room_for_another_principal(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with upstreams(stdio("up", "--starts", str(starts))) as ups:
        ups.resize(2)
        await ups.list_tools("up")
        first, second = await ups.pid("ann"), await ups.pid("bob")
        await ups.pid("ann")
        third = await ups.pid("cat")
        await until(lambda: not running(second))
        assert running(first) and running(third)
        assert await ups.pid("ann") == first
        children = [int(line) for line in starts.read_text().split()]
        assert sum(map(running, children)) == 3  # and the one that lists


async def test_call_is_refused_while_all_sessions_are_in_use() -> None:
    async with upstreams(stdio("up"), stdio("other")) as ups:
        ups.resize(1)
        call = asyncio.create_task(ups.text("slow", principal="ann", deadline=30))
        await ups.pid("ann")  # the slow call went out before
        for name in ("up", "other"):
            with raises(Overloaded, code="busy"):
                await ups.call(name, "echo", {"text": "hi"}, principal="bob")
        assert await ups.text("echo", text="hi", principal="ann") == "hi"
        assert await ups.text("echo", text="hi") == "hi"  # who lists goes on
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert await ups.text("echo", "other", text="hi", principal="bob") == "hi"


async def test_session_that_watches_a_resource_does_not_make_room() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        ups.resize(1)
        await ups.subscribe("up", "ann", NEWS, 60.0)
        with pytest.raises(Overloaded):
            await ups.request("up", "resources/read", {"uri": NEWS}, principal="bob")
        ups.unsubscribe("up", "ann", NEWS)
        found = await ups.request("up", "resources/read", {"uri": NEWS}, principal="bob")
        assert found["contents"][0]["text"] == f"{NEWS} of fiction"


async def test_fewer_sessions_end_idle_ones_at_once() -> None:
    async with upstreams(stdio("up")) as ups:
        pids = [await ups.pid(who) for who in ("ann", "bob", "cat")]
        ups.resize(1)
        await until(lambda: [running(pid) for pid in pids] == [False, False, True])


async def test_child_that_nobody_used_for_long_is_ended_and_started_again_when_needed() -> None:
    pace = replace(QUICK, unused=0.1)
    async with upstreams(stdio("up"), pace=pace) as ups:
        listing, own = await ups.pid(None), await ups.pid("ann")
        await until(lambda: not running(own))
        assert running(listing)
        assert await ups.pid("ann") not in (own, listing)


async def test_server_is_told_that_a_session_ends_when_it_is_idle_and_not_during_a_call() -> None:
    pace = replace(QUICK, unused=0.02)
    async with mcp_peer("2025") as peer, upstreams(http("up", peer.url), pace=pace) as ups:
        call = asyncio.create_task(ups.text("slow", principal="ann"))
        await until(peer.entered.is_set)
        await ups.text("echo", text="hi", principal="bob")
        await until(lambda: "DELETE" in peer.methods)  # bob's has ended
        assert await ups.text("echo", text="again", principal="bob") == "again"
        peer.release.set()
        assert await call == "done"


async def test_killed_child_costs_its_principal_one_call_and_the_others_nothing() -> None:
    async with upstreams(stdio("up")) as ups:
        ann, bob = await ups.pid("ann"), await ups.pid("bob")
        call = asyncio.create_task(ups.call("up", "slow", {}, principal="ann"))
        await ups.pid("ann")  # the slow call went out before
        os.kill(ann, signal.SIGKILL)
        with raises(UpstreamFailed, code="upstream_unreachable", sent=True):
            await call
        assert await ups.pid("bob") == bob
        assert await ups.pid("ann") not in (ann, bob)


async def test_replaced_connection_lets_calls_finish_and_ends_the_sessions_of_principals() -> None:
    async with (
        mcp_peer("2025") as old,
        mcp_peer("2025") as new,
        upstreams(http("up", old.url)) as ups,
    ):
        call = asyncio.create_task(ups.text("slow", principal="ann"))
        await until(old.entered.is_set)
        ups.replace("up", http("up", new.url))
        assert await ups.text("echo", text="new", principal="ann") == "new"
        assert new.calls == ["echo"]
        old.release.set()
        assert await call == "done"
        await until(lambda: old.methods.count("DELETE") == 2)  # hers, and the one that lists
        ups.replace("up", None)
        await until(lambda: new.methods.count("DELETE") == 2)
        with raises(Refused, code="not_connected"):
            await ups.call("up", "echo", {})


@both_eras
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
        await ups.text("echo", text="hi", principal=who)
        await first.aclose()
        with pytest.raises(UpstreamFailed):
            await ups.text("echo", text="hi", principal=who)
        assert await troubles.next() == ("up", "upstream_unreachable")
        assert ups.listing_link("up").error is not None
        told.names.clear()
        async with mcp_peer(era, port=port):
            assert await told.next() == "up"
            assert len(await ups.list_tools("up")) == 10
            assert ups.listing_link("up").error is None


async def test_server_that_no_longer_answers_is_told_of_soon_after_the_call_that_waited() -> None:
    pace = replace(QUICK, doubt=0.2)
    async with mcp_peer("2026") as peer, upstreams(http("up", peer.url), pace=pace) as ups:
        troubles = Troubles(ups)
        await ups.list_tools("up")
        peer.frozen = True
        with pytest.raises(UpstreamFailed):
            await ups.call("up", "echo", {"text": "hi"}, deadline=0.1)
        assert await troubles.next() == ("up", "upstream_timeout")


async def test_slow_tool_of_a_server_that_is_well_is_no_trouble() -> None:
    pace = replace(QUICK, doubt=1.0)
    async with mcp_peer("2026") as peer, upstreams(http("up", peer.url), pace=pace) as ups:
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
            await ups.text("echo", text="hi", principal="ann")
        assert await troubles.next() == ("up", "upstream_unreachable")
        with pytest.raises(UpstreamFailed, match='session = "shared"'):
            await ups.list_tools("up")  # so that it is not shown as well again
        starts.unlink()
        await eventually(lambda: _is_well(ups), True)
        assert await told.next() == "up"
        assert await ups.text("echo", text="hi", principal="ann") == "hi"


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
            await ups.text("echo", text="hi", principal=who)
        assert peer.versions == {version}
        assert ups.listing_link("up").sharing == ("principal" if version < "2026" else "shared")


@pytest.mark.parametrize(("protocol", "era"), [("2025", "2026"), ("2026", "2025")])
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
        server = mcp_peer("2025", port=port, stateless=True)
        peer = await first.enter_async_context(server)
        ups.replace("up", http("up", peer.url))
        troubles = Troubles(ups)
        await ups.text("echo", text="hi", principal="ann")
        assert ups.listing_link("up").sharing == "shared"
        await first.aclose()
        with pytest.raises(UpstreamFailed):
            await ups.text("echo", text="hi", principal="ann")
        await troubles.next()
        async with mcp_peer("2025", port=port):
            await until(lambda: ups.listing_link("up").sharing == "principal")
            assert await ups.text("echo", text="hi", principal="ann") == "hi"


@pytest.mark.parametrize("status", [401, 502])
async def test_server_whose_door_refuses_everything_is_trouble(status: int) -> None:
    refusing = asyncio.Event()

    async def answer(message: dict[str, Any], request: Request) -> Response:
        if refusing.is_set():
            return Response(status_code=status)
        return modern(message, **{"tools/call": {"content": []}})

    async with scripted_peer(answer) as url, upstreams(http("up", url)) as ups:
        told, troubles = Told(ups), Troubles(ups)
        await ups.list_tools("up")
        await ups.call("up", "any", {})
        refusing.set()
        with pytest.raises(UpstreamFailed):
            await ups.call("up", "any", {})
        assert await troubles.next() == ("up", "upstream_error")
        refusing.clear()
        assert await told.next() == "up"


async def test_server_that_was_replaced_troubles_nobody_any_more() -> None:
    port = free_port()
    async with AsyncExitStack() as first, mcp_peer("2026") as new, upstreams() as ups:
        old = await first.enter_async_context(mcp_peer("2025", port=port))
        ups.replace("up", http("up", old.url))
        call = asyncio.create_task(ups.call("up", "slow", {}, principal="ann"))
        await until(old.entered.is_set)
        ups.replace("up", http("up", new.url))
        troubles = Troubles(ups)
        await ups.list_tools("up")
        await first.aclose()
        with pytest.raises(UpstreamFailed):
            await call
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await troubles._queue.get()
