"""Keeps the catalog's connections those of Azure's resource group.

The group is listed at start, when everything is refreshed, and as often as `[azure]` asks. What was
listed is in the store, so that the next start and the other replicas know it without asking Azure.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from gateway.catalog.adopt import Report
from gateway.catalog.azure import AzureDirectory
from gateway.catalog.persistence import StoredCatalog
from gateway.catalog.refresh import Catalog
from gateway.errors import GatewayError

log = structlog.get_logger("gateway.azure")

POLL_SECONDS = 1.0


class AzureWatch:
    """Lists the resource group, and has the catalog follow."""

    def __init__(
        self, directory: AzureDirectory, catalog: Catalog, persistence: StoredCatalog
    ) -> None:
        self.directory = directory
        self.problem: str | None = None  # why the last listing failed
        self._catalog = catalog
        self._persistence = persistence
        self._listed_at = 0.0
        self._listing = asyncio.Lock()

    async def look(self) -> None:
        """Lists the group; a listing that fails leaves what was found before."""
        catalog = self._catalog
        if catalog.current.settings.azure is None:
            self.problem = None
            return
        async with self._listing:
            self._listed_at = time.time()
            try:
                listing = await self.directory.listing()
            except GatewayError as error:
                log.warning("azure not listed", code=error.code, error=error.message)
                self.problem = error.message
                return
            self.problem = None
            await self._persistence.keep_listing(listing, time.time())
            # Also where nothing is new: a connection that was put over Azure's may be gone.
            await catalog.apply(catalog.current.settings)

    async def refresh(self, *, by: str) -> list[Report]:
        """Lists the group and looks at everything that is in it."""
        await self.look()
        reports = await self._catalog.refresh(self.connections(), by=by)
        if reports:
            failing = [report.name for report in reports if report.status == "failing"]
            log.info("azure read", connections=len(reports), failing=failing)
        return reports

    def connections(self) -> list[str]:
        """The connections that come from the group."""
        states = self._catalog.current.connections.values()
        return [state.name for state in states if state.origin == "azure"]

    async def poll(self) -> None:
        """Refreshes the group as often as it is configured, for ever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            azure = self._catalog.current.settings.azure
            if azure is None or not azure.refresh_seconds:
                continue
            if time.time() - self._listed_at < azure.refresh_seconds:
                continue
            try:
                await self.refresh(by="schedule")
            except GatewayError as error:  # the store's, or of a connection that went meanwhile
                log.warning("azure not refreshed", code=error.code, error=error.message)
