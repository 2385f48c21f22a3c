"""What the processes of one gateway share: the revision, signals, heartbeats, sessions, windows.

A signal is a row that every process reads, this one too, in the order of commits. On PostgreSQL a
NOTIFY wakes the readers, and a slow poll stands behind it; on SQLite they look ten times a second
whether anything was committed.
Signals are kept for a minute. After a break of the connection some may be lost: then `RECONNECTED`
comes too, and whoever waits for something looks at the store again. Signals of the feed (`EVENTS`)
name an execution or an approval and are kept for an hour, so that a reader of the feed that was cut
off goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    delete,
    func,
    select,
    update,
)

from gateway import limits
from gateway.store import tables
from gateway.store.database import (
    Database,
    alive,
    insert_new,
    many,
    signal,
    store_time,
    upsert,
    values,
)

REVISION = "revision"  # the signal, with the revision
REVISION_LOCK = "~revision"  # sorts behind every other key: see `Database.write`
RECONNECTED = "reconnected"
SESSION_ENDED = "session_ended"  # the signal, with the session's id
EVENTS = ("confirmation", "result")  # signals of the feed, with the approval's or execution's id

T = TypeVar("T")
OnRevision = Callable[[int], None]
OnSignal = Callable[[str, str], None]
Wish = dict[str, Any]

_signals = tables.signals
_replicas = tables.replicas
_windows = tables.windows
_wishes = tables.wishes
_ended_sessions = tables.ended_sessions
_grants = tables.standing_grants

log = structlog.get_logger()


async def current_revision(db: Database) -> int:
    """The revision of what all replicas share."""
    return await db.read(lambda tx: int(tx.execute(_revision).scalar_one()))


async def write_revision(db: Database, unit: Callable[[Connection, int], T]) -> T:
    """Writes a unit at the next revision, which it is given, and has every replica look.

    Such units happen one after the other, in all processes.
    """
    return await db.write(lambda tx: unit(tx, _bump_revision(tx)), REVISION_LOCK)


def _bump_revision(tx: Connection) -> int:
    table = tables.revision
    bump = update(table).values(value=table.c.value + 1).returning(table.c.value)
    value = int(tx.execute(bump).scalar_one())
    signal(tx, REVISION, str(value))
    return value


_revision = select(tables.revision.c.value)


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing that a process told all others."""

    id: int
    kind: str
    payload: str


def signal_soon(db: Database, kind: str, payload: str) -> None:
    """Tells every process a named thing, soon; nobody waits for it."""
    db.write_soon(lambda tx: signal(tx, kind, payload), len(payload))


async def events_after(db: Database, last_id: int) -> list[Signal]:
    """The events that came after one, oldest first, some at a time."""
    return await db.read(lambda tx: _signals_after(tx, last_id, _signals.c.kind.in_(EVENTS)))


async def last_event_id(db: Database) -> int:
    """Where a reader begins that wants only what is new."""
    newest = select(func.max(_signals.c.id)).where(_signals.c.kind.in_(EVENTS))
    return await db.read(lambda tx: tx.execute(newest).scalar() or 0)


def _signals_after(tx: Connection, last_id: int, *which: ColumnElement[bool]) -> list[Signal]:
    wanted = select(_signals.c.id, _signals.c.kind, _signals.c.payload)
    found = wanted.where(_signals.c.id > last_id, *which).order_by(_signals.c.id)
    return many(tx, found.limit(limits.STORE_ROWS), Signal)


class Notifier:
    """Calls back on the event loop for what any process, this one included, has told."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self._revision: int | None = None
        self._last: int | None = None  # the id of the last signal that was heard

    async def start(self, on_revision: OnRevision, on_signal: OnSignal) -> None:
        """Listens from here on; `on_revision` comes first, with the revision as it is."""
        self._on_revision, self._on_signal = on_revision, on_signal
        self._task = asyncio.create_task(self._run(), name="store-notifier")
        with suppress(TimeoutError):  # it goes on trying
            async with asyncio.timeout(limits.STORE_STATEMENT_SECONDS):
                await self._looked.wait()

    async def close(self) -> None:
        """Stops listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        broken = False
        while True:
            try:
                async with self._db.engine.wake_ups() as next_wake_up:
                    await self._look()
                    if broken:
                        self._hear(RECONNECTED, "")
                    broken = False
                    while True:
                        await next_wake_up()
                        await self._look()
            except Exception as error:  # whatever it was, a deaf process would be worse
                if not broken:
                    log.warning("store_notifications_lost", error=type(error).__name__)
                broken = True
                await asyncio.sleep(limits.STORE_RETRY_SECONDS)

    async def _look(self) -> None:
        revision, signals = await self._db.read(self._news)
        self._hear(REVISION, str(revision))
        for each in signals:
            self._last = each.id
            self._hear(each.kind, each.payload)
        self._looked.set()
        if len(signals) == limits.STORE_ROWS:
            await self._look()

    def _news(self, tx: Connection) -> tuple[int, list[Signal]]:
        if self._last is None:
            self._last = tx.execute(select(func.max(_signals.c.id))).scalar() or 0
        signals = _signals_after(tx, self._last)
        return int(tx.execute(_revision).scalar_one()), signals

    def _hear(self, kind: str, payload: str) -> None:
        try:
            if kind != REVISION:
                self._on_signal(kind, payload)
            elif self._revision is None or int(payload) > self._revision:
                self._revision = int(payload)
                self._on_revision(self._revision)
        except Exception:  # a listener's mistake must not make this process deaf
            log.exception("store_signal_failed", kind=kind)


@dataclass(frozen=True, slots=True)
class Replica:
    """One process of the gateway."""

    id: str
    host: str
    pid: int
    started_at: float


async def beat(db: Database, replica: Replica) -> None:
    """Says that this process is alive, by the store's clock."""

    def unit(tx: Connection) -> None:
        tx.execute(insert_new(tx, _replicas), {**values(replica), "heartbeat_at": 0.0})
        us = update(_replicas).filter_by(id=replica.id)
        tx.execute(us.values(heartbeat_at=store_time(tx)))

    await db.write(unit, f"replica {replica.id}")


async def leave(db: Database, replica_id: str) -> None:
    """Says that this process has ended in good order, or is known to be gone."""
    await db.write(lambda tx: tx.execute(delete(_replicas).filter_by(id=replica_id)).rowcount)


async def living(db: Database) -> list[str]:
    """The ids of processes whose heartbeat was heard."""
    return await db.read(lambda tx: [row.id for row in tx.execute(alive(tx))])


async def bury_the_dead(db: Database, us: Replica) -> list[str]:
    """Removes earlier processes of this host that no longer run, without waiting for silence."""
    here = (_replicas.c.host == us.host) & (_replicas.c.id != us.id)
    found = await db.read(lambda tx: tx.execute(select(_replicas).where(here)).all())
    dead = [each.id for each in found if each.pid == us.pid or not _runs(each.pid)]
    for id in dead:
        await leave(db, id)
    return dead


def this_host() -> str:
    """Where a process id means the same process: machine, boot and process namespace."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {boot} {namespace}"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


async def take_of_window(
    db: Database, key: str, *, requests: int, seconds: float, now: float, amount: int = 1
) -> float:
    """Counts `amount` more, if that many may be done now: 0.0; else in how many seconds.

    There are two counters a key, of this window and the one before; the earlier one counts for as
    much of it as still lies within a window's length from now. So a burst at the border of two
    windows is no larger than any other. Takes of one key happen one after the other.
    """
    start = math.floor(now / seconds) * seconds

    def unit(tx: Connection) -> float:
        empty = {"key": key, "start": start, "earlier": 0, "current": 0}
        tx.execute(insert_new(tx, _windows), empty)
        row = tx.execute(select(_windows).filter_by(key=key).with_for_update()).one()
        earlier, current = row.earlier, row.current
        if row.start < start:
            earlier, current = (current if row.start >= start - seconds * 1.5 else 0), 0
        share = 1 - (now - start) / seconds
        if earlier * share + current + amount > requests:
            return _wait(earlier, current, requests - amount, seconds, now - start)
        counted = {"start": start, "earlier": earlier, "current": current + amount}
        tx.execute(update(_windows).filter_by(key=key).values(counted))
        return 0.0

    return await db.write(unit, f"window {key}")


def _wait(earlier: int, current: int, room: int, seconds: float, passed: float) -> float:
    """How long until the counters leave room."""
    if current <= room and earlier > 0:
        return max(0.0, seconds * (1 - (room - current) / earlier) - passed)
    rest = seconds - passed  # until the window ends, then this one is the earlier one
    return rest + (seconds * (1 - room / current) if current > room > 0 else 0.0)


def keep_wish_in(tx: Connection, key: str, wish: Wish, expires_at: float) -> None:
    """Keeps what a session of the 2025 era wants to hear of, for the process that serves it next.

    What it no longer wants is forgotten.
    """
    session = wish["session"]
    if wish.get("on") is False:
        tx.execute(delete(_wishes).filter_by(session=session, key=key))
    else:
        row = {"session": session, "key": key, "wish": wish, "expires_at": expires_at}
        upsert(tx, _wishes, row)


async def kept_wishes(db: Database, now: float) -> list[Wish]:
    """What living sessions want, the latest first."""
    statement = select(_wishes.c.wish).where(_wishes.c.expires_at > now)
    latest = statement.order_by(_wishes.c.expires_at.desc()).limit(limits.STORE_MANY_ROWS)
    return await db.read(lambda tx: list(tx.execute(latest).scalars()))


async def end_session(db: Database, id: str, expires_at: float) -> None:
    """Ends a session in every process, with its wishes and grants.

    Living sessions are in no table: their id is sealed. The row of an ended one is forgotten once
    the session would have expired anyway.
    """

    def unit(tx: Connection) -> None:
        if _insert_ended(tx, id, expires_at):
            signal(tx, SESSION_ENDED, id)
            tx.execute(delete(_wishes).filter_by(session=id))
            tx.execute(delete(_grants).filter_by(session=id))

    await db.write(unit)


async def first_use(db: Database, id: str, expires_at: float) -> bool:
    """Uses up what works once, in any process; False if it was used before."""
    return await db.write(lambda tx: _insert_ended(tx, id, expires_at))


async def is_ended(db: Database, id: str) -> bool:
    """Whether this was ended, or used up."""
    statement = select(_ended_sessions).filter_by(id=id)
    return await db.read(lambda tx: tx.execute(statement).first()) is not None


def _insert_ended(tx: Connection, id: str, expires_at: float) -> bool:
    row = {"id": id, "expires_at": expires_at}
    return tx.execute(insert_new(tx, _ended_sessions), row).rowcount == 1


class Signals:
    """Wakes those in this process who wait for what any process may do.

    The store's notifier calls `hear` for what other processes did, and whoever does something here
    calls it too. A signal only says "look again": it may be lost, so that those who wait read the
    store, and look from time to time in any case.
    """

    def __init__(self) -> None:
        # By kind and payload; None: whatever the payload.
        self._listeners: dict[tuple[str, str | None], list[Callable[[str], object]]] = {}

    def hear(self, kind: str, payload: str = "") -> None:
        """Something has happened; after a break of the connection, perhaps everything."""
        keys = [(kind, payload), (kind, None)]
        heard = self._listeners if kind == RECONNECTED else keys
        for listener in [each for key in heard for each in self._listeners.get(key, ())]:
            listener(payload)

    def on(self, kind: str, listener: Callable[[str], object], payload: str | None = None) -> None:
        """Calls back with the payload whenever this is heard, or with nothing after a break."""
        self._listeners.setdefault((kind, payload), []).append(listener)

    @contextmanager
    def awaiting(self, kind: str, payload: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever this is heard."""
        event = asyncio.Event()

        def wake(_: str) -> None:
            event.set()

        self.on(kind, wake, payload)
        try:
            yield event
        finally:
            listeners = self._listeners[kind, payload]
            listeners.remove(wake)
            if not listeners:
                del self._listeners[kind, payload]


async def heard_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for the event, at most so long; it is ready for the next time."""
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
