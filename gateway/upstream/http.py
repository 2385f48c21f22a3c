"""One upstream over streamable HTTP, thin: a request is one POST, answered as JSON or as events.

Connections, address checks and TLS belong to the function handed in (`Open`), so there is one way
out. Up to 2025-11-25 a session id ties requests together: when the upstream forgot it (404) the
session is gone and whoever holds it meets the upstream anew. From 2026-07-28 nothing is kept.

Only configured headers and credentials are sent, never those of a client.

Server-sent events out of a byte stream, as the protocol's answers use them.

Fed with chunks as they come; gives whole events. An event that outgrows the bound is an error:
whoever sends it may not make us hold it.

Reading what an upstream answers over HTTP: a head, then JSON or events, all within bounds.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
import structlog

from gateway.errors import GatewayError, UpstreamFailed
from gateway.model import NO_TLS_FILES, TlsFiles
from gateway.upstream.protocol import (
    ACKNOWLEDGED,
    ASKED_ELSEWHERE,
    GREETING,
    INTERACTIVE,
    LISTEN_FILTER,
    LOGGED,
    METHOD_NOT_FOUND,
    NO_HOOKS,
    UNSUPPORTED_VERSION,
    Era,
    HeaderMarks,
    Holds,
    Hooks,
    Message,
    Notice,
    NotOffered,
    Peer,
    RpcFailed,
    SessionGone,
    Spoken,
    answer,
    broken,
    encoded,
    negotiate,
    outcome,
    passed_on,
    request_message,
    routing_headers,
    settle,
    timed_out,
    unreachable,
    within,
)


class EventTooLarge(Exception):
    """One event holds more than the reader may keep."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its data, and what the stream said of itself up to here."""

    data: bytes
    id: str = ""
    retry_ms: int | None = None


class EventReader:
    """Turns chunks into events; keeps what is not complete yet."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._id = ""
        self._retry_ms: int | None = None
        self._after_cr = False

    @property
    def held(self) -> int:
        """How much of an event that is not complete is kept."""
        return len(self._rest) + self._size

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that this chunk completes."""
        if not chunk:
            return
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._after_cr = chunk[-1:] == b"\r"
        self._rest += chunk
        if self.held > self._max_bytes + len(chunk):
            raise EventTooLarge
        if b"\n" not in chunk and b"\r" not in chunk:
            return
        text = bytes(self._rest).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            if line:
                self._take(line)
            elif self._data or self._id or self._retry_ms is not None:
                yield self._finished()

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value)
            if self._size > self._max_bytes:
                raise EventTooLarge
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self._retry_ms = int(value)

    def _finished(self) -> Event:
        event = Event(b"\n".join(self._data), self._id, self._retry_ms)
        self._data, self._size, self._id, self._retry_ms = [], 0, "", None
        return event


Headers = Sequence[tuple[str, str]]
MAX_REFUSAL_BYTES = 65_536
MAX_CONTAINERS = 250_000  # read in some 30 ms; 8 MB of nothing else would take half a second


class Streamed(Protocol):
    """An answer whose body is still to come."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...  # names in lower case
    @property
    def chunks(self) -> AsyncIterator[bytes]: ...


class Open(Protocol):
    """The way out: one exchange, up to the answer's head within `deadline` seconds."""

    def __call__(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes | None,
        deadline: float,
        tls: TlsFiles = NO_TLS_FILES,
    ) -> AbstractAsyncContextManager[Streamed]: ...


def header(streamed: Streamed, name: str) -> str:
    """The first header of this name, in lower case; "" without one."""
    return next((value for key, value in streamed.headers if key == name), "")


def media_type(streamed: Streamed) -> str:
    """What the answer's body is, without parameters."""
    return header(streamed, "content-type").partition(";")[0].strip().lower()


async def events(
    streamed: Streamed, max_bytes: int, upstream: str, holds: Holds | None = None
) -> AsyncIterator[Event]:
    """The events of a stream as they come."""
    reader = EventReader(max_bytes)
    try:
        async for chunk in streamed.chunks:
            for event in reader.feed(chunk):
                yield event
            if holds is not None and not await holds(reader.held):
                raise EventTooLarge
    except EventTooLarge:
        raise too_large(upstream, max_bytes) from None


async def whole_body(
    streamed: Streamed, max_bytes: int, upstream: str, holds: Holds | None = None
) -> bytes:
    """A body of known bounds."""
    parts, size = [], 0
    async for chunk in streamed.chunks:
        size += len(chunk)
        if size > max_bytes or (holds is not None and not await holds(size)):
            raise too_large(upstream, max_bytes)
        parts.append(chunk)
    return b"".join(parts)


def message_in(data: bytes, upstream: str) -> Message:
    """The JSON-RPC message that some bytes hold."""
    if is_intricate(data):
        raise too_large(upstream, MAX_CONTAINERS, "lists and objects")
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        message = None
    if not isinstance(message, dict):
        raise broken(upstream, "sent something that is not a JSON-RPC message")
    return message


async def refusal(streamed: Streamed, upstream: str, *, in_session: bool) -> Exception:
    """What an answer other than 200 means."""
    try:
        body = await whole_body(streamed, MAX_REFUSAL_BYTES, upstream)
    except UpstreamFailed:
        body = b""
    status = streamed.status
    if in_session and _session_unknown(status, body):
        return SessionGone()
    if (error := _rpc_error(body)) is not None:
        return RpcFailed(upstream, error)
    hint = "Check the connection's auth and headers." if status in (401, 403) else ""
    return broken(upstream, f"answered with HTTP status {status}", status=status, hint=hint)


def too_large(upstream: str, most: int, unit: str = "bytes") -> UpstreamFailed:
    """The answer outgrew its bound."""
    return broken(upstream, f"sent an answer of more than {most} {unit}")


def is_intricate(data: bytes) -> bool:
    """Whether reading this JSON would hold up everyone else, by a count that takes no time."""
    return len(data) > MAX_CONTAINERS and data.count(b"{") + data.count(b"[") > MAX_CONTAINERS


def _session_unknown(status: int, body: bytes) -> bool:
    return status == 404 or (status == 400 and b"session" in body[:1000].lower())


def _rpc_error(body: bytes) -> dict[str, Any] | None:
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    error = message.get("error") if isinstance(message, dict) else None
    return error if isinstance(error, dict) else None


MAX_RESUMES = 5
RESUME_SECONDS = 1.0
MAX_RESUME_SECONDS = 10.0
LISTEN_SECONDS = 600.0
TELL_SECONDS = 10.0
CLOSE_SECONDS = 2.0
LAST_BYTES_SECONDS = 0.02
MAX_BACKGROUND = 64
NO_STREAM = (200, 400, 404, 405, 406, 501)  # answers to a GET by servers that have no stream

PROTOCOL_HEADER = re.compile(r"accept|content-type|last-event-id|mcp-.*", re.IGNORECASE)

Authorize = Callable[[bool], Awaitable[Headers]]  # True: the last credentials were refused

log = structlog.get_logger(__name__)


class HttpSession:
    """A conversation with one upstream over HTTP."""

    def __init__(
        self,
        name: str,
        url: str,
        headers: Headers,
        *,
        open_: Open,
        authorize: Authorize | None,
        notice: Notice,
        marks: Mapping[str, HeaderMarks],  # by tool, as last listed
        max_bytes: int,
        longest: float,
        offers: Mapping[str, Any],  # to an upstream that is told once a session
    ) -> None:
        self.name = name
        self.peer = GREETING
        self.lost = asyncio.Event()
        self._url = url
        self._fixed = tuple(pair for pair in headers if not PROTOCOL_HEADER.fullmatch(pair[0]))
        self._open = open_
        self._authorize = authorize
        self._notice = notice
        self._marks = marks
        self._max_bytes = max_bytes
        self._longest = longest  # that a request may take while it tells of its progress
        self._offers = offers
        self._session_id: str | None = None
        self._ids = itertools.count(1)
        self._asking: dict[int, Hooks] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def connect(self, remembered: Era | None, seconds: float, spoken: Spoken) -> None:
        """Meets the upstream; afterwards requests can be made."""
        peer = await negotiate(self._exchange, remembered, seconds, spoken, self._offers)
        self.peer = replace(peer, keeps_state=self._session_id is not None)
        if self.peer.era == "handshake":
            await self.notify("notifications/initialized", {})

    async def request(
        self, method: str, params: Mapping[str, Any], *, seconds: float, hooks: Hooks = NO_HOOKS
    ) -> dict[str, Any]:
        """The result of one request."""
        return passed_on(await self._exchange(method, params, self.peer, seconds, hooks))

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Tells the upstream something that has no answer."""
        await self._post_only({"jsonrpc": "2.0", "method": method, "params": params})

    async def listen(
        self, opened: Callable[[], None], wanted: Mapping[str, Any] = LISTEN_FILTER
    ) -> None:
        """Passes the upstream's notices on until its stream ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_SECONDS):  # then anew: a stream may have gone deaf
                if self.peer.era == "modern":
                    await self._listen_post(opened, wanted)
                else:
                    await self._listen_get(opened)

    async def close(self) -> None:
        """Ends the session, if the upstream keeps one; whether it hears that or not."""
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_SECONDS)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._session_id and not self.lost.is_set():
            with suppress(GatewayError):
                head = await self._headers(self.peer)
                async with self._open("DELETE", self._url, head, None, CLOSE_SECONDS):
                    pass
        self.lost.set()

    async def _exchange(
        self,
        method: str,
        params: Mapping[str, Any],
        peer: Peer,
        seconds: float,
        hooks: Hooks = NO_HOOKS,
    ) -> dict[str, Any]:
        request_id = next(self._ids)
        asks_progress = hooks.progress is not None
        message = request_message(
            request_id,
            method,
            params,
            peer,
            progress=asks_progress,
            capabilities=hooks.capabilities,
        )
        if method in INTERACTIVE:
            self._asking[request_id] = hooks
        try:
            return await self._post(message, peer, seconds, hooks)
        except asyncio.CancelledError:
            self._cancelled(request_id, method, peer)
            raise
        except UpstreamFailed as error:
            if error.code == "upstream_timeout":
                self._cancelled(request_id, method, peer)
            raise
        finally:
            self._asking.pop(request_id, None)

    async def _post(
        self, message: Message, peer: Peer, seconds: float, hooks: Hooks
    ) -> dict[str, Any]:
        ends = asyncio.get_running_loop().time() + seconds
        body = encoded(message)
        try:
            return await self._attempt(message, body, peer, ends, hooks)
        except _StaleCredentials:  # not processed: once more, with fresh ones
            return await self._attempt(message, body, peer, ends, hooks, refused=True)

    async def _attempt(
        self,
        message: Message,
        body: bytes,
        peer: Peer,
        ends: float,
        hooks: Hooks,
        refused: bool = False,
    ) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        left = ends - loop.time()
        head = [*await self._headers(peer, refused), *self._routing(message, peer)]
        async with self._open("POST", self._url, head, body, left) as streamed:
            if streamed.status == 401 and self._authorize is not None and not refused:
                raise _StaleCredentials
            try:
                async with asyncio.timeout_at(ends) as limit:
                    hooks = within(hooks, limit, left, self._longest)
                    if message["id"] in self._asking:  # it may also be asked on the other stream
                        self._asking[message["id"]] = hooks
                    return await self._result(streamed, message["method"], peer, hooks)
            except TimeoutError:
                raise timed_out(self.name, loop.time() - ends + left, sent=True) from None

    async def _result(
        self, streamed: Streamed, method: str, peer: Peer, hooks: Hooks
    ) -> dict[str, Any]:
        if streamed.status != 200:
            raise await self._refusal(streamed, peer)
        if method == "initialize":
            self._session_id = header(streamed, "mcp-session-id") or None
        if media_type(streamed) != "text/event-stream":
            return outcome(await self._whole_message(streamed, hooks.holds), self.name)
        async with aclosing(self._run(streamed, peer, hooks.holds)) as messages:
            found = await settle(
                messages, self.name, hooks, reply=self._post_only, notice=self._notice
            )
        if found is None:
            raise unreachable(self.name, "closed the answer's stream early", sent=True)
        await _read_to_end(streamed)
        return found

    async def _run(
        self, streamed: Streamed, peer: Peer, holds: Holds | None
    ) -> AsyncGenerator[Message, None]:
        """The messages of a stream; one that ends early is taken up again where it can be."""
        last = Event(b"")
        async for event in events(streamed, self._max_bytes, self.name, holds):
            last = _merged(last, event)
            if event.data:
                yield message_in(event.data, self.name)
        for _ in range(MAX_RESUMES):
            if not last.id or peer.era == "modern":
                return
            pause = RESUME_SECONDS if last.retry_ms is None else last.retry_ms / 1000
            await asyncio.sleep(min(pause, MAX_RESUME_SECONDS))
            head = [*await self._headers(peer), ("Last-Event-ID", last.id)]
            async with self._open("GET", self._url, head, None, TELL_SECONDS) as again:
                if again.status != 200:
                    return
                async for event in events(again, self._max_bytes, self.name, holds):
                    last = _merged(last, event)
                    if event.data:
                        yield message_in(event.data, self.name)

    async def _refusal(self, streamed: Streamed, peer: Peer) -> Exception:
        error = await refusal(streamed, self.name, in_session=bool(self._session_id))
        other_version = isinstance(error, RpcFailed) and error.rpc_code == UNSUPPORTED_VERSION
        met = bool(peer.version) and peer is self.peer
        return SessionGone() if other_version and met else error

    async def _listen_post(self, opened: Callable[[], None], wanted: Mapping[str, Any]) -> None:
        params = {"notifications": wanted}
        message = request_message(next(self._ids), "subscriptions/listen", params, self.peer)
        head = [*await self._headers(self.peer), *self._routing(message, self.peer)]
        body = encoded(message)
        async with self._open("POST", self._url, head, body, LISTEN_SECONDS) as streamed:
            if streamed.status != 200:
                error = await self._refusal(streamed, self.peer)
                unknown = isinstance(error, RpcFailed) and error.rpc_code == METHOD_NOT_FOUND
                raise NotOffered from error if unknown else error
            if media_type(streamed) != "text/event-stream":
                outcome(await self._whole_message(streamed), self.name)
                raise NotOffered
            await self._hear(streamed, opened)

    async def _listen_get(self, opened: Callable[[], None]) -> None:
        head = [*await self._headers(self.peer, accept="text/event-stream")]
        async with self._open("GET", self._url, head, None, LISTEN_SECONDS) as streamed:
            if streamed.status == 200 and media_type(streamed) == "text/event-stream":
                opened()
                await self._hear(streamed, opened=lambda: None)
            elif self._session_id and streamed.status == 404:
                raise SessionGone
            elif streamed.status in NO_STREAM:
                raise NotOffered
            else:
                status = streamed.status
                raise broken(self.name, f"answered with HTTP status {status}", status=status)

    async def _hear(self, streamed: Streamed, opened: Callable[[], None]) -> None:
        async for event in events(streamed, self._max_bytes, self.name):
            if not event.data:
                continue
            message = message_in(event.data, self.name)
            method, params = message.get("method"), message.get("params")
            if not isinstance(method, str):
                outcome(message, self.name)
                return
            if method == ACKNOWLEDGED:
                opened()
            elif "id" in message:
                self._soon(self._answer(message))
            else:
                self._pass_on(method, params if isinstance(params, dict) else {})

    def _pass_on(self, method: str, params: Mapping[str, Any]) -> None:
        """What is logged while requests run may be about one of them: it is that caller's alone."""
        if method not in (LOGGED, ASKED_ELSEWHERE) or not self._asking:
            self._notice(method, params)
        elif (sole := self._sole()) is not None and sole.notice is not None:
            sole.notice(method, params)

    def _sole(self) -> Hooks | None:
        return next(iter(self._asking.values())) if len(self._asking) == 1 else None

    async def _answer(self, message: Message) -> None:
        """A question outside any request's stream is only put to a caller who is surely meant."""
        sole = self._sole()
        await self._post_only(await answer(message, sole.ask if sole else None))

    async def _post_only(self, message: Message) -> None:
        head, body = await self._headers(self.peer), encoded(message)
        async with self._open("POST", self._url, head, body, TELL_SECONDS) as streamed:
            await _read_to_end(streamed)

    async def _whole_message(self, streamed: Streamed, holds: Holds | None = None) -> Message:
        body = await whole_body(streamed, self._max_bytes, self.name, holds)
        return message_in(body, self.name)

    def _cancelled(self, request_id: int, method: str, peer: Peer) -> None:
        """In the modern era closing the request was the signal; before it takes a notification."""
        if peer.era == "handshake" and method != "initialize":
            params = {"requestId": request_id, "reason": "The caller no longer waits"}
            self._soon(self.notify("notifications/cancelled", params))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._background) >= MAX_BACKGROUND:
            work.close()
            log.warning("upstream_message_dropped", upstream=self.name)
            return
        task = asyncio.create_task(_quietly(work, self.name))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _headers(
        self,
        peer: Peer,
        refused: bool = False,
        accept: str = "application/json, text/event-stream",
    ) -> list[tuple[str, str]]:
        head = [*self._fixed, ("Accept", accept), ("Content-Type", "application/json")]
        if self._authorize is not None:
            head += await self._authorize(refused)
        if peer.version:
            head.append(("MCP-Protocol-Version", peer.version))
            if self._session_id:
                head.append(("Mcp-Session-Id", self._session_id))
        return head

    def _routing(self, message: Message, peer: Peer) -> Headers:
        if peer.era != "modern":
            return ()
        method, params = message["method"], message["params"]
        marks = self._marks.get(params["name"], {}) if method == "tools/call" else {}
        return tuple(routing_headers(method, params, marks).items())


class _StaleCredentials(Exception):
    """The upstream wants other credentials than those that were sent."""


def _merged(last: Event, event: Event) -> Event:
    retry = last.retry_ms if event.retry_ms is None else event.retry_ms
    return Event(b"", event.id or last.id, retry)


async def _read_to_end(streamed: Streamed) -> None:
    """A connection can only be used again once its answer was read to the end."""
    with suppress(GatewayError, TimeoutError):
        async with asyncio.timeout(LAST_BYTES_SECONDS):
            async for _ in streamed.chunks:
                pass


async def _quietly(work: Coroutine[Any, Any, None], name: str) -> None:
    try:
        await work
    except GatewayError as error:
        log.info("upstream_not_told", upstream=name, error=error.message)
