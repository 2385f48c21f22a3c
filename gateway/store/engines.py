"""The two databases: how each is made ready, read and written, and what its errors become.

SQLite has one writing connection on a thread of its own, and a few readers that never wait for it
(WAL). A whole batch or query is one job for its thread: going there and back for each statement
costs ten times the statement. Several processes may share the file and take turns.

PostgreSQL has one connection that writes and a few that read, for any number of gateways. A restart
of the server is survived: connections that died are replaced, and a batch that they cut off is
tried once more if its commit had not been sent yet. Whether a write happened whose commit was cut
off is for the caller to find out: it is never repeated.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import SQLAlchemyError

from gateway import limits
from gateway.errors import Broken, ConfigInvalid
from gateway.system import lock_file

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
Query = Callable[[Connection], T]
WakeUp = Callable[[], Awaitable[None]]

CHANNEL = "gateway"  # of PostgreSQL's NOTIFY
FAILURES = (
    SQLAlchemyError,
    sqlite3.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,  # refused, reset, and TimeoutError
    asyncio.IncompleteReadError,
)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turns every failure of the database into `Broken`, with its cause chained for the log."""
    try:
        yield
    except TimeoutError as error:
        raise unavailable_error("The store did not answer in time.") from error
    except FAILURES as error:
        raise unavailable_error("The store did not do what it was asked to.") from error


def unavailable_error(message: str) -> Broken:
    """The one error that callers see of a database that fails."""
    return Broken(
        "store_unavailable", message, "Try again shortly; the gateway's log has the cause."
    )


def engine_for(url: str) -> Sqlite | Postgres:
    """The engine a `store.url` names."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Sqlite(Path(rest[1:]))
    if scheme in ("postgresql", "postgres"):
        return Postgres(url)
    raise ConfigInvalid(["store.url: must be sqlite:///PATH or postgresql://USER@HOST/DATABASE"])


class Sqlite:
    """A file: one connection that writes, and some that read."""

    def __init__(self, path: Path, seconds: float = limits.STORE_STATEMENT_SECONDS) -> None:
        self._path = path
        self._lock = path.with_name(path.name + ".lock")
        self._seconds = seconds
        self._writer = _sqlite_engine(path, 1, "journal_mode = WAL")
        # Takes the write lock at once: no transaction fails halfway as another process was faster.
        event.listen(self._writer, "begin", lambda tx: tx.exec_driver_sql("BEGIN IMMEDIATE"))
        self._readers = _sqlite_engine(path, limits.STORE_READERS, "query_only = ON")
        self._write_thread = ThreadPoolExecutor(1, "store-write")
        self._read_threads = ThreadPoolExecutor(limits.STORE_READERS, "store-read")

    async def prepare(self, make_tables: Query[None]) -> None:
        """Makes the file and its tables, one process at a time."""
        await asyncio.to_thread(self._path.parent.mkdir, parents=True, exist_ok=True)
        await self.transact(make_tables)

    async def read(self, query: Query[T]) -> T:
        """What the query returns. Each statement sees the newest commit."""
        return await self._run_on(self._read_threads, partial(self._read, query))

    async def transact(self, batch: Query[T]) -> T:
        """What the batch returns, committed."""
        return await self._run_on(self._write_thread, partial(self._transact, batch))

    @asynccontextmanager
    async def wake_ups(self) -> AsyncIterator[WakeUp]:
        """A function that returns when something may have been committed, by any process.

        SQLite notifies no process. But it counts commits, and reading the count takes no thread and
        no table, so that an idle process can look often.
        """
        counter = sqlite3.connect(self._path, timeout=0, isolation_level=None)
        version: int | None = None

        async def next_wake_up() -> None:
            nonlocal version
            before = version
            while version == before:
                await asyncio.sleep(limits.STORE_LOOK_SECONDS)
                version = counter.execute("PRAGMA data_version").fetchone()[0]

        try:
            yield next_wake_up
        finally:
            counter.close()

    async def close(self) -> None:
        for threads in (self._read_threads, self._write_thread):
            threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._readers.dispose)
        await asyncio.to_thread(self._writer.dispose)

    async def _run_on(self, threads: ThreadPoolExecutor, job: Callable[[float], T]) -> T:
        deadline = time.monotonic() + self._seconds
        async with asyncio.timeout(self._seconds):
            return await asyncio.get_running_loop().run_in_executor(threads, job, deadline)

    def _read(self, query: Query[T], deadline: float) -> T:
        with self._readers.connect() as connection, _interrupt_at(connection, deadline):
            return query(connection)

    def _transact(self, batch: Query[T], deadline: float) -> T:
        with (
            _take_turn(self._lock, deadline),
            self._writer.begin() as connection,
            _interrupt_at(connection, deadline),
        ):
            _check_deadline(deadline)
            return batch(connection)


@contextmanager
def _take_turn(lock: Path, deadline: float) -> Iterator[None]:
    """Holds a file lock, so that processes take turns.

    SQLite alone would let waiting processes look again after ever longer pauses, and a busy process
    takes the lock again in between. And switching to WAL does not wait for other processes at all.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            with suppress(BlockingIOError):
                lock_file(descriptor)
                break
            _check_deadline(deadline)
            time.sleep(0.001)
        yield
    finally:
        os.close(descriptor)


def _check_deadline(deadline: float) -> None:
    # The caller has been told that the job failed: then it must not run any more.
    if time.monotonic() > deadline:
        raise TimeoutError("the store's lock was held too long")


@contextmanager
def _interrupt_at(connection: Connection, deadline: float) -> Iterator[None]:
    """Interrupts statements that still run at the deadline, so that their thread comes back."""
    driver: Any = connection.connection.driver_connection
    steps = 20_000  # of SQLite's own, between two looks at the clock
    driver.set_progress_handler(lambda: time.monotonic() > deadline, steps)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)


def _sqlite_engine(path: Path, size: int, pragma: str) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        pool_size=size,
        max_overflow=0,
        pool_timeout=limits.STORE_STATEMENT_SECONDS,
        pool_reset_on_return=None,
        # The driver opens no transaction by itself: a read sees the newest commit.
        connect_args={
            "check_same_thread": False,
            "timeout": limits.STORE_STATEMENT_SECONDS,
            "isolation_level": None,
        },
    )
    event.listen(engine, "connect", partial(_configure, pragma))
    return engine


def _configure(pragma: str, connection: Any, record: object) -> None:
    # Without `temp_store`, every batch also writes a file in /var/tmp.
    common = ("synchronous = FULL", "temp_store = MEMORY")
    for setting in (*common, f"journal_size_limit = {limits.STORE_BURST_BYTES}", pragma):
        connection.execute(f"PRAGMA {setting}")


class Postgres:
    """A database: one connection that writes, and some that read."""

    def __init__(self, url: str, seconds: float = limits.STORE_STATEMENT_SECONDS) -> None:
        self._url = url
        self._seconds = seconds
        self._writer = self._engine(pool_size=1)
        self._readers = self._engine(
            pool_size=limits.STORE_READERS,
            isolation_level="AUTOCOMMIT",
            pool_pre_ping=True,  # a connection that died meanwhile is replaced
        )

    async def prepare(self, make_tables: Query[None]) -> None:
        """Makes the tables, one process at a time: the others wait, then find the tables."""

        def make_in_turn(tx: Connection) -> None:
            tx.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('gateway migrations'))")
            make_tables(tx)

        await self.transact(make_in_turn)

    async def read(self, query: Query[T]) -> T:
        """What the query returns. Each statement sees the newest commit."""
        async with asyncio.timeout(self._seconds), self._readers.connect() as connection:
            return await connection.run_sync(query)

    async def transact(self, batch: Query[T]) -> T:
        """What the batch returns, committed."""
        async with asyncio.timeout(self._seconds), self._writer.begin() as transaction:
            return await transaction.run_sync(batch)

    async def close(self) -> None:
        await self._readers.dispose()
        await self._writer.dispose()

    @asynccontextmanager
    async def wake_ups(self) -> AsyncIterator[WakeUp]:
        """A function that returns after a NOTIFY; it raises if the connection has ended."""
        connection = await self._connect()
        wake_event = asyncio.Event()

        async def next_wake_up() -> None:
            try:
                async with asyncio.timeout(limits.HEARTBEAT_SECONDS):
                    await wake_event.wait()
            except TimeoutError:
                await connection.fetchval("SELECT 1")  # shows whether the connection still stands
            wake_event.clear()
            if connection.is_closed():
                raise ConnectionError("the connection that listens has ended")

        try:
            connection.add_termination_listener(lambda _: wake_event.set())
            await connection.add_listener(CHANNEL, lambda *_: wake_event.set())
            yield next_wake_up
        finally:
            connection.terminate()

    async def _connect(self) -> Any:
        """A connection outside the pools: `asyncpg.Connection`, which has no types."""
        return await asyncpg.connect(
            self._url,
            timeout=limits.STORE_STATEMENT_SECONDS,
            command_timeout=self._seconds,
            server_settings={
                "application_name": "gateway",
                "jit": "off",
                # How long a process that hangs, or is stopped, may hold up the others.
                "lock_timeout": "4000",
                "idle_in_transaction_session_timeout": "15000",
            },
        )

    def _engine(self, **options: Any) -> AsyncEngine:
        # Imported here, not above: it loads SQLAlchemy's mapping, which SQLite does not need.
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect,
            max_overflow=0,
            pool_timeout=limits.STORE_STATEMENT_SECONDS,
            **options,
        )
