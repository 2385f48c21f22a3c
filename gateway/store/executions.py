"""The ledger: one row for every call and what became of it.

A write call is on disk before it is sent (`begin`) and again when it is done (`finish`); a read
call is one row, written soon after (`record_finished`). A row that is `executing` while its process
is gone becomes `unknown`: nobody knows whether it happened, so nobody may send it again.

`begin` is also where an idempotency token is claimed, in the same transaction: there is never a
token without its row. The first one in wins, over all replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select, text, update

from gateway.errors import Broken
from gateway.store import tables
from gateway.store.columns import json_bytes
from gateway.store.database import Database
from gateway.store.replicas import SILENT_SECONDS, alive
from gateway.store.signals import signal
from gateway.store.statements import (
    Insert,
    execute_row,
    insert_many,
    insert_new,
    insert_on,
    is_postgres,
    many,
    one,
    values,
)
from gateway.store.writer import Row

_table = tables.executions
_claims = tables.claims

ExecutionStatus = Literal[
    "pending_confirmation", "executing", "completed", "failed", "denied", "expired", "unknown"
]
FINISHED = "finished"  # the signal, with the execution's id, where others may wait for a token
JSON_COLUMNS = ("arguments", "result", "recorded")


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """One call, as it is now."""

    id: str
    tool: str
    connection: str
    principal: str
    status: ExecutionStatus
    access: str
    risk: str
    arguments: Mapping[str, Any]  # redacted
    args_digest: str  # of the arguments as they were sent
    created_at: float
    revision: int
    result: Mapping[str, Any] | None = None  # {success, output, error, duration_ms}
    error_code: str | None = None
    upstream_status: int | None = None
    idempotency_token: str | None = None
    recorded: Mapping[str, Any] | None = None
    bundle_ids: tuple[str, ...] = ()
    finished_at: float | None = None
    reason: str = ""  # of the decision
    session: str | None = None
    client: str = ""
    era: str = ""
    replica: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """Whether a call may be sent.

    new: it may, and is on disk. finished, running: the token was used for the same call before, by
    `execution`. conflict: it was used for another call. ended: this execution has been decided or
    begun already.
    """

    outcome: Literal["new", "finished", "running", "conflict", "ended"]
    execution: Execution | None = None


async def begin(db: Database, execution: Execution) -> Begun:
    """Puts a call on disk as executing, and claims its token if it has one."""
    with ended_if_unheard(db, execution):
        return await db.write(lambda tx: begin_in(tx, execution), lock_of(execution))


def begin_in(tx: Connection, execution: Execution) -> Begun:
    """`begin` inside a unit of the caller's."""
    if execution.idempotency_token is not None:
        claimed = _claim(tx, execution)
        if claimed.outcome != "new":
            return claimed
    if execute_row(tx, _begin(is_postgres(tx)), values(execution)) == 1:
        return Begun("new")
    release_in(tx, execution)
    return Begun("ended", get_in(tx, execution.id))


@contextmanager
def ended_if_unheard(db: Database, execution: Execution) -> Iterator[None]:
    """Ends an execution whose beginning nobody learns of: its call is never sent.

    The store may have gone, or the caller given up, after it was committed. It would then be
    executing for as long as this process lives.
    """
    try:
        yield
    except (Broken, asyncio.CancelledError):
        db.write_soon(_end_unsent, {"this": execution.id})
        raise


async def finish(db: Database, execution: Execution, *, sent: bool = True) -> bool:
    """Puts the end of a call on disk; False if it had ended before.

    `sent=False`, known never to have reached the upstream: the token may be used again.
    """
    return await db.write(lambda tx: finish_in(tx, execution, sent=sent))


def finish_in(tx: Connection, execution: Execution, *, sent: bool = True) -> bool:
    """`finish` inside a unit of the caller's."""
    row = values(execution)
    ended = {f"new_{name}": row[name] for name in _ENDING}
    if execute_row(tx, _finish, {"this": execution.id, **ended}) == 0:
        return False
    if execution.idempotency_token is not None:
        if not sent:
            release_in(tx, execution)
        signal(tx, FINISHED, execution.id)
    return True


def insert_in(tx: Connection, execution: Execution) -> None:
    """Puts a row on disk as it is: one that waits for a decision, or was refused."""
    tx.execute(insert(_table), values(execution))


def record_finished(db: Database, execution: Execution) -> bool:
    """Records a call that is over and needed no row before; False if there was no room."""
    row = values(execution)
    size = 0
    for name in JSON_COLUMNS:
        if row[name] is not None:
            row[name] = json_bytes(row[name])
            size += len(row[name])
    return db.write_soon(_insert_finished, row, size)


async def get_execution(db: Database, id: str) -> Execution | None:
    """The execution of that id."""
    return await db.read(lambda tx: get_in(tx, id))


def get_in(tx: Connection, id: str) -> Execution | None:
    """`get_execution` inside a unit of the caller's."""
    return one(tx, select(_table).where(_table.c.id == id), Execution)


def release_in(tx: Connection, execution: Execution) -> None:
    """Frees the token of a call that was not sent."""
    mine = (_claims.c.principal == execution.principal) & (
        _claims.c.token == execution.idempotency_token
    )
    tx.execute(delete(_claims).where(mine & (_claims.c.execution_id == execution.id)))


def lock_of(execution: Execution) -> str:
    """What a unit that begins this execution fights for: see `writer`."""
    return f"token {execution.idempotency_token}" if execution.idempotency_token else ""


async def mark_unknown(
    db: Database, *, now: float, silent_for: float = SILENT_SECONDS
) -> list[Execution]:
    """Ends what was executing in processes whose heartbeat stopped; gives what it found.

    A process must have sent its first heartbeat before it begins anything.
    """
    return await db.write(lambda tx: _mark_unknown(tx, now, silent_for), "replicas")


def _claim(tx: Connection, execution: Execution) -> Begun:
    claim = {
        "principal": execution.principal,
        "token": execution.idempotency_token,
        "tool": execution.tool,
        "args_digest": execution.args_digest,
        "execution_id": execution.id,
    }
    if tx.execute(insert_new(tx, _claims), claim).rowcount == 1:
        return Begun("new")
    same = (_claims.c.principal == execution.principal) & (
        _claims.c.token == execution.idempotency_token
    )
    held = tx.execute(select(_claims).where(same)).one()
    first = get_in(tx, held.execution_id)
    if (held.tool, held.args_digest) != (execution.tool, execution.args_digest):
        return Begun("conflict", first)
    running = first is not None and first.status in ("executing", "pending_confirmation")
    return Begun("running" if running else "finished", first)


@cache
def _begin(postgres: bool) -> Insert:
    statement = insert_on(postgres, _table)
    taken_over = ("status", "replica", "revision", "reason", "idempotency_token", "args_digest")
    return statement.on_conflict_do_update(
        index_elements=["id"],
        set_={name: statement.excluded[name] for name in taken_over},
        where=text("executions.status = 'pending_confirmation'"),
    )


def _insert_finished(tx: Connection, rows: Sequence[Row]) -> None:
    # One that was begun stays: what `begin` and `finish` said is on disk already.
    insert_many(tx, _table, rows)


def _end_unsent(tx: Connection, rows: Sequence[Row]) -> None:
    begun = _table.c.id.in_([row["this"] for row in rows]) & (_table.c.status == "executing")
    ended = {"status": "failed", "error_code": "store_unavailable"}
    ids = tx.execute(update(_table).where(begun).values(ended).returning(_table.c.id)).scalars()
    tx.execute(delete(_claims).where(_claims.c.execution_id.in_(list(ids))))


def _mark_unknown(tx: Connection, now: float, silent_for: float) -> list[Execution]:
    gone = _table.c.replica.not_in(alive(tx, silent_for))
    statement = (
        update(_table)
        .where((_table.c.status == "executing") & gone)
        .values(status="unknown", error_code="outcome_unknown", finished_at=now)
        .returning(_table)
    )
    found = many(tx, statement, Execution)
    for execution in found:
        if execution.idempotency_token is not None:
            signal(tx, FINISHED, execution.id)
    return found


_ENDING = ("status", "result", "error_code", "upstream_status", "recorded", "finished_at", "reason")
_finish = (
    update(_table)
    .where(_table.c.id == bindparam("this"))
    .where(text("status IN ('executing', 'pending_confirmation', 'unknown')"))
    .values({name: bindparam(f"new_{name}") for name in _ENDING})
)
