"""Counting together: never more in any window's length than was allowed."""

from __future__ import annotations

import asyncio

import pytest

from gateway.store.cluster import take_of_window
from gateway.store.database import Database


async def test_two_processes_together_take_no_more_than_is_allowed(
    db: Database, other_db: Database
) -> None:
    async def one(database: Database) -> float:
        return await take_of_window(database, "shop ann", requests=5, seconds=10, now=1003.0)

    waits = await asyncio.gather(*(one(each) for each in (db, other_db) * 6))
    assert sum(wait == 0 for wait in waits) == 5
    assert all(0 < wait <= 20 for wait in waits if wait)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 1, 2, 3], "yes yes yes no"),
        ([9.9, 9.9, 9.9, 10.1], "yes yes yes no"),  # the border of two windows is no way out
        ([0, 0, 0, 10.1, 14, 14.1, 18], "yes yes yes no yes no yes"),
        ([0, 0, 0, 30, 30, 30, 30], "yes yes yes yes yes yes no"),
    ],
    ids=str,
)
async def test_the_window_slides(db: Database, times: list[float], expected: str) -> None:
    taken = [
        await take_of_window(db, "k", requests=3, seconds=10, now=1000.0 + time) for time in times
    ]
    assert " ".join("yes" if wait == 0 else "no" for wait in taken) == expected


async def test_what_is_told_to_wait_may_go_on_after_that_wait(db: Database) -> None:
    now = 1007.0
    for _ in range(4):
        await take_of_window(db, "k", requests=4, seconds=10, now=now)
    wait = await take_of_window(db, "k", requests=4, seconds=10, now=now)
    assert wait > 0
    assert await take_of_window(db, "k", requests=4, seconds=10, now=now + wait + 0.01) == 0.0


async def test_several_are_taken_at_once_or_not_at_all(db: Database) -> None:
    assert await take_of_window(db, "k", requests=10, seconds=10, now=1000.0, amount=8) == 0
    assert await take_of_window(db, "k", requests=10, seconds=10, now=1001.0, amount=3) > 0
    assert await take_of_window(db, "k", requests=10, seconds=10, now=1001.0, amount=2) == 0
