"""Hears what other processes changed: the revision, and named signals.

On PostgreSQL a connection of its own listens; it is made again when it breaks, and a slow poll of
the revision stands behind it. On SQLite a look at `PRAGMA data_version` ten times a second says
whether the file has changed at all, and only then revision and signals are read.

Signals come at least once while the connection stands. After a break on PostgreSQL some may be
lost: then `RECONNECTED` comes instead, and who waits for something looks at the store again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import structlog

from gateway.store.database import Database
from gateway.store.postgres import Postgres
from gateway.store.signals import CHANNEL, REVISION, ROW
from gateway.store.sqlite import Sqlite

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
