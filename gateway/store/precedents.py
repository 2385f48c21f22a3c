"""What was asked and done before, for those who are about to ask a person.

An approval belongs to whoever waits for it. The row of its waiting execution names the process that
does (`replica`); one that nobody waits for any more may be taken over by the same call made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select, update

from gateway.store import tables
from gateway.store.approvals import Approval
from gateway.store.database import Database
from gateway.store.executions import Execution
from gateway.store.statements import one
from gateway.store.writer import Row

_approvals = tables.approvals
_executions = tables.executions
_changes = tables.changes
_claims = tables.claims

MAX_OPEN = 50  # of one very call
_NAMES = [field.name for field in fields(Approval)]


@dataclass(frozen=True, slots=True)
class OpenApproval:
    """An approval that waits for a decision or for its use, and who waits for it."""

    approval: Approval
    era: str
    replica: str


async def open_approvals(
    db: Database, *, principal: str, tool: str, fingerprint: str, args_digest: str, now: float
) -> list[OpenApproval]:
    """Those for exactly this call: approved ones first, then the oldest."""
    same = and_(
        _approvals.c.principal == principal,
        _approvals.c.tool == tool,
        _approvals.c.fingerprint == fingerprint,
        _approvals.c.args_digest == args_digest,
        _approvals.c.expires_at > now,
    )
    return await db.read(lambda tx: _open(tx, same & _is_open, MAX_OPEN))


async def approved_of_era(
    db: Database, era: str, now: float, limit: int = MAX_OPEN
) -> list[Approval]:
    """Approved calls of one kind of caller that were not carried out yet."""
    usable = (_approvals.c.status == "approved") & (_approvals.c.expires_at > now)
    found = await db.read(lambda tx: _open(tx, usable & (_executions.c.era == era), limit))
    return [each.approval for each in found]


async def approval_of(db: Database, execution_id: str) -> Approval | None:
    """The approval that an execution waits for."""
    waiting = (_approvals.c.execution_id == execution_id) & _is_open
    found = await db.read(lambda tx: _open(tx, waiting, 1))
    return found[0].approval if found else None


async def count_pending(db: Database, principal: str, now: float) -> tuple[int, int]:
    """How many calls wait for a decision: the principal's, and everyone's."""
    pending = (_approvals.c.status == "pending") & (_approvals.c.expires_at > now)
    statement = select(
        func.count().filter(_approvals.c.principal == principal), func.count()
    ).where(pending)
    mine, all_ = await db.read(lambda tx: tx.execute(statement).one())
    return mine, all_


async def take_over(db: Database, execution_id: str, old: str, new: str) -> bool:
    """Makes another process the one that waits; False if someone else was faster."""
    waiting = (_executions.c.id == execution_id) & (_executions.c.replica == old)
    statement = (
        update(_executions)
        .where(waiting & (_executions.c.status == "pending_confirmation"))
        .values(replica=new)
    )
    return await db.write(lambda tx: tx.execute(statement).rowcount) == 1


def let_go(db: Database, execution_id: str, replica: str) -> None:
    """Says, soon, that nobody waits for this any more."""
    db.write_soon(_let_go, {"id": execution_id, "replica": replica})


async def wrote_before(db: Database, principal: str, connection: str, session: str | None) -> bool:
    """Whether this principal, in this session where there is one, wrote to the connection."""
    mine = and_(
        _executions.c.principal == principal,
        _executions.c.connection == connection,
        _executions.c.access != "read",
        _executions.c.status.in_(["executing", "completed", "failed", "unknown"]),
    )
    if session is not None:
        mine = mine & (_executions.c.session == session)
    statement = select(_executions.c.id).where(mine).limit(1)
    return await db.read(lambda tx: tx.execute(statement).first()) is not None


async def changed_since_used(db: Database, principal: str, tool: str, connection: str) -> bool:
    """Whether the tool became another since this principal last called it."""
    last = select(func.max(_executions.c.created_at)).where(
        (_executions.c.principal == principal)
        & (_executions.c.tool == tool)
        & _executions.c.status.in_(["completed", "failed", "unknown"])
    )
    used = last.scalar_subquery()
    statement = (
        select(_changes.c.id)
        .where(
            (_changes.c.connection == connection)
            & (_changes.c.tool == tool)
            & (_changes.c.kind == "changed")
            & _changes.c.status.in_(["applied", "accepted"])
            & or_(_changes.c.at > used, _changes.c.decided_at > used)
        )
        .limit(1)
    )
    return await db.read(lambda tx: tx.execute(statement).first()) is not None


async def first_with_token(db: Database, principal: str, token: str) -> Execution | None:
    """The call this token stands for: the one that claimed it, else one that waits to do so."""
    mine = (_claims.c.principal == principal) & (_claims.c.token == token)
    claimed = select(_executions).where(
        _executions.c.id == select(_claims.c.execution_id).where(mine).scalar_subquery()
    )
    waiting = (
        select(_executions)
        .where(
            (_executions.c.idempotency_token == token)
            & (_executions.c.principal == principal)
            & (_executions.c.status == "pending_confirmation")
        )
        .order_by(_executions.c.created_at)
        .limit(1)
    )
    return await db.read(lambda tx: one(tx, claimed, Execution) or one(tx, waiting, Execution))


_is_open = _approvals.c.status.in_(["pending", "approved"])


def _open(tx: Connection, which: Any, limit: int) -> list[OpenApproval]:
    statement = (
        select(_approvals, _executions.c.era, _executions.c.replica)
        .join(_executions, _executions.c.id == _approvals.c.execution_id)
        .where(which & (_executions.c.status == "pending_confirmation"))
        .order_by(_approvals.c.status, _approvals.c.id)  # approved comes before pending
        .limit(limit)
    )
    return [
        OpenApproval(Approval(**{name: row[name] for name in _NAMES}), row["era"], row["replica"])
        for row in tx.execute(statement).mappings()
    ]


def _let_go(tx: Connection, rows: Sequence[Row]) -> None:
    for row in rows:
        mine = (_executions.c.id == row["id"]) & (_executions.c.replica == row["replica"])
        waiting = mine & (_executions.c.status == "pending_confirmation")
        tx.execute(update(_executions).where(waiting).values(replica=""))
