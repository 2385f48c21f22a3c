"""What clients want to hear of: resources they watch, and from which level on they read logs.

A holder is a session of the 2025 era or an open `subscriptions/listen` of 2026. What a session
wants is told to other processes, since its stream may be open in any, and kept in the store for
those that come after. Servers are told by the process where the stream is, for as long as it is
open and a little longer: for each principal, `_settle` brings what the servers were told in line
with what its holders want, and tries again where a server can't be reached.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import orjson
import structlog
from cachetools import LRUCache

from gateway.calls.send import UpstreamRequests
from gateway.errors import GatewayError, Overloaded, UpstreamRefused
from gateway.limits import LINGER_SECONDS, MAX_SESSIONS, MAX_WATCHED, SESSION_SECONDS
from gateway.store.cluster import keep_wish_in, signal_soon
from gateway.store.database import Database

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
RANK: Mapping[str, int] = {level: rank for rank, level in enumerate(LEVELS)}
UPDATED, LOGGED = "notifications/resources/updated", "notifications/message"
WISHED = "mcp_wished"  # the signal: what a session wants

log = structlog.get_logger(__name__)

Watched = tuple[str, str]  # server, URI


@dataclass(frozen=True, slots=True)
class Notice:
    """What a server tells unasked: that a resource was updated, or a log message."""

    server: str
    method: str
    params: Mapping[str, Any]
    principal: str | None  # whom it concerns; None: whoever wants to hear of it


@dataclass(slots=True)
class Holder:
    """What one session or stream wants, and whether it can hear of it in this process."""

    principal: str = ""
    watched: set[Watched] = field(default_factory=set)
    level: str | None = None
    streams: int = 0  # that are open here
    seen: float = -inf  # when it last watched something, or had a stream here


class Wishes:
    """The wishes of all clients of this process."""

    def __init__(
        self, requests: UpstreamRequests, db: Database, linger: float = LINGER_SECONDS
    ) -> None:
        self._upstreams = requests.upstreams
        self._db = db
        self._linger = linger  # for a client to open its stream, or to open it again
        self._own_name = secrets.token_hex(8)
        # The one that was used least of late makes room.
        self._holders: LRUCache[str, Holder] = LRUCache(MAX_SESSIONS)
        self._told: defaultdict[str, set[Watched]] = defaultdict(set)  # by principal
        self._settling: dict[str, asyncio.Task[None]] = {}  # by principal
        self._upstreams.log_level = self._lowest_level
        self._upstreams.on_replaced = self._tell_again

    def share(self, **wish: Any) -> None:
        """Tells other processes what a session wants, and keeps it for those that come after."""
        key = "level" if "level" in wish else f"{wish['server']} {wish['uri']}"
        said, until = {**wish, "by": self._own_name}, time.time() + SESSION_SECONDS
        self._db.write_soon(lambda tx: keep_wish_in(tx, key, said, until))
        signal_soon(self._db, WISHED, orjson.dumps(said).decode())

    def hear(self, payload: str) -> None:
        """Hears the signal of another process; after a break there may be nothing to hear."""
        if payload:
            self.take(orjson.loads(payload))

    def take(self, wish: Mapping[str, Any]) -> None:
        """Takes over what a session said to another process, now or before this one began."""
        if wish["by"] == self._own_name:
            return  # our own words come back late
        session, principal = wish["session"], wish.get("principal", "")
        if "level" in wish:
            self.set_level(session, principal, wish["level"], wish["servers"])
        elif wish["on"]:
            self._note(session, principal, wish["server"], wish["uri"])
        else:
            self.unwatch(session, wish["server"], wish["uri"])

    async def watch(self, name: str, principal: str, server: str, uri: str) -> None:
        """Has the holder of this name hear of updates; raises what the server says against it."""
        holder = self._holders.get(name)
        if holder is not None and (server, uri) in holder.watched:
            return
        if sum(len(mine.watched) for mine in self._of(principal)) >= MAX_WATCHED:
            hint = "Let go of some, or end sessions that are no longer needed."
            raise Overloaded("busy", f"You watch {MAX_WATCHED} resources already.", hint)
        if (server, uri) not in self._told[principal]:
            await self._upstreams.subscribe(server, principal, uri, self._linger)
            self._told[principal].add((server, uri))
        self._note(name, principal, server, uri)

    def _note(self, name: str, principal: str, server: str, uri: str) -> None:
        holder = self._holders.setdefault(name, Holder())
        holder.principal = principal
        holder.watched.add((server, uri))
        self._linger_on(holder)
        self._settle_soon(principal)

    def unwatch(self, name: str, server: str, uri: str) -> bool:
        """The holder wants to hear no more of it; False: it did not hear of it."""
        holder = self._holders.get(name)
        if holder is None or (server, uri) not in holder.watched:
            return False
        holder.watched.discard((server, uri))
        self._settle_soon(holder.principal)
        return True

    def attend(self, name: str) -> None:
        """A stream of the holder is open here."""
        holder = self._holders.setdefault(name, Holder())
        holder.streams += 1
        self._settle_soon(holder.principal)

    def leave(self, name: str) -> None:
        """The stream is closed; the client may open another one soon."""
        holder = self._holders.get(name)
        if holder is not None:
            holder.streams -= 1
            self._linger_on(holder)

    def forget(self, name: str) -> None:
        """The holder is gone, and its wishes with it."""
        holder = self._holders.pop(name, None)
        if holder is not None:
            self._settle_soon(holder.principal)

    def wants(self, name: str, notice: Notice) -> bool:
        """Whether a notice is what this holder wants to hear of."""
        if notice.method == UPDATED:
            return self.watches(name, notice.server, str(notice.params.get("uri")))
        level = self.level(name)  # outside any call a log is for those who said from which level on
        return level is not None and reaches(notice.params.get("level"), level)

    def watches(self, name: str, server: str, uri: str) -> bool:
        """Whether an update of this URI, or of one beneath it, is for this holder."""
        holder = self._holders.get(name, Holder())
        return any(
            server == owner and (uri == watched or uri.startswith(watched.rstrip("/") + "/"))
            for owner, watched in holder.watched
        )

    def set_level(self, name: str, principal: str, level: str, servers: Sequence[str]) -> None:
        """From this level on a session reads logs."""
        holder = self._holders.setdefault(name, Holder())
        holder.principal, holder.level = principal, level
        for server in servers:
            self._upstreams.tell_log_level(server, principal)

    def level(self, name: str | None) -> str | None:
        """The level a session has set."""
        holder = self._holders.get(name) if name is not None else None
        return holder.level if holder is not None else None

    def _lowest_level(self, principal: str | None) -> str | None:
        """Servers log from the lowest level that any session wants, of a principal or of all."""
        levels = [holder.level for holder in self._of(principal) if holder.level is not None]
        return min(levels, key=RANK.__getitem__, default=None)

    def _of(self, principal: str | None) -> list[Holder]:
        """The holders of a principal; None: of all."""
        holders = self._holders.values()
        return [holder for holder in holders if principal in (None, holder.principal)]

    def _linger_on(self, holder: Holder) -> None:
        """Counts the holder as present for a little longer."""
        loop = asyncio.get_running_loop()
        holder.seen = loop.time()
        loop.call_later(self._linger, self._settle_soon, holder.principal)

    def _wanted(self, principal: str) -> set[Watched]:
        """What those holders of a principal want that have a stream here, or had one lately."""
        gone = asyncio.get_running_loop().time() - self._linger
        present = (each for each in self._of(principal) if each.streams > 0 or each.seen > gone)
        return {watched for holder in present for watched in holder.watched}

    def _tell_again(self, server: str) -> None:
        """A server is reached in another way: it knows nothing of what is wanted."""
        for principal, told in self._told.items():
            told -= {(name, uri) for name, uri in told if name == server}
            self._settle_soon(principal)

    def _settle_soon(self, principal: str) -> None:
        if principal and principal not in self._settling:
            self._settling[principal] = asyncio.create_task(self._settle(principal))

    async def _settle(self, principal: str) -> None:
        """Tells servers what a principal's holders want, until they know, and nothing else."""
        pause = 1.0
        while True:
            wanted, told = self._wanted(principal), self._told[principal]
            for server, uri in told - wanted:
                told.discard((server, uri))
                self._upstreams.unsubscribe(server, principal, uri)
            missing = wanted - told
            if not missing:
                del self._settling[principal]
                return
            if not all([await self._subscribe(principal, server, uri) for server, uri in missing]):
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._linger)

    async def _subscribe(self, principal: str, server: str, uri: str) -> bool:
        try:
            await self._upstreams.subscribe(server, principal, uri, self._linger)
        except UpstreamRefused:
            for holder in self._of(principal):  # it is not there any more
                holder.watched.discard((server, uri))
        except GatewayError as error:
            log.info("wish_waits", server=server, error=error.code)
            return False
        else:
            self._told[principal].add((server, uri))
        return True


def reaches(level: object, wanted: str | None) -> bool:
    """Whether a message of this level is to be read by who wants them from `wanted` on."""
    return wanted is None or RANK.get(str(level), len(LEVELS)) >= RANK.get(wanted, 0)
