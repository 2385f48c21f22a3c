"""The one writer of the current snapshot.

Discovering, comparing and storing wait for networks, processes and threads. Then `_swap` assembles
the snapshot and assigns it without waiting at all, so that on one event loop it needs no lock. Only
one attempt at a time reads a given connection; different connections don't wait for each other.
What an attempt found for a connection that was replaced meanwhile is dropped. A source that fails
keeps its last good tools and gets a problem; an equal snapshot is not swapped and no listener is
called.
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
    is_same,
    replace_tools,
    report_of,
    tools_to_serve,
    with_built,
    with_credentials_of,
    with_failure,
    with_last_good,
)
from gateway.catalog.connections import (
    complete_values,
    connection_states,
    ensure_in_azure,
    refuse_configured,
    refuse_foreign,
    refuse_unsafe,
    remove_from_azure,
)
from gateway.catalog.discover import Discoverer, Look, file_of, is_local, location_of
from gateway.catalog.former_names import FormerNames, served_names
from gateway.catalog.rights import Rights, untrusted_in
from gateway.catalog.snapshot import (
    ConnectionState,
    Snapshot,
    assemble,
    holder_finder,
    preview_of,
    unread_state,
    with_tools,
)
from gateway.config.connection import Connection, without_secrets
from gateway.config.file import parse_connection
from gateway.config.settings import Settings
from gateway.errors import GatewayError, NotFound
from gateway.limits import PARALLEL_REFRESHES, REST_SECONDS, SETTLE_SECONDS
from gateway.model import Build, BuiltDefinition, Problem, RawDefinition
from gateway.store.catalog import StoredCatalog
from gateway.store.rights import load_rights
from gateway.store.tables import Change, ChangeDecision

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
        self._asked_at: dict[str, float] = {}  # by name: when a look was last asked for
        self._last_looks: dict[str, tuple[float, Report]] = {}  # the last look's time and report
        self.rights = Rights(stored.db, settings, self._swap)
        self._former_names = FormerNames(stored)
        self._listeners: list[Callable[[], None]] = []
        self._synced_revision = 0  # the store's revision that was taken over last
        self._store_changed = asyncio.Event()
        self._sync_lock = asyncio.Lock()
        self.advice: dict[str, tuple[Problem, ...]] = {}  # by a definition's sha256
        self.group_problem: Problem | None = None  # why Azure's group could not be listed
        self.refreshed_at: dict[str, float] = {}
        self.current = Snapshot(0, settings)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls the listener after each swap."""
        self._listeners.append(listener)

    def unread(self) -> dict[str, bool]:
        """The connections not discovered yet, and whether each is read without a network."""
        return {
            name: is_local(state.settings)
            for name, state in self._states.items()
            if state.status == "pending" and state.built is None and not state.settings.is_lazy
        }

    async def apply(self, settings: Settings) -> list[str]:
        """Puts settings and stored state in force; returns the connections to discover now."""
        before = {name: state.settings for name, state in self._states.items()}
        async with self._sync_lock:
            await self._sync_with_store(settings)
        return [
            name
            for name, state in self._states.items()
            if (state.status == "pending" or before.get(name) != state.settings)
            and state.settings.is_active
            and not state.settings.is_lazy
        ]

    def hear(self, revision: str) -> None:
        """Has `follow` read the store, unless this revision is known; "" stands for a break."""
        if not revision or int(revision) > self._synced_revision:
            self._store_changed.set()

    async def follow(self) -> None:
        """Takes over the changes that other processes store, for ever."""
        while True:
            await self._store_changed.wait()
            self._store_changed.clear()
            try:
                async with self._sync_lock:
                    await self._sync_with_store(self.rights.configured)
            except GatewayError as error:
                log.warning("changes of other processes not read", error=error.message)
                await asyncio.sleep(REST_SECONDS)
                self._store_changed.set()

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
        connection, values = self._read_put(name, values, within)
        old = self._states.get(name)
        in_azure = ensure_in_azure(self._discoverer.azure, name, connection, old)
        async with self._locks[name], in_azure as settings:
            new = await self._discover(name, settings, by)
            azure = settings.model_dump(include={"resource_id", "created_here"}, exclude_unset=True)
            revision = await self._save(new, by, put={**values, **azure}, expected=expected)
            self._install(replace(new.state, revision=revision), revision)
        log.info("connection put", connection=name, by=by, tools=len(new.state.tools))
        exposed = {tool.name for tool in self.current.connections[name].tools}
        return report_of(new, self.current.revision, exposed)

    def _read_put(
        self, name: str, values: Mapping[str, Any], within: str | None
    ) -> tuple[Connection, Mapping[str, Any]]:
        """The settings of a put, with its values complete; refuses what may not be put."""
        old = self._states.get(name)
        connection = parse_connection(name, values := complete_values(values, old, within))
        refuse_foreign(within, connection, old, file_of(connection))
        refuse_unsafe(self.current.settings, name, connection)
        refuse_configured(old, connection)
        return connection, values

    async def delete(self, name: str, *, by: str, expected: int | None = None) -> int:
        """Removes a connection that was put; gives the new revision."""
        async with self._locks[name]:
            state = self._state(name)
            refuse_configured(state)
            if expected in (None, state.revision):
                await remove_from_azure(self._discoverer.azure, state.settings)
            revision = await self._stored.delete(name, expected)
            self._states.pop(name, None)  # may be gone: the store's notice can come first
            self._former_names.drop(name)
            self.refreshed_at.pop(name, None)
            self._swap(revision)
        log.info("connection deleted", connection=name, by=by)
        return self.current.revision

    async def decide_change(self, change: Change, status: ChangeDecision, *, by: str) -> Change:
        """Decides on a held change; an accepted change is served from here on."""
        name = change.connection
        async with self._locks[name]:
            state = self._state(name)
            if (old := state.built) is None:
                raise NotFound("connection_invalid", f"the connection {name!r} is switched off")
            new = await self._accept_change(state, old, change) if status == "accepted" else None
            change = replace(change, organization=state.settings.organization)
            decided, revision = await self._stored.decide(change, status, by, old, new)
            if new is not None:
                self._states[name] = with_tools(replace(state, built=new), new.build.tools)
            self._swap(revision)
        log.info("change decided", connection=name, tool=change.tool, status=status, by=by)
        return decided

    async def _accept_change(
        self, state: ConnectionState, found: BuiltDefinition, change: Change
    ) -> BuiltDefinition:
        """The connection's tools, with the changed tool as the definition has it now."""
        tools = replace_tools(found.build.tools, {change.operation: change.after})
        new = replace(found, build=replace(found.build, tools=tools), at=time.time())
        if not asks_other_credential(change):
            return new
        # How calls authenticate is defined once for the whole definition: read it from there.
        fresh = await self._rebuild(self._look(state.name, state.settings), found)
        return replace(new, build=with_credentials_of(new.build, fresh.build))

    async def preview(
        self, name: str, values: Mapping[str, Any], within: str | None = None
    ) -> tuple[dict[str, Any], Adoption]:
        """What a put would expose and change; stores nothing, and refuses what a put would."""
        now, (settings, _) = self.current, self._read_put(name, values, within)
        new = await self._discover(name, settings, is_preview=True)
        return preview_of(name, settings.kind, new.built, holder_finder(now, name, settings)), new

    async def refresh(
        self,
        names: Collection[str],
        *,
        by: str,
        after_each: Callable[[str], None] = lambda name: None,
        on_demand: bool = False,
        since: float | None = None,
    ) -> list[Report]:
        """Looks again at these connections; returns their reports, in order of names.

        `after_each` is called with the name of each connection after its look. `on_demand`: a
        caller requested this, and requests at the same moment share one look. A definition that
        was fetched for several connections counts if it was fetched after `since`, or after now.
        """
        since = await self._note_request(names, on_demand, since)
        gate = asyncio.Semaphore(PARALLEL_REFRESHES)

        async def look_at(name: str) -> Report:
            look = partial(self._refresh_one, name, by)
            async with gate:
                report = await self._shared_report(name, look, since)
            after_each(name)
            return report

        return list(await asyncio.gather(*(look_at(name) for name in sorted(set(names)))))

    async def _note_request(self, names: Iterable[str], wait: bool, since: float | None) -> float:
        """Notes the request for a look; on demand, waits for requests that can share it."""
        since = time.monotonic() if since is None else since
        for name in names:
            self._asked_at[name] = max(since, self._asked_at.get(name, since))
        await asyncio.sleep(SETTLE_SECONDS if wait else 0)
        return since

    async def _shared_report(
        self, name: str, look: Callable[[float], Awaitable[Report]], since: float
    ) -> Report:
        """The report of a look that uses nothing older than `since`.

        Requests for one name that arrive before a look begins share that look. A look that has
        begun may have read a state from before a later request, so later requests share the next.
        """
        async with self._locks[name]:
            as_of, report = self._last_looks.get(name, (since, None))
            if report is None or as_of < since:
                as_of = self._asked_at[name]
                report = await look(as_of)
                self._last_looks[name] = as_of, report
            return report

    def mark_failing(self, name: str, error: GatewayError) -> bool:
        """Notes that a server can't be reached now; returns whether that is news."""
        state = self._states.get(name)
        if state is None or not state.settings.is_active or state.status == "failing":
            return False
        self._record_failure(name, state, error)
        return True

    def take_advice(self, sha256: str, problems: tuple[Problem, ...]) -> None:
        """Shows a validator's advice on a definition beside the connection's own problems."""
        self.advice[sha256] = problems
        if problems:
            self._swap()

    def group(self) -> list[str]:
        """The connections that come from Azure's resource group."""
        return [name for name, state in self._states.items() if state.origin == "azure"]

    async def list_group(self, *, on_demand: bool = False) -> None:
        """Lists Azure's resource group, once for requests at the same moment, and applies it.

        The listing is stored, so that the next start and the other replicas have it without
        asking Azure. A listing that fails leaves the connections that were found before.
        """
        since = await self._note_request([LISTING], on_demand, None)
        await self._shared_report(LISTING, self._list_group, since)

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
                    found = BuiltDefinition(Build("arm", "", ""), listing, at=time.time())
                    await self._stored.keep(LISTING, found)
                # Also for an equal listing: a put connection that hid Azure's may be gone.
                await self.apply(self.rights.configured)
        except GatewayError as error:
            words = f"the resource group can't be listed: {error.sentence}"
            problem = Problem("error", "azure", words)
            if problem != self.group_problem:  # the same problem is logged once
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
            look = self._look(name, state.settings, previous=state.built, since=since)
            found = await self._discoverer.discover(look)
            if state.built is not None and found.build is state.built.build:
                return self._report_unchanged(state, found)
            if state.origin != "demo":  # a demo API is served by this process itself
                await self._discoverer.check_addresses(state.settings, found.build)
            new = await asyncio.to_thread(adopt, state, found, time.time(), by)
        except GatewayError as error:
            return self._record_failure(name, state, error)
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

    def _report_unchanged(self, state: ConnectionState, found: BuiltDefinition) -> Report:
        """Notes a look that changed nothing: served tools and held changes stay as they are."""
        self.refreshed_at[state.name] = time.time()
        build = found.build
        if self._states.get(state.name) is state:
            if found is not state.built:  # `found` has the validators of the last answer
                self._states[state.name] = state = replace(state, built=found.without_bytes())
            if state.status != build.status:
                self._states[state.name] = replace(
                    state, status=build.status, problems=build.problems
                )
                self._swap()
        return Report(state.name, build.status, revision=self.current.revision)

    def _record_failure(self, name: str, state: ConnectionState, error: GatewayError) -> Report:
        error.message = without_secrets(error.message, state.settings)
        failing = with_failure(state, error)
        if (failing.status, failing.problems) != (state.status, state.problems):  # logged once
            log.warning("refresh failed", connection=name, code=error.code, error=error.message)
        if self._states.get(name) is state:
            self._states[name] = failing
            self._swap()
        return Report(name, "failing", error.message)

    async def _discover(self, name: str, new: Connection, by: str = "", **options: Any) -> Adoption:
        try:
            found = await self._discoverer.discover(self._look(name, new, **options))
        except GatewayError as error:
            error.message = without_secrets(error.message, new)
            raise
        await self._discoverer.check_addresses(new, found.build)
        base = with_last_good(unread_state(name, new, "stored"), self._states.get(name))
        return await asyncio.to_thread(adopt, base, found, time.time(), by)

    def _look(self, name: str, settings: Connection, **options: Any) -> Look:
        build = self._states[name].build if name in self._states else None
        return Look(name, settings, self.current.settings.limits, served=build, **options)

    async def _sync_with_store(self, settings: Settings) -> None:
        """Makes the states match the settings and the store, then swaps once."""
        before, access, former = dict(self._states), self.rights.stored, self._former_names.by_name
        stored = await self._stored.load({n: s.built for n, s in before.items() if s.built})
        rows = await load_rights(self._stored.db)
        self._synced_revision = max(self._synced_revision, stored.revision)
        self._former_names.take(stored.former, former)
        cached = stored.found.get(LISTING)
        listing = await self._stored.whole(LISTING, cached.definition) if cached else None
        states = {
            name: await self._running_or_cached(base, stored.found.get(name), settings)
            for name, base in connection_states(stored, settings, self._demo, listing).items()
        }
        # A connection put, refreshed or deleted while we waited is newer than the rows we read.
        newer = {name: s for name, s in self._states.items() if before.get(name) is not s}
        states = {n: s for n, s in states.items() if n in self._states or n not in before} | newer
        for name in set(self._states) - set(states):
            self.refreshed_at.pop(name, None)
        self._states, self._listing = states, listing
        is_current = self.rights.take(stored, rows, access)  # else newer rows were put
        self._swap(stored.revision, settings)
        if newer or not is_current:
            self._store_changed.set()  # other processes' changes of these were passed over

    async def _running_or_cached(
        self, base: ConnectionState, cached: BuiltDefinition | None, settings: Settings
    ) -> ConnectionState:
        """The connection as it runs if nothing of it changed, else from the cached definition."""
        old = self._states.get(base.name)
        same_limits = settings.limits == self.current.settings.limits
        if old is not None and same_limits and is_same(old, base, cached):
            return old
        base = with_last_good(base, old)
        place = location_of(base.settings) if base.settings.is_active else None
        if cached is None or cached.definition.location != place:
            return base
        try:
            return with_built(base, await self._restore(base, cached, settings))
        except GatewayError as error:
            log.warning("cached definition not usable", connection=base.name, error=error.message)
            return base

    async def _restore(
        self, base: ConnectionState, cached: BuiltDefinition, settings: Settings
    ) -> BuiltDefinition:
        look = Look(base.name, base.settings, settings.limits, served=cached.build)
        if look.key(cached.definition) == cached.build_key:
            return cached
        found = await self._rebuild(look, cached)
        await self._former_names.keep_renames(self.current, base.name, base.built or cached, found)
        # New settings don't accept a held change: the same definition still waits for an admin.
        old = by_operation(cached.build.tools)
        undecided = await self._stored.undecided_changes(base.name)
        waiting = [change for change in undecided if old.get(change.operation) == change.before]
        tools = tools_to_serve(found.build.tools, waiting)
        return replace(found, build=replace(found.build, tools=tools), at=cached.at)

    async def _rebuild(self, look: Look, cached: BuiltDefinition) -> BuiltDefinition:
        """The tools of a definition that is in the store, built anew."""
        definition = await self._stored.whole(look.name, cached.definition)
        return await self._discoverer.rebuild(look, definition)

    async def _save(self, new: Adoption, by: str, **put: Any) -> int:
        renamed = served_names(self.current, new.renamed)
        outcome = new.state.name, new.built, () if new.first else new.changes, renamed
        revision = await self._stored.save(*outcome, by=by, **put)
        self._former_names.add(renamed)
        return revision

    def _install(self, state: ConnectionState, revision: int) -> None:
        self._states[state.name] = state
        self.refreshed_at[state.name] = time.time()
        self._swap(revision)

    def _with_advice(self, state: ConnectionState) -> ConnectionState:
        advice = self.advice.get(state.built.definition.sha256) if state.built else ()
        return replace(state, problems=(*state.problems, *advice)) if advice else state

    def _swap(self, revision: int = 0, settings: Settings | None = None) -> None:
        """Replaces the current snapshot, unless the new one has the same content."""
        self.rights.configured = settings or self.rights.configured
        access = self.rights.put_access(untrusted_in(self._states))
        snapshot = assemble(
            max(self.current.revision + 1, revision),
            access.settings,
            [self._with_advice(state) for state in self._states.values()],
            choices=self.rights.stored.choices,
            stored_permissions=self.rights.stored.permissions,
            put_access=access,
            problems=(self.group_problem,) if self.group_problem else (),
            former_names=self._former_names.by_name.values(),
        )
        self._former_names.forget_taken(snapshot)
        if replace(snapshot, revision=self.current.revision) != self.current:
            self.current = snapshot
            for listener in self._listeners:
                listener()
