"""One look for all who ask before it begins, and the pauses between looks that fail."""

from __future__ import annotations

import asyncio

import pytest

from gateway.catalog.discover import Looks
from gateway.catalog.schedule import Pauses
from gateway.limits import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from tests.peers import until


class Watched:
    """A look that says when it was begun, and ends when it may."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.may_end = asyncio.Event()

    async def __call__(self, since: float) -> int:
        self.began.append(since)
        number = len(self.began)
        await self.may_end.wait()
        return number


async def test_those_who_ask_before_a_look_begins_share_it_and_later_ones_the_next() -> None:
    looks: Looks[int] = Looks()
    look = Watched()
    first = [asyncio.create_task(looks.share("a", look)) for _ in range(5)]
    await until(lambda: len(look.began) == 1)
    later = [asyncio.create_task(looks.share("a", look)) for _ in range(5)]
    other = asyncio.create_task(looks.share("b", look))
    await until(lambda: len(look.began) == 2)
    look.may_end.set()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*first) == [1] * 5
        assert await other == 2  # which did not wait for "a"
        assert await asyncio.gather(*later) == [3] * 5


async def test_a_look_is_as_new_as_the_last_of_those_who_share_it_asks_for() -> None:
    looks: Looks[int] = Looks()
    look = Watched()
    look.may_end.set()
    await asyncio.gather(*(looks.share("a", look, since=since) for since in (2.0, 7.0, 3.0)))
    assert look.began == [7.0]


async def test_who_leaves_does_not_end_the_look_of_the_others() -> None:
    looks: Looks[int] = Looks()
    look = Watched()
    leaving, staying = (asyncio.create_task(looks.share("a", look)) for _ in range(2))
    await until(lambda: bool(look.began))
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    look.may_end.set()
    async with asyncio.timeout(5):
        assert await staying == 1


async def test_a_failure_is_told_to_all_who_share_it_and_the_next_look_is_a_new_one() -> None:
    looks: Looks[int] = Looks()

    async def fail(since: float) -> int:
        raise ValueError("no")

    found = await asyncio.gather(
        *(looks.share("a", fail) for _ in range(3)), return_exceptions=True
    )
    assert [str(each) for each in found] == ["no"] * 3
    look = Watched()
    look.may_end.set()
    assert await looks.share("a", look) == 1


async def test_closing_ends_looks_that_nobody_waits_for() -> None:
    looks: Looks[int] = Looks()
    look = Watched()
    waiting = asyncio.create_task(looks.share("a", look))
    await until(lambda: bool(look.began))
    waiting.cancel()
    await looks.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_pauses_grow_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    pauses, now, tries = Pauses(), 1000.0, []
    assert not pauses.is_over("a", now)  # the failure itself was the first try
    while now < 4000.0:
        now += 1.0
        if pauses.is_over("a", now):
            tries.append(now)
    gaps = [later - earlier for earlier, later in zip([1000.0, *tries], tries, strict=False)]
    assert FIRST_PAUSE_SECONDS * 0.8 <= gaps[0] <= FIRST_PAUSE_SECONDS * 1.2 + 1
    assert gaps[1] > gaps[0] * 1.2 and gaps[2] > gaps[1] * 1.2
    assert LONGEST_PAUSE_SECONDS * 0.8 <= gaps[-1] <= LONGEST_PAUSE_SECONDS * 1.2 + 1
    pauses.end("a")
    assert not pauses.is_over("a", now)
    assert pauses.is_over("a", now + FIRST_PAUSE_SECONDS * 1.2)
