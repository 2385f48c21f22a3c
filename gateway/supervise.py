"""Several processes on one port: one parent that only starts, watches and ends them.

Each child binds the port for itself (SO_REUSEPORT), so that the kernel spreads connections; the
parent holds the port without listening, which also settles what "port 0" means. A child that dies
is started again, more and more slowly if it keeps dying. Signals go to all children; the parent's
exit code says whether they all ended well.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import structlog

from gateway.config.settings import Settings
from gateway.serve import AT_ONCE, bind

log = structlog.get_logger("gateway")

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
