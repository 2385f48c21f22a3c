"""Rate limits that hold over all processes of a store.

A process asks the store for a few requests at a time and hands them out; what it does not use is
lost when the window ends, so that together they never send more than is allowed. With one process
there is nothing to share, and `limits` counts in memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

from gateway.errors import Overloaded
from gateway.model import RateLimit
from gateway.store.database import Database
from gateway.store.windows import take_of_window

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
