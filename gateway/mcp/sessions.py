"""Sessions of the 2025 era that live in no process.

A session id is a sealed value: who opened it, which protocol version was agreed, what the client
can do. Any replica with the key opens it, and so does the same one after a restart. What has to be
shared is only which sessions were ended before their time. Opening a seal costs some fifty
microseconds, so opened ids are kept in a bounded memory.

What processes tell each other about MCP: which sessions ended, what clients say and want.

A session lives in no process, so a client's next request may land anywhere. That a session was
ended is kept in the store and told to all; a cancellation, or the answer to a question, is passed
on to whoever runs the call, and what a session wants to hear of to whoever has its stream. That a
server can't be reached is told to all, who look for themselves.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import structlog
from cryptography.fernet import InvalidToken
from sqlalchemy import Connection

from gateway.errors import GatewayError
from gateway.mcp.messages import RequestId
from gateway.store.cluster import end_session, ended_sessions, keep_wish_in, signal
from gateway.store.database import Database

SESSION_SECONDS = 7 * 24 * 3600.0
MAX_OPENED = 4096
MAX_ID_BYTES = 4096
MAX_CLIENT_CHARS = 128
MAX_CAPABILITIES_BYTES = 1024
MAX_ENDED = 100_000
ACTED_ON: Mapping[str, tuple[str, ...]] = {  # of a client's capabilities, with their flags
    "elicitation": ("form", "url"),
    "sampling": ("tools",),
    "roots": (),
}

_PURPOSE = "mcp-session/1"  # one key seals other things too: none of them opens as a session


class Seal(Protocol):
    """Fernet, MultiFernet or the like."""

    def encrypt(self, data: bytes) -> bytes: ...

    def decrypt(self, token: bytes) -> bytes: ...


class Ended(Protocol):
    """Which sessions were ended before their time, on whichever replica."""

    async def add(self, session: str, expires: float) -> None: ...

    def contains(self, session: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Session:
    """What was agreed when a client said hello."""

    id: str
    principal: str
    protocol_version: str
    client: str
    capabilities: Mapping[str, Any]
    expires: float


class Sessions:
    """Makes session ids, opens them again, and knows which are over."""

    def __init__(
        self, seal: Seal, ended: Ended | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._seal = seal
        self._clock = clock
        self._ended = ended or EndedHere(clock)
        self._opened: dict[bytes, Session] = {}

    def __len__(self) -> int:
        """How many sessions that are not over this process has lately heard from."""
        return sum(self.alive(session) for session in self._opened.values())

    def create(
        self,
        principal: str,
        protocol_version: str,
        client: str,
        capabilities: Mapping[str, Any],
    ) -> bytes:
        """A new session's id, as it goes into the header."""
        payload = [
            _PURPOSE,
            secrets.token_hex(12),
            principal,
            protocol_version,
            client[:MAX_CLIENT_CHARS],
            bounded_capabilities(capabilities),
            int(self._clock() + SESSION_SECONDS),
        ]
        return self._seal.encrypt(orjson.dumps(payload))

    def open(self, header: bytes, principal: str) -> Session | None:
        """The session of this id, if it is this principal's and not over."""
        session = self._opened.get(header) or self._unseal(header)
        if session is None or session.principal != principal or not self.alive(session):
            return None
        return session

    def _unseal(self, header: bytes) -> Session | None:
        if len(header) > MAX_ID_BYTES:
            return None
        try:
            purpose, *values = orjson.loads(self._seal.decrypt(header))
            session = Session(*values)
        except (InvalidToken, ValueError, TypeError):
            return None
        if purpose != _PURPOSE:
            return None
        if len(self._opened) >= MAX_OPENED:
            self._opened.pop(next(iter(self._opened)))
        self._opened[header] = session
        return session

    def alive(self, session: Session) -> bool:
        """Whether a session has neither run out nor been ended."""
        return session.expires > self._clock() and not self._ended.contains(session.id)

    async def end(self, header: bytes, session: Session) -> None:
        """End a session before its time."""
        self._opened.pop(header, None)
        await self._ended.add(session.id, session.expires)


class EndedHere:
    """Ended sessions of one process: what a single process without a store needs."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._expiry: dict[str, float] = {}

    async def add(self, session: str, expires: float) -> None:
        if len(self._expiry) >= MAX_ENDED:
            now = self._clock()
            kept = [(one, until) for one, until in self._expiry.items() if until > now]
            self._expiry = dict(kept[-MAX_ENDED // 2 :])
        self._expiry[session] = expires

    def contains(self, session: str) -> bool:
        return session in self._expiry


def bounded_capabilities(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Client capabilities small enough for a header; of large ones, those we act on."""
    if len(orjson.dumps(capabilities, default=str)) <= MAX_CAPABILITIES_BYTES:
        return dict(capabilities)
    return {
        name: {flag: {} for flag in flags if flag in said}
        for name, flags in ACTED_ON.items()
        if isinstance(said := capabilities.get(name), Mapping)
    }


log = structlog.get_logger("gateway.edge")

CANCELLED = "mcp_cancelled"
ANSWERED = "mcp_answered"
WISHED = "mcp_wished"
DOUBTED = "mcp_doubted"


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
