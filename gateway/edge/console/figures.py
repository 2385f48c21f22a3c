"""The figures of the last hour as pages show them, remembered for a moment."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass

from cachetools import TTLCache

from gateway.store.database import Database
from gateway.store.figures import Count, count_calls, recent_seconds

MINUTES = 60
REMEMBER_SECONDS = 1.0
MAX_REMEMBERED = 256
ERRORS = frozenset(("failed", "unknown"))
REFUSED = frozenset(("denied", "expired"))
SPARK_WIDTH, SPARK_HEIGHT = 240, 44


@dataclass(frozen=True, slots=True)
class Hour:
    """What happened in the last hour."""

    by_minute: tuple[int, ...]
    calls: int
    errors: int
    refused: int
    p95_ms: float | None
    by_connection: Counter[str]
    by_client: Counter[str]
    reached: Counter[tuple[str, str]]  # connection, and what was done there

    @property
    def rate(self) -> int:
        """Calls in the minute that is ending."""
        return self.by_minute[-1]


class Figures:
    """Reads the hour from the ledger, at most once a second for one reader."""

    def __init__(self) -> None:
        self._read: TTLCache[str | None, Hour] = TTLCache(MAX_REMEMBERED, REMEMBER_SECONDS)

    async def hour(self, db: Database, principal: str | None) -> Hour:
        """The last hour of one principal, or of all."""
        found = self._read.get(principal)
        if found is None:
            since = time.time() - MINUTES * 60
            counts = await count_calls(db, since, principal)
            seconds = await recent_seconds(db, since, principal)
            found = self._read[principal] = hour_of(counts, seconds)
        return found


def hour_of(counts: list[Count], seconds: list[float]) -> Hour:
    """The hour, of what was counted."""
    minutes = [0] * MINUTES
    by_connection, by_client = Counter[str](), Counter[str]()
    reached, statuses = Counter[tuple[str, str]](), Counter[str]()
    for count in counts:
        minutes[min(max(count.minute, 0), MINUTES - 1)] += count.calls
        by_connection[count.connection] += count.calls
        by_client[client_name(count.client)] += count.calls
        reached[count.connection, count.access] += count.calls
        statuses[count.status] += count.calls
    return Hour(
        tuple(minutes),
        sum(minutes),
        sum(statuses[status] for status in ERRORS),
        sum(statuses[status] for status in REFUSED),
        _p95(seconds),
        by_connection,
        by_client,
        reached,
    )


def client_name(text: str) -> str:
    """What a client calls itself, without its version."""
    return text.rpartition("/")[0][:40] or text[:40] or "unnamed client"


def spark(values: tuple[int, ...]) -> tuple[str, str]:
    """The line and the area under it, as points of an SVG."""
    top = max((*values, 1))
    step = SPARK_WIDTH / (len(values) - 1)
    room = SPARK_HEIGHT - 4
    points = [
        f"{i * step:.1f},{SPARK_HEIGHT - 2 - value / top * room:.1f}"
        for i, value in enumerate(values)
    ]
    line = " ".join(points)
    return line, f"0,{SPARK_HEIGHT} {line} {SPARK_WIDTH},{SPARK_HEIGHT}"


def _p95(seconds: list[float]) -> float | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return ordered[math.ceil(len(ordered) * 0.95) - 1] * 1000
