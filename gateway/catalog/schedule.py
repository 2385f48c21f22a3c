"""The times at which connections are looked at again without a request.

As often as `refresh_seconds` says; soon, when an upstream says that its tools changed, when the
file of a definition was saved, or a lazy connection is seen for the first time; and after a failure
with growing pauses, so that a recovery is noticed. A connection that is slow to answer delays no
other one. A definition that is new also gets advice from a validator, in its own time: it never
holds anything up.

Azure's resource group is one more thing to look at, as often as `[azure]` asks, and after a failure
with the same growing pauses.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from gateway.azure.directory import LISTING
from gateway.catalog.catalog import Catalog
from gateway.catalog.discover import file_of
from gateway.errors import GatewayError
from gateway.limits import DOUBT_SECONDS, LONGEST_PAUSE_SECONDS, REST_SECONDS, SETTLE_SECONDS
from gateway.model import Problem
from gateway.store.catalog import StoredCatalog, load_validation, save_validation
from gateway.store.cluster import wait_until_set

log = structlog.get_logger("gateway.catalog")

ADVISED_KINDS = ("openapi", "arm")

Advise = Callable[[bytes], Awaitable[tuple[Problem, ...]]]
Mark = tuple[Path, int, int, int]  # a saved file: path, time, size, inode


@dataclass(eq=False)
class Schedule:
    """Asks the catalog to refresh each connection when its time has come."""

    catalog: Catalog
    stored: StoredCatalog
    ask_validator: Advise
    folder: Path  # the folder that relative paths of definitions start from

    def __post_init__(self) -> None:
        self._wake_names: set[str] = set()
        self._in_progress: set[str] = set()  # one look a name at a time
        self._wake = asyncio.Event()
        self._pauses = Pauses()

    def wake(self, name: str) -> None:
        """Asks for a refresh of one connection soon."""
        self._wake_names.add(name)
        self._wake.set()

    async def run(self) -> None:
        """Refreshes the connections that are due, for ever."""
        async with asyncio.TaskGroup() as looks:
            while True:
                await wait_until_set(self._wake, REST_SECONDS)
                for names in self._batches_due():
                    self._in_progress |= names
                    looks.create_task(self._refresh(names))

    async def watch_files(self) -> None:
        """Asks for a refresh of each connection whose definition's file was saved, for ever.

        Files are polled by their paths: that also sees files that are replaced by a rename, that
        are reached through links, or that lie on file systems without change notices.
        """
        before: Mapping[str, Mark] = {}
        woken_for: dict[str, Mark] = {}
        while True:
            await asyncio.sleep(SETTLE_SECONDS)  # a file still being written is left alone
            files = self._files()
            now = await asyncio.to_thread(_marks, files) if files else {}
            settled = {name: mark for name, mark in now.items() if before.get(name) == mark}
            for name in settled:
                if woken_for.get(name) != settled[name]:
                    self.wake(name)
            woken_for = {name: mark for name, mark in woken_for.items() if name in files} | settled
            before = now

    def _files(self) -> dict[str, Path]:
        return {
            name: self.folder / file
            for name, state in self.catalog.current.connections.items()
            if state.settings.is_active and (file := file_of(state.settings)) is not None
        }

    async def advise(self) -> None:
        """Asks the validator about definitions it has not seen, one after the other, for ever."""
        while True:
            await asyncio.sleep(DOUBT_SECONDS)  # first: a start has more urgent work
            for name in list(self.catalog.current.connections):
                await self._advise_on(name)

    def _batches_due(self) -> list[set[str]]:
        """The names to look at now: each woken one by itself, then all that are due at once."""
        connections = self.catalog.current.connections
        due = {
            state.name
            for state in connections.values()
            if state.settings.is_active
            and self._is_due(state.name, state.status == "failing", state.settings.refresh_seconds)
        }
        to_wake = self._wake_names & connections.keys() | self._group_if_due()
        self._wake_names = to_wake & self._in_progress  # looked at again after this look
        due -= self._in_progress | to_wake
        return [{name} for name in sorted(to_wake - self._in_progress)] + ([due] if due else [])

    async def _refresh(self, names: set[str]) -> None:
        try:
            if LISTING in names:
                await self.catalog.refresh_group(by="schedule")
            else:
                await self.catalog.refresh(names, by="schedule")
        except GatewayError as error:  # the store, or a connection that is gone: look again later
            log.warning("scheduled refresh failed", error=error.message)
        finally:
            self._in_progress -= names
            if self._wake_names:
                self._wake.set()

    def _group_if_due(self) -> set[str]:
        azure, failing = self.catalog.current.settings.azure, bool(self.catalog.group_problem)
        due = azure and self._is_due(LISTING, failing, azure.refresh_seconds)
        return {LISTING} if due else set()

    def _is_due(self, name: str, failing: bool, interval: float | None) -> bool:
        now = time.time()
        if failing:
            return self._pauses.is_over(name, now)
        self._pauses.end(name)
        return bool(interval and now - self.catalog.refreshed_at.get(name, 0) >= interval)

    async def _advise_on(self, name: str) -> None:
        state = self.catalog.current.connections.get(name)
        if state is None or state.built is None or state.settings.kind not in ADVISED_KINDS:
            return
        definition, db = state.built.definition, self.stored.db
        sha256 = definition.sha256
        if sha256 in self.catalog.advice:
            return
        try:
            found = await load_validation(db, sha256)
            if found is None:
                found = await self.ask_validator((await self.stored.whole(name, definition)).packed)
                await save_validation(db, sha256, found, time.time())
        except GatewayError as error:
            log.warning("definition not validated", connection=name, error=error.message)
            found = ()
        self.catalog.take_advice(sha256, found)


class Pauses:
    """Growing pauses between the tries of connections that keep failing."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}  # how long, and until when

    def is_over(self, name: str, now: float) -> bool:
        """Whether it is time for the next try of a failing connection."""
        pause, until = self._pauses.get(name, (DOUBT_SECONDS / 2, 0.0))
        if now < until:
            return False
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        self._pauses[name] = (pause, now + pause * random.uniform(0.8, 1.2))
        return until > 0  # the failure itself was the first try

    def end(self, name: str) -> None:
        """Ends the pauses: the next failure counts as a first one."""
        self._pauses.pop(name, None)


def _marks(files: Mapping[str, Path]) -> dict[str, Mark]:
    """Each file's mark; a missing file, as between two renames of an editor, is left out."""
    marks = {}
    for name, path in files.items():
        with suppress(OSError, ValueError):
            status = path.stat()
            marks[name] = path, status.st_mtime_ns, status.st_size, status.st_ino
    return marks
