"""Answers too large to hand out at once, kept a while for their owner, and the end of what is over.

The sweep takes out what has expired in small parts, so that no write waits long behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from sqlalchemy import ColumnElement, Connection, Table, delete, insert, select

from gateway.limits import RESULTS_BYTES, STORE_ROWS
from gateway.store import tables
from gateway.store.cluster import EVENTS
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


async def sweep(db: Database, *, now: float, keep_days: float) -> Mapping[str, int]:
    """Removes what has expired or is older than the ledger is kept; the rows a table lost."""
    swept = {}
    for table, over in _over(now, now - keep_days * 86_400):
        swept[table.name] = await _sweep_table(db, table, over)
    return swept


def _over(now: float, oldest: float) -> list[tuple[Table, ColumnElement[bool]]]:
    t = tables
    minute_ago, hour_ago, day_ago = now - 60, now - 3600, now - 86_400
    ended = t.executions.c.status.not_in(["executing", "pending_confirmation"])
    decided = t.approvals.c.status.not_in(["pending", "approved"])
    settled = t.changes.c.status != "held"
    heard = t.signals.c.kind.not_in(EVENTS) & (t.signals.c.at < minute_ago)
    return [
        (t.executions, ended & (t.executions.c.created_at < oldest)),
        (t.approvals, decided & (t.approvals.c.created_at < oldest)),
        (t.changes, settled & (t.changes.c.at < oldest)),
        (t.results, t.results.c.expires_at <= now),
        (t.standing_grants, t.standing_grants.c.expires_at <= now),
        (t.ended_sessions, t.ended_sessions.c.expires_at <= now),
        (t.wishes, t.wishes.c.expires_at <= now),
        (t.signals, heard | (t.signals.c.at < hour_ago)),
        (t.windows, t.windows.c.start < day_ago),
        (t.replicas, t.replicas.c.heartbeat_at < hour_ago),
        (t.validations, t.validations.c.at < now - 90 * 86_400),
    ]


async def _sweep_table(db: Database, table: Table, over: ColumnElement[bool]) -> int:
    total = 0
    while part := await db.write(lambda tx: _sweep_part(tx, table, over), f"sweep {table.name}"):
        total += part
    return total


def _sweep_part(tx: Connection, table: Table, over: ColumnElement[bool]) -> int:
    key, *more = table.primary_key
    if more:  # few rows, and no one column that names one
        return tx.execute(delete(table).where(over)).rowcount
    size = 8 if table is tables.results else STORE_ROWS  # answers are of megabytes
    ids = list(tx.execute(select(key).where(over).limit(size)).scalars())
    if table is tables.executions:
        tx.execute(delete(tables.claims).where(tables.claims.c.execution_id.in_(ids)))
    return tx.execute(delete(table).where(key.in_(ids))).rowcount
