"""The last events of the feed, so that a reader who was cut off goes on where it stopped.

Ids grow in the order of commits: on PostgreSQL numbers are handed out before the commit, so writers
take turns; a reader who has seen 7 can't miss a 6 that comes late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select

from gateway.store import tables
from gateway.store.columns import json_bytes
from gateway.store.database import Database
from gateway.store.signals import signal
from gateway.store.statements import is_postgres, many
from gateway.store.writer import Row

_table = tables.events

EVENTS = "events"  # the signal: there is something new to read
EVENTS_LOCK = 0x6576_6E74  # any constant, the same in every gateway
MAX_READ = 500


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the feed."""

    id: int
    kind: str
    data: Mapping[str, Any]
    at: float


def append_event(db: Database, kind: str, data: Mapping[str, Any], now: float) -> bool:
    """Puts an event on the feed of every replica, soon; False if there was no room."""
    encoded = json_bytes(data)
    return db.write_soon(_append, {"kind": kind, "data": encoded, "at": now}, len(encoded))


async def events_after(db: Database, last_id: int, limit: int = MAX_READ) -> list[Event]:
    """What came after an event, oldest first."""
    statement = select(_table).where(_table.c.id > last_id).order_by(_table.c.id)
    return await db.read(lambda tx: many(tx, statement.limit(min(limit, MAX_READ)), Event))


async def last_event_id(db: Database) -> int:
    """Where a reader begins that wants only what is new."""
    newest = await db.read(lambda tx: tx.execute(select(func.max(_table.c.id))).scalar())
    return newest or 0


def _append(tx: Connection, rows: Sequence[Row]) -> None:
    if is_postgres(tx):
        tx.execute(select(func.pg_advisory_xact_lock(EVENTS_LOCK)))
    tx.execute(insert(_table), rows)
    signal(tx, EVENTS)
