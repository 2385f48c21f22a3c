"""What clients want to hear of: resources they watch, and from which level on they read logs.

A holder is a session of the 2025 era or an open `subscriptions/listen` of 2026. However many of a
principal's hold a resource, its server is told once, and once more when the last one lets go. What
a session wants is told to other processes, since its stream may be open in any, and kept for those
that come after; servers are told by the process where the stream is, for as long as it is open and
a little longer. Everything is bounded: the oldest session makes room for a new one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from gateway.errors import GatewayError, Overloaded, UpstreamRefused
from gateway.upstream.registry import Upstreams

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
RANK: Mapping[str, int] = {level: rank for rank, level in enumerate(LEVELS)}
MAX_HOLDERS = 8192
MAX_WATCHED = 500  # by one principal
SUBSCRIBE_SECONDS = 10.0
LINGER_SECONDS = 60.0  # for a client to open its stream, or to open it again
RETRY_PAUSES = (0.0, 1.0, 5.0, 15.0)
LONGEST_PAUSE = 60.0

log = structlog.get_logger(__name__)

Watched = tuple[str, str]  # server, URI


class Wishes:
    """The wishes of all clients of this process."""

    def __init__(self, upstreams: Upstreams, linger: float = LINGER_SECONDS) -> None:
        self._upstreams = upstreams
        self._linger = linger
        self._watched: dict[str, set[Watched]] = {}  # by holder, the oldest first
        self._told: dict[tuple[str, str, str], set[str]] = {}  # holders, by principal, server, URI
        self._principals: dict[str, str] = {}  # by holder
        self._count: Counter[str] = Counter()  # of what each principal watches
        self._levels: dict[str, tuple[str, str]] = {}  # principal and level, by session
        self._streams: Counter[str] = Counter()  # that are open here, by holder
        self._telling: dict[str, asyncio.Task[None]] = {}  # by holder
        self._own_name = secrets.token_hex(8)
        self.tell: Callable[[dict[str, Any]], None] = lambda wish: None
        upstreams.log_level = self._lowest_level
        upstreams.on_replaced(self._tell_again)

    def share(self, **wish: Any) -> None:
        """Tells other processes what a session wants."""
        self.tell({**wish, "by": self._own_name})

    def take(self, wish: dict[str, Any]) -> None:
        """Takes over what a session said to another process, now or before this one began."""
        if wish["by"] == self._own_name:
            return  # our own words come back late
        session, principal = wish["session"], wish.get("principal", "")
        if "level" in wish:
            self.set_level(session, principal, wish["level"], wish["servers"])
        elif not wish["on"]:
            self.unwatch(session, wish["server"], wish["uri"])
        else:
            self._note(session, principal, wish["server"], wish["uri"])
            if self._streams[session]:
                self._tell_soon(session)

    async def watch(self, holder: str, principal: str, server: str, uri: str) -> None:
        """Has the holder hear of updates; raises what the server says against it."""
        if (server, uri) in self._watched.get(holder, ()):
            return
        if self._count[principal] >= MAX_WATCHED:
            hint = "Let go of some, or end sessions that are no longer needed."
            raise Overloaded("busy", f"You watch {MAX_WATCHED} resources already.", hint)
        await self._subscribe(holder, principal, server, uri)
        self._note(holder, principal, server, uri)
        if not self._streams[holder]:
            self._let_go_later(holder)

    def unwatch(self, holder: str, server: str, uri: str) -> bool:
        """The holder wants to hear no more of it; False: it did not hear of it."""
        mine = self._watched.get(holder, set())
        if (server, uri) not in mine:
            return False
        mine.discard((server, uri))
        principal = self._principals[holder]
        self._count[principal] -= 1
        self._let_go(holder, principal, server, uri)
        return True

    def attend(self, holder: str) -> None:
        """A stream of the holder is open here: its servers are told what it wants to hear of."""
        self._streams[holder] += 1
        if self._watched.get(holder):
            self._tell_soon(holder)

    def leave(self, holder: str) -> None:
        """The stream is closed; the client may open another one soon."""
        self._streams[holder] -= 1
        if not self._streams[holder]:
            del self._streams[holder]
            self._let_go_later(holder)

    def forget(self, holder: str) -> None:
        """The holder is gone, and its wishes with it."""
        for server, uri in tuple(self._watched.get(holder, ())):
            self.unwatch(holder, server, uri)
        self._watched.pop(holder, None)
        self._principals.pop(holder, None)
        self._levels.pop(holder, None)
        self._count += Counter()  # without those that are at nothing

    def watches(self, holder: str, server: str, uri: str) -> bool:
        """Whether an update of this URI, or of one beneath it, is for this holder."""
        return any(
            server == owner and (uri == watched or uri.startswith(watched.rstrip("/") + "/"))
            for owner, watched in self._watched.get(holder, ())
        )

    def set_level(self, session: str, principal: str, level: str, servers: Sequence[str]) -> None:
        """From this level on a session reads logs."""
        if len(self._levels) >= MAX_HOLDERS and session not in self._levels:
            self._levels.pop(next(iter(self._levels)))
        self._levels[session] = principal, level
        for server in servers:
            self._upstreams.tell_log_level(server, principal)

    def level(self, holder: str | None) -> str | None:
        """The level a session has set."""
        found = None if holder is None else self._levels.get(holder)
        return found and found[1]

    def _lowest_level(self, principal: str | None) -> str | None:
        """Servers log from the lowest level that any session wants, of a principal or of all."""
        levels = [level for who, level in self._levels.values() if principal in (None, who)]
        return min(levels, key=RANK.__getitem__, default=None)

    def _note(self, holder: str, principal: str, server: str, uri: str) -> None:
        while len(self._watched) >= MAX_HOLDERS and holder not in self._watched:
            self.forget(next(iter(self._watched)))
        mine = self._watched.setdefault(holder, set())
        if (server, uri) not in mine:
            mine.add((server, uri))
            self._count[principal] += 1
            self._principals[holder] = principal

    async def _subscribe(self, holder: str, principal: str, server: str, uri: str) -> None:
        holders = self._told.get((principal, server, uri))
        if not holders:
            await self._upstreams.subscribe(server, principal, uri, SUBSCRIBE_SECONDS)
        self._told.setdefault((principal, server, uri), set()).add(holder)

    def _let_go(self, holder: str, principal: str, server: str, uri: str) -> None:
        holders = self._told.get((principal, server, uri), set())
        holders.discard(holder)
        if not holders and self._told.pop((principal, server, uri), None) is not None:
            self._upstreams.unsubscribe(server, principal, uri)

    def _let_go_later(self, holder: str) -> None:
        def now() -> None:
            if not self._streams[holder]:
                for server, uri in self._watched.get(holder, ()):
                    self._let_go(holder, self._principals[holder], server, uri)

        if self._watched.get(holder):
            asyncio.get_running_loop().call_later(self._linger, now)

    def _tell_again(self, server: str) -> None:
        """A server is reached in another way: it knows nothing of what is wanted."""
        for principal, name, uri in tuple(self._told):
            if name == server:
                for holder in self._told.pop((principal, name, uri)):
                    self._tell_soon(holder)

    def _tell_soon(self, holder: str) -> None:
        if holder not in self._telling:
            task = self._telling[holder] = asyncio.create_task(self._tell(holder))
            task.add_done_callback(lambda _: self._telling.pop(holder))

    async def _tell(self, holder: str) -> None:
        """Tells servers what a holder wants, until they know or it is not there to hear of it."""
        pauses = iter(RETRY_PAUSES)
        while self._streams[holder] and (missing := self._untold(holder)):
            await asyncio.sleep(next(pauses, LONGEST_PAUSE))
            for server, uri in missing:
                await self._told_of(holder, server, uri)

    def _untold(self, holder: str) -> list[Watched]:
        principal = self._principals.get(holder, "")
        return [
            (server, uri)
            for server, uri in self._watched.get(holder, ())
            if holder not in self._told.get((principal, server, uri), ())
        ]

    async def _told_of(self, holder: str, server: str, uri: str) -> None:
        principal = self._principals.get(holder, "")
        try:
            await self._subscribe(holder, principal, server, uri)
            if (server, uri) not in self._watched.get(holder, ()):
                self._let_go(holder, principal, server, uri)
        except UpstreamRefused:
            self.unwatch(holder, server, uri)  # it is not there any more
        except GatewayError as error:
            log.info("wish_waits", server=server, error=error.code)


def reaches(level: object, wanted: str | None) -> bool:
    """Whether a message of this level is to be read by who wants them from `wanted` on."""
    return wanted is None or RANK.get(str(level), len(LEVELS)) >= RANK.get(wanted, 0)
