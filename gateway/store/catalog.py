"""Stores the catalog: connections that were put, definitions, changes, and people's choices.

The settings of a put connection are sealed: they may hold credentials. Each connection carries the
revision it was put at, which is its ETag. A put is one transaction with its definition and its
changes, so that after a crash all of it is there or nothing.

Definitions are kept as fetched, with the tools built from them, so that a start needs no network;
`build_key` says what a build depends on besides the definition. Their bytes are packed, and only
read when a build has to be made again: until then they cost no memory. Changes are what refreshes
brought, one row an operation, with the tool before and after.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from cryptography.fernet import InvalidToken
from sqlalchemy import Connection, delete, func, insert, select, tuple_, update

from gateway.errors import Fixable, NotFound, Overloaded
from gateway.limits import MAX_OPERATIONS, STORE_ROWS
from gateway.model import BuiltDefinition, Level, Problem, RawDefinition, decode_build, encode_build
from gateway.store import database, tables
from gateway.store.cluster import current_revision, refuse_stale, write_revision
from gateway.store.credentials import delete_credentials_in
from gateway.store.database import Database, get_all, get_one, insert_new, is_seen, upsert, values
from gateway.store.secrets import Seal
from gateway.store.tables import Change, ChangeDecision, ChangeStatus, FormerName

_connections = tables.connections
_age = func.coalesce(_connections.c.first_revision, _connections.c.revision)
_definitions = tables.definitions
_former = tables.former_names
_validations = tables.validations
_changes = tables.changes
_is_held = _changes.c.status == "held"
# A decision on what is served now, and no history; and what was recorded for everybody.
_goes_along = _is_held | _changes.c.organization.is_(None)
_choices = tables.choices
_permissions = tables.permissions


@dataclass(frozen=True, slots=True)
class StoredState:
    """The stored state that a snapshot needs beside config.toml."""

    revision: int
    connections: Sequence[tuple[str, Any, int]]  # put, oldest first: name, settings, revision
    found: Mapping[str, BuiltDefinition]
    choices: Mapping[tuple[str, str], Level]
    permissions: Mapping[str, Any] | None  # that were put; None: config.toml is in force
    former: Sequence[FormerName]


class StoredCatalog:
    """The store, as the catalog needs it."""

    def __init__(self, db: Database, seal: Seal) -> None:
        self.db = db
        self._seal = seal

    async def load(self, cached: Mapping[str, BuiltDefinition]) -> StoredState:
        """All that is stored now; definitions that are in `cached` are not read again."""
        revision = await current_revision(self.db)
        by_age = select(_connections).order_by(_age, _connections.c.name)
        rows = await self.db.read(lambda tx: tx.execute(by_age).all())
        return StoredState(
            revision,
            [(row.name, self._read_settings(row), row.revision) for row in rows],
            await self._load_definitions(cached),
            await load_choices(self.db),
            await self.db.read(lambda tx: tx.execute(select(_permissions.c.settings)).scalar()),
            await self.db.read(lambda tx: get_all(tx, select(_former), FormerName)),
        )

    def _read_settings(self, row: Any) -> object:
        try:
            return self._seal.decrypt_json(row.settings)
        except (InvalidToken, ValueError):  # one damaged row must not cost all the others
            return {}

    async def _load_definitions(
        self, cached: Mapping[str, BuiltDefinition]
    ) -> dict[str, BuiltDefinition]:
        found: dict[str, BuiltDefinition] = {}
        table = _definitions.c
        statement = select(table.connection, table.location, table.fetched_at)
        for name, location, at in await self.db.read(lambda tx: tx.execute(statement).all()):
            old = cached.get(name)
            if old is not None and (old.definition.location, old.at) == (location, at):
                found[name] = old
            elif new := await self._load_definition(name, location):
                found[name] = new
        return found

    async def _load_definition(self, connection: str, location: str) -> BuiltDefinition | None:
        columns = [column for column in _definitions.c if column.name != "raw"]
        statement = select(*columns).filter_by(connection=connection, location=location)
        row = await self.db.read(lambda tx: tx.execute(statement).one_or_none())
        return None if row is None else await asyncio.to_thread(_definition_of, row)

    async def whole(self, connection: str, definition: RawDefinition) -> RawDefinition:
        """A connection's definition with its bytes."""
        place = {"connection": connection, "location": definition.location}
        statement = select(_definitions.c.raw).filter_by(**place)
        packed = await self.db.read(lambda tx: tx.execute(statement).scalar())
        if packed is None:
            raise NotFound("connection_invalid", f"no definition of {connection!r} is stored")
        return replace(definition, packed=packed)

    async def save(
        self,
        name: str,
        found: BuiltDefinition,
        changes: Sequence[Change],
        renamed: Sequence[FormerName] = (),
        *,
        by: str,
        put: Mapping[str, Any] | None = None,
        expected: int | None = None,
    ) -> int:
        """Keeps a definition that was found, with the settings that were `put`; gives the revision.

        `expected`: the revision the connection must have now, 0 for none yet. Changes that another
        process has recorded already are not recorded twice.
        """
        settings = self._seal.encrypt_json(put)
        definition = await asyncio.to_thread(_row, name, found)
        names = ("connection", "location", "sha256", "build_key")
        same = select(_definitions.c.location).filter_by(**{key: definition[key] for key in names})

        def unit(tx: Connection, revision: int) -> int:
            if put is not None:
                _check_revision(tx, name, expected)
                first = tx.execute(select(_age).filter_by(name=name)).scalar()
                row = {"name": name, "settings": settings, "first_revision": first or revision}
                row |= {"revision": revision, "updated_at": found.at, "updated_by": by}
                upsert(tx, _connections, row)
            if put is not None or tx.execute(same).first() is None:
                record_changes(tx, name, changes)
            _keep_former(tx, renamed)
            _save_definition(tx, definition)
            return revision

        return await write_revision(self.db, unit)

    async def delete(self, name: str, expected: int | None) -> int:
        """Forgets a connection, its definition and what was held; gives the new revision."""

        def unit(tx: Connection, revision: int) -> int:
            _check_revision(tx, name, expected)
            tx.execute(delete(_definitions).filter_by(connection=name))
            tx.execute(delete(_former).filter_by(connection=name))
            tx.execute(delete(_changes).filter_by(connection=name, status="held"))
            delete_credentials_in(tx, connection=name)
            if not tx.execute(delete(_connections).filter_by(name=name)).rowcount:
                raise NotFound("connection_invalid", f"there is no connection {name!r}")
            return revision

        return await write_revision(self.db, unit)

    async def keep_former_names(self, renamed: Sequence[FormerName]) -> None:
        """Keeps names that tools had."""
        await self.db.write(lambda tx: _keep_former(tx, renamed), "former names")

    def forget_former_names(self, names: Sequence[FormerName]) -> None:
        """Forgets former names that other tools have now."""
        keys = [(each.connection, each.name, each.operation) for each in names]
        columns = tuple_(_former.c.connection, _former.c.name, _former.c.operation)
        self.db.write_soon(lambda tx: tx.execute(delete(_former).where(columns.in_(keys))))

    async def keep(self, name: str, found: BuiltDefinition) -> None:
        """Keeps a definition that is no connection's."""
        row = _row(name, found)
        await write_revision(self.db, lambda tx, _: _save_definition(tx, row))

    async def undecided_changes(self, connection: str) -> list[Change]:
        """The changes that are kept from being served."""
        return await self.db.read(lambda tx: _undecided_changes(tx, connection))

    async def decide(
        self,
        change: Change,
        status: ChangeDecision,
        by: str,
        old: BuiltDefinition,
        new: BuiltDefinition | None,
    ) -> tuple[Change, int]:
        """Keeps a decision, with the build that follows from it, if no refresh came in between."""
        build = await asyncio.to_thread(encode_build, new.build) if new else b""
        place = {"connection": change.connection, "location": old.definition.location}

        def unit(tx: Connection, revision: int) -> tuple[Change, int]:
            decision = decide_change(tx, change, status, by=by, now=time.time())
            if decision is None:
                raise Fixable("invalid_arguments", "the change does not wait for a decision")
            unchanged = update(_definitions).filter_by(**place, fetched_at=old.at)
            if new and not tx.execute(unchanged.values(build=build, fetched_at=new.at)).rowcount:
                raise Overloaded("busy", "the connection was refreshed just now", "Try again.")
            return decision, revision

        return await write_revision(self.db, unit)


def _keep_former(tx: Connection, renamed: Sequence[FormerName]) -> None:
    """Keeps names that tools had, the newest of each connection."""
    for former_name in renamed:
        upsert(tx, _former, values(former_name))
    for connection in {former_name.connection for former_name in renamed}:
        names = select(_former.c.name).filter_by(connection=connection)
        beyond = names.order_by(_former.c.at.desc(), _former.c.name).offset(MAX_OPERATIONS)
        rest = tx.execute(beyond).scalars().all()
        tx.execute(delete(_former).filter_by(connection=connection).where(_former.c.name.in_(rest)))


def _check_revision(tx: Connection, name: str, expected: int | None) -> None:
    current = tx.execute(select(_connections.c.revision).filter_by(name=name)).scalar() or 0
    refuse_stale(f"connection {name}", current, expected)


def _row(name: str, found: BuiltDefinition) -> dict[str, Any]:
    definition = found.definition
    # Validators of a copy that was fetched with credentials count for these alone, and which they
    # were is not stored.
    is_public = definition.asked_with is None
    return {
        "connection": name,
        "location": definition.location,
        "etag": definition.etag if is_public else None,
        "last_modified": definition.last_modified if is_public else None,
        "sha256": definition.sha256,
        "raw": definition.packed,
        "build_key": found.build_key,
        "build": encode_build(found.build),
        "fetched_at": found.at,
    }


def _definition_of(row: Any) -> BuiltDefinition:
    definition = RawDefinition(row.location, b"", row.sha256, row.etag, row.last_modified)
    return BuiltDefinition(decode_build(row.build), definition, row.build_key, row.fetched_at)


def _save_definition(tx: Connection, row: Mapping[str, Any]) -> None:
    """Keeps a definition with its build, as the only one of its connection."""
    tx.execute(delete(_definitions).filter_by(connection=row["connection"]))
    tx.execute(insert(_definitions), row)


async def save_validation(
    db: Database, sha256: str, problems: tuple[Problem, ...], now: float
) -> None:
    """Keeps what the validator said of a definition: it takes long and never changes."""
    row = {"sha256": sha256, "problems": list(problems), "at": now}
    await db.write(lambda tx: insert_new(tx, _validations, row))


async def load_validation(db: Database, sha256: str) -> tuple[Problem, ...] | None:
    """What the validator said of a definition; None if it was never asked."""
    statement = select(_validations.c.problems).where(_validations.c.sha256 == sha256)
    problems = await db.read(lambda tx: tx.execute(statement).scalar())
    return None if problems is None else msgspec.convert(problems, tuple[Problem, ...])


def record_changes(tx: Connection, connection: str, changes: Sequence[Change]) -> None:
    """Keeps the changes of a refresh, in place of held ones that it no longer found.

    A change that is held already, or was rejected and comes again as it was, is not kept anew.
    """
    undecided = {change.content: change for change in _undecided_changes(tx, connection)}
    # An applied change is kept in any case: it may have been held or rejected before.
    new = [c for c in changes if c.status == "applied" or c.content not in undecided]
    held = {c.content for c in changes if c.status == "held"}
    stale_ids = [c.id for c in undecided.values() if c.status == "held" and c.content not in held]
    tx.execute(delete(_changes).where(_changes.c.id.in_(stale_ids)))
    if new:
        tx.execute(insert(_changes), [values(change) for change in new])


def _undecided_changes(tx: Connection, connection: str) -> list[Change]:
    undecided = _changes.c.status.in_(("held", "rejected"))
    return get_all(tx, select(_changes).filter_by(connection=connection).where(undecided), Change)


def decide_change(
    tx: Connection, change: Change, status: ChangeDecision, *, by: str, now: float
) -> Change | None:
    """The change as decided now, for its organization; None if it was not held any more."""
    decision = {"status": status, "by": by, "decided_at": now, "organization": change.organization}
    statement = update(_changes).filter_by(id=change.id, status="held").values(decision)
    return get_one(tx, statement.returning(_changes), Change)


async def list_changes(
    db: Database,
    *,
    connection: str | None = None,
    status: ChangeStatus | None = None,
    oversight: database.Oversight = None,
    limit: int = STORE_ROWS,
) -> list[Change]:
    """Changes, newest first; where `oversight` is given, of these only."""
    columns = {"connection": connection, "status": status}
    filters = {name: value for name, value in columns.items() if value is not None}
    among = select(_changes).filter_by(**filters).where(is_seen(_changes.c, oversight, _goes_along))
    statement = among.order_by(_changes.c.id.desc()).limit(min(limit, STORE_ROWS))
    return await db.read(lambda tx: get_all(tx, statement, Change))


async def count_held(db: Database, oversight: database.Oversight) -> dict[str, int]:
    """How many changes of each connection wait for a person to accept them."""
    name = _changes.c.connection
    held = select(name, func.count()).where(_is_held, is_seen(_changes.c, oversight, _goes_along))
    statement = held.group_by(name).order_by(name)
    return await db.read(lambda tx: {row[0]: row[1] for row in tx.execute(statement)})


async def get_change(db: Database, id: str, oversight: database.Oversight = None) -> Change | None:
    """The change of that id; where `oversight` is given, if it is one of these."""
    among = select(_changes).filter_by(id=id).where(is_seen(_changes.c, oversight, _goes_along))
    return await db.read(lambda tx: get_one(tx, among, Change))


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
