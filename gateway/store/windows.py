"""How often something was done of late, counted by several processes together.

Two counters a key, of this window and the one before; the earlier one counts for as much of it as
still lies within a window's length from now. So a burst at the border of two windows is no larger
than any other. Takes of one key happen one after the other.
"""

from __future__ import annotations

import math

from sqlalchemy import Connection, select

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.statements import insert_new, upsert

_table = tables.buckets


async def take_of_window(
    db: Database, key: str, *, requests: int, seconds: float, now: float, amount: int = 1
) -> float:
    """Counts `amount` more, if that many may be done now: 0.0; else in how many seconds."""
    return await db.write(
        lambda tx: _take(tx, key, requests, seconds, now, amount), f"window {key}"
    )


def _take(
    tx: Connection, key: str, requests: int, seconds: float, now: float, amount: int
) -> float:
    start = math.floor(now / seconds) * seconds
    empty = {"key": key, "tokens": 0.0, "at": start, "allowed": 0}
    tx.execute(insert_new(tx, _table), empty)
    locked = select(_table).where(_table.c.key == key).with_for_update()
    row = tx.execute(locked).one()
    earlier, current = _counts(row.tokens, row.allowed, row.at, start, seconds)
    share = 1 - (now - start) / seconds
    if earlier * share + current + amount > requests:
        return _wait(earlier, current, requests - amount, seconds, now - start)
    counted = {"key": key, "tokens": earlier, "at": start, "allowed": current + amount}
    tx.execute(upsert(tx, _table), counted)
    return 0.0


def _counts(
    earlier: float, current: int, at: float, start: float, seconds: float
) -> tuple[float, int]:
    """The two counters as they are in the window that starts at `start`."""
    if at >= start:
        return earlier, current
    return (float(current), 0) if at >= start - seconds * 1.5 else (0.0, 0)


def _wait(earlier: float, current: int, room: int, seconds: float, passed: float) -> float:
    """How long until the counters leave room."""
    if current <= room and earlier > 0:
        return max(0.0, seconds * (1 - (room - current) / earlier) - passed)
    rest = seconds - passed  # until the window ends, then this one is the earlier one
    return rest + (seconds * (1 - room / current) if current > room > 0 else 0.0)
