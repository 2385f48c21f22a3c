"""A bound on wrong sign-ins: so many a minute from one address, and so many from all together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from cachetools import LRUCache

WINDOW_SECONDS = 60.0
MAX_FROM_ADDRESS = 8
MAX_OVERALL = 60
MAX_ADDRESSES = 4096


class Throttle:
    """Remembers failures for a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: deque[float] = deque(maxlen=MAX_OVERALL)
        self._by_address: LRUCache[str, deque[float]] = LRUCache(MAX_ADDRESSES)

    def wait(self, address: str) -> float:
        """Seconds until the next attempt is looked at; 0: now."""
        now = self._clock()
        mine = self._by_address.get(address)
        waits = [_wait(self._all, MAX_OVERALL, now)]
        if mine is not None:
            waits.append(_wait(mine, MAX_FROM_ADDRESS, now))
        return max(waits)

    def failed(self, address: str) -> None:
        """Counts a wrong attempt."""
        now = self._clock()
        self._all.append(now)
        mine = self._by_address.get(address)
        if mine is None:
            mine = self._by_address[address] = deque(maxlen=MAX_FROM_ADDRESS)
        mine.append(now)


def _wait(failures: deque[float], allowed: int, now: float) -> float:
    if len(failures) < allowed:
        return 0.0
    return max(0.0, failures[0] + WINDOW_SECONDS - now)
