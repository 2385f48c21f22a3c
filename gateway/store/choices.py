"""What principals and admins chose at run time: access to a connection, and permissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, select

from gateway.model import Level
from gateway.store import tables
from gateway.store.database import Database
from gateway.store.signals import REVISION_LOCK, bump_revision, lock_revision
from gateway.store.statements import columns, one, upsert, values

_choices = tables.choices
_permissions = tables.permissions


@dataclass(frozen=True, slots=True)
class StoredPermissions:
    """The permissions that were put, in force over config.toml."""

    settings: Mapping[str, Any]
    revision: int
    updated_at: float
    updated_by: str


async def choose_access(db: Database, principal: str, connection: str, access: Level) -> int:
    """Keeps a principal's own choice for a connection; the revision at which it holds."""
    row = {"principal": principal, "connection": connection, "access": access}

    def unit(tx: Connection) -> int:
        lock_revision(tx)
        tx.execute(upsert(tx, _choices), row)
        return bump_revision(tx)

    return await db.write(unit, REVISION_LOCK)


async def load_choices(db: Database) -> dict[str, dict[str, Level]]:
    """Every choice: principal → connection → access."""
    rows = await db.read(lambda tx: tx.execute(select(_choices)).all())
    chosen: dict[str, dict[str, Level]] = {}
    for row in rows:
        chosen.setdefault(row.principal, {})[row.connection] = row.access
    return chosen


async def put_permissions(
    db: Database, settings: Mapping[str, Any], *, by: str, now: float
) -> StoredPermissions:
    """Keeps permissions that override config.toml from the next revision on."""

    def unit(tx: Connection) -> StoredPermissions:
        lock_revision(tx)
        stored = StoredPermissions(settings, bump_revision(tx), now, by)
        tx.execute(upsert(tx, _permissions), {"id": 1, **values(stored)})
        return stored

    return await db.write(unit, REVISION_LOCK)


async def load_permissions(db: Database) -> StoredPermissions | None:
    """The permissions that were put; None where config.toml is in force."""
    statement = select(*columns(_permissions, StoredPermissions))
    return await db.read(lambda tx: one(tx, statement, StoredPermissions))


async def delete_permissions(db: Database) -> int | None:
    """Gives config.toml its force back; the revision, or None if nothing had been put."""

    def unit(tx: Connection) -> int | None:
        lock_revision(tx)
        return bump_revision(tx) if tx.execute(delete(_permissions)).rowcount else None

    return await db.write(unit, REVISION_LOCK)
