"""Sessions of the 2025 era that live in no process.

A session id is a sealed value: who opened it, which protocol version was agreed, what the client
can do. Any replica with the key opens it, and so does the same one after a restart. What has to be
shared is only which sessions were ended before their time. Opening a seal costs some fifty
microseconds, so opened ids are kept in a bounded memory.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from cryptography.fernet import InvalidToken

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
