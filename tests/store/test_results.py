from __future__ import annotations

import pytest

from gateway.store.database import Database
from gateway.store.results import LargeResult, get_result, read_bytes, save_result

RESULT = LargeResult("r1", "ann", "application/json", bytes(range(256)) * 4096, 100.0)


async def test_large_answer_comes_back_whole(db: Database) -> None:
    await save_result(db, RESULT)

    assert await get_result(db, "r1", "ann", 99.0) == RESULT


@pytest.mark.parametrize(
    ("id", "principal", "now"), [("r1", "bob", 99.0), ("r1", "ann", 100.0), ("r2", "ann", 99.0)]
)
async def test_answer_is_for_its_owner_until_it_expires(
    db: Database, id: str, principal: str, now: float
) -> None:
    await save_result(db, RESULT)

    assert await get_result(db, id, principal, now) is None
    assert await read_bytes(db, id, principal, now, offset=0, limit=10) is None


@pytest.mark.parametrize(
    ("offset", "limit"), [(0, 10), (255, 3), (1_048_570, 100), (2_000_000, 5), (7, 0)]
)
async def test_parts_are_slices_of_the_whole(db: Database, offset: int, limit: int) -> None:
    await save_result(db, RESULT)

    part = await read_bytes(db, "r1", "ann", 99.0, offset=offset, limit=limit)

    assert part == (RESULT.body[offset : offset + limit], len(RESULT.body))
