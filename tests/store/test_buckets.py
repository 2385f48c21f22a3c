from __future__ import annotations

import asyncio

import pytest

from gateway.store.buckets import Taken, take
from gateway.store.database import Database


async def take_at(db: Database, now: float, amount: float = 1.0) -> Taken:
    return await take(db, "demo ann", capacity=4.0, per_second=0.5, now=now, amount=amount)


async def test_bucket_empties_and_refills(db: Database) -> None:
    taken = [await take_at(db, now) for now in (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 100.0)]

    assert taken == [
        Taken(True, 3.0),
        Taken(True, 2.0),
        Taken(True, 1.0),
        Taken(True, 0.0),
        Taken(False, 0.0, 2.0),
        Taken(False, 0.5, 1.0),
        Taken(True, 0.0),
        Taken(False, 0.0, 2.0),
        Taken(True, 3.0),
    ]


async def test_clock_that_is_behind_neither_gives_nor_takes(db: Database) -> None:
    assert await take_at(db, 10.0, 4.0) == Taken(True, 0.0)
    assert await take_at(db, 4.0) == Taken(False, 0.0, 2.0)
    assert await take_at(db, 12.0) == Taken(True, 0.0)


async def test_more_than_a_bucket_holds_is_never_given(db: Database) -> None:
    assert await take_at(db, 0.0, 5.0) == Taken(False, 0.0, float("inf"))


@pytest.mark.parametrize("keys", [1, 3])
async def test_takers_in_two_processes_never_get_more_than_there_is(
    db: Database, other_db: Database, keys: int
) -> None:
    takes = [
        take((db, other_db)[n % 2], f"key {n % keys}", capacity=5.0, per_second=1.0, now=0.0)
        for n in range(60)
    ]

    allowed = [taken.allowed for taken in await asyncio.gather(*takes)]

    assert sum(allowed) == 5 * keys
