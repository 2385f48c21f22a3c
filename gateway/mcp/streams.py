"""Streams that stay open, on which clients hear of changes and notices, and their wishes.

A stream is the GET stream of the 2025 era or the answer to `subscriptions/listen` of 2026. For each
the gateway remembers which lists its client knows of. After a change (a burst counts as one) these
are compared with the lists of now, and only streams whose own lists differ are told, once:
"changed" carries nothing, so a slow reader has one such message waiting. The same pass checks the
stream's token and session again, and ends the stream where one of them is gone. Where its bundle is
gone, the client is told that its list changed.

Clients want to hear of resources they watch, and of logs from a level on. A holder of wishes is a
session or an open `subscriptions/listen`. What a session wants is told to other processes, since
its stream may be open in any, and kept in the store for processes that start later. Servers are
told by the process where the stream is, for as long as it is open and a little longer: for each
principal, `_sync_servers` brings the subscriptions at the servers in line with the wishes of its
holders, and tries again where a server can't be reached.
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
from gateway.model import Principal, ViewAddress
from gateway.store.cluster import keep_wish_in, signal_soon, wait_until_set
from gateway.store.database import Database
from gateway.web.guard import EventStream, Say
from gateway.web.identity import Identity

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
RANK: Mapping[str, int] = {level: rank for rank, level in enumerate(LEVELS)}
UPDATED, LOGGED = "notifications/resources/updated", "notifications/message"
WISH_MADE = "mcp_wished"  # the signal: what a session wants

log = structlog.get_logger(__name__)

# An id of each list, by kind, as a client of this name sees them: an id changes exactly when its
# list may have.
ListIds = Callable[[Principal, ViewAddress, str], dict[str, str]]
# Whether a view offers what this server has.
HasServer = Callable[[Principal, ViewAddress, str], bool]
Frame = Callable[[str, Mapping[str, Any], str | None], bytes]  # of a method, params, event id


@dataclass(eq=False, slots=True)
class ClientStream:
    """One open stream of a principal, the lists its client knows and the notices it wants."""

    principal: Principal
    address: ViewAddress
    client: str  # as it calls itself
    authorization: bytes | None
    holder: str  # the session, or a name of its own: under it the client's wishes are kept
    kinds: Collection[str]  # that its client hears of: of tools, prompts, resources, logs
    known_ids: dict[str, str]  # of the lists that the client knows, by kind
    frame: Frame
    first: bytes
    last: bytes = b""
    is_alive: Callable[[], Awaitable[bool]] | None = None  # None: as long as its token
    is_ending: bool = False
    wake_up: asyncio.Event = field(default_factory=asyncio.Event)
    _frames: dict[object, bytes] = field(default_factory=dict)

    def tell(
        self, key: object, method: str, params: Mapping[str, Any], id: str | None = None
    ) -> None:
        """Says something soon, in place of an unread frame with the same key."""
        if key in self._frames or len(self._frames) < limits.MAX_QUEUED:
            self._frames[key] = self.frame(method, params, id)
            self.wake_up.set()

    def tell_changed(self, kind: str, list_id: str) -> None:
        """Says that a list has changed, if the client wants to hear of it."""
        if kind in self.kinds:
            id = list_id if kind == "tools" else None
            self.tell(kind, f"notifications/{kind}/list_changed", {}, id)

    def end(self) -> None:
        """Ends the stream from our side."""
        self.is_ending = True
        self.wake_up.set()

    async def step(self, say: Say) -> bool:
        """Says the frames that wait; False: the stream ends."""
        await say(self.first)
        self.first = b""
        while self._frames:
            await say(self._frames.pop(next(iter(self._frames))))
        if self.is_ending:
            await say(self.last)
        return not self.is_ending


class Streams:
    """All open streams of this process."""

    most_of_a_principal = limits.MAX_STREAMS_PER_PRINCIPAL

    def __init__(self, identity: Identity, wishes: Wishes, ids: ListIds, offers: HasServer) -> None:
        self._identity = identity
        self._wishes = wishes
        self.list_ids = ids
        self._has_server = offers
        self._open: dict[ClientStream, None] = {}  # the newest last
        self._count: Counter[str] = Counter()  # by principal: some have very many streams
        # The list of tools that a session has seen or been told of, as far as this process knows.
        self.tool_list_ids: LRUCache[tuple[str, ViewAddress], str] = LRUCache(limits.MAX_REMEMBERED)
        self._closing = False
        self._wake_up = asyncio.Event()
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
            self._keeper = asyncio.create_task(self._keep_comparing())
        self._wishes.attend(stream.holder)

        def leave() -> None:
            self._wishes.leave(stream.holder)
            del self._open[stream]
            self._count[name] -= 1
            self._count += Counter()  # drops principals without a stream

        await EventStream(stream.step, stream.wake_up, leave)({}, receive, send)

    def look_again(self) -> None:
        """Asks to compare all streams soon: something they depend on may have changed."""
        self._wake_up.set()

    async def _keep_comparing(self) -> None:
        """Compares after each burst of changes, and at times for changes without a signal."""
        while self._open:
            if await wait_until_set(self._wake_up, limits.MOMENT_SECONDS):
                await asyncio.sleep(limits.SETTLE_SECONDS)
                self._wake_up.clear()
            await self._compare()

    async def _compare(self) -> None:
        """Tells each stream whose lists changed, and ends each that has lost its right.

        A session hears on one stream only, its newest, however many it has open.
        """
        ids_by_key: dict[tuple[bytes | None, ViewAddress, str], dict[str, str] | None] = {}
        already_told: set[tuple[str, str]] = set()
        for stream in list(reversed(self._open)):
            key = (stream.authorization, stream.address, stream.client)
            if key not in ids_by_key:
                ids_by_key[key] = await self._look_up_lists(stream)
                await asyncio.sleep(0)  # many principals: let calls through between their views
            list_ids = ids_by_key[key]
            if list_ids is None or (stream.is_alive is not None and not await stream.is_alive()):
                stream.end()
                continue
            for kind, list_id in list_ids.items():
                if stream.known_ids[kind] == list_id:
                    continue
                stream.known_ids[kind] = list_id
                if (stream.holder, kind) not in already_told:
                    already_told.add((stream.holder, kind))
                    stream.tell_changed(kind, list_id)
                    if kind == "tools":
                        self.tool_list_ids[stream.holder, stream.address] = list_id

    async def _look_up_lists(self, stream: ClientStream) -> dict[str, str] | None:
        """The ids of the lists that the stream's token sees now; None: it may see none."""
        token = stream.authorization
        try:
            fields = {b"authorization": token} if token else {}
            principal = await self._identity.identify(fields, stream.address.path)
            is_same = principal.name == stream.principal.name
            return self.list_ids(principal, stream.address, stream.client) if is_same else None
        except (Unauthenticated, GatewayError):
            return None
        except Exception as error:  # trouble with one stream must not stop the pass
            log.error("stream_check_failed", error=type(error).__name__)
            return {}

    def tell_notice(self, notice: UpstreamNotice) -> None:
        """Passes a server's notice on, to each client on one stream."""
        holders: set[str] = set()
        for stream in reversed(self._open):
            if stream.holder in holders or not ("logs" in stream.kinds or "uri" in notice.params):
                continue
            if self._concerns(notice, stream):
                holders.add(stream.holder)
                key = notice.params.get("uri") or object()
                stream.tell(key, notice.method, notice.params)

    def _concerns(self, notice: UpstreamNotice, stream: ClientStream) -> bool:
        principal = stream.principal
        return (
            notice.principal in (None, principal.name)
            and self._wishes.wants(stream.holder, notice)
            and self._has_server(principal, stream.address, notice.server)
        )

    def close(self) -> None:
        """Ends all streams, and takes no new ones."""
        self._closing = True
        for stream in self._open:
            stream.end()
        if self._keeper is not None:
            self._keeper.cancel()


# --- wishes ---------------------------------------------------------------------------------------

ResourceKey = tuple[str, str]  # server, URI


@dataclass(frozen=True, slots=True)
class UpstreamNotice:
    """A message that a server sends unasked: a resource was updated, or a log message."""

    server: str
    method: str
    params: Mapping[str, Any]
    principal: str | None  # whom it concerns; None: every principal that wants it


@dataclass(slots=True)
class Holder:
    """The wishes of one session or stream, and whether it can hear of them in this process."""

    principal: str = ""
    resources: set[ResourceKey] = field(default_factory=set)
    level: str | None = None
    streams: int = 0  # how many are open here
    last_active: float = -inf  # when it last watched something, or had a stream here


class Wishes:
    """The wishes of all clients of this process."""

    def __init__(
        self, requests: UpstreamRequests, db: Database, linger: float = limits.LINGER_SECONDS
    ) -> None:
        self._upstreams = requests.upstreams
        self._db = db
        self._linger = linger  # for a client to open its stream, or to open it again
        self._own_name = secrets.token_hex(8)
        # The holder that was used least of late makes room.
        self._holders: LRUCache[str, Holder] = LRUCache(limits.MAX_REMEMBERED)
        self._subscriptions: defaultdict[str, set[ResourceKey]] = defaultdict(set)  # by principal
        self._sync_tasks: dict[str, asyncio.Task[None]] = {}  # by principal
        self._upstreams.log_level = self._lowest_level
        self._upstreams.on_replaced = self._subscribe_again

    def share(self, **wish: Any) -> None:
        """Tells other processes what a session wants, and keeps the wish for later processes."""
        key = "level" if "level" in wish else f"{wish['server']} {wish['uri']}"
        signed_wish, until = {**wish, "by": self._own_name}, time.time() + limits.SESSION_SECONDS
        self._db.write_soon(lambda tx: keep_wish_in(tx, key, signed_wish, until))
        signal_soon(self._db, WISH_MADE, orjson.dumps(signed_wish).decode())

    def hear(self, payload: str) -> None:
        """Hears the signal of another process; after a break there may be nothing to hear."""
        if payload:
            self.take(orjson.loads(payload))

    def take(self, wish: Mapping[str, Any]) -> None:
        """Takes over what a session said to another process, now or before this process began."""
        if wish["by"] == self._own_name:
            return  # a signal of this process itself
        session, principal = wish["session"], wish.get("principal", "")
        if "level" in wish:
            self.set_level(session, principal, wish["level"], wish["servers"])
        elif wish["on"]:
            self._note_wish(session, principal, wish["server"], wish["uri"])
        else:
            self.unwatch(session, wish["server"], wish["uri"])

    async def watch(self, name: str, principal: str, server: str, uri: str) -> None:
        """Subscribes the holder of this name to updates; raises the server's objection."""
        holder = self._holders.get(name)
        if holder is not None and (server, uri) in holder.resources:
            return
        if sum(len(each.resources) for each in self._holders_of(principal)) >= limits.MAX_WATCHED:
            hint = "Let go of some, or end sessions that are no longer needed."
            raise Overloaded("busy", f"You watch {limits.MAX_WATCHED} resources already.", hint)
        if (server, uri) not in self._subscriptions[principal]:
            await self._upstreams.subscribe(server, principal, uri, self._linger)
            self._subscriptions[principal].add((server, uri))
        self._note_wish(name, principal, server, uri)

    def _note_wish(self, name: str, principal: str, server: str, uri: str) -> None:
        holder = self._holders.setdefault(name, Holder())
        holder.principal = principal
        holder.resources.add((server, uri))
        self._linger_on(holder)
        self._sync_soon(principal)

    def unwatch(self, name: str, server: str, uri: str) -> bool:
        """Ends a holder's wish to hear of a resource; False: it had none."""
        holder = self._holders.get(name)
        if holder is None or (server, uri) not in holder.resources:
            return False
        holder.resources.discard((server, uri))
        self._sync_soon(holder.principal)
        return True

    def attend(self, name: str) -> None:
        """Counts in a stream of the holder that is open here."""
        holder = self._holders.setdefault(name, Holder())
        holder.streams += 1
        self._sync_soon(holder.principal)

    def leave(self, name: str) -> None:
        """Counts out a closed stream; the client may open another one soon."""
        holder = self._holders.get(name)
        if holder is not None:
            holder.streams -= 1
            self._linger_on(holder)

    def forget(self, name: str) -> None:
        """Forgets a holder that is gone, and its wishes."""
        holder = self._holders.pop(name, None)
        if holder is not None:
            self._sync_soon(holder.principal)

    def wants(self, name: str, notice: UpstreamNotice) -> bool:
        """Whether a notice is what this holder wants to hear of."""
        if notice.method == UPDATED:
            return self.watches(name, notice.server, str(notice.params.get("uri")))
        level = self.level(name)  # outside any call a log is for holders that set a level
        return level is not None and reaches(notice.params.get("level"), level)

    def watches(self, name: str, server: str, uri: str) -> bool:
        """Whether an update of this URI, or of one beneath it, is for this holder."""
        holder = self._holders.get(name, Holder())
        return any(
            server == owner and (uri == base or uri.startswith(base.rstrip("/") + "/"))
            for owner, base in holder.resources
        )

    def set_level(self, name: str, principal: str, level: str, servers: Sequence[str]) -> None:
        """Notes the level from which on a session reads logs."""
        holder = self._holders.setdefault(name, Holder())
        holder.principal, holder.level = principal, level
        for server in servers:
            self._upstreams.tell_log_level(server, principal)

    def level(self, name: str | None) -> str | None:
        """The level a session has set."""
        holder = self._holders.get(name) if name is not None else None
        return holder.level if holder is not None else None

    def _lowest_level(self, principal: str | None) -> str | None:
        """The lowest level that any session wants, of a principal or of all."""
        levels = [h.level for h in self._holders_of(principal) if h.level is not None]
        return min(levels, key=RANK.__getitem__, default=None)

    def _holders_of(self, principal: str | None) -> list[Holder]:
        """The holders of a principal; None: of all."""
        holders = self._holders.values()
        return [holder for holder in holders if principal in (None, holder.principal)]

    def _linger_on(self, holder: Holder) -> None:
        """Counts the holder as present for a little longer."""
        loop = asyncio.get_running_loop()
        holder.last_active = loop.time()
        loop.call_later(self._linger, self._sync_soon, holder.principal)

    def _present_wishes(self, principal: str) -> set[ResourceKey]:
        """The resources of a principal's holders that have a stream here, or had one lately."""
        since = asyncio.get_running_loop().time() - self._linger
        holders = (h for h in self._holders_of(principal) if h.streams > 0 or h.last_active > since)
        return {resource for holder in holders for resource in holder.resources}

    def _subscribe_again(self, server: str) -> None:
        """Subscribes again at a server that was replaced and knows of no wishes."""
        for principal, resources in self._subscriptions.items():
            resources -= {(name, uri) for name, uri in resources if name == server}
            self._sync_soon(principal)

    def _sync_soon(self, principal: str) -> None:
        if principal and principal not in self._sync_tasks:
            self._sync_tasks[principal] = asyncio.create_task(self._sync_servers(principal))

    async def _sync_servers(self, principal: str) -> None:
        """Tells servers what a principal's holders want, until they know, and nothing else."""
        pause = 1.0
        while True:
            wishes, subscriptions = self._present_wishes(principal), self._subscriptions[principal]
            for server, uri in subscriptions - wishes:
                subscriptions.discard((server, uri))
                self._upstreams.unsubscribe(server, principal, uri)
            missing = wishes - subscriptions
            if not missing:
                del self._sync_tasks[principal]
                return
            if not all([await self._subscribe(principal, server, uri) for server, uri in missing]):
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._linger)

    async def _subscribe(self, principal: str, server: str, uri: str) -> bool:
        try:
            await self._upstreams.subscribe(server, principal, uri, self._linger)
        except UpstreamRefused:
            for holder in self._holders_of(principal):  # the resource is not there any more
                holder.resources.discard((server, uri))
        except GatewayError as error:
            log.info("wish_waits", server=server, error=error.code)
            return False
        else:
            self._subscriptions[principal].add((server, uri))
        return True


def reaches(level: object, lowest: str | None) -> bool:
    """Whether a message of this level is for a client that reads logs from `lowest` on."""
    return lowest is None or RANK.get(str(level), len(LEVELS)) >= RANK.get(lowest, 0)
