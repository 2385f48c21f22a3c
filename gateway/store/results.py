"""Answers too large to hand out at once, kept a while for their owner to read in parts.

An answer is one text, cut into rows of equal length in characters: a slice is a few rows. Of one
principal only so much is kept: the oldest goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TypeVar

from sqlalchemy import Connection, delete, insert, select

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.parts import PART_CHARS, Place, Span
from gateway.store.statements import insert_many, one, values

MAX_BYTES_OF_ONE = 256 * 1024 * 1024

T = TypeVar("T")
Fetch = Callable[[int, int], str]  # the text from here to there

_table, _parts = tables.results, tables.result_parts


@dataclass(frozen=True, slots=True)
class LargeResult:
    """One answer, and where reading its text begins."""

    id: str
    principal: str
    bytes: int  # of the answer as it came
    shown: Span | None  # the answer as a whole, where that is read by characters
    root: Place | None  # the JSON value, if it is one; empty: nothing leads to what is in it
    expires_at: float


async def save_result(
    db: Database, result: LargeResult, parts: Sequence[bytes | memoryview]
) -> None:
    """Keeps it until it expires, or its owner has `MAX_BYTES_OF_ONE` of newer ones."""
    row = values(result)
    rows = [{"result_id": result.id, "number": n, "text": part} for n, part in enumerate(parts)]

    def save(tx: Connection) -> None:
        tx.execute(insert(_table), row)
        insert_many(tx, _parts, rows)
        _make_room(tx, result.principal)

    await db.write(save)


def _make_room(tx: Connection, principal: str) -> None:
    newest_first = (
        select(_table.c.id, _table.c.bytes)
        .where(_table.c.principal == principal)
        .order_by(_table.c.expires_at.desc())
    )
    rows = tx.execute(newest_first).all()
    totals = accumulate(row.bytes for row in rows)
    over = [row.id for row, total in zip(rows, totals, strict=True) if total > MAX_BYTES_OF_ONE]
    if over:
        tx.execute(delete(_table).where(_table.c.id.in_(over)))
        tx.execute(delete(_parts).where(_parts.c.result_id.in_(over)))


async def read_kept(
    db: Database, id: str, principal: str, now: float, read: Callable[[LargeResult, Fetch], T]
) -> T | None:
    """What is read of an answer, for its owner only: no more of it is loaded than is fetched."""
    mine = (_table.c.id == id) & (_table.c.principal == principal)
    statement = select(_table).where(mine & (_table.c.expires_at > now))

    def reading(tx: Connection) -> T | None:
        result = one(tx, statement, LargeResult)
        try:
            return None if result is None else read(result, partial(_fetch, tx, id))
        except _Swept:
            return None

    return await db.read(reading)


class _Swept(Exception):
    """It expired while it was read."""


def _fetch(tx: Connection, id: str, start: int, end: int) -> str:
    if start >= end:
        return ""
    first, last = start // PART_CHARS, (end - 1) // PART_CHARS
    wanted = (_parts.c.result_id == id) & _parts.c.number.between(first, last)
    statement = select(_parts.c.text).where(wanted).order_by(_parts.c.number)
    found = tx.execute(statement).scalars().all()
    if len(found) != last - first + 1:
        raise _Swept
    text = b"".join(found).decode()
    return text[start - first * PART_CHARS : end - first * PART_CHARS]
