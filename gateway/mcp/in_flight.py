"""Calls in flight in this process: how they are cancelled, asked back, and waited for at the end.

A call runs in the task of its own HTTP request, so two requests with one id can't be crossed: each
is answered where it was asked. What a client names by id (a cancellation, the answer to a question)
is looked up by session and id, and by nothing that another session could guess its way into.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, Protocol, TypeVar

from gateway.calls.held import CANCEL
from gateway.calls.questions import unanswered
from gateway.mcp.messages import RequestId, dump
from gateway.mcp.streams import Reply
from gateway.web.guard import event_frame

MAX_ANSWER_SECONDS = 3600.0  # callers have shorter deadlines of their own

_T = TypeVar("_T")
_Key = tuple[str, RequestId]


class Relay(Protocol):
    """Tells other replicas what a client said of a request that is not running here."""

    def cancelled(self, session: str, request_id: RequestId) -> None: ...

    def answered(self, session: str, request_id: RequestId, body: Mapping[str, Any]) -> None: ...


class Stopped(Exception):
    """A call that its client gave up on."""


class Flight:
    """One call in flight."""

    __slots__ = ("reason", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.reason: Literal["cancelled", "gone"] | None = None

    def stop(self, reason: Literal["cancelled", "gone"]) -> None:
        """Cancel the call; it is answered, or not, by whoever runs it."""
        if self.reason is None:
            self.reason = reason
            self.task.cancel(CANCEL if reason == "cancelled" else None)

    async def run(self, work: Awaitable[_T]) -> _T:
        """Await the work. Raises Stopped when the client stopped it."""
        try:
            return await work
        except asyncio.CancelledError:
            if self.reason is not None:
                raise Stopped from None
            if self.task.cancelling():
                raise  # the server itself is going down
            raise RuntimeError("the call was cancelled from within") from None
        finally:
            if self.reason is not None:
                self.task.uncancel()


class Calls:
    """All calls in flight."""

    def __init__(self) -> None:
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._named: dict[_Key, list[Flight]] = {}
        self._questions: dict[_Key, asyncio.Future[Mapping[str, Any]]] = {}

    @property
    def running(self) -> int:
        return self._running

    def begin(self, session: str | None = None, request_id: RequestId = 0) -> Flight:
        """Note that the current task runs a call."""
        task = asyncio.current_task()
        assert task is not None
        flight = Flight(task)
        self._running += 1
        self._idle.clear()
        if session is not None:
            self._named.setdefault((session, comparable(request_id)), []).append(flight)
        return flight

    def end(self, flight: Flight, session: str | None = None, request_id: RequestId = 0) -> None:
        """Note that a call is over."""
        self._running -= 1
        if not self._running:
            self._idle.set()
        if session is None:
            return
        key = (session, comparable(request_id))
        flights = self._named[key]
        flights.remove(flight)
        if not flights:
            del self._named[key]

    def cancel(self, session: str, request_id: RequestId) -> bool:
        """Cancel what runs here under this id; False: nothing does."""
        flights = self._named.get((session, comparable(request_id)), [])
        for flight in flights:
            flight.stop("cancelled")
        return bool(flights)

    async def ask(
        self, session: str, reply: Reply, method: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Ask the client something on a request's own stream, and give its result."""
        body = {} if reply.is_gone() else await self._asked(session, reply, method, params)
        result = body.get("result")
        return result if isinstance(result, dict) else unanswered(method, body.get("error"))

    async def _asked(
        self, session: str, reply: Reply, method: str, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        request_id = f"gateway-{secrets.token_hex(8)}"
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        key = (session, request_id)
        self._questions[key] = future
        reply.on_gone = lambda: _settle(future, {})
        question = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        try:
            reply.say(event_frame(dump(question)), droppable=False)
            async with asyncio.timeout(MAX_ANSWER_SECONDS):
                return await future
        except TimeoutError:
            return {}
        finally:
            reply.on_gone = None
            del self._questions[key]

    def answer(self, session: str, request_id: RequestId, body: Mapping[str, Any]) -> bool:
        """Hand a client's response to the call that asked; False: none here did."""
        future = self._questions.get((session, request_id))
        if future is None:
            return False
        _settle(future, body)
        return True

    async def finished(self, seconds: float) -> bool:
        """Wait until nothing runs any more; False when time ran out first."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


def comparable(request_id: RequestId) -> RequestId:
    """An id under which `7` and `"7"` are the same, as clients that echo ids expect."""
    if isinstance(request_id, str) and len(request_id) < 19 and _is_number(request_id):
        return int(request_id)
    return request_id


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()


def _settle(future: asyncio.Future[Mapping[str, Any]], value: Mapping[str, Any]) -> None:
    if not future.done():
        future.set_result(value)
