"""The store as the rest of the gateway knows it: read, write, write soon.

`read` and `write` take a function of a connection, so that one statement or five, with a decision
between them, are the same thing, typed to the end. What it returns comes back. Errors are ours:
`Broken("store_unavailable")` or `Overloaded("busy")`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from sqlalchemy import Connection, text

from gateway.errors import ConfigInvalid, GatewayError
from gateway.store.postgres import Postgres
from gateway.store.sqlite import Sqlite
from gateway.store.statements import translated
from gateway.store.writer import Figures, GroupCommit, Row, RowWriter

T = TypeVar("T")


class Database:
    """One process's way to the store; use it with `async with`, or open and close it."""

    def __init__(self, url: str) -> None:
        self.engine = engine_for(url)
        self._writer = GroupCommit(self.engine.transact)

    async def open(self) -> None:
        """Connects, brings the tables up to date and starts the writer."""
        try:
            with translated():
                await self.engine.prepare()
        except BaseException:
            await self.engine.close()
            raise
        self._writer.start()

    async def close(self) -> None:
        """Writes what still waits, then lets go of the connections."""
        await self._writer.close()
        with translated():
            await self.engine.close()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """What the query returns. Each statement sees the newest commit; it can't write."""
        with translated():
            return await self.engine.read(query)

    async def write(self, unit: Callable[[Connection], T], locks: str = "") -> T:
        """What the unit returns, once it is on disk: see `writer`."""
        return await self._writer.write(unit, locks)

    def write_soon(self, writer: RowWriter, row: Row, size: int = 0) -> bool:
        """Takes a row for the next batch, within 200 ms; False where the buffer is full."""
        return self._writer.write_soon(writer, row, size)

    async def settle(self) -> None:
        """Puts the rows that `write_soon` took on disk now, so that a read finds them."""
        with suppress(GatewayError):  # the read that follows says what is wrong with the store
            await self._writer.settle()

    def figures(self) -> Figures:
        """What the writer has done so far."""
        return self._writer.figures()

    async def ping(self) -> None:
        """Returns if the store answers."""
        await self.read(lambda tx: tx.execute(text("SELECT 1")).scalar_one())

    async def __aenter__(self) -> Database:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def engine_for(url: str) -> Sqlite | Postgres:
    """The engine a `store.url` names."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Sqlite(Path(rest[1:]))
    if scheme in ("postgresql", "postgres"):
        return Postgres(url)
    raise ConfigInvalid(["store.url: must be sqlite:///PATH or postgresql://USER@HOST/DATABASE"])
