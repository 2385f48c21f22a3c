"""`gateway` as a process of its own: a command that ends, or one that serves.

Most tests have it forked from a process that has loaded the gateway already, since loading it takes
longer than anything they do with it. Tests of what a user's process is like have it started by its
name, as users do.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.reduction import DupFd
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from gateway.cli import main

START_SECONDS = 120.0  # two, where the machine has nothing else to do
COMMAND = (sys.executable, "-m", "gateway")

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(
    ["tests.processes", "gateway.server", "gateway.cli.main", "gateway.cli.inspect"]
    + ["gateway.cli.server_setup", "typer.rich_utils", "rich.markdown"]
)


class ForkedGateway:
    """A process that runs `gateway WORDS`, with as much of asyncio's `Process` as tests use."""

    def __init__(
        self,
        words: tuple[str, ...],
        stdout: int,
        stderr: int,
        cwd: Path,
        variables: dict[str, str] | None = None,
        stdin: int | None = None,
    ) -> None:
        streams = [DupFd(stdout), DupFd(stderr), None if stdin is None else DupFd(stdin)]
        args = (words, str(cwd), variables or {}, *streams)
        self._process = _forking.Process(target=_run, args=args)
        self._process.start()
        self.pid: int = self._process.pid or 0
        self.stdout = asyncio.StreamReader()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """The exit code, once it has ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        if self.returncode is None:
            sentinel = os.dup(self._process.sentinel)  # several may wait
            loop.add_reader(sentinel, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(sentinel)
                os.close(sentinel)
        self._process.join()
        return self._process.exitcode or 0


def _run(
    words: tuple[str, ...],
    cwd: str,
    variables: dict[str, str],
    stdout: Any,
    stderr: Any,
    stdin: Any,
) -> None:
    gc.freeze()  # what was loaded before: the collector would copy all of it into this process
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    for stream, number in ((stdout, 1), (stderr, 2)):
        os.dup2(stream.detach(), number)
    if stdin is not None:
        sys.stdin = os.fdopen(stdin.detach())
    os.chdir(cwd)
    sys.argv = ["gateway", *words]
    main()


async def gateway_command(
    *words: str, cwd: Path | None = None, **variables: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `gateway WORDS`, with these variables."""
    with TemporaryFile() as out, TemporaryFile() as err:
        streams = (out.fileno(), err.fileno())
        process = ForkedGateway(words, *streams, cwd or Path.cwd(), variables)
        async with asyncio.timeout(START_SECONDS):
            code = await process.wait()
        return code, *(_text(file) for file in (out, err))  # type: ignore[return-value]


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode())


@asynccontextmanager
async def gateway_process(
    config: Path | None, *options: str, cwd: Path | None = None, **variables: str
) -> AsyncIterator[tuple[Any, str]]:
    """`gateway serve`; the process and the address it says it is ready at."""
    reading, writing = os.pipe()
    with TemporaryFile() as told:
        file = ("--config", str(config)) if config else ()
        words = ("serve", *file, "--port", "0", *options)
        process = ForkedGateway(words, writing, told.fileno(), cwd or Path.cwd(), variables)
    os.close(writing)
    protocol = asyncio.StreamReaderProtocol(process.stdout)
    pipe = os.fdopen(reading, "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        async with ready(process) as url:
            yield process, url
    finally:
        transport.close()


@asynccontextmanager
async def users_process(
    config: Path, *options: str, pass_fds: tuple[int, ...] = ()
) -> AsyncIterator[tuple[Any, str]]:
    """`gateway serve` as users start it."""
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "serve", "--config", str(config), "--port", "0", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        pass_fds=pass_fds,
    )
    async with ready(process) as url:
        yield process, url


@asynccontextmanager
async def ready(process: Any) -> AsyncIterator[str]:
    """The address a process says it is ready at; it is ended with the block."""
    try:
        async with asyncio.timeout(START_SECONDS):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("Gateway ready: http://127.0.0.1:"), line
        yield line.removeprefix("Gateway ready: ").strip()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(START_SECONDS):
                await process.wait()
