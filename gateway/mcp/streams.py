"""What clients hear of unasked: streams that stay open, and what their clients want of them.

A stream is the GET stream of the 2025 era or the answer to `subscriptions/listen` of 2026. For each
the gateway remembers which lists its client knows of. After a change (a burst counts as one) these
are compared with what there is now, and only streams whose own lists are other ones are told, once:
"changed" carries nothing, so a slow reader has one such word waiting. The same pass asks again who
the stream's token belongs to, so a stream ends soon after its token, its session or its bundle is
gone.

Clients want to hear of resources they watch, and of logs from a level on. A holder of wishes is a
session or an open `subscriptions/listen`. What a session wants is told to other processes, since
its stream may be open in any, and kept in the store for those that come after. Servers are told by
the process where the stream is, for as long as it is open and a little longer: for each principal,
`_settle` brings what the servers were told in line with what its holders want, and tries again
where a server can't be reached.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import orjson
import structlog
from cachetools import LRUCache
from starlette.exceptions import HTTPException
from starlette.types import Receive, Send

from gateway import limits
from gateway.calls.send import UpstreamRequests
from gateway.errors import GatewayError, Overloaded, Unauthenticated, UpstreamRefused
from gateway.model import Principal, Scope
from gateway.store.cluster import heard_within, keep_wish_in, signal_soon
from gateway.store.database import Database
from gateway.web.guard import EventStream, Say
from gateway.web.identity import Identity

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
RANK: Mapping[str, int] = {level: rank for rank, level in enumerate(LEVELS)}
UPDATED, LOGGED = "notifications/resources/updated", "notifications/message"
WISHED = "mcp_wished"  # the signal: what a session wants

log = structlog.get_logger(__name__)

# What tells one list from another, by kind: it changes exactly when the list may have.
Lists = Callable[[Principal, Scope, str], dict[str, str]]  # as a client of this name sees them
Offers = Callable[[Principal, Scope, str], bool]  # whether a view has what this server offers
Frame = Callable[[str, Mapping[str, Any], str | None], bytes]  # of a method, params, event id


@dataclass(eq=False, slots=True)
class ClientStream:
    """One open stream: whose it is, what its client knows of and wants to hear of."""

    principal: Principal
    scope: Scope
    client: str  # as it calls itself
    authorization: bytes | None
    holder: str  # the session, or a name of its own: under it the client's wishes are kept
    hears: Collection[str]  # of tools, prompts, resources, logs
    known: dict[str, str]  # the lists that the client knows of, by kind
    frame: Frame
    first: bytes
    last: bytes = b""
    is_alive: Callable[[], Awaitable[bool]] | None = None  # None: as long as its token
    ending: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    _unsaid: dict[object, bytes] = field(default_factory=dict)

    def tell(
        self, key: object, method: str, params: Mapping[str, Any], id: str | None = None
    ) -> None:
        """Says something soon, in place of what was not read yet under the same key."""
        if key in self._unsaid or len(self._unsaid) < limits.MAX_QUEUED:
            self._unsaid[key] = self.frame(method, params, id)
            self.woken.set()

    def tell_changed(self, kind: str, list_id: str) -> None:
        """Says that a list is another one now, if the client wants to hear of it."""
        if kind in self.hears:
            id = list_id if kind == "tools" else None
            self.tell(kind, f"notifications/{kind}/list_changed", {}, id)

    def end(self) -> None:
        """Ends the stream from our side."""
        self.ending = True
        self.woken.set()

    async def step(self, say: Say) -> bool:
        """Says what is unsaid; False: that was all."""
        await say(self.first)
        self.first = b""
        while self._unsaid:
            await say(self._unsaid.pop(next(iter(self._unsaid))))
        if self.ending:
            await say(self.last)
        return not self.ending


class Streams:
    """All open streams of this process."""

    most_of_a_principal = limits.MAX_STREAMS_PER_PRINCIPAL

    def __init__(self, identity: Identity, wishes: Wishes, lists: Lists, offers: Offers) -> None:
        self._identity = identity
        self._wishes = wishes
        self.lists = lists
        self._offers = offers
        self._open: dict[ClientStream, None] = {}  # the newest last
        self._count: Counter[str] = Counter()  # by principal: some have very many
        # The list of tools that a session has seen or been told of, as far as this process knows.
        self.noted: LRUCache[tuple[str, Scope], str] = LRUCache(limits.MAX_REMEMBERED)
        self._closing = False
        self._woken = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        identity.on_change(self.look_again)

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, stream: ClientStream, receive: Receive, send: Send) -> None:
        """Keeps a stream open until either side ends it."""
        name = stream.principal.name
        if self._closing:
            raise HTTPException(503, "The gateway is going down", {"retry-after": "1"})
        if self._count[name] >= self.most_of_a_principal:
            raise HTTPException(429, "Too many open streams", {"retry-after": "30"})
        self._count[name] += 1
        self._open[stream] = None
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep())
        self._wishes.attend(stream.holder)

        def leave() -> None:
            self._wishes.leave(stream.holder)
            del self._open[stream]
            self._count[name] -= 1
            self._count += Counter()  # without those that are at nothing

        await EventStream(stream.step, stream.woken, leave)({}, receive, send)

    def look_again(self) -> None:
        """Something that streams depend on may be another: they are looked at soon."""
        self._woken.set()

    async def _keep(self) -> None:
        """Compares after each burst of changes, and once in a while for what nobody tells of."""
        while self._open:
            if await heard_within(self._woken, limits.MOMENT_SECONDS):
                await asyncio.sleep(limits.SETTLE_SECONDS)
                self._woken.clear()
            await self._compare()

    async def _compare(self) -> None:
        """Tells each stream whose lists changed, and ends each that has no right to one any more.

        A session hears on one stream, its newest, whatever it has open.
        """
        found: dict[tuple[bytes | None, Scope, str], dict[str, str] | None] = {}
        told: set[tuple[str, str]] = set()
        for stream in list(reversed(self._open)):
            key = (stream.authorization, stream.scope, stream.client)
            if key not in found:
                found[key] = await self._look(stream)
                await asyncio.sleep(0)  # many principals: let calls through between their views
            lists = found[key]
            if lists is None or (stream.is_alive is not None and not await stream.is_alive()):
                stream.end()
                continue
            for kind, list_id in lists.items():
                if stream.known[kind] == list_id:
                    continue
                stream.known[kind] = list_id
                if (stream.holder, kind) not in told:
                    told.add((stream.holder, kind))
                    stream.tell_changed(kind, list_id)
                    if kind == "tools":
                        self.noted[stream.holder, stream.scope] = list_id

    async def _look(self, stream: ClientStream) -> dict[str, str] | None:
        """The lists that the stream's token sees now; None: it has no right to see any."""
        shown = stream.authorization
        try:
            fields = {b"authorization": shown} if shown else {}
            principal = await self._identity.identify(fields, stream.scope.address)
            same = principal.name == stream.principal.name
            return self.lists(principal, stream.scope, stream.client) if same else None
        except (Unauthenticated, GatewayError):
            return None
        except Exception as error:  # one stream's trouble must not stop the others' pass
            log.error("stream_check_failed", error=type(error).__name__)
            return {}

    def tell_notice(self, notice: Notice) -> None:
        """Passes a server's notice on, to each client on one stream."""
        done: set[str] = set()
        for stream in reversed(self._open):
            if stream.holder in done or not ("logs" in stream.hears or "uri" in notice.params):
                continue
            if self._concerns(notice, stream):
                done.add(stream.holder)
                key = notice.params.get("uri") or object()
                stream.tell(key, notice.method, notice.params)

    def _concerns(self, notice: Notice, stream: ClientStream) -> bool:
        principal = stream.principal
        return (
            notice.principal in (None, principal.name)
            and self._wishes.wants(stream.holder, notice)
            and self._offers(principal, stream.scope, notice.server)
        )

    def close(self) -> None:
        """Ends all streams, and takes no new ones."""
        self._closing = True
        for stream in self._open:
            stream.end()
        if self._keeper is not None:
            self._keeper.cancel()


# --- wishes ---------------------------------------------------------------------------------------

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
        self, requests: UpstreamRequests, db: Database, linger: float = limits.LINGER_SECONDS
    ) -> None:
        self._upstreams = requests.upstreams
        self._db = db
        self._linger = linger  # for a client to open its stream, or to open it again
        self._own_name = secrets.token_hex(8)
        # The one that was used least of late makes room.
        self._holders: LRUCache[str, Holder] = LRUCache(limits.MAX_REMEMBERED)
        self._told: defaultdict[str, set[Watched]] = defaultdict(set)  # by principal
        self._settling: dict[str, asyncio.Task[None]] = {}  # by principal
        self._upstreams.log_level = self._lowest_level
        self._upstreams.on_replaced = self._tell_again

    def share(self, **wish: Any) -> None:
        """Tells other processes what a session wants, and keeps it for those that come after."""
        key = "level" if "level" in wish else f"{wish['server']} {wish['uri']}"
        said, until = {**wish, "by": self._own_name}, time.time() + limits.SESSION_SECONDS
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
        if sum(len(mine.watched) for mine in self._of(principal)) >= limits.MAX_WATCHED:
            hint = "Let go of some, or end sessions that are no longer needed."
            raise Overloaded("busy", f"You watch {limits.MAX_WATCHED} resources already.", hint)
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
