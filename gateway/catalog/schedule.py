"""When connections are looked at again without anyone asking.

As often as `refresh_seconds` says; soon, when an upstream says that its tools changed, when the
file of a definition was saved, or a lazy connection is seen for the first time; and after a failure
with growing pauses, so that what comes back is noticed. One that takes long to answer keeps nobody
else waiting. A definition that is new also gets advice from a validator, in its own time: it never
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
from gateway.store.cluster import heard_within

log = structlog.get_logger("gateway.catalog")

ADVISED_KINDS = ("openapi", "arm")

Advise = Callable[[bytes], Awaitable[tuple[Problem, ...]]]
Mark = tuple[Path, int, int, int]  # a file as it was saved: where, when, how large, which one


@dataclass(eq=False)
class Schedule:
    """Looks at connections when it is time."""

    catalog: Catalog
    stored: StoredCatalog
    ask_validator: Advise
    folder: Path  # what paths of definitions count from

    def __post_init__(self) -> None:
        self._woken: set[str] = set()
        self._looking: set[str] = set()  # one look a name at a time
        self._wake = asyncio.Event()
        self._pauses = Pauses()

    def wake(self, name: str) -> None:
        """Has a connection looked at soon."""
        self._woken.add(name)
        self._wake.set()

    async def run(self) -> None:
        """Refreshes what is due, for ever."""
        async with asyncio.TaskGroup() as looks:
            while True:
                await heard_within(self._wake, REST_SECONDS)
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
            for name in settled:
                if taken.get(name) != settled[name]:
                    self.wake(name)
            taken = {name: mark for name, mark in taken.items() if name in files} | settled
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
            await asyncio.sleep(DOUBT_SECONDS)  # first: a gateway that starts has better to do
            for name in list(self.catalog.current.connections):
                await self._advise_on(name)

    def _ready(self) -> list[set[str]]:
        """Who is looked at now: each that asked by itself, what is due so many at once."""
        connections = self.catalog.current.connections
        due = {
            state.name
            for state in connections.values()
            if state.settings.is_active
            and self._is_due(state.name, state.status == "failing", state.settings.refresh_seconds)
        }
        woken = self._woken & connections.keys() | self._group_if_due()
        self._woken = woken & self._looking  # looked at once more, after this time
        due -= self._looking | woken
        return [{name} for name in sorted(woken - self._looking)] + ([due] if due else [])

    async def _refresh(self, names: set[str]) -> None:
        try:
            if LISTING in names:
                await self.catalog.refresh_group(by="schedule")
            else:
                await self.catalog.refresh(names, by="schedule")
        except GatewayError as error:  # the store, or a connection that is gone: look again later
            log.warning("scheduled refresh failed", error=error.message)
        finally:
            self._looking -= names
            if self._woken:
                self._wake.set()

    def _group_if_due(self) -> set[str]:
        azure, failing = self.catalog.current.settings.azure, bool(self.catalog.group_problem)
        due = azure and self._is_due(LISTING, failing, azure.refresh_seconds)
        return {LISTING} if due else set()

    def _is_due(self, name: str, failing: bool, every: float | None) -> bool:
        now = time.time()
        if failing:
            return self._pauses.is_over(name, now)
        self._pauses.end(name)
        return bool(every and now - self.catalog.refreshed_at.get(name, 0) >= every)

    async def _advise_on(self, name: str) -> None:
        state = self.catalog.current.connections.get(name)
        if state is None or state.found is None or state.settings.kind not in ADVISED_KINDS:
            return
        definition, db = state.found.definition, self.stored.db
        sha256 = definition.sha256
        if sha256 in self.catalog.advice:
            return
        try:
            known = await load_validation(db, sha256)
            if known is None:
                known = await self.ask_validator((await self.stored.whole(name, definition)).packed)
                await save_validation(db, sha256, known, time.time())
        except GatewayError as error:
            log.warning("definition not validated", connection=name, error=error.message)
            known = ()
        self.catalog.take_advice(sha256, known)


class Pauses:
    """Growing pauses between the tries of what keeps failing."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}  # how long, and until when

    def is_over(self, name: str, now: float) -> bool:
        """Whether it is time for the next try of what is failing."""
        pause, until = self._pauses.get(name, (DOUBT_SECONDS / 2, 0.0))
        if now < until:
            return False
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        self._pauses[name] = (pause, now + pause * random.uniform(0.8, 1.2))
        return until > 0  # the failure itself was the first try

    def end(self, name: str) -> None:
        """The next failure is a first one again."""
        self._pauses.pop(name, None)


def _marks(files: Mapping[str, Path]) -> dict[str, Mark]:
    """How each file is now; one that is away, as between two renames of an editor, is left out."""
    found = {}
    for name, path in files.items():
        with suppress(OSError, ValueError):
            now = path.stat()
            found[name] = path, now.st_mtime_ns, now.st_size, now.st_ino
    return found
