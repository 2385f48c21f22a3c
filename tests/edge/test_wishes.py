"""Who hears of what: bounds, last ones to let go, and levels of logs."""

from __future__ import annotations

import pytest

from gateway.edge.wishes import MAX_WATCHED, Wishes, reaches
from gateway.errors import Overloaded
from tests.connectors.upstream_doors import http, upstreams
from tests.library_peer import library_peer
from tests.peers import until

NEWS = "fiction://news"


async def test_a_server_is_told_of_the_first_to_watch_and_of_the_last_to_let_go() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        wishes = Wishes(ups)
        for holder in ("one", "two"):
            await wishes.watch(holder, "ann", "up", NEWS)
        assert peer.subscribed == [NEWS]
        assert wishes.unwatch("one", "up", NEWS)
        assert not wishes.unwatch("one", "up", NEWS)
        assert wishes.watches("two", "up", NEWS)
        wishes.forget("two")
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
        wishes = Wishes(ups)
        await wishes.watch("one", "ann", "up", NEWS)
        assert wishes.watches("one", "up", uri) is heard
        assert not wishes.watches("one", "other", uri)


async def test_one_principal_watches_so_much_and_no_more_in_however_many_sessions() -> None:
    async with library_peer("2025") as peer, upstreams(http("up", peer.url)) as ups:
        wishes = Wishes(ups)
        await wishes.watch("bobs", "bob", "up", NEWS)
        for number in range(MAX_WATCHED):
            await wishes.watch(f"session {number}", "ann", "up", NEWS)
        with pytest.raises(Overloaded):
            await wishes.watch("one more", "ann", "up", NEWS)
        wishes.forget("session 0")
        await wishes.watch("one more", "ann", "up", NEWS)


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
