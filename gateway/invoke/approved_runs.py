"""Carries out calls that were approved after their caller had left: REST's, and background ones.

Every process looks, woken by the store or every few seconds; using an approval up is a
compare-and-set, so that one of them makes the call and the others find nothing to do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from gateway.errors import GatewayError
from gateway.invoke.approval_state import Ticket, opened_ticket
from gateway.invoke.attempt import UNATTENDED
from gateway.invoke.outcomes import failure
from gateway.invoke.signals import Signals, heard_within
from gateway.store.approvals import APPROVAL_CHANGED, Approval, void_approvals
from gateway.store.database import Database
from gateway.store.precedents import approved_of_era
from gateway.store.secrets import Seal

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
