"""Which connections there are: configured, put, found in Azure; and which may be put.

A connection of Azure's resource group that config.toml or a put already speaks for is not there
twice. One that a put made in Azure is removed there again when the put fails, or when it is
deleted; one that was there before is not ours to remove.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from gateway.azure.arm import named
from gateway.azure.directory import AzureDirectory, listing_location, read_listing, resource_id
from gateway.catalog.snapshot import ConnectionState, Snapshot, at_rest
from gateway.config.connection import ArmConnection, Connection, McpConnection
from gateway.config.reading import parse_connection
from gateway.config.settings import Settings, sign_in_problems, untrusted_in_bundles
from gateway.errors import ConfigInvalid, Fixable, GatewayError, Refused
from gateway.model import Found, RawDefinition
from gateway.store.catalog import Stored


def to_be_served(
    stored: Stored,
    settings: Settings,
    demo: Mapping[str, Connection],
    listing: RawDefinition | None,
) -> dict[str, ConnectionState]:
    """Every connection there is, by name: put, configured, ours to show, found in Azure."""
    states = {
        name: at_rest(name, parse_connection(name, values), "stored", revision)
        for name, values, revision in stored.connections
    }
    states |= {name: at_rest(name, c, "config") for name, c in settings.connections.items()}
    if settings.demo.enabled:
        states |= {name: at_rest(name, c, "demo") for name, c in demo.items()}
    found = _found_in_azure(listing, settings, states)
    states |= {name: at_rest(name, c, "azure") for name, c in found.items()}
    return {name: _with_names(state, stored.found.get(name)) for name, state in states.items()}


def _with_names(state: ConnectionState, found: Found | None) -> ConnectionState:
    """The connection with the form of its tools' names settled.

    Names are stable: where nothing is said, those that the store has from before stay what they
    are. What was put since short names are there says so itself (`completed`).
    """
    if state.settings.names or state.settings.kind == "mcp":
        return state
    names = found.build.names if found else "short"
    names = "full" if state.origin == "stored" else names
    return replace(state, settings=state.settings.model_copy(update={"names": names}))


def completed(
    values: Mapping[str, Any], old: ConnectionState | None, organization: str | None = None
) -> dict[str, Any]:
    """What is put, saying whose it is and how its tools are named: as they are now, else short."""
    said = dict(values)
    if organization is not None and said.get("organization") is None:
        said["organization"] = organization  # its admin's
    if not said.get("names") and said.get("kind") != "mcp":
        said["names"] = (old and old.settings.names) or "short"
    return said


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
            "Edit config.toml; what is put needs another name.",
        )


def _is_same_resource(found: Connection, new: Connection | None) -> bool:
    if not isinstance(found, ArmConnection) or not isinstance(new, ArmConnection):
        return False
    return new.resource_id is None or new.resource_id.lower() == str(found.resource_id).lower()


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
    for where, what in sign_in_problems(settings, connection):
        raise Fixable("connection_invalid", f"{where}: {what}")
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
