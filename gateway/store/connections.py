"""Connections that were put at run time. Their settings hold credentials, so they are sealed.

Each carries the revision it was put at: that is its ETag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection, delete, select

from gateway.errors import Fixable
from gateway.store import tables
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.store.signals import REVISION_LOCK, bump_revision, lock_revision
from gateway.store.statements import many, one, upsert, values

_table = tables.connections


@dataclass(frozen=True, slots=True)
class StoredConnection:
    """One connection as it was put."""

    name: str
    settings: dict[str, Any]
    revision: int
    updated_at: float
    updated_by: str


async def load_connections(db: Database, seal: Seal) -> list[StoredConnection]:
    """All of them, by name."""
    rows = await db.read(lambda tx: many(tx, select(_table).order_by(_table.c.name), _Sealed))
    return [_opened(row, seal) for row in rows]


async def get_connection(db: Database, seal: Seal, name: str) -> StoredConnection | None:
    """The one of that name."""
    row = await db.read(lambda tx: one(tx, select(_table).where(_table.c.name == name), _Sealed))
    return None if row is None else _opened(row, seal)


async def put_connection(
    db: Database,
    seal: Seal,
    name: str,
    settings: dict[str, Any],
    *,
    by: str,
    now: float,
    expected: int | None = None,
) -> StoredConnection:
    """Stores it at the next revision. `expected`: the revision it must have now, 0 for none yet."""
    sealed = seal.encrypt_json(settings)

    def unit(tx: Connection) -> int:
        return put_in(tx, name, sealed, by=by, now=now, expected=expected)

    revision = await db.write(unit, REVISION_LOCK)
    return StoredConnection(name, settings, revision, now, by)


def put_in(
    tx: Connection, name: str, sealed: bytes, *, by: str, now: float, expected: int | None
) -> int:
    """`put_connection` inside a unit of the caller's, which must take REVISION_LOCK."""
    lock_revision(tx)
    _check_revision(tx, name, expected)
    revision = bump_revision(tx)
    tx.execute(upsert(tx, _table), values(_Sealed(name, sealed, revision, now, by)))
    return revision


async def delete_connection(db: Database, name: str, *, expected: int | None = None) -> int | None:
    """The revision at which it went, with its cached definitions; None if there was none."""

    def unit(tx: Connection) -> int | None:
        lock_revision(tx)
        if _check_revision(tx, name, expected) == 0:
            return None
        tx.execute(delete(_table).where(_table.c.name == name))
        tx.execute(delete(tables.definitions).where(tables.definitions.c.connection == name))
        return bump_revision(tx)

    return await db.write(unit, REVISION_LOCK)


@dataclass(frozen=True, slots=True)
class _Sealed:
    name: str
    settings: bytes
    revision: int
    updated_at: float
    updated_by: str


def _opened(row: _Sealed, seal: Seal) -> StoredConnection:
    settings = cast(dict[str, Any], seal.decrypt_json(row.settings))
    return StoredConnection(row.name, settings, row.revision, row.updated_at, row.updated_by)


def _check_revision(tx: Connection, name: str, expected: int | None) -> int:
    held = tx.execute(select(_table.c.revision).where(_table.c.name == name)).scalar() or 0
    if expected is not None and held != expected:
        raise Fixable(
            "precondition",
            f"The connection {name} was changed meanwhile.",
            "Read it again and repeat the change on what it is now.",
            revision=held,
        )
    return held
