"""How much may go out, and when it is better to wait: all of it answered at once, none by queueing.

    rate        so many requests in any window, per connection and principal
    slots       so many calls at the same time, overall and per connection, with a short queue
    circuit     a connection that keeps failing is left alone, then tried with a single call
    pause       an API that said `Retry-After` is not asked before
    retries     a read that never left may be repeated, while repeats stay a small part of calls
    large       few answers larger than most are held at the same time; the others are cut

State is per process and bounded. The clock is a parameter; it only has to go forward.

Rate limits that hold over all processes of a store.

A process asks the store for a few requests at a time and hands them out; what it does not use is
lost when the window ends, so that together they never send more than is allowed. With one process
there is nothing to share, and `limits` counts in memory.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

import msgspec
from cachetools import LRUCache

from gateway.errors import Overloaded
from gateway.model import RateLimit
from gateway.outbound.client import NoAnswer
from gateway.store.cluster import take_of_window
from gateway.store.database import Database

CALLS_PER_CONNECTION = 32
MAX_WAITING = 256  # of calls for a slot, per connection and overall
WAIT_SECONDS = 2.0
LARGE_BYTES = 256 * 1024  # of an answer: up to this size nobody has to ask
LARGE_PER_CONNECTION = 1
LARGE_OVERALL = 4
LARGE_WAIT_SECONDS = 60.0  # the call's own deadline comes first
FAILURES_TO_OPEN = 5
OPEN_SECONDS = 10.0
PROBE_SECONDS = 60.0  # after which a probe that never came back is given up
MAX_PAUSE_SECONDS = 300.0
MAX_WINDOWS = 10_000
RETRY_SHARE = 0.1
MAX_RETRIES_SAVED = 10.0

Clock = Callable[[], float]
Holds = Callable[[int], Awaitable[bool]]


class Rates(Protocol):
    """Counts requests together with other processes."""

    async def take(self, connection: str, principal: str, limit: RateLimit | None) -> None: ...


class Admission:
    """Every bound on calls, for all connections of this process."""

    def __init__(
        self,
        max_concurrent_calls: int = 256,
        *,
        clock: Clock = time.monotonic,
        wait_seconds: float = WAIT_SECONDS,
        rates: Rates | None = None,
    ) -> None:
        self._clock = clock
        self._rates = rates
        self._wait_seconds = wait_seconds
        self._overall = Slots(max_concurrent_calls, "The gateway", wait_seconds)
        self._large = Slots(LARGE_OVERALL, "The gateway", LARGE_WAIT_SECONDS)
        self._connections: dict[str, _Connection] = {}
        self._windows: LRUCache[tuple[str, str], deque[float]] = LRUCache(MAX_WINDOWS)

    def resize(self, max_concurrent_calls: int) -> None:
        """Take over a new bound; calls under way are not touched."""
        self._overall.resize(max_concurrent_calls)

    def forget(self, connection: str) -> None:
        """Begin anew with a connection that was replaced or removed."""
        known = self._connections.get(connection)
        if known:
            self._connections[connection] = _Connection(known.slots, known.large)

    async def admit(self, connection: str, principal: str, limit: RateLimit | None) -> None:
        """Count one request against the rate limit, over all processes where there are several."""
        if self._rates is not None and limit is not None:
            await self._rates.take(connection, principal, limit)
        else:
            self.take(connection, principal, limit)

    def take(self, connection: str, principal: str, limit: RateLimit | None) -> None:
        """Count one request against the rate limit, or refuse it."""
        if limit is None:
            return
        now = self._clock()
        window = self._windows.setdefault((connection, principal), deque())
        while window and window[0] <= now - limit.window_seconds:
            window.popleft()
        if len(window) >= limit.requests:
            over = window[len(window) - limit.requests]
            raise _later(
                "rate_limited",
                f"More than {limit.requests} requests in {limit.window_seconds:g} s.",
                over + limit.window_seconds - now,
            )
        window.append(now)

    def call(self, connection: str) -> CallRoom:
        """Room for one call. Tell the outcome what came of it; untold counts for nothing."""
        return CallRoom(self, self._state(connection))

    def large(self, connection: str, more_than: int = 0) -> LargeRoom:
        """Room for one answer that may turn out larger than most, to be kept while it is held."""
        slots = (self._state(connection).large, self._large)
        return LargeRoom(max(LARGE_BYTES, more_than), slots)

    async def enter(self, state: _Connection) -> bool:
        """Take the slots of a call; whether it is the one that tries a connection again."""
        self._check_rest(state)  # before queueing as well: a refusal need not wait
        await state.slots.take()
        try:
            await self._overall.take()
        except BaseException:
            state.slots.free()
            raise
        try:
            self._check_rest(state)
        except BaseException:
            self._free(state)
            raise
        probe = state.failures >= FAILURES_TO_OPEN
        if probe:
            state.probing_until = self._clock() + PROBE_SECONDS
        return probe

    def leave(self, state: _Connection, probe: bool) -> None:
        """Give the slots of a call back."""
        state.retries = min(MAX_RETRIES_SAVED, state.retries + RETRY_SHARE)
        if probe:
            state.probing_until = 0.0
        self._free(state)

    def outcome(self, state: _Connection) -> Outcome:
        """Where to say what came of a call."""
        return Outcome(state, self._clock)

    def _free(self, state: _Connection) -> None:
        self._overall.free()
        state.slots.free()

    def _state(self, connection: str) -> _Connection:
        state = self._connections.get(connection)
        if state is None:
            slots = Slots(CALLS_PER_CONNECTION, "The connection", self._wait_seconds)
            large = Slots(LARGE_PER_CONNECTION, "The connection", LARGE_WAIT_SECONDS)
            state = self._connections[connection] = _Connection(slots, large)
        return state

    def _check_rest(self, state: _Connection) -> None:
        """Refuse a call to an API that asked for a pause, or that has failed too often."""
        now = self._clock()
        if now < state.paused_until:
            pause = state.paused_until - now
            raise _later("rate_limited", "The API asked to be left alone for a while.", pause)
        if state.failures < FAILURES_TO_OPEN:
            return
        if now < state.open_until or now < state.probing_until:
            wait = max(state.open_until - now, 1.0)
            raise _later("circuit_open", "The API has failed several times in a row.", wait)


class CallRoom:
    """One call's place among the others, for as long as the block lasts."""

    __slots__ = ("_limits", "_probe", "_state")

    def __init__(self, limits: Admission, state: _Connection) -> None:
        self._limits = limits
        self._state = state
        self._probe = False

    async def __aenter__(self) -> Outcome:
        self._probe = await self._limits.enter(self._state)
        return self._limits.outcome(self._state)

    async def __aexit__(self, *_: object) -> None:
        self._limits.leave(self._state, self._probe)


class LargeRoom:
    """One call's right to hold a large answer, taken if it gets one, while the block lasts.

    A connection has few of its own and all together have a few: what waits for its turn is not
    read from the wire, and what gets none in time is cut.
    """

    __slots__ = ("_slots", "_taken", "bytes")

    def __init__(self, bytes: int, slots: tuple[Slots, ...]) -> None:
        self.bytes = bytes
        self._slots = slots
        self._taken: list[Slots] = []

    async def holds(self, size: int) -> bool:
        """Whether so much of an answer may be held."""
        return size <= self.bytes or await self.take(None)

    async def take(self, until: float | None) -> bool:
        """See `Room` of the way out."""
        try:
            async with asyncio.timeout_at(until):
                for slots in self._slots[len(self._taken) :]:
                    await slots.take()
                    self._taken.append(slots)
        except (TimeoutError, Overloaded):
            return False
        return True

    def __enter__(self) -> LargeRoom:
        return self

    def __exit__(self, *_: object) -> None:
        while self._taken:
            self._taken.pop().free()


class Outcome(msgspec.Struct, frozen=True):
    """What came of one call, told by the one who made it."""

    _state: _Connection
    _clock: Clock

    def answered(self, status: int, retry_after: str | None = None) -> None:
        """An answer came; a 5xx is a failure, and `Retry-After` of a 429 or 503 is kept to."""
        seconds = retry_after_seconds(retry_after) if status in (429, 503) else None
        if seconds is not None:
            self._state.paused_until = max(self._state.paused_until, self._clock() + seconds)
        if status >= 500 and status != 501:
            self.failed()
        else:
            self._state.failures = 0

    def failed(self) -> None:
        """No answer came, or one that says the API is broken."""
        self._state.failures += 1
        self._state.open_until = self._clock() + OPEN_SECONDS

    def may_retry(self, method: str, error: NoAnswer) -> bool:
        """Whether the call may be made once more, which uses up some of what is saved for that."""
        if error.sent or error.code != "upstream_unreachable" or method not in ("GET", "HEAD"):
            return False
        if self._state.retries < 1:
            return False
        self._state.retries -= 1
        return True


class Slots:
    """So many at a time; a few more wait their turn, in order and not for long."""

    def __init__(self, limit: int, who: str, wait_seconds: float = WAIT_SECONDS) -> None:
        self._limit = limit
        self._wait_seconds = wait_seconds
        self._who = who
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def resize(self, limit: int) -> None:
        """Change how many there are; those taken stay taken."""
        self._limit = limit
        self._wake()

    async def take(self) -> None:
        """Take a slot, which is to be freed; or `busy`."""
        if self._taken < self._limit and not self._waiting:
            self._taken += 1
        else:
            await self._wait()

    def free(self) -> None:
        """Give a slot back."""
        self._taken -= 1
        self._wake()

    async def _wait(self) -> None:
        if len(self._waiting) >= MAX_WAITING:
            raise self._busy()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._wait_seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.free()  # the slot came at the last moment: hand it on
            with suppress(ValueError):
                self._waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._busy() from None
            raise

    def _wake(self) -> None:
        """Give the slots that are free to those who wait, in order."""
        while self._waiting and self._taken < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)

    def _busy(self) -> Overloaded:
        return _later("busy", f"{self._who} has its hands full.", 1.0)


@dataclass(slots=True)
class _Connection:
    """What is known of one connection's health."""

    slots: Slots
    large: Slots
    failures: int = 0
    open_until: float = 0.0
    probing_until: float = 0.0
    paused_until: float = 0.0
    retries: float = MAX_RETRIES_SAVED


def retry_after_seconds(value: str | None, now: datetime | None = None) -> float | None:
    """The seconds that a `Retry-After` header asks for, in either of its forms, within reason."""
    if not value:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_PAUSE_SECONDS)
    try:
        moment = parsedate_to_datetime(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, OverflowError, TypeError):
        return None
    return min(max(seconds, 0.0), MAX_PAUSE_SECONDS)


def _later(code: str, message: str, seconds: float) -> Overloaded:
    wait = max(1, math.ceil(seconds))
    return Overloaded(code, message, f"Try again in {wait} s.", retry_after=wait)


MAX_LEASES = 10_000
LEASE_PART = 20  # of a limit is taken at once


@dataclass(slots=True)
class _Lease:
    left: int
    until: float


class SharedRates:
    """Takes requests from what all processes may make together."""

    def __init__(self, db: Database, clock: Callable[[], float] = time.time) -> None:
        self._db = db
        self._clock = clock
        self._leases: LRUCache[tuple[str, str], _Lease] = LRUCache(MAX_LEASES)

    async def take(self, connection: str, principal: str, limit: RateLimit | None) -> None:
        """Counts one request of this principal, or refuses it."""
        if limit is None:
            return
        key, now = (connection, principal), self._clock()
        lease = self._leases.get(key)
        if lease is not None and lease.left > 0 and now < lease.until:
            lease.left -= 1
            return
        await self._ask(key, limit, now)

    async def _ask(self, key: tuple[str, str], limit: RateLimit, now: float) -> None:
        most = max(1, limit.requests // LEASE_PART)
        wait = 0.0
        for amount in {most: None, 1: None}:
            wait = await take_of_window(
                self._db,
                "\0".join(key),
                requests=limit.requests,
                seconds=limit.window_seconds,
                now=now,
                amount=amount,
            )
            if wait == 0.0:
                until = (now // limit.window_seconds + 1) * limit.window_seconds
                self._leases[key] = _Lease(amount - 1, until)
                return
        seconds = max(1, math.ceil(wait))
        raise Overloaded(
            "rate_limited",
            f"More than {limit.requests} requests in {limit.window_seconds:g} s.",
            f"Try again in {seconds} s.",
            retry_after=seconds,
        )
