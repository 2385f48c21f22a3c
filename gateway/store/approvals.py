"""Decisions people are asked for: each is bound to who asked, to the tool as it was and to exact
arguments, and works once.

Every step is a compare-and-set on the status, so that of any number of deciders or users, in any
number of processes, one wins. The decision and the row of the waiting execution change together.

    pending ── approved ── used
       ├────── denied
       ├────── expired   (approved ones expire too)
       └────── void      (the tool changed, rights were lost)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from gateway.errors import Refused
from gateway.store import tables
from gateway.store.database import Database
from gateway.store.executions import (
    Begun,
    Execution,
    begin_in,
    ended_if_unheard,
    insert_in,
    lock_of,
)
from gateway.store.signals import signal
from gateway.store.statements import many, one, upsert, values

_table = tables.approvals
_grants = tables.standing_grants
_executions = tables.executions

ApprovalStatus = Literal["pending", "approved", "denied", "expired", "used", "void"]
APPROVAL_CHANGED = "approval"  # the signal, with the approval's id
MAX_LISTED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One call that waits for a decision, or has one."""

    id: str
    execution_id: str
    principal: str
    tool: str
    connection: str
    fingerprint: str
    args_digest: str
    arguments: Mapping[str, Any]  # redacted, for people
    sealed_arguments: bytes  # exact, for the call
    risk: str
    created_at: float
    expires_at: float
    session: str | None = None
    client: str = ""
    method: str = ""
    url: str = ""
    warnings: tuple[str, ...] = ()
    status: ApprovalStatus = "pending"
    decided_by: str | None = None
    decided_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingGrant:
    """ "Always allow": this tool, as it is, for one session or one client, until a time."""

    id: str
    principal: str
    tool: str
    connection: str
    fingerprint: str
    session: str  # "" where the client has none: then it is for the client of that name
    client: str
    request: str  # what was asked about, for people: method and address
    granted_by: str
    created_at: float
    expires_at: float


async def create_approval(db: Database, approval: Approval, execution: Execution) -> None:
    """Asks: the approval and its waiting execution appear together."""

    def unit(tx: Connection) -> None:
        insert_in(tx, execution)
        tx.execute(insert(_table), values(approval))
        signal(tx, APPROVAL_CHANGED, approval.id)

    await db.write(unit)


async def decide_approval(
    db: Database,
    id: str,
    status: Literal["approved", "denied"],
    *,
    by: str,
    now: float,
    usable_until: float,
    grant: StandingGrant | None = None,
) -> Approval | None:
    """The approval as decided now; None if it was not pending any more. The first decision stays.

    An approved one can be used until `usable_until`. A grant given with it is stored with it.
    """
    expires = {"expires_at": usable_until} if status == "approved" else {}

    def unit(tx: Connection) -> Approval | None:
        decided = _move(tx, _pending(id, now), status, decided_by=by, decided_at=now, **expires)
        if not decided:
            return None
        if status == "denied":
            _end_executions(tx, decided, "denied", "approval_denied", now)
        elif grant is not None:
            tx.execute(upsert(tx, _grants), values(grant))
        return decided[0]

    return await db.write(unit, f"approval {id}")


async def use_approval(db: Database, approval: Approval, execution: Execution, now: float) -> Begun:
    """Uses an approval up and begins its execution, both or neither.

    Refused unless it is approved, not expired, and given for this principal, this tool as it is
    now and these arguments.
    """

    def unit(tx: Connection) -> Begun:
        begun = begin_in(tx, execution)
        if begun.outcome == "new" and not _use(tx, approval, now):
            raise Refused(
                "approval_expired",
                "The approval for this call was used, has expired or was withdrawn.",
                "Call again to ask for a new one.",
            )
        return begun

    with ended_if_unheard(db, execution):
        return await db.write(unit, lock_of(execution) or f"approval {approval.id}")


async def get_approval(db: Database, id: str) -> Approval | None:
    """The approval of that id."""
    return await db.read(lambda tx: one(tx, select(_table).where(_table.c.id == id), Approval))


async def list_open(db: Database, now: float, status: ApprovalStatus = "pending") -> list[Approval]:
    """Approvals that wait for a decision (or, approved, for their use), oldest first."""
    waiting = (_table.c.status == status) & (_table.c.expires_at > now)
    statement = select(_table).where(waiting).order_by(_table.c.id).limit(MAX_LISTED)
    return await db.read(lambda tx: many(tx, statement, Approval))


async def count_waiting(db: Database, now: float) -> int:
    """How many calls wait for a decision."""
    waiting = (_table.c.status == "pending") & (_table.c.expires_at > now)
    statement = select(func.count()).select_from(_table).where(waiting)
    return await db.read(lambda tx: tx.execute(statement).scalar_one())


async def expire_approvals(db: Database, now: float) -> list[Approval]:
    """Ends what was not decided, or not used, in time, with its executions."""

    def unit(tx: Connection) -> list[Approval]:
        expired = _move(tx, _open & (_table.c.expires_at <= now), "expired")
        _end_executions(tx, expired, "expired", "approval_expired", now)
        return expired

    return await db.write(unit, "approval")


async def void_approvals(db: Database, ids: Sequence[str], now: float) -> list[Approval]:
    """Withdraws open approvals: their tool has changed, or their principal lost the right."""

    def unit(tx: Connection) -> list[Approval]:
        voided = _move(tx, _open & _table.c.id.in_(ids), "void")
        _end_executions(tx, voided, "denied", "approval_expired", now)
        return voided

    return await db.write(unit, "approval")


async def find_grant(
    db: Database,
    *,
    principal: str,
    tool: str,
    fingerprint: str,
    session: str,
    client: str,
    now: float,
) -> StandingGrant | None:
    """The grant for this principal and the tool as it is: of this session, else of this client."""
    mine = (_grants.c.principal == principal) & (_grants.c.tool == tool)
    held = mine & (_grants.c.fingerprint == fingerprint) & (_grants.c.session == session)
    if not session:
        held &= _grants.c.client == client
    statement = select(_grants).where(held & (_grants.c.expires_at > now)).limit(1)
    return await db.read(lambda tx: one(tx, statement, StandingGrant))


async def list_grants(db: Database, now: float) -> list[StandingGrant]:
    """The standing grants that hold, the newest first."""
    holding = select(_grants).where(_grants.c.expires_at > now)
    statement = holding.order_by(_grants.c.id.desc()).limit(MAX_LISTED)
    return await db.read(lambda tx: many(tx, statement, StandingGrant))


async def get_grant(db: Database, id: str) -> StandingGrant | None:
    """The standing grant of that id."""
    return await db.read(
        lambda tx: one(tx, select(_grants).where(_grants.c.id == id), StandingGrant)
    )


async def revoke_grant(db: Database, id: str) -> bool:
    """Ends a standing grant at once, in every process; False if it had ended."""
    statement = delete(_grants).where(_grants.c.id == id)
    return await db.write(lambda tx: tx.execute(statement).rowcount == 1)


_open = _table.c.status.in_(["pending", "approved"])


def _pending(id: str, now: float) -> ColumnElement[bool]:
    return and_(_table.c.id == id, _table.c.status == "pending", _table.c.expires_at > now)


def _use(tx: Connection, approval: Approval, now: float) -> bool:
    bound = and_(
        _table.c.id == approval.id,
        _table.c.principal == approval.principal,
        _table.c.tool == approval.tool,
        _table.c.fingerprint == approval.fingerprint,
        _table.c.args_digest == approval.args_digest,
    )
    usable = (_table.c.status == "approved") & (_table.c.expires_at > now)
    return bool(_move(tx, bound & usable, "used"))


def _move(
    tx: Connection, which: ColumnElement[bool], status: ApprovalStatus, **changed: Any
) -> list[Approval]:
    statement = update(_table).where(which).values(status=status, **changed).returning(_table)
    moved = many(tx, statement, Approval)
    for approval in moved:
        signal(tx, APPROVAL_CHANGED, approval.id)
    return moved


def _end_executions(
    tx: Connection, approvals: Sequence[Approval], status: str, code: str, now: float
) -> None:
    waiting = _executions.c.id.in_([each.execution_id for each in approvals])
    statement = (
        update(_executions)
        .where(waiting & (_executions.c.status == "pending_confirmation"))
        .values(status=status, error_code=code, finished_at=now)
    )
    if approvals:
        tx.execute(statement)
