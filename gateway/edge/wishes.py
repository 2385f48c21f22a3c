"""What clients want to hear of: resources they watch, and from which level on they read logs.

A holder is a session of the 2025 era or an open `subscriptions/listen` of 2026. However many hold a
resource, its server is told once, and once more when the last one lets go. What a session wants is
told to other processes, since its stream may be open in any, and kept for those that come after.
Everything is bounded: the oldest session makes room for a new one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from gateway.connectors.upstream_sessions import Upstreams
from gateway.errors import GatewayError, Overloaded, UpstreamRefused

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
RANK: Mapping[str, int] = {level: rank for rank, level in enumerate(LEVELS)}
MAX_HOLDERS = 8192
MAX_WATCHED = 500  # by one principal
SUBSCRIBE_SECONDS = 10.0
MAX_TAKING = 256
RESTORE_PAUSES = (0.0, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0)

log = structlog.get_logger(__name__)

Watched = tuple[str, str]  # server, URI


class Wishes:
    """The wishes of all clients of this process."""

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._watched: dict[str, set[Watched]] = {}  # by holder, the oldest first
        self._holders: dict[Watched, set[str]] = {}
        self._principals: dict[str, str] = {}  # by holder
        self._count: Counter[str] = Counter()  # of what each principal watches
        self._levels: dict[str, str] = {}
        self._taking: set[asyncio.Task[None]] = set()
        self._own_name = secrets.token_hex(8)
        self.tell: Callable[[dict[str, Any]], None] = lambda wish: None

    def share(self, **wish: Any) -> None:
        """Tells other processes what a session wants."""
        self.tell({**wish, "by": self._own_name})

    def take(self, wish: dict[str, Any]) -> None:
        """Takes over what a session said to another process; our own words come back late."""
        session = wish["session"]
        if wish["by"] == self._own_name:
            return
        if "level" in wish:
            self.set_level(session, wish["level"], wish["servers"])
        elif not wish["on"]:
            self.unwatch(session, wish["server"], wish["uri"])
        elif len(self._taking) < MAX_TAKING:
            task = asyncio.create_task(
                self._take(session, wish["principal"], wish["server"], wish["uri"])
            )
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    async def _take(self, session: str, principal: str, server: str, uri: str) -> None:
        try:
            await self.watch(session, principal, server, uri)
        except GatewayError as error:
            log.info("wish_not_taken", server=server, error=error.code)

    async def restore(self, kept: Sequence[dict[str, Any]]) -> None:
        """Takes up what sessions wanted before this process began; servers may take their time."""
        for pause in RESTORE_PAUSES:
            await asyncio.sleep(pause)
            kept = [wish for wish in kept if not await self._restored(wish)]
            if not kept:
                return
        log.warning("wishes_not_restored", count=len(kept))

    async def _restored(self, wish: dict[str, Any]) -> bool:
        if "level" in wish:
            self.set_level(wish["session"], wish["level"], wish["servers"])
            return True
        try:
            await self.watch(wish["session"], wish["principal"], wish["server"], wish["uri"])
        except UpstreamRefused:
            return True  # it is not there any more
        except GatewayError:
            return False
        return True

    async def watch(self, holder: str, principal: str, server: str, uri: str) -> None:
        """Has the holder hear of updates; raises what the server says against it."""
        if (server, uri) in self._watched.get(holder, ()):
            return
        if self._count[principal] >= MAX_WATCHED:
            hint = "Let go of some, or end sessions that are no longer needed."
            raise Overloaded("busy", f"You watch {MAX_WATCHED} resources already.", hint)
        if not self._holders.get((server, uri)):
            await self._upstreams.standing(server).subscribe(uri, SUBSCRIBE_SECONDS)
        while len(self._watched) >= MAX_HOLDERS and holder not in self._watched:
            self.forget(next(iter(self._watched)))
        mine = self._watched.setdefault(holder, set())
        if (server, uri) not in mine:
            mine.add((server, uri))
            self._count[principal] += 1
            self._principals[holder] = principal
        self._holders.setdefault((server, uri), set()).add(holder)

    def unwatch(self, holder: str, server: str, uri: str) -> bool:
        """The holder wants to hear no more of it; False: it did not hear of it."""
        mine = self._watched.get(holder, set())
        if (server, uri) not in mine:
            return False
        mine.discard((server, uri))
        self._count[self._principals[holder]] -= 1
        holders = self._holders.get((server, uri), set())
        holders.discard(holder)
        if not holders and self._holders.pop((server, uri), None) is not None:
            self._let_go(server, uri)
        return True

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

    def set_level(self, session: str, level: str, servers: Sequence[str]) -> None:
        """From this level on a session reads logs; servers log from the lowest that any wants."""
        if len(self._levels) >= MAX_HOLDERS and session not in self._levels:
            self._levels.pop(next(iter(self._levels)))
        self._levels[session] = level
        lowest = min(self._levels.values(), key=RANK.__getitem__)
        for server in servers:
            with suppress(GatewayError):  # the connection is gone
                self._upstreams.standing(server).log_from(lowest)

    def level(self, holder: str | None) -> str | None:
        """The level a session has set."""
        return None if holder is None else self._levels.get(holder)

    def _let_go(self, server: str, uri: str) -> None:
        with suppress(GatewayError):  # the connection is gone, and its subscriptions with it
            self._upstreams.standing(server).unsubscribe(uri)


def reaches(level: object, wanted: str | None) -> bool:
    """Whether a message of this level is to be read by who wants them from `wanted` on."""
    return wanted is None or RANK.get(str(level), len(LEVELS)) >= RANK.get(wanted, 0)
