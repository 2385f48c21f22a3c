"""What processes tell each other about MCP: which sessions ended, what clients say and want.

A session lives in no process, so a client's next request may land anywhere. That a session was
ended is kept in the store and told to all; a cancellation, or the answer to a question, is passed
on to whoever runs the call, and what a session wants to hear of to whoever has its stream. That a
server can't be reached is told to all, who look for themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import structlog
from sqlalchemy import Connection

from gateway.edge.mcp_messages import RequestId
from gateway.edge.sessions import SESSION_SECONDS
from gateway.errors import GatewayError
from gateway.store.database import Database
from gateway.store.sessions import end_session, ended_sessions
from gateway.store.signals import signal
from gateway.store.wishes import keep_wish_in

log = structlog.get_logger("gateway.edge")

CANCELLED = "mcp_cancelled"
ANSWERED = "mcp_answered"
WISHED = "mcp_wished"
DOUBTED = "mcp_doubted"
MAX_ENDED = 100_000  # in memory; the oldest is the first to be forgotten


class SharedSessions:
    """Ended sessions of all processes, held in memory and kept in the store."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._ended: dict[str, None] = {}  # in the order in which they are forgotten
        self._reading: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Reads what was ended before this process began."""
        for session in await ended_sessions(self._db, time.time(), MAX_ENDED):
            self._note(session)

    async def _load_again(self) -> None:
        try:
            await self.load()
        except GatewayError as error:
            log.warning("ended sessions not read", error=error.message)

    async def add(self, session: str, expires: float) -> None:
        """Ends a session everywhere."""
        self._note(session)
        await end_session(self._db, session, expires)

    def contains(self, session: str) -> bool:
        return session in self._ended

    def hear(self, session: str) -> None:
        """Takes note of a session that another process ended; after a break, of all."""
        if not session:
            self._reading = asyncio.create_task(self._load_again())
            return
        self._note(session)

    def _note(self, session: str) -> None:
        self._ended[session] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]


class StoreRelay:
    """Passes on what a client said of a call that does not run here."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._tasks: set[asyncio.Task[None]] = set()

    def cancelled(self, session: str, request_id: RequestId) -> None:
        self._tell(CANCELLED, {"session": session, "id": request_id})

    def answered(self, session: str, request_id: RequestId, body: Mapping[str, Any]) -> None:
        self._tell(ANSWERED, {"session": session, "id": request_id, "body": dict(body)})

    def wished(self, wish: dict[str, Any]) -> None:
        """Tells what a session wants, and keeps it for whoever comes after us."""
        key = "level" if "level" in wish else f"{wish['server']} {wish['uri']}"
        until = time.time() + SESSION_SECONDS
        self._tell(WISHED, wish, lambda tx: keep_wish_in(tx, key, wish, until))

    def doubted(self, connection: str) -> None:
        """Tells that a server was not to be reached from here."""
        self._tell(DOUBTED, {"connection": connection})

    def _tell(
        self, kind: str, value: dict[str, Any], also: Callable[[Connection], None] = lambda tx: None
    ) -> None:
        payload = orjson.dumps(value).decode()
        task = asyncio.create_task(self._publish(kind, payload, also))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, kind: str, payload: str, also: Callable[[Connection], None]) -> None:
        def unit(tx: Connection) -> None:
            signal(tx, kind, payload)
            also(tx)

        try:
            await self._db.write(unit)
        except GatewayError as error:
            log.warning("other processes not told", kind=kind, error=error.message)


def on_cancelled(cancel: Callable[[str, RequestId], bool]) -> Callable[[str], None]:
    """Cancels a call here on behalf of another process."""

    def hear(payload: str) -> None:
        if payload:
            told = orjson.loads(payload)
            cancel(told["session"], told["id"])

    return hear


def on_answered(take: Callable[[str, RequestId, dict[str, Any]], bool]) -> Callable[[str], None]:
    """Hands a client's answer to a call here on behalf of another process."""

    def hear(payload: str) -> None:
        if payload:
            told = orjson.loads(payload)
            take(told["session"], told["id"], told["body"])

    return hear


def on_wished(take: Callable[[dict[str, Any]], None]) -> Callable[[str], None]:
    """Notes here what a session wants to hear of, on behalf of another process."""

    def hear(payload: str) -> None:
        if payload:
            take(orjson.loads(payload))

    return hear


def on_doubted(look: Callable[[str], None]) -> Callable[[str], None]:
    """Looks from here at a server that another process could not reach."""

    def hear(payload: str) -> None:
        if payload:
            look(orjson.loads(payload)["connection"])

    return hear
