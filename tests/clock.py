"""A clock to turn."""

from __future__ import annotations


class Clock:
    """Time that a test turns."""

    def __init__(self, now: float = 1_750_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
