"""Which connections there are: configured, put, found in Azure; and what the store keeps of them.

The settings of a put connection are sealed: they may hold credentials. A put is one transaction
with its definition and its changes, so that after a crash all of it is there or nothing. The bytes
of a definition are only read when a build has to be made again: idle ones cost no memory.

A connection of Azure's resource group that config.toml or a put already speaks for is not there
twice. One that a put made in Azure is removed there again when the put fails, or when it is
deleted; one that was there before is not ours to remove.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection as Transaction

from gateway.azure.arm import named
from gateway.azure.directory import (
    LISTING,
    AzureDirectory,
    listing_location,
    read_listing,
    resource_id,
)
from gateway.catalog.changes import Adoption, Difference, by_operation
from gateway.catalog.snapshot import ConnectionState, Found, RawDefinition, Snapshot, at_rest
from gateway.config.connection import ArmConnection, Connection, McpConnection
from gateway.config.reading import parse_connection
from gateway.config.settings import Permissions, Settings, untrusted_in_bundles
from gateway.errors import ConfigInvalid, Fixable, GatewayError, NotFound, Overloaded, Refused
from gateway.model import (
    Build,
    Level,
    Tool,
    decode_build,
    decode_tool,
    encode_build,
    encode_tool,
    new_id,
)
from gateway.store import catalog as store
from gateway.store.catalog import Change, SealedConnection, StoredDefinition
from gateway.store.cluster import current_revision, write_revision
from gateway.store.database import Database
from gateway.store.secrets import Seal


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
        return at_rest(row.name, parse_connection(row.name, values), "stored", row.revision)

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
        self,
        new: Adoption,
        by: str,
        put: Mapping[str, Any] | None = None,
        expected: int | None = None,
    ) -> int:
        """Keeps what a look found, with the settings that were `put`; the revision it has now.

        What another process has found and kept already is not recorded twice.
        """
        name, found = new.state.name, new.found
        sealed = self._seal.encrypt_json(put)
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
        kept = (difference_of(row) for row in rows)
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


def difference_of(row: Change) -> Difference:
    """A recorded change with its tools as they were and would be."""
    before, after = (data and decode_tool(data) for data in (row.before, row.after))
    said = (str(row.operation), row.tool, row.kind, row.change_class, row.reason)
    return Difference(*said, before or None, after or None)


def _rows(new: Adoption, by: str) -> list[Change]:
    waiting = {change.operation for change in new.waiting}
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
            before=encode_tool(change.before) if change.before else None,
            after=encode_tool(change.after) if change.after else None,
        )
        for change in (() if new.first else new.changes)
    ]


# --- which there are, and which may be put --------------------------------------------------------


def to_be_served(
    stored: Stored, settings: Settings, demo: Mapping[str, Connection]
) -> dict[str, ConnectionState]:
    """Every connection there is, by name: put, configured, ours to show, found in Azure."""
    states = {state.name: state for state in stored.connections}
    states |= {name: at_rest(name, c, "config") for name, c in settings.connections.items()}
    if settings.demo.enabled:
        states |= {name: at_rest(name, c, "demo") for name, c in demo.items()}
    found = _found_in_azure(stored.azure, settings, states)
    return states | {name: at_rest(name, c, "azure") for name, c in found.items()}


def _found_in_azure(
    listing: RawDefinition | None, settings: Settings, others: Mapping[str, ConnectionState]
) -> dict[str, ArmConnection]:
    """The group's connections by the name each has here; `others` come first."""
    azure = settings.azure
    if azure is None or listing is None or listing.location != listing_location(azure):
        return {}
    claimed = {
        resource_id(azure, name, state.settings).lower()
        for name, state in others.items()
        if isinstance(state.settings, ArmConnection)
    }
    free = [one for one in read_listing(listing.raw) if one.id.lower() not in claimed]
    return {
        name: ArmConnection(
            kind="arm",
            display_name=resource.display_name,
            api=resource.api_name,
            resource_id=resource.id,
            invoke=azure.invoke,
        )
        for name, resource in named(free, others).items()
    }


@asynccontextmanager
async def present_in_azure(
    directory: AzureDirectory, name: str, settings: Connection, old: ConnectionState | None
) -> AsyncIterator[Connection]:
    """The settings of a connection that exists in Azure now, where it has to exist there.

    What was made for this is removed again if the block fails.
    """
    if not isinstance(settings, ArmConnection):
        yield settings
        return
    before = old.settings if old and isinstance(old.settings, ArmConnection) else None
    if before is not None and settings.resource_id is None:
        settings = settings.model_copy(update={"resource_id": before.resource_id})
    settings, made = await directory.create(name, settings)
    ours = before is not None and before.created_here
    same = before is not None and before.resource_id == settings.resource_id
    settings = settings.model_copy(update={"created_here": made or (ours and same)})
    try:
        yield settings
    except BaseException:
        if made and settings.resource_id:
            with suppress(GatewayError):
                await directory.delete(settings.resource_id)
        raise


async def remove_from_azure(directory: AzureDirectory, settings: Connection) -> None:
    """Removes in Azure what was made there by a put."""
    if isinstance(settings, ArmConnection) and settings.created_here and settings.resource_id:
        await directory.delete(settings.resource_id)


def refuse_configured(state: ConnectionState | None, new: Connection | None = None) -> None:
    """Refuses to touch a connection that config.toml, or we, or Azure define.

    What is found in Azure may be put under its name, with other settings.
    """
    if state is not None and state.origin == "azure":
        if not _is_same_resource(state.settings, new):
            raise Fixable(
                "connection_invalid",
                f"the connection {state.name!r} comes from Azure's resource group",
                "Remove it in Azure, or put it with kind arm and enabled false.",
            )
    elif state is not None and state.origin != "stored":
        raise Fixable(
            "connection_invalid",
            f"the connection {state.name!r} is defined in config.toml",
            "Choose another name, or edit config.toml.",
        )


def _is_same_resource(found: Connection, new: Connection | None) -> bool:
    if not isinstance(found, ArmConnection) or not isinstance(new, ArmConnection):
        return False
    return new.resource_id is None or new.resource_id.lower() == str(found.resource_id).lower()


def refuse_put(
    settings: Settings,
    name: str,
    connection: Connection,
    state: ConnectionState | None,
    organization: str | None,
) -> None:
    """Refuses what may not be put under this name, or not by an admin of this organization."""
    refuse_foreign(organization, connection, state)
    refuse_configured(state, connection)
    refuse_unsafe(settings, name, connection)


def refuse_foreign(
    organization: str | None, connection: Connection, state: ConnectionState | None
) -> None:
    """Keeps an admin of an organization to that organization's connections."""
    if organization is None:
        return
    if connection.organization != organization:
        raise Refused(
            "access_denied",
            "you may only put connections of your own organization",
            f'Set organization = "{organization}".',
        )
    if connection.tls.cert_file:
        raise Refused(
            "access_denied",
            "an organization's admin may not name the gateway's own certificates",
            "Ask an operator to write the connection into config.toml.",
        )
    if state is not None and state.settings.organization != organization:
        raise Fixable("connection_invalid", "this name can't be used", "Choose another name.")


def refuse_unsafe(settings: Settings, name: str, connection: Connection) -> None:
    """Refuses commands, and what would break a rule that the configuration was checked for."""
    if isinstance(connection, McpConnection) and connection.transport == "stdio":
        raise Fixable(
            "connection_invalid",
            "commands can't be put at run time",
            'Write connections with transport = "stdio" into config.toml.',
        )
    if connection.trust != "untrusted":
        return
    for where, what in untrusted_in_bundles(settings, {name}):
        raise Fixable("connection_invalid", f"{where}: {what}", "Trust it, or edit the bundle.")


def refuse_edit(settings: Settings, current: Snapshot) -> None:
    """Refuses a configuration whose bundles break a rule for connections it does not name."""
    untrusted = {
        name
        for name, state in current.connections.items()
        if state.settings.trust == "untrusted" and state.origin not in ("config", "demo")
    }
    untrusted -= settings.connections.keys()
    found = untrusted_in_bundles(settings, untrusted)
    if problems := [f"config.toml: {where}: {what}" for where, what in found]:
        raise ConfigInvalid(problems)
