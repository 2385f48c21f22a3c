"""The state that the processes of one gateway share: the revision, signals, sessions, windows.

A signal is a row that every process reads, this one too, in the order of commits. On PostgreSQL a
NOTIFY wakes the readers, and a slow poll stands behind it; on SQLite they ask ten times a second
whether anything was committed. Signals are kept for a minute. After a break of the connection some
may be lost: then `RECONNECTED` comes too, and every listener looks at the store again.
Signals of the feed (`EVENTS`) name an execution or an approval and are kept for an hour, so that a
reader of the feed that was cut off goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from sqlalchemy import ColumnElement, Connection, delete, func, select, update

from gateway import limits
from gateway.errors import Fixable, GatewayError
from gateway.model import new_id
from gateway.store import tables
from gateway.store.database import Database, get_all, insert_new, select_living, signal, upsert

REVISION = "revision"  # the signal, with the revision; it is heard at every look besides
REVISION_LOCK = "~revision"  # sorts behind every other key: see `Database.write`
RECONNECTED = "reconnected"
SESSION_ENDED = "session_ended"  # the signal, with the session's id
LETTER = "letter"  # the signal: to which process, which letter, what it says

T = TypeVar("T")
Wish = dict[str, Any]

_signals = tables.signals
_windows = tables.windows
_wishes = tables.wishes
_ended_sessions = tables.ended_sessions
_grants = tables.standing_grants

log = structlog.get_logger()


async def current_revision(db: Database) -> int:
    """The revision of what all replicas share."""
    return await db.read(lambda tx: int(tx.execute(_revision).scalar_one()))


async def write_revision(db: Database, unit: Callable[[Connection, int], T]) -> T:
    """Writes a unit, which is given the next revision, and has every replica read the change.

    Over all processes, such units run one after the other.
    """
    return await db.write(lambda tx: unit(tx, _bump_revision(tx)), REVISION_LOCK)


def refuse_stale(name: str, current: int, expected: int | None) -> None:
    """Refuses a change of a row that by now has another revision than its author expects."""
    if expected not in (None, current):
        raise Fixable(
            "precondition",
            f"The {name} was changed meanwhile.",
            "Read it again and repeat the change on what it is now.",
            revision=current,
        )


def _bump_revision(tx: Connection) -> int:
    table = tables.revision
    bump = update(table).values(value=table.c.value + 1).returning(table.c.value)
    value = int(tx.execute(bump).scalar_one())
    signal(tx, REVISION, str(value))
    return value


_revision = select(tables.revision.c.value)
_newest = select(func.max(_signals.c.id)).where(_signals.c.kind.in_(tables.EVENTS))


@dataclass(frozen=True, slots=True)
class Signal:
    """One message of a process to all processes."""

    id: int
    kind: str
    payload: str


def signal_soon(db: Database, kind: str, payload: str) -> None:
    """Sends a signal to every process, soon; the caller does not wait for it."""
    db.write_soon(lambda tx: signal(tx, kind, payload), len(payload))


async def events_after(db: Database, last_id: int) -> list[Signal]:
    """The events after the one of this id, oldest first, at most `STORE_ROWS` of them."""
    events = _signals.c.kind.in_(tables.EVENTS)
    return await db.read(lambda tx: _signals_after(tx, last_id, events))


async def newest_ids(db: Database) -> tuple[int, int]:
    """The id of the newest event, and the revision of what all replicas share, with one read."""
    statement = select(_newest.scalar_subquery(), _revision.scalar_subquery())
    row = await db.read(lambda tx: tx.execute(statement).one())
    return row[0] or 0, int(row[1])


def _signals_after(tx: Connection, last_id: int, *conditions: ColumnElement[bool]) -> list[Signal]:
    columns = select(_signals.c.id, _signals.c.kind, _signals.c.payload)
    statement = columns.where(_signals.c.id > last_id, *conditions).order_by(_signals.c.id)
    return get_all(tx, statement.limit(limits.STORE_ROWS), Signal)


async def living_replicas(db: Database) -> list[str]:
    """The ids of processes whose heartbeat was heard."""
    return await db.read(lambda tx: [row.id for row in tx.execute(select_living(tx))])


async def take_of_window(
    db: Database, key: str, *, requests: int, seconds: float, now: float
) -> float:
    """Counts one more request if it may be made now: 0.0; else the seconds to wait.

    There are two counters a key, of this window and the one before; the earlier counter counts for
    the part of its window that still lies within a window's length from now. So a burst at the
    border of two windows is no larger than any other. Takes of one key happen one after the other.
    """
    start = math.floor(now / seconds) * seconds

    def unit(tx: Connection) -> float:
        insert_new(tx, _windows, {"key": key, "start": start, "earlier": 0, "current": 0})
        row = tx.execute(select(_windows).filter_by(key=key).with_for_update()).one()
        earlier, current = row.earlier, row.current
        if row.start < start:
            earlier, current = (current if row.start >= start - seconds * 1.5 else 0), 0
        share = 1 - (now - start) / seconds
        if earlier * share + current + 1 > requests:
            return _wait_seconds(earlier, current, requests - 1, seconds, now - start)
        counters = {"start": start, "earlier": earlier, "current": current + 1}
        tx.execute(update(_windows).filter_by(key=key).values(counters))
        return 0.0

    return await db.write(unit, f"window {key}")


def _wait_seconds(earlier: int, current: int, room: int, seconds: float, elapsed: float) -> float:
    """How long until the counters leave room."""
    if current <= room and earlier > 0:
        return max(0.0, seconds * (1 - (room - current) / earlier) - elapsed)
    rest = seconds - elapsed  # until the window ends, and becomes the earlier one
    return rest + (seconds * (1 - room / current) if current > room > 0 else 0.0)


def keep_wish_in(tx: Connection, key: str, wish: Wish, expires_at: float) -> None:
    """Keeps what a session of the 2025 era wants to hear of, for the process that serves it next.

    A wish that the session has taken back is forgotten.
    """
    session = wish["session"]
    if wish.get("on") is False:
        tx.execute(delete(_wishes).filter_by(session=session, key=key))
    else:
        row = {"session": session, "key": key, "wish": wish, "expires_at": expires_at}
        upsert(tx, _wishes, row)


async def load_wishes(db: Database, now: float) -> list[Wish]:
    """The wishes of living sessions, the latest first."""
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
    """Uses up an id that works once, over all processes; False if it was used before."""
    return await db.write(lambda tx: _insert_ended(tx, id, expires_at))


async def is_ended(db: Database, id: str) -> bool:
    """Whether the session of this id was ended, or the id used up."""
    statement = select(_ended_sessions).filter_by(id=id)
    return await db.read(lambda tx: tx.execute(statement).first()) is not None


def _insert_ended(tx: Connection, id: str, expires_at: float) -> bool:
    return insert_new(tx, _ended_sessions, {"id": id, "expires_at": expires_at})


class Signals:
    """Calls listeners of this process for the signals of all processes, this one included.

    A task reads the signals, and code that changes something here may call `hear` besides. A signal
    only says "look again": it may be lost, so that listeners read the store, and look from time to
    time in any case.
    """

    def __init__(self) -> None:
        # By kind and payload; None: whatever the payload.
        self._listeners: dict[tuple[str, str | None], list[Callable[[str], object]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._first_look = asyncio.Event()
        self._last_id: int | None = None  # the id of the last signal that was heard

    async def start(self, db: Database) -> None:
        """Hears signals from here on; the first one is the revision, as it is now."""
        self._task = asyncio.create_task(self._run(db), name="store-signals")
        await wait_until_set(self._first_look, limits.STORE_STATEMENT_SECONDS)  # `_run` goes on

    async def close(self) -> None:
        """Stops listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, db: Database) -> None:
        broken = False
        while True:
            try:
                async with db.engine.wake_ups() as next_wake_up:
                    await self._look(db)
                    if broken:
                        self.hear(RECONNECTED)
                    broken = False
                    while True:
                        await next_wake_up()
                        await self._look(db)
            except Exception as error:  # whatever the error, a deaf process would be worse
                if not broken:
                    log.warning("store_notifications_lost", error=type(error).__name__)
                broken = True
                await asyncio.sleep(limits.REST_SECONDS)

    async def _look(self, db: Database) -> None:
        revision, signals = await db.read(self._new_signals)
        self.hear(REVISION, str(revision))
        for message in signals:
            self._last_id = message.id
            self.hear(message.kind, message.payload)
        self._first_look.set()
        if len(signals) == limits.STORE_ROWS:
            await self._look(db)

    def _new_signals(self, tx: Connection) -> tuple[int, list[Signal]]:
        if self._last_id is None:
            self._last_id = tx.execute(select(func.max(_signals.c.id))).scalar() or 0
        signals = _signals_after(tx, self._last_id)
        return int(tx.execute(_revision).scalar_one()), signals

    def hear(self, kind: str, payload: str = "") -> None:
        """Calls the listeners of this signal; after a break of the connection, all listeners."""
        own_keys = [(kind, payload), (kind, None)]
        heard_keys = self._listeners if kind == RECONNECTED else own_keys
        for listener in [each for key in heard_keys for each in self._listeners.get(key, ())]:
            try:
                listener(payload)
            except Exception:  # a listener's mistake must not make this process deaf
                log.exception("store_signal_failed", kind=kind)

    def on(self, kind: str, listener: Callable[[str], object], payload: str | None = None) -> None:
        """Calls the listener with the payload of each such signal, or with "" after a break."""
        self._listeners.setdefault((kind, payload), []).append(listener)

    @contextmanager
    def event_for(self, kind: str, payload: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever this signal is heard."""
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


async def wait_until_set(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set within these seconds; it is cleared for the next time."""
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True


Start = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


@dataclass
class Letters:
    """Asks other processes questions and gives their answers; a letter is a signal.

    `answer` answers a question to this process, in a task that `start` begins.
    """

    db: Database
    signals: Signals
    replica: str
    answer: Callable[..., Awaitable[Any]]
    start: Start
    replies: dict[str, asyncio.Future[Any]] = field(default_factory=dict)  # by letter

    def __post_init__(self) -> None:
        self.signals.on(LETTER, self._receive)

    async def ask(self, replica: str, *values: Any) -> Any:
        """The answer of that process to these values; None where it ended without an answer."""
        letter, is_alive = new_id(time.time()), True
        reply = self.replies[letter] = asyncio.get_running_loop().create_future()
        try:
            await self._send(replica, letter, [self.replica, *values])
            while is_alive and not reply.done():  # a dead process may have answered before
                is_alive = replica in await living_replicas(self.db)
                await asyncio.wait([reply], timeout=limits.MOMENT_SECONDS)
            return reply.result() if reply.done() else None
        finally:
            del self.replies[letter]

    def _receive(self, payload: str) -> None:
        recipient, letter, text = f"{payload}  ".split(" ", 2)
        if recipient != self.replica:
            return
        value, reply = json.loads(text), self.replies.get(letter)
        if reply is not None and not reply.done():
            reply.set_result(value)
        elif reply is None and isinstance(value, list):
            self.start(self._reply(letter, *value))

    async def _reply(self, letter: str, sender: str, *values: Any) -> None:
        try:
            await self._send(sender, letter, await self.answer(*values))
        except GatewayError as error:
            log.warning("letter_not_answered", code=error.code)

    async def _send(self, recipient: str, letter: str, value: Any) -> None:
        payload = f"{recipient} {letter} {json.dumps(value)}"
        await self.db.write(lambda tx: signal(tx, LETTER, payload))
