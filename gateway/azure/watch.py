"""Keeps the catalog's connections those of Azure's resource group.

The group is listed at start, when everything is refreshed, as often as `[azure]` asks, and after a
failure with growing pauses. What was listed is in the store, so that the next start and the other
replicas know it without asking Azure.

Requests to Azure Resource Manager, with the one token that everything behind Azure shares.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from typing import Any

import orjson
import structlog

from gateway.azure.directory import LISTING, AzureDirectory
from gateway.calls.credentials import AZURE, Credentials, auth_of, send_granted
from gateway.catalog.catalog import TOGETHER_SECONDS, Catalog, Looks, Pauses
from gateway.catalog.discover import Report
from gateway.catalog.repository import StoredCatalog
from gateway.config.settings import Azure
from gateway.errors import GatewayError
from gateway.outbound.client import Answer, Egress, Request

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
        self._looks: Looks[float] = Looks()
        self._pauses = Pauses()

    async def look(self, *, asked: bool = False) -> float:
        """Lists the group, once for all who ask together; gives since when what is known counts.

        A listing that fails leaves what was found before.
        """
        wait = TOGETHER_SECONDS if asked else 0.0
        return await self._looks.share(LISTING, self._list, wait=wait)

    async def close(self) -> None:
        """Ends a listing."""
        await self._looks.close()

    async def _list(self, since: float) -> float:
        catalog = self._catalog
        if catalog.current.settings.azure is None:
            self._tell(None)
            return since
        self._listed_at = time.time()
        try:
            listing = await self.directory.listing()
            await self._persistence.keep_listing(listing, time.time())
            # Also where nothing is new: a connection that was put over Azure's may be gone.
            await catalog.apply(catalog.current.settings)
        except GatewayError as error:
            self._tell(error)
        else:
            self._tell(None)
        return since

    def _tell(self, error: GatewayError | None) -> None:
        """Shows what is wrong, once, or that it is no longer."""
        said = None if error is None else f"the resource group can't be listed: {error.sentence}"
        if error is not None and said != self.problem:
            log.warning("azure not listed", code=error.code, error=error.message)
        self.problem = said
        self._catalog.tell("azure", said)

    async def refresh(self, *, by: str) -> list[Report]:
        """Lists the group and looks at everything that is in it."""
        since = await self.look()
        reports = await self._catalog.refresh(self.connections(), by=by, since=since)
        if reports:
            failing = [report.name for report in reports if report.status == "failing"]
            log.info("azure read", connections=len(reports), failing=failing)
        return reports

    def connections(self) -> list[str]:
        """The connections that come from the group."""
        states = self._catalog.current.connections.values()
        return [state.name for state in states if state.origin == "azure"]

    async def poll(self) -> None:
        """Refreshes the group as often as it is configured, and lists it until it can, for ever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.look_if_due(time.time())
            except GatewayError as error:  # the store's, or of a connection that went meanwhile
                log.warning("azure not refreshed", code=error.code, error=error.message)

    async def look_if_due(self, now: float) -> None:
        """Refreshes the group where that is due at this time, or a listing that failed."""
        azure = self._catalog.current.settings.azure
        if azure is None or not self._is_due(azure, now):
            return
        since = await self.look()
        if self.problem is None:  # else its connections are tried again one by one
            await self._catalog.refresh(self.connections(), by="schedule", since=since)

    def _is_due(self, azure: Azure, now: float) -> bool:
        if self.problem is not None:
            return self._pauses.is_over(LISTING, now)
        self._pauses.end(LISTING)
        return bool(azure.refresh_seconds) and now - self._listed_at >= azure.refresh_seconds


AZURE_SECONDS = 20.0


async def ask_azure(
    egress: Egress, credentials: Credentials, azure: Azure, request: Request, max_bytes: int
) -> Answer:
    """What Azure answers; a token it no longer accepts is replaced once."""

    async def send(granted: Request) -> Answer:
        return await egress.send(granted, deadline=AZURE_SECONDS, max_bytes=max_bytes)

    auth = auth_of(azure.auth)
    answer, _ = await send_granted(credentials, AZURE, auth, request, azure.endpoint, send)
    return answer


async def azure_identity(credentials: Credentials, azure: Azure) -> dict[str, str]:
    """Who we are to Azure, read off our own token; nothing where it does not say.

    It is not checked: Azure checks what it is told.
    """
    grant = await credentials.grant(AZURE, auth_of(azure.auth))
    claims = _claims(grant.secrets[0]) if grant.secrets else {}
    found = {"objectId": claims.get("oid"), "tenantId": claims.get("tid")}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _claims(token: str) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = orjson.loads(text)
    except (binascii.Error, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}
