"""For those who operate the gateway: alive, ready, how it is, and figures for Prometheus.

`/healthz` and `/readyz` say nothing but that, to anyone. What connections there are is told to
callers with a token, each as far as it may know; without one, `/health` and `/metrics` give sums.

Figures for Prometheus: read off execution records as calls end, and off the parts when asked.

Labels are bounded: connections, states, access levels and error codes, never tools, principals or
anything a caller can choose.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import orjson
import structlog
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from gateway import __version__
from gateway.catalog.discover import problem_dict
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import GatewayError, Unauthenticated
from gateway.model import Principal, Problem
from gateway.policy.access import may_know
from gateway.policy.problems import configuration_problems
from gateway.store.approvals import count_waiting
from gateway.store.ledger import Execution
from gateway.web.gateway import Gateway
from gateway.web.guard import fold, respond
from gateway.web.identity import Identity

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


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Metrics(Collector):
    """Counts calls; everything else is looked up when it is asked for.

    Plain numbers, made into families when they are asked for: a library's counters would be a
    fiftieth of a call.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        figures: Callable[[], dict[str, int]],
        unknown: Callable[[], int] = lambda: 0,
    ) -> None:
        self._snapshot = snapshot
        self._unknown = unknown  # calls of tools that their callers don't have
        self._calls: dict[tuple[str, str, str], int] = {}  # by connection, access, status
        self._errors: dict[tuple[str, str], int] = {}  # by connection and code
        self._answers: dict[tuple[str, int], int] = {}  # by connection and class of status
        self._times: dict[str, _Times] = {}  # by connection
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.registry.register(_State(snapshot, figures))

    def finished(self, execution: Execution) -> None:
        """Counts one call; one that found no tool is counted where it was refused."""
        if not execution.connection:
            return
        connection, status = execution.connection, execution.upstream_status
        times = self._times.get(connection)
        if times is None:
            self._let_go()
            times = self._times[connection] = _Times(_Spread(), _Spread())
        kind = (connection, execution.access, execution.status)
        self._calls[kind] = self._calls.get(kind, 0) + 1
        if status:
            answer = (connection, status // 100)
            self._answers[answer] = self._answers.get(answer, 0) + 1
        if execution.error_code:
            code = (connection, execution.error_code)
            self._errors[code] = self._errors.get(code, 0) + 1
        if execution.result:
            times.whole.add(execution.result["duration_ms"] / 1000)
            if (waited := execution.result.get("upstream_ms")) is not None:
                times.upstream.add(waited / 1000)

    def _let_go(self) -> None:
        """Forgets connections that are no more: names that come and go must not pile up."""
        known = self._snapshot().connections
        self._times = {name: times for name, times in self._times.items() if name in known}
        self._calls = {key: count for key, count in self._calls.items() if key[0] in known}
        self._errors = {key: count for key, count in self._errors.items() if key[0] in known}
        self._answers = {key: count for key, count in self._answers.items() if key[0] in known}

    def collect(self) -> Iterator[Metric]:
        words = "Calls by connection, access and how they ended."
        calls = CounterMetricFamily(
            "gateway_calls", words, labels=["connection", "access", "status"]
        )
        for kind, count in self._calls.items():
            calls.add_metric(kind, count)
        words = "Calls that failed or were refused, by code."
        errors = CounterMetricFamily("gateway_errors", words, labels=["connection", "code"])
        for code, count in self._errors.items():
            errors.add_metric(code, count)
        words = "Answers of upstream APIs by class of status."
        answers = CounterMetricFamily(
            "gateway_upstream_answers", words, labels=["connection", "status"]
        )
        for (connection, status), count in self._answers.items():
            answers.add_metric((connection, f"{status}xx"), count)
        words = "How long calls took, from the first look at them to their record."
        whole = HistogramMetricFamily("gateway_call_seconds", words, labels=["connection"])
        words = "How long upstream APIs and servers took to answer."
        upstream = HistogramMetricFamily("gateway_upstream_seconds", words, labels=["connection"])
        for connection, times in self._times.items():
            whole.add_metric((connection,), times.whole.buckets(), times.whole.sum)
            upstream.add_metric((connection,), times.upstream.buckets(), times.upstream.sum)
        words = "Calls of tools that the caller does not have, hidden or not there at all."
        unknown = CounterMetricFamily("gateway_unknown_tool_calls", words, value=self._unknown())
        return iter((calls, errors, answers, whole, upstream, unknown))


class _Spread:
    """How many durations were how long."""

    __slots__ = ("_counts", "sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has it: how many were not longer than each."""
        return list(zip(_BOUNDS, accumulate(self._counts), strict=True))


_BOUNDS = (*map(str, SECONDS), "+Inf")


@dataclass(frozen=True, slots=True)
class _Times:
    whole: _Spread
    upstream: _Spread


class _State(Collector):
    """What is so at the moment it is asked for."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], figures: Callable[[], dict[str, int]]
    ) -> None:
        self._snapshot = snapshot
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        info = GaugeMetricFamily("gateway_info", "The running version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield GaugeMetricFamily(
            "gateway_catalog_revision", "Revision of the catalog.", snapshot.revision
        )
        yield GaugeMetricFamily("gateway_tools", "Tools that are served.", len(snapshot.tools))
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("gateway_tasks", "Tasks of the event loop.", tasks)
        connections = GaugeMetricFamily(
            "gateway_connections", "Connections by status.", labels=["status"]
        )
        for status, number in Tally(s.status for s in snapshot.connections.values()).items():
            connections.add_metric([status], number)
        yield connections
        for name, value in self._figures().items():
            yield GaugeMetricFamily(f"gateway_{name}", name.replace("_", " "), value)
