"""Watching the gateway: alive, ready, its health, figures for Prometheus, and live events.

`/healthz` and `/readyz` tell nothing else, to anyone. Connections are told to callers with a token,
to each as far as it may know of them; without a token, `/health` and `/metrics` give sums. All four
answer whatever the Host header says, since probes come by a pod's address.

The live feed tells of confirmations, results, tools and connections. The store is its queue: a
reader is woken, reads on from its position and writes at its own pace, so nothing piles up for a
slow reader, and a reader that was cut off goes on after the last id it saw. Tools and connections
are not events of the store; each reader compares those it sees with those it last told of.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway import __version__
from gateway.calls.record import Caller
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import people_sign_in
from gateway.errors import GatewayError, Unauthenticated
from gateway.model import Principal, Problem, TlsFiles, ViewAddress, json_bytes
from gateway.outbound.certificates import Ends, ending_soon
from gateway.policy.access import configuration_problems, level, may_know, oversight
from gateway.policy.view import make_view
from gateway.store.approvals import count_waiting, get_approvals
from gateway.store.catalog import count_held
from gateway.store.cluster import events_after, newest_ids
from gateway.store.ledger import get_executions
from gateway.store.tables import Approval, Credential
from gateway.telemetry import Metrics
from gateway.web import todo
from gateway.web.display import decided_row, execution_event
from gateway.web.gateway import Gateway, Inquiry
from gateway.web.guard import EventStream, Fields, HostRules, Say, check_host, event_frame, fold
from gateway.web.identity import Identity
from gateway.web.todo import Task

log = structlog.get_logger("gateway.watch")

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Health:
    """Answers /healthz, /readyz, /health and /metrics."""

    def __init__(
        self,
        gateway: Gateway,
        identity: Identity,
        rules: HostRules,
        figures: Callable[[], dict[str, int]],
        ends: Callable[[Mapping[str, TlsFiles]], Awaitable[Ends]],
    ) -> None:
        self._gateway = gateway
        self._identity = identity
        self._rules = rules
        self._figures = figures
        self._certificate_ends = ends
        self._started = time.time()
        self.metrics = Metrics()
        self.draining = False
        self.config_problem: str | None = None
        self.problems: tuple[Problem, ...] = ()  # of the configuration, in the current snapshot
        self._logged_problems: set[tuple[str, Problem]] = set()
        self._connection_tasks: list[Task] = []  # of the current snapshot
        gateway.catalog.on_change(self._follow_catalog)
        self._follow_catalog()
        self.routes = [
            Route("/healthz", self._alive),
            Route("/readyz", self._ready),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]

    async def _alive(self, request: Request) -> Response:
        return PlainTextResponse("ok")

    async def _ready(self, request: Request) -> Response:
        store = await self._store()
        if self.draining or store != "ok":
            return PlainTextResponse("draining" if self.draining else store, 503)
        return PlainTextResponse("ready")

    async def _health(self, request: Request) -> Response:
        report = await self.report(await self._principal(request))
        return Response(json_bytes(report), media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        waiting = float("nan")  # unknown while the store does not answer
        with suppress(GatewayError):
            waiting = await count_waiting(self._gateway.db, time.time())
        snapshot, unknown = self._gateway.snapshot, self._gateway.unknown_calls
        figures: dict[str, float] = {
            "catalog_revision": snapshot.revision,
            "tools": len(snapshot.tools),
        }
        figures |= {"pending_approvals": waiting, **self._figures()}
        statuses = (state.status for state in snapshot.connections.values())
        principal = await self._principal(request)
        # The names in the figures are of every organization's connections.
        with_names = principal is not None and principal.admin and principal.organization is None
        text = self.metrics.text(statuses, unknown, figures, by_name=with_names)
        return Response(text, media_type=PROMETHEUS)

    async def _principal(self, request: Request) -> Principal | None:
        """The caller. Where no token is needed, the Host must be ours: pages can rebind theirs."""
        fields = fold(request.scope["headers"])
        try:
            if self._identity.auth.mode == "none":
                check_host(self._rules, request.scope, fields)
            return await self._identity.identify(fields)
        except (HTTPException, Unauthenticated, GatewayError):
            return None

    def _follow_catalog(self) -> None:
        """Notes the tasks, and logs each problem of the configuration once while it lasts."""
        snapshot = self._gateway.snapshot
        self.metrics.forget_all_but(snapshot.connections)
        self.problems = configuration_problems(snapshot)
        problems = [("", each) for each in self.problems]
        for name, state in snapshot.connections.items():
            problems += [(name, each) for each in state.problems if each.configured]
        for connection, problem in problems:
            if (connection, problem) not in self._logged_problems:
                about = {"connection": connection} if connection else {}
                log.warning("configuration problem", **about, **problem.as_dict())
        self._logged_problems = set(problems)
        states = snapshot.connections.values()
        self._connection_tasks = [task for state in states for task in todo.connection_tasks(state)]

    async def tasks(self, principal: Principal, waiting: int) -> list[Task]:
        """The tasks that this principal may know of, the most urgent first."""
        snapshot, db, trouble = self._gateway.snapshot, self._gateway.db, ""
        states, network = snapshot.connections, snapshot.settings.network
        change_counts, shared = dict[str, int](), dict[str, Credential]()
        try:
            change_counts = await count_held(db, oversight(snapshot, principal))
            if any(people_sign_in(state.settings.auth) for state in states.values()):
                shared = dict(await self._gateway.people.rows_of(""))
        except GatewayError as error:
            trouble = error.code
        tables = todo.tls_tables(network.ca_file, {n: s.settings for n, s in states.items()})
        tasks = [
            *self._connection_tasks,
            *todo.sign_in_tasks(states.values(), shared if not trouble else None),
            *todo.configuration_tasks(self.config_problem, self.problems),
            *todo.group_tasks(snapshot.problems),
            *todo.approval_tasks(waiting),
            *todo.change_tasks(change_counts, states),
            *todo.ending_tasks(ending_soon(await self._certificate_ends(tables)), states.values()),
            *todo.store_tasks(trouble, db.dropped),
        ]
        return todo.sort_tasks(todo.visible_tasks(tasks, snapshot, principal))

    async def report(self, principal: Principal | None) -> dict[str, Any]:
        """The whole state in one object, as far as the caller may know it.

        The status covers everything; `left_out` says which parts the caller is not told.
        """
        snapshot, store = self._gateway.snapshot, await self._store()
        problems = (*snapshot.problems, *self.problems)
        return {
            "status": self._status(snapshot, store, problems),
            "version": __version__,
            "revision": snapshot.revision,
            "uptime_seconds": round(time.time() - self._started, 1),
            "store": store,
            "draining": self.draining,
            "config": "ok" if self.config_problem is None else "problem",
            **self._figures(),
            **self._details(snapshot, principal, problems),
            **(await self._todo(principal) if principal and principal.admin else {}),
        }

    async def _todo(self, principal: Principal) -> dict[str, Any]:
        visible, waiting = ("", oversight(self._gateway.snapshot, principal)), 0
        with suppress(GatewayError):
            waiting = await count_waiting(self._gateway.db, time.time(), visible)
        return {"todo": [task.as_dict() for task in await self.tasks(principal, waiting)]}

    def _details(
        self, snapshot: Snapshot, principal: Principal | None, problems: Iterable[Problem]
    ) -> dict[str, Any]:
        if principal is None:
            words = "connections and problems: send a token to see them"
            return {"connections": [], "left_out": words}
        # Not by way of an inquiry: that would wake lazy servers, which no caller needs here.
        visible = make_view(snapshot, principal, ViewAddress(), ()).connections
        states = [s for s in snapshot.connections.values() if may_know(principal, s)]
        rows = [self._row(state, len(visible.get(state.name, ()))) for state in states]
        details = {
            "tools": sum(row["tools"] for row in rows),
            "connections": rows,
            "connections_by_status": Tally(state.status for state in states),
        }
        if not principal.admin or principal.organization is not None:
            return details | {"left_out": "problems, and connections of others: admins see them"}
        problem_rows = [each.as_dict() for each in problems]
        return details | {"config_problem": self.config_problem, "problems": problem_rows}

    def _status(self, snapshot: Snapshot, store: str, problems: Iterable[Problem]) -> str:
        if store != "ok":
            return "failing"
        is_failing = any(state.status == "failing" for state in snapshot.connections.values())
        has_errors = any(problem.severity == "error" for problem in problems)
        return "degraded" if is_failing or has_errors or self.config_problem is not None else "ok"

    def _row(self, state: ConnectionState, tools: int) -> dict[str, Any]:
        return {
            "name": state.name,
            "status": state.status,
            "tools": tools,
            "last_refresh": self._gateway.catalog.refreshed_at.get(state.name),
            "problems": Tally(p.severity for p in state.problems if p.severity != "info"),
        }

    async def _store(self) -> str:
        try:
            await self._gateway.db.ping()
        except GatewayError as error:
            return error.code
        return "ok"


# --- the live feed --------------------------------------------------------------------------------


async def event_stream(inquiry: Inquiry, identity: Identity, request: Request) -> EventStream:
    """The stream of one reader: from the event after its last one on, else of new events."""
    last = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    feed, (newest, _) = inquiry.gateway.feed, await newest_ids(inquiry.gateway.db)
    has_position = last is not None and last.isascii() and last.isdigit() and len(last) < 19
    position = min(int(last or 0), newest) if has_position else newest
    await feed.announce_reader()
    reader = Reader(inquiry, identity, fold(request.scope["headers"]), position)
    return feed.stream(inquiry.principal.name, reader.step)


class Reader:
    """A reader of the feed, with the tools and connections it was last told of."""

    def __init__(self, inquiry: Inquiry, identity: Identity, fields: Fields, position: int) -> None:
        self._inquiry = inquiry
        self._identity = identity
        self._fields = fields
        self._position = position  # the last event that was told
        self._tools, self._connections = self._visible_state()

    async def step(self, say: Say) -> bool:
        """Writes what is new; False: the reader may read no longer."""
        feed = self._inquiry.gateway.feed
        if feed.closing or not await self._may_read():
            return False
        try:
            await feed.announce_reader()
            while events := await self._events():
                self._position = events[-1][0]
                visible = (event for event in events if event[2])
                await say(b"".join(frame(kind, data, id) for id, kind, data in visible))
        except GatewayError as error:  # the store is away; its events will still be there
            log.warning("events not read", code=error.code)
        await say(b"".join(self._news()))
        return True

    async def _may_read(self) -> bool:
        """Whether the token is still good; the rights of its principal may have changed."""
        try:
            principal = await self._identity.identify(self._fields)
        except Unauthenticated:
            return False
        is_same = principal.name == self._inquiry.principal.name
        self._inquiry = self._inquiry.gateway.inquiry(Caller(principal))
        return is_same

    async def _events(self) -> list[tuple[int, str, dict[str, Any]]]:
        """The next events: id, kind, and the execution or approval as it is now, if the reader may
        see it."""
        db = self._inquiry.gateway.db
        events = await events_after(db, self._position)
        ids = [each.payload for each in events]
        may_see, calls = self._inquiry.concerns, await get_executions(db, ids)
        rows = {id: execution_event(row) for id, row in calls.items() if may_see(row)}
        approvals = await get_approvals(db, ids)
        rows |= {id: self._decision(row) for id, row in approvals.items() if may_see(row)}
        return [(each.id, each.kind, rows.get(each.payload, {})) for each in events]

    def _news(self) -> list[bytes]:
        """Events for the tools and connections that are not as they were last told."""
        before, (tools, connections) = self._connections, self._visible_state()
        frames = []
        if tools != self._tools:
            frames.append(frame("tools_changed", {"revision": self._inquiry.snapshot.revision}))
        for name in sorted(before.keys() | connections.keys()):
            if before.get(name) != connections.get(name):
                deletion = {"name": name, "status": "deleted"}
                frames.append(frame("connection", connections.get(name, deletion)))
        self._tools, self._connections = tools, connections
        return frames

    def _visible_state(self) -> tuple[str, dict[str, dict[str, Any]]]:
        inquiry, tools = self._inquiry, self._inquiry.view.connections
        connections = {
            state.name: {
                "name": state.name,
                "status": state.status,
                "tools": len(tools.get(state.name, ())),
                "effective_access": level(inquiry.snapshot, inquiry.principal, state),
            }
            for state in inquiry.connections()
        }
        return inquiry.view.digest, connections

    def _decision(self, approval: Approval) -> dict[str, Any]:
        # The feed tells of decisions: an approval that has been used since was approved.
        status = {"status": "approved"} if approval.status == "used" else {}
        return decided_row(self._inquiry.snapshot, approval) | status


def frame(kind: str, data: Any, id: int | None = None) -> bytes:
    """One server-sent event."""
    return event_frame(json_bytes(data).strip(), kind, id)
