"""Passes a client's answer on to the process that holds its call, and brings back what it says.

Both are letters: signals of the store. The process that holds the call may end meanwhile; then
nothing comes back.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from gateway.errors import GatewayError, Overloaded
from gateway.invoke.attempt import Attempt
from gateway.invoke.idempotency import longest
from gateway.invoke.signals import Signals
from gateway.store.database import Database
from gateway.store.ids import new_id
from gateway.store.replicas import living
from gateway.store.signals import signal

log = structlog.get_logger("gateway.call")

LETTER = "held_letter"  # the signal: to which process, which letter, what it says
LOOK_SECONDS = 2.0  # between two looks at whether the other process lives
MAX_LETTERS = 256  # being answered at a time

Hear = Callable[[str, int, Any], Awaitable[dict[str, Any] | None]]


class HeldRelay:
    """One process's letters about held calls."""

    def __init__(self, db: Database, signals: Signals, replica: str, hear: Hear) -> None:
        self._db = db
        self._replica = replica
        self._hear = hear
        self._awaited: dict[str, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        signals.on(LETTER, self._take)

    async def passed_on(
        self, attempt: Attempt, replica: str, told: tuple[str, int, Any]
    ) -> dict[str, Any] | None:
        """What the call says to the answer; None: it is held no longer."""
        letter, deadline = new_id(time.time()), time.monotonic() + longest(attempt)
        said = self._awaited[letter] = asyncio.get_running_loop().create_future()
        try:
            await self._send(replica, letter, [self._replica, *told])
            while time.monotonic() < deadline:
                alive = replica in await living(self._db)
                await asyncio.wait([said], timeout=LOOK_SECONDS)
                if said.done() or not alive:
                    found: dict[str, Any] | None = said.result() if said.done() else None
                    return found
        finally:
            del self._awaited[letter]
        hint = f"get_execution {attempt.id} tells what became of it."
        raise Overloaded("busy", "The call is still on its way.", hint)

    def _take(self, payload: str) -> None:
        to, _, rest = payload.partition(" ")
        if to != self._replica:
            return
        letter, _, text = rest.partition(" ")
        value, said = json.loads(text), self._awaited.get(letter)
        if said is not None:
            if not said.done():
                said.set_result(value)
        elif isinstance(value, list) and len(self._answering) < MAX_LETTERS:
            task = asyncio.create_task(self._answer(letter, *value), name=f"letter {letter}")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, letter: str, sender: str, id: str, round: int, answers: Any) -> None:
        try:
            await self._send(sender, letter, await self._hear(id, round, answers))
        except GatewayError as error:
            log.warning("letter not answered", code=error.code)

    async def _send(self, to: str, letter: str, value: Any) -> None:
        payload = f"{to} {letter} {json.dumps(value)}"
        await self._db.write(lambda tx: signal(tx, LETTER, payload))
