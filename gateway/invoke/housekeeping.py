"""What has to happen whether or not anyone calls: heartbeats, burials, expiry, sweeping.

The heartbeat comes first, before anything is begun: whatever is executing in a process that is not
heard becomes `unknown`. A store that fails for a while is waited out; the other processes then take
us for dead, and what we finish afterwards puts that right.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import structlog

from gateway.catalog.snapshot import Snapshot
from gateway.errors import GatewayError
from gateway.store.database import Database
from gateway.store.executions import Execution, mark_unknown
from gateway.store.ids import new_id
from gateway.store.replicas import (
    HEARTBEAT_SECONDS,
    Replica,
    beat,
    bury_the_dead,
    leave,
    this_host,
)
from gateway.store.sweep import DAY, sweep

log = structlog.get_logger("gateway.housekeeping")

SWEEP_SECONDS = 600.0
SWEEPS_A_LIFE = 10  # what is kept for less than hours is swept more often


def this_replica() -> Replica:
    """This process, as the store knows it."""
    now = time.time()
    return Replica(new_id(now), this_host(), os.getpid(), now)


class Housekeeping:
    """Keeps this process's own things in order, and clears up after others."""

    def __init__(
        self,
        db: Database,
        replica: Replica,
        current: Callable[[], Snapshot],
        *,
        expire: Callable[[], Awaitable[None]],
        ended: Callable[[Execution], None] = lambda execution: None,
    ) -> None:
        self._db = db
        self._replica = replica
        self._current = current
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
                try:
                    await work()
                except GatewayError as error:
                    log.warning("housekeeping failed", code=error.code)

    async def close(self) -> None:
        """Says that this process ends in good order."""
        try:
            await leave(self._db, self._replica.id)
        except GatewayError as error:
            log.warning("housekeeping failed", code=error.code)

    async def _beat(self) -> None:
        await beat(self._db, self._replica)

    async def _end_unheard(self) -> None:
        for execution in await mark_unknown(self._db, now=time.time()):
            log.warning("outcome unknown", execution=execution.id, tool=execution.tool)
            self._ended(execution)

    async def _sweep(self) -> None:
        keep_days = self._current().settings.ledger.keep_days
        every = min(SWEEP_SECONDS, keep_days * DAY / SWEEPS_A_LIFE)
        if time.monotonic() - self._swept < every:
            return
        self._swept = time.monotonic()
        swept = await sweep(self._db, now=time.time(), keep_days=keep_days)
        if any(swept.values()):
            log.info("swept", **{table: count for table, count in swept.items() if count})
