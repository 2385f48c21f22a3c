"""The ledger read back: filters and pages, newest first.

A page ends in a cursor that names its last row, not a count: rows that come in meanwhile neither
repeat nor skip one.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, select, true, tuple_

from gateway.errors import Fixable
from gateway.store import tables
from gateway.store.database import Database
from gateway.store.executions import Execution
from gateway.store.statements import many

_table = tables.executions

MAX_PAGE = 200


@dataclass(frozen=True, slots=True)
class Filter:
    """Which executions; None leaves a column open."""

    status: str | None = None
    tool: str | None = None
    connection: str | None = None
    principal: str | None = None
    token: str | None = None
    since: float | None = None
    connections: tuple[str, ...] | None = None  # one of these


@dataclass(frozen=True, slots=True)
class Page:
    """Some executions and the cursor behind them, if there are more."""

    executions: list[Execution]
    next: str | None


async def list_executions(
    db: Database, filter: Filter, *, limit: int = 50, cursor: str | None = None
) -> Page:
    """One page of what the filter lets through, newest first."""
    limit = max(1, min(limit, MAX_PAGE))
    statement = (
        select(_table)
        .where(_passes(filter), _behind(cursor))
        .order_by(_table.c.created_at.desc(), _table.c.id.desc())
        .limit(limit + 1)
    )
    found = await db.read(lambda tx: many(tx, statement, Execution))
    page = found[:limit]
    return Page(page, cursor_of(page[-1].created_at, page[-1].id) if len(found) > limit else None)


async def find_by_token(db: Database, token: str, principal: str | None = None) -> list[Execution]:
    """The executions of an idempotency token, newest first; of one principal or of all."""
    page = await list_executions(db, Filter(token=token, principal=principal), limit=MAX_PAGE)
    return page.executions


def _passes(filter: Filter) -> ColumnElement[bool]:
    wanted = {
        _table.c.status: filter.status,
        _table.c.tool: filter.tool,
        _table.c.connection: filter.connection,
        _table.c.principal: filter.principal,
        _table.c.idempotency_token: filter.token,
    }
    rules = [column == value for column, value in wanted.items() if value is not None]
    if filter.connections is not None:
        rules.append(_table.c.connection.in_(filter.connections))
    if filter.since is not None:
        rules.append(_table.c.created_at >= filter.since)
    return and_(true(), *rules)


def _behind(cursor: str | None) -> ColumnElement[bool]:
    if cursor is None:
        return true()
    return tuple_(_table.c.created_at, _table.c.id) < place_of(cursor)


def cursor_of(created_at: float, id: str) -> str:
    """The place of a row, for callers to bring back and not to look into."""
    return base64.urlsafe_b64encode(f"{created_at!r} {id}".encode()).decode()


def place_of(cursor: str) -> tuple[float, str]:
    """The place a cursor names."""
    try:
        at, _, id = base64.urlsafe_b64decode(cursor.encode("ascii")).decode().partition(" ")
        return float(at), id
    except ValueError:  # not base64, not UTF-8, not a number
        raise Fixable(
            "invalid_arguments", "That cursor is none of ours.", "Take `next` of an earlier page."
        ) from None
