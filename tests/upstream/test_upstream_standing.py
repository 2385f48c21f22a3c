"""What is wanted of an upstream outlives the session it was first told in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.upstream.protocol import RpcFailed
from tests.library_peer import Era, library_peer
from tests.peers import until
from tests.upstream.upstream_doors import CalledUpstreams, http, upstreams

NEWS, INDEX = "fiction://news", "library://index"


class Heard:
    """The URIs whose updates were told, one at a time."""

    def __init__(self, ups: CalledUpstreams) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        ups.on_notification = self._hear

    def _hear(
        self, name: str, principal: str | None, method: str, params: Mapping[str, Any]
    ) -> None:
        if method == "notifications/resources/updated":
            self._queue.put_nowait(params["uri"])

    async def next(self) -> str:
        async with asyncio.timeout(8):
            return await self._queue.get()


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_what_may_have_been_missed_during_an_outage_is_told(era: Era) -> None:
    async with upstreams() as ups:
        heard = Heard(ups)
        async with library_peer(era) as peer:
            port = urlsplit(peer.url).port or 0
            ups.replace("up", http("up", peer.url))
            await ups.subscribe("up", "ann", NEWS, 5.0)
        async with library_peer(era, port=port) as again:
            assert await heard.next() == NEWS
            if era == "2025":
                await until(lambda: again.subscribed == [NEWS])


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_several_resources_are_watched_and_let_go_one_by_one(era: Era) -> None:
    async with library_peer(era) as peer, upstreams(http("up", peer.url)) as ups:
        heard = Heard(ups)
        await ups.list_tools("up")
        for uri in (NEWS, INDEX):
            await ups.subscribe("up", "ann", uri, 5.0)
        async with asyncio.timeout(5):
            await peer.listening.wait()
        for uri in (INDEX, NEWS):
            await peer.tell_updated(uri)
            assert await heard.next() == uri
        ups.unsubscribe("up", "ann", NEWS)
        if era == "2025":
            await until(lambda: peer.subscribed == [INDEX])


async def test_a_servers_refusal_is_the_callers_to_read() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        with pytest.raises(RpcFailed) as refused:
            await ups.subscribe("up", "ann", "fiction://missing/missing", 5.0)
        assert (refused.value.rpc_code, refused.value.rpc_message) == (-32002, "No such book")
