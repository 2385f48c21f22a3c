"""PostgreSQL: one connection that writes, a few that read, any number of gateways on one database.

A restart of the server is survived: connections that died are replaced, and what they cut off is
tried once more, a batch only if its commit had not been sent yet. A write whose commit was cut off
is never repeated: whether it happened is for the caller to find out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import asyncpg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from gateway.store.statements import busy, is_current, migrate

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

READERS = 4
MAX_WAITING_READS = 1024
STATEMENT_SECONDS = 5.0
MIGRATION_SECONDS = 60.0
MIGRATION_LOCK = 0x6761_7465  # any constant, the same in every gateway
SERVER_SETTINGS = {
    "application_name": "gateway",
    "jit": "off",
    # What a process that hangs, or is stopped, may do to the others.
    "lock_timeout": "4000",
    "idle_in_transaction_session_timeout": "15000",
}


class Postgres:
    """The database as two pools: who writes, and who reads."""

    dialect: Literal["postgresql"] = "postgresql"

    def __init__(self, url: str, seconds: float = STATEMENT_SECONDS) -> None:
        self.url = url
        self._seconds = seconds
        self._writer = self._engine(seconds, pool_size=1)
        self._readers = self._engine(seconds, pool_size=READERS, isolation_level="AUTOCOMMIT")
        self._waiting = 0

    async def prepare(self) -> None:
        """Makes the tables, one process at a time: the others wait, then find them made."""
        if await self.read(is_current):
            return
        engine = self._engine(MIGRATION_SECONDS, lock_timeout="0")
        try:
            async with asyncio.timeout(MIGRATION_SECONDS), engine.begin() as transaction:
                await transaction.run_sync(_lock_migrations)
                await transaction.run_sync(migrate)
        finally:
            await engine.dispose()

    async def read(self, query: Callable[[Connection], T]) -> T:
        if self._waiting >= MAX_WAITING_READS:
            raise busy("reads")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read_again_if_cut_off(query)
        finally:
            self._waiting -= 1

    async def transact(self, batch: Callable[[Connection], T]) -> T:
        async with asyncio.timeout(self._seconds), self._writer.begin() as transaction:
            return await transaction.run_sync(batch)

    async def close(self) -> None:
        await self._readers.dispose()
        await self._writer.dispose()

    async def connect(self, seconds: float = STATEMENT_SECONDS, **settings: str) -> Any:
        """A connection outside the pools: `asyncpg.Connection`, which has no types."""
        return await asyncpg.connect(
            self.url,
            timeout=STATEMENT_SECONDS,
            command_timeout=seconds,
            server_settings={**SERVER_SETTINGS, **settings},
        )

    async def _read_again_if_cut_off(self, query: Callable[[Connection], T]) -> T:
        try:
            return await self._read(query)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            return await self._read(query)

    async def _read(self, query: Callable[[Connection], T]) -> T:
        async with self._readers.connect() as connection:
            return await connection.run_sync(query)

    def _engine(self, seconds: float, *, lock_timeout: str = "4000", **options: Any) -> AsyncEngine:
        # Here, not above: it brings SQLAlchemy's mapping along, which SQLite needs nothing of.
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda: self.connect(seconds, lock_timeout=lock_timeout),
            max_overflow=0,
            pool_timeout=STATEMENT_SECONDS,
            **options,
        )


def _lock_migrations(connection: Connection) -> None:
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
