"""How much may go out, and when it is better to wait: refused at once, or after a short queue.

    rate        so many requests in any window, per connection and principal, or per connection
    slots       so many calls at the same time, overall and per connection, with a short queue
    circuit     a connection that keeps failing is left alone, then tried with a single call
    pause       an API that said `Retry-After` is not asked before
    retry       a read that never left is repeated once, unless the call before it failed too
    large       few answers larger than most are held at the same time; the others are cut
    running     calls that no request carries, few at a time for each principal
    failures    wrong tokens and unknown names, from one source and in all, within a minute

Where several processes share a store, rates are counted in it; all else is per process and bounded.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from cachetools import LRUCache

from gateway.errors import Overloaded, UpstreamFailed
from gateway.limits import (
    ALL_FAILURES_A_MINUTE,
    CALLS_PER_CONNECTION,
    FAILURES_A_MINUTE,
    FAILURES_TO_OPEN,
    LARGE_ANSWERS,
    LARGE_BYTES,
    LONGEST_PAUSE_SECONDS,
    MAX_REMEMBERED,
    MAX_WAITING_CALLS,
    MOMENT_SECONDS,
    OPEN_SECONDS,
)
from gateway.model import RateLimit, Result
from gateway.outbound.client import NoAnswer
from gateway.outbound.content import Room
from gateway.store.cluster import take_of_window
from gateway.store.database import Database

CANCEL = "cancel"  # the signal, with the execution's id; the word of a caller who says so
Clock = Callable[[], float]
_OF_THE_CALL = ("upstream_error", "sign_in_required")  # failures that say nothing of the API


class Admission:
    """Every bound on calls, for all connections of this process."""

    def __init__(
        self,
        max_concurrent_calls: int = 256,
        *,
        shared: Database | None = None,
        clock: Clock = time.monotonic,
        wait_seconds: float = MOMENT_SECONDS,
    ) -> None:
        self._shared = shared
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._overall = Slots(max_concurrent_calls, "The gateway", wait_seconds)
        self._large = asyncio.Semaphore(LARGE_ANSWERS)
        self._circuits: LRUCache[str, ApiHealth] = LRUCache(MAX_REMEMBERED)
        self._windows = _Windows(clock)

    def resize(self, max_concurrent_calls: int) -> None:
        """Take over a new bound; calls under way are not touched."""
        self._overall = Slots(max_concurrent_calls, "The gateway", self._wait_seconds)

    async def admit(self, connection: str, principal: str, limit: RateLimit) -> None:
        """Count one request against the rate limit, or refuse it."""
        whose = "" if limit.per == "connection" else principal
        key, requests, seconds = f"{connection}\0{whose}", limit.requests, limit.window_seconds
        if self._shared is None:
            wait = self._windows.wait(key, requests, seconds)
        else:
            wait = await take_of_window(
                self._shared, key, requests=requests, seconds=seconds, now=time.time()
            )
        if wait > 0:
            raise _later("rate_limited", f"More than {requests} requests in {seconds:g} s.", wait)
        if self._shared is None:
            self._windows.count(key, seconds)

    @asynccontextmanager
    async def call(
        self, connection: str, principal: str = "", limit: RateLimit | None = None
    ) -> AsyncIterator[ApiHealth]:
        """One call's place among the others while the block lasts.

        The sender notes the answer; an error that says that none came counts as a failure. Any
        other end counts for nothing.
        """
        alone = limit is not None and limit.per == "user"
        health = self._health(f"{connection} {principal}" if alone else connection)
        health.check_rest()  # before queueing as well: a refusal need not wait
        if limit is not None:
            await self.admit(connection, principal, limit)
        async with health.slots, self._overall:
            health.check_rest()
            if health.failures >= FAILURES_TO_OPEN:
                health.open_until = self._clock() + OPEN_SECONDS  # this one tries; others wait
            try:
                yield health
            except UpstreamFailed as error:
                if error.code not in _OF_THE_CALL:
                    health.note_failure()
                raise

    def large(self, connection: str, more_than: int = 0) -> Room:
        """Room for one answer that may turn out larger than most, to be kept while it is held.

        A connection holds one large answer at a time, all together a few.
        """
        free = (self._health(connection).large, self._large)
        return Room(max(LARGE_BYTES, more_than), free)

    def _health(self, circuit: str) -> ApiHealth:
        health = self._circuits.get(circuit)
        if health is None:
            slots = Slots(CALLS_PER_CONNECTION, "The connection", self._wait_seconds)
            health = self._circuits[circuit] = ApiHealth(self._clock, slots)
        return health


@dataclass(slots=True)
class ApiHealth:
    """What is known of one connection: how its last calls fared."""

    clock: Clock
    slots: Slots
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    failures: int = 0
    open_until: float = 0.0
    paused_until: float = 0.0

    def note_answer(self, status: int, retry_after: str | None = None) -> None:
        """An answer came; a 5xx is a failure, and `Retry-After` of a 429 or 503 is kept to."""
        seconds = retry_after_seconds(retry_after) if status in (429, 503) else None
        if seconds is not None:
            self.paused_until = max(self.paused_until, self.clock() + seconds)
        if status >= 500 and status != 501:
            self.note_failure()
        else:
            self.failures = 0

    def note_failure(self) -> None:
        """No answer came, or one that says the API is broken."""
        self.failures += 1
        self.open_until = self.clock() + OPEN_SECONDS

    def may_retry(self, method: str, error: NoAnswer) -> bool:
        """Whether the call may be made once more: a broken API is not asked twice as often."""
        unsent = not error.sent and error.code == "upstream_unreachable"
        return unsent and method in ("GET", "HEAD") and self.failures == 0

    def check_rest(self) -> None:
        """Refuse a call to an API that asked for a pause, or that has failed too often."""
        now = self.clock()
        if now < self.paused_until:
            pause = self.paused_until - now
            raise _later("rate_limited", "The API asked to be left alone for a while.", pause)
        if now < self.open_until and self.failures >= FAILURES_TO_OPEN:
            wait = self.open_until - now
            raise _later("circuit_open", "The API has failed several times in a row.", wait)


class Slots:
    """So many calls at a time; a few more wait their turn, in order and not for long; or `busy`."""

    def __init__(self, limit: int, owner: str, wait_seconds: float) -> None:
        self._left = limit
        self._turns = asyncio.Semaphore(0)  # what was freed for calls that wait
        self._owner = owner
        self._wait_seconds = wait_seconds
        self._waiting = 0

    async def __aexit__(self, *_: object) -> None:
        if self._waiting:
            self._turns.release()  # to the call that waits longest
        else:
            self._left += 1

    async def __aenter__(self) -> None:
        if self._left:
            self._left -= 1
            return
        busy = _later("busy", f"{self._owner} has its hands full.", 1.0)
        if self._waiting >= MAX_WAITING_CALLS:
            raise busy
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._turns.acquire()
        except TimeoutError:
            raise busy from None
        finally:
            self._waiting -= 1


def retry_after_seconds(value: str | None, now: datetime | None = None) -> float | None:
    """The seconds that a `Retry-After` header asks for, in either of its forms, within reason."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_PAUSE_SECONDS)
    try:
        moment = parsedate_to_datetime(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, OverflowError, TypeError):
        return None
    return min(max(seconds, 0.0), LONGEST_PAUSE_SECONDS)


def _later(code: str, message: str, seconds: float) -> Overloaded:
    wait = max(1, math.ceil(seconds))
    return Overloaded(code, message, f"Try again in {wait} s.", retry_after=wait)


class Running:
    """The calls of this process that no request carries, and what is left to do of others.

    A write runs in a task of its own: once begun it is finished and recorded, whether or not its
    caller is still there; a caller who says so stops it.
    """

    def __init__(self) -> None:
        # With the execution, and who is to have few of them.
        self._tasks: dict[asyncio.Task[Any], tuple[str, object]] = {}

    async def finish(self, id: str, work: Coroutine[Any, Any, Result]) -> Result:
        """What the work gives; a caller who leaves does not stop it, one who says so does."""
        task = self.start(work, id)
        try:
            result: Result = await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if error.args == (CANCEL,):
                task.cancel()
            raise
        return result

    def count(self, owner: object) -> int:
        """How many calls run for this owner."""
        return sum(whose == owner for _, whose in self._tasks.values())

    def start(
        self, work: Coroutine[Any, Any, Any], id: str = "", owner: object = None
    ) -> asyncio.Task[Any]:
        """Runs the work: the call of this id, among those of this owner."""
        task = asyncio.create_task(work, name=f"call {id}")
        self._tasks[task] = (id, owner)
        task.add_done_callback(self._end)
        return task

    def cancel(self, id: str) -> list[asyncio.Task[Any]]:
        """Cancels a call; its task, if it runs here, which ends when the call is recorded."""
        return [task for task, (of, _) in self._tasks.items() if id and of == id and task.cancel()]

    async def drain(self, seconds: float) -> None:
        """Waits until nothing runs any more, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._tasks:  # one may begin another
                    await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Ends what still runs; each call is recorded as what it then is."""
        tasks = [task for task in self._tasks if task.cancel()]
        if tasks:
            await asyncio.wait(tasks, timeout=MOMENT_SECONDS)

    def _end(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may have to


class _Windows:
    """What happened within the last seconds, by key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: LRUCache[str, deque[float]] = LRUCache(MAX_REMEMBERED)

    def wait(self, key: str, bound: int, seconds: float) -> float:
        """In how many seconds there are fewer than the bound; 0.0: now."""
        times = self._times.get(key, ())
        return max(0.0, times[-bound] + seconds - self._clock()) if len(times) >= bound else 0.0

    def count(self, key: str, seconds: float) -> None:
        """Counts one more, and forgets those that are longer ago."""
        now, times = self._clock(), self._times.setdefault(key, deque())
        while times and times[0] <= now - seconds:
            times.popleft()
        times.append(now)


class Throttle:
    """Bounds what went wrong within a minute: from one source (an address, a principal), and all.

    The first attempts are looked at; those beyond wait until the oldest is a minute ago.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._windows = _Windows(clock)

    def wait(self, source: str) -> float:
        """Seconds until the next attempt is looked at; 0: now."""
        bounds = (("all", ALL_FAILURES_A_MINUTE), (f"of {source}", FAILURES_A_MINUTE))
        return max(self._windows.wait(key, bound, 60.0) for key, bound in bounds)

    def failed(self, source: str) -> None:
        """Counts a wrong attempt."""
        for key in ("all", f"of {source}"):
            self._windows.count(key, 60.0)
