"""Answers too large to hand out at once, kept a while for their owner to read in parts.

An answer is one text, cut into rows of equal length in characters: a slice is a few rows. Of one
principal only so much is kept: the oldest goes first.

A long text in rows: parts of equal length in characters, in the order in which they are read.

Where a text is laid out, nothing else of the store is imported.

Takes out what is over. In small parts, so that no write waits long behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Table, delete, insert, literal, select

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.statements import insert_many, one, values

PART_CHARS = 16_384

Span = Sequence[int]  # where something begins and ends in the text, in characters
Place = Sequence[int]  # the span of a value, and that of its index if it has one


class Tape:
    """A text that is cut while it grows, so that it is never there in one piece."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._last = ""
        self._length = 0

    def add(self, *pieces: str) -> Span:
        """Puts these at the end; where they are then."""
        return self.add_all(pieces)

    def add_all(self, pieces: Iterable[str]) -> Span:
        """As `add`, one piece after the other."""
        start = self._length
        for piece in pieces:
            self._length += len(piece)
            at = PART_CHARS - len(self._last)
            self._last += piece[:at]
            while len(self._last) == PART_CHARS:
                self._parts.append(self._last.encode())
                self._last = piece[at : at + PART_CHARS]
                at += PART_CHARS
        return start, self._length

    def parts(self) -> list[bytes]:
        """The text as it is stored, in one part at least."""
        last = [self._last.encode()] if self._last or not self._parts else []
        return self._parts + last


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


PART = 500
PART_BYTES = 32 * 2**20  # of large answers: two of the largest take half a second
MAX_PARTS = 200  # a sweep; the rest waits for the next one
DAY = 86_400.0
EVENT_SECONDS = 3600.0
SIGNAL_SECONDS = 60.0
BUCKET_SECONDS = DAY
REPLICA_SECONDS = 3600.0
VALIDATION_DAYS = 90


async def sweep(db: Database, *, now: float, keep_days: float) -> Mapping[str, int]:
    """Removes what has expired or is older than the ledger is kept; the rows a table lost."""
    swept = {}
    for table, over in _over(now, now - keep_days * DAY):
        swept[table.name] = await _sweep_table(db, table, over)
    return swept


def _over(now: float, oldest: float) -> list[tuple[Table, ColumnElement[bool]]]:
    t = tables
    ended = t.executions.c.status.not_in(["executing", "pending_confirmation"])
    decided = t.approvals.c.status.not_in(["pending", "approved"])
    settled = t.changes.c.status != "held"
    return [
        (t.executions, ended & (t.executions.c.created_at < oldest)),
        (t.approvals, decided & (t.approvals.c.created_at < oldest)),
        (t.changes, settled & (t.changes.c.at < oldest)),
        (t.results, t.results.c.expires_at <= now),
        (t.standing_grants, t.standing_grants.c.expires_at <= now),
        (t.ended_sessions, t.ended_sessions.c.expires_at <= now),
        (t.wishes, t.wishes.c.expires_at <= now),
        (t.events, t.events.c.at < max(oldest, now - EVENT_SECONDS)),  # they tell of executions
        (t.signals, t.signals.c.at < now - SIGNAL_SECONDS),
        (t.buckets, t.buckets.c.at < now - BUCKET_SECONDS),
        (t.replicas, t.replicas.c.heartbeat_at < now - REPLICA_SECONDS),
        (t.validations, t.validations.c.at < now - VALIDATION_DAYS * DAY),
    ]


async def _sweep_table(db: Database, table: Table, over: ColumnElement[bool]) -> int:
    total = 0
    for _ in range(MAX_PARTS):
        count = await db.write(lambda tx: _sweep_part(tx, table, over), f"sweep {table.name}")
        total += count
        if not count:
            break
    return total


def _sweep_part(tx: Connection, table: Table, over: ColumnElement[bool]) -> int:
    key, *more = table.primary_key
    if more:  # few rows, and no one column that names one
        return tx.execute(delete(table).where(over)).rowcount
    ids = _some(tx, table, key, over)
    if table in _GO_WITH:
        tx.execute(delete(_GO_WITH[table].table).where(_GO_WITH[table].in_(ids)))
    return tx.execute(delete(table).where(key.in_(ids))).rowcount


def _some(
    tx: Connection, table: Table, key: ColumnElement[Any], over: ColumnElement[bool]
) -> list[Any]:
    size = table.c.bytes if table is tables.results else literal(0)
    rows = tx.execute(select(key, size).where(over).limit(PART)).all()
    before = accumulate((size for _, size in rows), initial=0)
    return [id for (id, _), so_far in zip(rows, before, strict=False) if so_far < PART_BYTES]


_GO_WITH = {
    tables.executions: tables.claims.c.execution_id,
    tables.results: tables.result_parts.c.result_id,
}
