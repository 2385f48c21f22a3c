"""What the connections of Azure's resource group mean in the catalog: names, settings, owners.

A connection that config.toml or a put already speaks for is not there twice. One that a put made in
Azure is removed there again when the put fails, or when it is deleted; one that was there before is
not ours to remove.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from gateway.azure.connector import named
from gateway.azure.directory import AzureDirectory, listing_location, read_listing, resource_id
from gateway.catalog.definitions import Definition
from gateway.catalog.repository import Stored
from gateway.catalog.snapshot import ConnectionState, Origin
from gateway.config.connection import ArmConnection, Connection
from gateway.config.settings import Settings
from gateway.errors import GatewayError

Wanted = tuple[Connection, Origin, int]  # where it comes from, and the revision of what was put


def to_be_served(
    stored: Stored, settings: Settings, demo: Mapping[str, Connection]
) -> dict[str, Wanted]:
    """Every connection there is, by name: put, configured, ours to show, found in Azure."""
    wanted: dict[str, Wanted] = {
        row.name: (row.settings, "stored", row.revision) for row in stored.connections
    }
    wanted |= {name: (c, "config", 0) for name, c in settings.connections.items()}
    if settings.demo.enabled:
        wanted |= {name: (c, "demo", 0) for name, c in demo.items()}
    found = found_in_azure(stored.azure, settings, wanted)
    return wanted | {name: (c, "azure", 0) for name, c in found.items()}


def found_in_azure(
    listing: Definition | None, settings: Settings, others: Mapping[str, Wanted]
) -> dict[str, ArmConnection]:
    """The group's connections by the name each has here; `others` come first."""
    azure = settings.azure
    if azure is None or listing is None or listing.location != listing_location(azure):
        return {}
    claimed = {
        resource_id(azure, name, connection).lower()
        for name, (connection, _, _) in others.items()
        if isinstance(connection, ArmConnection)
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
