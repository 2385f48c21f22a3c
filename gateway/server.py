"""Serves an application: a bound socket, uvicorn around it, worker processes, an orderly end.

The socket is bound first, so that the parts know their own address even for port 0. The ready line
is printed once requests are accepted. The first SIGTERM or Ctrl-C makes /readyz say 503, stops
listening shortly after, lets calls in flight finish and closes the streams; a second one ends at
once. With several workers a parent process only starts, watches and ends them: each worker binds
the port for itself (SO_REUSEPORT), so that the kernel spreads connections, and the parent holds the
port without listening, so that all workers get the same one for "port 0".
"""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.config.settings import Settings
from gateway.errors import ConfigInvalid
from gateway.limits import (
    COLLECT_AFTER,
    KEEP_ALIVE_SECONDS,
    LONGEST_RESTART_SECONDS,
    MOMENT_SECONDS,
    STEP_BYTES,
    TURN_AWAY_SECONDS,
)
from gateway.system import ON_WINDOWS, hear_signal, signal_number
from gateway.telemetry import begin_request
from gateway.web.guard import COMPLETE_BODY

log = structlog.get_logger("gateway")

AT_ONCE = signal_number("SIGQUIT")  # sent to workers by their parent, at its second signal
SIGNALS = (signal.SIGINT, signal.SIGTERM, AT_ONCE)
READY = b"Gateway ready: "
HEAD_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n"
GOOD_EXITS = (0, -signal.SIGTERM, -AT_ONCE)  # by a signal: the worker was only just starting


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket, shared with other processes if `shared`; ConfigInvalid if it can't bind."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if not ON_WINDOWS:  # on Windows this option would share the port
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        why = f"{error.strerror or error}; --port 0 takes a free port"
        raise ConfigInvalid([f"server: can't listen on {host}:{port}: {why}"]) from error
    return bound


class GatewayServer(uvicorn.Server):
    """uvicorn with our ready line and our shutdown."""

    def __init__(
        self,
        mcp: ASGIApp,
        other_app: ASGIApp,
        turn_away: Callable[[], None],
        drain: Callable[[float], Coroutine[Any, Any, None]],
        *,
        grace: float,  # for calls in flight, in seconds
        request_seconds: float,
        addresses: tuple[str, str] | None = None,  # to print: the gateway's and the console's
        worker: bool = False,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                self._route,
                interface="asgi3",
                loop="none",  # it runs on our event loop
                http=patient_protocol(request_seconds),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, round(grace)),
            )
        )
        self._mcp = mcp
        proxied: Any = ProxyHeadersMiddleware  # finds the client's address; MCP does not need it
        self._other_app: ASGIApp = proxied(other_app, self.config.forwarded_allow_ips)
        self._turn_away = turn_away
        self._drain = drain
        self._grace = grace
        self._addresses = addresses  # None: inside another program, which handles its own signals
        self._ending: asyncio.Task[None] | None = None
        self._worker = worker
        self.sidecar: Callable[[], Coroutine[Any, Any, None]] | None = None  # we end when it ends

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to MCP's endpoint or to the other app; logs name it by a number."""
        begin_request()
        is_mcp = f"{scope['path']}/".startswith("/mcp/")
        await (self._mcp if is_mcp else self._other_app)(scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._worker:
            self._end_with_parent()
        if self._addresses is not None:
            url, console = self._addresses
            _collect_rarely()
            print(f"{READY.decode()}{url}/mcp", flush=True)
            print(f"Console: {console}", file=sys.stderr, flush=True)
        if self.sidecar is not None:
            self._sidecar = asyncio.create_task(self.sidecar())
            self._sidecar.add_done_callback(lambda _: self.stop())

    def _end_with_parent(self) -> None:
        """Ends a worker whose parent is gone: otherwise it would run on and hold the port.

        The parent never writes to a worker's standard input: the kernel closes it with the parent.
        """
        loop = asyncio.get_running_loop()

        def end() -> None:
            loop.remove_reader(sys.stdin)
            log.warning("parent process gone")
            self.stop()

        loop.add_reader(sys.stdin, end)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if self._addresses is None:
            yield
            return
        handlers = (partial(self.handle_exit, number, None) for number in SIGNALS)
        undo = [hear_signal(*each) for each in zip(SIGNALS, handlers, strict=True)]
        try:
            yield
        finally:
            for remove_handler in undo:
                remove_handler()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._ending is None:
            self.stop()
            with suppress(OSError):  # standard error may be closed
                print("Stopping: calls in flight finish first.", file=sys.stderr, flush=True)
        # A worker may hear a signal from a terminal or init system and from its parent as well.
        elif sig == AT_ONCE or not self._worker:
            self.force_exit = self.should_exit = True
            self._ending.cancel()

    def stop(self) -> None:
        """Ends the server in order: not ready, no new connections, calls finish, streams close."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        self._turn_away()
        if self._addresses is not None:
            await asyncio.sleep(TURN_AWAY_SECONDS)
        self.should_exit = True
        await self._drain(self._grace)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for connections, as uvicorn does, and for calls that no connection waits for."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._grace
        await super().shutdown(sockets)
        if self._ending is not None:
            await asyncio.wait((self._ending,))
        if not self.force_exit:  # a request may have begun a call as its last act
            self._ending = loop.create_task(self._drain(deadline - loop.time()))
            await asyncio.wait((self._ending,))


def _collect_rarely() -> None:
    """Leaves the objects of the start out of garbage collection, and collects less often.

    Nearly everything is freed at once, by counting; only rare cycles wait for the collector. Going
    through all modules and tools again and again would take a sixth of a call, and delay many.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    gc.enable()


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds: for the head of a request, and for a slow reader.

    uvicorn waits for ever for both. Here a connection that was opened, or has begun a request, has
    `seconds` to complete its head, and a client that stopped reading has `seconds` to go on. Bodies
    have a deadline where they are read; the rest of a request that was answered before it was
    complete has one here. An offer to change to another protocol is ignored. Of a head, STEP_BYTES
    may follow its first reading, and as many of what is no body may follow a piece of a body.
    """

    seconds: float
    _in_head = False
    _head_bytes = 0  # of the readings after the one in which a request began, or its body went on

    def connection_made(self, transport: Any) -> None:
        joined: Any = JoinedWrites(self.loop, transport)
        super().connection_made(joined)
        self._request = Deadline(self.loop, self.seconds, transport.abort)
        self._reading = Deadline(self.loop, self.seconds, transport.abort)
        self._request.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request.stop()
        self._reading.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or not self.cycle.more_body:  # a request begins here
            data = without_upgrade(data)
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head:
            self._request.start()
        if self._head_bytes > STEP_BYTES and self.cycle is not None and self.cycle.more_body:
            self.transport.close()
        elif self._head_bytes > STEP_BYTES and self._in_head:
            self.transport.write(HEAD_TOO_LONG)
            self.transport.close()
        if self.parser is not None and self.parser.should_upgrade():
            # The offer came in pieces, and the parser stopped at it: it would take a body for a
            # request.
            self.send_400_response("Changing to another protocol is not possible here.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._request.stop()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.scope["extensions"] = {COMPLETE_BODY: {}}
        if not self.cycle.response_complete:
            self._request.stop()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._reading.start()  # a client that does not read would keep the connection open
        elif self.cycle.more_body:
            self._request.start()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(MOMENT_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        self._reading.start()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._reading.stop()
        super().resume_writing()


class JoinedWrites:
    """A transport that sends what is written in one turn of the loop as one packet.

    uvicorn writes the head of an answer and its body one after the other: two packets for a client
    to read, and two system calls that are a tenth of a call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: Any) -> None:
        self._loop, self._transport = loop, transport
        self._parts: list[bytes] = []
        self.get_extra_info, self.is_closing = transport.get_extra_info, transport.is_closing
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.abort = transport.abort

    def write(self, data: bytes) -> None:
        """Sends the data, together with all data written before other callbacks run."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Closes the connection once all data is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()


class Deadline:
    """Calls `missed` once `seconds` have passed since it was started, unless it is stopped."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, missed: Callable[[], None]
    ) -> None:
        self._loop, self._seconds, self._missed = loop, seconds, missed
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the timer, unless it runs already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._missed)

    def stop(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def patient_protocol(seconds: float) -> type[PatientProtocol]:
    """The class of a protocol that waits for so many seconds."""
    return type("Patient", (PatientProtocol,), {"seconds": seconds})


_UPGRADE = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)


def without_upgrade(data: bytes) -> bytes:
    """The beginning of a request without an offer of another protocol, as Java's client makes it.

    The parser would stop at it and lose the body. The header gets another name, just as long.
    """
    if data.find(b"pgrade:") < 0 and data.find(b"PGRADE:") < 0:
        return data
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nignored", head) + end + rest


def supervise(settings: Settings, config: Path) -> int:
    """Runs `server.workers` processes until a signal ends them; returns the exit code."""
    if ON_WINDOWS:
        raise ConfigInvalid(["server.workers: several processes can't share a port on Windows"])
    with bind(settings.server.host, settings.server.port, shared=True) as bound:
        port = bound.getsockname()[1]
        return asyncio.run(Supervisor(settings, config, port).run())


class Supervisor:
    """The parent of the worker processes.

    A worker that dies is started again, more and more slowly if it keeps dying. Signals go to all
    workers; the parent's exit code says whether they all ended well.
    """

    def __init__(self, settings: Settings, config: Path, port: int) -> None:
        self._server = settings.server
        self._command = (
            *(sys.executable, "-m", "gateway", "serve", "--config", str(config)),
            *("--host", settings.server.host, "--port", str(port), "--worker"),
        )
        self._workers: dict[int, asyncio.subprocess.Process] = {}
        self._ending = asyncio.Event()
        self._ready = 0  # how many workers have printed their ready line

    async def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            hear_signal(number, self._end)
        codes = await asyncio.gather(*(self._keep_running(i) for i in range(self._server.workers)))
        return max(codes)

    def _end(self) -> None:
        """Has the workers end in order; at once when called a second time."""
        number = AT_ONCE if self._ending.is_set() else signal.SIGTERM
        self._ending.set()
        for worker in self._workers.values():
            if worker.returncode is None:
                worker.send_signal(number)

    async def _keep_running(self, index: int) -> int:
        """Keeps one worker running; returns its last exit code."""
        delay, loop = 0.5, asyncio.get_running_loop()
        while True:
            started = loop.time()
            code = await self._run_worker(index)
            if self._ending.is_set():
                return 0 if code in GOOD_EXITS else 1
            if code == 2:
                self._end()  # no worker can start with this configuration
                return 2
            if loop.time() - started > LONGEST_RESTART_SECONDS:
                delay = 0.5  # it ran well for a while
            log.error("worker died", worker=index, code=code, again_in=delay)
            try:
                async with asyncio.timeout(delay):
                    await self._ending.wait()
                return 0
            except TimeoutError:
                delay = min(delay * 2, LONGEST_RESTART_SECONDS)

    async def _run_worker(self, index: int) -> int:
        worker = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,  # it closes when we end, and the worker ends with it
            stdout=asyncio.subprocess.PIPE,
        )
        self._workers[index] = worker
        if self._ending.is_set():
            worker.send_signal(signal.SIGTERM)
        assert worker.stdout is not None
        async for line in worker.stdout:
            self._ready += line.startswith(READY)
            if not line.startswith(READY) or self._ready == self._server.workers:
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
        return await worker.wait()
