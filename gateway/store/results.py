"""Answers too large to hand out at once, kept a while for their owner."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from sqlalchemy import Connection, delete, insert, select

from gateway.limits import RESULTS_BYTES
from gateway.store import tables
from gateway.store.database import Database, one, values

Body = bytes  # `bytes` is a column as well

_table = tables.results


@dataclass(frozen=True, slots=True)
class LargeResult:
    """One answer, whole."""

    id: str
    principal: str
    bytes: int
    media_type: str
    body: Body
    expires_at: float


async def save_result(db: Database, result: LargeResult) -> None:
    """Keeps it until it expires, or its owner has `RESULTS_BYTES` of newer ones."""
    row = values(result)

    def save(tx: Connection) -> None:
        tx.execute(insert(_table), row)
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
    over = [row.id for row, total in zip(rows, totals, strict=True) if total > RESULTS_BYTES]
    tx.execute(delete(_table).where(_table.c.id.in_(over)))


async def read_result(db: Database, id: str, principal: str, now: float) -> LargeResult | None:
    """The answer, for its owner only, until it expires."""
    mine = (_table.c.id == id) & (_table.c.principal == principal)
    statement = select(_table).where(mine & (_table.c.expires_at > now))
    return await db.read(lambda tx: one(tx, statement, LargeResult))
