"""Definitions as fetched, and the tools built from them, so that a start needs no network.

`build_key` says what a build depends on besides the document (settings, version of the builder): a
build under another key is not used. Documents come packed, and are only read when a build is out
of date.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, select, update

from gateway.model import Problem
from gateway.store import tables
from gateway.store.database import Database
from gateway.store.signals import REVISION_LOCK, bump_revision, lock_revision
from gateway.store.statements import columns, insert_new, upsert, values

_table = tables.definitions


@dataclass(frozen=True, slots=True)
class Definition:
    """What is known of one document, and its build."""

    connection: str
    location: str
    sha256: str
    build_key: str
    build: bytes
    fetched_at: float
    etag: str | None = None
    last_modified: str | None = None
    problems: tuple[Problem, ...] = ()


async def save_definition(db: Database, definition: Definition, packed: bytes) -> int:
    """Keeps a document with its build; the revision at which replicas see it."""

    def unit(tx: Connection) -> int:
        lock_revision(tx)
        save_in(tx, definition, packed)
        return bump_revision(tx)

    return await db.write(unit, REVISION_LOCK)


def save_in(tx: Connection, definition: Definition, packed: bytes) -> None:
    """`save_definition` inside a unit of the caller's: the only one kept for its connection."""
    others = (_table.c.connection == definition.connection) & (
        _table.c.location != definition.location
    )
    tx.execute(delete(_table).where(others))
    row = {**values(definition), "problems": list(definition.problems), "raw": packed}
    tx.execute(upsert(tx, _table), row)


def is_saved_in(tx: Connection, definition: Definition) -> bool:
    """Whether another process has saved the very same meanwhile."""
    where = _is(definition.connection, definition.location)
    found = tx.execute(select(_table.c.sha256, _table.c.build_key).where(where)).one_or_none()
    return found is not None and tuple(found) == (definition.sha256, definition.build_key)


def save_build_in(
    tx: Connection, connection: str, location: str, build: bytes, *, was: float, at: float
) -> bool:
    """Replaces a build inside a unit of the caller's, if it is still the one of that time."""
    same = _is(connection, location) & (_table.c.fetched_at == was)
    changed = update(_table).where(same).values(build=build, fetched_at=at)
    return tx.execute(changed).rowcount == 1


async def load_marks(db: Database) -> dict[str, tuple[str, float]]:
    """Location and time of every definition, by connection: what tells whether one is news."""
    statement = select(_table.c.connection, _table.c.location, _table.c.fetched_at)
    rows = await db.read(lambda tx: tx.execute(statement).all())
    return {row.connection: (row.location, row.fetched_at) for row in rows}


async def load_definition(db: Database, connection: str, location: str) -> Definition | None:
    """One definition with its build, without the document."""
    statement = select(*columns(_table, Definition)).where(_is(connection, location))
    row = await db.read(lambda tx: tx.execute(statement).mappings().one_or_none())
    return None if row is None else _definition(row)


async def load_packed(db: Database, connection: str, location: str) -> bytes | None:
    """The document as it was saved."""
    statement = select(_table.c.raw).where(_is(connection, location))
    packed: bytes | None = await db.read(lambda tx: tx.execute(statement).scalar())
    return packed


async def save_validation(
    db: Database, sha256: str, problems: tuple[Problem, ...], now: float
) -> None:
    """Keeps what the validator said of a document: it takes long and never changes."""
    row = {"sha256": sha256, "problems": list(problems), "at": now}
    await db.write(lambda tx: tx.execute(insert_new(tx, tables.validations), row).rowcount)


async def load_validation(db: Database, sha256: str) -> tuple[Problem, ...] | None:
    """What the validator said of a document; None if it was never asked."""
    table = tables.validations
    statement = select(table.c.problems).where(table.c.sha256 == sha256)
    found = await db.read(lambda tx: tx.execute(statement).scalar())
    return None if found is None else _problems(found)


def _is(connection: str, location: str) -> Any:
    return (_table.c.connection == connection) & (_table.c.location == location)


def _definition(row: Any) -> Definition:
    return Definition(**{**row, "problems": _problems(row["problems"])})


def _problems(value: Any) -> tuple[Problem, ...]:
    return msgspec.convert(value, tuple[Problem, ...])
