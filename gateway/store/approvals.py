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
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, or_, select, update

from gateway.errors import NotApproved
from gateway.limits import STORE_ROWS
from gateway.store import tables
from gateway.store.database import Database, many, one, signal, upsert, values
from gateway.store.ledger import (
    Begun,
    begin_in,
    ended_if_unheard,
    insert_in,
    lock_of,
    tell_ended_in,
)
from gateway.store.tables import Approval, ApprovalStatus, Execution, StandingGrant

_approvals = tables.approvals
_grants = tables.standing_grants
_executions = tables.executions
_changes = tables.changes
_claims = tables.claims


async def create_approval(db: Database, approval: Approval, execution: Execution) -> None:
    """Asks: the approval and its waiting execution appear together."""

    def unit(tx: Connection) -> None:
        insert_in(tx, execution)
        tx.execute(insert(_approvals), values(approval))
        signal(tx, tables.CONFIRMATION, approval.id)

    await db.write(unit)


async def decide_approval(
    db: Database,
    id: str,
    status: Literal["approved", "denied"],
    *,
    by: str,
    source: str = "",
    now: float,
    usable_until: float,
    grant: StandingGrant | None = None,
) -> Approval | None:
    """The approval as decided now; None if it was not pending any more. The first decision stays.

    An approved one can be used until `usable_until`. A grant given with it is stored with it.
    """
    said: dict[str, Any] = {"decided_by": by, "decided_at": now, "decided_from": source or None}
    if status == "approved":
        said |= {"expires_at": usable_until, "grant_id": grant.id if grant else None}

    def unit(tx: Connection) -> Approval | None:
        which = (_approvals.c.id == id) & _still("pending", now)
        decided = _move(tx, which, status, now, **said)
        if decided and status == "approved" and grant is not None:
            upsert(tx, _grants, values(grant))
        return decided[0] if decided else None

    return await db.write(unit, f"approval {id}")


async def use_approval(db: Database, approval: Approval, execution: Execution, now: float) -> Begun:
    """Uses an approval up and begins its execution, both or neither.

    Raises unless it is approved, not expired, and given for this principal, this tool as it is now
    and these arguments.
    """

    same = ("id", "principal", "tool", "fingerprint", "args_digest")
    bound = and_(*(_approvals.c[name] == getattr(approval, name) for name in same))
    usable = bound & _still("approved", now)

    def unit(tx: Connection) -> Begun:
        begun = begin_in(tx, execution)
        if (
            begun.outcome == "ended"
            or begun.outcome == "new"
            and not _move(tx, usable, "used", now)
        ):
            raise NotApproved(
                "approval_expired",
                "The approval for this call was used, has expired or was withdrawn.",
                "Call again to ask for a new one.",
            )
        return begun

    with ended_if_unheard(db, execution):
        return await db.write(unit, lock_of(execution) or f"approval {approval.id}")


async def get_approval(db: Database, id: str) -> Approval | None:
    """The approval of that id."""
    return (await get_approvals(db, [id])).get(id)


async def get_approvals(db: Database, ids: Sequence[str]) -> dict[str, Approval]:
    """The approvals of these ids, by id."""
    return {each.id: each for each in await _find(db, _approvals.c.id.in_(ids))}


async def list_open(db: Database, now: float) -> list[Approval]:
    """Approvals that wait for a decision, oldest first."""
    return await _find(db, _still("pending", now))


async def list_ended(db: Database, since: float, now: float) -> list[Approval]:
    """Approvals that were decided, not decided in time or withdrawn since then, oldest first."""
    a, call = _approvals.c, _executions.c
    # What nobody decided has no time for it: it expired at its end, or is void since its call is.
    voided = select(call.id).where(call.id == a.execution_id, call.finished_at > since).exists()
    late = (a.status != "void") & (a.expires_at <= now)
    undecided = a.decided_at.is_(None) & (late | (a.status == "void") & voided)
    recent = a.status.in_(get_args(ApprovalStatus)) & (a.expires_at > since)  # by the index
    found = await _find(db, recent & ((a.decided_at > since) | undecided))
    return sorted(found, key=lambda each: each.id)


async def same_open(
    db: Database, now: float, unattended: str, *, tools: Sequence[str], **call: str
) -> Approval | None:
    """The open approval with these values, which name one call: an approved one, or the oldest.

    `tools` are the names of its tool. Not of a caller of the era that is named: its call runs by
    itself.
    """
    values = (_approvals.c[name] == value for name, value in call.items())
    same = and_(_approvals.c.tool.in_(tools), *values)
    by_itself = select(_executions.c.id).where(
        _executions.c.id == _approvals.c.execution_id, _executions.c.era == unattended
    )
    open_now = same & _open & (_approvals.c.expires_at > now) & ~by_itself.exists()
    found = await _find(db, open_now, 1)
    return found[0] if found else None


async def approved_of_era(db: Database, era: str, now: float, limit: int) -> list[Approval]:
    """Approved calls of one kind of caller that were not carried out yet."""
    theirs = select(_executions.c.id).where(_executions.c.era == era).where(_waits)
    which = _still("approved", now) & _approvals.c.execution_id.in_(theirs)
    return await _find(db, which, limit)


async def approval_of(db: Database, execution_id: str) -> Approval | None:
    """The open approval that an execution waits for."""
    found = await _find(db, (_approvals.c.execution_id == execution_id) & _open)
    return found[0] if found else None


async def count_waiting(db: Database, now: float, **whose: str) -> dict[tuple[str, str], int]:
    """How many calls wait for a decision, by principal and connection: all, or some's."""
    by = (_approvals.c.principal, _approvals.c.connection)
    waiting = select(*by, func.count()).where(_still("pending", now)).filter_by(**whose)
    counted = waiting.group_by(*by)
    return await db.read(lambda tx: {(who, to): count for who, to, count in tx.execute(counted)})


async def approvals_of(db: Database, execution_ids: Sequence[str]) -> dict[str, Approval]:
    """What was asked about these executions, by execution."""
    asked = await _find(db, _approvals.c.execution_id.in_(execution_ids))
    return {each.execution_id: each for each in asked}


def note_waiting(db: Database, id: str, waits_at: str) -> None:
    """Notes, soon, where the caller of an open approval waits; nowhere, if it has gone."""

    def unit(tx: Connection) -> None:
        here = update(_approvals).where(_open, _approvals.c.id == id)
        if tx.execute(here.values(waits_at=waits_at)).rowcount:
            signal(tx, tables.CONFIRMATION, id)

    db.write_soon(unit)


async def expire_approvals(db: Database, now: float) -> list[Approval]:
    """Ends what was not decided, or not used, in time, with its executions."""
    over = _open & (_approvals.c.expires_at <= now)
    return await db.write(lambda tx: _move(tx, over, "expired", now), "approval")


async def void_approval(db: Database, id: str, now: float) -> list[Approval]:
    """Withdraws an open approval: its tool has changed, or its principal lost the right."""
    which = _open & (_approvals.c.id == id)
    return await db.write(lambda tx: _move(tx, which, "void", now), "approval")


async def find_grant(
    db: Database, now: float, *, session: str, client: str, tools: Sequence[str], **about: str
) -> StandingGrant | None:
    """The grant with these values that holds now, for a tool of these names: of this session, else
    of this client."""
    whose = {"session": session} if session else {"session": "", "client": client}
    held = select(_grants).filter_by(**about, **whose).where(_grants.c.tool.in_(tools))
    statement = held.where(_grants.c.expires_at > now).limit(1)
    return await db.read(lambda tx: one(tx, statement, StandingGrant))


async def list_grants(db: Database, now: float) -> list[StandingGrant]:
    """The standing grants that hold, the newest first."""
    holding = select(_grants).where(_grants.c.expires_at > now)
    statement = holding.order_by(_grants.c.id.desc()).limit(STORE_ROWS)
    return await db.read(lambda tx: many(tx, statement, StandingGrant))


async def get_grant(db: Database, id: str) -> StandingGrant | None:
    """The standing grant of that id."""
    statement = select(_grants).filter_by(id=id)
    return await db.read(lambda tx: one(tx, statement, StandingGrant))


async def revoke_grant(db: Database, id: str) -> bool:
    """Ends a standing grant at once, in every process; False if it had ended."""
    statement = delete(_grants).filter_by(id=id)
    return await db.write(lambda tx: tx.execute(statement).rowcount == 1)


_open = _approvals.c.status.in_(["pending", "approved"])
_waits = _executions.c.status == "pending_confirmation"
# How an execution ends whose approval ends so: its status and its code.
_ENDINGS: Mapping[ApprovalStatus, tuple[str, str]] = {
    "denied": ("denied", "approval_denied"),
    "expired": ("expired", "approval_expired"),
    "void": ("denied", "approval_expired"),
}


async def _find(
    db: Database, which: ColumnElement[bool], limit: int = STORE_ROWS
) -> list[Approval]:
    found = select(_approvals).where(which)
    ordered = found.order_by(_approvals.c.status, _approvals.c.id)  # approved before pending
    return await db.read(lambda tx: many(tx, ordered.limit(limit), Approval))


def _still(status: ApprovalStatus, now: float) -> ColumnElement[bool]:
    return (_approvals.c.status == status) & (_approvals.c.expires_at > now)


def _move(
    tx: Connection,
    which: ColumnElement[bool],
    status: ApprovalStatus,
    now: float,
    **changed: Any,
) -> list[Approval]:
    """Gives approvals another status, and ends the executions that end with them."""
    statement = update(_approvals).where(which).values(status=status, **changed)
    moved = many(tx, statement.returning(_approvals), Approval)
    for approval in moved if status != "used" else ():
        signal(tx, tables.CONFIRMATION, approval.id)
    if moved and status in _ENDINGS:
        how, code = _ENDINGS[status]
        ended = _executions.c.id.in_([each.execution_id for each in moved]) & _waits
        values = {"status": how, "error_code": code, "finished_at": now}
        tell = update(_executions).where(ended).values(values).returning(_executions.c.id)
        for id in tx.execute(tell).scalars():
            tell_ended_in(tx, id)
    return moved


async def wrote_before(db: Database, principal: str, connection: str, session: str | None) -> bool:
    """Whether this principal, in this session where there is one, wrote to the connection."""
    mine = select(_executions.c.id).filter_by(principal=principal, connection=connection)
    if session is not None:
        mine = mine.filter_by(session=session)
    sent = _executions.c.status.in_(["executing", "completed", "failed", "unknown"])
    statement = mine.where(sent, _executions.c.access != "read").limit(1)
    return await db.read(lambda tx: tx.execute(statement).first()) is not None


async def changed_since_used(db: Database, principal: str, tool: str, connection: str) -> bool:
    """Whether the tool became another since this principal last called it."""
    last = select(func.max(_executions.c.created_at)).filter_by(principal=principal, tool=tool)
    over = _executions.c.status.in_(["completed", "failed", "unknown"])
    used = last.where(over).scalar_subquery()
    changed = select(_changes.c.id).filter_by(connection=connection, tool=tool, kind="changed")
    statement = changed.where(
        _changes.c.status.in_(["applied", "accepted"]),
        or_(_changes.c.at > used, _changes.c.decided_at > used),
    )
    return await db.read(lambda tx: tx.execute(statement.limit(1)).first()) is not None


async def first_with_token(db: Database, principal: str, token: str) -> Execution | None:
    """The call this token stands for: the one that claimed it, else one that waits to do so."""
    claim = select(_claims.c.execution_id).filter_by(principal=principal, token=token)
    claimed = select(_executions).where(_executions.c.id == claim.scalar_subquery())
    mine = select(_executions).filter_by(principal=principal, idempotency_token=token)
    waiting = mine.where(_waits).order_by(_executions.c.created_at).limit(1)
    return await db.read(lambda tx: one(tx, claimed, Execution) or one(tx, waiting, Execution))
