"""What has to happen whether or not anyone calls.

Calls that were approved after their caller had left are carried out; calls of processes that died
are ended; this process says that it lives; and the store is swept of what is over.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import structlog
from cryptography.fernet import InvalidToken

from gateway.calls.record import UNATTENDED, Attempt, Signals, describe_failure, heard_within
from gateway.catalog.snapshot import Snapshot
from gateway.errors import GatewayError
from gateway.limits import (
    CALLS_PER_PRINCIPAL,
    HEARTBEAT_SECONDS,
    MAX_PAUSE_SECONDS,
    MOMENT_SECONDS,
)
from gateway.model import Principal
from gateway.store import approvals as store
from gateway.store.approvals import APPROVAL_CHANGED, Approval
from gateway.store.cluster import Replica, beat, bury_the_dead, leave, this_host
from gateway.store.database import Database
from gateway.store.ledger import Execution, mark_unknown
from gateway.store.results import sweep
from gateway.store.secrets import Seal, new_id

log = structlog.get_logger("gateway.approvals")


@dataclass(frozen=True, slots=True)
class Ticket:
    """All that is needed to carry a call out when its caller is no longer there."""

    principal: Principal
    arguments: Mapping[str, Any]
    door: Mapping[str, Any]
    bundle_ids: tuple[str, ...]
    token: str | None
    token_given: bool
    client: str


def ticket_of(attempt: Attempt) -> Ticket:
    """The ticket of a call that waits for a decision."""
    return Ticket(
        attempt.caller.principal,
        attempt.arguments,
        attempt.door.ticket if attempt.door else {},
        attempt.bundle_ids,
        attempt.token,
        attempt.token_given,
        attempt.caller.client,
    )


Resume = Callable[[Approval, Ticket], Awaitable[None]]


class ApprovedRuns:
    """Finds approved calls nobody waits for, REST's and background ones, and has them made.

    Every process looks, woken by the store or every few seconds; using an approval up is a
    compare-and-set, so that one of them makes the call and the others find nothing to do.
    """

    def __init__(self, db: Database, seal: Seal, signals: Signals, resume: Resume) -> None:
        self._db = db
        self._seal = seal
        self._resume = resume
        self._woken = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        signals.on(APPROVAL_CHANGED, lambda _: self._woken.set())

    async def run(self) -> None:
        """Goes on for ever."""
        while True:
            await heard_within(self._woken, MOMENT_SECONDS)
            try:
                await self._look()
            except GatewayError as error:
                log.warning("approved calls not read", code=error.code)

    async def close(self) -> None:
        """Starts nothing more; calls that were begun are finished by those who make them."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look(self) -> None:
        room = CALLS_PER_PRINCIPAL - len(self._running)
        if room <= 0:
            return
        for approval in await store.approved_of_era(self._db, UNATTENDED, time.time(), room):
            if approval.id not in self._running:
                task = asyncio.create_task(self._make(approval), name=f"approved {approval.id}")
                self._running[approval.id] = task
                task.add_done_callback(partial(self._done, approval.id))

    def _done(self, id: str, task: asyncio.Task[None]) -> None:
        if len(self._running) == CALLS_PER_PRINCIPAL:
            self._woken.set()  # there may be more than there was room for
        self._running.pop(id, None)

    async def _make(self, approval: Approval) -> None:
        try:
            sealed = self._seal.decrypt_json(approval.sealed_arguments)
            ticket = msgspec.convert(sealed, Ticket)
        except (InvalidToken, ValueError, msgspec.ValidationError):
            log.error("approved call can't be opened", approval=approval.id)
            await store.void_approvals(self._db, [approval.id], time.time())
            return
        try:
            await self._resume(approval, ticket)
        except GatewayError as error:
            # Another process was faster, or the store fails: then it is found again.
            log.debug("approved call not made", approval=approval.id, code=error.code)
        except Exception as error:  # one call's trouble must not stop the others
            log.error("approved call failed", approval=approval.id, **describe_failure(error))


def this_replica() -> Replica:
    """This process, as the store knows it."""
    now = time.time()
    return Replica(new_id(now), this_host(), os.getpid(), now)


class Housekeeping:
    """Keeps this process's own things in order, and clears up after others.

    The heartbeat comes first, before anything is begun: whatever is executing in a process that is
    not heard becomes `unknown`. A store that fails for a while is waited out; the other processes
    then take this one for dead, and what it finishes afterwards puts that right.
    """

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
        if time.monotonic() - self._swept < MAX_PAUSE_SECONDS:
            return
        self._swept = time.monotonic()
        swept = await sweep(self._db, now=time.time(), keep_days=keep_days)
        if any(swept.values()):
            log.info("swept", **{table: count for table, count in swept.items() if count})
