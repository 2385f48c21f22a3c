"""One upstream over the standard streams of a child: a message a line, in both directions.

All requests share one pipe, so the reader never waits for anybody: it puts each message into the
bounded queue of the request it belongs to, and the caller works through its own queue. The end of
the child's output is the end of the session; every request under way fails at once.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import structlog

from gateway.connectors.upstream_answers import MAX_CONTAINERS, is_intricate, too_large
from gateway.connectors.upstream_child import READ_BYTES, Child, start_child
from gateway.connectors.upstream_rpc import (
    ACKNOWLEDGED,
    ASKED_ELSEWHERE,
    GREETING,
    INTERACTIVE,
    LISTEN_FILTER,
    LOGGED,
    METHOD_NOT_FOUND,
    NO_HOOKS,
    Ask,
    Era,
    Hooks,
    Message,
    Notice,
    NotOffered,
    Peer,
    RpcFailed,
    Spoken,
    answer,
    encoded,
    negotiate,
    passed_on,
    request_message,
    settle,
    timed_out,
    unreachable,
    within,
)
from gateway.errors import GatewayError, UpstreamFailed

MAX_QUEUED = 64  # messages of one request that its caller has not seen yet
MAX_UNSENT_BYTES = 16 * 1024 * 1024
MAX_BACKGROUND = 64
LISTEN_SECONDS = 600.0
ENDS_OF_LINE = 256
LAST_WORDS_SECONDS = 0.2  # for what the child wrote before it exited

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Pending:
    """One request under way: what came for it, and who may be asked on its behalf."""

    ask: Ask | None
    interactive: bool
    inbox: asyncio.Queue[Message | GatewayError] = field(
        default_factory=lambda: asyncio.Queue(MAX_QUEUED + 1)
    )

    def put(self, item: Message | GatewayError, *, must: bool) -> None:
        """Progress that its caller is too slow for is dropped; an answer always has room."""
        if self.inbox.qsize() < MAX_QUEUED or (must and not self.inbox.full()):
            self.inbox.put_nowait(item)


class StdioSession:
    """A conversation with one child."""

    def __init__(
        self,
        name: str,
        command: str,
        args: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        *,
        notice: Notice,
        max_bytes: int,
        longest: float,
        offers: Mapping[str, Any],  # to an upstream that is told once a session
    ) -> None:
        self.name = name
        self.peer = GREETING
        self.lost = asyncio.Event()
        self._start = (name, command, tuple(args), dict(env), cwd)
        self._notice = notice
        self._max_bytes = max_bytes
        self._longest = longest  # that a request may take while it tells of its progress
        self._offers = offers
        self._child: Child | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def connect(self, remembered: Era | None, seconds: float, spoken: Spoken) -> None:
        """Starts the child and meets it; afterwards requests can be made."""
        self._child = await start_child(*self._start)
        self._reader = asyncio.create_task(self._read(self._child))
        peer = await negotiate(self._exchange, remembered, seconds, spoken, self._offers)
        self.peer = replace(peer, keeps_state=True)
        if self.peer.era == "handshake":
            await self.notify("notifications/initialized", {})

    async def request(
        self, method: str, params: Mapping[str, Any], *, seconds: float, hooks: Hooks = NO_HOOKS
    ) -> dict[str, Any]:
        """The result of one request."""
        return passed_on(await self._exchange(method, params, self.peer, seconds, hooks))

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Tells the upstream something that has no answer."""
        await self._write({"jsonrpc": "2.0", "method": method, "params": params})

    async def listen(
        self, opened: Callable[[], None], wanted: Mapping[str, Any] = LISTEN_FILTER
    ) -> None:
        """Asks a modern upstream for its notices; an older one sends them without being asked."""
        if self.peer.era != "modern":
            raise NotOffered
        params = {"notifications": wanted}
        hooks = Hooks(notice=lambda method, params: opened())
        try:
            await self._exchange("subscriptions/listen", params, self.peer, LISTEN_SECONDS, hooks)
        except RpcFailed as error:
            if error.rpc_code == METHOD_NOT_FOUND:
                raise NotOffered from error
            raise
        except UpstreamFailed as error:
            if error.code != "upstream_timeout":
                raise

    async def close(self) -> None:
        """Ends the child, everything it started, and every request under way."""
        self.lost.set()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._child is not None:
            await self._child.end()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

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
        pending = self._pending[request_id] = _Pending(None, method in INTERACTIVE)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(seconds) as limit:
                hooks = within(hooks, limit, seconds, self._longest)
                pending.ask = hooks.ask
                await self._write(message)
                async with aclosing(_inbox(pending)) as messages:
                    found = await settle(
                        messages, self.name, hooks, reply=self._write, notice=self._notice
                    )
            assert found is not None  # an inbox only ends with an answer or an error
            return found
        except TimeoutError:
            self._cancelled(request_id, method)
            taken = asyncio.get_running_loop().time() - began
            raise timed_out(self.name, taken, sent=True) from None
        except asyncio.CancelledError:
            self._cancelled(request_id, method)
            raise
        finally:
            del self._pending[request_id]

    async def _write(self, message: Message) -> None:
        pipe = self._put(message)
        try:
            await pipe.drain()
        except OSError as error:
            raise unreachable(self.name, "closed its input", sent=True) from error

    def _put(self, message: Message) -> asyncio.StreamWriter:
        if self._child is None or self.lost.is_set():
            raise unreachable(self.name, "is not running", sent=False)
        pipe = self._child.input
        if pipe.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            raise unreachable(self.name, "does not read its input", sent=False)
        try:
            pipe.write(encoded(message) + b"\n")
        except (OSError, RuntimeError) as error:  # asyncio's and uvloop's word for a closed pipe
            raise unreachable(self.name, "closed its input", sent=False) from error
        return pipe

    def _cancelled(self, request_id: int, method: str) -> None:
        if method not in ("initialize", "server/discover"):
            params = {"requestId": request_id, "reason": "The caller no longer waits"}
            with suppress(GatewayError):
                self._put({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def _read(self, child: Child) -> None:
        """Takes in what the child says until its output ends, or shortly after its own end."""
        reading = asyncio.create_task(self._take_lines(child.output))
        exited = asyncio.create_task(child.exited.wait())
        try:
            await asyncio.wait((reading, exited), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((reading,), timeout=LAST_WORDS_SECONDS)
        finally:
            reading.cancel()
            exited.cancel()
            await asyncio.gather(reading, exited, return_exceptions=True)
            self.lost.set()
            ended = unreachable(self.name, "ended before it answered", sent=True)
            for pending in self._pending.values():
                pending.put(ended, must=True)

    async def _take_lines(self, output: asyncio.StreamReader) -> None:
        lines = _Lines(self._max_bytes)
        while chunk := await output.read(READ_BYTES):
            for line in lines.feed(chunk):
                self._take(line)

    def _take(self, line: bytes | _Oversized) -> None:
        if isinstance(line, _Oversized):
            pending = self._pending.get(line.request_id)
            if pending is not None:
                pending.put(too_large(self.name, line.most, line.unit), must=True)
            log.warning("upstream_line_too_large", upstream=self.name)
            return
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            message = None
        if isinstance(message, dict):
            self._dispatch(message)
        elif line.strip():
            log.info("upstream_line_ignored", upstream=self.name, bytes=len(line))

    def _dispatch(self, message: Message) -> None:
        method, params = message.get("method"), message.get("params")
        if not isinstance(method, str):
            self._deliver(message.get("id"), message, must=True)
        elif "id" in message:
            self._soon(message)
        elif method == "notifications/progress":
            token = params.get("progressToken") if isinstance(params, dict) else None
            self._deliver(token, message, must=False)
        elif method == ACKNOWLEDGED:
            self._deliver(_subscription(params), message, must=False)
        elif method in (LOGGED, ASKED_ELSEWHERE) and (asking := self._interactive()):
            # It names no request: it is passed to a caller who is surely meant, or to nobody.
            if len(asking) == 1:
                self._pending[asking[0]].put(message, must=False)
        else:
            self._notice(method, params if isinstance(params, dict) else {})

    def _interactive(self) -> list[int]:
        return [id for id, item in self._pending.items() if item.interactive]

    def _deliver(self, request_id: Any, message: Message, *, must: bool) -> None:
        pending = self._pending.get(request_id) if isinstance(request_id, int) else None
        if pending is not None:
            pending.put(message, must=must)

    def _soon(self, message: Message) -> None:
        """Answers a question of the child without holding up the reader."""
        if len(self._background) >= MAX_BACKGROUND:
            log.warning("upstream_message_dropped", upstream=self.name)
            return
        task = asyncio.create_task(self._respond(message))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _respond(self, message: Message) -> None:
        """A question names no request, so it is only put to a caller who is surely meant."""
        asking = self._interactive()
        ask = self._pending[asking[0]].ask if len(asking) == 1 else None
        response = await answer(message, ask)
        with suppress(GatewayError):
            await self._write(response)


def _subscription(params: Any) -> Any:
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get("io.modelcontextprotocol/subscriptionId") if isinstance(meta, dict) else None


async def _inbox(pending: _Pending) -> AsyncGenerator[Message, None]:
    while True:
        item = await pending.inbox.get()
        if isinstance(item, GatewayError):
            raise item
        yield item


@dataclass(frozen=True, slots=True)
class _Oversized:
    """A line that is too large to be read, and the request it seems to answer."""

    request_id: int
    most: int
    unit: str = "bytes"


class _Lines:
    """Turns chunks into lines; of one that is too long only its ends are kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | _Oversized]:
        """The lines that this chunk completes."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for piece in ended:
            self._keep(piece)
            lines.append(self._line())
        self._keep(rest)
        return lines

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        self._parts.append(piece)
        if self._size > self._max_bytes:
            whole = b"".join(self._parts)
            self._parts = [whole[:ENDS_OF_LINE], whole[ENDS_OF_LINE:][-ENDS_OF_LINE:]]

    def _line(self) -> bytes | _Oversized:
        parts, size = self._parts, self._size
        self._parts, self._size = [], 0
        if size > self._max_bytes:
            return _Oversized(_request_id(parts[0], parts[-1]), self._max_bytes)
        line = b"".join(parts)
        if is_intricate(line):
            request_id = _request_id(line[:ENDS_OF_LINE], line[-ENDS_OF_LINE:])
            return _Oversized(request_id, MAX_CONTAINERS, "lists and objects")
        return line


_ID_FIRST = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,15})\s*,')
_ID_LAST = re.compile(rb'\}\s*,(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(\d{1,15})\s*\}\s*$')


def _request_id(head: bytes, tail: bytes) -> int:
    """SDKs write the id before or after the result; -1 where it is at neither end."""
    found = _ID_FIRST.match(head) or _ID_LAST.search(tail)
    return int(found[1]) if found else -1
