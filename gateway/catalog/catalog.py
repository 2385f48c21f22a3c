"""The one writer of the current snapshot.

Discovery waits for networks and worker processes; what follows it, building the snapshot and
assigning it, does not wait at all, so that on one event loop a swap needs no lock. Work on one
connection is one after another (a lock a name); different connections don't wait for each other. An
answer for a connection that was replaced meanwhile is dropped. A source that fails keeps its last
good tools and gets a problem; an equal snapshot is not swapped and nobody is told.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from gateway.azure.directory import LISTING, listing_location
from gateway.catalog.changes import (
    Adoption,
    Report,
    adopt,
    asks_other_credential,
    by_operation,
    failed,
    is_same,
    replaced,
    report_of,
    served,
    with_credentials_of,
    with_found,
    with_last_good,
)
from gateway.catalog.connections import (
    completed,
    present_in_azure,
    refuse_configured,
    refuse_foreign,
    refuse_unsafe,
    remove_from_azure,
    to_be_served,
)
from gateway.catalog.discover import Discoverer, Look, is_local, location_of
from gateway.catalog.rights import Rights, untrusted
from gateway.catalog.snapshot import (
    ConnectionState,
    Snapshot,
    assemble,
    at_rest,
    owner_in,
    previewed,
    same_content,
    with_tools,
)
from gateway.catalog.successors import FormerNames, served_names
from gateway.config.connection import Connection, without_secrets
from gateway.config.reading import parse_connection
from gateway.config.settings import Settings
from gateway.errors import GatewayError, NotFound
from gateway.limits import PARALLEL_REFRESHES, REST_SECONDS, SETTLE_SECONDS
from gateway.model import Build, Found, Problem, RawDefinition
from gateway.store import catalog as store
from gateway.store.catalog import StoredCatalog
from gateway.store.rights import load_rights
from gateway.store.tables import Change, Decided

log = structlog.get_logger("gateway.catalog")


class Catalog:
    """Holds the current snapshot and is the only one to replace it."""

    def __init__(
        self,
        settings: Settings,
        discoverer: Discoverer,
        stored: StoredCatalog,
        demo: Mapping[str, Connection] | None = None,
    ) -> None:
        self._discoverer = discoverer
        self._stored = stored
        self._demo = demo or {}
        self._states: dict[str, ConnectionState] = {}
        self._listing: RawDefinition | None = None  # of Azure's resource group
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asked: dict[str, float] = {}  # by name, when a look was last asked for
        self._looked: dict[str, tuple[float, Report]] = {}  # and what the last one found
        self.rights = Rights(stored.db, settings, self._swap)
        self._former = FormerNames(stored)
        self._listeners: list[Callable[[], None]] = []
        self._synced = 0  # the store's revision up to which everything was taken over
        self._behind = asyncio.Event()
        self._taking = asyncio.Lock()
        self.advice: dict[str, tuple[Problem, ...]] = {}  # by a definition's sha256
        self.group_problem: Problem | None = None  # why Azure's group could not be listed
        self.refreshed_at: dict[str, float] = {}
        self.current = Snapshot(0, settings)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls back after each swap; gives the way to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def unread(self) -> dict[str, bool]:
        """The connections nothing is known of yet; whether each is read without a network."""
        return {
            name: is_local(state.settings)
            for name, state in self._states.items()
            if state.status == "pending" and state.found is None and not state.settings.is_lazy
        }

    async def apply(self, settings: Settings) -> list[str]:
        """Settings and what is stored, live; gives the connections that must now be discovered."""
        before = {name: state.settings for name, state in self._states.items()}
        async with self._taking:
            await self._take(settings)
        return [
            name
            for name, state in self._states.items()
            if (state.status == "pending" or before.get(name) != state.settings)
            and state.settings.is_active
            and not state.settings.is_lazy
        ]

    def hear(self, revision: str) -> None:
        """Has what another process put into the store taken over soon; after a break, all of it."""
        if not revision or int(revision) > self._synced:
            self._behind.set()

    async def follow(self) -> None:
        """Takes over what other processes put into the store, for ever."""
        while True:
            await self._behind.wait()
            self._behind.clear()
            try:
                async with self._taking:
                    await self._take(self.rights.configured)
            except GatewayError as error:
                log.warning("changes of other processes not read", error=error.message)
                await asyncio.sleep(REST_SECONDS)
                self._behind.set()

    async def put(
        self,
        name: str,
        values: Mapping[str, Any],
        *,
        by: str,
        within: str | None = None,
        expected: int | None = None,
    ) -> Report:
        """Adds or replaces a connection; nothing changes unless its definition can be read."""
        old = self._states.get(name)
        asked = parse_connection(name, values := completed(values, old, within))
        refuse_foreign(within, asked, old)
        refuse_unsafe(self.current.settings, name, asked)
        refuse_configured(old, asked)
        present = present_in_azure(self._discoverer.azure, name, asked, old)
        async with self._locks[name], present as settings:
            new = await self._discover_new(name, settings, by)
            made = settings.model_dump(include={"resource_id", "created_here"}, exclude_unset=True)
            revision = await self._save(new, by, put={**values, **made}, expected=expected)
            self._install(replace(new.state, revision=revision), revision)
        log.info("connection put", connection=name, by=by, tools=len(new.state.tools))
        exposed = {tool.name for tool in self.current.connections[name].tools}
        return report_of(new, self.current.revision, exposed)

    async def delete(self, name: str, *, by: str, expected: int | None = None) -> int:
        """Removes a connection that was put; gives the new revision."""
        async with self._locks[name]:
            state = self._state(name)
            refuse_configured(state)
            if expected in (None, state.revision):
                await remove_from_azure(self._discoverer.azure, state.settings)
            revision = await self._stored.delete(name, expected)
            self._states.pop(name, None)  # unless the store's word of it came first
            self._former.drop(name)
            self.refreshed_at.pop(name, None)
            self._swap(revision)
        log.info("connection deleted", connection=name, by=by)
        return self.current.revision

    async def decide_change(self, id: str, status: Decided, *, by: str) -> Change:
        """Decides on a change that is held; an accepted one is served from here on."""
        change = await store.get_change(self._stored.db, id)
        if change is None:
            raise NotFound("invalid_arguments", "there is no such change")
        name = change.connection
        async with self._locks[name]:
            state = self._state(name)
            if (old := state.found) is None:
                raise NotFound("connection_invalid", f"the connection {name!r} is switched off")
            new = await self._accepted(state, old, change) if status == "accepted" else None
            decided, revision = await self._stored.decide(change, status, by, old, new)
            if new is not None:
                self._states[name] = with_tools(replace(state, found=new), new.build.tools)
            self._swap(revision)
        log.info("change decided", connection=name, tool=change.tool, status=status, by=by)
        return decided

    async def _accepted(self, state: ConnectionState, found: Found, change: Change) -> Found:
        """The connection's tools with this one as the definition has it now."""
        tools = replaced(found.build.tools, {change.operation: change.after})
        new = replace(found, build=replace(found.build, tools=tools), at=time.time())
        if not asks_other_credential(change):
            return new
        # How calls prove themselves is said once for the whole definition: read it from there.
        fresh = await self._rebuild(self._look(state.name, state.settings), found)
        return replace(new, build=with_credentials_of(new.build, fresh.build))

    async def preview(
        self, name: str, values: Mapping[str, Any], within: str | None = None
    ) -> tuple[dict[str, Any], Adoption]:
        """What a put would expose and change; nothing is stored, nor tried if it may not be put."""
        now, old = self.current, self._states.get(name)
        asked = parse_connection(name, completed(values, old, within))
        refuse_foreign(within, asked, old)
        refuse_unsafe(now.settings, name, asked)
        new = await self._discover_new(name, asked, planned=True)
        return previewed(name, asked.kind, new.found, owner=owner_in(now, name, asked)), new

    async def refresh(
        self,
        names: Collection[str],
        *,
        by: str,
        told: Callable[[str], None] = lambda name: None,
        asked: bool = False,
        since: float | None = None,
    ) -> list[Report]:
        """Looks again at these connections; each one's outcome, in order of names.

        `told` is called with the name of each that has been looked at. `asked`: by somebody, who
        may be one of many that ask just now; they share one look. What was fetched for several
        connections counts if it was `since` then, or since now.
        """
        since = await self._ask(names, asked, since)
        gate = asyncio.Semaphore(PARALLEL_REFRESHES)

        async def one(name: str) -> Report:
            async with gate:
                report = await self._share(name, partial(self._refresh_one, name, by), since)
            told(name)
            return report

        return list(await asyncio.gather(*(one(name) for name in sorted(set(names)))))

    async def _ask(self, names: Iterable[str], together: bool, since: float | None = None) -> float:
        """Notes that a look is asked for, and gives others time who ask together with us."""
        since = time.monotonic() if since is None else since
        for name in names:
            self._asked[name] = max(since, self._asked.get(name, since))
        await asyncio.sleep(SETTLE_SECONDS if together else 0)
        return since

    async def _share(
        self, name: str, look: Callable[[float], Awaitable[Report]], since: float
    ) -> Report:
        """What a look finds that goes by nothing older than `since`.

        Those who ask for the same name before a look begins share that one. A look that has begun
        may have seen what was there before they asked, so those who come later share the next.
        """
        async with self._locks[name]:
            seen, report = self._looked.get(name, (since, None))
            if report is None or seen < since:
                seen = self._asked[name]
                report = await look(seen)
                self._looked[name] = seen, report
            return report

    def mark_failing(self, name: str, error: GatewayError) -> bool:
        """A server can't be reached now; whether that is news."""
        state = self._states.get(name)
        if state is None or not state.settings.is_active or state.status == "failing":
            return False
        self._failing(name, state, error)
        return True

    def take_advice(self, sha256: str, problems: tuple[Problem, ...]) -> None:
        """Shows what a validator said of a definition beside the connection's own problems."""
        self.advice[sha256] = problems
        if problems:
            self._swap()

    def group(self) -> list[str]:
        """The connections that come from Azure's resource group."""
        return [name for name, state in self._states.items() if state.origin == "azure"]

    async def list_group(self, *, asked: bool = False) -> None:
        """Lists Azure's resource group, once for all who ask together, and follows it.

        What was listed is in the store, so that the next start and the other replicas know it
        without asking Azure. A listing that fails leaves what was found before.
        """
        since = await self._ask([LISTING], asked)
        await self._share(LISTING, self._list_group, since)

    async def refresh_group(self, *, by: str) -> None:
        """Lists the resource group and looks at everything that is in it."""
        since = time.monotonic()
        await self.list_group()
        if self.group_problem is None:  # else its connections are tried again one by one
            await self.refresh(self.group(), by=by, since=since)

    async def _list_group(self, since: float) -> Report:
        azure, self.refreshed_at[LISTING] = self.current.settings.azure, time.time()
        try:
            if azure is not None:
                raw = await self._discoverer.azure.listing()
                listing = RawDefinition.of(listing_location(azure), raw)
                if self._listing is None or not self._listing.is_same(listing):
                    found = Found(Build("arm", "", ""), listing, at=time.time())
                    await self._stored.keep(LISTING, found)
                # Also where nothing is new: a connection that was put over Azure's may be gone.
                await self.apply(self.rights.configured)
        except GatewayError as error:
            words = f"the resource group can't be listed: {error.sentence}"
            problem = Problem("error", "azure", words)
            if problem != self.group_problem:  # the same is told once
                log.warning("azure not listed", code=error.code, error=error.message)
            self.group_problem = problem
        else:
            self.group_problem = None
        self._swap()
        return Report(LISTING, "failing" if self.group_problem else "connected")

    async def _refresh_one(self, name: str, by: str, since: float) -> Report:
        state = self._state(name)
        if not state.settings.is_active:
            return Report(name, "disabled")
        try:
            look = self._look(name, state.settings, known=state.found, since=since)
            found = await self._discoverer.discover(look)
            if state.found is not None and found.build is state.found.build:
                return self._as_before(state, found)
            if state.origin != "demo":  # which this process serves to itself
                await self._discoverer.check_addresses(state.settings, found.build)
            new = await asyncio.to_thread(adopt, state, found, time.time(), by)
        except GatewayError as error:
            return self._failing(name, state, error)
        revision = await self._save(new, by)
        now_served = self._states.get(name)
        if now_served is None or now_served.settings != state.settings:
            return Report(name, "superseded")
        self._install(replace(new.state, revision=now_served.revision), revision)
        return report_of(new, self.current.revision)

    def _state(self, name: str) -> ConnectionState:
        if name not in self._states:
            raise NotFound("connection_invalid", f"there is no connection {name!r}")
        return self._states[name]

    def _as_before(self, state: ConnectionState, found: Found) -> Report:
        """Nothing to compare or keep: what is served, and what is held, stays as it is."""
        self.refreshed_at[state.name] = time.time()
        build = found.build
        if self._states.get(state.name) is state:
            if found is not state.found:  # it has the validators of the last answer
                self._states[state.name] = state = replace(state, found=found.light())
            if state.status != build.status:
                self._states[state.name] = replace(
                    state, status=build.status, problems=build.problems
                )
                self._swap()
        return Report(state.name, build.status, revision=self.current.revision)

    def _failing(self, name: str, state: ConnectionState, error: GatewayError) -> Report:
        error.message = without_secrets(error.message, state.settings)
        now = failed(state, error)
        if (now.status, now.problems) != (state.status, state.problems):  # the same is told once
            log.warning("refresh failed", connection=name, code=error.code, error=error.message)
        if self._states.get(name) is state:
            self._states[name] = now
            self._swap()
        return Report(name, "failing", error.message)

    async def _discover_new(self, name: str, new: Connection, by: str = "", **how: Any) -> Adoption:
        try:
            found = await self._discoverer.discover(self._look(name, new, **how))
        except GatewayError as error:
            error.message = without_secrets(error.message, new)
            raise
        await self._discoverer.check_addresses(new, found.build)
        base = with_last_good(at_rest(name, new, "stored"), self._states.get(name))
        return await asyncio.to_thread(adopt, base, found, time.time(), by)

    def _look(self, name: str, settings: Connection, **more: Any) -> Look:
        served = self._states[name].build if name in self._states else None
        return Look(name, settings, self.current.settings.limits, served=served, **more)

    async def _take(self, settings: Settings) -> None:
        """Makes the states match what is configured and stored, then swaps once."""
        seen, held, former = dict(self._states), self.rights.held, self._former.known
        stored = await self._stored.load({n: s.found for n, s in seen.items() if s.found})
        rows = await load_rights(self._stored.db)
        self._synced = max(self._synced, stored.revision)
        self._former.take(stored.former, former)
        listed = stored.found.get(LISTING)
        listing = await self._stored.whole(LISTING, listed.definition) if listed else None
        states = {
            name: await self._kept_or_cached(base, stored.found.get(name), settings)
            for name, base in to_be_served(stored, settings, self._demo, listing).items()
        }
        # What was put, refreshed or deleted while we waited is newer than what we read.
        newer = {name: s for name, s in self._states.items() if seen.get(name) is not s}
        states = {n: s for n, s in states.items() if n in self._states or n not in seen} | newer
        for name in set(self._states) - set(states):
            self.refreshed_at.pop(name, None)
        self._states, self._listing = states, listing
        untouched = self.rights.take(stored, rows, held)  # else what was put meanwhile is newer
        self._swap(stored.revision, settings)
        if newer or not untouched:
            self._behind.set()  # what others changed of these was passed over

    async def _kept_or_cached(
        self, base: ConnectionState, cached: Found | None, settings: Settings
    ) -> ConnectionState:
        """The connection as it runs where nothing of it changed, else from what is cached."""
        old = self._states.get(base.name)
        same_limits = settings.limits == self.current.settings.limits
        if old is not None and same_limits and is_same(old, base, cached):
            return old
        base = with_last_good(base, old)
        place = location_of(base.settings) if base.settings.is_active else None
        if cached is None or cached.definition.location != place:
            return base
        try:
            return with_found(base, await self._rebuilt(base, cached, settings))
        except GatewayError as error:
            log.warning("cached definition not usable", connection=base.name, error=error.message)
            return base

    async def _rebuilt(self, base: ConnectionState, cached: Found, settings: Settings) -> Found:
        look = Look(base.name, base.settings, settings.limits, served=cached.build)
        if look.key(cached.definition) == cached.build_key:
            return cached
        found = await self._rebuild(look, cached)
        await self._former.compare(self.current, base.name, base.found or cached, found)
        # Other settings don't accept what is held: the same definition still waits for an admin.
        now = by_operation(cached.build.tools)
        undecided = await self._stored.undecided(base.name)
        kept = [change for change in undecided if now.get(change.operation) == change.before]
        tools = served(found.build.tools, kept)
        return replace(found, build=replace(found.build, tools=tools), at=cached.at)

    async def _rebuild(self, look: Look, cached: Found) -> Found:
        """The tools of a definition that is in the store, made anew."""
        definition = await self._stored.whole(look.name, cached.definition)
        return await self._discoverer.rebuild(look, definition)

    async def _save(self, new: Adoption, by: str, **put: Any) -> int:
        renamed = served_names(self.current, new.renamed)
        found = new.state.name, new.found, () if new.first else new.changes, renamed
        revision = await self._stored.save(*found, by=by, **put)
        self._former.add(renamed)
        return revision

    def _install(self, state: ConnectionState, revision: int) -> None:
        self._states[state.name] = state
        self.refreshed_at[state.name] = time.time()
        self._swap(revision)

    def _advised(self, state: ConnectionState) -> ConnectionState:
        advice = self.advice.get(state.found.definition.sha256) if state.found else ()
        return replace(state, problems=(*state.problems, *advice)) if advice else state

    def _swap(self, revision: int = 0, settings: Settings | None = None) -> None:
        """Replaces the current snapshot, unless the new one says nothing new."""
        self.rights.configured = settings or self.rights.configured
        put = self.rights.together(untrusted(self._states))
        snapshot = assemble(
            max(self.current.revision + 1, revision),
            put.settings,
            [self._advised(state) for state in self._states.values()],
            choices=self.rights.held.choices,
            stored_permissions=self.rights.held.permissions,
            put=put,
            problems=(self.group_problem,) if self.group_problem else (),
            former=self._former.known.values(),
        )
        self._former.let_go(snapshot)
        if not same_content(snapshot, self.current):
            self.current = snapshot
            for listener in list(self._listeners):
                listener()
