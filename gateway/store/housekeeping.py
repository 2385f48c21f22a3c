"""What has to happen whether or not anyone calls.

This process says that it lives, calls of processes that died are ended, questions that nobody
answered expire, and the store is swept of what is over: in small parts, so that no write waits long
behind the sweep. The heartbeat comes first, before anything is begun: whatever is executing in a
process that is not heard becomes `unknown`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog
from sqlalchemy import ColumnElement, Connection, Table, delete, select

from gateway.errors import GatewayError
from gateway.limits import HEARTBEAT_SECONDS, LONGEST_PAUSE_SECONDS, STORE_ROWS
from gateway.model import new_id
from gateway.store import tables
from gateway.store.cluster import EVENTS, Replica, beat, bury_the_dead, leave, this_host
from gateway.store.database import Database
from gateway.store.ledger import Execution, mark_unknown

log = structlog.get_logger("gateway.store")


def this_replica() -> Replica:
    """This process, as the store knows it."""
    now = time.time()
    return Replica(new_id(now), this_host(), os.getpid(), now)


class Housekeeping:
    """Keeps this process's own things in order, and clears up after others.

    A store that fails for a while is waited out; the other processes then take this one for dead,
    and what it finishes afterwards puts that right.
    """

    def __init__(
        self,
        db: Database,
        replica: Replica,
        keep_days: Callable[[], float],
        *,
        expire: Callable[[], Awaitable[None]],
        ended: Callable[[Execution], None],
    ) -> None:
        self._db = db
        self._replica = replica
        self._keep_days = keep_days
        self._expire = expire
        self._ended = ended
        self._swept = time.monotonic()

    async def start(self) -> None:
        """Says that this process lives, and ends what earlier ones left."""
        await beat(self._db, self._replica)
        dead = await bury_the_dead(self._db, self._replica)
        if dead:
            log.info("earlier processes had ended", count=len(dead))
        await self._end_unheard()

    async def run(self) -> None:
        """Goes on for ever."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for work in (self._beat, self._end_unheard, self._expire, self._sweep):
                await _waiting_out(work())

    async def close(self) -> None:
        """Says that this process ends in good order."""
        await _waiting_out(leave(self._db, self._replica.id))

    async def _beat(self) -> None:
        await beat(self._db, self._replica)

    async def _end_unheard(self) -> None:
        for execution in await mark_unknown(self._db, now=time.time()):
            log.warning("outcome unknown", execution=execution.id, tool=execution.tool)
            self._ended(execution)

    async def _sweep(self) -> None:
        if time.monotonic() - self._swept < LONGEST_PAUSE_SECONDS:
            return
        self._swept = time.monotonic()
        swept = await sweep(self._db, now=time.time(), keep_days=self._keep_days())
        if any(swept.values()):
            log.info("swept", **{table: count for table, count in swept.items() if count})


async def _waiting_out(work: Awaitable[None]) -> None:
    """Does the work, unless the store fails: then the next time will do."""
    try:
        await work
    except GatewayError as error:
        log.warning("housekeeping failed", code=error.code)


async def sweep(db: Database, *, now: float, keep_days: float) -> Mapping[str, int]:
    """Removes what has expired or is older than the ledger is kept; the rows a table lost."""
    swept = {}
    for table, over in _over(now, now - keep_days * 86_400):
        swept[table.name] = await _sweep_table(db, table, over)
    return swept


def _over(now: float, oldest: float) -> list[tuple[Table, ColumnElement[bool]]]:
    t = tables
    minute_ago, hour_ago, day_ago = now - 60, now - 3600, now - 86_400
    ended = t.executions.c.status.not_in(["executing", "pending_confirmation"])
    decided = t.approvals.c.status.not_in(["pending", "approved"])
    settled = t.changes.c.status != "held"
    heard = t.signals.c.kind.not_in(EVENTS) & (t.signals.c.at < minute_ago)
    return [
        (t.executions, ended & (t.executions.c.created_at < oldest)),
        (t.approvals, decided & (t.approvals.c.created_at < oldest)),
        (t.changes, settled & (t.changes.c.at < oldest)),
        (t.results, t.results.c.expires_at <= now),
        (t.standing_grants, t.standing_grants.c.expires_at <= now),
        (t.ended_sessions, t.ended_sessions.c.expires_at <= now),
        (t.wishes, t.wishes.c.expires_at <= now),
        (t.signals, heard | (t.signals.c.at < hour_ago)),
        (t.windows, t.windows.c.start < day_ago),
        (t.replicas, t.replicas.c.heartbeat_at < hour_ago),
        (t.validations, t.validations.c.at < now - 90 * 86_400),
    ]


async def _sweep_table(db: Database, table: Table, over: ColumnElement[bool]) -> int:
    total = 0
    while part := await db.write(lambda tx: _sweep_part(tx, table, over), f"sweep {table.name}"):
        total += part
    return total


def _sweep_part(tx: Connection, table: Table, over: ColumnElement[bool]) -> int:
    key, *more = table.primary_key
    if more:  # few rows, and no one column that names one
        return tx.execute(delete(table).where(over)).rowcount
    size = 8 if table is tables.results else STORE_ROWS  # answers are of megabytes
    ids = list(tx.execute(select(key).where(over).limit(size)).scalars())
    if table is tables.executions:
        tx.execute(delete(tables.claims).where(tables.claims.c.execution_id.in_(ids)))
    return tx.execute(delete(table).where(key.in_(ids))).rowcount
