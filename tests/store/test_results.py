from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import Connection, func, select

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.results import (
    MAX_BYTES_OF_ONE,
    PART_CHARS,
    Fetch,
    LargeResult,
    Tape,
    read_kept,
    save_result,
    sweep,
)

TEXT = "aé\0😀" * PART_CHARS  # four parts
RESULT = LargeResult("r1", "ann", 12, [0, 5], [0, 5, 6, 9], 100.0)


def cut(text: str) -> list[bytes]:
    tape = Tape()
    assert tape.add(text) == (0, len(text))
    return tape.parts()


def slice_of(start: int, end: int, result: LargeResult, fetch: Fetch) -> str:
    return fetch(start, end)


def left(tx: Connection) -> list[tuple[str, int]]:
    parts = tables.result_parts.c
    counted = select(parts.result_id, func.count()).group_by(parts.result_id)
    return sorted((id, count) for id, count in tx.execute(counted))


async def test_where_reading_begins_comes_back(db: Database) -> None:
    await save_result(db, RESULT, cut(TEXT))

    assert await read_kept(db, "r1", "ann", 99.0, lambda result, fetch: result) == RESULT


@pytest.mark.parametrize(
    ("id", "principal", "now"), [("r1", "bob", 99.0), ("r1", "ann", 100.0), ("r2", "ann", 99.0)]
)
async def test_answer_is_for_its_owner_until_it_expires(
    db: Database, id: str, principal: str, now: float
) -> None:
    await save_result(db, RESULT, cut(TEXT))

    assert await read_kept(db, id, principal, now, partial(slice_of, 0, 9)) is None


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (0, 10),
        (7, 7),
        (PART_CHARS - 1, PART_CHARS),
        (PART_CHARS, PART_CHARS + 1),
        (PART_CHARS - 3, 3 * PART_CHARS + 3),
        (0, len(TEXT)),
    ],
)
async def test_slices_are_those_of_the_text(db: Database, start: int, end: int) -> None:
    await save_result(db, RESULT, cut(TEXT))
    await save_result(db, LargeResult("r2", "ann", 1, None, None, 100.0), cut("x" * len(TEXT)))

    part = await read_kept(db, "r1", "ann", 99.0, partial(slice_of, start, end))

    assert part == TEXT[start:end]


async def test_text_goes_with_its_answer_and_no_other(db: Database) -> None:
    await save_result(db, RESULT, cut(TEXT))
    await save_result(db, LargeResult("r2", "ann", 1, None, None, 101.0), cut("x"))

    swept = await sweep(db, now=100.0, keep_days=30)

    assert swept["results"] == 1
    assert await db.read(left) == [("r2", 1)]


async def test_answer_swept_while_it_is_read_is_no_longer_there(
    db: Database, other_db: Database
) -> None:
    await save_result(db, RESULT, cut(TEXT)[:1])

    assert await read_kept(other_db, "r1", "ann", 99.0, partial(slice_of, 0, len(TEXT))) is None


async def test_of_one_principal_the_oldest_goes_when_there_are_too_many(db: Database) -> None:
    half = MAX_BYTES_OF_ONE // 2
    for n, principal in enumerate(("ann", "bob", "ann", "ann")):
        result = LargeResult(f"r{n}", principal, half, None, None, 100.0 + n)
        await save_result(db, result, [b"text"])

    read = [
        await read_kept(db, f"r{n}", principal, 99.0, partial(slice_of, 0, 4))
        for n, principal in enumerate(("ann", "bob", "ann", "ann"))
    ]
    assert read == [None, "text", "text", "text"]
    assert await db.read(left) == [("r1", 1), ("r2", 1), ("r3", 1)]
