"""One request's answer: plain JSON, unless something has to be said before it.

Most calls say nothing on their way, so an answer begins as nothing at all. The first progress
notification, question or keep-alive turns it into an event stream; a call that ends before that is
answered as JSON. Saying something never waits for the client to read: messages go through a short
queue that one task empties, and progress that finds it full is dropped, as progress may be.

While a call runs for longer than a moment an attendant watches its connection: it keeps it alive
through proxies and notices when the client is gone.

Server-sent events to one reader: a step, then sleep until woken, as long as both sides want.

Nothing is queued here. A step looks at what there is and says what is new, at the reader's own
pace; one that does not read for a while is let go, and comes back by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.calls.record import heard_within
from gateway.web.guard import respond

PING_SECONDS = 15.0
SEND_SECONDS = 10.0
ATTEND_AFTER_SECONDS = 0.5
MAX_QUEUED = 64

PING = b": ping\r\n\r\n"
EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


def event(message: bytes, event_id: str | None = None) -> bytes:
    """A message as one server-sent event."""
    head = b"" if event_id is None else b"id: %b\r\n" % event_id.encode()
    return head + b"event: message\r\ndata: " + message + b"\r\n\r\n"


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
            final = {"type": "http.response.body", "body": event(body), "more_body": False}
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


CHECK_SECONDS = 2.0

Say = Callable[[bytes], Awaitable[None]]
Step = Callable[[Say], Awaitable[bool]]  # says what is new; False: there will be no more


class EventStream(Response):
    """The stream of one reader; `leave` is called when it is over, whoever ended it."""

    def __init__(
        self,
        step: Step,
        woken: asyncio.Event,
        leave: Callable[[], None],
        *,
        retry_ms: int,
        rest: float = 0.0,  # between two steps: a burst of news is one step
    ) -> None:
        super().__init__()
        self._step = step
        self._woken = woken
        self._leave = leave
        self._retry_ms = retry_ms
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.create_task(self._write(send)), asyncio.create_task(_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        said = time.monotonic()

        async def say(body: bytes) -> None:
            nonlocal said
            if body:
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                said = time.monotonic()

        headers = [*EVENT_STREAM_HEADERS, (b"x-content-type-options", b"nosniff")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await say(b"retry: %d\n\n" % self._retry_ms)
            while await self._step(say):
                if time.monotonic() - said > PING_SECONDS:
                    await say(PING)
                await asyncio.sleep(self._rest)
                await heard_within(self._woken, CHECK_SECONDS)
            await send({"type": "http.response.body", "body": b""})
        except (TimeoutError, OSError):
            return  # it does not read, or has gone


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
