"""Definitions are read in child processes, so that none can hold up or kill the gateway.

A reader does one job at a time and stays warm for the next. A reader that misses its deadline,
crashes or grew large is ended; its definition is refused in words, and the next job gets a new
reader. Two readers build tools; work on large answers and the validator's advice have a reader
each, so that neither delays a build. The validator's reader ends when it has nothing to do.

The pool is our own: a library's pool hands a child our environment with its secrets, imports our
main module in it, and unpickles its answers, so that an attacker in a reader would have the
gateway.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

import msgspec

from gateway.errors import Broken, DefinitionUnreadable, GatewayError, Overloaded
from gateway.limits import QUEUE_SECONDS, READ_SECONDS, READER_BYTES, REMEMBER_SECONDS
from gateway.model import Build, Problem, Source, decode_build
from gateway.reader import LENGTH, Job, JobResult, advise, build_tools
from gateway.system import signal_number

# All of our environment that a reader gets: it must not see secrets.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL", "TMPDIR")


class Workers:
    """The pools of reader processes; open as long as the context that this manages."""

    def __init__(self, count: int = 2) -> None:
        self._builds = _Pool("build", count)
        self._work = _Pool("build", 1)
        self._advice = _Pool("advise", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for pool in (self._builds, self._work, self._advice):
            await pool.close()

    async def build(self, packed: bytes, source: Source, deadline: float = READ_SECONDS) -> Build:
        """The tools of a definition. DefinitionUnreadable if it can't be read, or not in time."""
        source_text = msgspec.json.encode(source).decode()
        return decode_build(await self._builds.do(deadline, build_tools, packed, source_text))

    async def advise(self, packed: bytes, deadline: float = READ_SECONDS) -> tuple[Problem, ...]:
        """The problems that a validator finds in the definition; a note where it can't be run."""
        try:
            data = await self._advice.do(deadline, advise, packed)
        except DefinitionUnreadable as error:
            return (Problem("info", "", f"validation skipped: {error.message}"),)
        return msgspec.msgpack.decode(data, type=tuple[Problem, ...])

    async def work(
        self,
        function: Callable[..., bytes],
        data: bytes,
        *arguments: str,
        deadline: float = READ_SECONDS,
    ) -> bytes | None:
        """Runs a function of ours on the data; None where that fails or takes too much."""
        try:
            return await self._work.do(deadline, function, data, *arguments)
        except (GatewayError, OSError):
            return None


class _Pool:
    """Readers that take the same kind of job; an idle reader is kept for the next job."""

    def __init__(self, role: str, size: int) -> None:
        self._role = role
        self._size = size
        self._places = asyncio.Semaphore(size)
        self._idle: list[Process] = []
        self._busy: set[Process] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def do(
        self, seconds: float, function: Callable[..., bytes], data: bytes, *arguments: str
    ) -> bytes:
        """Gives one job to a reader process, and returns its answer."""
        job = Job(f"{function.__module__}:{function.__qualname__}", data, arguments)
        async with self._place():
            try:
                return await self._ask(job, seconds)
            except _ReaderEnded as error:
                if self._closed:
                    raise _closed_error() from error
                if error.status not in (-signal_number("SIGKILL"), -signal_number("SIGTERM")):
                    raise
            # A reader that another process ended says nothing about this definition.
            return await self._ask(job, seconds)

    async def close(self) -> None:
        """Ends every reader; a caller that waits for an answer gets an error."""
        self._closed = True
        for reader in self._busy:
            _kill(reader)
        for _ in range(self._size):
            await self._places.acquire()
        while self._idle:
            await self._end(self._idle.pop())
        await asyncio.gather(*self._ending)
        for _ in range(self._size):
            self._places.release()  # to callers that wait: they get an error

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """A reader's place, for which a caller waits for a bounded time."""
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                await self._places.acquire()
        except TimeoutError as error:
            message = "Too many definitions are being read."
            raise Overloaded("busy", message, "Try again later.") from error
        try:
            if self._closed:
                raise _closed_error()
            yield
        finally:
            self._places.release()

    async def _ask(self, job: Job, seconds: float) -> bytes:
        reader = self._idle.pop() if self._idle else await _start_reader(self._role)
        self._busy.add(reader)
        is_reusable = False
        try:
            async with asyncio.timeout(seconds):
                answer = await _exchange(reader, job)
            is_reusable = not (answer.retires or self._idle)
        except TimeoutError as error:
            message = f"Reading the definition took longer than {seconds:g} s."
            raise DefinitionUnreadable(message, "Use a smaller or simpler definition.") from error
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            raise _ReaderEnded(await _exit_status(reader)) from error
        finally:
            self._busy.discard(reader)
            if is_reusable:
                self._keep(reader)
            else:
                await self._end(reader)
        if answer.error is not None:
            raise DefinitionUnreadable(*answer.error)
        return answer.data

    def _keep(self, reader: Process) -> None:
        """Has a reader wait for the next job; the validator, which is large, only for a while."""
        self._idle.append(reader)
        if self._role == "advise":
            asyncio.get_running_loop().call_later(REMEMBER_SECONDS, self._end_idle, reader)

    def _end_idle(self, reader: Process) -> None:
        if reader in self._idle:
            self._idle.remove(reader)
            self._end(reader)

    def _end(self, reader: Process) -> asyncio.Future[None]:
        """Ends a reader, also when the task that awaits the end is cancelled."""
        _kill(reader)
        ending = asyncio.get_running_loop().create_task(_drain(reader))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return asyncio.shield(ending)


async def _start_reader(role: str) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.reader", role),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env={key: os.environ[key] for key in _ENVIRONMENT if key in os.environ},
        start_new_session=True,  # Ctrl-C ends the gateway; a reader ends with its stdin
    )


async def _exchange(reader: Process, job: Job) -> JobResult:
    """Sends one job to a reader and reads its answer."""
    assert reader.stdin is not None and reader.stdout is not None
    body = msgspec.msgpack.encode(job)
    try:
        reader.stdin.writelines((LENGTH.pack(len(body)), body))
        del body  # as large as the definition: not kept while that is read
        await reader.stdin.drain()
    except RuntimeError as error:  # uvloop raises it for a pipe that is closed already
        raise BrokenPipeError(str(error)) from error
    (size,) = LENGTH.unpack(await reader.stdout.readexactly(LENGTH.size))
    if size > READER_BYTES:
        raise EOFError("answer out of bounds")
    return msgspec.msgpack.decode(await reader.stdout.readexactly(size), type=JobResult)


async def _exit_status(reader: Process) -> int | None:
    """The exit status of a reader, negative for a signal; None if it is still running."""
    try:
        async with asyncio.timeout(5):
            return await reader.wait()
    except TimeoutError:
        return None


def _kill(reader: Process) -> None:
    if reader.returncode is None:
        reader.kill()


async def _drain(reader: Process) -> None:
    """Reads the rest of a reader's output: its pipe closes when all of it is read."""
    assert reader.stdin is not None
    reader.stdin.close()
    await reader.communicate()


class _ReaderEnded(DefinitionUnreadable):
    """The reader ended without an answer."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        if status == -signal_number("SIGPROF"):
            reason = "needs more processor time than a reader may have"
        elif status is not None and status < 0:
            reason = "made its reader run out of memory or crash"
        else:
            reason = "made its reader fail"
        super().__init__(f"The definition {reason}.", "Use a smaller or simpler definition.")


def _closed_error() -> Broken:
    return Broken("internal", "The gateway is closing: no definition is read any more.")
