"""Figures over the ledger, counted in the store: how many calls, how many failed, how long.

A hundred thousand calls are counted for one page, so a statement reads an index alone, or few rows.
Calls are counted by the indexes that end in the time of a call; the busiest names are asked for
first, and then by name. Failed calls are found by their status. How long calls took stands in rows
alone: where there are many, some are looked at, by the last digits of their ids, which are random.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    cast,
    column,
    func,
    literal,
    select,
    true,
    union_all,
    values,
)

from gateway.limits import STORE_MANY_ROWS, STORE_ROWS
from gateway.store import tables
from gateway.store.database import Database, get_all, is_postgres
from gateway.store.ledger import Filter, rule_of

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
            .where(rule_of(Filter(principal=principal, since=since)))
            .group_by(minute, *kinds)
            .order_by(func.count().desc())
            .limit(STORE_MANY_ROWS)
        )
        return get_all(tx, statement, Count)

    return await db.read(query)


async def recent_seconds(db: Database, since: float, principal: str | None = None) -> list[float]:
    """How long the newest calls took that ran at once and ended, in seconds."""
    statement = (
        select(_duration)
        .where(rule_of(Filter(principal=principal, since=since)), _ran_at_once)
        .order_by(_table.c.created_at.desc())
        .limit(STORE_ROWS)
    )
    return await db.read(lambda tx: [float(value) for value in tx.execute(statement).scalars()])


async def values_of(
    db: Database, column: str, filter: Filter, limit: int = 50
) -> list[tuple[str, int]]:
    """The values a column has in the calls the filter lets through, the most frequent first."""
    value = _table.c[column]
    statement = (
        select(value, func.count())
        .where(rule_of(filter), value.is_not(None))
        .group_by(value)
        .order_by(func.count().desc(), value)
        .limit(limit)
    )
    return await db.read(lambda tx: [(row[0], row[1]) for row in tx.execute(statement)])


async def newest_values(
    db: Database, columns: Sequence[str], filter: Filter, most: int
) -> dict[str, list[tuple[str, int]]]:
    """The values that columns have in the newest `most` calls the filter lets through, the most
    frequent first."""
    newest = select(*(_table.c[name] for name in columns)).where(rule_of(filter))
    recent = newest.order_by(_table.c.created_at.desc()).limit(most).cte("recent")
    counts = [
        select(literal(name), recent.c[name], func.count()).group_by(recent.c[name])
        for name in columns
    ]
    statement = union_all(*counts)
    rows = await db.read(lambda tx: [(r[0], r[1], r[2]) for r in tx.execute(statement)])
    ordered = sorted(rows, key=lambda row: (-row[2], row[1]))
    return {name: [(value, n) for field, value, n in ordered if field == name] for name in columns}


async def count_by_time(
    db: Database,
    filter: Filter,
    step: float,
    by: str = "",
    names: Sequence[str] = (),
    *,
    failed: bool = False,
) -> Counter[tuple[str, int]]:
    """Calls in each step since the filter's time: all under "", or those of each of these names."""
    columns = (filter.status, filter.tool, filter.connection, filter.principal, by)
    by_index = (
        not failed and not filter.idempotency_token and len([each for each in columns if each]) <= 1
    )

    def query(tx: Connection) -> Counter[tuple[str, int]]:
        count = _count_in_steps if by_index else _count_in_groups
        statement = count(tx, filter, step, by, names)
        if failed:
            statement = statement.where(_table.c.status.in_(FAILED))
        return Counter({(row[0], row[1]): row[2] for row in tx.execute(statement)})

    return await db.read(query)


def _count_in_steps(
    tx: Connection, filter: Filter, step: float, by: str, names: Sequence[str]
) -> Select[Any]:
    """Each step of each name is one stretch of an index: nothing is sorted, and no row is read."""
    since, until = filter.since or 0.0, filter.until or time.time()
    count = max(1, math.ceil((until - since) / step))
    places = values(column("place", Integer), name="places").data([(n,) for n in range(count)])
    name_set = values(column("name", Text), name="named").data([(name,) for name in names or ("",)])
    all_places, all_names = places.cte("places"), name_set.cte("named")
    place, name = all_places.c.place, all_names.c.name
    calls = select(func.count()).where(
        rule_of(replace(filter, since=None, until=None)),
        _table.c[by] == name if by else true(),
        _table.c.created_at >= since + place * step,
        _table.c.created_at < since + (place + 1) * step,
    )
    cells = all_names.join(all_places, true())
    counts = select(name, place, calls.scalar_subquery().label("calls")).select_from(cells)
    table = counts.subquery()
    return select(table).where(table.c.calls > 0)


def _count_in_groups(
    tx: Connection, filter: Filter, step: float, by: str, names: Sequence[str]
) -> Select[Any]:
    """Where a figure needs the rows themselves, each row is read once."""
    name, place = _table.c[by] if by else literal(""), _step(tx, filter.since or 0.0, step)
    statement = select(name, place, func.count()).where(
        rule_of(filter), name.in_(names) if by else true()
    )
    return statement.group_by(*([name] if by else ()), place).limit(STORE_MANY_ROWS)


async def sample_seconds(
    db: Database, filter: Filter, step: float, by: str, calls: int
) -> list[tuple[str, int, float]]:
    """Name, step and seconds of calls that ran at once and ended: of many `calls`, a sample."""
    digits = max(0, math.ceil(math.log(max(calls, 1) / STORE_MANY_ROWS, 16)))

    def query(tx: Connection) -> list[tuple[str, int, float]]:
        statement = select(_table.c[by], _step(tx, filter.since or 0.0, step), _duration).where(
            rule_of(filter), _ran_at_once, _table.c.id.endswith("0" * digits) if digits else true()
        )
        return [(row[0], row[1], row[2]) for row in tx.execute(statement.limit(STORE_MANY_ROWS))]

    return await db.read(query)


_duration = _table.c.finished_at - _table.c.created_at
_approval_of_call = select(_approvals.c.id).where(_approvals.c.execution_id == _table.c.id)
_ran_at_once = (
    _table.c.status.in_(["completed", "failed"])
    & _table.c.finished_at.is_not(None)
    & ~_approval_of_call.exists()  # the time a person took is not the gateway's
)


def _step(tx: Connection, since: float, seconds: float) -> ColumnElement[int]:
    elapsed = (_table.c.created_at - since) / seconds
    # A cast rounds on PostgreSQL and cuts on SQLite, which may have no floor().
    return cast(func.floor(elapsed) if is_postgres(tx) else elapsed, Integer)
