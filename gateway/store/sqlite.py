"""SQLite: one writing connection on a thread of its own, a few readers that never wait for it.

WAL lets readers go on while a commit waits for the disk. A whole batch or query is one job for its
thread: going there and back for each statement costs ten times the statement (60 µs against 510 a
row, measured). Several processes may share the file and take turns: `BEGIN IMMEDIATE` takes the
write lock at once, so no transaction fails halfway because another process was faster.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection

from gateway.store.statements import busy, migrate

T = TypeVar("T")

READERS = 4
MAX_WAITING_READS = 1024
STATEMENT_SECONDS = 5.0
MIGRATION_SECONDS = 60.0
JOURNAL_BYTES = 64 * 2**20  # the write-ahead log is cut back to this after a burst
TURN_SECONDS = 0.001  # between two looks at whether it is our turn
PROGRESS_STEPS = 20_000  # SQLite instructions between two looks at the clock


class Sqlite:
    """The file as two pools: who writes, and who reads."""

    dialect: Literal["sqlite"] = "sqlite"

    def __init__(self, path: Path, seconds: float = STATEMENT_SECONDS) -> None:
        self.path = path
        self._lock = path.with_name(path.name + ".lock")
        self._seconds = seconds
        self._writer = _engine(path, pool_size=1, query_only=False)
        self._readers = _engine(path, pool_size=READERS, query_only=True)
        self._write_thread = ThreadPoolExecutor(1, "store-write")
        self._read_threads = ThreadPoolExecutor(READERS, "store-read")
        self._waiting = 0

    async def prepare(self) -> None:
        """Makes the file and its tables, one process at a time."""
        job = partial(_prepare, self._lock, self._writer)
        await self._on(self._write_thread, job, MIGRATION_SECONDS)

    async def read(self, query: Callable[[Connection], T]) -> T:
        if self._waiting >= MAX_WAITING_READS:
            raise busy("reads")
        self._waiting += 1
        try:
            return await self._on(self._read_threads, partial(_read, self._readers, query))
        finally:
            self._waiting -= 1

    async def transact(self, batch: Callable[[Connection], T]) -> T:
        job = partial(_transact, self._lock, self._writer, batch)
        return await self._on(self._write_thread, job)

    async def close(self) -> None:
        for threads in (self._read_threads, self._write_thread):
            threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._dispose)

    async def _on(
        self,
        threads: ThreadPoolExecutor,
        job: Callable[[float], T],
        seconds: float | None = None,
    ) -> T:
        seconds = self._seconds if seconds is None else seconds
        deadline = time.monotonic() + seconds
        async with asyncio.timeout(seconds):
            return await asyncio.get_running_loop().run_in_executor(threads, job, deadline)

    def _dispose(self) -> None:
        self._readers.dispose()
        self._writer.dispose()


def _read(engine: Engine, query: Callable[[Connection], T], deadline: float) -> T:
    with engine.connect() as connection, _until(connection, deadline):
        return query(connection)


def _transact(lock: Path, engine: Engine, batch: Callable[[Connection], T], deadline: float) -> T:
    with _turn(lock, deadline):
        return _commit(engine, batch, deadline)


def _commit(engine: Engine, batch: Callable[[Connection], T], deadline: float) -> T:
    with engine.connect() as connection, _until(connection, deadline):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            _check(deadline)
            result = batch(connection)
            connection.exec_driver_sql("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise
        return result


def _roll_back(connection: Connection) -> None:
    if _driver(connection).in_transaction:
        connection.exec_driver_sql("ROLLBACK")


def _prepare(lock: Path, engine: Engine, deadline: float) -> None:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with _turn(lock, deadline):
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        _commit(engine, migrate, deadline)


@contextmanager
def _turn(lock: Path, deadline: float) -> Iterator[None]:
    """Holds a file lock, so that processes take turns.

    SQLite alone would let those who wait look again after ever longer pauses, and a busy process
    takes the lock again in between. And switching to WAL does not wait for others at all.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for_lock(descriptor, deadline)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, deadline: float) -> None:
    while True:
        _check(deadline)
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(TURN_SECONDS)


def _check(deadline: float) -> None:
    # Who asked has been told that it failed: then it must not happen any more.
    if time.monotonic() > deadline:
        raise TimeoutError("the store's lock was held too long")


@contextmanager
def _until(connection: Connection, deadline: float) -> Iterator[None]:
    """Interrupts statements that are still running at the deadline, so that a thread comes back."""
    driver = _driver(connection)
    driver.set_progress_handler(lambda: time.monotonic() > deadline, PROGRESS_STEPS)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)


def _driver(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _engine(path: Path, *, pool_size: int, query_only: bool) -> Engine:
    # AUTOCOMMIT: SQLAlchemy and the driver open no transaction, so `BEGIN IMMEDIATE` is ours to say
    # and a read sees the newest commit.
    engine = create_engine(
        f"sqlite:///{path}",
        isolation_level="AUTOCOMMIT",
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=STATEMENT_SECONDS,
        pool_reset_on_return=None,
        connect_args={"check_same_thread": False, "timeout": STATEMENT_SECONDS},
    )
    event.listen(engine, "connect", partial(_configure, query_only))
    return engine


def _configure(query_only: bool, connection: DBAPIConnection, record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute(f"PRAGMA journal_size_limit = {JOURNAL_BYTES}")
    if query_only:
        cursor.execute("PRAGMA query_only = ON")
    cursor.close()
