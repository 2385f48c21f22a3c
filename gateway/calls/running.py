"""Calls that outlive the request they came in with.

A write runs in a task of its own: once begun it is finished and recorded, whether or not its caller
is still there; a caller who says so stops it. A background call is one whose caller does not wait
at all; of those a principal has a bounded number at a time. Any of them can be cancelled by its
execution's id.

Carries out calls that were approved after their caller had left: REST's, and background ones.

Every process looks, woken by the store or every few seconds; using an approval up is a
compare-and-set, so that one of them makes the call and the others find nothing to do.

What has to happen whether or not anyone calls: heartbeats, burials, expiry, sweeping.

The heartbeat comes first, before anything is begun: whatever is executing in a process that is not
heard becomes `unknown`. A store that fails for a while is waited out; the other processes then take
us for dead, and what we finish afterwards puts that right.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog

from gateway.calls.asking import Ticket, opened_ticket
from gateway.calls.record import UNATTENDED, Attempt, Signals, failure, heard_within
from gateway.catalog.snapshot import Snapshot
from gateway.errors import GatewayError, Overloaded
from gateway.store.approvals import APPROVAL_CHANGED, Approval, approved_of_era, void_approvals
from gateway.store.cluster import HEARTBEAT_SECONDS, Replica, beat, bury_the_dead, leave, this_host
from gateway.store.database import Database
from gateway.store.ledger import Execution, mark_unknown
from gateway.store.results import DAY, sweep
from gateway.store.secrets import Seal, new_id

CANCEL = "cancel"  # the signal, with the execution's id; the word of a caller who says so
MAX_BACKGROUND = 16  # calls of one principal, in one process
CANCEL_SECONDS = 2.0

Work = Coroutine[Any, Any, Any]
_T = TypeVar("_T")


async def to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """What the work gives; a cancellation meanwhile counts afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        result = await task
        if (waiting := asyncio.current_task()) is not None:
            waiting.cancel()
        return result


class Running:
    """The calls of this process that no request carries."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._background: Counter[str] = Counter()
        self._more: set[asyncio.Task[Any]] = set()
        self.draining = False  # this process ends: what waits in the store is left to others

    async def finished(self, attempt: Attempt, work: Work) -> dict[str, Any]:
        """What the work gives; a caller who leaves does not stop it, one who says so does."""
        task = self._start(attempt.id, work)
        try:
            result: dict[str, Any] = await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if error.args == (CANCEL,):
                task.cancel()
            raise
        return result

    def check_room(self, attempt: Attempt) -> None:
        """Refuses one background call too many."""
        if self._background[attempt.caller.principal.name] >= MAX_BACKGROUND:
            raise Overloaded(
                "busy",
                f"{MAX_BACKGROUND} of your calls are running in the background.",
                "Wait until one has ended, or cancel one.",
            )

    def start(self, attempt: Attempt, work: Work) -> None:
        """Runs a background call of the principal."""
        principal = attempt.caller.principal.name
        self._background[principal] += 1
        self._start(attempt.id, work).add_done_callback(lambda _: self._leave(principal))

    def start_unbounded(self, attempt: Attempt, work: Work) -> asyncio.Task[Any]:
        """Runs what others bound: a call that may be held, or what is left to do of one."""
        task = asyncio.create_task(work, name=f"more of {attempt.id}")
        self._more.add(task)
        task.add_done_callback(self._more.discard)
        return task

    def cancel(self, id: str) -> bool:
        """Cancels a call; False: it does not run here."""
        task = self._tasks.get(id)
        return task is not None and task.cancel()

    async def cancelled(self, id: str) -> bool:
        """Cancels a call and waits until it is recorded; False: it does not run here."""
        task = self._tasks.get(id)
        if task is None or not task.cancel():
            return False
        await asyncio.wait([task], timeout=CANCEL_SECONDS)
        return True

    async def drain(self, seconds: float) -> None:
        """Waits until nothing runs any more, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while tasks := {*self._tasks.values(), *self._more}:  # one may begin another
                    await asyncio.wait(tasks)

    async def close(self) -> None:
        """Ends what still runs; each call is recorded as what it then is."""
        tasks = {*self._tasks.values(), *self._more}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    def _start(self, id: str, work: Work) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=f"call {id}")
        self._tasks[id] = task
        task.add_done_callback(lambda _: self._end(id, task))
        return task

    def _end(self, id: str, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(id) is task:
            del self._tasks[id]
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may have to

    def _leave(self, principal: str) -> None:
        self._background[principal] -= 1
        if not self._background[principal]:
            del self._background[principal]


log = structlog.get_logger("gateway.approvals")

LOOK_SECONDS = 2.0
MAX_AT_ONCE = 16

Resume = Callable[[Approval, Ticket], Awaitable[None]]


class ApprovedRuns:
    """Finds approved calls nobody waits for, and has them made."""

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
            await heard_within(self._woken, LOOK_SECONDS)
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
        room = MAX_AT_ONCE - len(self._running)
        if room <= 0:
            return
        for approval in await approved_of_era(self._db, UNATTENDED, time.time(), room):
            if approval.id not in self._running:
                task = asyncio.create_task(self._make(approval), name=f"approved {approval.id}")
                self._running[approval.id] = task
                task.add_done_callback(partial(self._done, approval.id))

    def _done(self, id: str, task: asyncio.Task[None]) -> None:
        if len(self._running) == MAX_AT_ONCE:
            self._woken.set()  # there may be more than there was room for
        self._running.pop(id, None)

    async def _make(self, approval: Approval) -> None:
        ticket = opened_ticket(self._seal, approval)
        try:
            if ticket is None:
                log.error("approved call can't be opened", approval=approval.id)
                await void_approvals(self._db, [approval.id], time.time())
            else:
                await self._resume(approval, ticket)
        except GatewayError as error:
            # Another process was faster, or the store fails: then it is found again.
            log.debug("approved call not made", approval=approval.id, code=error.code)
        except Exception as error:  # one call's trouble must not stop the others
            log.error("approved call failed", approval=approval.id, **failure(error))


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
