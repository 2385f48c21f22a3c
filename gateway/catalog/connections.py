"""The connections that exist: configured, put, found in Azure; the rules for a put, for addresses.

A connection of Azure's resource group that config.toml or a put already covers is not listed
twice. A resource that a put made in Azure is removed there again when the put fails, or when the
connection is deleted; a resource that existed before is not ours to remove.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from gateway.azure.arm import name_resources
from gateway.azure.directory import AzureDirectory, listing_location, read_listing, resource_id
from gateway.catalog.snapshot import ConnectionState, Snapshot, unread_state
from gateway.config.connection import ArmConnection, Connection, McpConnection, OpenApiConnection
from gateway.config.file import parse_connection
from gateway.config.settings import Settings, sign_in_problems, untrusted_in_bundles
from gateway.errors import ConfigInvalid, Fixable, GatewayError, Refused
from gateway.model import Build, BuiltDefinition, Problem, RawDefinition, Skipped
from gateway.store.catalog import StoredState


def connection_states(
    stored: StoredState,
    settings: Settings,
    demo: Mapping[str, Connection],
    listing: RawDefinition | None,
) -> dict[str, ConnectionState]:
    """Every connection by name: put, configured, of the demo, found in Azure."""
    states = {
        name: _put_state(name, values, revision) for name, values, revision in stored.connections
    }
    states |= {name: unread_state(name, c, "config") for name, c in settings.connections.items()}
    if settings.demo.enabled:
        states |= {name: unread_state(name, c, "demo") for name, c in demo.items()}
    found = _found_in_azure(listing, settings, states)
    states |= {name: unread_state(name, c, "azure") for name, c in found.items()}
    return {name: _with_names(state, stored.found.get(name)) for name, state in states.items()}


def _put_state(name: str, values: Any, revision: int) -> ConnectionState:
    """A connection that was put; one that can't be read any more is switched off and says so."""
    try:
        return unread_state(name, parse_connection(name, values), "stored", revision)
    except Fixable as error:  # the row is damaged, or another version of the gateway wrote it
        words = f"what is stored can't be read ({error.message}): put the connection again"
        problems = (Problem("error", "settings", words),)
        # Whose it was is not known: only admins of no organization see it.
        settings = OpenApiConnection(kind="openapi", spec="-", enabled=False, organization="")
        return replace(unread_state(name, settings, "stored", revision), problems=problems)


def _with_names(state: ConnectionState, found: BuiltDefinition | None) -> ConnectionState:
    """The connection with the form of its tools' names settled.

    Names are stable: where the settings don't choose a form, the names that the store has stay as
    they are. A connection put since short names exist has its form stored (`complete_values`).
    """
    if state.settings.names or state.settings.kind == "mcp":
        return state
    names = found.build.names if found else "short"
    names = "full" if state.origin == "stored" else names
    return replace(state, settings=state.settings.model_copy(update={"names": names}))


def complete_values(
    values: Mapping[str, Any], old: ConnectionState | None, organization: str | None = None
) -> dict[str, Any]:
    """The values of a put with its organization and the form of tool names (else short)."""
    complete = dict(values)
    if organization is not None and complete.get("organization") is None:
        complete["organization"] = organization  # that of the admin who puts it
    if not complete.get("names") and complete.get("kind") != "mcp":
        complete["names"] = (old and old.settings.names) or "short"
    return complete


def _found_in_azure(
    listing: RawDefinition | None, settings: Settings, states: Mapping[str, ConnectionState]
) -> dict[str, ArmConnection]:
    """The group's connections by their names here; `states` keep their names."""
    azure = settings.azure
    if azure is None or listing is None or listing.location != listing_location(azure):
        return {}
    claimed_ids = {
        resource_id(azure, name, state.settings).lower()
        for name, state in states.items()
        if isinstance(state.settings, ArmConnection)
    }
    free = [r for r in read_listing(listing.raw) if r.id.lower() not in claimed_ids]
    return {
        name: ArmConnection(
            kind="arm",
            display_name=resource.display_name,
            api=resource.api_name,
            resource_id=resource.id,
            invoke=azure.invoke,
        )
        for name, resource in name_resources(free, states).items()
    }


@asynccontextmanager
async def ensure_in_azure(
    directory: AzureDirectory, name: str, settings: Connection, old: ConnectionState | None
) -> AsyncIterator[Connection]:
    """Makes the resource of a connection of kind arm where it is missing; gives its settings.

    A resource that was made for this is removed again if the block fails.
    """
    if not isinstance(settings, ArmConnection):
        yield settings
        return
    before = old.settings if old and isinstance(old.settings, ArmConnection) else None
    if before is not None and settings.resource_id is None:
        settings = settings.model_copy(update={"resource_id": before.resource_id})
    settings, is_new = await directory.create(name, settings)
    was_ours = before is not None and before.created_here
    is_same = before is not None and before.resource_id == settings.resource_id
    settings = settings.model_copy(update={"created_here": is_new or (was_ours and is_same)})
    try:
        yield settings
    except BaseException:
        if is_new and settings.resource_id:
            with suppress(GatewayError):
                await directory.delete(settings.resource_id)
        raise


async def remove_from_azure(directory: AzureDirectory, settings: Connection) -> None:
    """Removes in Azure the resource that a put made there."""
    if isinstance(settings, ArmConnection) and settings.created_here and settings.resource_id:
        await directory.delete(settings.resource_id)


def refuse_configured(state: ConnectionState | None, new: Connection | None = None) -> None:
    """Refuses to touch a connection that config.toml, the demo or Azure defines.

    A connection found in Azure may be put under its name, with other settings.
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
    organization: str | None, new: Connection, state: ConnectionState | None, file: str | None
) -> None:
    """Keeps an admin of an organization to that organization's connections, and off our files."""
    if organization is None:
        return
    if new.organization != organization:
        raise Refused(
            "access_denied",
            "you may only put connections of your own organization",
            f'Set organization = "{organization}".',
        )
    if file or new.tls.cert_file or new.tls.ca_file:
        raise Refused(
            "access_denied",
            "an organization's admin may not name files of the gateway's machine",
            "Give a definition's address or text, or ask for the connection in config.toml.",
        )
    if state is not None and state.settings.organization != organization:
        raise Fixable("connection_invalid", "this name can't be used", "Choose another name.")


def refuse_unsafe(settings: Settings, name: str, connection: Connection) -> None:
    """Refuses commands, and settings that would break a rule checked for config.toml."""
    if isinstance(connection, McpConnection) and connection.transport == "stdio":
        raise Fixable(
            "connection_invalid",
            "commands can't be put at run time",
            'Write connections with transport = "stdio" into config.toml.',
        )
    for path, words in sign_in_problems(settings, connection):
        raise Fixable("connection_invalid", f"{path}: {words}")
    if connection.trust != "untrusted":
        return
    for path, words in untrusted_in_bundles(settings, {name}):
        raise Fixable("connection_invalid", f"{path}: {words}", "Trust it, or edit the bundle.")


def refuse_edit(settings: Settings, current: Snapshot) -> None:
    """Refuses a configuration whose bundles break a rule for connections it does not name."""
    untrusted = {
        name
        for name, state in current.connections.items()
        if state.settings.trust == "untrusted" and state.origin not in ("config", "demo")
    }
    untrusted -= settings.connections.keys()
    found = untrusted_in_bundles(settings, untrusted)
    if problems := [f"config.toml: {path}: {words}" for path, words in found]:
        raise ConfigInvalid(problems)


# --- addresses ------------------------------------------------------------------------------------

CheckAddress = Callable[[str], Awaitable[None]]


async def refusals(check: CheckAddress, addresses: Collection[str]) -> dict[str, Refused | Fixable]:
    """The errors of those addresses that may not be dialled or can't be read.

    A name that is unknown now may be known later: every address is judged again when it is dialled.
    """
    errors = await asyncio.gather(*map(check, addresses), return_exceptions=True)
    pairs = zip(addresses, errors, strict=True)
    return {address: error for address, error in pairs if isinstance(error, Refused | Fixable)}


async def without_refused(check: CheckAddress, build: Build) -> Build:
    """The build without the operations whose own servers, on other hosts than its, are refused."""
    servers = {tool.name: origin(tool.http.base_url) for tool in build.tools if tool.http}
    host = urlsplit(build.base_url).hostname
    others = {server for server in servers.values() if server and urlsplit(server).hostname != host}
    refused = await refusals(check, sorted(others))
    skipped = [
        Skipped(t.operation, t.method, t.path, error.message, t.access, t.name, servers[t.name])
        for t in build.tools
        if (error := refused.get(servers.get(t.name, "")))
    ]
    gone = {each.tool for each in skipped}
    tools = tuple(tool for tool in build.tools if tool.name not in gone)
    return replace(build, tools=tools, skipped=(*build.skipped, *skipped), refused=tuple(refused))


def origin(url: str) -> str:
    """The scheme, host and port of an address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if url else ""
