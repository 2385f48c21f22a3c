"""What is wanted of an upstream, and known of its lists, outlives the session it was told in."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from tests.library_peer import Era, library_peer
from tests.peers import soon, until
from tests.upstream.upstream_doors import Heard, free_port, http, upstreams

both_eras = pytest.mark.parametrize("era", ["2025", "2026"])
NEWS, INDEX = "fiction://news", "library://index"


@both_eras
async def test_what_may_have_been_missed_during_an_outage_is_told(era: Era) -> None:
    async with upstreams() as ups:
        heard = Heard(ups, "resources/updated")
        async with library_peer(era) as peer:
            port = urlsplit(peer.url).port or 0
            ups.replace("up", http("up", peer.url))
            await ups.subscribe("up", "ann", NEWS, 60.0)
        async with library_peer(era, port=port) as again:
            assert (await heard.next())[1]["uri"] == NEWS
            if era == "2025":
                await until(lambda: again.subscribed == [NEWS])


@both_eras
async def test_several_resources_are_watched_and_let_go_one_by_one(era: Era) -> None:
    async with library_peer(era) as peer, upstreams(http("up", peer.url)) as ups:
        heard = Heard(ups, "resources/updated")
        await ups.list_tools("up")
        for uri in (NEWS, INDEX):
            await ups.subscribe("up", "ann", uri, 60.0)
        await soon(peer.listening.wait())
        for uri in (INDEX, NEWS):
            await peer.tell_updated(uri)
            assert (await heard.next())[1]["uri"] == uri
        ups.unsubscribe("up", "ann", NEWS)
        if era == "2025":
            await until(lambda: peer.subscribed == [INDEX])


@both_eras
async def test_what_changed_during_an_outage_is_told_when_it_is_over(era: Era) -> None:
    port = free_port()
    async with upstreams(http("up", f"http://127.0.0.1:{port}/mcp")) as ups:
        heard = Heard(ups, "prompts/list_changed")
        async with library_peer(era, port=port) as peer, asyncio.timeout(60):
            await peer.looked.wait()
        async with library_peer(era, port=port) as peer, asyncio.timeout(60):
            await peer.looked.wait()
        assert heard.notices.empty()  # it was as before
        async with library_peer(era, port=port) as peer:
            peer.prompts = ["review", "summary"]
            await heard.next()
            peer.prompts = ["review"]
            await peer.tell_prompts_changed()
            await heard.next()
