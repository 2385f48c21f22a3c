"""The few statements SQLite and PostgreSQL spell differently, and rows as frozen values.

Statements are built once: SQLAlchemy then finds its compiled text by identity of their parts.

Column types that take what callers have and both databases keep.

JSON is bytes: `orjson` where it can, the standard library for what it refuses (huge integers, lone
surrogates), marked by a blank in front so that it is read back the same way. Text never fails on
the two things PostgreSQL and UTF-8 can't hold: they are replaced, not removed, so that no such name
turns into one we trust.

Where the database's own errors become ours: nothing of SQLAlchemy or a driver gets past here.

`Broken("store_unavailable")` says nothing of the cause to the caller; the cause stays chained, for
the log.

Brings the tables up to date, inside the transaction and the lock its caller holds.

Alembic is imported only if there is something to do: it would cost every start a quarter second.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import orjson
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    Double,
    Executable,
    Integer,
    LargeBinary,
    Table,
    Text,
    literal_column,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.types import TypeDecorator, TypeEngine

from gateway.errors import Broken, ConfigInvalid, Overloaded

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_ROWS_A_STEP = 64  # times the columns of a row: far below SQLite's 32,766 parameters

T = TypeVar("T")
Insert = sqlite.Insert | postgresql.Insert
Bind = Callable[[Any], Any] | None  # None: a value is bound as it is


def insert_on(postgres: bool, table: Table) -> Insert:
    """An insert that can say what to do on a conflict."""
    return postgresql.insert(table) if postgres else sqlite.insert(table)


def insert_new(tx: Connection, table: Table) -> Insert:
    """An insert that leaves a row which is already there as it is; `rowcount` tells."""
    return _insert_new(is_postgres(tx), table)


def upsert(tx: Connection, table: Table) -> Insert:
    """An insert that replaces all of a row which is already there."""
    return _upsert(is_postgres(tx), table)


def insert_many(tx: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts rows that have every column, leaving those which are already there as they are.

    For the busiest table: past SQLAlchemy's handling of parameters, which costs more than SQLite.
    """
    statement, binds = _insert_many(tx.dialect, table)
    bound = [_bound(row, binds) for row in rows]
    if is_postgres(tx):
        tx.exec_driver_sql(statement, bound)
        return
    # SQLite's driver lets other threads run at every step, and then waits for its turn: so many
    # rows are one step.
    while bound:
        size = min(MAX_ROWS_A_STEP, 1 << (len(bound).bit_length() - 1))
        portion, bound = bound[:size], bound[size:]
        tx.exec_driver_sql(_repeated(statement, len(binds), size), tuple(chain(*portion)))


def execute_row(tx: Connection, statement: UpdateBase, row: Mapping[str, Any]) -> int:
    """Runs a statement whose parameters are all named in the row; how many rows it touched.

    As `insert_many`, for what every write call waits for.
    """
    text, binds = _compiled(tx.dialect, statement)
    return tx.exec_driver_sql(text, _bound(row, binds)).rowcount


def store_time(tx: Connection) -> ColumnElement[float]:
    """The store's own clock, for what processes with different clocks compare."""
    return _POSTGRES_TIME if is_postgres(tx) else _SQLITE_TIME


def is_postgres(tx: Connection) -> bool:
    return tx.dialect.name == "postgresql"


def values(row: DataclassInstance | Struct) -> dict[str, Any]:
    """A frozen row as column values: the fields are named as the columns."""
    if isinstance(row, Struct):
        return asdict(row)
    return {name: getattr(row, name) for name in _names(type(row))}


def one(tx: Connection, statement: Executable, kind: type[T]) -> T | None:
    """The only row as a frozen value, if there is one."""
    row = tx.execute(statement).one_or_none()
    return None if row is None else kind(**row._mapping)


def many(tx: Connection, statement: Executable, kind: type[T]) -> list[T]:
    """All rows as frozen values."""
    return [kind(**row._mapping) for row in tx.execute(statement)]


def columns(table: Table, kind: type[DataclassInstance]) -> list[ColumnElement[Any]]:
    """Those columns of a table that a frozen row has."""
    return [table.c[name] for name in _names(kind)]


_POSTGRES_TIME: ColumnElement[float] = literal_column(
    "extract(epoch from clock_timestamp())::double precision"
)
_SQLITE_TIME: ColumnElement[float] = literal_column("((julianday('now') - 2440587.5) * 86400.0)")


@cache
def _names(kind: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _insert_new(postgres: bool, table: Table) -> Insert:
    return insert_on(postgres, table).on_conflict_do_nothing()


@lru_cache(maxsize=16)  # a dialect an engine, and an engine a database
def _insert_many(dialect: Dialect, table: Table) -> tuple[str, list[tuple[str, Bind]]]:
    compiled = _insert_new(dialect.name == "postgresql", table).compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    columns = [table.c[name] for name in compiled.positiontup or ()]
    return str(compiled), [(column.name, _bind(column.type, dialect)) for column in columns]


@lru_cache(maxsize=64)
def _compiled(dialect: Dialect, statement: UpdateBase) -> tuple[str, list[tuple[str, Bind]]]:
    compiled = statement.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    names = compiled.positiontup or ()
    return str(compiled), [(name, _bind(compiled.binds[name].type, dialect)) for name in names]


@lru_cache(maxsize=64)
def _repeated(statement: str, columns: int, rows: int) -> str:
    """An insert of one row, for so many."""
    row = f"({', '.join('?' * columns)})"
    return statement.replace(row, ", ".join([row] * rows), 1)


def _bind(kind: TypeEngine[Any], dialect: Dialect) -> Bind:
    if isinstance(kind, TypeDecorator):
        return partial(kind.process_bind_param, dialect=dialect)
    return None


def _bound(row: Mapping[str, Any], binds: Sequence[tuple[str, Bind]]) -> tuple[Any, ...]:
    return tuple([bind(row[name]) if bind else row[name] for name, bind in binds])


@cache
def _upsert(postgres: bool, table: Table) -> Insert:
    insert = insert_on(postgres, table)
    keys = [column.name for column in table.primary_key]
    rest = {name: value for name, value in insert.excluded.items() if name not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=rest)


def json_bytes(value: object) -> bytes:
    """A value as JSON, whatever a client may have put into it."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return b" " + json.dumps(value, separators=(",", ":")).encode("ascii")


def json_value(data: bytes) -> Any:
    """The value `json_bytes` wrote."""
    return json.loads(data) if data.startswith(b" ") else orjson.loads(data)


class Json(TypeDecorator[Any]):
    """Any JSON value, None as NULL; bytes are taken as JSON already written."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        return json_bytes(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else json_value(value)


class Names(TypeDecorator[tuple[str, ...]]):
    """A few names, as a tuple."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: tuple[str, ...] | None, dialect: Dialect) -> bytes | None:
        return None if value is None else json_bytes(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> tuple[str, ...] | None:
        return None if value is None else tuple(json_value(value))


class Plain(TypeDecorator[str]):
    """Text from outside: NUL and lone surrogates become U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None or value.isascii() and "\0" not in value else _storable(value)


# Seconds since 1970, UTC, as Python's clock gives them.
Time: Double[float] = Double()

# SQLite counts up by itself only in a column that is spelled INTEGER.
Counter = BigInteger().with_variant(Integer, "sqlite")


def _storable(value: str) -> str:
    readable = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return readable.replace("\0", "\ufffd")


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


HEAD = "0005"
SCRIPTS = Path(__file__).parent / "migrations"


def migrate(connection: Connection) -> None:
    """Runs what is missing up to `HEAD`."""
    if not is_current(connection):
        _upgrade(connection)


def is_current(connection: Connection) -> bool:
    """Whether nothing is missing; refuses a store that a newer gateway has changed."""
    found = _version(connection)
    if found is not None and found > HEAD:
        raise ConfigInvalid(
            [f"store.url: the store is at version {found}, this gateway knows {HEAD}: update it"]
        )
    return found == HEAD


# SQLAlchemy's own look at the catalog costs half the time of an open.
_HAS_VERSION = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'",
    "postgresql": "SELECT to_regclass('alembic_version') IS NOT NULL",
}


def _version(connection: Connection) -> str | None:
    if not connection.execute(text(_HAS_VERSION[connection.dialect.name])).scalar():
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
