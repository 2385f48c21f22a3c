"""The only place where the parts are put together.

`running` starts them in order and ends them in reverse order: the store and the ways out, the
catalog from cached definitions (no network), calls, then the edges; the first refresh runs in the
background, so that a dead upstream delays nobody. It yields the gateway's edges as one `App`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.azure.directory import AzureDirectory
from gateway.calls.admission import CANCEL, Admission
from gateway.calls.approvals import Approvals
from gateway.calls.call import Invoker
from gateway.calls.credentials import Credentials, PreparedConnections, prove
from gateway.calls.send import Sender, UpstreamRequests, ask_azure, azure_identity
from gateway.calls.sign_in_question import SignInQuestions
from gateway.catalog.catalog import Catalog
from gateway.catalog.connections import refuse_edit
from gateway.catalog.discover import Discoverer, Fetcher
from gateway.catalog.schedule import Schedule
from gateway.config.connection import McpConnection, people_sign_in
from gateway.config.file import Adjust, ConfigWatch
from gateway.config.settings import Settings
from gateway.console.app import Console
from gateway.console.connections import consent_route, return_address
from gateway.demo.bookshop import bookshop, demo_connection
from gateway.errors import DefinitionUnreadable, GatewayError, UpstreamFailed
from gateway.limits import FETCH_SECONDS, MAX_BODY_BYTES, MOMENT_SECONDS
from gateway.mcp.endpoint import McpEndpoint
from gateway.oauth.connect import Connect
from gateway.oauth.front_door import FrontDoor, is_open_to_all
from gateway.outbound.certificates import Certificates
from gateway.outbound.client import Egress, Request
from gateway.server import GatewayServer, bind
from gateway.sign_in.credentials import PeopleCredentials
from gateway.store.catalog import StoredCatalog
from gateway.store.cluster import REVISION, Signals, signal_soon
from gateway.store.credentials import SIGNED
from gateway.store.database import Database
from gateway.store.housekeeping import Housekeeping, this_replica
from gateway.store.secrets import check_seal, load_seal, reseal
from gateway.system import run_loop
from gateway.telemetry import log_call, tracer
from gateway.upstream.registry import Upstreams
from gateway.upstream.session import end_tasks
from gateway.web.gateway import Feed, Gateway
from gateway.web.guard import HostRules, check_host, fold, host_rules
from gateway.web.identity import Identity
from gateway.web.own_tools import OWN_TOOLS
from gateway.web.rest import http_app, refusal_response
from gateway.web.watch import Health
from gateway.workers import Workers

log = structlog.get_logger("gateway")

T = TypeVar("T")
Loading = Callable[[int], Callable[[str], None]]  # number of connections → called as each is read
Sidecar = Callable[[str], Coroutine[Any, Any, None]] | None  # gets our address; we end with it

DOUBTED = "doubted"  # the signal: a connection's server could not be reached from one process
# Kubernetes asks for these by a pod's address; they hold nothing secret, so no Host is checked.
PROBES = frozenset(("/healthz", "/readyz", "/health", "/metrics"))


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process runs: its configuration file and its address."""

    config: Path
    host: str
    port: int
    adjust: Adjust | None = lambda settings: settings  # over the file's; None: it is not watched
    needed: Collection[str] = ()  # connections without which the gateway does not start
    readers: Callable[[], AbstractAsyncContextManager[Workers]] = Workers  # of definitions

    @property
    def own_url(self) -> str:
        """The URL by which a client on this machine reaches the gateway."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def public_url(self, settings: Settings) -> str:
        return (settings.server.public_url or self.own_url).rstrip("/")


@dataclass(frozen=True, slots=True)
class App:
    """The edges of the gateway, and the parts that the server around them needs."""

    gateway: Gateway
    mcp: McpEndpoint
    health: Health
    identity: Identity
    rules: HostRules
    demo: ASGIApp
    rest: ASGIApp
    console: Console

    def server(
        self, place: Place, grace: float, *, announce: bool = True, worker: bool = False
    ) -> GatewayServer:
        """The server that serves this at a socket, and ends it in order."""
        return GatewayServer(
            *(self.mcp, self._serve_other, self._report_draining, self.drain),
            grace=grace,
            request_seconds=self.gateway.snapshot.settings.limits.request_seconds,
            addresses=(place.own_url, self.console.link(place.own_url)) if announce else None,
            worker=worker,
        )

    def refuse_failing(self, needed: Collection[str]) -> None:
        """Raises the problem of a connection that is needed and failing."""
        for name in needed:
            state = self.gateway.snapshot.connections[name]
            if state.status == "failing":
                raise DefinitionUnreadable(f"{name}: {state.problems[-1].message}")

    def _report_draining(self) -> None:
        self.health.draining = True

    async def drain(self, grace: float) -> None:
        """Lets all calls in flight finish, also those without a request; then closes the streams.

        Callers that wait for a person are sent away, and no approved call is begun.
        """
        running = self.gateway.invoker.running
        self.gateway.approvals.draining = True
        self.gateway.invoker.held_calls.drain()
        await running.drain(grace)  # uvicorn waits only for calls that a request waits for
        self.gateway.feed.close()
        self.mcp.streams.close()

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers requests that are not MCP."""
        path: str = scope["path"]
        if path not in PROBES:
            try:
                fields = fold(scope["headers"])
                if b"origin" in fields and is_open_to_all(path):
                    del fields[b"origin"]
                check_host(self.rules, scope, fields)
            except HTTPException as refusal:
                await refusal_response(refusal)(scope, receive, send)
                return
        if path == "/console" or path.startswith("/console/"):
            await self.console(scope, receive, send)
        elif path.startswith("/demo/") and self.gateway.snapshot.settings.demo.enabled:
            inner = {**scope, "path": path.removeprefix("/demo"), "root_path": ""}
            await self.demo(inner, receive, send)
        else:
            await self.rest(scope, receive, send)


def serve(
    settings: Settings, place: Place, loading: Loading, *, worker: bool = False, sidecar: Sidecar
) -> None:
    """Runs until a signal or its sidecar ends it. A worker shares its port with other workers."""

    async def run(place: Place, bound: socket.socket) -> None:
        async with running(settings, place, loading) as app:
            app.refuse_failing(place.needed)
            server = app.server(place, settings.server.shutdown_seconds, worker=worker)
            server.sidecar = partial(sidecar, place.own_url) if sidecar else None
            await server.serve(sockets=[bound])

    with bind(settings.server.host, settings.server.port, shared=worker) as bound:
        host, port = bound.getsockname()[:2]
        run_loop(run(replace(place, host=host, port=port), bound))


@asynccontextmanager
async def running(
    settings: Settings, place: Place, loading: Loading = lambda total: lambda name: None
) -> AsyncIterator[App]:
    """Runs the gateway; it is ready as soon as the cached definitions have been read."""
    async with AsyncExitStack() as stack:
        assembly = Assembly(settings, place, stack)
        await assembly.open_store()
        await assembly.open_ways_out()
        await assembly.load_catalog()
        await assembly.start_calls()
        app = assembly.open_edges()
        await assembly.look_first(loading)
        await assembly.follow_changes(app)
        yield app


class Assembly:
    """The parts of one gateway, made in the order of these methods; `stack` ends them."""

    gateway: Gateway

    def __init__(self, settings: Settings, place: Place, stack: AsyncExitStack) -> None:
        self.settings = settings
        self.place = place
        self.folder = place.config.parent
        self.public_url = place.public_url(settings)
        self.signals = Signals()
        self._stack = stack

    async def open_store(self) -> None:
        """Opens the store, and reads the key that seals secrets in it."""
        key_file = self.folder / self.settings.store.secret_key_file
        self.seal = load_seal(key_file, os.environ.get("GATEWAY_SECRET_KEY"))
        self.db = await self._enter(Database(self.settings.store.url_in(self.folder)))
        await check_seal(self.db, self.seal)
        self._run(self._reseal())

    async def _reseal(self) -> None:
        """Seals all secrets of earlier keys with the first key, in the background."""
        try:
            if count := await reseal(self.db, self.seal):
                log.info("sealed anew", rows=count)
        except GatewayError as error:  # the next start tries again
            log.warning("not all sealed anew", code=error.code)

    async def open_ways_out(self) -> None:
        """Opens the clients of APIs and servers, and the processes that read their answers."""
        self.egress = await self._enter(Egress(**self.settings.network.rules, folder=self.folder))
        self.own_egress = await self._enter(Egress([self.place.host]))
        self.workers = await self._enter(self.place.readers())
        self.replica = this_replica()
        self.people = PeopleCredentials(
            *(self.db, self.seal, self.signals, self.egress),
            *(self.replica.id, self.public_url),
        )
        self.credentials = Credentials(self.egress, self.people)
        self._stack.push_async_callback(self.credentials.close)
        self.upstreams = await self._enter(
            Upstreams(self.egress, self.credentials.upstream_headers)
        )
        alone = self.settings.server.workers == 1 and self.settings.store.url.startswith("sqlite")
        shared = None if alone else self.db  # other processes count as well
        self.admission = Admission(self.settings.limits.max_concurrent_calls, shared_db=shared)

    async def load_catalog(self) -> None:
        """Builds the tools from cached definitions, and the parts that keep them up to date."""
        self.fetcher = Fetcher(self.egress, self.folder, self.settings.cache)
        self.directory = AzureDirectory(
            partial(ask_azure, self.egress, self.credentials),
            lambda: self.catalog.current.settings.azure,
            partial(return_address, self.seal, self.public_url),
            partial(azure_identity, self.credentials),
        )
        ways = (self.fetcher, self.workers, self.upstreams.read, self.egress.check)
        discoverer = Discoverer(*ways, self.directory, partial(prove, self.credentials))
        stored = StoredCatalog(self.db, self.seal)
        demo = {"demo": demo_connection(self.place.own_url)}
        self.catalog = Catalog(self.settings, discoverer, stored, demo)
        self.catalog.on_change(self._follow_upstreams)
        self.schedule = Schedule(self.catalog, stored, self.workers.advise, self.folder)
        self.upstreams.on_tools_changed = self.schedule.wake
        self.upstreams.on_trouble = self._mark_failing
        await self.catalog.apply(self.settings)

    def _follow_upstreams(self) -> None:
        """Keeps sessions with the MCP servers of the current snapshot."""
        snapshot = self.catalog.current
        servers = {
            name: state.settings
            for name, state in snapshot.connections.items()
            if isinstance(state.settings, McpConnection) and state.status != "disabled"
        }
        self.upstreams.follow(servers, snapshot.settings.limits)

    def _mark_failing(self, name: str, error: GatewayError) -> None:
        """Shows that an MCP server can't be reached; other processes check for themselves.

        That a person has to sign in concerns only that person: the server is not failing.
        """
        if error.code != "sign_in_required" and self.catalog.mark_failing(name, error):
            signal_soon(self.db, DOUBTED, name)

    async def start_calls(self) -> None:
        """Builds the parts that carry a call out: asking, sending, recording, telling.

        The heartbeat begins before any call can be executing here, and calls that still run are
        recorded before the store closes.
        """
        replica, prepared = self.replica, PreparedConnections()
        db, seal, signals, catalog = self.db, self.seal, self.signals, self.catalog
        feed = Feed(db, signals, catalog)
        views = (lambda: catalog.current, lambda *call: self.gateway.find_tool(*call))
        approvals = Approvals(db, seal, signals, *views, replica.id)
        ways = (self.egress, self.own_egress, self.credentials, self.upstreams)
        work, link = self.workers.work, self.directory.sign_in_link
        send = Sender(*ways, self.admission, db, work, link)
        sign_in = SignInQuestions(
            self.credentials, seal, signals, lambda: approvals.draining
        ).ensure
        invoker = Invoker(prepared, send, approvals, sign_in)
        parts = (catalog, invoker, approvals, db, feed, self.directory, self.people)
        self.gateway = Gateway(*parts, work, {tool.name: tool for tool in OWN_TOOLS})
        self.gateway.wake = self.schedule.wake
        if (spans := tracer()) is not None:
            invoker.on_finished(spans[0])
            self._stack.push_async_callback(asyncio.to_thread, spans[1])
        signals.on(CANCEL, invoker.running.cancel)
        for listener in (feed.result, log_call):
            invoker.on_finished(listener)
        housekeeping = Housekeeping(db, replica, lambda: catalog.current.settings.ledger.keep_days)
        await housekeeping.start()
        self._stack.push_async_callback(housekeeping.close)
        self._stack.push_async_callback(invoker.running.close)
        self._run(housekeeping.run())
        self._run(invoker.make_approved())

    def open_edges(self) -> App:
        """Builds MCP, REST, console and health, and the parts that they share."""
        server, gateway = self.settings.server, self.gateway
        identity = Identity(self.catalog.current.settings, self.public_url, self._fetch_keys)
        self.catalog.on_change(lambda: self._follow_settings(identity))
        rules = host_rules(self.public_url, server.allowed_hosts, server.allowed_origins)
        requests = UpstreamRequests(self.upstreams, self.admission, self.credentials)
        mcp = McpEndpoint(gateway, identity, requests, self.seal, self.db, rules)
        mcp.listen_to(self.signals)
        certificates = Certificates(self.folder, self.egress.certificate_ends)
        health = Health(gateway, identity, rules, mcp.figures, certificates.ends)
        gateway.invoker.on_finished(health.metrics.count_call)
        pages = (health, mcp.contacts, self.public_url)
        console = Console(gateway, identity, self.seal, *pages)
        self.front_door = FrontDoor(
            *(self.db, self.seal, self.egress, identity, console.backend.sessions),
            lambda: self.catalog.current.settings,
            self.public_url,
        )
        self.front_door.accept_tokens(self.signals)
        connect = Connect(self.front_door.pages, self.people, lambda: self.catalog.current)
        routes = [*health.routes, consent_route(gateway, self.seal), *self.front_door.routes()]
        routes += connect.routes()
        self._follow_people(identity)
        rest = http_app(gateway, identity, routes)
        return App(gateway, mcp, health, identity, rules, bookshop(), rest, console)

    def _follow_settings(self, identity: Identity) -> None:
        """Has identity change with the settings: no request comes between the swap and this."""
        settings = self.catalog.current.settings
        identity.follow(settings, self.place.public_url(settings))

    def _follow_people(self, identity: Identity) -> None:
        """Ends people's credentials with the people, and sessions with servers with credentials."""

        def credentials_changed(payload: str) -> None:
            name, _, owner = payload.partition(" ")
            state = self.catalog.current.connections.get(name)
            if state is not None and isinstance(state.settings, McpConnection):
                self.upstreams.forget(name, owner)
                if not state.tools or state.status != "connected":
                    self.schedule.wake(name)

        unread: set[str] = set()  # connections to list as soon as a caller brings a token

        def present(principal: str, token: str) -> None:
            self.credentials.present(principal, token)
            while unread:
                self.schedule.wake(unread.pop())

        personal: set[str] = set()  # connections that people sign in to

        def connections_changed() -> None:
            states = self.catalog.current.connections
            for name in personal.difference(states):
                self._run(self.people.forget(connection=name))
            personal.clear()
            personal.update(n for n, s in states.items() if people_sign_in(s.settings.auth))
            grants = {n: getattr(s.settings.auth, "grant", "") for n, s in states.items()}
            exchanging = [states[name] for name in grants if grants[name] == "token_exchange"]
            unread.clear()
            unread.update(state.name for state in exchanging if not state.tools)
            identity.present = present if exchanging else None

        principals = set(identity.principals)

        def principals_changed() -> None:
            for name in principals.difference(identity.principals):
                self._run(self.people.forget(owner=name))
            principals.clear()
            principals.update(identity.principals)

        identity.on_change(principals_changed)
        if identity.auth.mode == "tokens":  # in other modes no list of principals is complete
            self._run(self.people.forget_others(principals))
        self.signals.on(SIGNED, credentials_changed)
        self.catalog.on_change(connections_changed)
        connections_changed()

    async def _fetch_keys(self, url: str) -> bytes:
        seconds, size = FETCH_SECONDS, MAX_BODY_BYTES
        answer = await self.egress.send(Request("GET", url), deadline=seconds, max_bytes=size)
        if answer.status != 200 or answer.truncated:
            raise UpstreamFailed("upstream_error", "the signing keys can't be fetched")
        return answer.body

    async def look_first(self, loading: Loading) -> None:
        """Starts the first refresh, and gives connections that were never read a moment.

        So the first client finds tools: the gateway waits for definitions on this machine, and a
        moment for those in a network. Cached connections are refreshed in the background.
        """
        unread, in_azure = self.catalog.unread(), self.catalog.group()
        local = [name for name, is_local in unread.items() if is_local]
        remote = [n for n, is_local in unread.items() if not is_local and n not in in_azure]
        states, uncached = self.catalog.current.connections, {*unread, *in_azure}
        cached = [n for n, s in states.items() if n not in uncached and not s.settings.is_lazy]
        after_each = loading(len(local) + len(remote) + len(cached))
        reading_local, reading_remote, _ = [
            self._run(self.catalog.refresh(names, by="start", after_each=after_each))
            for names in (local, remote, cached)
        ]
        resource_group = self._run(self.catalog.refresh_group(by="start"))
        await asyncio.wait([reading_local])
        soon = [reading_remote] if in_azure else [reading_remote, resource_group]
        await asyncio.wait(soon, timeout=None if self.place.needed else MOMENT_SECONDS)

    async def follow_changes(self, app: App) -> None:
        """Follows changes that other processes, servers and editors of files make."""
        self.signals.on(DOUBTED, lambda name: self.schedule.wake(name) if name else None)
        self.signals.on(REVISION, self.catalog.hear)
        await self.signals.start(self.db)
        self._stack.push_async_callback(self.signals.close)
        await self.front_door.grants.load()
        await app.mcp.take_up_wishes()
        self._run(self.schedule.run())
        self._run(self.schedule.watch_files())
        self._run(self.schedule.advise())
        self._run(self.catalog.follow())
        if self.place.adjust is not None:
            self._run(self._watch_config(app, self.place.adjust))

    async def _watch_config(self, app: App, adjust: Adjust) -> None:
        """Applies edits of config.toml for as long as the gateway runs."""

        async def apply(edited: Settings) -> None:
            looks.create_task(self._look_at_edited(*await self._apply(edited)))

        def report(problem: str | None) -> None:
            app.health.config_problem = problem

        async with asyncio.TaskGroup() as looks:
            await ConfigWatch(self.place.config, self.settings, adjust, apply, report).run()

    async def _apply(self, edited: Settings) -> tuple[list[str], bool]:
        """Applies edited settings; returns the connections to read, and whether Azure's group."""
        before = self.catalog.current.settings
        refuse_edit(edited, self.catalog.current)
        names = await self.catalog.apply(edited)  # where it raises, nothing of the edit holds
        self.egress.follow(**edited.network.rules)
        self.admission.resize(edited.limits.max_concurrent_calls)
        if edited.cache != before.cache:
            self.fetcher.reset_cache(edited.cache)
        network_changed = edited.network != before.network
        if network_changed:  # failing connections may be reachable now
            states = self.catalog.current.connections.values()
            names += [state.name for state in states if state.status == "failing"]
        return names, edited.azure != before.azure or (
            network_changed and self.catalog.group_problem is not None
        )

    async def _look_at_edited(self, names: list[str], at_azure: bool) -> None:
        """Reads the connections of an edit; the next edit does not wait for a slow server."""
        try:
            await self.catalog.refresh(names, by="config.toml")
            if at_azure:
                await self.catalog.refresh_group(by="config.toml")
        except GatewayError as error:  # the store, or a connection that is gone again
            log.warning("edited connections not read", error=error.message)

    async def _enter(self, part: AbstractAsyncContextManager[T]) -> T:
        return await self._stack.enter_async_context(part)

    def _run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts work that ends with the gateway."""
        task = asyncio.create_task(work)
        self._stack.push_async_callback(end_tasks, task)
        return task
