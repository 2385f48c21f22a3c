"""How far the first look at connections has come: a bar on a terminal, plain lines elsewhere.

One connection needs no progress, so nothing is said of it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

Loading = Callable[[int], Callable[[str], None]]

WORTH_TELLING = 2
BAR_CHARS = 24


def loading(total: int) -> Callable[[str], None]:
    """What to call with the name of each connection, of so many, that has been looked at."""
    counted = itertools.count(1)

    def told(name: str) -> None:
        done = next(counted)
        if total >= WORTH_TELLING:
            text = bar(done, total, name) if sys.stderr.isatty() else line(done, total, name)
            print(text, end="", file=sys.stderr, flush=True)

    return told


def silent(total: int) -> Callable[[str], None]:
    """For who has no one to tell."""
    return lambda name: None


def line(done: int, total: int, name: str) -> str:
    """One line a connection."""
    return f"loaded {name} ({done} of {total})\n"


def bar(done: int, total: int, name: str) -> str:
    """The same line over and over, wiped at the end."""
    filled = "█" * (done * BAR_CHARS // total)
    shown = f"Loading {filled:░<{BAR_CHARS}} {done}/{total} {name}"
    return f"\r\x1b[K{shown}" if done < total else "\r\x1b[K"
