"""The console's stream: what of an open page is not as it was last sent.

Nothing is queued. A stream is woken, renders the moving parts of its page and sends those that
differ; a slow reader simply sees fewer steps. Lists that have a filter are told by a named event
that there is something new, and ask again with the filter they have by then.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.edge.console.layout import Around, around, surroundings
from gateway.edge.console.visit import Visit
from gateway.edge.events import CHECK_SECONDS, Feed
from gateway.edge.gateway import Gateway
from gateway.edge.mcp_streams import EVENT_STREAM_HEADERS, PING, PING_SECONDS, SEND_SECONDS
from gateway.errors import GatewayError
from gateway.invoke.signals import heard_within
from gateway.store.events import last_event_id

RETRY_MS = 1000
MIN_SECONDS = 0.25  # between two looks: a burst is one step
SIGNED_OUT = b"event: signed-out\ndata:\n\n"
# The words of a time change by themselves; that alone is no news.
_TIME_WORDS = re.compile(r"(<time[^>]*>)[^<]*(?=</time>)|data-left=\"\d+\"")

Live = Callable[[Visit, Around], Awaitable[dict[str, str]]]
Again = Callable[[], Awaitable[Visit | None]]


class PageStream(Response):
    """One open page."""

    def __init__(
        self, gateway: Gateway, feed: Feed, again: Again, live: Live | None, name: str
    ) -> None:
        super().__init__()
        self._gateway = gateway
        self._feed = feed
        self._again = again
        self._live = live
        self._name = name
        self._woken = feed.enter(name)
        self._sent: dict[str, bytes] = {}
        self._ledger = -1
        self._revision = -1
        self._said = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stop_listening = self._gateway.on_change(self._woken.set)
        tasks = [asyncio.create_task(self._write(send)), asyncio.create_task(_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop_listening()
            self._feed.leave(self._name, self._woken)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        headers = [*EVENT_STREAM_HEADERS, (b"x-content-type-options", b"nosniff")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._say(send, b"retry: %d\n\n" % RETRY_MS)
            while not self._feed.closing and await self._step(send):
                await asyncio.sleep(MIN_SECONDS)
                await heard_within(self._woken, CHECK_SECONDS)
            await send({"type": "http.response.body", "body": b""})
        except (TimeoutError, OSError):
            return  # it does not read, or has gone; the page comes back by itself

    async def _step(self, send: Send) -> bool:
        """Sends what is new; False: the session is over."""
        try:
            visit = await self._again()
            if visit is None:
                await self._say(send, SIGNED_OUT)
                return False
            await self._feed.say_watched()
            await self._say(send, await self._news(visit))
        except GatewayError:
            pass  # the store is away, or what the page shows is gone; a later look may find it
        if time.monotonic() - self._said > PING_SECONDS:
            await self._say(send, PING)
        return True

    async def _news(self, visit: Visit) -> bytes:
        beside = await around(visit)
        shown = await surroundings(visit, beside)
        if self._live is not None:
            shown |= await self._live(visit, beside)
        return partials(self._changed(shown)) + await self._named(visit)

    async def _named(self, visit: Visit) -> bytes:
        ledger = await last_event_id(visit.asked.gateway.db)
        revision = visit.asked.snapshot.revision
        frames = b""
        if self._ledger not in (-1, ledger):
            frames += b"event: ledger\ndata:\n\n"
        if self._revision not in (-1, revision):
            frames += b"event: catalog\ndata:\n\n"
        self._ledger, self._revision = ledger, revision
        return frames

    def _changed(self, shown: dict[str, str]) -> dict[str, str]:
        changed = {}
        for id, html in shown.items():
            known = hashlib.blake2b(_TIME_WORDS.sub(r"\1", html).encode(), digest_size=16).digest()
            if self._sent.get(id) != known:
                self._sent[id] = known
                changed[id] = html
        return changed

    async def _say(self, send: Send, body: bytes) -> None:
        if body:
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": body, "more_body": True})
            self._said = time.monotonic()


def partials(shown: dict[str, str]) -> bytes:
    """The changed parts as one message, each for its own place."""
    if not shown:
        return b""
    html = "".join(
        f'<hx-partial hx-target="#{id}" hx-swap="innerMorph">{part}</hx-partial>'
        for id, part in shown.items()
    )
    lines = b"\n".join(b"data: " + line for line in html.encode().splitlines())
    return lines + b"\n\n"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
