"""Figures over the ledger, counted in the store: how many calls, how many failed, how long.

A hundred thousand calls are counted for one page, so a statement reads an index alone, or few rows.
Calls are counted by the indexes that end in the time of a call; the busiest names are asked for
first, and then by name. Failed calls are found by their status. How long calls took stands in rows
alone: where there are many, some are looked at, by the last digits of their ids, which are random.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Integer, cast, func, literal, select, true

from gateway.limits import STORE_MANY_ROWS, STORE_ROWS
from gateway.store import tables
from gateway.store.database import Database, is_postgres, many
from gateway.store.ledger import Filter, passes

_table = tables.executions
_approvals = tables.approvals

FAILED = ("failed", "unknown")


@dataclass(frozen=True, slots=True)
class Count:
    """How many calls of one kind there were in one minute."""

    minute: int  # since the time that was asked for
    connection: str
    client: str
    status: str
    access: str
    calls: int


async def count_calls(db: Database, since: float, principal: str | None = None) -> list[Count]:
    """Every call since a time, counted in the store; one principal's, or everyone's."""

    def query(tx: Connection) -> list[Count]:
        minute = _step(tx, since, 60)
        kinds = (_table.c.connection, _table.c.client, _table.c.status, _table.c.access)
        statement = (
            select(minute.label("minute"), *kinds, func.count().label("calls"))
            .where(passes(Filter(principal=principal, since=since)))
            .group_by(minute, *kinds)
            .order_by(func.count().desc())
            .limit(STORE_MANY_ROWS)
        )
        return many(tx, statement, Count)

    return await db.read(query)


async def recent_seconds(db: Database, since: float, principal: str | None = None) -> list[float]:
    """How long the newest calls took that ran at once and ended, in seconds."""
    statement = (
        select(_took)
        .where(passes(Filter(principal=principal, since=since)), _ran_at_once)
        .order_by(_table.c.created_at.desc())
        .limit(STORE_ROWS)
    )
    return await db.read(lambda tx: [float(value) for value in tx.execute(statement).scalars()])


async def values_of(
    db: Database, column: str, filter: Filter, limit: int = 50
) -> list[tuple[str, int]]:
    """The values a column has in the calls the filter lets through, the most frequent first."""
    wanted = _table.c[column]
    statement = (
        select(wanted, func.count())
        .where(passes(filter), wanted.is_not(None))
        .group_by(wanted)
        .order_by(func.count().desc(), wanted)
        .limit(limit)
    )
    return await db.read(lambda tx: [(row[0], row[1]) for row in tx.execute(statement)])


async def count_by_time(
    db: Database,
    filter: Filter,
    step: float,
    by: str = "",
    names: Sequence[str] = (),
    *,
    failed: bool = False,
) -> Counter[tuple[str, int]]:
    """Calls in each step since the filter's time: all under "", or each of these names' own."""

    def query(tx: Connection) -> Counter[tuple[str, int]]:
        name, place = _table.c[by] if by else literal(""), _step(tx, filter.since or 0.0, step)
        statement = select(name, place, func.count()).where(
            passes(filter),
            name.in_(names) if by else true(),
            _table.c.status.in_(FAILED) if failed else true(),
        )
        grouped = statement.group_by(place, *([name] if by else ())).limit(STORE_MANY_ROWS)
        return Counter({(row[0], row[1]): row[2] for row in tx.execute(grouped)})

    return await db.read(query)


async def sample_seconds(
    db: Database, filter: Filter, step: float, by: str, calls: int
) -> list[tuple[str, int, float]]:
    """Name, step and seconds of calls that ran at once and ended: of so many, some."""
    digits = max(0, math.ceil(math.log(max(calls, 1) / STORE_MANY_ROWS, 16)))

    def query(tx: Connection) -> list[tuple[str, int, float]]:
        statement = select(_table.c[by], _step(tx, filter.since or 0.0, step), _took).where(
            passes(filter), _ran_at_once, _table.c.id.endswith("0" * digits) if digits else true()
        )
        return [(row[0], row[1], row[2]) for row in tx.execute(statement.limit(STORE_MANY_ROWS))]

    return await db.read(query)


_took = _table.c.finished_at - _table.c.created_at
_asked = select(_approvals.c.id).where(_approvals.c.execution_id == _table.c.id)
_ran_at_once = (
    _table.c.status.in_(["completed", "failed"])
    & _table.c.finished_at.is_not(None)
    & ~_asked.exists()  # the time a person took is not the gateway's
)


def _step(tx: Connection, since: float, seconds: float) -> ColumnElement[int]:
    elapsed = (_table.c.created_at - since) / seconds
    # A cast rounds on PostgreSQL and cuts on SQLite, which may have no floor().
    return cast(func.floor(elapsed) if is_postgres(tx) else elapsed, Integer)
