"""A child process that speaks over its standard streams, and its certain end.

It runs in its own process group, so that whatever it starts ends with it, holds its three streams
and nothing else of ours, and sees only the environment it was given and a few basics. Closing
follows the protocol: its input is closed, then SIGTERM, then SIGKILL, each after a grace; what it
left behind ends the same way. What it writes to standard error becomes log lines, bounded in length
and number, without the secrets it was given.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import cast

import structlog
import uvloop

from gateway.connectors.text import visible
from gateway.connectors.upstream_rpc import unreachable

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
