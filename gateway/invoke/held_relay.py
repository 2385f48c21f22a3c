"""Passes a client's answer on to the process that holds its call, and brings back what it says.

Both are letters: signals of the store, cut into pieces since a signal is small. The process that
holds the call may end meanwhile; then nothing comes back.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from sqlalchemy import Connection

from gateway.errors import GatewayError, Overloaded
from gateway.invoke.attempt import Attempt
from gateway.invoke.idempotency import longest
from gateway.invoke.signals import Signals
from gateway.store.database import Database
from gateway.store.ids import new_id
from gateway.store.replicas import living
from gateway.store.signals import MAX_PAYLOAD_BYTES, signal

log = structlog.get_logger("gateway.call")

LETTER = "held_letter"  # the signal: to which process, which letter, which piece of how many
PIECE_CHARS = MAX_PAYLOAD_BYTES - 200
LOOK_SECONDS = 2.0  # between two looks at whether the other process lives
MAX_LETTERS = 256  # being read, or answered, at a time

Hear = Callable[[str, int, Any], Awaitable[dict[str, Any] | None]]


class HeldRelay:
    """One process's letters about held calls."""

    def __init__(self, db: Database, signals: Signals, replica: str, hear: Hear) -> None:
        self._db = db
        self._replica = replica
        self._hear = hear
        self._pieces: dict[str, list[str]] = {}  # by letter, the oldest first
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
        letter, _, total, piece = rest.split(" ", 3)
        if len(self._pieces) >= MAX_LETTERS and letter not in self._pieces:
            del self._pieces[next(iter(self._pieces))]
        pieces = self._pieces.setdefault(letter, [])
        pieces.append(piece)
        if len(pieces) == int(total):
            del self._pieces[letter]
            self._read(letter, json.loads("".join(pieces)))

    def _read(self, letter: str, value: Any) -> None:
        said = self._awaited.get(letter)
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
        text = json.dumps(value)
        pieces = [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]

        def unit(tx: Connection) -> None:
            for number, piece in enumerate(pieces):
                # Numbered, since PostgreSQL tells what is alike only once.
                signal(tx, LETTER, f"{to} {letter} {number} {len(pieces)} {piece}")

        await self._db.write(unit)
