"""When several ask for one look, and when a look that failed is tried again.

A look that has not begun is shared: whoever asks for the same meanwhile waits for that one. A look
that has begun may have seen what was there before they asked, so those who come later share the
next.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

TOGETHER_SECONDS = 0.1  # for requests that were sent at the same time to arrive
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 300.0

T = TypeVar("T")


class Looks(Generic[T]):
    """Looks by name, one after another for each name, shared by those who ask together."""

    def __init__(self) -> None:
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: dict[str, tuple[asyncio.Task[T], float]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    async def share(
        self,
        name: str,
        look: Callable[[float], Awaitable[T]],
        *,
        since: float | None = None,
        wait: float = 0.0,
    ) -> T:
        """What the next look finds; it goes on to its end for others if this caller leaves.

        `look` is told how new what it finds must be: the latest `since` (by the monotonic clock,
        default: now) of all who share it. It begins `wait` seconds from now, in its turn.
        """
        since = time.monotonic() if since is None else since
        if name in self._waiting:
            task, others = self._waiting[name]
            since = max(since, others)
        else:
            task = asyncio.create_task(self._begin(name, look, wait))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        self._waiting[name] = task, since
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Ends every look."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _begin(self, name: str, look: Callable[[float], Awaitable[T]], wait: float) -> T:
        await asyncio.sleep(wait)
        async with self.locks[name]:
            _, since = self._waiting.pop(name)
            return await look(since)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: those who asked may all have left


class Pauses:
    """Growing pauses between the tries of what keeps failing."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}  # how long, and until when

    def is_over(self, name: str, now: float) -> bool:
        """Whether it is time for the next try of what is failing."""
        pause, until = self._pauses.get(name, (FIRST_PAUSE / 2, 0.0))
        if now < until:
            return False
        pause = min(pause * 2, LONGEST_PAUSE)
        self._pauses[name] = (pause, now + pause * random.uniform(0.8, 1.2))
        return until > 0  # the failure itself was the first try

    def end(self, name: str) -> None:
        """The next failure is a first one again."""
        self._pauses.pop(name, None)
