"""The live feed: server-sent events of confirmations, results, tools and connections.

Confirmations and results go through the store, so that every replica's readers get them all and one
who was cut off goes on after the last id it saw. The store is the queue: a reader is woken, reads
on from where it is and writes at its own pace, so nothing piles up for a slow one. What tools and
connections there are is not an event of the store; each reader compares what it sees with what it
last told.

Results of reads are many. They are only kept while someone reads the feed, on whichever replica.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog
from starlette.requests import Request

from gateway.errors import GatewayError, Overloaded, Unauthenticated
from gateway.limits import PING_SECONDS, STREAMS_A_PRINCIPAL
from gateway.model import Principal, json_bytes
from gateway.model import Scope as ViewScope
from gateway.policy.access import level, may_know, oversees
from gateway.store.approvals import Approval, get_approvals
from gateway.store.cluster import EVENTS, Signals, events_after, last_event_id, signal_soon
from gateway.store.database import Database, signal
from gateway.store.ledger import Execution, get_executions
from gateway.web.gateway import Gateway, Inquiry
from gateway.web.guard import (
    EventStream,
    Fields,
    Identity,
    Say,
    Step,
    event_frame,
    fold,
)
from gateway.web.shown import decided_row, execution_event

log = structlog.get_logger("gateway.events")

WATCHED = "watched"  # the signal: someone reads the feed


class Feed:
    """Where events are put, and who reads them."""

    def __init__(self, db: Database, signals: Signals) -> None:
        self._db = db
        self._readers: dict[asyncio.Event, str] = {}  # what wakes each, and whose it is
        self._watched_until = 0.0
        self._said_watched = 0.0
        self.closing = False
        for kind in EVENTS:
            signals.on(kind, lambda _: self.wake())
        signals.on(WATCHED, lambda _: self._watched())

    def confirmation(self, approval: Approval) -> None:
        """Tells of a question, or of what was answered to it."""
        signal_soon(self._db, "confirmation", approval.id)

    def result(self, execution: Execution) -> None:
        """Tells of a call that ended."""
        if execution.access != "read" or time.monotonic() < self._watched_until:
            signal_soon(self._db, "result", execution.id)

    def wake(self) -> None:
        """There may be something new for every reader."""
        for woken in self._readers:
            woken.set()

    def close(self) -> None:
        """Ends every stream."""
        self.closing = True
        self.wake()

    def stream(
        self, gateway: Gateway, principal: str, step: Step, *, rest: float = 0.0
    ) -> EventStream:
        """A stream that is woken by events and by changes. Raises where there are too many."""
        own = sum(name == principal for name in self._readers.values())
        if own >= STREAMS_A_PRINCIPAL or self.closing:
            raise Overloaded("busy", "Too many readers of events.", "Close one.", retry_after=5)
        woken = asyncio.Event()
        self._readers[woken] = principal
        stop_listening = gateway.on_change(woken.set)

        def leave() -> None:
            stop_listening()
            del self._readers[woken]

        return EventStream(step, woken, leave, rest=rest)

    async def say_watched(self) -> None:
        """Lets every replica know that results of reads are wanted."""
        self._watched()
        if time.monotonic() - self._said_watched > PING_SECONDS:
            self._said_watched = time.monotonic()
            await self._db.write(lambda tx: signal(tx, WATCHED))

    def _watched(self) -> None:
        self._watched_until = time.monotonic() + 4 * PING_SECONDS


async def event_stream(
    inquiry: Inquiry, feed: Feed, identity: Identity, request: Request
) -> EventStream:
    """The stream of one reader, from the event after its last on; without one, of what is new."""
    last = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    fields = fold(request.scope["headers"])
    newest = await last_event_id(inquiry.gateway.db)
    known = last is not None and last.isascii() and last.isdigit() and len(last) < 19
    position = min(int(last or 0), newest) if known else newest
    await feed.say_watched()
    gateway, principal = inquiry.gateway, inquiry.principal
    reader = Reader(gateway, feed, identity, principal, fields, position)
    return feed.stream(gateway, principal.name, reader.step)


class Reader:
    """Who reads, and what of the tools and connections it was last told."""

    def __init__(
        self,
        gateway: Gateway,
        feed: Feed,
        identity: Identity,
        principal: Principal,
        fields: Fields,
        position: int,
    ) -> None:
        self.gateway = gateway
        self.principal = principal
        self._feed = feed
        self._identity = identity
        self._fields = fields
        self._position = position  # the last event that was told
        self._tools, self._connections = self._seen()

    async def step(self, say: Say) -> bool:
        """Tells what is new; False: nobody may read any more."""
        if self._feed.closing or not await self._may_read():
            return False
        try:
            await self._feed.say_watched()
            while events := await self._events():
                self._position = events[-1][0]
                seen = (event for event in events if self._may_see(event[2]))
                await say(b"".join(frame(kind, data, id) for id, kind, data in seen))
        except GatewayError as error:  # the store is away; what it holds will still be there
            log.warning("events not read", code=error.code)
        await say(b"".join(self._news()))
        return True

    async def _events(self) -> list[tuple[int, str, dict[str, Any]]]:
        """The next events: id, kind, and the execution or approval as it is now."""
        db = self.gateway.db
        told = await events_after(db, self._position)
        ids = [each.payload for each in told]
        shown = {id: execution_event(row) for id, row in (await get_executions(db, ids)).items()}
        shown |= {id: _decision(row) for id, row in (await get_approvals(db, ids)).items()}
        return [(each.id, each.kind, shown.get(each.payload, {})) for each in told]

    async def _may_read(self) -> bool:
        """Whether the token still opens; the rights it gives may be others now."""
        try:
            now = await self._identity.identify(self._fields)
        except Unauthenticated:
            return False
        same, self.principal = now.name == self.principal.name, now
        return same

    def _may_see(self, data: dict[str, Any]) -> bool:
        """Whether an event is the reader's business: its own, or anyone's for an admin."""
        if not data:  # the row has gone meanwhile
            return False
        overseen = oversees(self.gateway.snapshot, self.principal, data["connection"])
        return overseen or data["principal"] == self.principal.name

    def _news(self) -> list[bytes]:
        """What is not as it was last told."""
        before, (tools, connections) = self._connections, self._seen()
        frames = []
        if tools != self._tools:
            revision = self.gateway.snapshot.revision
            frames.append(frame("tools_changed", {"revision": revision}))
        for name in sorted(before.keys() | connections.keys()):
            if before.get(name) != connections.get(name):
                gone = {"name": name, "status": "deleted"}
                frames.append(frame("connection", connections.get(name, gone)))
        self._tools, self._connections = tools, connections
        return frames

    def _seen(self) -> tuple[str, dict[str, dict[str, Any]]]:
        snapshot, principal = self.gateway.snapshot, self.principal
        connections = {
            name: {
                "name": name,
                "status": state.status,
                "tools": len(state.tools),
                "effective_access": level(snapshot, principal, state),
            }
            for name, state in snapshot.connections.items()
            if may_know(principal, state)
        }
        return self.gateway.view_of(snapshot, principal, ViewScope()).digest, connections


def _decision(approval: Approval) -> dict[str, Any]:
    # The feed tells of decisions: an approval that was used since was approved.
    used = {"status": "approved"} if approval.status == "used" else {}
    return decided_row(approval) | used


def frame(kind: str, data: Any, id: int | None = None) -> bytes:
    """One server-sent event."""
    return event_frame(json_bytes(data).strip(), kind, id)
