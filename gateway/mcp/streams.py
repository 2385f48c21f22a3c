"""One request's answer: plain JSON, unless something has to be said before it.

Most calls say nothing on their way, so an answer begins as nothing at all. The first progress
notification, question or keep-alive turns it into an event stream; a call that ends before that is
answered as JSON. Saying something never waits for the client to read: messages go through a short
queue that one task empties, and progress that finds it full is dropped, as progress may be.

While a call runs for longer than a moment an attendant watches its connection: it keeps it alive
through proxies and notices when the client is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from starlette.types import Receive, Send

from gateway.limits import PING_SECONDS, SEND_SECONDS
from gateway.web.guard import EVENT_STREAM_HEADERS, PING, event_frame, respond

ATTEND_AFTER_SECONDS = 0.5
MAX_QUEUED = 64


class Reply:
    """The answer to one request."""

    __slots__ = ("_closed", "_queue", "_send", "_sender", "_started", "on_gone", "streaming")

    def __init__(self, send: Send, streaming: bool) -> None:
        self.streaming = streaming  # whether the client takes an event stream
        self.on_gone: Callable[[], None] | None = None
        self._send = send
        self._started = False
        self._closed = False
        self._queue: deque[bytes] | None = None
        self._sender: asyncio.Task[None] | None = None

    def say(self, frame: bytes, droppable: bool = True) -> None:
        """Send a frame ahead of the answer, without waiting for it to be read."""
        if self._closed or not self.streaming:
            return
        if self._queue is None:
            self._queue = deque()
        if droppable and len(self._queue) >= MAX_QUEUED:
            return
        self._queue.append(frame)
        if self._sender is None:
            self._sender = asyncio.create_task(self._empty_queue())

    async def _empty_queue(self) -> None:
        try:
            while self._queue:
                async with asyncio.timeout(SEND_SECONDS):
                    await self._start()
                    chunk = self._queue.popleft()
                    await self._send(
                        {"type": "http.response.body", "body": chunk, "more_body": True}
                    )
        except (TimeoutError, OSError):
            self.gone()
        finally:
            self._sender = None

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS}
            )

    def gone(self) -> None:
        """The client is gone, or does not read: nothing more is said to it."""
        self._closed = True
        if self._queue is not None:
            self._queue.clear()
        if self.on_gone is not None:
            self.on_gone()

    def is_gone(self) -> bool:
        """Whether the client has left before its answer."""
        return self._closed

    async def finish(self, status: int, body: bytes) -> None:
        """Send the answer itself, after everything that was said before."""
        if self._sender is not None:
            await self._sender
        self._closed = True
        if self._started:
            final = {"type": "http.response.body", "body": event_frame(body), "more_body": False}
            await self._send(final)
        else:
            await respond(self._send, status, body)


class Attendant:
    """Watches a connection while its call runs; costs a timer until the call takes its time."""

    __slots__ = ("_on_gone", "_receive", "_reply", "_task", "_timer")

    def __init__(
        self, receive: Receive, reply: Reply, on_gone: Callable[[], None] | None = None
    ) -> None:
        self._receive = receive
        self._reply = reply
        self._on_gone = on_gone
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ATTEND_AFTER_SECONDS, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._attend())

    async def _attend(self) -> None:
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    message = await self._receive()
            except TimeoutError:
                self._reply.say(PING)
                continue
            if message["type"] == "http.disconnect":
                self._reply.gone()
                if self._on_gone is not None:
                    self._on_gone()
                return

    def dismiss(self) -> None:
        """The call is over."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
