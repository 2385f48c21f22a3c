"""When each principal's clients last spoke MCP, for "Connect a client" to turn green."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

MAX_PRINCIPALS = 4096
MAX_AGENT_CHARS = 80


class Contact(Struct, frozen=True):
    """The last request of a principal, and what sent it."""

    at: float
    sent_by: bytes

    @property
    def agent(self) -> str:
        return self.sent_by.decode("utf-8", "replace")


class Contacts:
    """Remembers the last contact with each principal in this process."""

    def __init__(self) -> None:
        self._last: dict[str, Contact] = {}  # who spoke last stands last
        self.on_first: Callable[[], None] = lambda: None

    def note(self, principal: str, agent: bytes) -> None:
        """A client of this principal has spoken."""
        known = self._last.pop(principal, None)
        self._last[principal] = Contact(time.time(), agent[:MAX_AGENT_CHARS])
        if known is None:
            if len(self._last) > MAX_PRINCIPALS:
                del self._last[next(iter(self._last))]
            self.on_first()

    def of(self, principal: str) -> Contact | None:
        """The last contact, if there was one."""
        return self._last.get(principal)
