"""Open streams, and who of them is told that its list changed.

A stream is one HTTP response that stays open: the GET stream of the 2025 era or the answer to
`subscriptions/listen` of 2026. For each we remember the digest of its own view. After a change (a
burst counts as one) the digests are compared, and only streams whose own view is another are told,
once. "Changed" carries nothing, so what waits for a slow reader is a single flag; nobody waits for
anybody.

The same pass asks again who the stream's token belongs to. It runs when identity has other settings
and every few seconds, so a stream ends soon after its token, its session or its bundle is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.types import Receive, Send

from gateway.errors import GatewayError, Unauthenticated
from gateway.limits import PING_SECONDS, SEND_SECONDS
from gateway.mcp.surface import Offers, Surface, Told
from gateway.model import Principal
from gateway.policy.view import Scope
from gateway.web.guard import EVENT_STREAM_HEADERS, PING, Fields, Refusal
from gateway.web.identity import Identity

BURST_SECONDS = 0.2
CHECK_SECONDS = 2.0
MAX_STREAMS_PER_PRINCIPAL = 1024
MAX_NOTED = 8192
MAX_NOTICES = 256  # that wait for one slow reader
LISTS = ("prompts", "resources")

_UNCLEAR = ""
Marks = tuple[str, str]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Frames:
    """What a stream says: first of all, when its list changed, and at a deliberate end."""

    first: bytes
    changed: Callable[[str], bytes]  # given the new digest
    last: bytes = b""
    notice: Callable[[str, Mapping[str, Any]], bytes] = lambda method, params: b""


@dataclass(frozen=True, slots=True)
class Wants:
    """What a stream says beside changes of tools, and under which name it holds wishes."""

    holder: str = ""
    prompts: bool = False
    resources: bool = False
    logs: bool = False


TOOLS_ONLY = Wants()


class Stream:
    """One open stream."""

    __slots__ = (
        "_frames",
        "_ping_due",
        "_send",
        "_sender",
        "_task",
        "_notices",
        "alive",
        "changed",
        "digest",
        "ending",
        "fields",
        "marks",
        "principal",
        "said",
        "scope",
        "session",
        "wants",
    )

    def __init__(
        self,
        principal: Principal,
        scope: Scope,
        fields: Fields,
        frames: Frames,
        digest: str,
        session: str | None = None,
        alive: Callable[[], bool] | None = None,
        wants: Wants = TOOLS_ONLY,
    ) -> None:
        self.principal = principal
        self.scope = scope
        self.fields = {name: fields[name] for name in (b"authorization",) if name in fields}
        self.digest = digest  # of the view the client knows of
        self.session = session
        self.alive = alive
        self.changed = False
        self.ending = False
        self.said = time.monotonic()
        self.wants = wants
        self.marks: Marks | None = None  # of the prompts and resources the client knows of
        self._notices: dict[object, bytes] = {}
        self._ping_due = False
        self._frames = frames
        self._send: Send | None = None  # None until the first frame is out
        self._sender: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self, receive: Receive, send: Send) -> None:
        """Serve the stream until the client leaves or `end` is called."""
        self._task = asyncio.current_task()
        assert self._task is not None
        try:
            await send(
                {"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS}
            )
            await send(_chunk(self._frames.first))
            self._send = send
            self._speak()
            while (await receive())["type"] != "http.disconnect":
                pass
        except asyncio.CancelledError:
            if not self.ending or self._task.uncancel() > 0:
                raise
            await self._close(send)
        finally:
            if self._sender is not None:
                self._sender.cancel()

    async def _close(self, send: Send) -> None:
        with contextlib.suppress(TimeoutError):  # it does not read; the connection closes anyway
            async with asyncio.timeout(SEND_SECONDS):
                await send(_chunk(self._frames.last, more=False))

    def tell_changed(self, digest: str) -> None:
        """Say that the list is another now, as soon as the client reads."""
        self.digest = digest
        self.changed = True
        self._speak()

    def tell(self, key: object, method: str, params: Mapping[str, Any]) -> None:
        """Say something; what was said under the same key and is not read yet, counts for both."""
        if key in self._notices or len(self._notices) < MAX_NOTICES:
            self._notices[key] = self._frames.notice(method, params)
            self._speak()

    def ping(self) -> None:
        """Keep the connection alive."""
        self._ping_due = True
        self._speak()

    def end(self) -> None:
        """End the stream from our side."""
        if not self.ending:
            self.ending = True
            if self._task is not None:
                self._task.cancel()

    def _speak(self) -> None:
        if self._send is None or self._sender is not None or self.ending:
            return
        if self.changed or self._ping_due or self._notices:
            self._sender = asyncio.create_task(self._say(self._send))

    async def _say(self, send: Send) -> None:
        try:
            while self.changed or self._ping_due or self._notices:
                async with asyncio.timeout(SEND_SECONDS):
                    await send(_chunk(self._next()))
                self.said = time.monotonic()
        except (TimeoutError, OSError):
            self.end()
        finally:
            self._sender = None

    def _next(self) -> bytes:
        if self.changed:
            self.changed = self._ping_due = False
            return self._frames.changed(self.digest)
        self._ping_due = False
        return self._notices.pop(next(iter(self._notices))) if self._notices else PING


def _chunk(body: bytes, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Streams:
    """All open streams of this process."""

    def __init__(
        self,
        surface: Surface,
        identity: Identity,
        max_per_principal: int = MAX_STREAMS_PER_PRINCIPAL,
        offers: Offers | None = None,
    ) -> None:
        self._surface = surface
        self._identity = identity
        self._offers = offers
        self._max_per_principal = max_per_principal
        self._open: dict[Stream, None] = {}  # the newest last
        self._count: Counter[str] = Counter()
        self._noted: dict[tuple[str, Scope], str] = {}
        self._closing = False
        self._change_pending = False
        self._keeper: asyncio.Task[None] | None = None
        self._passes: set[asyncio.Task[None]] = set()
        self._one_pass = asyncio.Lock()
        self._empty = asyncio.Event()
        self._unsubscribe: tuple[Callable[[], None], ...] = (
            surface.on_change(self._on_change),
            identity.on_change(self.look_again),
        )
        if offers is not None:
            stops = (offers.on_change(self._on_change), offers.on_notice(self._on_notice))
            self._unsubscribe = (*self._unsubscribe, *stops)

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, stream: Stream, receive: Receive, send: Send) -> None:
        """Keep a stream open until either side ends it."""
        name = stream.principal.name
        if self._closing:
            raise Refusal(503, "The gateway is going down", ((b"retry-after", b"1"),))
        if self._count[name] >= self._max_per_principal:
            raise Refusal(429, "Too many open streams", ((b"retry-after", b"30"),))
        self._count[name] += 1
        self._open[stream] = None
        self._empty.clear()
        stream.marks = self._marks(stream.principal, stream.scope)
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        if self._offers is not None:
            self._offers.attend(stream.wants.holder)
        try:
            await stream.run(receive, send)
        finally:
            if self._offers is not None:
                self._offers.leave(stream.wants.holder)
            self._open.pop(stream, None)
            self._count[name] -= 1
            if not self._count[name]:
                del self._count[name]
            if not self._open:
                self._empty.set()

    def note(self, session: str, scope: Scope, digest: str) -> None:
        """Note which list a session has seen or been told of."""
        if len(self._noted) >= MAX_NOTED:
            self._noted.pop(next(iter(self._noted)))
        self._noted[session, scope] = digest

    def noted(self, session: str, scope: Scope) -> str | None:
        """The list a session knows of, as far as this process can tell."""
        return self._noted.get((session, scope))

    def look_again(self) -> None:
        """Something that streams depend on is over: don't wait for the next pass."""
        if self._open:
            self._begin_pass()

    def _on_change(self) -> None:
        if not self._change_pending and self._open:
            self._change_pending = True
            asyncio.get_running_loop().call_later(BURST_SECONDS, self._after_burst)

    def _after_burst(self) -> None:
        self._change_pending = False
        self._begin_pass()

    def _begin_pass(self) -> None:
        task = asyncio.create_task(self._compare())
        self._passes.add(task)
        task.add_done_callback(self._passes.discard)

    async def _keep(self) -> None:
        """Once in a while: keep connections alive, and look whether they may go on."""
        while self._open:
            await asyncio.sleep(CHECK_SECONDS)
            quiet = time.monotonic() - PING_SECONDS
            for stream in [one for one in self._open if one.said <= quiet]:
                stream.ping()
            await self._compare()
        self._keeper = None

    async def _compare(self) -> None:
        """Tell each stream whose view changed, and end each that has no right to one any more."""
        async with self._one_pass:  # an older pass must not put an older digest back
            await self._pass_over(list(reversed(self._open)))

    async def _pass_over(self, streams: list[Stream]) -> None:
        known: dict[tuple[bytes | None, Scope], tuple[str, Marks | None] | None] = {}
        heard: set[str] = set()
        told: set[str] = set()  # a session hears on one stream, its newest, whatever it has open
        for stream in streams:
            key = (stream.fields.get(b"authorization"), stream.scope)
            if key not in known:
                known[key] = await self._look(stream)
                await asyncio.sleep(0)  # many principals: let calls through between their views
            found = known[key]
            if found is None or not _is_alive(stream):
                stream.end()
                continue
            digest, marks = found
            self._tell_lists(stream, marks, heard)
            if digest in (stream.digest, _UNCLEAR) or self._change_pending:
                continue
            elif stream.session in told:
                stream.digest = digest
            else:
                stream.tell_changed(digest)
                if stream.session is not None:
                    told.add(stream.session)
                    self.note(stream.session, stream.scope, digest)

    def _tell_lists(self, stream: Stream, marks: Marks | None, heard: set[str]) -> None:
        """Tell of other prompts and resources: a session on one stream, as of tools."""
        if marks is None or stream.marks is None or marks == stream.marks or self._change_pending:
            return
        before, stream.marks = stream.marks, marks
        wanted = (stream.wants.prompts, stream.wants.resources)
        for kind, old, new, wants in zip(LISTS, before, marks, wanted, strict=True):
            if old != new and wants and f"{kind} {stream.session}" not in heard:
                stream.tell(kind, f"notifications/{kind}/list_changed", {})
                if stream.session is not None:
                    heard.add(f"{kind} {stream.session}")

    def _on_notice(self, told: Told) -> None:
        assert self._offers is not None
        done: set[str] = set()
        for stream in reversed(self._open):
            holder = stream.wants.holder
            if holder in done or not (stream.wants.logs or "uri" in told.params):
                continue
            if self._offers.concerns(told, stream.principal, stream.scope, holder):
                done.add(holder)
                key = told.params.get("uri") or object()
                stream.tell(key, told.method, told.params)

    def _marks(self, principal: Principal, scope: Scope) -> Marks | None:
        return None if self._offers is None else self._offers.marks(principal, scope)

    async def _look(self, stream: Stream) -> tuple[str, Marks | None] | None:
        """What the stream's token sees now; None: it has no right to see anything."""
        try:
            principal = await self._identity.identify(stream.fields)
            if principal.name != stream.principal.name:
                return None
            digest = self._surface.view(principal, stream.scope).digest
            return digest, self._marks(principal, stream.scope)
        except (Unauthenticated, GatewayError):
            return None
        except Exception as error:  # one stream's trouble must not stop the others' pass
            _log.error("stream_check_failed", error=type(error).__name__)
            return _UNCLEAR, None

    def accept_no_more(self) -> None:
        """Refuse new streams; those that are open go on."""
        self._closing = True

    async def close(self, seconds: float) -> None:
        """End all streams and wait for them."""
        self.accept_no_more()
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = ()
        for stream in list(self._open):
            stream.end()
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._empty.wait()
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None


def _is_alive(stream: Stream) -> bool:
    try:
        return stream.alive is None or stream.alive()
    except Exception as error:  # as above: what can't be found out now will be later
        _log.error("stream_check_failed", error=type(error).__name__)
        return True
