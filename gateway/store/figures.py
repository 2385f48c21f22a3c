"""How busy the gateway was: the ledger's last hour, counted by minute, connection and client.

Counted in the store, so that a busy hour costs one statement and not its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Integer, cast, func, select

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.statements import is_postgres, many

_table = tables.executions

BUCKET_SECONDS = 60
MAX_COUNTS = 5000
MAX_TIMED = 500


@dataclass(frozen=True, slots=True)
class Count:
    """So many calls of one kind in one minute."""

    minute: int  # since the time that was asked for
    connection: str
    client: str
    status: str
    access: str
    calls: int


async def count_calls(db: Database, since: float, principal: str | None = None) -> list[Count]:
    """Every call since a time; one principal's, or everyone's."""

    def query(tx: Connection) -> list[Count]:
        minute = _minute(tx, since)
        kinds = (_table.c.connection, _table.c.client, _table.c.status, _table.c.access)
        statement = (
            select(minute.label("minute"), *kinds, func.count().label("calls"))
            .where(_mine(principal), _table.c.created_at >= since)
            .group_by(minute, *kinds)
            .order_by(func.count().desc())
            .limit(MAX_COUNTS)
        )
        return many(tx, statement, Count)

    return await db.read(query)


async def recent_seconds(db: Database, since: float, principal: str | None = None) -> list[float]:
    """How long the newest calls took that ran at once and ended, in seconds."""
    asked = select(tables.approvals.c.id).where(tables.approvals.c.execution_id == _table.c.id)
    statement = (
        select(_table.c.finished_at - _table.c.created_at)
        .where(
            _mine(principal),
            _table.c.created_at >= since,
            _table.c.status.in_(["completed", "failed"]),
            _table.c.finished_at.is_not(None),
            ~asked.exists(),  # the time a person took is not the gateway's
        )
        .order_by(_table.c.created_at.desc())
        .limit(MAX_TIMED)
    )
    return await db.read(lambda tx: [float(value) for value in tx.execute(statement).scalars()])


async def values_of(
    db: Database, column: str, since: float, principal: str | None = None, limit: int = 50
) -> list[tuple[str, int]]:
    """The values a column has had since a time, the most frequent first."""
    wanted = _table.c[column]
    statement = (
        select(wanted, func.count())
        .where(_mine(principal), _table.c.created_at >= since, wanted.is_not(None))
        .group_by(wanted)
        .order_by(func.count().desc(), wanted)
        .limit(limit)
    )
    return await db.read(lambda tx: [(row[0], row[1]) for row in tx.execute(statement)])


def _minute(tx: Connection, since: float) -> ColumnElement[int]:
    elapsed = (_table.c.created_at - since) / BUCKET_SECONDS
    # A cast rounds on PostgreSQL and cuts on SQLite, which may have no floor().
    return cast(func.floor(elapsed) if is_postgres(tx) else elapsed, Integer)


def _mine(principal: str | None) -> ColumnElement[bool]:
    return _table.c.id.is_not(None) if principal is None else _table.c.principal == principal
