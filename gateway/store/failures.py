"""Where the database's own errors become ours: nothing of SQLAlchemy or a driver gets past here.

`Broken("store_unavailable")` says nothing of the cause to the caller; the cause stays chained, for
the log.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy.exc import SQLAlchemyError

from gateway.errors import Broken, Overloaded

FAILURES = (
    SQLAlchemyError,
    sqlite3.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,  # refused, reset, and TimeoutError
    asyncio.IncompleteReadError,
)


def unavailable(message: str = "The store did not do what it was asked to.") -> Broken:
    """The one error callers see of a database that fails."""
    return Broken(
        "store_unavailable", message, "Try again shortly; the gateway's log has the cause."
    )


def busy(what: str) -> Overloaded:
    """The answer when a queue in front of the database is full."""
    return Overloaded("busy", f"Too many {what} are waiting for the store.", "Try again shortly.")


@contextmanager
def translated() -> Iterator[None]:
    """Turns every failure of the database into `Broken`; errors of ours pass as they are."""
    try:
        yield
    except TimeoutError as error:
        raise unavailable("The store did not answer in time.") from error
    except FAILURES as error:
        raise unavailable() from error
