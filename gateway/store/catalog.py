"""What the catalog keeps: connections that were put, definitions, changes, and what people chose.

The settings of a put connection hold credentials, so they come sealed; each connection carries the
revision it was put at, which is its ETag. Definitions are kept as fetched, with the tools built
from them, so that a start needs no network; `build_key` says what a build depends on besides the
document. Documents come packed, and are only read when a build is out of date. Changes are what
refreshes brought, one row an operation, with the tool before and after.

Functions of a transaction are parts of a unit that the caller writes with `write_revision`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from gateway.errors import Fixable
from gateway.limits import STORE_ROWS
from gateway.model import Level, Problem
from gateway.store import tables
from gateway.store.cluster import write_revision
from gateway.store.database import Database, insert_new, many, one, upsert, values

_connections = tables.connections
_definitions = tables.definitions
_validations = tables.validations
_changes = tables.changes
_choices = tables.choices
_permissions = tables.permissions

ChangeStatus = Literal["applied", "held", "accepted", "rejected"]


@dataclass(frozen=True, slots=True)
class SealedConnection:
    """One connection as it was put."""

    name: str
    settings: bytes
    revision: int
    updated_at: float
    updated_by: str


async def load_connections(db: Database) -> list[SealedConnection]:
    """All of them, by name."""
    statement = select(_connections).order_by(_connections.c.name)
    return await db.read(lambda tx: many(tx, statement, SealedConnection))


def put_connection(tx: Connection, connection: SealedConnection, expected: int | None) -> None:
    """Keeps a connection. `expected`: the revision it must have now, 0 for none yet."""
    _check_revision(tx, connection.name, expected)
    upsert(tx, _connections, values(connection))


def delete_connection(tx: Connection, name: str, expected: int | None) -> bool:
    """Forgets a connection and its definition; False if there was none."""
    _check_revision(tx, name, expected)
    tx.execute(delete(_definitions).filter_by(connection=name))
    return tx.execute(delete(_connections).filter_by(name=name)).rowcount == 1


def _check_revision(tx: Connection, name: str, expected: int | None) -> None:
    held = tx.execute(select(_connections.c.revision).filter_by(name=name)).scalar() or 0
    if expected not in (None, held):
        raise Fixable(
            "precondition",
            f"The connection {name} was changed meanwhile.",
            "Read it again and repeat the change on what it is now.",
            revision=held,
        )


@dataclass(frozen=True, slots=True)
class StoredDefinition:
    """What is known of one document, and its build."""

    connection: str
    location: str
    sha256: str
    build_key: str
    build: bytes
    fetched_at: float
    etag: str | None = None
    last_modified: str | None = None


def save_definition(tx: Connection, definition: StoredDefinition, packed: bytes) -> None:
    """Keeps a document with its build, as the only one of its connection."""
    tx.execute(delete(_definitions).filter_by(connection=definition.connection))
    tx.execute(insert(_definitions), {**values(definition), "raw": packed})


def is_saved(tx: Connection, definition: StoredDefinition) -> bool:
    """Whether another process has saved the very same meanwhile."""
    names = ("connection", "location", "sha256", "build_key")
    same = {name: getattr(definition, name) for name in names}
    return tx.execute(select(_definitions.c.connection).filter_by(**same)).first() is not None


def save_build(
    tx: Connection, connection: str, location: str, build: bytes, *, was: float, at: float
) -> bool:
    """Replaces a build, if it is still the one of that time."""
    same = {"connection": connection, "location": location, "fetched_at": was}
    changed = update(_definitions).filter_by(**same).values(build=build, fetched_at=at)
    return tx.execute(changed).rowcount == 1


async def load_marks(db: Database) -> dict[str, tuple[str, float]]:
    """Location and time of every definition, by connection: what tells whether one is news."""
    table = _definitions
    statement = select(table.c.connection, table.c.location, table.c.fetched_at)
    rows = await db.read(lambda tx: tx.execute(statement).all())
    return {row.connection: (row.location, row.fetched_at) for row in rows}


async def load_definition(db: Database, connection: str, location: str) -> StoredDefinition | None:
    """One definition with its build, without the document."""
    columns = [column for column in _definitions.c if column.name != "raw"]
    statement = select(*columns).filter_by(connection=connection, location=location)
    return await db.read(lambda tx: one(tx, statement, StoredDefinition))


async def load_packed(db: Database, connection: str, location: str) -> bytes | None:
    """The document as it was saved."""
    statement = select(_definitions.c.raw).filter_by(connection=connection, location=location)
    packed: bytes | None = await db.read(lambda tx: tx.execute(statement).scalar())
    return packed


async def save_validation(
    db: Database, sha256: str, problems: tuple[Problem, ...], now: float
) -> None:
    """Keeps what the validator said of a document: it takes long and never changes."""
    row = {"sha256": sha256, "problems": list(problems), "at": now}
    await db.write(lambda tx: insert_new(tx, _validations, row))


async def load_validation(db: Database, sha256: str) -> tuple[Problem, ...] | None:
    """What the validator said of a document; None if it was never asked."""
    statement = select(_validations.c.problems).where(_validations.c.sha256 == sha256)
    found = await db.read(lambda tx: tx.execute(statement).scalar())
    return None if found is None else msgspec.convert(found, tuple[Problem, ...])


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

    @property
    def content(self) -> tuple[str | None, bytes | None, bytes | None]:
        """What is changed: two changes of the same content are the same change."""
        return self.operation, self.before, self.after


def record_changes(tx: Connection, connection: str, changes: Sequence[Change]) -> None:
    """Keeps what a refresh found, in place of what was held before and is no longer found.

    A change that is held already, or was rejected and comes again as it was, is not told anew.
    """
    undecided = _changes.c.status.in_(("held", "rejected"))
    ours = select(_changes).filter_by(connection=connection).where(undecided)
    told = {change.content: change for change in many(tx, ours, Change)}
    # What is applied is told in any case: it may be what was held or rejected before.
    fresh = [c for c in changes if c.status == "applied" or c.content not in told]
    still = {c.content for c in changes if c.status == "held"}
    over = [c.id for c in told.values() if c.status == "held" and c.content not in still]
    tx.execute(delete(_changes).where(_changes.c.id.in_(over)))
    if fresh:
        tx.execute(insert(_changes), [values(change) for change in fresh])


def decide_change(
    tx: Connection, id: str, status: Literal["accepted", "rejected"], *, by: str, now: float
) -> Change | None:
    """The change as decided now; None if it was not held any more."""
    held = update(_changes).filter_by(id=id, status="held")
    statement = held.values(status=status, by=by, decided_at=now)
    return one(tx, statement.returning(_changes), Change)


async def list_changes(
    db: Database,
    *,
    connection: str | None = None,
    status: ChangeStatus | None = None,
    limit: int = STORE_ROWS,
) -> list[Change]:
    """Changes, newest first."""
    asked = {"connection": connection, "status": status}
    which = {name: value for name, value in asked.items() if value is not None}
    found = select(_changes).filter_by(**which).order_by(_changes.c.id.desc())
    statement = found.limit(min(limit, STORE_ROWS))
    return await db.read(lambda tx: many(tx, statement, Change))


async def get_change(db: Database, id: str) -> Change | None:
    """The change of that id."""
    return await db.read(lambda tx: one(tx, select(_changes).filter_by(id=id), Change))


async def choose_access(db: Database, principal: str, connection: str, access: Level) -> int:
    """Keeps a principal's own choice for a connection; the revision at which it holds."""
    row = {"principal": principal, "connection": connection, "access": access}

    def unit(tx: Connection, revision: int) -> int:
        upsert(tx, _choices, row)
        return revision

    return await write_revision(db, unit)


async def load_choices(db: Database) -> dict[tuple[str, str], Level]:
    """Every choice, by principal and connection."""
    rows = await db.read(lambda tx: tx.execute(select(_choices)).all())
    return {(row.principal, row.connection): row.access for row in rows}


async def put_permissions(
    db: Database, settings: Mapping[str, Any] | None, *, by: str, now: float
) -> int:
    """Keeps permissions in force over config.toml, or with None forgets them; the revision."""

    def unit(tx: Connection, revision: int) -> int:
        tx.execute(delete(_permissions))
        if settings is not None:
            row = {"settings": settings, "revision": revision, "updated_at": now, "updated_by": by}
            tx.execute(insert(_permissions), {"id": 1, **row})
        return revision

    return await write_revision(db, unit)


async def load_permissions(db: Database) -> Mapping[str, Any] | None:
    """The permissions that were put; None where config.toml is in force."""
    settings = select(_permissions.c.settings)
    found: Mapping[str, Any] | None = await db.read(lambda tx: tx.execute(settings).scalar())
    return found
