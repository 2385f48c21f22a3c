"""For those who operate the gateway: alive, ready, how it is, and figures for Prometheus.

`/healthz` and `/readyz` say nothing but that, to anyone. What connections there are is told to
callers with a token, each as far as it may know; without one, `/health` and `/metrics` give sums.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
import structlog
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from gateway import __version__
from gateway.catalog.discover import problem_dict
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.edge.gateway import Gateway
from gateway.edge.http_guard import fold, respond
from gateway.edge.identity import Identity
from gateway.errors import GatewayError, Unauthenticated
from gateway.model import Principal, Problem
from gateway.policy.access import may_know
from gateway.policy.problems import configuration_problems
from gateway.store.approvals import count_waiting

log = structlog.get_logger("gateway.configuration")

TEXT = b"text/plain; charset=utf-8"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class Health:
    """Answers /healthz, /readyz, /health and /metrics."""

    def __init__(
        self,
        gateway: Gateway,
        identity: Identity,
        registry: CollectorRegistry,
        figures: Callable[[], dict[str, int]],
    ) -> None:
        self._gateway = gateway
        self._identity = identity
        self._registry = registry
        self._figures = figures
        self._pending = Gauge(
            "gateway_pending_approvals", "Calls that wait for a person.", registry=registry
        )
        self._started = time.time()
        self.draining = False
        self.config_problem: str | None = None
        self.problems: tuple[Problem, ...] = ()  # of the configuration, in the current snapshot
        self._told: set[tuple[str, Problem]] = set()
        gateway.on_change(self._find_problems)
        self._find_problems()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await respond(send, 405, b"", [(b"allow", b"GET, HEAD")])
            return
        match scope["path"]:
            case "/healthz":
                await respond(send, 200, b"ok", content_type=TEXT)
            case "/readyz":
                await self._ready(send)
            case "/health":
                who = await self._who(scope)
                await respond(send, 200, orjson.dumps(await self.report(who)))
            case _:
                await respond(send, 200, await self._metrics(scope), content_type=PROMETHEUS)

    async def _who(self, scope: Scope) -> Principal | None:
        try:
            return await self._identity.identify(fold(scope["headers"]))
        except (Unauthenticated, GatewayError):
            return None

    async def _ready(self, send: Send) -> None:
        store = await self._store()
        ready = store == "ok" and not self.draining
        reason = b"ready" if ready else b"draining" if self.draining else store.encode()
        await respond(send, 200 if ready else 503, reason, content_type=TEXT)

    async def _metrics(self, scope: Scope) -> bytes:
        try:
            self._pending.set(await count_waiting(self._gateway.db, time.time()))
        except GatewayError:
            self._pending.set(float("nan"))  # the store does not answer: nobody knows
        who = await self._who(scope)
        if who is not None and who.admin:
            return generate_latest(self._registry)
        summed = CollectorRegistry()
        summed.register(_Summed(self._registry))
        return generate_latest(summed)

    def _find_problems(self) -> None:
        """Logs what operators wrote and what does not hold, each once for as long as it is so."""
        snapshot = self._gateway.snapshot
        self.problems = configuration_problems(snapshot)
        problems = [("", each) for each in self.problems]
        for name, state in snapshot.connections.items():
            problems += [(name, each) for each in state.problems if each.configured]
        for connection, problem in problems:
            if (connection, problem) not in self._told:
                about = {"connection": connection} if connection else {}
                log.warning("configuration problem", **about, **problem_dict(problem))
        self._told = set(problems)

    async def report(self, who: Principal | None) -> dict[str, Any]:
        """The whole state in one object, as far as the caller may know it."""
        snapshot = self._gateway.snapshot
        states = [s for s in snapshot.connections.values() if who and may_know(who, s)]
        store = await self._store()
        admin = who is not None and who.admin
        problems = (*snapshot.problems, *self.problems)
        return {
            "status": self._status(snapshot, store, problems),
            "version": __version__,
            "revision": snapshot.revision,
            "uptime_seconds": round(time.time() - self._started, 1),
            "tools": sum(len(state.tools) for state in states),
            "connections": [self._row(state) for state in states],
            "connections_by_status": Counter(state.status for state in states),
            "store": store,
            "draining": self.draining,
            "config": "ok" if self.config_problem is None else "problem",
            "config_problem": self.config_problem if admin else None,
            "problems": [problem_dict(each) for each in problems] if admin else [],
            **self._figures(),
        }

    def _status(self, snapshot: Snapshot, store: str, problems: Iterable[Problem]) -> str:
        if store != "ok":
            return "failing"
        failing = any(state.status == "failing" for state in snapshot.connections.values())
        wrong = any(problem.severity == "error" for problem in problems)
        return "degraded" if failing or wrong or self.config_problem is not None else "ok"

    def _row(self, state: ConnectionState) -> dict[str, Any]:
        return {
            "name": state.name,
            "status": state.status,
            "tools": len(state.tools),
            "last_refresh": self._gateway.catalog.refreshed_at.get(state.name),
            "problems": Counter(problem.severity for problem in state.problems),
        }

    async def _store(self) -> str:
        try:
            await self._gateway.db.ping()
        except GatewayError as error:
            return error.code
        return "ok"


class _Summed(Collector):
    """The same figures without the names of connections."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            summed = Metric(family.name, family.documentation, family.type, family.unit)
            for name, labels, value in _sums(family):
                summed.add_sample(name, labels, value)
            yield summed


def _sums(family: Metric) -> Iterable[tuple[str, dict[str, str], float]]:
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in family.samples:
        if sample.name.endswith("_created"):
            continue
        labels = tuple((k, v) for k, v in sample.labels.items() if k != "connection")
        key = (sample.name, labels)
        sums[key] = sums.get(key, 0.0) + sample.value
    return ((name, dict(labels), value) for (name, labels), value in sums.items())
