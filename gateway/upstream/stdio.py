"""One upstream over the standard streams of a child: a message a line, in both directions.

All requests share one pipe, so the reader never waits for anybody: it puts each message into the
bounded queue of the request it belongs to, and the caller works through its own queue. The end of
the child's output is the end of the session; every request under way fails at once.

A child process that speaks over its standard streams, and its certain end.

It runs in its own process group, so that whatever it starts ends with it, holds its three streams
and nothing else of ours, and sees only the environment it was given and a few basics. Closing
follows the protocol: its input is closed, then SIGTERM, then SIGKILL, each after a grace; what it
left behind ends the same way. What it writes to standard error becomes log lines, bounded in length
and number, without the secrets it was given.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson
import structlog
import uvloop

from gateway.errors import GatewayError, UpstreamFailed
from gateway.text import visible
from gateway.upstream.http import MAX_CONTAINERS, is_intricate, too_large
from gateway.upstream.protocol import (
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

BASICS = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
READ_BYTES = 65_536
GRACE_SECONDS = 1.0
STRAY_SECONDS = 0.3  # for what the child left behind; where nobody reaps, it looks alive
GROUP_POLL_SECONDS = 0.01
MAX_LOG_CHARS = 500
MAX_LOG_LINES = 50  # in each span of LOG_SPAN_SECONDS
LOG_SPAN_SECONDS = 10.0
MIN_SECRET_CHARS = 6
LAST_STREAM = 2

log = structlog.get_logger(__name__)


class Child:
    """A running child: its input, its output, and its end."""

    def __init__(self, name: str, running: _Running, secrets: Sequence[str]) -> None:
        process = asyncio.subprocess.Process(running.process, running, asyncio.get_running_loop())
        assert process.stdin and process.stdout and process.stderr
        self.pid = process.pid
        self.input = process.stdin
        self.output = process.stdout
        self.exited = running.exited
        self._transport = running.process
        self._errors = asyncio.create_task(_log_lines(name, process.stderr, secrets))
        self._ending: asyncio.Task[None] | None = None

    async def end(self) -> None:
        """Ends the child and everything it started; a cancelled caller does not stop that."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        self.input.close()
        if not await self._gone(GRACE_SECONDS, group=False):
            _signal_group(self.pid, signal.SIGTERM)
            await self._gone(GRACE_SECONDS, group=False)
        elif _signal_group(self.pid, signal.SIGTERM):
            await self._gone(STRAY_SECONDS, group=True)
        _signal_group(self.pid, signal.SIGKILL)
        await self._gone(GRACE_SECONDS, group=False)
        await self._gone(STRAY_SECONDS, group=True)
        self._errors.cancel()
        await asyncio.gather(self._errors, return_exceptions=True)
        self._transport.close()  # else its pipes stay open as long as a stray descendant has them

    async def _gone(self, seconds: float, *, group: bool) -> bool:
        """Whether the child, and its group if asked, ended within some seconds."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while not self.exited.is_set() or (group and _signal_group(self.pid, 0)):
            if loop.time() >= ends:
                return False
            await asyncio.sleep(GROUP_POLL_SECONDS)
        return True


class _Running(asyncio.subprocess.SubprocessStreamProtocol):
    """Says when the child itself exited: its output may stay open in what it has started."""

    def __init__(self) -> None:
        super().__init__(limit=READ_BYTES, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.process = cast(asyncio.SubprocessTransport, transport)  # by its protocol's contract
        super().connection_made(transport)

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


async def start_child(
    name: str, command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None
) -> Child:
    """Starts a command; an `upstream_unreachable` says why it can't be."""
    basics = {key: os.environ[key] for key in BASICS if key in os.environ}
    try:
        _, running = await asyncio.get_running_loop().subprocess_exec(
            _Running,
            command,
            *args,
            env={**basics, **env},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=streams_only(),
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no command"
        raise unreachable(name, f"can't be started: {reason}", sent=False) from error
    return Child(name, running, [v for v in env.values() if len(v) >= MIN_SECRET_CHARS])


def streams_only() -> Callable[[], None] | None:
    """What runs in a child before its program, so that it holds its three streams and no more.

    asyncio's own loop sees to that itself. uvloop closes nothing for a child, not even its own
    copies of these streams.
    """
    return _keep_streams_only if isinstance(asyncio.get_running_loop(), uvloop.Loop) else None


def _keep_streams_only() -> None:
    """Marks all else to be closed as the program starts: by now that may still be needed."""
    for name in os.listdir("/dev/fd"):
        if int(name) > LAST_STREAM:
            with suppress(OSError):  # the list itself is open no more
                os.set_inheritable(int(name), False)


def _signal_group(group: int, how: int) -> bool:
    """Whether the group still had anyone to signal."""
    try:
        os.killpg(group, how)
    except (ProcessLookupError, PermissionError):
        return False
    return True


async def _log_lines(name: str, errors: asyncio.StreamReader, secrets: Sequence[str]) -> None:
    loop = asyncio.get_running_loop()
    span_ends, logged, rest = 0.0, 0, b""
    while chunk := await errors.read(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[:READ_BYTES]
        if loop.time() >= span_ends:
            span_ends, logged = loop.time() + LOG_SPAN_SECONDS, 0
        for line in lines[: MAX_LOG_LINES - logged]:
            log.info("upstream_stderr", upstream=name, line=_loggable(line, secrets))
        logged = min(MAX_LOG_LINES, logged + len(lines))


def _loggable(line: bytes, secrets: Sequence[str]) -> str:
    text = line.decode("utf-8", "replace")
    for secret in secrets:
        text = text.replace(secret, "***")
    return visible(text)[:MAX_LOG_CHARS]


MAX_QUEUED = 64  # messages of one request that its caller has not seen yet
MAX_UNSENT_BYTES = 16 * 1024 * 1024
MAX_BACKGROUND = 64
LISTEN_SECONDS = 600.0
ENDS_OF_LINE = 256
LAST_WORDS_SECONDS = 0.2  # for what the child wrote before it exited


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
