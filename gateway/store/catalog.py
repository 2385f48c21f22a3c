"""Connections that were put at run time. Their settings hold credentials, so they are sealed.

Each carries the revision it was put at: that is its ETag.

Definitions as fetched, and the tools built from them, so that a start needs no network.

`build_key` says what a build depends on besides the document (settings, version of the builder): a
build under another key is not used. Documents come packed, and are only read when a build is out
of date.

What refreshes brought, one row an operation, with the tool before and after for those held.

What principals and admins chose at run time: access to a connection, and permissions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from gateway.errors import Fixable
from gateway.model import Level, Problem
from gateway.store import tables
from gateway.store.cluster import REVISION_LOCK, bump_revision, lock_revision
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.store.statements import columns, insert_new, many, one, upsert, values

_connections = tables.connections


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
    rows = await db.read(
        lambda tx: many(tx, select(_connections).order_by(_connections.c.name), _Sealed)
    )
    return [_opened(row, seal) for row in rows]


async def get_connection(db: Database, seal: Seal, name: str) -> StoredConnection | None:
    """The one of that name."""
    row = await db.read(
        lambda tx: one(tx, select(_connections).where(_connections.c.name == name), _Sealed)
    )
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
    tx.execute(upsert(tx, _connections), values(_Sealed(name, sealed, revision, now, by)))
    return revision


async def delete_connection(db: Database, name: str, *, expected: int | None = None) -> int | None:
    """The revision at which it went, with its cached definitions; None if there was none."""

    def unit(tx: Connection) -> int | None:
        lock_revision(tx)
        if _check_revision(tx, name, expected) == 0:
            return None
        tx.execute(delete(_connections).where(_connections.c.name == name))
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
    held = (
        tx.execute(select(_connections.c.revision).where(_connections.c.name == name)).scalar() or 0
    )
    if expected is not None and held != expected:
        raise Fixable(
            "precondition",
            f"The connection {name} was changed meanwhile.",
            "Read it again and repeat the change on what it is now.",
            revision=held,
        )
    return held


_definitions = tables.definitions


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
    others = (_definitions.c.connection == definition.connection) & (
        _definitions.c.location != definition.location
    )
    tx.execute(delete(_definitions).where(others))
    row = {**values(definition), "problems": list(definition.problems), "raw": packed}
    tx.execute(upsert(tx, _definitions), row)


def is_saved_in(tx: Connection, definition: Definition) -> bool:
    """Whether another process has saved the very same meanwhile."""
    where = _is(definition.connection, definition.location)
    found = tx.execute(
        select(_definitions.c.sha256, _definitions.c.build_key).where(where)
    ).one_or_none()
    return found is not None and tuple(found) == (definition.sha256, definition.build_key)


def save_build_in(
    tx: Connection, connection: str, location: str, build: bytes, *, was: float, at: float
) -> bool:
    """Replaces a build inside a unit of the caller's, if it is still the one of that time."""
    same = _is(connection, location) & (_definitions.c.fetched_at == was)
    changed = update(_definitions).where(same).values(build=build, fetched_at=at)
    return tx.execute(changed).rowcount == 1


async def load_marks(db: Database) -> dict[str, tuple[str, float]]:
    """Location and time of every definition, by connection: what tells whether one is news."""
    statement = select(
        _definitions.c.connection, _definitions.c.location, _definitions.c.fetched_at
    )
    rows = await db.read(lambda tx: tx.execute(statement).all())
    return {row.connection: (row.location, row.fetched_at) for row in rows}


async def load_definition(db: Database, connection: str, location: str) -> Definition | None:
    """One definition with its build, without the document."""
    statement = select(*columns(_definitions, Definition)).where(_is(connection, location))
    row = await db.read(lambda tx: tx.execute(statement).mappings().one_or_none())
    return None if row is None else _definition(row)


async def load_packed(db: Database, connection: str, location: str) -> bytes | None:
    """The document as it was saved."""
    statement = select(_definitions.c.raw).where(_is(connection, location))
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
    return (_definitions.c.connection == connection) & (_definitions.c.location == location)


def _definition(row: Any) -> Definition:
    return Definition(**{**row, "problems": _problems(row["problems"])})


def _problems(value: Any) -> tuple[Problem, ...]:
    return msgspec.convert(value, tuple[Problem, ...])


_changes = tables.changes

ChangeStatus = Literal["applied", "held", "accepted", "rejected"]
MAX_LISTED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One operation that was added, removed or changed."""

    id: str
    connection: str
    operation: str | None
    tool: str
    kind: Literal["added", "removed", "changed"]
    change_class: Literal["safe", "breaking", "risky"]
    reason: str
    status: ChangeStatus
    at: float
    by: str | None = None
    decided_at: float | None = None
    before: bytes | None = None  # the tool, encoded
    after: bytes | None = None


def record_in(tx: Connection, connection: str, changes: Sequence[Change]) -> None:
    """Keeps what a refresh found, in place of what was held before and is no longer found.

    A change that is held already, or was rejected and comes again as it was, is not told anew.
    """
    ours = _changes.c.connection == connection
    known = many(
        tx, select(_changes).where(ours & _changes.c.status.in_(("held", "rejected"))), Change
    )
    told = {(row.operation, row.before, row.after): row for row in known}
    # What is applied is told in any case: it may be what was held or rejected before.
    fresh = [
        c for c in changes if c.status == "applied" or (c.operation, c.before, c.after) not in told
    ]
    still = {(c.operation, c.before, c.after) for c in changes if c.status == "held"}
    over = [row.id for key, row in told.items() if row.status == "held" and key not in still]
    if over:
        tx.execute(_changes.delete().where(_changes.c.id.in_(over)))
    if fresh:
        tx.execute(insert(_changes), [values(change) for change in fresh])


async def decide_change(
    db: Database, id: str, status: Literal["accepted", "rejected"], *, by: str, now: float
) -> Change | None:
    """The change as decided now; None if it was not held any more."""

    def unit(tx: Connection) -> Change | None:
        lock_revision(tx)
        decided = decide_in(tx, id, status, by=by, now=now)
        if decided is not None:
            bump_revision(tx)
        return decided

    return await db.write(unit, REVISION_LOCK)


def decide_in(
    tx: Connection, id: str, status: Literal["accepted", "rejected"], *, by: str, now: float
) -> Change | None:
    """`decide_change` inside a unit of the caller's."""
    held = (_changes.c.id == id) & (_changes.c.status == "held")
    statement = update(_changes).where(held).values(status=status, by=by, decided_at=now)
    return one(tx, statement.returning(_changes), Change)


async def list_changes(
    db: Database,
    *,
    connection: str | None = None,
    status: ChangeStatus | None = None,
    limit: int = 100,
) -> list[Change]:
    """Changes, newest first."""
    statement = select(_changes).order_by(_changes.c.id.desc()).limit(min(limit, MAX_LISTED))
    if connection is not None:
        statement = statement.where(_changes.c.connection == connection)
    if status is not None:
        statement = statement.where(_changes.c.status == status)
    return await db.read(lambda tx: many(tx, statement, Change))


async def get_change(db: Database, id: str) -> Change | None:
    """The change of that id."""
    return await db.read(lambda tx: one(tx, select(_changes).where(_changes.c.id == id), Change))


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
