"""Limits on outgoing calls: a call over a limit is refused at once, or after a short queue.

    rate        bounds requests in any window, per connection and principal, or per connection
    slots       bounds calls at the same time, overall and per connection, with a short queue
    circuit     a connection that keeps failing is left alone, then tried with a single call
    pause       an API that said `Retry-After` is not called before then
    retry       a read that never left is repeated once, unless the call before it failed too
    large       a few large answers are in memory at the same time; further ones are cut
    running     calls that no request carries, few at a time for each principal
    failures    wrong tokens and unknown names, from one source and in all, within a minute

Where processes share a store, rates are counted in it; all else is per process and bounded.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from cachetools import LRUCache

from gateway import limits
from gateway.errors import Overloaded, UpstreamFailed
from gateway.model import RateLimit, Result
from gateway.outbound.client import NoAnswer
from gateway.outbound.content import Room
from gateway.store.cluster import take_of_window
from gateway.store.database import Database

CANCEL = "cancel"  # the signal, with the execution's id; also the message when a caller cancels
Clock = Callable[[], float]
_CALL_FAILURES = ("upstream_error", "sign_in_required")  # failures that say nothing of the API


class Admission:
    """Every bound on calls, for all connections of this process."""

    def __init__(
        self,
        max_concurrent_calls: int = 256,
        *,
        shared_db: Database | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._shared_db = shared_db
        self._clock = clock
        self._overall = Slots(max_concurrent_calls, "The gateway")
        self._large_answers = asyncio.Semaphore(limits.LARGE_ANSWERS)
        self._health: dict[str, ApiHealth] = {}
        self._windows = Throttle(clock)

    def resize(self, max_concurrent_calls: int) -> None:
        """Takes over a new bound; calls under way are not touched."""
        self._overall.resize(max_concurrent_calls)

    async def admit(self, connection: str, principal: str, limit: RateLimit | None) -> ApiHealth:
        """The health that a request passes through; refuses where the rate limit is used up."""
        if limit is not None:
            await self._count(connection, principal, limit)
        return self.health_of(connection, principal, limit)

    async def _count(self, connection: str, principal: str, limit: RateLimit) -> None:
        owner = "" if limit.per == "connection" else principal
        key, requests, seconds = f"{connection}\0{owner}", limit.requests, limit.window_seconds
        if self._shared_db is None:
            wait = self._windows.window_wait(key, requests, seconds)
        else:
            wait = await take_of_window(
                self._shared_db, key, requests=requests, seconds=seconds, now=time.time()
            )
        if wait > 0:
            raise _refusal("rate_limited", f"More than {requests} requests in {seconds:g} s.", wait)
        if self._shared_db is None:
            self._windows.count(key, seconds)

    def health_of(
        self, connection: str, principal: str = "", limit: RateLimit | None = None
    ) -> ApiHealth:
        """The health of a connection: each call runs as its block."""
        is_per_user = limit is not None and limit.per == "user"
        key = f"{connection} {principal}" if is_per_user else connection
        health = self._health.get(key)
        if health is None:
            if len(self._health) >= limits.MAX_REMEMBERED:  # of many people: learnt again
                self._health.clear()
            slots = Slots(limits.CALLS_PER_CONNECTION, "The connection")
            health = self._health[key] = ApiHealth(self._clock, slots, self._overall)
        return health

    def room_for_large(self, connection: str, more_than: int = 0) -> Room:
        """Room for one answer that may turn out large, to be kept as long as the answer.

        A connection has one large answer at a time, all connections together a few.
        """
        semaphores = (self.health_of(connection).large_answers, self._large_answers)
        return Room(max(limits.LARGE_BYTES, more_than), semaphores)


@dataclass(slots=True)
class ApiHealth:
    """The health of one connection: how its last calls fared.

    Each call is a block. The sender notes the answer; an error that says that no answer came counts
    as a failure. Any other end counts for nothing.
    """

    clock: Clock
    slots: Slots
    overall: Slots
    large_answers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    failures: int = 0
    open_until: float = 0.0
    paused_until: float = 0.0

    async def __aenter__(self) -> ApiHealth:
        self.refuse_if_resting()  # before queueing as well: a refusal need not wait
        taken_slots = []
        try:
            for slots in (self.slots, self.overall):
                await slots.take()
                taken_slots.append(slots)
            self.refuse_if_resting()
        except BaseException:
            for slots in taken_slots:
                slots.free()
            raise
        if self.failures >= limits.FAILURES_TO_OPEN:
            self.open_until = self.clock() + limits.OPEN_SECONDS  # this call tries; others wait
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if isinstance(error, UpstreamFailed) and error.code not in _CALL_FAILURES:
            self.note_failure()
        self.slots.free()
        self.overall.free()

    def note_answer(self, status: int, retry_after: str | None = None) -> None:
        """Notes an answer: a 5xx is a failure, and `Retry-After` of a 429 or 503 is obeyed."""
        seconds = retry_after_seconds(retry_after) if status in (429, 503) else None
        if seconds is not None:
            self.paused_until = max(self.paused_until, self.clock() + seconds)
        if status >= 500 and status != 501:
            self.note_failure()
        else:
            self.failures = 0

    def note_failure(self) -> None:
        """Notes that no answer came, or an answer that says the API is broken."""
        self.failures += 1
        self.open_until = self.clock() + limits.OPEN_SECONDS

    def may_retry(self, method: str, error: NoAnswer) -> bool:
        """Whether the call may be made once more: a broken API is not asked twice as often."""
        unsent = not error.sent and error.code == "upstream_unreachable"
        return unsent and method in ("GET", "HEAD") and self.failures == 0

    def refuse_if_resting(self) -> None:
        """Refuses a call to an API that asked for a pause, or that has failed too often."""
        now = self.clock()
        if now < self.paused_until:
            pause = self.paused_until - now
            raise _refusal("rate_limited", "The API asked to be left alone for a while.", pause)
        if now < self.open_until and self.failures >= limits.FAILURES_TO_OPEN:
            wait = self.open_until - now
            raise _refusal("circuit_open", "The API has failed several times in a row.", wait)


class Slots:
    """Lets `limit` calls run at a time; a few more wait their turn, in order and not for long."""

    def __init__(self, limit: int, owner: str) -> None:
        self._limit = self._free_slots = limit
        self._owner = owner
        self._turns: deque[asyncio.Future[None]] = deque()

    def resize(self, limit: int) -> None:
        """Takes over a new bound."""
        self._free_slots += limit - self._limit
        self._limit = limit

    async def take(self) -> None:
        """Takes a slot, which the caller must free; raises `busy` if no slot comes free in time."""
        self._free_slots -= 1
        if self._free_slots >= 0:
            return
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            if len(self._turns) > limits.MAX_WAITING_CALLS:
                raise TimeoutError
            async with asyncio.timeout(limits.MOMENT_SECONDS):
                await turn
        except BaseException as error:
            if turn in self._turns:
                self._turns.remove(turn)
                self._free_slots += 1
            else:
                self.free()  # its turn came in the same moment
            if isinstance(error, TimeoutError):
                raise _refusal("busy", f"{self._owner} has its hands full.", 1.0) from None
            raise

    def free(self) -> None:
        """Gives a slot back, to the call that waits longest if there is one."""
        self._free_slots += 1
        if self._turns and self._free_slots > -len(self._turns):
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)


def retry_after_seconds(value: str | None, now: datetime | None = None) -> float | None:
    """The seconds that a `Retry-After` header asks for, in either of its forms, within reason."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), limits.LONGEST_PAUSE_SECONDS)
    try:
        moment = parsedate_to_datetime(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, OverflowError, TypeError):
        return None
    return min(max(seconds, 0.0), limits.LONGEST_PAUSE_SECONDS)


def _refusal(code: str, message: str, seconds: float) -> Overloaded:
    wait = max(1, math.ceil(seconds))
    return Overloaded(code, message, f"Try again in {wait} s.", retry_after=wait)


class CallTasks:
    """The calls of this process that no request carries, and the work that other calls left.

    A write runs in a task of its own: once begun it is finished and recorded, whether or not its
    caller is still there; a caller that cancels it stops it.
    """

    def __init__(self) -> None:
        # Each with its execution's id, and the owner whose calls are counted.
        self._tasks: dict[asyncio.Task[Any], tuple[str, object]] = {}

    async def run_to_end(self, id: str, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of the work. A caller that leaves does not stop it; one that cancels does."""
        task = self.start(work, id)
        try:
            result: Result = await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if error.args == (CANCEL,):
                task.cancel()
            raise
        return result

    def count(self, owner: object) -> int:
        """The number of calls that run for this owner."""
        return sum(task_owner == owner for _, task_owner in self._tasks.values())

    def start(
        self, work: Coroutine[Any, Any, Any], id: str = "", owner: object = None
    ) -> asyncio.Task[Any]:
        """Runs the work: the call of this id, among those of this owner."""
        task = asyncio.create_task(work, name=f"call {id}")
        self._tasks[task] = (id, owner)
        task.add_done_callback(self._end)
        return task

    def cancel(self, id: str) -> list[asyncio.Task[Any]]:
        """Cancels a call; gives its task if it runs here, which ends once the call is recorded."""
        return [task for task, (of, _) in self._tasks.items() if id and of == id and task.cancel()]

    async def drain(self, seconds: float) -> None:
        """Waits until no call runs any more, for at most this many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._tasks:  # a call may begin another
                    await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Ends the calls that still run; each is recorded in the state it then has."""
        tasks = [task for task in self._tasks if task.cancel()]
        if tasks:
            await asyncio.wait(tasks, timeout=limits.MOMENT_SECONDS)

    def _end(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # reads the error: asyncio complains of an error that nobody read


class Throttle:
    """Counts events within the last seconds, by key.

    Wrong attempts are bounded within a minute: from one source (an address, a principal), and
    from all. Attempts beyond the bound wait until the oldest counted attempt is a minute ago.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._times: LRUCache[str, deque[float]] = LRUCache(limits.MAX_REMEMBERED)

    def window_wait(self, key: str, bound: int, seconds: float) -> float:
        """The seconds until the window holds fewer than the bound; 0.0: it does now."""
        times = self._times.get(key, ())
        return max(0.0, times[-bound] + seconds - self._clock()) if len(times) >= bound else 0.0

    def count(self, key: str, seconds: float) -> None:
        """Counts one event now, and forgets those from before the window."""
        now, times = self._clock(), self._times.setdefault(key, deque())
        while times and times[0] <= now - seconds:
            times.popleft()
        times.append(now)

    def failure_wait(self, source: str) -> float:
        """Seconds until the next attempt of this source is looked at; 0: now."""
        bounds = (("all", limits.ALL_FAILURES_A_MINUTE), (f"of {source}", limits.FAILURES_A_MINUTE))
        return max(self.window_wait(key, bound, 60.0) for key, bound in bounds)

    def count_failure(self, source: str) -> None:
        """Counts a wrong attempt."""
        for key in ("all", f"of {source}"):
            self.count(key, 60.0)
