"""When connections are looked at again without anyone asking.

As often as `refresh_seconds` says; soon, when an upstream says that its tools changed, when the
file of a definition was saved, or a lazy connection is seen for the first time; and after a failure
with growing pauses, so that what comes back is noticed. One that takes long to answer keeps nobody
else waiting. A definition that is new also gets advice from a validator, in its own time: it never
holds anything up.

Azure's resource group is listed at start, when everything is refreshed, as often as `[azure]` asks,
and after a failure with growing pauses. What was listed is in the store, so that the next start and
the other replicas know it without asking Azure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from gateway.azure.directory import LISTING, AzureDirectory, listing_location
from gateway.catalog.catalog import Catalog
from gateway.catalog.changes import Report
from gateway.catalog.definitions import RawDefinition, file_of, is_active, kind_of
from gateway.catalog.discover import Looks, Pauses
from gateway.catalog.repository import StoredCatalog
from gateway.catalog.snapshot import ConnectionState
from gateway.config.settings import Azure
from gateway.errors import GatewayError
from gateway.limits import CATALOG_LOOK_SECONDS, SETTLE_SECONDS
from gateway.model import Problem

log = structlog.get_logger("gateway.catalog")

ADVISED_KINDS = ("openapi", "arm")

Advise = Callable[[bytes], Awaitable[tuple[Problem, ...]]]
Mark = tuple[Path, int, int, int]  # a file as it was saved: where, when, how large, which one


class Schedule:
    """Looks at connections when it is time."""

    def __init__(
        self, catalog: Catalog, persistence: StoredCatalog, advise: Advise, folder: Path
    ) -> None:
        self._catalog = catalog
        self._persistence = persistence
        self._advise = advise
        self._folder = folder  # what paths of definitions count from
        self._saved: set[str] = set()
        self._woken: set[str] = set()
        self._looking: set[str] = set()  # one look a name at a time
        self._wake = asyncio.Event()
        self._pauses = Pauses()
        self._advised: set[str] = set()

    def wake(self, name: str) -> None:
        """Has a connection looked at soon."""
        self._woken.add(name)
        self._wake.set()

    async def run(self) -> None:
        """Refreshes what is due, for ever."""
        async with asyncio.TaskGroup() as looks:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CATALOG_LOOK_SECONDS):
                        await self._wake.wait()
                self._wake.clear()
                for names in self._ready():
                    self._looking |= names
                    looks.create_task(self._refresh(names))

    async def watch_files(self) -> None:
        """Has connections looked at when the files of their definitions were saved, for ever.

        Files are asked how they are, by their paths: that also sees those that are replaced by a
        rename, led to by links, or on file systems that tell nobody of a change.
        """
        before: Mapping[str, Mark] = {}
        taken: dict[str, Mark] = {}
        while True:
            await asyncio.sleep(SETTLE_SECONDS)  # one that is still being written is left alone
            files = self._files()
            now = await asyncio.to_thread(_marks, files) if files else {}
            settled = {name: mark for name, mark in now.items() if before.get(name) == mark}
            if saved := {name for name, mark in settled.items() if taken.get(name) != mark}:
                self._saved |= saved
                self._wake.set()
            taken = {name: mark for name, mark in taken.items() if name in files} | settled
            before = now

    def _files(self) -> dict[str, Path]:
        return {
            name: self._folder / file
            for name, state in self._catalog.current.connections.items()
            if is_active(state.settings) and (file := file_of(state.settings)) is not None
        }

    async def advise(self) -> None:
        """Asks the validator about definitions it has not seen, one after the other, for ever."""
        while True:
            await asyncio.sleep(CATALOG_LOOK_SECONDS)  # first: nobody waits for advice at the start
            for name in list(self._catalog.current.connections):
                await self._advise_on(name)

    def _ready(self) -> list[set[str]]:
        """Who is looked at now: each that asked by itself, what is due so many at once."""
        connections, now = self._catalog.current.connections, time.time()
        due = {name for name, state in connections.items() if self._is_due(state, now)}
        woken = self._woken & connections.keys()
        self._woken = woken & self._looking  # looked at once more, after this time
        due |= self._saved & connections.keys()
        self._saved &= self._looking
        due -= self._looking | woken
        return [{name} for name in sorted(woken - self._looking)] + ([due] if due else [])

    async def _refresh(self, names: set[str]) -> None:
        try:
            await self._catalog.refresh(names, by="schedule")
        except GatewayError as error:  # the store, or a connection that is gone: look again later
            log.warning("scheduled refresh failed", error=error.message)
        finally:
            self._looking -= names
            if self._woken or self._saved:
                self._wake.set()

    def _is_due(self, state: ConnectionState, now: float) -> bool:
        if not is_active(state.settings):
            return False
        if state.status == "failing":
            return self._pauses.is_over(state.name, now)
        self._pauses.end(state.name)
        every = state.settings.refresh_seconds
        return bool(every) and now - self._catalog.refreshed_at.get(state.name, 0) >= every

    async def _advise_on(self, name: str) -> None:
        found = self._catalog.found(name)
        state = self._catalog.current.connections.get(name)
        if found is None or state is None or kind_of(state.settings) not in ADVISED_KINDS:
            return
        sha256 = found.definition.sha256
        if sha256 in self._advised:
            return
        try:
            known = await self._persistence.advice(sha256)
            if known is None:
                packed = await self._persistence.packed(name, found.definition.location)
                known = await self._advise(packed)
                await self._persistence.keep_advice(sha256, known)
        except GatewayError as error:
            log.warning("definition not validated", connection=name, error=error.message)
            known = ()
        self._advised.add(sha256)
        self._catalog.take_advice(sha256, known)


def _marks(files: Mapping[str, Path]) -> dict[str, Mark]:
    """How each file is now; one that is away, as between two renames of an editor, is left out."""
    found = {}
    for name, path in files.items():
        with suppress(OSError, ValueError):
            now = path.stat()
            found[name] = path, now.st_mtime_ns, now.st_size, now.st_ino
    return found


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
        wait = SETTLE_SECONDS if asked else 0.0
        return await self._looks.share(LISTING, self._list, wait=wait)

    async def close(self) -> None:
        """Ends a listing."""
        await self._looks.close()

    async def _list(self, since: float) -> float:
        catalog, azure = self._catalog, self._catalog.current.settings.azure
        if azure is None:
            self._tell(None)
            return since
        self._listed_at = time.time()
        try:
            raw = await self.directory.listing()
            listing = RawDefinition.of(listing_location(azure), raw)
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
            await asyncio.sleep(CATALOG_LOOK_SECONDS)
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
