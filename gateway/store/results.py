"""Answers too large to hand out at once, kept a while for their owner to read in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert, select

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.statements import one, values

_table = tables.results


@dataclass(frozen=True, slots=True)
class LargeResult:
    """One answer, whole."""

    id: str
    principal: str
    media_type: str
    body: bytes
    expires_at: float


async def save_result(db: Database, result: LargeResult) -> None:
    """Keeps it until it expires."""
    row = values(result)
    await db.write(lambda tx: tx.execute(insert(_table), row).rowcount)


async def get_result(db: Database, id: str, principal: str, now: float) -> LargeResult | None:
    """The whole answer, for its owner only."""
    statement = select(_table).where(_readable(id, principal, now))
    return await db.read(lambda tx: one(tx, statement, LargeResult))


async def read_bytes(
    db: Database, id: str, principal: str, now: float, *, offset: int, limit: int
) -> tuple[bytes, int] | None:
    """Some bytes of the answer and how many it has: the rest stays in the store."""
    part = func.substr(_table.c.body, offset + 1, limit)
    statement = select(part, func.length(_table.c.body)).where(_readable(id, principal, now))
    row = await db.read(lambda tx: tx.execute(statement).one_or_none())
    return None if row is None else (bytes(row[0]), int(row[1]))


def _readable(id: str, principal: str, now: float) -> Any:
    mine = (_table.c.id == id) & (_table.c.principal == principal)
    return mine & (_table.c.expires_at > now)
