"""A bound on what went wrong: so many a minute from one source, and so many from all together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from cachetools import LRUCache

WINDOW_SECONDS = 60.0
MAX_FROM_ONE = 8
MAX_OVERALL = 60
MAX_SOURCES = 4096


class Throttle:
    """Remembers failures for a minute, by where they came from: an address, a principal."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        from_one: int = MAX_FROM_ONE,
        overall: int = MAX_OVERALL,
    ) -> None:
        self._clock = clock
        self._from_one = from_one
        self._all: deque[float] = deque(maxlen=overall)
        self._by_source: LRUCache[str, deque[float]] = LRUCache(MAX_SOURCES)

    def wait(self, source: str) -> float:
        """Seconds until the next attempt is looked at; 0: now."""
        now = self._clock()
        failures = (self._all, self._by_source.get(source))
        return max(_wait(each, now) for each in failures if each is not None)

    def failed(self, source: str) -> None:
        """Counts a wrong attempt."""
        now = self._clock()
        self._all.append(now)
        mine = self._by_source.get(source)
        if mine is None:
            mine = self._by_source[source] = deque(maxlen=self._from_one)
        mine.append(now)


def _wait(failures: deque[float], now: float) -> float:
    if len(failures) < (failures.maxlen or 0):
        return 0.0
    return max(0.0, failures[0] + WINDOW_SECONDS - now)
