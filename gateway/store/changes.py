"""What refreshes brought, one row an operation, with the tool before and after for those held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, insert, select, update

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.signals import REVISION_LOCK, bump_revision, lock_revision
from gateway.store.statements import many, one, values

_table = tables.changes

ChangeStatus = Literal["applied", "held", "accepted", "rejected"]
MAX_LISTED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One operation that was added, removed or changed."""

    id: str
    connection: str
    operation: str | None
    tool: str
    kind: Literal["added", "removed", "changed"]
    change_class: Literal["safe", "breaking", "risky"]
    reason: str
    status: ChangeStatus
    at: float
    by: str | None = None
    decided_at: float | None = None
    before: bytes | None = None  # the tool, encoded
    after: bytes | None = None


def record_in(tx: Connection, connection: str, changes: Sequence[Change]) -> None:
    """Keeps what a refresh found, in place of what was held before and is no longer found.

    A change that is held already, or was rejected and comes again as it was, is not told anew.
    """
    ours = _table.c.connection == connection
    known = many(tx, select(_table).where(ours & _table.c.status.in_(("held", "rejected"))), Change)
    told = {(row.operation, row.before, row.after): row for row in known}
    # What is applied is told in any case: it may be what was held or rejected before.
    fresh = [
        c for c in changes if c.status == "applied" or (c.operation, c.before, c.after) not in told
    ]
    still = {(c.operation, c.before, c.after) for c in changes if c.status == "held"}
    over = [row.id for key, row in told.items() if row.status == "held" and key not in still]
    if over:
        tx.execute(_table.delete().where(_table.c.id.in_(over)))
    if fresh:
        tx.execute(insert(_table), [values(change) for change in fresh])


async def decide_change(
    db: Database, id: str, status: Literal["accepted", "rejected"], *, by: str, now: float
) -> Change | None:
    """The change as decided now; None if it was not held any more."""

    def unit(tx: Connection) -> Change | None:
        lock_revision(tx)
        decided = decide_in(tx, id, status, by=by, now=now)
        if decided is not None:
            bump_revision(tx)
        return decided

    return await db.write(unit, REVISION_LOCK)


def decide_in(
    tx: Connection, id: str, status: Literal["accepted", "rejected"], *, by: str, now: float
) -> Change | None:
    """`decide_change` inside a unit of the caller's."""
    held = (_table.c.id == id) & (_table.c.status == "held")
    statement = update(_table).where(held).values(status=status, by=by, decided_at=now)
    return one(tx, statement.returning(_table), Change)


async def list_changes(
    db: Database,
    *,
    connection: str | None = None,
    status: ChangeStatus | None = None,
    limit: int = 100,
) -> list[Change]:
    """Changes, newest first."""
    statement = select(_table).order_by(_table.c.id.desc()).limit(min(limit, MAX_LISTED))
    if connection is not None:
        statement = statement.where(_table.c.connection == connection)
    if status is not None:
        statement = statement.where(_table.c.status == status)
    return await db.read(lambda tx: many(tx, statement, Change))


async def get_change(db: Database, id: str) -> Change | None:
    """The change of that id."""
    return await db.read(lambda tx: one(tx, select(_table).where(_table.c.id == id), Change))
