"""Work that has to be done whether or not anyone calls.

This process says that it lives, calls of processes that died are ended, questions that nobody
answered expire, and old rows are swept from the store: in small parts, so that no write waits long
behind the sweep. The heartbeat comes first, before any call is begun: a call that is executing in a
process whose heartbeat is not heard becomes `unknown`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import ColumnElement, Connection, Table, delete, select, tuple_, update

from gateway.errors import GatewayError
from gateway.limits import HEARTBEAT_SECONDS, LONGEST_PAUSE_SECONDS, STORE_ROWS
from gateway.model import new_id
from gateway.store import tables
from gateway.store.approvals import expire_approvals
from gateway.store.database import Database, insert_new, store_time, values
from gateway.store.ledger import mark_unknown
from gateway.store.tables import Replica
from gateway.system import is_running

_replicas = tables.replicas
LOADED_AT = time.time()  # a process with our process id that began before this has ended

log = structlog.get_logger("gateway.store")


def this_replica() -> Replica:
    """This process, as the store knows it."""
    return Replica(new_id(now := time.time()), this_host(), os.getpid(), now)


async def beat(db: Database, replica: Replica) -> None:
    """Says that this process is alive, by the store's clock."""

    def unit(tx: Connection) -> None:
        insert_new(tx, _replicas, values(replica))
        own_row = update(_replicas).filter_by(id=replica.id)
        tx.execute(own_row.values(heartbeat_at=store_time(tx)))

    await db.write(unit, f"replica {replica.id}")


async def leave(db: Database, replica_id: str) -> None:
    """Says that this process has ended in good order, or is known to be gone."""
    await db.write(lambda tx: tx.execute(delete(_replicas).filter_by(id=replica_id)).rowcount)


async def bury_the_dead(db: Database, replica: Replica) -> list[str]:
    """Removes earlier processes of this host that no longer run, without waiting for silence."""
    old = (_replicas.c.pid != replica.pid) | (_replicas.c.started_at < LOADED_AT)
    query = select(_replicas).where(old, _replicas.c.id != replica.id).filter_by(host=replica.host)
    replicas = await db.read(lambda tx: tx.execute(query).all())
    dead = [each.id for each in replicas if each.pid == replica.pid or not is_running(each.pid)]
    await asyncio.gather(*(leave(db, id) for id in dead))
    return dead


def this_host() -> str:
    """Where a process id means the same process: machine, boot and process namespace."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {boot} {namespace}"


@dataclass
class Housekeeping:
    """Keeps this process's own rows in order, and clears up after other processes.

    A store that fails for a while is waited out; the other processes then take this one for dead,
    and calls that it finishes afterwards put that right.
    """

    db: Database
    replica: Replica
    keep_days: Callable[[], float]
    swept_at: float = field(default_factory=time.monotonic)

    async def start(self) -> None:
        """Says that this process lives, and ends the calls that earlier ones left."""
        await beat(self.db, self.replica)
        dead = await bury_the_dead(self.db, self.replica)
        if dead:
            log.info("earlier processes had ended", count=len(dead))
        await self._end_unheard_calls()

    async def run(self) -> None:
        """Repeats this work for ever."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await _attempt(beat(self.db, self.replica))
            await _attempt(self._end_unheard_calls())
            await _attempt(expire_approvals(self.db, time.time()))
            await _attempt(self._sweep())

    async def close(self) -> None:
        """Says that this process ends in good order."""
        await _attempt(leave(self.db, self.replica.id))

    async def _end_unheard_calls(self) -> None:
        for execution in await mark_unknown(self.db, now=time.time()):
            log.warning("outcome unknown", execution=execution.id, tool=execution.tool)

    async def _sweep(self) -> None:
        if time.monotonic() - self.swept_at < LONGEST_PAUSE_SECONDS:
            return
        self.swept_at = time.monotonic()
        if counts := await sweep(self.db, now=time.time(), keep_days=self.keep_days()):
            log.info("swept", **counts)


async def _attempt(work: Awaitable[object]) -> None:
    """Does the work; if the store fails, that is logged, and the next round tries again."""
    try:
        await work
    except GatewayError as error:
        log.warning("housekeeping failed", code=error.code)


async def sweep(db: Database, *, now: float, keep_days: float) -> Mapping[str, int]:
    """Removes rows that have expired or are older than `keep_days`; gives their number by table."""
    counts = dict[str, int]()
    for table, condition in _sweep_conditions(now, now - keep_days * 86_400):
        unit, lock = partial(_sweep_part, table, condition), f"sweep {table.name}"
        while part := await db.write(unit, lock):
            counts[table.name] = counts.get(table.name, 0) + part
    return counts


def _sweep_conditions(now: float, oldest: float) -> list[tuple[Table, ColumnElement[bool]]]:
    t = tables
    minute_ago, hour_ago, day_ago = now - 60, now - 3600, now - 86_400
    ended_calls = t.executions.c.status.not_in(["executing", "pending_confirmation"])
    decided_approvals = t.approvals.c.status.not_in(["pending", "approved"])
    settled_changes = t.changes.c.status != "held"
    old_signals = t.signals.c.kind.not_in(tables.EVENTS) & (t.signals.c.at < minute_ago)
    # An access token, which lives for a day at most, is known to be revoked by its grant's row.
    revoked_grants = t.oauth_grants.c.revoked_at < day_ago - 86_400
    ended_grants = revoked_grants | (t.oauth_grants.c.expires_at <= day_ago)
    unused_clients = t.oauth_clients.c.used_at.is_(None)
    return [
        (t.executions, ended_calls & (t.executions.c.created_at < oldest)),
        (t.approvals, decided_approvals & (t.approvals.c.created_at < oldest)),
        (t.changes, settled_changes & (t.changes.c.at < oldest)),
        (t.results, t.results.c.expires_at <= now),
        (t.standing_grants, t.standing_grants.c.expires_at <= now),
        (t.oauth_grants, ended_grants),
        (t.oauth_clients, unused_clients & (t.oauth_clients.c.created_at < now - 90 * 86_400)),
        (t.ended_sessions, t.ended_sessions.c.expires_at <= now),
        (t.wishes, t.wishes.c.expires_at <= now),
        (t.listed, t.listed.c.expires_at <= now),
        (t.lists, (t.lists.c.at < day_ago) & t.lists.c.id.not_in(select(t.listed.c.list))),
        (t.former_names, t.former_names.c.at < now - 365 * 86_400),
        (t.signals, old_signals | (t.signals.c.at < hour_ago)),
        (t.windows, t.windows.c.start < day_ago),
        (t.replicas, t.replicas.c.heartbeat_at < hour_ago),
        (t.validations, t.validations.c.at < now - 90 * 86_400),
    ]


def _sweep_part(table: Table, condition: ColumnElement[bool], tx: Connection) -> int:
    keys = table.primary_key.columns
    size = 8 if table is tables.results else STORE_ROWS  # answers are of megabytes
    part = tuple_(*keys).in_(select(*keys).where(condition).limit(size))
    rows = tx.execute(delete(table).where(part).returning(*keys)).all()
    if table is tables.executions:
        ids = [row.id for row in rows]
        tx.execute(delete(tables.claims).where(tables.claims.c.execution_id.in_(ids)))
    return len(rows)
