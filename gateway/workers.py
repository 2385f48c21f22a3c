"""Definitions are read in child processes, so that no document can hold up or kill the gateway.

A few children are kept warm and take one job at a time. One that is not done by its deadline, that
crashes or that grew large is replaced; its document is refused in words. Who wants a spare has one
child that never leaves, so that no definition waits for one to start. Validation for advice has
a child of its own, niced, so that it never stands in a build's way; other work on hostile input has
a queue of its own for the same reason.
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
import structlog

from gateway.errors import Broken, DefinitionUnreadable, GatewayError, Overloaded
from gateway.model import Build, Problem, Source, decoded_in_steps, is_larger
from gateway.reader import ADVICE_CPU_SECONDS, LENGTHS, Answer, Request
from gateway.upstream.stdio import streams_only

log = structlog.get_logger(__name__)

BUILD_SECONDS = 30.0
ADVICE_SECONDS = 90.0
WORK_SECONDS = 10.0
IDLE_SECONDS = 60.0
QUEUE_SECONDS = 120.0
WORK_QUEUE_SECONDS = 20.0  # a call waits for it
MAX_WAITING = 512
MAX_ADVISED_BYTES = 4 * 1024 * 1024  # seconds of CPU a megabyte
MAX_ANSWER = 512 * 1024 * 1024
_CHUNK = 256 * 1024
_STREAM_LIMIT = 1024 * 1024
_CLOSE_SECONDS = 5.0
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # how others end a child
# Nothing else of our environment is a reader's business, secrets least of all.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL", "TMPDIR")
# What is large is mapped by itself, so that freeing it gives it back to the machine.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "262144"}


class Workers:
    """Children that read definitions; open as long as the context it manages."""

    def __init__(self, count: int = 2, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._builds = _Queue(count, QUEUE_SECONDS)
        self._advice = _Queue(1, QUEUE_SECONDS)
        self._work = _Queue(1, WORK_QUEUE_SECONDS)
        self._idle_seconds = idle_seconds
        self._spare = False
        self._closed = False
        self._children: set[_Child] = set()
        self._idle: list[_Child] = []
        self._started: asyncio.Task[None] | None = None  # the spare that is being started
        self._farewells: set[asyncio.Task[None]] = set()
        self._watches: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        if self._started is not None:
            await self._started
        for child in self._idle:
            self._farewell(child)
        self._idle.clear()
        for child in self._children:
            child.kill()  # whoever waits for its answer hears of it, and ends it
        for queue in (self._builds, self._advice, self._work):
            await queue.emptied()
        await asyncio.gather(*self._farewells, *self._watches)

    def keep_spare(self) -> None:
        """Have one child at least from now on, also when there is nothing to read."""
        self._spare = True
        self._have_spare()

    async def build(self, packed: bytes, source: Source, deadline: float = BUILD_SECONDS) -> Build:
        """The tools of a definition. DefinitionUnreadable if it is, or takes too long."""
        async with self._place(self._builds):
            answer = await self._answered(Request(source), packed, deadline)
        for build in decoded_in_steps(answer):
            if build is not None:
                return build
            await asyncio.sleep(0)
        raise AssertionError("the last step is the build")

    async def advise(self, packed: bytes, deadline: float = ADVICE_SECONDS) -> tuple[Problem, ...]:
        """What a validator says of the definition; a note where it can't be asked."""
        if await asyncio.to_thread(is_larger, packed, MAX_ADVISED_BYTES):
            return _not_advised(f"larger than {MAX_ADVISED_BYTES // 1024 // 1024} MB")
        async with self._place(self._advice):
            child = await self._spawned("advise")
            try:
                async with asyncio.timeout(deadline):
                    answer, data = await child.ask(Request(), packed)
            except TimeoutError:
                return _not_advised(f"took longer than {deadline:g} s")
            except (OSError, EOFError):
                return _not_advised(f"took more than {ADVICE_CPU_SECONDS:g} s or too much memory")
            finally:
                await self._end(child)
        if answer.error is not None:
            return _not_advised(str(answer.error["message"]))
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
            async with self._place(self._work):
                return await self._answered(request, data, deadline)
        except (GatewayError, OSError):
            return None

    async def _answered(self, request: Request, data: bytes, deadline: float) -> bytearray:
        if self._started is not None:
            await asyncio.shield(self._started)
        child = self._warm() or await self._spawned("build")
        try:
            return await self._asked(child, request, data, deadline)
        except _Crashed as crash:
            if self._closed:
                raise _closed_error() from crash
            if crash.status not in _FROM_OUTSIDE:
                raise _crash_error(crash) from crash
        # Who ends a child from outside says nothing about this document.
        child = await self._spawned("build")
        try:
            return await self._asked(child, request, data, deadline)
        except _Crashed as crash:
            raise _crash_error(crash) from crash

    async def _asked(
        self, child: _Child, request: Request, data: bytes, deadline: float
    ) -> bytearray:
        keep = False
        try:
            async with asyncio.timeout(deadline):
                answer, found = await child.ask(request, data)
            keep = not answer.retires
        except TimeoutError as error:
            raise DefinitionUnreadable(
                f"Reading the definition took longer than {deadline:g} s.",
                "Use a smaller or simpler definition.",
            ) from error
        except (OSError, EOFError) as error:
            raise _Crashed(await child.exit_status()) from error
        finally:
            if keep and not self._closed:
                self._rest(child)
            else:
                await self._end(child)
        if answer.error is not None:
            raise DefinitionUnreadable(str(answer.error["message"]), str(answer.error["hint"]))
        return found

    @asynccontextmanager
    async def _place(self, queue: _Queue) -> AsyncIterator[None]:
        """A turn among those who wait, who are not too many and don't wait for ever."""
        if self._closed:
            raise _closed_error()
        if queue.waiting >= MAX_WAITING:
            raise Overloaded("busy", "Too many definitions are being read.", "Try again later.")
        queue.waiting += 1
        try:
            async with asyncio.timeout(queue.seconds):
                await queue.places.acquire()
        except TimeoutError as error:
            raise Overloaded(
                "busy", "Too many definitions are being read.", "Try again later."
            ) from error
        finally:
            queue.waiting -= 1
        try:
            yield
        finally:
            queue.places.release()

    async def _spawned(self, role: str) -> _Child:
        if self._closed:
            raise _closed_error()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway.reader",
            role,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_ALLOCATOR | {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ},
            start_new_session=True,  # Ctrl-C is for us to hear; children end with their stdin
            preexec_fn=streams_only(),
            limit=_STREAM_LIMIT,
        )
        child = _Child(process, role)
        self._children.add(child)
        watch = asyncio.get_running_loop().create_task(self._watch(child))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        if self._closed:  # meanwhile, and nobody else knows of this child
            await self._end(child)
            raise _closed_error()
        return child

    async def _watch(self, child: _Child) -> None:
        """Notice that an idle child was ended by others: the next one should find another."""
        await child.ended()
        if child in self._idle:
            self._idle.remove(child)
            self._farewell(child)

    def _have_spare(self) -> None:
        """Start a child where there is none that reads or could."""
        starting = self._started is not None and not self._started.done()
        reading = any(child.role == "build" for child in self._children)
        if self._spare and not (self._closed or starting or reading):
            self._started = asyncio.get_running_loop().create_task(self._start_spare())

    async def _start_spare(self) -> None:
        try:
            self._rest(await self._spawned("build"))
        except (GatewayError, OSError) as error:  # the next who needs a child tries again
            if not self._closed:
                log.warning("no spare reader", error=str(error))

    def _warm(self) -> _Child | None:
        while self._idle:
            child = self._idle.pop()
            child.stay()
            if child.is_alive():
                return child
            self._farewell(child)
        return None

    def _rest(self, child: _Child) -> None:
        loop = asyncio.get_running_loop()
        child.leaves = loop.call_later(self._idle_seconds, self._retire, child)
        self._idle.append(child)

    def _retire(self, child: _Child) -> None:
        if child in self._idle and not (self._spare and len(self._idle) == 1):
            self._idle.remove(child)
            self._farewell(child)

    def _farewell(self, child: _Child) -> asyncio.Task[None]:
        self._children.discard(child)
        if child.farewell is None:
            child.farewell = asyncio.get_running_loop().create_task(self._parted(child))
            self._farewells.add(child.farewell)
            child.farewell.add_done_callback(self._farewells.discard)
        return child.farewell

    async def _parted(self, child: _Child) -> None:
        await child.end()
        self._have_spare()  # not before: two would take the memory of both

    async def _end(self, child: _Child) -> None:
        """End the child, also when whoever waits for this is being cancelled."""
        await asyncio.shield(self._farewell(child))


class _Queue:
    """Those who are served at the same time, and those who wait."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self.seconds = seconds
        self.places = asyncio.Semaphore(count)
        self.waiting = 0

    async def emptied(self) -> None:
        """Returns when nobody is served any more, nor will be."""
        for _ in range(self.count):
            await self.places.acquire()


class _Crashed(Exception):
    """The child ended without an answer."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status


class _Child:
    """One child process, its streams, and when it leaves if nobody needs it."""

    def __init__(self, process: asyncio.subprocess.Process, role: str) -> None:
        self.role = role
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self.leaves: asyncio.TimerHandle | None = None
        self.farewell: asyncio.Task[None] | None = None

    async def ask(self, request: Request, packed: bytes) -> tuple[Answer, bytearray]:
        """One job. In chunks: a whole document at once would be copied into a buffer."""
        try:
            await self._tell(request, packed)
        except RuntimeError as error:  # uvloop's word for a pipe that is closed already
            raise BrokenPipeError(str(error)) from error
        head_size, size = LENGTHS.unpack(await self._stdout.readexactly(LENGTHS.size))
        if size > MAX_ANSWER:
            raise EOFError("answer out of bounds")
        answer = msgspec.msgpack.decode(await self._stdout.readexactly(head_size), type=Answer)
        return answer, await self._read(size)

    async def _tell(self, request: Request, packed: bytes) -> None:
        head = msgspec.msgpack.encode(request)
        self._stdin.write(LENGTHS.pack(len(head), len(packed)) + head)
        view = memoryview(packed)
        for start in range(0, len(packed), _CHUNK):
            self._stdin.write(view[start : start + _CHUNK])
            await self._stdin.drain()
        await self._stdin.drain()

    async def _read(self, size: int) -> bytearray:
        """As `readexactly`, which would have a large answer twice."""
        data, at = bytearray(size), 0
        while at < size:
            chunk = await self._stdout.read(min(_CHUNK, size - at))
            if not chunk:
                raise EOFError("answer broken off")
            data[at : at + len(chunk)] = chunk
            at += len(chunk)
        return data

    def is_alive(self) -> bool:
        return self._process.returncode is None and not self._stdout.at_eof()

    async def ended(self) -> None:
        """Returns when the process is gone."""
        await self._process.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def stay(self) -> None:
        if self.leaves is not None:
            self.leaves.cancel()
            self.leaves = None

    async def exit_status(self) -> int | None:
        """How a child ended that went by itself, negative for a signal; None if it is still here.

        Waiting and not killing: a signal to what is dead already would lose the status.
        """
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def end(self) -> None:
        """Gone when this returns."""
        self.stay()
        self._stdin.close()
        self.kill()
        while await self._stdout.read(_CHUNK):
            pass  # what it had still to say; the pipe closes when all of it is read
        await self._process.wait()


def _closed_error() -> Broken:
    return Broken("internal", "The gateway is closing: no definition is read any more.")


def _crash_error(crash: _Crashed) -> DefinitionUnreadable:
    if crash.status == -signal.SIGPROF:
        what = "needs more processor time than a reader may have"
    elif crash.status is not None and crash.status < 0:
        what = "made its reader run out of memory or crash"
    else:
        what = "made its reader fail"
    return DefinitionUnreadable(f"The definition {what}.", "Use a smaller or simpler definition.")


def _not_advised(why: str) -> tuple[Problem, ...]:
    return (Problem("info", "", f"validation skipped: {why}"),)
