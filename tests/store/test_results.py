from __future__ import annotations

import pytest

from gateway.store.database import Database
from gateway.store.results import MAX_BYTES_OF_ONE, LargeResult, read_result, save_result, sweep

BODY = "aé\0😀".encode() * 10_000
RESULT = LargeResult("r1", "ann", len(BODY), "text/plain", BODY, 100.0)


async def test_answer_comes_back_whole(db: Database) -> None:
    await save_result(db, RESULT)

    assert await read_result(db, "r1", "ann", 99.0) == RESULT


@pytest.mark.parametrize(
    ("id", "principal", "now"), [("r1", "bob", 99.0), ("r1", "ann", 100.0), ("r2", "ann", 99.0)]
)
async def test_answer_is_for_its_owner_until_it_expires(
    db: Database, id: str, principal: str, now: float
) -> None:
    await save_result(db, RESULT)

    assert await read_result(db, id, principal, now) is None


async def test_expired_answer_is_swept_and_no_other(db: Database) -> None:
    await save_result(db, RESULT)
    await save_result(db, LargeResult("r2", "ann", 1, "text/plain", b"x", 101.0))

    assert (await sweep(db, now=100.0, keep_days=30))["results"] == 1
    assert await read_result(db, "r2", "ann", 0.0) is not None


async def test_of_one_principal_the_oldest_goes_when_there_are_too_many(db: Database) -> None:
    owners = ("ann", "bob", "ann", "ann")
    for n, owner in enumerate(owners):
        half = MAX_BYTES_OF_ONE // 2
        await save_result(db, LargeResult(f"r{n}", owner, half, "text/plain", b"x", 100.0 + n))

    read = [await read_result(db, f"r{n}", owner, 99.0) for n, owner in enumerate(owners)]
    assert [kept is not None for kept in read] == [False, True, True, True]
