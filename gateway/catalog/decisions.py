"""What is served once an admin has accepted a change that was held."""

from __future__ import annotations

from dataclasses import replace

from gateway.catalog.changes import asks_other_credential, with_credentials_of
from gateway.catalog.discover import Discoverer, Found
from gateway.catalog.persistence import StoredCatalog, change_of, with_change
from gateway.catalog.snapshot import ConnectionState
from gateway.config.settings import Limits
from gateway.store.changes import Change


async def accepted(
    persistence: StoredCatalog,
    discoverer: Discoverer,
    limits: Limits,
    state: ConnectionState,
    found: Found,
    change: Change,
    now: float,
) -> Found:
    """The connection's tools with this one as the definition has it now."""
    new = with_change(found, change, now)
    if not asks_other_credential(change_of(change)):
        return new
    # How calls prove themselves is said once for the whole definition: read it from there.
    packed = await persistence.packed(state.name, found.definition.location)
    definition = replace(found.definition, packed=packed)
    fresh = await discoverer.rebuild(state.name, state.settings, limits, definition, None)
    return replace(new, build=with_credentials_of(new.build, fresh.build))
