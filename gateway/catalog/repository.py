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
from gateway.catalog.snapshot import ConnectionState, Found, RawDefinition
from gateway.config.connection import Connection
from gateway.config.reading import parse_connection
from gateway.config.settings import Permissions
from gateway.errors import Fixable, NotFound, Overloaded
from gateway.model import Build, Level, Tool, decode_build, encode_build, new_id
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
        self.db = db
        self._seal = seal

    async def load(self, known: Mapping[str, Found]) -> Stored:
        """All of it, as of now; of definitions only those that are not `known` are read."""
        revision = await current_revision(self.db)
        rows = await store.load_connections(self.db)
        found = await self._load_found(known)
        permissions = await store.load_permissions(self.db)
        listing = found.pop(LISTING, None)
        return Stored(
            revision,
            [self._opened(row) for row in rows],
            found,
            await store.load_choices(self.db),
            Permissions.model_validate(permissions) if permissions else None,
            await self.whole(LISTING, listing.definition) if listing else None,
        )

    def _opened(self, row: SealedConnection) -> ConnectionState:
        values: Any = self._seal.decrypt_json(row.settings)
        settings = parse_connection(row.name, values)
        return ConnectionState(row.name, settings, "stored", row.revision)

    async def _load_found(self, known: Mapping[str, Found]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        for name, (location, at) in (await store.load_marks(self.db)).items():
            held = known.get(name)
            if held is not None and (held.definition.location, held.at) == (location, at):
                found[name] = held
            elif row := await store.load_definition(self.db, name, location):
                found[name] = await asyncio.to_thread(_found, row)
        return found

    async def whole(self, connection: str, definition: RawDefinition) -> RawDefinition:
        """A connection's definition with its bytes."""
        packed = await store.load_packed(self.db, connection, definition.location)
        if packed is None:
            raise NotFound("connection_invalid", f"no definition of {connection!r} is stored")
        return replace(definition, packed=packed)

    async def save(
        self, new: Adoption, by: str, put: Connection | None = None, expected: int | None = None
    ) -> int:
        """Keeps what a look found, with the settings that were `put`; the revision it has now.

        What another process has found and kept already is not recorded twice.
        """
        name, found = new.state.name, new.found
        sealed = self._seal.encrypt_json(plain_settings(put)) if put is not None else b""
        row, rows = await asyncio.to_thread(lambda: (_row(name, found), _rows(new, by)))

        def unit(tx: Transaction, revision: int) -> int:
            if put is not None:
                connection = SealedConnection(name, sealed, revision, found.at, by)
                store.put_connection(tx, connection, expected)
            if not store.is_saved(tx, row):
                store.record_changes(tx, name, rows)
            store.save_definition(tx, row, found.definition.packed)
            return revision

        return await write_revision(self.db, unit)

    async def delete(self, name: str, expected: int | None) -> int:
        """Forgets a connection; the revision at which it went."""

        def unit(tx: Transaction, revision: int) -> int:
            if not store.delete_connection(tx, name, expected):
                raise NotFound("connection_invalid", f"there is no connection {name!r}")
            return revision

        return await write_revision(self.db, unit)

    async def keep_listing(self, listing: RawDefinition) -> None:
        """Keeps what Azure's resource group holds."""
        row = _row(LISTING, Found(Build("arm", "", ""), listing, at=time.time()))
        packed = listing.packed
        await write_revision(self.db, lambda tx, _: store.save_definition(tx, row, packed))

    async def undecided(self, connection: str, served: Sequence[Tool]) -> list[Difference]:
        """The changes that are kept from being served: what they would replace is served still."""
        rows = [
            row
            for status in ("held", "rejected")
            for row in await store.list_changes(self.db, connection=connection, status=status)
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
        build = await asyncio.to_thread(encode_build, new.build) if new else b""

        def unit(tx: Transaction, revision: int) -> tuple[Change, int]:
            decided = store.decide_change(tx, change.id, status, by=by, now=time.time())
            if decided is None:
                raise Fixable("invalid_arguments", "the change does not wait for a decision")
            place = (change.connection, old.definition.location)
            if new and not store.save_build(tx, *place, build, was=old.at, at=new.at):
                raise Overloaded("busy", "the connection was refreshed just now", "Try again.")
            return decided, revision

        return await write_revision(self.db, unit)


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


def _row(name: str, found: Found) -> StoredDefinition:
    definition = found.definition
    # Validators of a copy that was fetched with credentials count for these alone, and which they
    # were is not stored.
    is_public = definition.asked_with is None
    return StoredDefinition(
        connection=name,
        location=definition.location,
        sha256=definition.sha256,
        build_key=found.build_key,
        build=encode_build(found.build),
        fetched_at=found.at,
        etag=definition.etag if is_public else None,
        last_modified=definition.last_modified if is_public else None,
    )


def _found(row: StoredDefinition) -> Found:
    definition = RawDefinition(row.location, b"", row.sha256, row.etag, row.last_modified)
    return Found(decode_build(row.build), definition, row.build_key, row.fetched_at)


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
            id=new_id(new.found.at),
            connection=new.state.name,
            operation=change.operation,
            tool=change.tool,
            kind=change.kind,
            change_class=change.change_class,
            reason=change.reason,
            status="held" if change.operation in waiting else "applied",
            at=new.found.at,
            by=by,
            before=_encode_tool(change.before) if change.before else None,
            after=_encode_tool(change.after) if change.after else None,
        )
        for change in found
    ]
