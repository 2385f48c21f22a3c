"""Wakes those in this process who wait for what any process may do.

The store's notifier calls `hear` for what others did, and whoever does something here calls it too,
so that a wait within one process does not go by way of the store. A signal only says "look again":
who waits reads the store, and looks from time to time in any case, since signals may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.store.notify import RECONNECTED

Listener = Callable[[str], object]


class Signals:
    """Who waits for what."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._listeners: dict[str, list[Listener]] = {}

    def hear(self, kind: str, payload: str = "") -> None:
        """Something has happened; after a break of the connection, perhaps everything."""
        if kind == RECONNECTED:
            events = [event for events in self._waiting.values() for event in events]
            listeners = [one for each in self._listeners.values() for one in each]
        else:
            events = list(self._waiting.get((kind, payload), ()))
            listeners = list(self._listeners.get(kind, ()))
        for event in events:
            event.set()
        for listener in listeners:
            listener(payload)

    @contextmanager
    def awaiting(self, kind: str, payload: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever this is heard."""
        key, event = (kind, payload), asyncio.Event()
        self._waiting.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            events = self._waiting[key]
            events.discard(event)
            if not events:
                del self._waiting[key]

    def on(self, kind: str, listener: Listener) -> None:
        """Calls back with the payload whenever this is heard, or with nothing after a break."""
        self._listeners.setdefault(kind, []).append(listener)


async def heard_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for the event, at most so long; it is ready for the next time."""
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
