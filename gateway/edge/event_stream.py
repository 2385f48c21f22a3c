"""Server-sent events to one reader: a step, then sleep until woken, as long as both sides want.

Nothing is queued here. A step looks at what there is and says what is new, at the reader's own
pace; one that does not read for a while is let go, and comes back by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.edge.mcp_streams import EVENT_STREAM_HEADERS, PING, PING_SECONDS, SEND_SECONDS
from gateway.invoke.signals import heard_within

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
