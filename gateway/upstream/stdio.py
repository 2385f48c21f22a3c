"""One upstream over the standard streams of a child: a message a line, in both directions.

All requests share one pipe, so the reader never waits for a caller: it puts each message into the
bounded queue of the request it belongs to, and the caller works through its own queue. The end of
the child's output is the end of the session; every request under way fails at once. The child runs
in its own process group, so that whatever it starts ends with it, holds its three streams and
nothing else of ours, and sees only the environment it was given and a few basics. Closing follows
the protocol: its input is closed, then SIGTERM, then SIGKILL, each after a grace.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any, cast

import structlog

from gateway import limits
from gateway.errors import GatewayError, UpstreamFailed
from gateway.naming import visible
from gateway.system import signal_group, signal_number
from gateway.upstream import protocol
from gateway.upstream.protocol import Hooks, Peer, PeerEra, RpcMessage, mapping, unreachable_error
from gateway.upstream.session import ACKNOWLEDGED, Session, Upstream, end_tasks, wait_for_event

BASICS = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")

log = structlog.get_logger(__name__)


class StdioSession(Session):
    """A conversation with one child."""

    _child: Child | None = None
    _reader: asyncio.Task[None] | None = None

    async def connect(self, last_era: PeerEra | None, seconds: float) -> None:
        """Starts the child and meets it; afterwards requests can be made."""
        self._inboxes: dict[Any, asyncio.Queue[RpcMessage | GatewayError]] = {}  # by request
        self._child = await start_child(self._upstream)
        self._reader = asyncio.create_task(self._read_output(self._child))
        await super().connect(last_era, seconds)

    async def close(self) -> None:
        """Ends the child, everything it started, and every request under way."""
        await super().close()
        if self._child is not None:
            await self._child.end()
        if self._reader is not None:
            await end_tasks(self._reader)

    def _keeps_state(self) -> bool:
        return True

    async def _answer(
        self, message: RpcMessage, peer: Peer, hooks: Hooks, limit: asyncio.Timeout, ends: float
    ) -> dict[str, Any]:
        limit.reschedule(ends)
        inbox = self._inboxes[message["id"]] = asyncio.Queue()
        try:
            await self._send(message)
            async with aclosing(_read_inbox(inbox)) as messages:
                return await self._read_result(messages, hooks)
        finally:
            del self._inboxes[message["id"]]

    async def _send(self, message: RpcMessage) -> None:
        if self._child is None or self.lost.is_set():
            raise unreachable_error(self.name, "is not running", sent=False)
        pipe = self._child.input
        if pipe.transport.get_write_buffer_size() > limits.MAX_MESSAGE_BYTES:
            raise unreachable_error(self.name, "does not read its input", sent=False)
        try:
            pipe.write(protocol.encode_message(message) + b"\n")
        except (OSError, RuntimeError) as error:  # asyncio's and uvloop's word for a closed pipe
            raise unreachable_error(self.name, "closed its input", sent=False) from error
        try:
            await pipe.drain()
        except OSError as error:
            raise unreachable_error(self.name, "closed its input", sent=True) from error

    async def _read_output(self, child: Child) -> None:
        """Takes in what the child says until its output ends, or shortly after the child exits."""
        line_reader = asyncio.create_task(self._take_lines(child.output))
        exit_waiter = asyncio.create_task(child.exited.wait())
        try:
            await asyncio.wait((line_reader, exit_waiter), return_when=asyncio.FIRST_COMPLETED)
            # What it wrote before it exited is still read; a process it started may hold the pipe.
            await asyncio.wait((line_reader,), timeout=limits.REST_SECONDS / 5)
        finally:
            await end_tasks(line_reader, exit_waiter)
            self.lost.set()
            for request_id in self._inboxes:
                error = unreachable_error(self.name, "ended before it answered", sent=True)
                self._deliver(request_id, error, limits.MAX_PENDING + 2)

    async def _take_lines(self, output: asyncio.StreamReader) -> None:
        line, size = bytearray(), 0
        while chunk := await output.read(limits.STEP_BYTES):
            for number, piece in enumerate(chunk.split(b"\n")):
                if number:  # a line has ended before this piece
                    self._take_line(bytes(line), size)
                    line, size = bytearray(), 0
                line += piece
                size += len(piece)
                if len(line) > limits.MAX_MESSAGE_BYTES:
                    del line[256:-256]  # only its ends are kept: they say which request it answers

    def _take_line(self, line: bytes, size: int) -> None:
        try:
            if size > limits.MAX_MESSAGE_BYTES:
                raise protocol.too_large_error(self.name, limits.MAX_MESSAGE_BYTES)
            if line.strip():
                self._take_message(protocol.read_message(line, self.name))
        except UpstreamFailed as error:
            # SDKs write the id of a request before or after its result.
            found = _ID_FIRST.match(line) or _ID_LAST.search(line[-256:])
            self._deliver(int(found[1]) if found else None, error, limits.MAX_PENDING + 1)
            log.info("upstream_line_ignored", upstream=self.name, reason=error.message)

    def _take_message(self, message: RpcMessage) -> None:
        method, params = message.get("method"), mapping(message.get("params"))
        if not isinstance(method, str):
            self._deliver(message.get("id"), message, limits.MAX_PENDING + 1)
        elif method == "notifications/progress":
            self._deliver(params.get("progressToken"), message, limits.MAX_PENDING)
        elif method == ACKNOWLEDGED:
            meta = mapping(params.get("_meta"))
            listening = meta.get("io.modelcontextprotocol/subscriptionId")
            self._deliver(listening, message, limits.MAX_PENDING)
        else:
            self._handle_stray(message)

    def _deliver(self, request_id: Any, item: RpcMessage | GatewayError, room: int) -> None:
        """Progress is dropped where its caller reads too slowly; an answer always has room."""
        inbox = self._inboxes.get(request_id) if isinstance(request_id, int) else None
        if inbox is not None and inbox.qsize() < room:
            inbox.put_nowait(item)


_ID_FIRST = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,15})\s*,')
_ID_LAST = re.compile(rb'\}\s*,(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(\d{1,15})\s*\}\s*$')


async def _read_inbox(
    inbox: asyncio.Queue[RpcMessage | GatewayError],
) -> AsyncGenerator[RpcMessage, None]:
    while True:
        item = await inbox.get()
        if isinstance(item, GatewayError):
            raise item
        yield item


class Child:
    """A running child: its input, its output, and its certain end."""

    def __init__(self, name: str, streams: _ChildStreams, secrets: Sequence[str]) -> None:
        process = asyncio.subprocess.Process(streams.process, streams, asyncio.get_running_loop())
        assert process.stdin and process.stdout and process.stderr
        self.input = process.stdin
        self.output = process.stdout
        self.exited = streams.exited
        self._pid = process.pid
        self._transport = streams.process
        self._errors = asyncio.create_task(_log_lines(name, process.stderr, secrets))
        self._ending: asyncio.Task[None] | None = None

    async def end(self) -> None:
        """Ends the child and everything it started; a cancelled caller does not stop that."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        self.input.close()
        await wait_for_event(self.exited, limits.REST_SECONDS)
        for number in map(signal_number, ("SIGTERM", "SIGKILL")):
            if signal_group(self._pid, number):
                await self._wait_for_group()
        await end_tasks(self._errors)
        self._transport.close()  # else its pipes stay open as long as a stray descendant has them

    async def _wait_for_group(self) -> None:
        """Waits for the end of the group, not long: a dead process not yet reaped looks alive."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + limits.REST_SECONDS
        while signal_group(self._pid, 0) and loop.time() < ends:
            if self.exited.is_set():
                ends = min(ends, loop.time() + limits.REST_SECONDS / 3)
            await asyncio.sleep(0.01)


class _ChildStreams(asyncio.subprocess.SubprocessStreamProtocol):
    """Says when the child itself exited: its output may stay open in what it has started."""

    def __init__(self) -> None:
        super().__init__(limit=limits.STEP_BYTES, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.process = cast(asyncio.SubprocessTransport, transport)  # by its protocol's contract
        super().connection_made(transport)

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


async def start_child(upstream: Upstream) -> Child:
    """Starts a command; an `upstream_unreachable` says why it can't be."""
    basics = {key: os.environ[key] for key in BASICS if key in os.environ}
    loop = asyncio.get_running_loop()
    try:
        _, streams = await loop.subprocess_exec(
            _ChildStreams,
            upstream.command or "",
            *upstream.args,
            env={**basics, **upstream.env},
            cwd=upstream.cwd,
            start_new_session=True,
            preexec_fn=_keep_streams if type(loop).__module__ == "uvloop" else None,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no command"
        raise unreachable_error(upstream.name, f"can't be started: {reason}", sent=False) from error
    # Shorter values are words that a log may hold by chance.
    return Child(upstream.name, streams, [v for v in upstream.env.values() if len(v) > 5])


def _keep_streams() -> None:
    """Runs in the child before its program, which is to hold its three streams and no more.

    asyncio's own loop sees to that itself; uvloop closes nothing for a child, not even its own
    copies of these streams. All else is marked to be closed as the program starts: by now it may
    still be needed.
    """
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the list itself is open no more
                os.set_inheritable(int(name), False)


async def _log_lines(name: str, errors: asyncio.StreamReader, secrets: Sequence[str]) -> None:
    """Logs what a child writes to standard error, bounded and without the secrets it has."""
    loop = asyncio.get_running_loop()
    span_ends, logged, rest = 0.0, 0, b""
    while chunk := await errors.read(limits.STEP_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[: limits.STEP_BYTES]
        if loop.time() >= span_ends:
            span_ends, logged = loop.time() + limits.HELD_SECONDS, 0
        for line in lines[: limits.MAX_PENDING - logged]:
            text = line.decode("utf-8", "replace")
            for secret in secrets:
                text = text.replace(secret, "***")
            log.info("upstream_stderr", upstream=name, line=visible(text)[: limits.MAX_QUOTE_CHARS])
        logged = min(limits.MAX_PENDING, logged + len(lines))
