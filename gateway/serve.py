"""Runs the application: a bound socket, uvicorn around it, and an orderly end.

The socket is bound first, so that the parts know their own address even for port 0. The ready line
is printed once requests are accepted. The first SIGTERM or Ctrl-C makes /readyz say 503, stops
listening shortly after, lets calls in flight finish and closes the streams; a second one ends at
once.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
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
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from gateway.app import App, Place, running
from gateway.config.settings import Settings
from gateway.errors import ConfigInvalid
from gateway.patience import patient_protocol
from gateway.progress import loading

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
