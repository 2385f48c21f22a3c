"""Decisions people are asked for: each is bound to the caller, to the tool as it was and to exact
arguments, and works once.

Every step is a compare-and-set on the status, so that of any number of deciders or callers, in any
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

from gateway.limits import STORE_ROWS
from gateway.store import database, tables
from gateway.store.database import Database, get_all, get_one, is_seen, signal, upsert, values
from gateway.store.ledger import Claim, begin_execution, insert_in, signal_end_in
from gateway.store.tables import Approval, ApprovalStatus, Execution, StandingGrant

_approvals = tables.approvals
_grants = tables.standing_grants
_executions = tables.executions
_changes = tables.changes

# Whose rows someone may see: a principal's own, and those that it oversees.
VisibleRows = tuple[str, database.Oversight]
EVERYTHING: VisibleRows = ("", None)


async def create_approval(db: Database, approval: Approval, execution: Execution) -> None:
    """Adds an approval and its waiting execution, both at once."""

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
    edge: str = "",
    now: float,
    usable_until: float,
    grant: StandingGrant | None = None,
) -> Approval | None:
    """The approval as decided now; None if it was not pending any more. The first decision stays.

    An approved one can be used until `usable_until`. A grant given with it is stored with it.
    """
    decision: dict[str, Any] = {"decided_by": by, "decided_at": now, "decided_from": edge or None}
    if status == "approved":
        decision |= {"expires_at": usable_until, "grant_id": grant.id if grant else None}

    def unit(tx: Connection) -> Approval | None:
        is_pending = (_approvals.c.id == id) & _is_in_time("pending", now)
        approvals = _set_status(tx, is_pending, status, now, **decision)
        if approvals and status == "approved" and grant is not None:
            upsert(tx, _grants, values(grant))
        return approvals[0] if approvals else None

    return await db.write(unit, f"approval {id}")


async def use_approval(db: Database, approval: Approval, execution: Execution, now: float) -> Claim:
    """Uses an approval up and begins its execution, both or neither.

    Raises unless it is approved, not expired, and given for this principal, this tool as it is now
    and these arguments.
    """

    names = ("id", "principal", "tool", "fingerprint", "args_digest")
    is_for_call = and_(*(_approvals.c[name] == getattr(approval, name) for name in names))
    is_usable = is_for_call & _is_in_time("approved", now)

    def use(tx: Connection) -> bool:
        return bool(_set_status(tx, is_usable, "used", now))

    return await begin_execution(db, execution, use, f"approval {approval.id}")


async def get_approval(db: Database, id: str) -> Approval | None:
    """The approval of that id."""
    return (await get_approvals(db, [id])).get(id)


async def get_approvals(db: Database, ids: Sequence[str]) -> dict[str, Approval]:
    """The approvals of these ids, by id."""
    return {each.id: each for each in await _find(db, _approvals.c.id.in_(ids))}


async def list_open(db: Database, now: float, visible: VisibleRows = EVERYTHING) -> list[Approval]:
    """Approvals that wait for a decision, oldest first."""
    return await _find(db, and_(_is_in_time("pending", now), *_within(_approvals.c, visible)))


async def list_ended(
    db: Database, since: float, now: float, visible: VisibleRows = EVERYTHING
) -> list[Approval]:
    """Approvals that were decided, not decided in time or withdrawn since then, oldest first."""
    a, call = _approvals.c, _executions.c
    # An undecided approval has no time of its own: it expired, or is void since its call ended.
    call_ended = select(call.id).where(call.id == a.execution_id, call.finished_at > since).exists()
    is_late = (a.status != "void") & (a.expires_at <= now)
    is_undecided = a.decided_at.is_(None) & (is_late | (a.status == "void") & call_ended)
    is_recent = a.status.in_(get_args(ApprovalStatus)) & (a.expires_at > since)  # by the index
    is_told = and_((a.decided_at > since) | is_undecided, *_within(a, visible))
    approvals = await _find(db, is_recent & is_told)
    return sorted(approvals, key=lambda each: each.id)


async def find_open(
    db: Database, now: float, unattended: str, *, tools: Sequence[str], **call: str
) -> Approval | None:
    """The open approval with these values, which name one call: an approved one, or the oldest.

    `tools` are the names of its tool. Approvals of callers of the era `unattended` are left out:
    their calls run by themselves.
    """
    same_values = (_approvals.c[name] == value for name, value in call.items())
    is_same = and_(_approvals.c.tool.in_(tools), *same_values)
    unattended_call = select(_executions.c.id).where(
        _executions.c.id == _approvals.c.execution_id, _executions.c.era == unattended
    )
    is_open_now = is_same & _is_open & (_approvals.c.expires_at > now) & ~unattended_call.exists()
    approvals = await _find(db, is_open_now, 1)
    return approvals[0] if approvals else None


async def list_approved(db: Database, era: str, now: float, limit: int) -> list[Approval]:
    """Approvals of callers of this era whose calls were not carried out yet."""
    waiting_calls = select(_executions.c.id).where(_executions.c.era == era).where(_is_waiting)
    condition = _is_in_time("approved", now) & _approvals.c.execution_id.in_(waiting_calls)
    return await _find(db, condition, limit)


async def approval_of(db: Database, execution_id: str) -> Approval | None:
    """The open approval that an execution waits for."""
    approvals = await _find(db, (_approvals.c.execution_id == execution_id) & _is_open)
    return approvals[0] if approvals else None


async def count_waiting(db: Database, now: float, visible: VisibleRows = EVERYTHING) -> int:
    """How many calls wait for a decision."""
    waiting = select(func.count()).where(
        _is_in_time("pending", now), *_within(_approvals.c, visible)
    )
    return await db.read(lambda tx: int(tx.execute(waiting).scalar_one()))


async def approvals_of(db: Database, execution_ids: Sequence[str]) -> dict[str, Approval]:
    """The approvals of these executions, by execution."""
    approvals = await _find(db, _approvals.c.execution_id.in_(execution_ids))
    return {each.execution_id: each for each in approvals}


def note_waiting(db: Database, id: str, waits_at: str) -> None:
    """Notes, soon, the process where the caller of an open approval waits; "" if it has gone."""

    def unit(tx: Connection) -> None:
        statement = update(_approvals).where(_is_open, _approvals.c.id == id)
        if tx.execute(statement.values(waits_at=waits_at)).rowcount:
            signal(tx, tables.CONFIRMATION, id)

    db.write_soon(unit)


async def expire_approvals(db: Database, now: float) -> list[Approval]:
    """Ends approvals that were not decided, or not used, in time, with their executions."""
    is_late = _is_open & (_approvals.c.expires_at <= now)
    return await db.write(lambda tx: _set_status(tx, is_late, "expired", now), "approval")


async def void_approval(db: Database, id: str, now: float) -> list[Approval]:
    """Withdraws an open approval: its tool has changed, or its principal lost the right."""
    is_meant = _is_open & (_approvals.c.id == id)
    return await db.write(lambda tx: _set_status(tx, is_meant, "void", now), "approval")


async def find_grant(
    db: Database, now: float, *, session: str, client: str, tools: Sequence[str], **columns: str
) -> StandingGrant | None:
    """The grant with these values that holds now, for a tool of these names: of this session, else
    of this client."""
    holder = {"session": session} if session else {"session": "", "client": client}
    grants = select(_grants).filter_by(**columns, **holder).where(_grants.c.tool.in_(tools))
    statement = grants.where(_grants.c.expires_at > now).limit(1)
    return await db.read(lambda tx: get_one(tx, statement, StandingGrant))


async def list_grants(
    db: Database, now: float, visible: VisibleRows = EVERYTHING
) -> list[StandingGrant]:
    """The standing grants that hold, the newest first."""
    valid = select(_grants).where(_grants.c.expires_at > now, *_within(_grants.c, visible))
    statement = valid.order_by(_grants.c.id.desc()).limit(STORE_ROWS)
    return await db.read(lambda tx: get_all(tx, statement, StandingGrant))


async def get_grant(db: Database, id: str) -> StandingGrant | None:
    """The standing grant of that id."""
    statement = select(_grants).filter_by(id=id)
    return await db.read(lambda tx: get_one(tx, statement, StandingGrant))


async def revoke_grant(db: Database, id: str) -> bool:
    """Ends a standing grant at once, in every process; False if it had ended."""
    statement = delete(_grants).filter_by(id=id)
    return await db.write(lambda tx: tx.execute(statement).rowcount == 1)


_is_open = _approvals.c.status.in_(["pending", "approved"])
_is_waiting = _executions.c.status == "pending_confirmation"
# How an execution ends whose approval ends so: its status and its code.
_ENDINGS: Mapping[ApprovalStatus, tuple[str, str]] = {
    "denied": ("denied", "approval_denied"),
    "expired": ("expired", "approval_expired"),
    "void": ("denied", "approval_expired"),
}


async def _find(
    db: Database, condition: ColumnElement[bool], limit: int = STORE_ROWS
) -> list[Approval]:
    statement = select(_approvals).where(condition)
    ordered = statement.order_by(_approvals.c.status, _approvals.c.id)  # approved before pending
    return await db.read(lambda tx: get_all(tx, ordered.limit(limit), Approval))


def _is_in_time(status: ApprovalStatus, now: float) -> ColumnElement[bool]:
    return (_approvals.c.status == status) & (_approvals.c.expires_at > now)


def _within(columns: Any, visible: VisibleRows) -> list[ColumnElement[bool]]:
    principal, oversight = visible
    is_own = columns.principal == principal
    return [] if oversight is None else [is_own | is_seen(columns, oversight)]


def _set_status(
    tx: Connection,
    condition: ColumnElement[bool],
    status: ApprovalStatus,
    now: float,
    **columns: Any,
) -> list[Approval]:
    """Gives approvals another status, and ends the executions that end with them."""
    statement = update(_approvals).where(condition).values(status=status, **columns)
    approvals = get_all(tx, statement.returning(_approvals), Approval)
    for approval in approvals if status != "used" else ():
        signal(tx, tables.CONFIRMATION, approval.id)
    if approvals and status in _ENDINGS:
        end_status, code = _ENDINGS[status]
        calls = _executions.c.id.in_([each.execution_id for each in approvals]) & _is_waiting
        end_columns = {"status": end_status, "error_code": code, "finished_at": now}
        ending = update(_executions).where(calls).values(end_columns).returning(_executions.c.id)
        for id in tx.execute(ending).scalars():
            signal_end_in(tx, id)
    return approvals


async def has_written(db: Database, principal: str, connection: str, session: str | None) -> bool:
    """Whether this principal, in this session where there is one, wrote to the connection."""
    calls = select(_executions.c.id).filter_by(principal=principal, connection=connection)
    if session is not None:
        calls = calls.filter_by(session=session)
    was_sent = _executions.c.status.in_(["executing", "completed", "failed", "unknown"])
    statement = calls.where(was_sent, _executions.c.access != "read").limit(1)
    return await db.read(lambda tx: tx.execute(statement).first()) is not None


async def has_tool_changed(db: Database, principal: str, tool: str, connection: str) -> bool:
    """Whether the tool was changed since this principal last called it."""
    newest = select(func.max(_executions.c.created_at)).filter_by(principal=principal, tool=tool)
    is_over = _executions.c.status.in_(["completed", "failed", "unknown"])
    last_call = newest.where(is_over).scalar_subquery()
    changes = select(_changes.c.id).filter_by(connection=connection, tool=tool, kind="changed")
    statement = changes.where(
        _changes.c.status.in_(["applied", "accepted"]),
        or_(_changes.c.at > last_call, _changes.c.decided_at > last_call),
    )
    return await db.read(lambda tx: tx.execute(statement.limit(1)).first()) is not None
