"""What is wanted of an upstream outlives the session it was first told in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.connectors.upstream_rpc import RpcFailed
from gateway.connectors.upstream_sessions import Upstreams
from gateway.connectors.upstream_standing import MAX_URIS
from gateway.errors import GatewayError, Overloaded
from tests.connectors.upstream_doors import http, upstreams
from tests.library_peer import Era, library_peer
from tests.peers import until

NEWS, INDEX = "fiction://news", "library://index"


class Heard:
    """The URIs whose updates were told, one at a time."""

    def __init__(self, ups: Upstreams) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        ups.on_notification(self._hear)

    def _hear(self, name: str, method: str, params: Mapping[str, Any]) -> None:
        if method == "notifications/resources/updated":
            self._queue.put_nowait(params["uri"])

    async def next(self) -> str:
        async with asyncio.timeout(8):
            return await self._queue.get()


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_resources_are_watched_again_when_the_server_comes_back(era: Era) -> None:
    async with library_peer(era) as peer, upstreams(http("up", peer.url)) as ups:
        heard = Heard(ups)
        await ups.list_tools("up")
        await ups.standing("up").subscribe(NEWS, 5.0)
        async with asyncio.timeout(5):
            await peer.listening.wait()
        await peer.tell_updated(NEWS)
        assert await heard.next() == NEWS
        ups.replace("up", http("up", peer.url, headers={"x-other": "session"}))
        assert await _told_again(heard, peer)


async def _told_again(heard: Heard, peer: Any) -> bool:
    for _ in range(50):
        await peer.tell_updated(NEWS)
        try:
            async with asyncio.timeout(0.1):
                return await heard.next() == NEWS
        except TimeoutError:
            continue
    return False


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_what_may_have_been_missed_during_an_outage_is_told(era: Era) -> None:
    async with upstreams() as ups:
        heard = Heard(ups)
        async with library_peer(era) as peer:
            port = urlsplit(peer.url).port or 0
            ups.replace("up", http("up", peer.url))
            await ups.standing("up").subscribe(NEWS, 5.0)
        async with library_peer(era, port=port) as again:
            # A session of 2025 is only missed when it is used.
            await _asked(ups)
            assert await heard.next() == NEWS
            if era == "2025":
                await until(lambda: again.subscribed == [NEWS])


async def _asked(ups: Upstreams) -> None:
    for _ in range(100):
        try:
            await ups.list_tools("up", deadline=1.0)
            return
        except GatewayError:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_several_resources_are_watched_and_let_go_one_by_one(era: Era) -> None:
    async with library_peer(era) as peer, upstreams(http("up", peer.url)) as ups:
        heard, standing = Heard(ups), ups.standing("up")
        await ups.list_tools("up")
        for uri in (NEWS, INDEX):
            await standing.subscribe(uri, 5.0)
        async with asyncio.timeout(5):
            await peer.listening.wait()
        for uri in (INDEX, NEWS):
            await peer.tell_updated(uri)
            assert await heard.next() == uri
        standing.unsubscribe(NEWS)
        if era == "2025":
            await until(lambda: peer.subscribed == [INDEX])


async def test_a_servers_refusal_is_the_callers_to_read() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        with pytest.raises(RpcFailed) as refused:
            await ups.standing("up").subscribe("fiction://missing/missing", 5.0)
        assert (refused.value.rpc_code, refused.value.rpc_message) == (-32002, "No such book")


async def test_a_server_is_watched_for_so_many_resources_only() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        standing = ups.standing("up")
        standing._uris |= {f"fiction://books/{n}" for n in range(MAX_URIS)}
        with pytest.raises(Overloaded):
            await standing.subscribe(NEWS, 5.0)


async def test_the_level_of_logs_is_told_to_each_new_session_of_2025() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        ups.standing("up").log_from("warning")
        await until(lambda: peer.levels == ["warning"])
        ups.replace("up", http("up", peer.url, headers={"x-other": "session"}))
        await until(lambda: peer.levels == ["warning", "warning"])
