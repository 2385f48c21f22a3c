"""The console's stream: what of an open page is not as it was last sent.

Nothing is queued. A stream is woken, renders the moving parts of its page and sends those that
differ; a slow reader simply sees fewer steps. Lists that have a filter are told by a named event
that there is something new, and ask again with the filter they have by then.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable

from gateway.edge.console.layout import Around, around, surroundings
from gateway.edge.console.visit import Visit
from gateway.edge.event_stream import EventStream, Say
from gateway.edge.events import Feed
from gateway.edge.gateway import Gateway
from gateway.errors import GatewayError
from gateway.store.events import last_event_id

RETRY_MS = 1000
MIN_SECONDS = 0.25  # between two looks: a burst is one step
SIGNED_OUT = b"event: signed-out\ndata:\n\n"
# The words of a time change by themselves; that alone is no news.
_TIME_WORDS = re.compile(r"(<time[^>]*>)[^<]*(?=</time>)|data-left=\"\d+\"")

Live = Callable[[Visit, Around], Awaitable[dict[str, str]]]
Again = Callable[[], Awaitable[Visit | None]]


def page_stream(
    gateway: Gateway, feed: Feed, again: Again, live: Live | None, name: str
) -> EventStream:
    """The stream of one open page."""
    woken = feed.enter(name)
    stop_listening = gateway.on_change(woken.set)

    def leave() -> None:
        stop_listening()
        feed.leave(name, woken)

    step = _Page(feed, again, live).step
    return EventStream(step, woken, leave, retry_ms=RETRY_MS, rest=MIN_SECONDS)


class _Page:
    """What of one open page was last sent."""

    def __init__(self, feed: Feed, again: Again, live: Live | None) -> None:
        self._feed = feed
        self._again = again
        self._live = live
        self._sent: dict[str, bytes] = {}
        self._ledger = -1
        self._revision = -1

    async def step(self, say: Say) -> bool:
        """Sends what is new; False: the session is over."""
        if self._feed.closing:
            return False
        try:
            visit = await self._again()
            if visit is None:
                await say(SIGNED_OUT)
                return False
            await self._feed.say_watched()
            await say(await self._news(visit))
        except GatewayError:
            pass  # the store is away, or what the page shows is gone; a later look may find it
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
