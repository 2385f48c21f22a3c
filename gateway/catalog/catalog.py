"""The one writer of the current snapshot.

Discovery waits for networks and worker processes; what follows it, building the snapshot and
assigning it, does not wait at all, so that on one event loop a swap needs no lock. Work on one
connection is one after another (a lock a name); different connections don't wait for each other. An
answer for a connection that was replaced meanwhile is dropped. A source that fails keeps its last
good tools and gets a problem; an equal snapshot is not swapped and nobody is told.

What may not be put, or edited, at run time. Pure.

What is served once an admin has accepted a change that was held.

When several ask for one look, and when a look that failed is tried again.

A look that has not begun is shared: whoever asks for the same meanwhile waits for that one. A look
that has begun may have seen what was there before they asked, so those who come later share the
next.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import structlog

from gateway.catalog.azure_group import present_in_azure, remove_from_azure, to_be_served
from gateway.catalog.changes import asks_other_credential, served, with_credentials_of
from gateway.catalog.definitions import is_active, is_lazy, is_local, kind_of, location_of, resting
from gateway.catalog.discover import (
    Adoption,
    Discoverer,
    Found,
    Report,
    adopt,
    failed,
    light,
    previewed,
    report_of,
    with_last_good,
)
from gateway.catalog.repository import StoredCatalog, change_of, with_change
from gateway.catalog.snapshot import (
    ConnectionState,
    Snapshot,
    assemble,
    owner_in,
    same_content,
    with_tools,
)
from gateway.config.connection import ArmConnection, Connection, McpConnection
from gateway.config.reading import parse_connection
from gateway.config.settings import Limits, Permissions, Settings, bundle_trust_problems
from gateway.errors import ConfigInvalid, Fixable, GatewayError, NotFound, Refused
from gateway.model import Level, Problem, Tool
from gateway.store.catalog import Change
from gateway.store.catalog import Change as StoredChange


def read_put(name: str, values: Mapping[str, Any], organization: str | None) -> Connection:
    """A connection as it is put: one that names no organization belongs to its admin's."""
    if organization is not None and values.get("organization") is None:
        values = {**values, "organization": organization}
    return parse_connection(name, values)


def read_planned(settings: Settings, name: str, values: Mapping[str, Any]) -> Connection:
    """A connection that is only looked at: what may not be put is not tried either."""
    connection = parse_connection(name, values)
    refuse_unsafe(settings, name, connection)
    return connection


def refuse_configured(state: ConnectionState | None, new: Connection | None = None) -> None:
    """Refuses to touch a connection that config.toml, or we, or Azure define.

    What is found in Azure may be put under its name, with other settings.
    """
    if state is not None and state.origin == "azure":
        if not _is_same_resource(state.settings, new):
            raise Fixable(
                "connection_invalid",
                f"the connection {state.name!r} comes from Azure's resource group",
                "Remove it in Azure, or put it with kind arm and enabled false.",
            )
    elif state is not None and state.origin != "stored":
        raise Fixable(
            "connection_invalid",
            f"the connection {state.name!r} is defined in config.toml",
            "Choose another name, or edit config.toml.",
        )


def _is_same_resource(found: Connection, new: Connection | None) -> bool:
    if not isinstance(found, ArmConnection) or not isinstance(new, ArmConnection):
        return False
    return new.resource_id is None or new.resource_id.lower() == str(found.resource_id).lower()


def refuse_put(
    settings: Settings,
    name: str,
    connection: Connection,
    state: ConnectionState | None,
    organization: str | None,
) -> None:
    """Refuses what may not be put under this name, or not by an admin of this organization."""
    refuse_foreign(organization, connection, state)
    refuse_configured(state, connection)
    refuse_unsafe(settings, name, connection)


def refuse_foreign(
    organization: str | None, connection: Connection, state: ConnectionState | None
) -> None:
    """Keeps an admin of an organization to that organization's connections."""
    if organization is None:
        return
    if connection.organization != organization:
        raise Refused(
            "access_denied",
            "you may only put connections of your own organization",
            f'Set organization = "{organization}".',
        )
    if connection.tls.cert_file:
        raise Refused(
            "access_denied",
            "an organization's admin may not name the gateway's own certificates",
            "Ask an operator to write the connection into config.toml.",
        )
    if state is not None and state.settings.organization != organization:
        raise Fixable("connection_invalid", "this name can't be used", "Choose another name.")


def refuse_unsafe(settings: Settings, name: str, connection: Connection) -> None:
    """Refuses commands, and what would break a rule that the configuration was checked for."""
    if isinstance(connection, McpConnection) and connection.transport == "stdio":
        raise Fixable(
            "connection_invalid",
            "commands can't be put at run time",
            'Write connections with transport = "stdio" into config.toml.',
        )
    if connection.trust != "untrusted":
        return
    for bundle_name, bundle in settings.bundles.items():
        if problems := bundle_trust_problems(bundle_name, bundle, {name}):
            where, what = problems[0]
            raise Fixable("connection_invalid", f"{where}: {what}", "Trust it, or edit the bundle.")


def refuse_edit(settings: Settings, current: Snapshot) -> None:
    """Refuses a configuration whose bundles break a rule for connections it does not name."""
    untrusted = {
        name
        for name, state in current.connections.items()
        if state.settings.trust == "untrusted" and state.origin not in ("config", "demo")
    }
    untrusted -= settings.connections.keys()
    problems = [
        f"config.toml: {where}: {what}"
        for name, bundle in settings.bundles.items()
        for where, what in bundle_trust_problems(name, bundle, untrusted)
    ]
    if problems:
        raise ConfigInvalid(problems)


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


TOGETHER_SECONDS = 0.1  # for requests that were sent at the same time to arrive
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 300.0

T = TypeVar("T")


class Looks(Generic[T]):
    """Looks by name, one after another for each name, shared by those who ask together."""

    def __init__(self) -> None:
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: dict[str, tuple[asyncio.Task[T], float]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    async def share(
        self,
        name: str,
        look: Callable[[float], Awaitable[T]],
        *,
        since: float | None = None,
        wait: float = 0.0,
    ) -> T:
        """What the next look finds; it goes on to its end for others if this caller leaves.

        `look` is told how new what it finds must be: the latest `since` (by the monotonic clock,
        default: now) of all who share it. It begins `wait` seconds from now, in its turn.
        """
        since = time.monotonic() if since is None else since
        if name in self._waiting:
            task, others = self._waiting[name]
            since = max(since, others)
        else:
            task = asyncio.create_task(self._begin(name, look, wait))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        self._waiting[name] = task, since
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Ends every look."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _begin(self, name: str, look: Callable[[float], Awaitable[T]], wait: float) -> T:
        await asyncio.sleep(wait)
        async with self.locks[name]:
            _, since = self._waiting.pop(name)
            return await look(since)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: those who asked may all have left


class Pauses:
    """Growing pauses between the tries of what keeps failing."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}  # how long, and until when

    def is_over(self, name: str, now: float) -> bool:
        """Whether it is time for the next try of what is failing."""
        pause, until = self._pauses.get(name, (FIRST_PAUSE / 2, 0.0))
        if now < until:
            return False
        pause = min(pause * 2, LONGEST_PAUSE)
        self._pauses[name] = (pause, now + pause * random.uniform(0.8, 1.2))
        return until > 0  # the failure itself was the first try

    def end(self, name: str) -> None:
        """The next failure is a first one again."""
        self._pauses.pop(name, None)


log = structlog.get_logger("gateway.catalog")

PARALLEL_REFRESHES = 8
POLL_SECONDS = 1.0

Told = Callable[[str], None]  # the name of a connection that has been looked at


class Catalog:
    """Holds the current snapshot and is the only one to replace it."""

    def __init__(
        self,
        settings: Settings,
        discoverer: Discoverer,
        persistence: StoredCatalog,
        *,
        portable: Callable[[str, tuple[Tool, ...]], list[Tool]] | None = None,
        demo: Mapping[str, Connection] | None = None,
    ) -> None:
        self._discoverer = discoverer
        self._persistence = persistence
        self._portable = portable
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
        self._problems: dict[str, Problem] = {}
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

    def hear(self, revision: int) -> None:
        """Has what another process put into the store taken over soon."""
        if revision > self._synced:
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
                await asyncio.sleep(POLL_SECONDS)
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
    ) -> StoredChange:
        """Decides on a change that is held; an accepted one is served from here on."""
        change = await self._persistence.change(id)
        name = change.connection
        async with self._locks[name]:
            state, found = self._states.get(name), self._found.get(name)
            if state is None or found is None:
                raise NotFound("connection_invalid", f"there is no connection {name!r}")
            new = None
            if status == "accepted":
                limits, parts = self.current.settings.limits, (state, found, change)
                new = await accepted(
                    self._persistence, self._discoverer, limits, *parts, time.time()
                )
            decided, revision = await self._persistence.decide(change, status, by, found, new)
            if new is not None:
                self._found[name] = new
                self._states[name] = with_tools(replace(state, build=new.build), new.build.tools)
            self._swap(revision)
        log.info("change decided", connection=name, tool=change.tool, status=status, by=by)
        return decided

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
        told: Told = lambda name: None,
        asked: bool = False,
        since: float | None = None,
    ) -> list[Report]:
        """Looks again at these connections; each one's outcome, in order of names.

        `asked`: by somebody, who may be one of many that ask just now; they share one look. What
        was fetched for several connections counts if it was `since` then, or since now.
        """
        since = time.monotonic() if since is None else since
        gate, wait = asyncio.Semaphore(PARALLEL_REFRESHES), TOGETHER_SECONDS if asked else 0.0

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

    def tell(self, where: str, message: str | None) -> None:
        """Shows a problem that is no connection's own; None: it is over."""
        self._problems.pop(where, None)
        if message is not None:
            self._problems[where] = Problem("error", where, message)
        self._swap()

    async def _refresh_one(self, name: str, by: str, since: float) -> Report:
        state = self._states.get(name)
        if state is None:
            raise NotFound("connection_invalid", f"there is no connection {name!r}")
        if not is_active(state.settings):
            return Report(name, "disabled")
        known = self._found.get(name)
        limits = self.current.settings.limits
        try:
            found = await self._discoverer.discover(
                name, state.settings, limits, known, since=since
            )
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
        found = await self._discoverer.discover(name, settings, limits, None, planned, soon=True)
        await self._discoverer.check_addresses(settings, found.build)
        return found

    async def _take(self, settings: Settings) -> None:
        """Makes the states match what is configured and stored, then swaps once."""
        seen, chosen, allowed = dict(self._states), self._choices, self._permissions
        stored = await self._persistence.load()
        self._synced = max(self._synced, stored.revision)
        states: dict[str, ConnectionState] = {}
        got: dict[str, Found] = {}
        wanted = to_be_served(stored, settings, self._demo)
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
        name, limits, definition = base.name, settings.limits, cached.definition
        if self._discoverer.key_of(name, base.settings, limits, definition) == cached.build_key:
            return cached
        packed = await self._persistence.packed(name, definition.location)
        definition = replace(definition, packed=packed)
        found = await self._discoverer.rebuild(name, base.settings, limits, definition, None)
        # Other settings don't accept what is held: the same definition still waits for an admin.
        undecided = await self._persistence.undecided(name, cached.build.tools)
        tools = tuple(served(found.build.tools, undecided))
        return replace(found, build=replace(found.build, tools=tools), at=cached.at)

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
            portable=self._portable,
            problems=tuple(self._problems.values()),
        )
        if not same_content(snapshot, self.current):
            self.current = snapshot
            for listener in list(self._listeners):
                listener()
