"""Ids that sort by age: the time in milliseconds, then chance."""

from __future__ import annotations

import os

RANDOM_BYTES = 10
DRAWN_AT_ONCE = 400  # asking the system lets other threads run first, which is dear on every call

_drawn: list[str] = []


def new_id(now: float) -> str:
    """32 hex digits: 12 of time, 20 nobody can guess."""
    try:
        chance = _drawn.pop()
    except IndexError:
        chance = _draw()
    return f"{int(now * 1000):012x}{chance}"


def _draw() -> str:
    size, drawn = 2 * RANDOM_BYTES, os.urandom(RANDOM_BYTES * DRAWN_AT_ONCE).hex()
    _drawn.extend(drawn[start : start + size] for start in range(size, len(drawn), size))
    return drawn[:size]


# A child would draw the same: it begins anew.
os.register_at_fork(after_in_child=_drawn.clear)
