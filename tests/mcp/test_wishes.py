"""Who hears of what: bounds, last ones to let go, streams that come and go, and levels of logs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from gateway.calls.admission import Admission
from gateway.calls.credentials import Credentials
from gateway.calls.send import UpstreamRequests
from gateway.errors import Overloaded
from gateway.limits import LINGER_SECONDS, MAX_WATCHED
from gateway.mcp.streams import Wishes, reaches
from gateway.outbound.client import Egress
from gateway.store.database import Database
from gateway.upstream.registry import Upstreams
from tests.library_peer import Era, LibraryPeer, library_peer
from tests.peers import until
from tests.upstream.upstream_doors import Heard, http, upstreams

NEWS = "fiction://news"
both_eras = pytest.mark.parametrize("era", ["2025", "2026"])


def wishes_of(ups: Upstreams, linger: float = LINGER_SECONDS) -> Wishes:
    """Wishes that nobody shares, so that no store is opened."""
    return Wishes(
        UpstreamRequests(ups, Admission(8), Credentials(Egress([]))),
        Database("sqlite:///nowhere.db"),
        linger,
    )


async def told(heard: Heard, peer: LibraryPeer) -> str | None:
    """Who is told once the server, told of the wish, tells of an update; None: everybody."""
    async with asyncio.timeout(60):
        while True:
            await peer.tell_updated(NEWS)
            with suppress(TimeoutError):
                return (await heard.next(0.1))[0]


async def test_a_server_is_told_of_the_first_to_watch_and_of_the_last_to_let_go() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        wishes = wishes_of(ups)
        for holder in ("one", "two"):
            await wishes.watch(holder, "ann", "up", NEWS)
        assert peer.subscribed == [NEWS]
        assert wishes.unwatch("one", "up", NEWS)
        assert not wishes.unwatch("one", "up", NEWS)
        assert wishes.watches("two", "up", NEWS)
        wishes.forget("two")
        await until(lambda: peer.subscribed == [])


async def test_principals_that_share_a_session_let_go_of_a_resource_one_by_one() -> None:
    settings = {"session": "shared"}
    async with library_peer("2025") as peer, upstreams(http("up", peer.url, **settings)) as ups:
        wishes = wishes_of(ups)
        for who in ("ann", "bob"):
            await wishes.watch(f"session of {who}", who, "up", NEWS)
        wishes.forget("session of ann")
        assert await told(Heard(ups, "resources/updated"), peer) is None
        wishes.forget("session of bob")
        await until(lambda: peer.subscribed == [])


@pytest.mark.parametrize(
    ("uri", "heard"),
    [
        ("fiction://news", True),
        ("fiction://news/today", True),
        ("fiction://newspaper", False),
        ("science://news", False),
    ],
)
async def test_an_update_is_for_who_watches_it_or_what_is_above_it(uri: str, heard: bool) -> None:
    async with library_peer("2026") as peer, upstreams(http("up", peer.url)) as ups:
        wishes = wishes_of(ups)
        await wishes.watch("one", "ann", "up", NEWS)
        assert wishes.watches("one", "up", uri) is heard
        assert not wishes.watches("one", "other", uri)


async def test_one_principal_watches_so_much_and_no_more_in_however_many_sessions() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        wishes = wishes_of(ups)
        await wishes.watch("bobs", "bob", "up", NEWS)
        for number in range(MAX_WATCHED):
            await wishes.watch(f"session {number}", "ann", "up", NEWS)
        with pytest.raises(Overloaded):
            await wishes.watch("one more", "ann", "up", NEWS)
        wishes.forget("session 0")
        await wishes.watch("one more", "ann", "up", NEWS)


@both_eras
async def test_a_server_that_is_reached_in_another_way_is_told_again(era: Era) -> None:
    async with library_peer(era) as peer, upstreams(http("up", peer.url)) as ups:
        wishes, heard = wishes_of(ups), Heard(ups, "resources/updated")
        wishes.attend("one")
        await wishes.watch("one", "ann", "up", NEWS)
        own = "ann" if era == "2025" else None
        assert await told(heard, peer) == own
        ups.replace("up", http("up", peer.url, headers={"x-other": "session"}))
        peer.sessions.clear()
        assert await told(heard, peer) == own


async def test_a_server_is_told_only_while_a_stream_is_open_to_hear_of_it() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        wishes = wishes_of(ups, linger=2.5)  # which is also how long the server has to answer
        await wishes.watch("one", "ann", "up", NEWS)
        await until(lambda: peer.subscribed == [])  # no stream was opened
        wishes.attend("one")
        await until(lambda: peer.subscribed == [NEWS])
        wishes.leave("one")
        await until(lambda: peer.subscribed == [])
        wishes.take({"session": "one", "server": "up", "uri": NEWS, "on": False, "by": "other"})
        wishes.attend("one")
        assert not wishes.watches("one", "up", NEWS)


async def test_what_another_process_was_told_is_wanted_here_once_the_stream_is_open_here() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        wishes, heard = wishes_of(ups), Heard(ups, "resources/updated")
        wish = {"session": "one", "principal": "ann", "server": "up", "uri": NEWS, "on": True}
        wishes.take({**wish, "by": "another process"})
        wishes.attend("one")
        assert await told(heard, peer) == "ann"


async def test_the_level_of_logs_is_told_to_each_new_session_of_2025_that_is_the_principals() -> (
    None
):
    log: dict[str, Any] = {"name": "log", "arguments": {}}
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        wishes = wishes_of(ups)
        wishes.set_level("one", "ann", "warning", ["up"])
        wishes.set_level("two", "ann", "error", ["up"])
        await ups.request("up", "tools/call", log, principal="bob")
        assert peer.levels == []
        await ups.request("up", "tools/call", log, principal="ann")
        assert peer.levels == ["warning"]
        wishes.set_level("one", "ann", "info", ["up"])
        await until(lambda: peer.levels == ["warning", "info"])
        ups.replace("up", http("up", peer.url, headers={"x-other": "session"}))
        await ups.request("up", "tools/call", log, principal="ann")
        assert peer.levels == ["warning", "info", "info"]


@pytest.mark.parametrize(
    ("level", "wanted", "read"),
    [
        ("info", None, True),
        ("info", "info", True),
        ("warning", "info", True),
        ("debug", "info", False),
        ("no such level", "emergency", True),
        (7, "debug", True),
    ],
)
def test_a_message_is_read_from_the_wanted_level_on(
    level: object, wanted: str | None, read: bool
) -> None:
    assert reaches(level, wanted) is read
