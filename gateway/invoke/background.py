"""Calls that outlive the request they came in with.

A write runs in a task of its own: once begun it is finished and recorded, whether or not its caller
is still there; a caller who says so stops it. A background call is one whose caller does not wait
at all; of those a principal has a bounded number at a time. Any of them can be cancelled by its
execution's id.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from gateway.errors import Overloaded
from gateway.invoke.attempt import Attempt

CANCEL = "cancel"  # the signal, with the execution's id; the word of a caller who says so
MAX_BACKGROUND = 16  # calls of one principal, in one process
CANCEL_SECONDS = 2.0

Work = Coroutine[Any, Any, Any]
_T = TypeVar("_T")


async def to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """What the work gives; a cancellation meanwhile counts afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        result = await task
        if (waiting := asyncio.current_task()) is not None:
            waiting.cancel()
        return result


class Running:
    """The calls of this process that no request carries."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._background: Counter[str] = Counter()
        self._more: set[asyncio.Task[Any]] = set()
        self.draining = False  # this process ends: what waits in the store is left to others

    async def finished(self, attempt: Attempt, work: Work) -> dict[str, Any]:
        """What the work gives; a caller who leaves does not stop it, one who says so does."""
        task = self._start(attempt.id, work)
        try:
            result: dict[str, Any] = await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if error.args == (CANCEL,):
                task.cancel()
            raise
        return result

    def check_room(self, attempt: Attempt) -> None:
        """Refuses one background call too many."""
        if self._background[attempt.caller.principal.name] >= MAX_BACKGROUND:
            raise Overloaded(
                "busy",
                f"{MAX_BACKGROUND} of your calls are running in the background.",
                "Wait until one has ended, or cancel one.",
            )

    def start(self, attempt: Attempt, work: Work) -> None:
        """Runs a background call of the principal."""
        principal = attempt.caller.principal.name
        self._background[principal] += 1
        self._start(attempt.id, work).add_done_callback(lambda _: self._leave(principal))

    def start_unbounded(self, attempt: Attempt, work: Work) -> asyncio.Task[Any]:
        """Runs what others bound: a call that may be held, or what is left to do of one."""
        task = asyncio.create_task(work, name=f"more of {attempt.id}")
        self._more.add(task)
        task.add_done_callback(self._more.discard)
        return task

    def cancel(self, id: str) -> bool:
        """Cancels a call; False: it does not run here."""
        task = self._tasks.get(id)
        return task is not None and task.cancel()

    async def cancelled(self, id: str) -> bool:
        """Cancels a call and waits until it is recorded; False: it does not run here."""
        task = self._tasks.get(id)
        if task is None or not task.cancel():
            return False
        await asyncio.wait([task], timeout=CANCEL_SECONDS)
        return True

    async def drain(self, seconds: float) -> None:
        """Waits until nothing runs any more, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while tasks := {*self._tasks.values(), *self._more}:  # one may begin another
                    await asyncio.wait(tasks)

    async def close(self) -> None:
        """Ends what still runs; each call is recorded as what it then is."""
        tasks = {*self._tasks.values(), *self._more}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    def _start(self, id: str, work: Work) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=f"call {id}")
        self._tasks[id] = task
        task.add_done_callback(lambda _: self._end(id, task))
        return task

    def _end(self, id: str, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(id) is task:
            del self._tasks[id]
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may have to

    def _leave(self, principal: str) -> None:
        self._background[principal] -= 1
        if not self._background[principal]:
            del self._background[principal]
