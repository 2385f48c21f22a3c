"""Runs the application: a bound socket, uvicorn around it, and an orderly end.

The socket is bound first, so that the parts know their own address even for port 0. The ready line
is printed once requests are accepted. The first SIGTERM or Ctrl-C makes /readyz say 503, stops
listening shortly after, lets calls in flight finish and closes the streams; a second one ends at
once.

What uvicorn leaves out: patience that ends, and one packet where it would send two.

uvicorn waits for ever for the head of a request, and for a client that does not read. Here a
connection that was opened or has begun a request has so many seconds to complete its head, and one
that stopped reading has so many to go on, also while it is being closed. Bodies have a deadline of
their own where they are read; what is still to come of a request that was answered before it was
complete has one here.

Of requests that were sent one behind the other uvicorn tells only the last that the client left,
and gives up all of them when one can't be read. Here the one that is being answered is told, and
answered. An offer to change to another protocol is not taken up: the request counts as it stands.

It also writes the head of an answer before its body is there. Here a head waits for what follows in
the same turn of the event loop, since every write wakes the client up.

Several processes on one port: one parent that only starts, watches and ends them.

Each child binds the port for itself (SO_REUSEPORT), so that the kernel spreads connections; the
parent holds the port without listening, which also settles what "port 0" means. A child that dies
is started again, more and more slowly if it keeps dying. Signals go to all children; the parent's
exit code says whether they all ended well.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.app import App, Place, loading, running
from gateway.config.settings import Settings
from gateway.errors import ConfigInvalid

JOINED_BYTES = 65_536
CLOSING_SECONDS = 2.0  # for who reads slowly while the gateway ends
_UPGRADE = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)


class JoiningTransport:
    """A transport that sends the head of an answer together with the beginning of its body."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        head = self._head
        if not head and data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        if head:
            self._head = b""
            if len(data) <= JOINED_BYTES:
                data = head + data
            else:
                self._transport.write(head)
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which waits so long for a request's head, and for a slow reader."""

    seconds: float
    _request_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _answering: RequestResponseCycle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(JoiningTransport(transport, self.loop))  # type: ignore[arg-type]
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_request_timer()
        self._stop_read_timer()
        super().connection_lost(exc)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def data_received(self, data: bytes) -> None:
        begins = self.cycle is None or not self.cycle.more_body
        if begins and (b"pgrade:" in data or b"PGRADE:" in data):
            # The parser would stop there. The name is as long as before: nothing moves.
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"\r\nignored", head) + end + rest
        super().data_received(data)

    def _unsupported_upgrade_warning(self) -> None:
        self.send_400_response("Changing to another protocol is not possible here.")

    def send_400_response(self, msg: str) -> None:
        answering = self._answering
        if answering is None or answering.response_complete or answering.more_body:
            super().send_400_response(msg)
            return
        answering.keep_alive = False  # what came behind it ends the connection, but not its answer
        self.pipeline.clear()
        self.flow.pause_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(CLOSING_SECONDS, self.transport.abort)

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        if self._request_timer is None:
            self._start_request_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_request_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_request_timer()
        if self.cycle.response_complete:
            # What came of the body stopped the timer that ends idle connections.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() and self._read_timer is None:
            self._read_timer = self.loop.call_later(self.seconds, self._give_up)
        if self.cycle.more_body and self._request_timer is None:
            self._start_request_timer()

    def _start_request_timer(self) -> None:
        self._request_timer = self.loop.call_later(self.seconds, self._give_up)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def pause_writing(self) -> None:
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self.seconds, self._give_up)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_read_timer()
        super().resume_writing()

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _give_up(self) -> None:
        self._request_timer = self._read_timer = None
        self.transport.abort()


def patient_protocol(seconds: float) -> type[PatientProtocol]:
    """The protocol with its patience."""
    return type("Patient", (PatientProtocol,), {"seconds": seconds})


log = structlog.get_logger("gateway")

BACKLOG = 2048
COLLECT_AFTER = 20_000  # objects more than before; Python's own is 700
COLLECT_OLDER_AFTER = 20
OWN_MAPPING_BYTES = 262_144
SPARE_HEAP_BYTES = 16 * 1024 * 1024
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # as malloc.h has them
KEEP_ALIVE_SECONDS = 75
# How long new requests are still taken after readiness went 503, so that balancers can turn away.
TURN_AWAY_SECONDS = 0.5
STANDARD_INPUT = 0
AT_ONCE = signal.SIGQUIT  # what the parent of workers has them end by when it is signalled twice
SIGNALS = (signal.SIGINT, signal.SIGTERM, AT_ONCE)


def serve(settings: Settings, config: Path, *, worker: bool = False) -> int:
    """Runs until a signal ends it; the exit code. A worker shares its port with others."""
    bound = bind(settings.server.host, settings.server.port, shared=worker)
    host, port = bound.getsockname()[:2]
    place = Place(config, host, port)
    with bound:
        return uvloop.run(_serve(settings, place, bound, worker))


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket, shared with other processes if wanted; ConfigInvalid if it can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ConfigInvalid(
            [f"server: can't listen on {host}:{port}: {error.strerror or error}"]
        ) from error
    return bound


async def _serve(settings: Settings, place: Place, bound: socket.socket, worker: bool) -> int:
    async with running(settings, place, loading) as app:
        server = Server(app, place, settings.server.shutdown_seconds, worker=worker)
        if worker:
            _end_with_parent(server)
        await server.serve(sockets=[bound])
    return 0


def _end_with_parent(server: Server) -> None:
    """Ends a worker whose parent is gone: nobody else would, and it would hold the port.

    The parent never writes to a worker's standard input: the kernel closes it with the parent.
    """
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(STANDARD_INPUT)
        log.warning("parent process gone")
        server.stop()

    loop.add_reader(STANDARD_INPUT, end)


def _fronted(app: App) -> ASGIApp:
    """The application behind a reading of a trusted proxy's headers, which calls can do without."""
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
    behind = cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, app), trusted))

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        await (app if path == "/mcp" or path.startswith("/mcp/") else behind)(scope, receive, send)

    return front


def _collect_rarely() -> None:
    """Leave what is there at start out of garbage collection, and look for garbage less often.

    Nearly everything is freed at once, by counting; only rare cycles wait for the collector. Going
    through all modules and tools again and again would be a sixth of a call, and a pause for many.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, COLLECT_OLDER_AFTER, COLLECT_OLDER_AFTER)
    gc.enable()


def _give_memory_back() -> None:
    """Has the C library map what is large by itself, so that freeing it gives it back.

    After the first large block is freed, glibc would take the next ones from its heap, where small
    ones that live on keep them from ever being returned.
    """
    with suppress(AttributeError, OSError):  # another C library has no such thing to set
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, OWN_MAPPING_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, SPARE_HEAP_BYTES)  # else every call may give some back


class Server(uvicorn.Server):
    """uvicorn with our ready line and our way to end."""

    def __init__(
        self, app: App, place: Place, grace: float, announce: bool = True, worker: bool = False
    ) -> None:
        super().__init__(
            uvicorn.Config(
                _fronted(app),
                loop="uvloop",
                proxy_headers=False,
                http=patient_protocol(app.gateway.snapshot.settings.limits.request_seconds),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, round(grace)),
            )
        )
        self._app = app
        self._place = place
        self._grace = grace
        self._announce = announce
        # A worker may hear a signal from a terminal or init system and from its parent as well.
        self._at_once = (AT_ONCE,) if worker else SIGNALS
        self._ending: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._announce:
            _collect_rarely()
            _give_memory_back()
            print(f"Gateway ready: {self._place.own_url}/mcp", flush=True)
            link = self._app.console.link(self._place.own_url)
            print(f"Console: {link}", file=sys.stderr, flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if not self._announce:  # inside someone else's process: its signals are not ours
            yield
            return
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._ending is None:
            print("Stopping: calls in flight finish first.", file=sys.stderr, flush=True)
            self.stop()
        elif sig in self._at_once:
            self.force_exit = self.should_exit = True
            self._ending.cancel()

    def stop(self) -> None:
        """Ends in order: not ready, no new connections, calls finish, streams close."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        self._app.health.draining = True
        if self._announce:
            await asyncio.sleep(TURN_AWAY_SECONDS)
        self.should_exit = True
        await self._app.drain(self._grace)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for connections, as uvicorn does, and for the calls that no connection awaits."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._grace
        await super().shutdown(sockets)
        if self._ending is not None:
            await asyncio.wait((self._ending,))
        if not self.force_exit:  # a request may have begun a call as its last act
            last = self._app.gateway.invoker.running.drain(ends - loop.time())
            self._ending = loop.create_task(last)
            await asyncio.wait((self._ending,))


FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
STEADY_SECONDS = 60.0
READY = b"Gateway ready: "
ENDED_WELL = (0, -signal.SIGTERM, -AT_ONCE)  # by a signal itself: it was only just starting


def supervise(settings: Settings, config: Path) -> int:
    """Runs `server.workers` processes until a signal ends them; the exit code."""
    with bind(settings.server.host, settings.server.port, shared=True) as held:
        port = held.getsockname()[1]
        return asyncio.run(Supervisor(settings, config, port).run())


class Supervisor:
    """The parent of the worker processes."""

    def __init__(self, settings: Settings, config: Path, port: int) -> None:
        self._server = settings.server
        self._command = (
            *(sys.executable, "-m", "gateway", "serve", "--config", str(config)),
            *("--host", settings.server.host, "--port", str(port), "--worker"),
        )
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._ending = asyncio.Event()
        self._ready = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end, number)
        codes = await asyncio.gather(*(self._keep(i) for i in range(self._server.workers)))
        return max(codes)

    def _end(self, number: int) -> None:
        """Passes a signal on; the children end in order, at once if it is the second one."""
        passed_on = AT_ONCE if self._ending.is_set() else signal.SIGTERM
        self._ending.set()
        for child in self._children.values():
            if child.returncode is None:
                child.send_signal(passed_on)

    async def _keep(self, index: int) -> int:
        """Keeps one child running; its last exit code."""
        delay = FIRST_DELAY
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            code = await self._run_child(index)
            if self._ending.is_set():
                return 0 if code in ENDED_WELL else 1
            if code == 2:
                self._end(signal.SIGTERM)  # a configuration that can't start starts for no one
                return 2
            delay = FIRST_DELAY if loop.time() - started > STEADY_SECONDS else delay
            log.error("worker died", worker=index, code=code, again_in=delay)
            try:
                async with asyncio.timeout(delay):
                    await self._ending.wait()
                return 0
            except TimeoutError:
                delay = min(delay * 2, LONGEST_DELAY)

    async def _run_child(self, index: int) -> int:
        child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,  # it ends with us, and the worker with it
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ},
        )
        self._children[index] = child
        if self._ending.is_set():
            child.send_signal(signal.SIGTERM)
        assert child.stdout is not None
        async for line in child.stdout:
            if line.startswith(READY):
                self._child_ready(line)
            else:
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
        return await child.wait()

    def _child_ready(self, line: bytes) -> None:
        self._ready += 1
        if self._ready == self._server.workers:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
