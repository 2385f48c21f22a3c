"""The ledger: one row for every call and what became of it.

A write call is on disk before it is sent (`begin_execution`) and again when it is done
(`finish_execution`); a read call is one row, written soon after (`record_finished`). A row that is
`executing` while its process is gone becomes `unknown`: nobody knows whether it happened, so nobody
may send it again.

`begin_execution` is also where an idempotency token is claimed, in the same transaction: there is
never a token without its row. Over all replicas, the first call wins.

An answer too large to hand out at once is kept beside the ledger, for a while and for its owner.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, true, tuple_, update

from gateway.errors import Broken, Fixable, GatewayError, NotApproved
from gateway.limits import REST_SECONDS, RESULTS_BYTES, STORE_ROWS
from gateway.model import json_bytes
from gateway.store import database, tables
from gateway.store.database import (
    Database,
    add_row,
    get_all,
    get_one,
    insert_new,
    insert_rows,
    is_seen,
    select_living,
    set_clause,
    signal,
    values,
)
from gateway.store.tables import Execution, LargeResult

_table = tables.executions
_claims = tables.claims
_results = tables.results
_approvals = tables.approvals

FINISHED = "finished"  # the signal, with the execution's id: other calls may wait for its token
JSON_COLUMNS = ("arguments", "result", "recorded", "granted")
BEGINNING = ("status", "replica", "revision", "reason", "idempotency_token", "args_digest")
ENDING = ("status", "result", "error_code", "upstream_status", "recorded", "finished_at", "reason")


@dataclass(frozen=True, slots=True)
class Claim:
    """Whether a call is new: on disk now, and to be sent; else the call that has its token."""

    is_new: bool
    execution: Execution | None = None


async def begin_execution(
    db: Database,
    execution: Execution,
    use: Callable[[Connection], bool] = lambda tx: True,
    lock: str = "",
) -> Claim:
    """Puts a call on disk as executing, and claims its token if it has one.

    `use` uses up what allows the call, in the same transaction: both happen, or neither. Raises
    where nothing allows the call any more, or it was begun or ended before.
    """
    token = execution.idempotency_token

    def unit(tx: Connection) -> Claim:
        claim = begin_execution_in(tx, execution)
        if claim is None or (claim.is_new and not use(tx)):
            raise NotApproved(
                "approval_expired",
                "The approval for this call was used, has expired or was withdrawn.",
                "Call again to ask for a new one.",
            )
        return claim

    try:
        return await db.write(unit, f"token {token}" if token else lock)
    except (Broken, asyncio.CancelledError) as error:
        # The store has gone, or the caller given up, perhaps after the commit: the call is never
        # sent, and its row would be `executing` for as long as this process lives.
        code = error.code if isinstance(error, Broken) else "cancelled"
        db.write_soon(lambda tx: _end_unsent(tx, execution.id, code))
        raise


def begin_execution_in(tx: Connection, execution: Execution) -> Claim | None:
    """`begin_execution` inside a unit; None: the execution was begun or ended before."""
    token = {"principal": execution.principal, "token": execution.idempotency_token}
    call = {"tool": execution.tool, "args_digest": execution.args_digest}
    claim = {**token, **call, "execution_id": execution.id}
    if execution.idempotency_token is not None and not insert_new(tx, _claims, claim):
        first = tx.execute(select(_claims.c.execution_id).filter_by(**token)).scalar_one()
        return Claim(False, _get(tx, first))
    # New, or one that waited for a decision.
    is_waiting = f"{_table.name}.status = 'pending_confirmation'"
    on_conflict = f"(id) DO UPDATE SET {set_clause(BEGINNING)} WHERE {is_waiting}"
    return Claim(True) if insert_rows(tx, _table, [asdict(execution)], on_conflict) else None


async def finish_execution(db: Database, execution: Execution, *, sent: bool = True) -> bool:
    """Puts the end of a call on disk; False if it had ended before.

    `sent=False`: the call never reached the upstream, so its token may be used again.
    """

    def unit(tx: Connection) -> bool:
        return _finish(tx, execution, sent)

    try:
        return await db.write(unit)
    except GatewayError:  # the call is over, and its caller is told; this follows with the store
        return db.write_soon(unit)


def insert_in(tx: Connection, execution: Execution) -> None:
    """Puts a row on disk as it is: one that waits for a decision, or was refused."""
    tx.execute(insert(_table), asdict(execution))


def record_finished(db: Database, execution: Execution) -> bool:
    """Records a call that is over and needed no row before; False if there was no room."""
    row = asdict(execution)
    encoded_values = {name: json_bytes(row[name]) for name in JSON_COLUMNS if row[name] is not None}
    size = sum(map(len, encoded_values.values()))
    row |= encoded_values
    # The row of a call that was begun stays: it is written already. Rows go many at once: the
    # writing thread and the event loop hold each other up for each statement.
    return db.write_soon(lambda tx: add_row(tx, _table, row), size, within=REST_SECONDS)


async def get_execution(db: Database, id: str) -> Execution | None:
    """The execution of that id."""
    return await db.read(lambda tx: _get(tx, id))


async def get_executions(db: Database, ids: Sequence[str]) -> dict[str, Execution]:
    """The executions of these ids, by id."""
    statement = select(_table).where(_table.c.id.in_(ids))
    return {row.id: row for row in await db.read(lambda tx: get_all(tx, statement, Execution))}


async def call_of_token(db: Database, principal: str, token: str) -> Execution | None:
    """The call this token stands for: the call that claimed it, else a call that waits to."""
    claim = select(_claims.c.execution_id).filter_by(principal=principal, token=token)
    first = select(_table).where(_table.c.id == claim.scalar_subquery())
    waiting = {"principal": principal, "idempotency_token": token, "status": "pending_confirmation"}
    later = select(_table).filter_by(**waiting).order_by(_table.c.created_at).limit(1)
    return await db.read(lambda tx: get_one(tx, first, Execution) or get_one(tx, later, Execution))


async def mark_unknown(db: Database, *, now: float) -> list[Execution]:
    """Ends the calls that were executing in processes whose heartbeat stopped, and gives them.

    Callers that waited in such a process for a decision are marked as gone.
    A process must have sent its first heartbeat before it begins anything.
    """

    def unit(tx: Connection) -> list[Execution]:
        is_lost = (_table.c.status == "executing") & _table.c.replica.not_in(select_living(tx))
        end = {"status": "unknown", "error_code": "outcome_unknown", "finished_at": now}
        has_wait = _approvals.c.status.in_(["pending", "approved"]) & (_approvals.c.waits_at != "")
        is_unheard = has_wait & _approvals.c.waits_at.not_in(select_living(tx))
        tx.execute(update(_approvals).where(is_unheard).values(waits_at=""))
        calls = get_all(tx, update(_table).where(is_lost).values(end).returning(_table), Execution)
        for execution in calls:
            signal_end_in(tx, execution.id)
        return calls

    return await db.write(unit, "replicas")


def signal_end_in(tx: Connection, id: str) -> None:
    """Tells of a call that ended otherwise than by its own process, which tells by itself."""
    signal(tx, FINISHED, id)
    signal(tx, tables.RESULT, id)


def _get(tx: Connection, id: str) -> Execution | None:
    return get_one(tx, select(_table).where(_table.c.id == id), Execution)


def _finish(tx: Connection, execution: Execution, sent: bool) -> bool:
    """Whether the row says now how the call ended; not if it had ended before."""
    is_unfinished = _table.c.status.in_(["executing", "pending_confirmation", "unknown"])
    ending = {name: getattr(execution, name) for name in ENDING}
    statement = update(_table).where(_table.c.id == execution.id, is_unfinished).values(ending)
    if not tx.execute(statement).rowcount:
        return False
    if execution.idempotency_token is not None:
        if not sent:
            _release(tx, execution.id)
        signal(tx, FINISHED, execution.id)
    return True


def _end_unsent(tx: Connection, id: str, code: str) -> None:
    statement = update(_table).filter_by(id=id, status="executing")
    ending = {"status": "failed", "error_code": code}
    if tx.execute(statement.values(ending)).rowcount:
        _release(tx, id)


def _release(tx: Connection, execution_id: str) -> None:
    """Frees the token of a call that was not sent."""
    tx.execute(delete(_claims).filter_by(execution_id=execution_id))


EQUAL = ("status", "tool", "connection", "principal", "idempotency_token")


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects executions; with None or "" every value of a column passes."""

    status: str | None = None
    tool: str | None = None
    connection: str | None = None
    principal: str | None = None
    idempotency_token: str | None = None
    since: float | None = None
    until: float | None = None  # exclusive
    oversight: database.Oversight = None
    id: str | None = None  # the beginning of an id


@dataclass(frozen=True, slots=True)
class Page:
    """Some executions and the cursor behind them, if there are more."""

    executions: list[Execution]
    next: str | None


async def list_executions(
    db: Database, filter: Filter, *, limit: int = 50, cursor: str | None = None
) -> Page:
    """One page of what the filter lets through, newest first.

    Its cursor names its last row, not a count: rows that come in meanwhile make no row appear
    twice or be skipped.
    """
    limit = max(1, min(limit, STORE_ROWS))
    statement = (
        select(_table)
        .where(rule_of(filter), true() if cursor is None else _is_behind(cursor))
        .order_by(_table.c.created_at.desc(), _table.c.id.desc())
        .limit(limit + 1)
    )
    executions = await db.read(lambda tx: get_all(tx, statement, Execution))
    page = executions[:limit]
    return Page(page, _cursor_of(page[-1]) if len(executions) > limit else None)


def rule_of(filter: Filter) -> ColumnElement[bool]:
    """The condition that is true of the rows that the filter lets through."""
    columns = {name: getattr(filter, name) for name in EQUAL}
    rules = [_table.c[name] == value for name, value in columns.items() if value]
    rules.append(is_seen(_table.c, filter.oversight))
    if filter.id:
        rules.append(_table.c.id.between(filter.id, f"{filter.id}g"))  # ids are hex digits
    if filter.since is not None:
        rules.append(_table.c.created_at >= filter.since)
    if filter.until is not None:
        rules.append(_table.c.created_at < filter.until)
    return and_(true(), *rules)


def _cursor_of(last: Execution) -> str:
    """The place of a row, for callers to bring back and not to look into."""
    return base64.urlsafe_b64encode(f"{last.created_at!r} {last.id}".encode()).decode()


def _is_behind(cursor: str) -> ColumnElement[bool]:
    try:
        at, _, id = base64.urlsafe_b64decode(cursor.encode("ascii")).decode().partition(" ")
        return tuple_(_table.c.created_at, _table.c.id) < (float(at), id)
    except ValueError:  # not base64, not UTF-8, not a number
        raise Fixable(
            "invalid_arguments", "That cursor is none of ours.", "Take `next` of an earlier page."
        ) from None


async def save_result(db: Database, result: LargeResult) -> None:
    """Keeps an answer until it expires, or its owner has `RESULTS_BYTES` of newer ones."""
    row = values(result)

    def save(tx: Connection) -> None:
        tx.execute(insert(_results), row)
        _make_room(tx, result.principal)

    await db.write(save)


def _make_room(tx: Connection, principal: str) -> None:
    newest_first = (
        select(_results.c.id, _results.c.bytes)
        .where(_results.c.principal == principal)
        .order_by(_results.c.expires_at.desc())
    )
    rows = tx.execute(newest_first).all()
    totals = accumulate(row.bytes for row in rows)
    excess_ids = [row.id for row, total in zip(rows, totals, strict=True) if total > RESULTS_BYTES]
    tx.execute(delete(_results).where(_results.c.id.in_(excess_ids)))


async def read_result(db: Database, id: str, principal: str, now: float) -> LargeResult | None:
    """The answer, for its owner only, until it expires."""
    is_own = (_results.c.id == id) & (_results.c.principal == principal)
    statement = select(_results).where(is_own & (_results.c.expires_at > now))
    return await db.read(lambda tx: get_one(tx, statement, LargeResult))
