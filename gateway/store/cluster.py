"""Hears what other processes changed: the revision, and named signals.

On PostgreSQL a connection of its own listens; it is made again when it breaks, and a slow poll of
the revision stands behind it. On SQLite a look at `PRAGMA data_version` ten times a second says
whether the file has changed at all, and only then revision and signals are read.

Signals come at least once while the connection stands. After a break on PostgreSQL some may be
lost: then `RECONNECTED` comes instead, and who waits for something looks at the store again.

What other processes are told, inside the transaction that gives the reason for it.

PostgreSQL carries it by NOTIFY, at commit; what is too large for that is a row, and NOTIFY says
which. On SQLite it is a row that the others find when they see that the file has changed. Either
way a process hears its own signals too.

Which processes are alive: each writes a heartbeat by the store's clock, every 3 seconds.

A process that ended where we can see it, on the same machine in the same process namespace, need
not be waited for.

How often something was done of late, counted by several processes together.

Two counters a key, of this window and the one before; the earlier one counts for as much of it as
still lies within a window's length from now. So a burst at the border of two windows is no larger
than any other. Takes of one key happen one after the other.

What sessions of the 2025 era want to hear of, for whoever serves them after a restart.

Sessions that were ended before their time. Living ones are in no table: their id is sealed.

The last events of the feed, so that a reader who was cut off goes on where it stopped.

Ids grow in the order of commits: on PostgreSQL numbers are handed out before the commit, so writers
take turns; a reader who has seen 7 can't miss a 6 that comes late.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
from sqlalchemy import Connection, ScalarSelect, Select, delete, func, insert, select, update

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.postgres import Postgres
from gateway.store.sqlite import Sqlite
from gateway.store.statements import insert_new, is_postgres, json_bytes, many, store_time, upsert
from gateway.store.writer import Row

CHANNEL = "gateway"
REVISION = "revision"
ROW = "row"  # the kind of a signal that is a row: its id
MAX_NOTIFY_BYTES = 4000  # NOTIFY takes 8,000

# Sorts behind every other key: see `writer`.
REVISION_LOCK = "~revision"


async def current_revision(db: Database) -> int:
    """The revision of what all replicas share."""
    return await db.read(revision_in)


def revision_in(tx: Connection) -> int:
    return int(tx.execute(_revision).scalar_one())


def lock_revision(tx: Connection) -> None:
    """Makes changes that replicas must see happen one after the other; take it first in a unit."""
    tx.execute(_locked_revision)


def bump_revision(tx: Connection) -> int:
    """The next revision; every replica is told once it is committed."""
    value = int(tx.execute(_bump).scalar_one())
    if is_postgres(tx):
        _notify(tx, REVISION, str(value))
    return value


def signal(tx: Connection, kind: str, payload: str = "") -> None:
    """Tells every process a named thing once this transaction is committed."""
    if is_postgres(tx) and len(payload.encode()) <= MAX_NOTIFY_BYTES:
        _notify(tx, kind, payload)
        return
    row = {"kind": kind, "payload": payload, "at": store_time(tx)}
    id = tx.execute(insert(tables.signals).values(row).returning(tables.signals.c.id)).scalar_one()
    if is_postgres(tx):
        _notify(tx, ROW, str(id))


def _notify(tx: Connection, kind: str, payload: str) -> None:
    tx.execute(select(func.pg_notify(CHANNEL, f"{kind} {payload}")))


_revision = select(tables.revision.c.value).where(tables.revision.c.id == 1)
_locked_revision = _revision.with_for_update()
_bump = (
    update(tables.revision)
    .where(tables.revision.c.id == 1)
    .values(value=tables.revision.c.value + 1)
    .returning(tables.revision.c.value)
)


RECONNECTED = "reconnected"
LOOK_SECONDS = 0.1
POLL_SECONDS = 2.0
RETRY_SECONDS = 0.5
START_SECONDS = 5.0
MAX_SIGNALS_A_LOOK = 1000
NOT_LOOKED = -1

_SIGNAL = "SELECT kind, payload FROM signals WHERE id = $1"

OnRevision = Callable[[int], None]
OnSignal = Callable[[str, str], None]

log = structlog.get_logger()


class Notifier:
    """Calls back on the event loop for what any process, this one included, has changed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._source: _Source | None = None
        self._task: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._revision = -1

    async def start(self, on_revision: OnRevision, on_signal: OnSignal) -> None:
        """Listens from here on; `on_revision` comes first, with the revision as it is."""
        engine = self._db.engine
        source: _Source = _FileLooks(engine) if isinstance(engine, Sqlite) else _Listener(engine)
        self._source = source
        self._task = asyncio.create_task(
            self._run(source, on_revision, on_signal), name="store-notifier"
        )
        with suppress(TimeoutError):  # it goes on trying
            async with asyncio.timeout(START_SECONDS):
                await self._heard.wait()

    async def close(self) -> None:
        """Stops listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._source is not None:
            await self._source.close()

    async def _run(self, source: _Source, on_revision: OnRevision, on_signal: OnSignal) -> None:
        def hear(kind: str, payload: str) -> None:
            try:
                self._hear(kind, payload, on_revision, on_signal)
            except Exception:  # a listener's mistake must not make this process deaf
                log.exception("store_signal_failed", kind=kind)

        broken = False
        while True:
            try:
                if broken:
                    await asyncio.sleep(RETRY_SECONDS)
                await source.open(hear)
                if broken:
                    hear(RECONNECTED, "")
                broken = False
                while True:
                    await source.wait(hear)
                    self._heard.set()
            except Exception as error:  # whatever it was, a deaf process would be worse
                if not broken:
                    log.warning("store_notifications_lost", error=type(error).__name__)
                broken = True
                await source.close()

    def _hear(self, kind: str, payload: str, on_revision: OnRevision, on_signal: OnSignal) -> None:
        if kind != REVISION:
            on_signal(kind, payload)
        elif int(payload) > self._revision:
            self._revision = int(payload)
            on_revision(self._revision)


class _Source(Protocol):
    async def open(self, hear: OnSignal) -> None: ...
    async def wait(self, hear: OnSignal) -> None: ...
    async def close(self) -> None: ...


class _Listener:
    """PostgreSQL: LISTEN, and a poll now and then that also shows whether the connection stands."""

    def __init__(self, engine: Postgres) -> None:
        self._engine = engine
        self._connection: Any = None  # asyncpg has no types
        self._stirred = asyncio.Event()  # the connection ended, or a signal is to be read
        self._rows: list[int] = []

    async def open(self, hear: OnSignal) -> None:
        self._stirred.set()  # to begin with a poll
        self._rows.clear()
        self._connection = await self._engine.connect()
        self._connection.add_termination_listener(lambda _: self._stirred.set())
        await self._connection.add_listener(CHANNEL, lambda *heard: self._take(heard[3], hear))

    async def wait(self, hear: OnSignal) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._stirred.wait()
        self._stirred.clear()
        while self._rows:
            row = await self._connection.fetchrow(_SIGNAL, self._rows.pop(0))
            if row is not None:
                hear(*row)
        hear(REVISION, str(await self._connection.fetchval("SELECT value FROM revision")))

    def _take(self, payload: str, hear: OnSignal) -> None:
        kind, _, rest = payload.partition(" ")
        if kind == ROW:
            self._rows.append(int(rest))
            self._stirred.set()
        else:
            hear(kind, rest)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


class _FileLooks:
    """SQLite: has the file changed, and what came since."""

    def __init__(self, engine: Sqlite) -> None:
        self._path = engine.path
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._version = NOT_LOOKED
        self._last_signal: int | None = None

    async def open(self, hear: OnSignal) -> None:
        self._version = NOT_LOOKED
        self._thread = ThreadPoolExecutor(1, "store-notify")
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connect)

    async def wait(self, hear: OnSignal) -> None:
        if self._version != NOT_LOOKED:
            await asyncio.sleep(LOOK_SECONDS)
        look = asyncio.get_running_loop().run_in_executor(self._thread, self._look)
        for kind, payload in await look:
            hear(kind, payload)

    async def close(self) -> None:
        if self._thread is not None:
            if self._connection is not None:
                self._thread.submit(self._connection.close)  # behind a look that still runs
            self._thread.shutdown(wait=False)
        self._connection = self._thread = None

    def _connect(self) -> None:
        self._connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA query_only = ON")
        if self._last_signal is None:
            self._last_signal = self._number("SELECT coalesce(max(id), 0) FROM signals")

    def _look(self) -> list[tuple[str, str]]:
        assert self._connection is not None
        version = self._number("PRAGMA data_version")
        if version == self._version:
            return []
        self._version = version
        revision = self._number("SELECT value FROM revision")
        rows = self._connection.execute(
            "SELECT id, kind, payload FROM signals WHERE id > ? ORDER BY id LIMIT ?",
            (self._last_signal, MAX_SIGNALS_A_LOOK),
        ).fetchall()
        if rows:
            self._last_signal = rows[-1][0]
        if len(rows) == MAX_SIGNALS_A_LOOK:
            self._version = NOT_LOOKED  # there may be more: look again at once
        return [(REVISION, str(revision)), *((kind, payload) for _, kind, payload in rows)]

    def _number(self, query: str) -> int:
        assert self._connection is not None
        return int(self._connection.execute(query).fetchone()[0])


_replicas = tables.replicas

HEARTBEAT_SECONDS = 3.0
SILENT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Replica:
    """One process of the gateway."""

    id: str
    host: str
    pid: int
    started_at: float


async def beat(db: Database, replica: Replica) -> None:
    """Says that this process is alive."""

    def unit(tx: Connection) -> None:
        row = {"id": replica.id, "host": replica.host, "pid": replica.pid}
        times = {"started_at": replica.started_at, "heartbeat_at": store_time(tx)}
        tx.execute(upsert(tx, _replicas).values({**row, **times}))

    await db.write(unit, f"replica {replica.id}")


async def leave(db: Database, replica_id: str) -> None:
    """Says that this process has ended in good order, or is known to be gone."""
    await db.write(
        lambda tx: tx.execute(delete(_replicas).where(_replicas.c.id == replica_id)).rowcount
    )


async def living(db: Database, silent_for: float = SILENT_SECONDS) -> list[str]:
    """The ids of processes whose heartbeat was heard."""
    return await db.read(lambda tx: [row.id for row in tx.execute(_alive(tx, silent_for))])


async def bury_the_dead(db: Database, us: Replica) -> list[str]:
    """Removes earlier processes of this host that no longer run, without waiting for silence."""
    here = select(_replicas.c.id, _replicas.c.host, _replicas.c.pid, _replicas.c.started_at).where(
        (_replicas.c.host == us.host) & (_replicas.c.id != us.id)
    )
    found = await db.read(lambda tx: many(tx, here, Replica))
    dead = [each.id for each in found if each.pid == us.pid or not _runs(each.pid)]
    for id in dead:
        await leave(db, id)
    return dead


def alive(tx: Connection, silent_for: float = SILENT_SECONDS) -> ScalarSelect[str]:
    """The ids of processes that are alive, inside another statement."""
    return _alive(tx, silent_for).scalar_subquery()


def this_host() -> str:
    """Where a process id means the same process: machine, boot and process namespace."""
    return f"{socket.gethostname()} {_boot()} {_process_namespace()}"


def _alive(tx: Connection, silent_for: float) -> Select[tuple[str]]:
    return select(_replicas.c.id).where(_replicas.c.heartbeat_at > store_time(tx) - silent_for)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _process_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


_buckets = tables.buckets


async def take_of_window(
    db: Database, key: str, *, requests: int, seconds: float, now: float, amount: int = 1
) -> float:
    """Counts `amount` more, if that many may be done now: 0.0; else in how many seconds."""
    return await db.write(
        lambda tx: _take(tx, key, requests, seconds, now, amount), f"window {key}"
    )


def _take(
    tx: Connection, key: str, requests: int, seconds: float, now: float, amount: int
) -> float:
    start = math.floor(now / seconds) * seconds
    empty = {"key": key, "tokens": 0.0, "at": start, "allowed": 0}
    tx.execute(insert_new(tx, _buckets), empty)
    locked = select(_buckets).where(_buckets.c.key == key).with_for_update()
    row = tx.execute(locked).one()
    earlier, current = _counts(row.tokens, row.allowed, row.at, start, seconds)
    share = 1 - (now - start) / seconds
    if earlier * share + current + amount > requests:
        return _wait(earlier, current, requests - amount, seconds, now - start)
    counted = {"key": key, "tokens": earlier, "at": start, "allowed": current + amount}
    tx.execute(upsert(tx, _buckets), counted)
    return 0.0


def _counts(
    earlier: float, current: int, at: float, start: float, seconds: float
) -> tuple[float, int]:
    """The two counters as they are in the window that starts at `start`."""
    if at >= start:
        return earlier, current
    return (float(current), 0) if at >= start - seconds * 1.5 else (0.0, 0)


def _wait(earlier: float, current: int, room: int, seconds: float, passed: float) -> float:
    """How long until the counters leave room."""
    if current <= room and earlier > 0:
        return max(0.0, seconds * (1 - (room - current) / earlier) - passed)
    rest = seconds - passed  # until the window ends, then this one is the earlier one
    return rest + (seconds * (1 - room / current) if current > room > 0 else 0.0)


_wishes = tables.wishes

MAX_KEPT = 10_000  # that a start takes up

Wish = dict[str, Any]


def keep_wish_in(tx: Connection, key: str, wish: Wish, expires_at: float) -> None:
    """Keeps what a session wants under this key; what it no longer wants is forgotten."""
    session = wish["session"]
    if wish.get("on") is False:
        tx.execute(delete(_wishes).where((_wishes.c.session == session) & (_wishes.c.key == key)))
    else:
        row = {"session": session, "key": key, "wish": wish, "expires_at": expires_at}
        tx.execute(upsert(tx, _wishes), row)


def forget_wishes_in(tx: Connection, session: str) -> None:
    """The session has ended, and its wishes with it."""
    tx.execute(delete(_wishes).where(_wishes.c.session == session))


async def kept_wishes(db: Database, now: float) -> list[Wish]:
    """What living sessions want, the latest first."""
    statement = select(_wishes.c.wish).where(_wishes.c.expires_at > now)
    latest = statement.order_by(_wishes.c.expires_at.desc()).limit(MAX_KEPT)
    return await db.read(lambda tx: list(tx.execute(latest).scalars()))


_ended_sessions = tables.ended_sessions
_grants = tables.standing_grants

SESSION_ENDED = "session_ended"  # the signal, with the session's id


async def end_session(db: Database, id: str, expires_at: float) -> None:
    """Ends a session in every process; forgotten once it would have expired anyway."""

    def unit(tx: Connection) -> None:
        if tx.execute(
            insert_new(tx, _ended_sessions), {"id": id, "expires_at": expires_at}
        ).rowcount:
            signal(tx, SESSION_ENDED, id)
            forget_wishes_in(tx, id)
            tx.execute(delete(_grants).where(_grants.c.session == id))

    await db.write(unit)


async def ended_sessions(db: Database, now: float, limit: int) -> list[str]:
    """Ended sessions that have not expired, the last `limit` to do so, the next one first."""
    latest = select(_ended_sessions.c.id).where(_ended_sessions.c.expires_at > now)
    statement = latest.order_by(_ended_sessions.c.expires_at.desc(), _ended_sessions.c.id).limit(
        limit
    )
    return await db.read(lambda tx: [*tx.execute(statement).scalars()][::-1])


async def first_use(db: Database, id: str, expires_at: float) -> bool:
    """Uses up what works once, in any process; False if someone was first."""
    row = {"id": id, "expires_at": expires_at}
    return await db.write(lambda tx: tx.execute(insert_new(tx, _ended_sessions), row).rowcount) == 1


async def is_ended(db: Database, id: str) -> bool:
    """Whether this was ended, or used up."""
    statement = select(_ended_sessions.c.id).where(_ended_sessions.c.id == id)
    return await db.read(lambda tx: tx.execute(statement).first()) is not None


_events = tables.events

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
    statement = select(_events).where(_events.c.id > last_id).order_by(_events.c.id)
    return await db.read(lambda tx: many(tx, statement.limit(min(limit, MAX_READ)), Event))


async def last_event_id(db: Database) -> int:
    """Where a reader begins that wants only what is new."""
    newest = await db.read(lambda tx: tx.execute(select(func.max(_events.c.id))).scalar())
    return newest or 0


def _append(tx: Connection, rows: Sequence[Row]) -> None:
    if is_postgres(tx):
        tx.execute(select(func.pg_advisory_xact_lock(EVENTS_LOCK)))
    tx.execute(insert(_events), rows)
    signal(tx, EVENTS)
