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
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import structlog

from gateway.azure.directory import LISTING, listing_location
from gateway.catalog.changes import (
    Adoption,
    Report,
    adopt,
    asks_other_credential,
    failed,
    report_of,
    served,
    with_credentials_of,
    with_last_good,
)
from gateway.catalog.connections import (
    present_in_azure,
    read_planned,
    read_put,
    refuse_configured,
    refuse_put,
    remove_from_azure,
    to_be_served,
)
from gateway.catalog.definitions import (
    Found,
    RawDefinition,
    is_active,
    is_lazy,
    is_local,
    kind_of,
    light,
    location_of,
    resting,
)
from gateway.catalog.discover import Discoverer, Looks, previewed
from gateway.catalog.repository import StoredCatalog, change_of, with_change
from gateway.catalog.snapshot import (
    ConnectionState,
    Snapshot,
    assemble,
    owner_in,
    same_content,
    with_tools,
)
from gateway.config.connection import Connection
from gateway.config.settings import Permissions, Settings
from gateway.errors import GatewayError, NotFound
from gateway.limits import CATALOG_LOOK_SECONDS, PARALLEL_REFRESHES, SETTLE_SECONDS
from gateway.model import Level, Problem
from gateway.store.catalog import Change

log = structlog.get_logger("gateway.catalog")


class Catalog:
    """Holds the current snapshot and is the only one to replace it."""

    def __init__(
        self,
        settings: Settings,
        discoverer: Discoverer,
        persistence: StoredCatalog,
        demo: Mapping[str, Connection] | None = None,
    ) -> None:
        self._discoverer = discoverer
        self._persistence = persistence
        self._demo = demo or {}
        self._states: dict[str, ConnectionState] = {}
        self._found: dict[str, Found] = {}
        self._looks: Looks[Report] = Looks()
        self._locks = self._looks.locks
        self._choices: Mapping[tuple[str, str], Level] = {}
        self._permissions: Permissions | None = None
        self._listeners: list[Callable[[], None]] = []
        self._synced = 0  # the store's revision up to which everything was taken over
        self._behind = asyncio.Event()
        self._taking = asyncio.Lock()
        self._advice: dict[str, tuple[Problem, ...]] = {}
        self.group_problem: Problem | None = None  # why Azure's group could not be listed
        self.refreshed_at: dict[str, float] = {}
        self.current = Snapshot(0, settings)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls back after each swap; gives the way to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def load(self) -> None:
        """The first snapshot, from what is configured and stored: no network."""
        await self._take(self.current.settings)

    def unread(self) -> dict[str, bool]:
        """The connections nothing is known of yet; whether each is read without a network."""
        return {
            name: is_local(state.settings)
            for name, state in self._states.items()
            if state.status == "pending" and state.build is None and not is_lazy(state.settings)
        }

    async def apply(self, settings: Settings) -> list[str]:
        """New settings, live; gives the connections that must now be discovered."""
        before = {name: state.settings for name, state in self._states.items()}
        async with self._taking:
            await self._take(settings)
        return [
            name
            for name, state in self._states.items()
            if (state.status == "pending" or before.get(name) != state.settings)
            and is_active(state.settings)
            and not is_lazy(state.settings)
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
                    await self._take(self.current.settings)
            except GatewayError as error:
                log.warning("changes of other processes not read", error=error.message)
                await asyncio.sleep(CATALOG_LOOK_SECONDS)
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
        asked, old = read_put(name, values, within), self._states.get(name)
        refuse_put(self.current.settings, name, asked, old, within)
        present = present_in_azure(self._discoverer.azure, name, asked, old)
        async with self._locks[name], present as settings:
            old = self._states.get(name)
            found = await self._discover_new(name, settings)
            base = ConnectionState(name, settings, "stored", status=resting(settings))
            new = await asyncio.to_thread(adopt, with_last_good(base, old), found, time.time())
            revision = await self._persistence.put(name, settings, new, expected, by)
            self._install(replace(new.state, revision=revision), new)
            self._swap(revision)
        log.info("connection put", connection=name, by=by, tools=len(new.state.tools))
        exposed = {tool.name for tool in self.current.connections[name].tools}
        return report_of(new, self.current.revision, exposed)

    async def delete(self, name: str, *, by: str, expected: int | None = None) -> int:
        """Removes a connection that was put; gives the new revision."""
        if name not in self._states:
            raise NotFound("connection_invalid", f"there is no connection {name!r}")
        refuse_configured(self._states[name])
        async with self._locks[name]:
            if expected in (None, self._states[name].revision):
                await remove_from_azure(self._discoverer.azure, self._states[name].settings)
            revision = await self._persistence.delete(name, expected)
            self._forget(name)
            self._swap(revision)
        log.info("connection deleted", connection=name, by=by)
        return self.current.revision

    async def choose(self, principal: str, connection: str, access: Level) -> None:
        """Keeps a principal's own choice of access; it holds from the next request on."""
        revision = await self._persistence.choose(principal, connection, access)
        self._choices = {**self._choices, (principal, connection): access}
        self._swap(revision)

    async def put_permissions(self, permissions: Permissions | None, *, by: str) -> None:
        """Puts permissions in force over config.toml's; None gives these their force back."""
        revision = await self._persistence.put_permissions(permissions, by)
        self._permissions = permissions
        self._swap(revision)
        log.info("permissions put" if permissions else "permissions deleted", by=by)

    async def decide_change(
        self, id: str, status: Literal["accepted", "rejected"], *, by: str
    ) -> Change:
        """Decides on a change that is held; an accepted one is served from here on."""
        change = await self._persistence.change(id)
        name = change.connection
        async with self._locks[name]:
            state, found = self._states.get(name), self._found.get(name)
            if state is None or found is None:
                raise NotFound("connection_invalid", f"there is no connection {name!r}")
            new = await self._accepted(state, found, change) if status == "accepted" else None
            decided, revision = await self._persistence.decide(change, status, by, found, new)
            if new is not None:
                self._found[name] = new
                self._states[name] = with_tools(replace(state, build=new.build), new.build.tools)
            self._swap(revision)
        log.info("change decided", connection=name, tool=change.tool, status=status, by=by)
        return decided

    async def _accepted(self, state: ConnectionState, found: Found, change: Change) -> Found:
        """The connection's tools with this one as the definition has it now."""
        new = with_change(found, change, time.time())
        if not asks_other_credential(change_of(change)):
            return new
        # How calls prove themselves is said once for the whole definition: read it from there.
        fresh = await self._rebuild(state, found, self.current.settings)
        return replace(new, build=with_credentials_of(new.build, fresh.build))

    async def preview(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """What a put would expose, with nothing stored."""
        settings = read_planned(self.current.settings, name, values)
        found = await self._discover_new(name, settings, planned=True)
        owner = owner_in(self.current, name, settings)
        return previewed(name, kind_of(settings), found, owner=owner)

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
        since = time.monotonic() if since is None else since
        gate, wait = asyncio.Semaphore(PARALLEL_REFRESHES), SETTLE_SECONDS if asked else 0.0

        async def one(name: str) -> Report:
            async with gate:
                look = partial(self._refresh_one, name, by)
                report = await self._looks.share(name, look, since=since, wait=wait)
            told(name)
            return report

        return list(await asyncio.gather(*(one(name) for name in sorted(set(names)))))

    async def close(self) -> None:
        """Ends every refresh."""
        await self._looks.close()

    def mark_failing(self, name: str, error: GatewayError) -> bool:
        """A server can't be reached now; whether that is news."""
        state = self._states.get(name)
        if state is None or not is_active(state.settings) or state.status == "failing":
            return False
        self._failing(name, state, error)
        return True

    def found(self, name: str) -> Found | None:
        """What was last found for a connection, without the definition's bytes."""
        return self._found.get(name)

    def take_advice(self, sha256: str, problems: tuple[Problem, ...]) -> None:
        """Shows what a validator said of a definition beside the connection's own problems."""
        if problems:
            self._advice[sha256] = problems
            self._swap()

    def group(self) -> list[str]:
        """The connections that come from Azure's resource group."""
        states = self.current.connections.values()
        return [state.name for state in states if state.origin == "azure"]

    async def list_group(self, *, asked: bool = False) -> None:
        """Lists Azure's resource group, once for all who ask together, and follows it.

        What was listed is in the store, so that the next start and the other replicas know it
        without asking Azure. A listing that fails leaves what was found before.
        """
        await self._looks.share(LISTING, self._list_group, wait=SETTLE_SECONDS if asked else 0.0)

    async def refresh_group(self, *, by: str) -> None:
        """Lists the resource group and looks at everything that is in it."""
        since = time.monotonic()
        await self.list_group()
        await self.refresh(self.group(), by=by, since=since)

    async def _list_group(self, since: float) -> Report:
        azure, self.refreshed_at[LISTING] = self.current.settings.azure, time.time()
        try:
            if azure is not None:
                raw = await self._discoverer.azure.listing()
                listing = RawDefinition.of(listing_location(azure), raw)
                await self._persistence.keep_listing(listing, time.time())
                # Also where nothing is new: a connection that was put over Azure's may be gone.
                await self.apply(self.current.settings)
        except GatewayError as error:
            problem = Problem(
                "error", "azure", f"the resource group can't be listed: {error.sentence}"
            )
            if problem != self.group_problem:  # the same is told once
                log.warning("azure not listed", code=error.code, error=error.message)
            self.group_problem = problem
        else:
            self.group_problem = None
        self._swap()
        return Report(LISTING, "failing" if self.group_problem else "connected")

    async def _refresh_one(self, name: str, by: str, since: float) -> Report:
        state = self._states.get(name)
        if state is None:
            raise NotFound("connection_invalid", f"there is no connection {name!r}")
        if not is_active(state.settings):
            return Report(name, "disabled")
        known = self._found.get(name)
        limits = self.current.settings.limits
        try:
            look = self._discoverer.discover(name, state.settings, limits, known, since=since)
            found = await look
            if known is not None and found.build is known.build:
                return self._as_before(state, found)
            if state.origin != "demo":  # which this process serves to itself
                await self._discoverer.check_addresses(state.settings, found.build)
            new = await asyncio.to_thread(adopt, state, found, time.time())
        except GatewayError as error:
            return self._failing(name, state, error)
        self.refreshed_at[name] = time.time()
        revision = await self._persistence.save(name, new, by)
        now_served = self._states.get(name)
        if now_served is None or now_served.settings != state.settings:
            return Report(name, "superseded")
        self._install(replace(new.state, revision=now_served.revision), new)
        self._swap(revision)
        return report_of(new, self.current.revision)

    def _as_before(self, state: ConnectionState, found: Found) -> Report:
        """Nothing to compare or keep: what is served, and what is held, stays as it is."""
        self.refreshed_at[state.name] = time.time()
        status, problems = found.build.status, found.build.problems
        if self._states.get(state.name) is state:
            self._found[state.name] = light(found)  # with the validators of the last answer
            if state.status != status:
                self._states[state.name] = replace(state, status=status, problems=problems)
                self._swap()
        return Report(state.name, status, revision=self.current.revision)

    def _failing(self, name: str, state: ConnectionState, error: GatewayError) -> Report:
        now = failed(state, error)
        if (now.status, now.problems) != (state.status, state.problems):  # the same is told once
            log.warning("refresh failed", connection=name, code=error.code, error=error.message)
        if self._states.get(name) is state:
            self._states[name] = now
            self._swap()
        return Report(name, "failing", error=error.message)

    async def _discover_new(self, name: str, settings: Connection, planned: bool = False) -> Found:
        limits = self.current.settings.limits
        found = await self._discoverer.discover(name, settings, limits, None, planned)
        await self._discoverer.check_addresses(settings, found.build)
        return found

    async def _take(self, settings: Settings) -> None:
        """Makes the states match what is configured and stored, then swaps once."""
        seen, chosen, allowed = dict(self._states), self._choices, self._permissions
        stored = await self._persistence.load()
        self._synced = max(self._synced, stored.revision)
        states: dict[str, ConnectionState] = {}
        got: dict[str, Found] = {}
        wanted = to_be_served(stored.connections, stored.azure, settings, self._demo)
        for name, (connection, origin, revision) in wanted.items():
            base = ConnectionState(name, connection, origin, revision, resting(connection))
            states[name] = await self._kept_or_cached(base, stored.found.get(name), settings, got)
        # What was put, refreshed or deleted while we waited is newer than what we read.
        newer = {name: s for name, s in self._states.items() if seen.get(name) is not s}
        states = {n: s for n, s in states.items() if n in self._states or n not in seen} | newer
        for name in set(self._states) - set(states):
            self._forget(name)
        self._states = states
        self._found |= {n: found for n, found in got.items() if n in states and n not in newer}
        untouched = self._choices is chosen and self._permissions is allowed
        if untouched:  # else one was chosen meanwhile, which must not be taken back
            self._choices, self._permissions = stored.choices, stored.permissions
        self._swap(stored.revision, settings)
        if newer or not untouched:
            self._behind.set()  # what others changed of these was passed over

    async def _kept_or_cached(
        self, base: ConnectionState, cached: Found | None, settings: Settings, got: dict[str, Found]
    ) -> ConnectionState:
        """The connection as it runs where nothing of it changed, else from what is cached."""
        old = self._states.get(base.name)
        if old is not None and self._is_current(old, base, cached, settings):
            return old
        base = with_last_good(base, old)
        if cached is None or not is_active(base.settings):
            return base
        if cached.definition.location != location_of(base.settings):
            return base
        try:
            found = await self._rebuilt(base, cached, settings)
        except GatewayError as error:
            log.warning("cached definition not usable", connection=base.name, error=error.message)
            return base
        got[base.name], build = light(found), found.build
        state = replace(base, build=build, status=build.status, problems=build.problems)
        return with_tools(state, build.tools)

    def _is_current(
        self, old: ConnectionState, base: ConnectionState, cached: Found | None, settings: Settings
    ) -> bool:
        known = self._found.get(base.name)
        same_build = cached is None or (known is not None and known.at == cached.at)
        return (
            same_build
            and settings.limits == self.current.settings.limits
            and (old.settings, old.origin, old.revision)
            == (base.settings, base.origin, base.revision)
        )

    async def _rebuilt(self, base: ConnectionState, cached: Found, settings: Settings) -> Found:
        key = self._discoverer.key_of(base.name, base.settings, settings.limits, cached.definition)
        if key == cached.build_key:
            return cached
        found = await self._rebuild(base, cached, settings)
        # Other settings don't accept what is held: the same definition still waits for an admin.
        undecided = await self._persistence.undecided(base.name, cached.build.tools)
        tools = tuple(served(found.build.tools, undecided))
        return replace(found, build=replace(found.build, tools=tools), at=cached.at)

    async def _rebuild(self, state: ConnectionState, cached: Found, settings: Settings) -> Found:
        """The tools of a definition that is in the store, made anew."""
        packed = await self._persistence.packed(state.name, cached.definition.location)
        definition = replace(cached.definition, packed=packed)
        return await self._discoverer.rebuild(
            state.name, state.settings, settings.limits, definition, None
        )

    def _forget(self, name: str) -> None:
        self._states.pop(name, None)
        self._found.pop(name, None)
        self.refreshed_at.pop(name, None)

    def _install(self, state: ConnectionState, new: Adoption) -> None:
        self._states[state.name] = state
        self._found[state.name] = light(new.found)
        self.refreshed_at[state.name] = time.time()

    def _advised(self, state: ConnectionState) -> ConnectionState:
        found = self._found.get(state.name)
        advice = self._advice.get(found.definition.sha256, ()) if found else ()
        return replace(state, problems=(*state.problems, *advice)) if advice else state

    def _swap(self, revision: int = 0, settings: Settings | None = None) -> None:
        """Replaces the current snapshot, unless the new one says nothing new."""
        snapshot = assemble(
            max(self.current.revision + 1, revision),
            settings or self.current.settings,
            [self._advised(state) for state in self._states.values()],
            choices=self._choices,
            stored_permissions=self._permissions,
            problems=(self.group_problem,) if self.group_problem else (),
        )
        if not same_content(snapshot, self.current):
            self.current = snapshot
            for listener in list(self._listeners):
                listener()
