"""The store as the rest of the gateway knows it: read, write, write soon.

`read` and `write` take a function of a connection, so that one statement or five, with a decision
between them, are the same thing. Writes are committed in groups: whatever units wait when the one
writing task of this process is free run one after the other in one transaction, and are answered
after its commit, so an answer means "on disk". If one of them fails, or the connection breaks
before the commit, the batch is run again with a savepoint around each: a failing unit fails only
itself. A unit may so run twice; it must do nothing but talk to the transaction it is given.

Units that need not be on disk first (`write_soon`) ride along with the next batch. They stay in
memory while the store is down; beyond a bound they are refused and counted. Rows that many units of
a batch add to one table (`add_row`), and what they tell other processes (`signal`), are written
together at its end.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from itertools import chain
from types import NoneType
from typing import Any, TypeVar

import structlog
from msgspec import Struct
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Executable,
    Select,
    Table,
    and_,
    insert,
    inspect,
    literal_column,
    or_,
    select,
    text,
    true,
)

from gateway import limits
from gateway.errors import ConfigInvalid, GatewayError, Overloaded
from gateway.store import tables
from gateway.store.engines import CHANNEL, engine_for, translate_errors, unavailable_error

T = TypeVar("T")
Unit = Callable[[Connection], Any]
RowValues = Mapping[str, Any]

log = structlog.get_logger()


class Work(Struct, frozen=True):
    """A unit, the answer that its caller waits for, and the shared row that it will lock.

    Where no caller waits: the memory that the unit takes meanwhile.
    """

    unit: Unit
    answer: asyncio.Future[Any] | None = None
    locks: str = ""
    size: int = 0


class Database:
    """One process's way to the store; use it with `async with`, or open and close it."""

    def __init__(self, url: str) -> None:
        self.engine = engine_for(url)
        self.commits = self.dropped = 0
        self._queue: list[Work] = []
        self._soon_work: list[Work] = []
        self._soon_bytes = 0
        self._wake, self._wakes_at = asyncio.Event(), math.inf
        self._task: asyncio.Task[None] | None = None
        self._closing = self._down = self._writing = False

    async def open(self) -> Database:
        """Connects, brings the tables up to date and starts the writer."""
        try:
            with translate_errors():
                await self.engine.prepare(make_tables)
        except BaseException:
            await self.engine.close()
            raise
        self._task = asyncio.create_task(self._run(), name="store-writer")
        return self

    async def close(self) -> None:
        """Writes what still waits, then lets go of the connections."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=limits.STORE_WRITE_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._give_up()
        with translate_errors():
            await self.engine.close()

    __aenter__ = open

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """The query's result. Each statement sees the newest commit; it can't write."""
        with translate_errors():
            return await self.engine.read(query)

    async def write(self, unit: Callable[[Connection], T], locks: str = "") -> T:
        """Runs a unit, and returns its result once it is on disk.

        `locks` names the row that units of several processes fight for. A batch locks its
        rows in order, so that no two batches wait for each other.
        """
        if self._closing or self._task is None:
            raise unavailable_error("The store is closed.")
        if len(self._queue) >= limits.STORE_QUEUE:
            message, hint = "Too many writes are waiting for the store.", "Try again shortly."
            raise Overloaded("busy", message, hint)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(Work(unit, answer, locks))
        self._wake.set()
        with translate_errors():
            async with asyncio.timeout(limits.STORE_WRITE_SECONDS):
                return await answer

    def write_soon(self, unit: Unit, size: int = 0, within: float = limits.SETTLE_SECONDS) -> bool:
        """Takes a unit for the next batch, which waits `within` seconds for more at most.

        False (and counted) where there is no room left.
        """
        size += 1024  # of memory that a unit takes beside its JSON, about
        if self._closing or self._soon_bytes + size > limits.STORE_BURST_BYTES:
            self.dropped += 1
            return False
        self._soon_work.append(Work(unit, size=size))
        self._soon_bytes += size
        is_much = self._soon_bytes > limits.STORE_BURST_BYTES // 8
        self._wake_within(limits.SETTLE_SECONDS if is_much else within)
        return True

    async def settle(self) -> None:
        """Puts the units of `write_soon` on disk now, so that a read finds their rows."""
        with suppress(GatewayError):  # the read that follows says what is wrong with the store
            if self._soon_work or self._writing:
                await self.write(lambda tx: None)  # rides in, or behind, their batch

    async def ping(self) -> None:
        """Returns if the store answers."""
        await self.read(lambda tx: tx.execute(text("SELECT 1")).scalar_one())

    async def _run(self) -> None:
        while self._queue or self._soon_work or not self._closing:
            await self._wake.wait()
            self._wake.clear()
            self._wakes_at = math.inf
            self._writing = True
            is_stored = await self._commit(self._take_batch())
            self._writing = False
            if self._queue or self._closing and is_stored:
                self._wake.set()
            elif self._closing:
                return
            elif not is_stored:
                self._wake_within(limits.REST_SECONDS)

    def _wake_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() + seconds < self._wakes_at:
            self._wakes_at = loop.time() + seconds
            loop.call_later(seconds, self._wake.set)

    def _take_batch(self) -> list[Work]:
        # A unit whose caller gave up meanwhile must not run either.
        wanted_work = [work for work in self._queue if work.answer and not work.answer.done()]
        batch = [*self._soon_work, *sorted(wanted_work, key=lambda work: work.locks)]
        self._queue, self._soon_work, self._soon_bytes = [], [], 0
        return batch

    async def _commit(self, batch: list[Work]) -> bool:
        """Whether the store took the batch; each unit of it has its answer either way."""
        if not batch:
            return True
        units = [work.unit for work in batch]
        try:
            try:
                outcomes = await self.engine.transact(lambda tx: _run_together(tx, units))
            except _UnitFailed:
                outcomes = await self.engine.transact(lambda tx: _run_batch(tx, units, _run_alone))
        except Exception as error:  # the task must live on, whatever the driver raised
            self._keep_or_fail(batch, error)
            return False
        self.commits += 1
        if self._down:
            log.warning("store_recovered")
            self._down = False
        for work, outcome in zip(batch, outcomes, strict=True):
            self._answer(work, outcome)
        return True

    def _keep_or_fail(self, batch: list[Work], error: Exception) -> None:
        """Tells callers that the store failed; units that no caller waits for are tried again."""
        if not self._down:  # said once, not for every batch of an outage
            log.error("store_write_failed", error=type(error).__name__, units=len(batch))
            self._down = True
        retried_work = [work for work in batch if work.answer is None]
        self._soon_work = [*retried_work, *self._soon_work]
        self._soon_bytes += sum(work.size for work in retried_work)
        for work in batch[len(retried_work) :]:
            self._answer(work, error)

    def _answer(self, work: Work, outcome: Any) -> None:
        is_error = isinstance(outcome, Exception)
        if work.answer is None:
            if is_error:
                self.dropped += 1
                log.warning("store_row_refused", error=type(outcome).__name__)
        elif not work.answer.done():
            if is_error:
                work.answer.set_exception(outcome)
            else:
                work.answer.set_result(outcome)

    def _give_up(self) -> None:
        for work in self._queue:
            self._answer(work, unavailable_error("The store is closed."))
        self.dropped += len(self._soon_work)
        if self._soon_work:
            log.error("store_rows_lost", rows=len(self._soon_work))


class _UnitFailed(Exception):
    """One of the units failed, so nothing was committed: run them again, each on its own."""


def _run_together(tx: Connection, units: Sequence[Unit]) -> list[Any]:
    try:
        return _run_batch(tx, units, lambda tx, unit: unit(tx))
    except Exception as error:
        raise _UnitFailed from error


def _run_batch(
    tx: Connection, units: Sequence[Unit], run: Callable[[Connection, Unit], Any]
) -> list[Any]:
    tx.info["signals"], tx.info["added"] = [], defaultdict(list)
    outcomes = [run(tx, unit) for unit in units]
    _write_added(tx)
    _write_signals(tx)
    return outcomes


def _run_alone(tx: Connection, unit: Unit) -> Any:
    """What the unit returned, or why it failed."""
    signals = tx.info["signals"]
    before = len(signals)
    try:
        with tx.begin_nested():
            outcome = unit(tx)
            _write_added(tx)
            return outcome
    except Exception as error:
        if tx.invalidated:  # the connection is gone, and the whole batch with it
            raise
        tx.info["added"].clear()
        del signals[before:]
        return error


def signal(tx: Connection, kind: str, payload: str = "") -> None:
    """Sends a signal to every process, this one too, once this transaction is committed."""
    tx.info["signals"].append({"kind": kind, "payload": payload, "at": time.time()})


def _write_signals(tx: Connection) -> None:
    """Writes the signals of a batch, last of all.

    Their ids must grow in the order of commits, or a process that has read 7 would miss a 6 that
    comes late. So processes do this step, and the commit behind it, one after the other.
    """
    signals = tx.info["signals"]
    if not signals:
        return
    if is_postgres(tx):
        tx.execute(text("SELECT pg_advisory_xact_lock(hashtext('gateway signals'))"))
        tx.execute(text(f"SELECT pg_notify('{CHANNEL}', '')"))
    insert_rows(tx, tables.signals, signals)


def add_row(tx: Connection, table: Table, row: RowValues) -> None:
    """Inserts a row at the end of the batch, unless it is there by then."""
    tx.info["added"][table].append(row)


def _write_added(tx: Connection) -> None:
    for table, rows in tx.info["added"].items():
        insert_rows(tx, table, rows)
    tx.info["added"].clear()


def insert_rows(
    tx: Connection, table: Table, rows: Sequence[RowValues], on_conflict: str = "DO NOTHING"
) -> int:
    """Inserts rows, many with one statement; gives how many are new, or changed.

    All rows have the same columns in the same order; columns that no row fills are left out.
    SQLite's driver would let other threads run after each row, and wait for its turn as often.
    SQLAlchemy's own way to put many rows into one statement takes longer than the insert, and says
    a conflict differently for each database.
    """
    pairs = zip(rows[0], zip(*[row.values() for row in rows], strict=True), strict=True)
    columns = {name: _storable(cells) for name, cells in pairs if cells.count(None) < len(rows)}
    names, count = ", ".join(f'"{name}"' for name in columns), 0
    remaining = list(zip(*columns.values(), strict=True))
    while remaining:
        # By powers of two: other numbers of rows are other statements, and drivers keep each.
        size = 1 << min(len(remaining), limits.STORE_ROWS).bit_length() - 1
        part, remaining = remaining[:size], remaining[size:]
        marks = _placeholders(is_postgres(tx), len(columns), size)
        statement = f"INSERT INTO {table.name} ({names}) VALUES {marks} ON CONFLICT {on_conflict}"
        count += tx.exec_driver_sql(statement, tuple(chain.from_iterable(part))).rowcount
    return count


def _storable(cells: Sequence[Any]) -> Sequence[Any]:
    """A column as the store holds it; nearly always one look at all its values is enough."""
    kinds = {*map(type, cells)} - {NoneType}
    text = "".join(filter(None, cells)) if kinds == {str} else "\0"
    is_plain = text.isascii() and "\0" not in text
    return cells if is_plain or kinds <= {bytes, int, float} else [*map(tables.storable, cells)]


def insert_new(tx: Connection, table: Table, row: RowValues) -> bool:
    """Inserts a row unless it is there; True if it was inserted."""
    return insert_rows(tx, table, [row]) == 1


def upsert(tx: Connection, table: Table, row: RowValues) -> None:
    """Inserts a row, or replaces every column of the row that has its key."""
    keys = [column.name for column in table.primary_key]
    rest = [name for name in row if name not in keys]
    insert_rows(tx, table, [row], f"({', '.join(keys)}) DO UPDATE SET {set_clause(rest)}")


def set_clause(columns: Iterable[str]) -> str:
    """The assignments on a conflict: these columns, as the row to be inserted has them."""
    return ", ".join(f'"{name}" = excluded."{name}"' for name in columns)


@lru_cache
def _placeholders(postgres: bool, columns: int, rows: int) -> str:
    """The placeholders of these rows: `(?, ?), (?, ?)`, or `($1, $2), ($3, $4)`."""
    places = [f"${number + 1}" if postgres else "?" for number in range(columns * rows)]
    parts = (places[start : start + columns] for start in range(0, len(places), columns))
    return ", ".join(f"({', '.join(part)})" for part in parts)


def is_postgres(tx: Connection) -> bool:
    return tx.dialect.name == "postgresql"


def store_time(tx: Connection) -> ColumnElement[float]:
    """The store's own clock, for what processes with different clocks compare."""
    postgres = "extract(epoch from clock_timestamp())::double precision"
    sqlite = "((julianday('now') - 2440587.5) * 86400.0)"
    return literal_column(postgres if is_postgres(tx) else sqlite)


def select_living(tx: Connection) -> Select[tuple[str]]:
    """The ids of processes that are alive, as a statement or inside another one."""
    is_alive = tables.replicas.c.heartbeat_at > store_time(tx) - limits.SILENT_SECONDS
    return select(tables.replicas.c.id).where(is_alive)


def values(row: Any) -> dict[str, Any]:
    """A frozen row as column values: the fields are named as the columns."""
    return {field.name: getattr(row, field.name) for field in fields(row)}


def get_one(tx: Connection, statement: Executable, kind: type[T]) -> T | None:
    """The only row as a frozen value, if there is one."""
    row = tx.execute(statement).one_or_none()
    return None if row is None else kind(**row._mapping)


def get_all(tx: Connection, statement: Executable, kind: type[T]) -> list[T]:
    """All rows as frozen values."""
    return [kind(**row._mapping) for row in tx.execute(statement)]


# An organization, connections, and those of them that are its own: see `is_seen`. None: no bound.
Oversight = tuple[str, tuple[str, ...], tuple[str, ...]] | None


def is_seen(
    columns: Any, oversight: Oversight, *go_along: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Whether rows are of these connections, and were made for this organization. Rows that go
    along with the connection count too, and on its own ones those that don't say for whom."""
    if oversight is None:
        return true()
    organization, connections, own = oversight
    is_unsaid = columns.organization.is_(None) & columns.connection.in_(own)
    is_ours = or_(columns.organization == organization, is_unsaid, *go_along)
    return and_(columns.connection.in_(connections), is_ours)


# --- the tables themselves ------------------------------------------------------------------------

VERSION = "release_1"


def make_tables(connection: Connection) -> None:
    """Makes the tables and columns that are missing: all, or those of a later gateway."""
    had_tables = has_tables(connection)
    tables.metadata.create_all(connection)
    if had_tables:
        _add_columns(connection)
    else:
        connection.execute(insert(tables.revision), {"id": 1, "value": 0})
        connection.execute(insert(tables.versions), {"version_num": VERSION})


def _add_columns(connection: Connection) -> None:
    """Adds the columns that came later; rows that are there, and older gateways that still run
    beside this one, leave them empty."""
    for column in _missing_columns(connection):
        kind = column.type.compile(connection.dialect)
        statement = f'ALTER TABLE {column.table.name} ADD COLUMN "{column.name}" {kind}'
        connection.execute(text(statement))


def _missing_columns(connection: Connection) -> list[Column[Any]]:
    found = inspect(connection).get_multi_columns()
    present = {(table, c["name"]) for (_, table), columns in found.items() for c in columns}
    columns = [column for table in tables.metadata.sorted_tables for column in table.columns]
    return [column for column in columns if (column.table.name, column.name) not in present]


def is_current(connection: Connection) -> bool:
    """Whether the store has all this gateway reads, as it has once a gateway served from it."""
    return has_tables(connection) and not _missing_columns(connection)


def has_tables(connection: Connection) -> bool:
    """Whether the tables are there; refuses those of another version than this gateway's.

    There is one version so far. A later version is told apart here from earlier ones, and says
    how their tables become its own: the version's table is the one that Alembic reads.
    """
    if not inspect(connection).has_table(tables.versions.name):
        return False
    version = connection.execute(select(tables.versions)).scalar()
    if version != VERSION:
        raise ConfigInvalid(
            [
                f"store.url: the store has the version {version}, and this gateway knows {VERSION}"
                " only. Run the gateway that made it, or begin a new store: move the SQLite file"
                " (and its -wal and -shm) away, or name another PostgreSQL database. Connections"
                " that were put must be put again there"
            ]
        )
    return True
