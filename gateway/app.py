"""The only place where the parts are put together.

`running` starts them in order and ends them in the reverse one: store, egress, workers, the catalog
from what is cached (no network), then the edges; the first refresh runs behind, so that a dead
upstream delays nobody. What it gives is one ASGI application.

The parts that carry a call out, put together: asking, sending, recording, telling.

They belong to one process and one store. `started` is the order in which they begin and end: the
heartbeat before anything can be executing here, what still runs recorded before the store closes.

What happens to connections when the gateway starts, before it says that it is ready.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console as Terminal
from rich.progress import Progress
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import __version__
from gateway.azure.directory import AzureDirectory
from gateway.calls.admission import Admission
from gateway.calls.approvals import Approvals
from gateway.calls.call import Invoker
from gateway.calls.call import Send as SendCall
from gateway.calls.credentials import (
    Credentials,
    PreparedConnections,
    ask_azure,
    auth_of,
    azure_identity,
    prove,
)
from gateway.calls.held import CANCEL
from gateway.calls.record import Signals
from gateway.calls.send import Sender
from gateway.calls.upkeep import ApprovedRuns, Housekeeping, Resume, this_replica
from gateway.catalog.catalog import Catalog, refuse_edit
from gateway.catalog.definitions import Fetcher, is_lazy
from gateway.catalog.discover import Discoverer
from gateway.catalog.repository import StoredCatalog
from gateway.catalog.schedule import AzureWatch, Schedule
from gateway.catalog.snapshot import Snapshot
from gateway.config.connection import Connection, OpenApiConnection
from gateway.config.settings import Settings
from gateway.connectors.manifest import portable_tools
from gateway.console.app import Console, console_of
from gateway.demo.bookshop import bookshop, definition
from gateway.errors import GatewayError, UpstreamFailed
from gateway.limits import FIRST_LOOK_SECONDS, MAX_BODY_BYTES, SIGNING_KEYS_SECONDS
from gateway.mcp.endpoint import EdgeSettings, McpEndpoint, resource_metadata
from gateway.mcp.offers import UpstreamOffers
from gateway.mcp.sessions import (
    ANSWERED,
    CANCELLED,
    DOUBTED,
    WISHED,
    SharedSessions,
    StoreRelay,
    on_answered,
    on_cancelled,
    on_doubted,
    on_wished,
)
from gateway.outbound.client import Egress, Request
from gateway.reload import watch
from gateway.store.cluster import SESSION_ENDED, Notifier, kept_wishes
from gateway.store.database import Database
from gateway.store.secrets import Seal, check_seal, load_seal
from gateway.telemetry import begin_request, log_call, tracer
from gateway.upstream.registry import LiveUpstreams
from gateway.web.events import Feed
from gateway.web.gateway import Gateway, resume
from gateway.web.guard import HostRules, Refusal, check_host, fold, host_rules, respond
from gateway.web.health import Health, consent_route, return_address
from gateway.web.identity import Identity, auth_settings
from gateway.web.own_tools import OWN_TOOLS
from gateway.web.rest import http_app, refusal_response
from gateway.workers import Workers


class Line:
    """One call's way through this process."""

    def __init__(
        self, db: Database, seal: Seal, send: SendCall, current: Callable[[], Snapshot]
    ) -> None:
        self._db = db
        self._seal = seal
        replica, prepared = this_replica(), PreparedConnections()
        self.signals = Signals()
        self.feed = Feed(db, self.signals)
        self.approvals = Approvals(
            db,
            seal,
            prepared,
            self.signals,
            current,
            replica=replica.id,
            told=self.feed.confirmation,
            ended=self.feed.result,
        )
        self.invoker = Invoker(
            db,
            prepared,
            send,
            self.approvals,
            self.signals,
            seal,
            replica=replica.id,
        )
        self.invoker.on_finished(self.feed.result)
        self.signals.on(CANCEL, self.invoker.running.cancel)
        self._keeping = Housekeeping(
            db, replica, current, expire=self.approvals.expire, ended=self.feed.result
        )

    @asynccontextmanager
    async def started(self, resume: Resume) -> AsyncIterator[None]:
        """Calls may be made within; `resume` makes those that were approved meanwhile."""
        await self._keeping.start()
        runs = ApprovedRuns(self._db, self._seal, self.signals, resume)
        tasks = [asyncio.create_task(work) for work in (self._keeping.run(), runs.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await runs.close()
            await self.invoker.running.close()
            await self._keeping.close()


Loading = Callable[[int], Callable[[str], None]]


def show_progress(total: int) -> Callable[[str], None]:
    """Tells of each of so many connections once it was read: a bar on a terminal, else lines.

    One connection needs no progress, so nothing is said of it.
    """
    counted, terminal = itertools.count(1), Terminal(stderr=True)
    bar = Progress(console=terminal, transient=True)
    task = bar.add_task("Loading", total=total)

    def tell(name: str) -> None:
        done = next(counted)
        if total == 1:
            return
        if not terminal.is_terminal:
            print(f"loaded {name} ({done} of {total})", file=sys.stderr, flush=True)
            return
        bar.start()
        bar.update(task, completed=done, description=f"Loading {name}")
        if done == total:
            bar.stop()

    return tell


def no_progress(total: int) -> Callable[[str], None]:
    """For a gateway that runs without a terminal, inside another process."""
    return lambda name: None


async def first_look(
    catalog: Catalog, azure: AzureWatch, loading: Loading
) -> list[asyncio.Task[Any]]:
    """Starts the first refresh, and gives what was never read before a moment.

    So the first client finds tools: what lies on this machine is waited for, a network only so
    long. What is cached is refreshed behind, without anyone waiting.
    """
    unread, in_azure = catalog.unread(), azure.connections()
    local = [name for name, near in unread.items() if near]
    far = [name for name, near in unread.items() if not near and name not in in_azure]
    known = {*unread, *in_azure}
    cached = [
        name
        for name, state in catalog.current.connections.items()
        if name not in known and not is_lazy(state.settings)
    ]
    looks, told = (local, far, cached), loading(len(local) + len(far) + len(cached))
    tasks = [asyncio.create_task(catalog.refresh(n, by="start", told=told)) for n in looks]
    tasks.append(asyncio.create_task(azure.refresh(by="start")))
    await asyncio.wait([tasks[0]])
    await asyncio.wait([tasks[1]] if in_azure else tasks[1::2], timeout=FIRST_LOOK_SECONDS)
    return tasks


log = structlog.get_logger("gateway")

PROBES = frozenset(("/healthz", "/readyz"))  # by address, without a name: no Host to check
INSTRUCTIONS = (
    "Tools of many APIs behind one address. list_dynamic_tools finds the one for a task; tools may "
    "appear and change while you work."
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process runs: its configuration, and the address it was given."""

    config: Path
    host: str
    port: int

    @property
    def own_url(self) -> str:
        return f"http://{self.own_host}:{self.port}"

    @property
    def own_host(self) -> str:
        """A name by which a client on this machine reaches it."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"[{host}]" if ":" in host else host

    def public_url(self, settings: Settings) -> str:
        return (settings.server.public_url or self.own_url).rstrip("/")


@dataclass(frozen=True, slots=True)
class App:
    """The gateway as one ASGI application, with what the server around it needs."""

    gateway: Gateway
    mcp: McpEndpoint
    health: Health
    identity: Identity
    rules: HostRules
    demo: ASGIApp
    rest: ASGIApp
    feed: Feed
    console: Console

    async def drain(self, grace: float) -> None:
        """Lets all calls in flight finish, whoever waits for them; then closes the streams.

        Callers who wait for a person are sent away, and nothing that was approved is begun.
        """
        running = self.gateway.invoker.running
        running.draining = True
        self.gateway.approvals.drain()
        self.gateway.invoker.held.drain()
        ends = time.monotonic() + grace
        await self.mcp.finish_calls(grace)  # one whose caller leaves goes on among the others
        await running.drain(ends - time.monotonic())
        self.feed.close()
        await self.mcp.close_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        begin_request()
        if path == "/mcp" or path.startswith("/mcp/"):
            await self.mcp(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(path, scope, receive, send)

    async def _serve(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        if path not in PROBES:
            try:
                check_host(self.rules, scope, fold(scope["headers"]))
            except Refusal as refusal:
                await refusal_response(refusal)(scope, receive, send)
                return
        if path == "/console" or path.startswith("/console/"):
            await self.console(scope, receive, send)
        elif path.startswith("/.well-known/"):
            document = resource_metadata(self.identity, path)
            await respond(send, 200 if document else 404, document or b"")
        elif path.startswith("/demo/") and self.gateway.snapshot.settings.demo.enabled:
            inner = {**scope, "path": path.removeprefix("/demo"), "root_path": ""}
            await self.demo(inner, receive, send)
        else:
            await self.rest(scope, receive, send)


@asynccontextmanager
async def running(
    settings: Settings, place: Place, loading: Loading = no_progress
) -> AsyncIterator[App]:
    """The gateway, started; it is ready as soon as what is cached has been read."""
    folder = place.config.parent
    async with AsyncExitStack() as stack:
        key_file = folder / settings.store.secret_key_file
        seal = load_seal(key_file, os.environ.get("GATEWAY_SECRET_KEY"))
        db = await stack.enter_async_context(Database(store_url(settings, folder)))
        await check_seal(db, seal)
        egress = await stack.enter_async_context(Egress(**settings.network.rules, folder=folder))
        own_egress = await stack.enter_async_context(Egress([place.host]))
        workers = await stack.enter_async_context(Workers())
        credentials = Credentials(egress)
        stack.push_async_callback(credentials.close)
        upstreams = LiveUpstreams(egress, partial(_upstream_headers, credentials))
        await stack.enter_async_context(upstreams.sessions)
        fetcher = Fetcher(egress, folder)
        fetcher.remember(settings.cache.schema_ttl_seconds, settings.cache.max_entries)
        discoverer = Discoverer(
            fetcher,
            workers,
            upstreams.read,
            egress.check,
            AzureDirectory(
                partial(ask_azure, egress, credentials),
                lambda: catalog.current.settings.azure,
                partial(return_address, seal, place.public_url(settings)),
                partial(azure_identity, credentials),
            ),
            partial(prove, credentials),
        )
        persistence = StoredCatalog(db, seal)
        catalog = Catalog(
            settings,
            discoverer,
            persistence,
            portable=portable_tools,
            demo={"demo": demo_connection(place.own_url)},
        )
        stack.push_async_callback(catalog.close)
        catalog.on_change(lambda: upstreams.follow(catalog.current))
        schedule = Schedule(catalog, persistence, workers.advise, folder)
        upstreams.sessions.on_tools_changed(schedule.wake)
        relay = StoreRelay(db)
        upstreams.sessions.on_trouble(partial(_mark_failing, catalog, relay))
        azure = AzureWatch(discoverer.azure, catalog, persistence)
        stack.push_async_callback(azure.close)
        await catalog.load()
        limits = Admission(settings.limits.max_concurrent_calls, shared=_shared(settings, db))
        ways = (egress, own_egress, credentials, upstreams.sessions)
        send = Sender(*ways, limits, db, workers.work, discoverer.azure.sign_in_link)
        line = Line(db, seal, send, lambda: catalog.current)
        gateway = Gateway(catalog, line.invoker, line.approvals, db, azure, workers.work, OWN_TOOLS)
        gateway.wake = schedule.wake
        if (traced := tracer()) is not None:
            line.invoker.on_finished(traced[0])
            stack.push_async_callback(asyncio.to_thread, traced[1])
        await stack.enter_async_context(line.started(partial(resume, gateway)))
        sessions = SharedSessions(db)
        await sessions.load()
        offers = UpstreamOffers(gateway, upstreams, limits, INSTRUCTIONS)
        app = _assembled(settings, place, gateway, seal, egress, line.feed, sessions, offers, relay)
        line.signals.on(SESSION_ENDED, sessions.hear)
        line.signals.on(SESSION_ENDED, offers.forget)
        line.signals.on(CANCELLED, on_cancelled(app.mcp.cancel))
        line.signals.on(ANSWERED, on_answered(app.mcp.take_answer))
        line.signals.on(WISHED, on_wished(offers.take))
        line.signals.on(DOUBTED, on_doubted(schedule.wake))
        for task in await first_look(catalog, azure, loading):
            stack.push_async_callback(_ended, task)
        notifier = Notifier(db)
        await notifier.start(catalog.hear, line.signals.hear)
        stack.push_async_callback(notifier.close)
        watching = _watch(settings, place, app, egress, limits, fetcher)
        for wish in reversed(await kept_wishes(db, time.time())):
            offers.take(wish)
        looking = (schedule.run(), schedule.watch_files(), schedule.advise(), azure.poll())
        for work in (*looking, catalog.follow(), watching):
            stack.push_async_callback(_ended, asyncio.create_task(work))
        workers.keep_spare()  # last: who starts has other things to load
        yield app


def _shared(settings: Settings, db: Database) -> Database | None:
    """Where rate limits are counted if there are, or may be, other processes."""
    alone = settings.server.workers == 1 and settings.store.url.startswith("sqlite")
    return None if alone else db


def demo_connection(own_url: str) -> OpenApiConnection:
    """The bookshop as a connection like any other."""
    return OpenApiConnection(
        kind="openapi",
        display_name="Book shop",
        spec=definition().decode(),
        base_url=f"{own_url}/demo",
    )


def store_url(settings: Settings, folder: Path) -> str:
    """The store's address; a relative SQLite path counts from the folder of config.toml."""
    url = settings.store.url
    if not url.startswith("sqlite:///"):
        return url
    return f"sqlite:///{(folder / url.removeprefix('sqlite:///')).resolve()}"


def _assembled(
    settings: Settings,
    place: Place,
    gateway: Gateway,
    seal: Seal,
    egress: Egress,
    feed: Feed,
    sessions: SharedSessions,
    offers: UpstreamOffers,
    relay: StoreRelay,
) -> App:
    public_url = place.public_url(settings)
    server = settings.server

    async def fetch_keys(url: str) -> bytes:
        answer = await egress.send(
            Request("GET", url), deadline=SIGNING_KEYS_SECONDS, max_bytes=MAX_BODY_BYTES
        )
        if answer.status != 200 or answer.truncated:
            raise UpstreamFailed("upstream_error", "the signing keys can't be fetched")
        return answer.body

    identity = Identity(auth_settings(settings, public_url), fetch_keys)
    offers.share(relay.wished)
    mcp = McpEndpoint(
        gateway,
        identity,
        seal,
        EdgeSettings(
            public_url=public_url,
            allowed_hosts=server.allowed_hosts,
            allowed_origins=server.allowed_origins,
            version=__version__,
            instructions=INSTRUCTIONS,
            request_seconds=settings.limits.request_seconds,
        ),
        ended=sessions,
        relay=relay,
        offers=offers,
    )

    health = Health(gateway, identity, mcp.figures)
    for listener in (health.metrics.finished, log_call):
        gateway.invoker.on_finished(listener)
    rules = host_rules(public_url, server.allowed_hosts, server.allowed_origins)
    others = [*health.routes, consent_route(gateway, seal)]
    rest = http_app(gateway, identity, feed, others)
    console = console_of(gateway, identity, seal, health, feed, public_url)
    mcp.on_heard(console.parts.contacts.note)
    return App(gateway, mcp, health, identity, rules, bookshop(), rest, feed, console)


async def _watch(
    settings: Settings, place: Place, app: App, egress: Egress, limits: Admission, fetcher: Fetcher
) -> None:
    """Applies edits of config.toml for as long as the gateway runs."""
    catalog, azure = app.gateway.catalog, app.gateway.azure

    async def apply(edited: Settings) -> None:
        refuse_edit(edited, catalog.current)
        egress.follow(**edited.network.rules)
        limits.resize(edited.limits.max_concurrent_calls)
        if edited.cache != catalog.current.settings.cache:
            fetcher.remember(edited.cache.schema_ttl_seconds, edited.cache.max_entries)
        before = catalog.current.settings
        pending = await catalog.apply(edited)
        reachable = edited.network != before.network
        if reachable:  # what could not be reached may be now
            states = catalog.current.connections.values()
            pending += [state.name for state in states if state.status == "failing"]
        at_azure = edited.azure != before.azure or (reachable and azure.problem is not None)
        # No await between the swap and this: policy and identity change together.
        app.identity.settings = auth_settings(edited, place.public_url(edited))
        looks.create_task(look(pending, at_azure))

    async def look(names: list[str], at_azure: bool) -> None:
        """Reads what an edit brought; the next edit does not wait for a slow server."""
        try:
            await catalog.refresh(names, by="config.toml")
            if at_azure:
                await azure.refresh(by="config.toml")
        except GatewayError as error:  # the store, or a connection that is gone again
            log.warning("edited connections not read", error=error.message)

    def report(problem: str | None) -> None:
        app.health.config_problem = problem

    async with asyncio.TaskGroup() as looks:
        await watch(place.config, settings, apply, report)


def _mark_failing(catalog: Catalog, relay: StoreRelay, name: str, error: GatewayError) -> None:
    """Shows that an MCP server can't be reached, here and in other processes."""
    if catalog.mark_failing(name, error):
        relay.doubted(name)


async def _upstream_headers(
    credentials: Credentials, name: str, settings: Connection, refused: bool
) -> tuple[tuple[str, str], ...]:
    """What proves us to an upstream MCP server; a fresh token where it refused the last one."""
    auth = auth_of(settings.auth)
    grant = await credentials.grant(name, auth)
    if refused:
        credentials.reject(name, grant)
        grant = await credentials.grant(name, auth)
    return grant.headers


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
