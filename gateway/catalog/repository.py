"""What the catalog keeps in the store: put connections, definitions with their builds, changes.

The settings of a put connection are sealed: they may hold credentials. A put is one transaction
with its definition and its changes, so that after a crash all of it is there or nothing. The bytes
of a definition are only read when a build has to be made again: idle ones cost no memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
from pydantic import SecretStr
from sqlalchemy import Connection as Transaction

from gateway.azure.directory import LISTING
from gateway.catalog.changes import Adoption, Difference, by_operation
from gateway.catalog.definitions import Found, RawDefinition, light, same_bytes
from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import Connection
from gateway.config.reading import parse_connection
from gateway.config.settings import Permissions
from gateway.errors import Fixable, NotFound, Overloaded
from gateway.model import Build, Level, Problem, Tool, decode_build, encode_build, new_id
from gateway.store import catalog as store
from gateway.store.catalog import Change, SealedConnection, StoredDefinition
from gateway.store.cluster import current_revision, write_revision
from gateway.store.database import Database
from gateway.store.secrets import Seal

_encode_tool = msgspec.msgpack.Encoder(order="deterministic").encode
_decode_tool = msgspec.msgpack.Decoder(Tool).decode


@dataclass(frozen=True, slots=True)
class Stored:
    """Everything a snapshot needs that is not in config.toml."""

    revision: int
    connections: Sequence[ConnectionState]  # that were put
    found: Mapping[str, Found]
    choices: Mapping[tuple[str, str], Level]
    permissions: Permissions | None
    azure: RawDefinition | None = None  # what the resource group held when it was last listed


class StoredCatalog:
    """The store, as the catalog needs it."""

    def __init__(self, db: Database, seal: Seal) -> None:
        self._db = db
        self._seal = seal
        self._read: dict[str, Found] = {}  # what was read or written last, without documents

    async def load(self) -> Stored:
        """All of it, as of now."""
        db = self._db
        revision = await current_revision(db)
        rows = await store.load_connections(db)
        found = await self._load_found()
        permissions = await store.load_permissions(db)
        return Stored(
            revision,
            [self._opened(row) for row in rows],
            found,
            await store.load_choices(db),
            Permissions.model_validate(permissions) if permissions else None,
            await self._listing(found.pop(LISTING, None)),
        )

    def _opened(self, row: SealedConnection) -> ConnectionState:
        values: Any = self._seal.decrypt_json(row.settings)
        settings = parse_connection(row.name, values)
        return ConnectionState(row.name, settings, "stored", row.revision)

    async def _listing(self, found: Found | None) -> RawDefinition | None:
        if found is None:
            return None
        definition = found.definition
        return replace(definition, packed=await self.packed(LISTING, definition.location))

    async def _load_found(self) -> dict[str, Found]:
        """Every definition with its build; only those that are news are read and decoded."""
        marks = await store.load_marks(self._db)
        found: dict[str, Found] = {}
        for name, (location, at) in marks.items():
            known = self._read.get(name)
            if known is None or (known.definition.location, known.at) != (location, at):
                row = await store.load_definition(self._db, name, location)
                known = await asyncio.to_thread(_found, row) if row else None
            if known is not None:
                found[name] = known
        self._read = found
        return dict(found)

    async def packed(self, connection: str, location: str) -> bytes:
        """A connection's definition, packed."""
        packed = await store.load_packed(self._db, connection, location)
        if packed is None:
            raise NotFound("connection_invalid", f"no definition of {connection!r} is stored")
        return packed

    async def put(
        self, name: str, settings: Connection, new: Adoption, expected: int | None, by: str
    ) -> int:
        """Keeps a connection with its definition; the revision it has now."""
        sealed = self._seal.encrypt_json(plain_settings(settings))
        packed = new.found.definition.packed
        row, rows = await asyncio.to_thread(lambda: (_row(name, new), _rows(new, by)))

        def unit(tx: Transaction, revision: int) -> int:
            connection = SealedConnection(name, sealed, revision, new.at, by)
            store.put_connection(tx, connection, expected)
            store.save_definition(tx, row, packed)
            store.record_changes(tx, name, rows)
            return revision

        revision = await write_revision(self._db, unit)
        self._read[name] = light(new.found)
        return revision

    async def delete(self, name: str, expected: int | None) -> int:
        """Forgets a connection; the revision at which it went."""

        def unit(tx: Transaction, revision: int) -> int:
            if not store.delete_connection(tx, name, expected):
                raise NotFound("connection_invalid", f"there is no connection {name!r}")
            return revision

        return await write_revision(self._db, unit)

    async def save(self, name: str, new: Adoption, by: str) -> int:
        """Keeps what a refresh found; the revision at which replicas see it.

        What another process has found and kept already is not recorded twice.
        """
        packed = new.found.definition.packed
        row, rows = await asyncio.to_thread(lambda: (_row(name, new), _rows(new, by)))

        def unit(tx: Transaction, revision: int) -> int:
            if not store.is_saved(tx, row):
                store.record_changes(tx, name, rows)
            store.save_definition(tx, row, packed)
            return revision

        revision = await write_revision(self._db, unit)
        self._read[name] = light(new.found)
        return revision

    async def keep_listing(self, listing: RawDefinition, now: float) -> None:
        """Keeps what Azure's resource group holds, if that is news."""
        known = self._read.get(LISTING)
        if known is not None and same_bytes(known.definition, listing):
            return
        build = encode_build(Build("arm", "", ""))
        row = StoredDefinition(
            LISTING, listing.location, listing.sha256, build_key="", build=build, fetched_at=now
        )
        packed = listing.packed
        await write_revision(self._db, lambda tx, _: store.save_definition(tx, row, packed))

    async def choose(self, principal: str, connection: str, access: Level) -> int:
        """Keeps a principal's own choice; the revision at which it holds."""
        return await store.choose_access(self._db, principal, connection, access)

    async def put_permissions(self, permissions: Permissions | None, by: str) -> int:
        """Keeps permissions, or forgets them; the revision at which that holds."""
        shown = None if permissions is None else permissions.model_dump(mode="json")
        return await store.put_permissions(self._db, shown, by=by, now=time.time())

    async def change(self, id: str) -> Change:
        """A change that was recorded."""
        found = await store.get_change(self._db, id)
        if found is None:
            raise NotFound("invalid_arguments", "there is no such change")
        return found

    async def undecided(self, connection: str, served: Sequence[Tool]) -> list[Difference]:
        """The changes that are kept from being served: what they would replace is served still."""
        rows = [
            row
            for status in ("held", "rejected")
            for row in await store.list_changes(self._db, connection=connection, status=status)
        ]
        now = by_operation(served)
        kept = (change_of(row) for row in rows)
        return [change for change in kept if now.get(change.operation) == change.before]

    async def decide(
        self,
        change: Change,
        status: Literal["accepted", "rejected"],
        by: str,
        old: Found,
        new: Found | None,
    ) -> tuple[Change, int]:
        """Keeps a decision, with the build that follows from it, if nothing came in between."""
        build = None if new is None else await asyncio.to_thread(encode_build, new.build)

        def unit(tx: Transaction, revision: int) -> tuple[Change, int]:
            decided = store.decide_change(tx, change.id, status, by=by, now=time.time())
            if decided is None:
                raise Fixable("invalid_arguments", "the change does not wait for a decision")
            if new is not None and build is not None:
                place = (change.connection, old.definition.location)
                if not store.save_build(tx, *place, build, was=old.at, at=new.at):
                    raise Overloaded("busy", "the connection was refreshed just now", "Try again.")
            return decided, revision

        decided = await write_revision(self._db, unit)
        if new is not None:
            self._read[change.connection] = new
        return decided

    async def advice(self, sha256: str) -> tuple[Problem, ...] | None:
        """What the validator said of a document; None if it was never asked."""
        return await store.load_validation(self._db, sha256)

    async def keep_advice(self, sha256: str, problems: tuple[Problem, ...]) -> None:
        """Keeps what the validator said."""
        await store.save_validation(self._db, sha256, problems, time.time())


def with_change(found: Found, change: Change, now: float) -> Found:
    """What is served once this change is accepted."""
    tools = by_operation(found.build.tools)
    after = None if change.after is None else _decode_tool(change.after)
    if after is None:
        tools.pop(str(change.operation), None)
    else:
        tools[str(change.operation)] = after
    return replace(found, build=replace(found.build, tools=tuple(tools.values())), at=now)


def plain_settings(settings: Connection) -> dict[str, Any]:
    """The settings with their secrets, as they were put: to be sealed, never to be shown."""
    shown: dict[str, Any] = _plain(settings.model_dump(by_alias=True, exclude_unset=True))
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _row(name: str, new: Adoption) -> StoredDefinition:
    definition = new.found.definition
    return StoredDefinition(
        connection=name,
        location=definition.location,
        sha256=definition.sha256,
        build_key=new.found.build_key,
        build=encode_build(new.found.build),
        fetched_at=new.at,
        # Validators of a copy that was fetched with credentials count for these alone, and which
        # they were is not stored.
        etag=definition.etag if definition.asked_with is None else None,
        last_modified=definition.last_modified if definition.asked_with is None else None,
    )


def _found(row: StoredDefinition) -> Found:
    definition = RawDefinition(row.location, b"", row.sha256, row.etag, row.last_modified)
    return Found(definition, decode_build(row.build), row.build_key, row.fetched_at)


def change_of(row: Change) -> Difference:
    """A recorded change with its tools as they were and would be."""
    return Difference(
        str(row.operation),
        row.tool,
        row.kind,
        row.change_class,
        row.reason,
        None if row.before is None else _decode_tool(row.before),
        None if row.after is None else _decode_tool(row.after),
    )


def _rows(new: Adoption, by: str) -> list[Change]:
    waiting = {change.operation for change in new.waiting}
    found = () if new.first else new.changes
    return [
        Change(
            id=new_id(new.at),
            connection=new.state.name,
            operation=change.operation,
            tool=change.tool,
            kind=change.kind,
            change_class=change.change_class,
            reason=change.reason,
            status="held" if change.operation in waiting else "applied",
            at=new.at,
            by=by,
            before=_encode_tool(change.before) if change.before else None,
            after=_encode_tool(change.after) if change.after else None,
        )
        for change in found
    ]
