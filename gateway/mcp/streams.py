"""What is said to clients on streams that stay open.

A stream is the GET stream of the 2025 era or the answer to `subscriptions/listen` of 2026. For each
the gateway remembers which lists its client knows of. After a change (a burst counts as one) these
are compared with what there is now, and only streams whose own lists are other ones are told, once:
"changed" carries nothing, so a slow reader has one such word waiting. The same pass asks again who
the stream's token belongs to, so a stream ends soon after its token, its session or its bundle is
gone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from cachetools import LRUCache
from starlette.exceptions import HTTPException
from starlette.types import Receive, Send

from gateway.errors import GatewayError, Unauthenticated
from gateway.limits import MAX_QUEUED, MAX_SESSIONS, MOMENT_SECONDS, SETTLE_SECONDS
from gateway.mcp.wishes import Notice, Wishes
from gateway.model import Principal, Scope
from gateway.policy.view import offering
from gateway.store.cluster import heard_within
from gateway.web.gateway import Gateway
from gateway.web.guard import EventStream, Say
from gateway.web.identity import Identity

log = structlog.get_logger(__name__)


# What changes exactly when a view's prompts, or its resources, may have changed.
Marks = Callable[[Principal, Scope], Mapping[str, str]]
Frame = Callable[[str, Mapping[str, Any], str | None], bytes]  # of a method, params, event id


@dataclass(eq=False, slots=True)
class ClientStream:
    """One open stream: whose it is, what its client knows of and wants to hear of."""

    principal: Principal
    scope: Scope
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
        if key in self._unsaid or len(self._unsaid) < MAX_QUEUED:
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

    def __init__(
        self,
        gateway: Gateway,
        identity: Identity,
        wishes: Wishes,
        marks: Marks,
        max_per_principal: int,
    ) -> None:
        self._gateway = gateway
        self._identity = identity
        self._wishes = wishes
        self._marks = marks
        self._max_per_principal = max_per_principal
        self._open: dict[ClientStream, None] = {}  # the newest last
        self._count: Counter[str] = Counter()
        self._noted: LRUCache[tuple[str, Scope], str] = LRUCache(MAX_SESSIONS)
        self._closing = False
        self._woken = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        gateway.on_change(self._woken.set)
        identity.on_change(self._woken.set)

    def __len__(self) -> int:
        return len(self._open)

    def lists(self, principal: Principal, scope: Scope) -> dict[str, str]:
        """What tells one list from another, by kind: it changes exactly when the list may have."""
        tools = self._gateway.view(principal, scope).digest
        return {"tools": tools, **self._marks(principal, scope)}

    async def serve(self, stream: ClientStream, receive: Receive, send: Send) -> None:
        """Keeps a stream open until either side ends it."""
        name = stream.principal.name
        if self._closing:
            raise HTTPException(503, "The gateway is going down", {"retry-after": "1"})
        if self._count[name] >= self._max_per_principal:
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

    def note(self, session: str, scope: Scope, list_id: str) -> None:
        """Notes which list of tools a session has seen or been told of."""
        self._noted[session, scope] = list_id

    def noted(self, session: str, scope: Scope) -> str | None:
        """The list of tools a session knows of, as far as this process can tell."""
        return self._noted.get((session, scope))

    def look_again(self) -> None:
        """Something that streams depend on is over: they are looked at without delay."""
        self._woken.set()

    async def _keep(self) -> None:
        """Compares after each burst of changes, and once in a while for what nobody tells of."""
        while self._open:
            if await heard_within(self._woken, MOMENT_SECONDS):
                await asyncio.sleep(SETTLE_SECONDS)
                self._woken.clear()
            await self._compare()

    async def _compare(self) -> None:
        """Tells each stream whose lists changed, and ends each that has no right to one any more.

        A session hears on one stream, its newest, whatever it has open.
        """
        found: dict[tuple[bytes | None, Scope], dict[str, str] | None] = {}
        told: set[tuple[str, str]] = set()
        for stream in list(reversed(self._open)):
            key = (stream.authorization, stream.scope)
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
                    self._tell_changed(stream, kind, list_id)

    def _tell_changed(self, stream: ClientStream, kind: str, list_id: str) -> None:
        stream.tell_changed(kind, list_id)
        if kind == "tools":
            self.note(stream.holder, stream.scope, list_id)

    async def _look(self, stream: ClientStream) -> dict[str, str] | None:
        """The lists that the stream's token sees now; None: it has no right to see any."""
        shown = stream.authorization
        try:
            fields = {b"authorization": shown} if shown else {}
            principal = await self._identity.identify(fields, stream.scope.address)
            same = principal.name == stream.principal.name
            return self.lists(principal, stream.scope) if same else None
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
        principal, snapshot = stream.principal, self._gateway.snapshot
        if notice.principal not in (None, principal.name):
            return False
        if not self._wishes.wants(stream.holder, notice):
            return False
        view = self._gateway.view_of(snapshot, principal, stream.scope)
        return any(s.name == notice.server for s in offering(snapshot, principal, view).servers)

    def close(self) -> None:
        """Ends all streams, and takes no new ones."""
        self._closing = True
        for stream in self._open:
            stream.end()
        if self._keeper is not None:
            self._keeper.cancel()
