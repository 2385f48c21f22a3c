"""Definitions are read in child processes, so that no document can hold up or kill the gateway.

A desk has one child process, the reader, which does one job at a time and stays warm for the next.
A reader that is not done by its deadline, crashes or grew large is ended; its document is refused
in words, and the next job gets a new reader. Two desks build tools; work on large answers and the
validator's advice have a desk each, so that neither stands in a build's way. The process pools of
libraries hand a child our whole environment and import our main module in it; a reader of hostile
documents gets neither.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import msgspec

from gateway.errors import Broken, DefinitionUnreadable, GatewayError, Overloaded
from gateway.model import Build, Problem, Source, decode_build, is_larger
from gateway.reader import ADVICE_CPU_SECONDS, LENGTHS, Answer, Request
from gateway.upstream.stdio import streams_only

BUILD_SECONDS = 30.0
ADVICE_SECONDS = 90.0
WORK_SECONDS = 10.0
IDLE_SECONDS = 60.0  # a reader that nobody needs leaves after that
QUEUE_SECONDS = 120.0
WORK_QUEUE_SECONDS = 20.0  # a call waits for it
MAX_WAITING = 512
MAX_ADVISED_BYTES = 4 * 1024 * 1024  # seconds of CPU a megabyte
MAX_ANSWER = 512 * 1024 * 1024
_CHUNK = 256 * 1024
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # how others end a reader
# Nothing else of our environment is a reader's business, secrets least of all.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL", "TMPDIR")


class Workers:
    """The desks at which definitions are read; open as long as the context it manages."""

    def __init__(self, count: int = 2, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._builds = _Desks([_Desk("build", idle_seconds) for _ in range(count)], QUEUE_SECONDS)
        self._work = _Desks([_Desk("build", idle_seconds)], WORK_QUEUE_SECONDS)
        self._advice = _Desks([_Desk("advise", 0.0)], QUEUE_SECONDS)
        self._spare: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._spare is not None:
            await self._spare
        for desks in (self._builds, self._work, self._advice):
            await desks.close()

    def keep_spare(self) -> None:
        """Has one reader warm from now on, also when there is nothing to read."""
        self._spare = asyncio.get_running_loop().create_task(self._builds.keep_spare())

    async def build(self, packed: bytes, source: Source, deadline: float = BUILD_SECONDS) -> Build:
        """The tools of a definition. DefinitionUnreadable if it is, or takes too long."""
        return decode_build(await self._builds.do(Request(source), packed, deadline))

    async def advise(self, packed: bytes, deadline: float = ADVICE_SECONDS) -> tuple[Problem, ...]:
        """What a validator says of the definition; a note where it can't be asked."""
        if await asyncio.to_thread(is_larger, packed, MAX_ADVISED_BYTES):
            return _not_advised(f"larger than {MAX_ADVISED_BYTES // 1024 // 1024} MB")
        try:
            data = await self._advice.do(Request(), packed, deadline)
        except _TookTooLong:
            return _not_advised(f"took longer than {deadline:g} s")
        except _Crashed:
            return _not_advised(f"took more than {ADVICE_CPU_SECONDS:g} s or too much memory")
        except DefinitionUnreadable as error:
            return _not_advised(error.message)
        return msgspec.msgpack.decode(data, type=tuple[Problem, ...])

    async def work(
        self,
        job: Callable[..., bytes],
        data: bytes,
        *arguments: str,
        deadline: float = WORK_SECONDS,
    ) -> bytearray | None:
        """What a function of ours makes of the data; None where that takes too much, or fails."""
        request = Request(job=f"{job.__module__}:{job.__qualname__}", arguments=arguments)
        try:
            return await self._work.do(request, data, deadline)
        except (GatewayError, OSError):
            return None


class _Desks:
    """Desks that take the same kind of job, and the callers who wait for one."""

    def __init__(self, desks: list[_Desk], seconds: float) -> None:
        self._desks = desks
        self._free = list(desks)
        self._places = asyncio.Semaphore(len(desks))
        self._seconds = seconds
        self._waiting = 0
        self._closed = False

    async def do(self, request: Request, data: bytes, deadline: float) -> bytearray:
        """What a reader answers to one job."""
        async with self._desk() as desk:
            try:
                return await desk.do(request, data, deadline)
            except _Crashed as crash:
                if self._closed:
                    raise _closed_error() from crash
                if crash.status not in _FROM_OUTSIDE:
                    raise
            # A reader that others ended says nothing about this document.
            return await desk.do(request, data, deadline)

    async def keep_spare(self) -> None:
        """Has one desk start its reader now and keep it."""
        async with self._desk() as desk:
            desk.idle_seconds = None
            await desk.start()

    async def close(self) -> None:
        """Ends every reader; who waits for an answer hears of it."""
        self._closed = True
        for desk in self._desks:
            desk.kill()
        for _ in self._desks:
            await self._places.acquire()
        for desk in self._desks:
            await desk.end()

    @asynccontextmanager
    async def _desk(self) -> AsyncIterator[_Desk]:
        """A free desk, a warm one if there is one; a bounded number of callers waits for it."""
        if self._closed:
            raise _closed_error()
        await self._take_place()
        try:
            if self._closed:
                raise _closed_error()
            desk = max(self._free, key=_Desk.is_warm)
            self._free.remove(desk)
            try:
                yield desk
            finally:
                self._free.append(desk)
        finally:
            self._places.release()

    async def _take_place(self) -> None:
        busy = Overloaded("busy", "Too many definitions are being read.", "Try again later.")
        if self._waiting >= MAX_WAITING:
            raise busy
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._places.acquire()
        except TimeoutError as error:
            raise busy from error
        finally:
            self._waiting -= 1


class _Desk:
    """One reader at a time, started when it is needed and let go when it was idle for a while."""

    def __init__(self, role: str, idle_seconds: float | None) -> None:
        self.idle_seconds = idle_seconds  # None: it stays
        self._role = role
        self._reader: asyncio.subprocess.Process | None = None
        self._leaves: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    def is_warm(self) -> bool:
        return self._reader is not None and self._reader.returncode is None

    async def do(self, request: Request, data: bytes, deadline: float) -> bytearray:
        """What the reader answers; it is kept for the next job unless it failed or grew large."""
        reader = await self.start()
        kept = False
        try:
            async with asyncio.timeout(deadline):
                answer, found = await _ask(reader, request, data)
            kept = not answer.retires and self.idle_seconds != 0
        except TimeoutError as error:
            raise _TookTooLong(deadline) from error
        except (OSError, EOFError) as error:
            raise _Crashed(await _exit_status(reader)) from error
        finally:
            if kept:
                self._rest()
            else:
                await self.end()
        if answer.error is not None:
            raise DefinitionUnreadable(str(answer.error["message"]), str(answer.error["hint"]))
        return found

    async def start(self) -> asyncio.subprocess.Process:
        """The reader, started if there is none."""
        if self._leaves is not None:
            self._leaves.cancel()
            self._leaves = None
        if not self.is_warm():
            await self.end()
            self._reader = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.reader", self._role),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={key: os.environ[key] for key in _ENVIRONMENT if key in os.environ},
                start_new_session=True,  # Ctrl-C is for us to hear; a reader ends with its stdin
                preexec_fn=streams_only(),
            )
        assert self._reader is not None
        return self._reader

    def kill(self) -> None:
        if self._reader is not None and self._reader.returncode is None:
            self._reader.kill()

    async def end(self) -> None:
        """Ends the reader, also when whoever waits for this is being cancelled."""
        if self._ending is None or self._ending.done():
            self._ending = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if self._leaves is not None:
            self._leaves.cancel()
            self._leaves = None
        reader, self._reader = self._reader, None
        if reader is None:
            return
        assert reader.stdin is not None and reader.stdout is not None
        reader.stdin.close()
        if reader.returncode is None:
            reader.kill()
        while await reader.stdout.read(_CHUNK):
            pass  # what it had still to say; the pipe closes when all of it is read
        await reader.wait()

    def _rest(self) -> None:
        if self.idle_seconds is not None:
            loop = asyncio.get_running_loop()
            self._leaves = loop.call_later(self.idle_seconds, self._leave)

    def _leave(self) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._end())


async def _ask(
    reader: asyncio.subprocess.Process, request: Request, packed: bytes
) -> tuple[Answer, bytearray]:
    """One job, there and back."""
    assert reader.stdin is not None and reader.stdout is not None
    head = msgspec.msgpack.encode(request)
    try:
        reader.stdin.write(LENGTHS.pack(len(head), len(packed)) + head)
        reader.stdin.write(packed)
        await reader.stdin.drain()
    except RuntimeError as error:  # uvloop's word for a pipe that is closed already
        raise BrokenPipeError(str(error)) from error
    head_size, size = LENGTHS.unpack(await reader.stdout.readexactly(LENGTHS.size))
    if size > MAX_ANSWER:
        raise EOFError("answer out of bounds")
    answer = msgspec.msgpack.decode(await reader.stdout.readexactly(head_size), type=Answer)
    return answer, await _read(reader.stdout, size)


async def _read(stream: asyncio.StreamReader, size: int) -> bytearray:
    """As `readexactly`, which would have a large answer twice."""
    data, at = bytearray(size), 0
    while at < size:
        chunk = await stream.read(min(_CHUNK, size - at))
        if not chunk:
            raise EOFError("answer broken off")
        data[at : at + len(chunk)] = chunk
        at += len(chunk)
    return data


async def _exit_status(reader: asyncio.subprocess.Process) -> int | None:
    """How a reader ended that went by itself, negative for a signal; None if it is still here."""
    try:
        async with asyncio.timeout(5):
            return await reader.wait()
    except TimeoutError:
        return None


class _TookTooLong(DefinitionUnreadable):
    """The reader was not done by its deadline."""

    def __init__(self, seconds: float) -> None:
        message = f"Reading the definition took longer than {seconds:g} s."
        super().__init__(message, "Use a smaller or simpler definition.")


class _Crashed(DefinitionUnreadable):
    """The reader ended without an answer."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        if status == -signal.SIGPROF:
            what = "needs more processor time than a reader may have"
        elif status is not None and status < 0:
            what = "made its reader run out of memory or crash"
        else:
            what = "made its reader fail"
        super().__init__(f"The definition {what}.", "Use a smaller or simpler definition.")


def _closed_error() -> Broken:
    return Broken("internal", "The gateway is closing: no definition is read any more.")


def _not_advised(why: str) -> tuple[Problem, ...]:
    return (Problem("info", "", f"validation skipped: {why}"),)
