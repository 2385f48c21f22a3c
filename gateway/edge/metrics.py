"""Figures for Prometheus: read off execution records as calls end, and off the parts when asked.

Labels are bounded: connections, states, access levels and error codes, never tools, principals or
anything a caller can choose.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.catalog.snapshot import Snapshot
from gateway.store.executions import Execution

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Metrics:
    """Counts calls; everything else is looked up when it is asked for."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        figures: Callable[[], dict[str, int]],
    ) -> None:
        self.registry = CollectorRegistry()
        self._snapshot = snapshot
        self._calls = Counter(
            "gateway_calls",
            "Calls by connection, access and how they ended.",
            ("connection", "access", "status"),
            registry=self.registry,
        )
        self._errors = Counter(
            "gateway_errors",
            "Calls that failed or were refused, by code.",
            ("connection", "code"),
            registry=self.registry,
        )
        self._upstream = Counter(
            "gateway_upstream_answers",
            "Answers of upstream APIs by class of status.",
            ("connection", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "gateway_call_seconds",
            "How long calls took, from the first look at them to their record.",
            ("connection",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self._upstream_seconds = Histogram(
            "gateway_upstream_seconds",
            "How long upstream APIs and servers took to answer.",
            ("connection",),
            buckets=SECONDS,
            registry=self.registry,
        )
        counters = (self._calls, self._errors, self._upstream)
        self._families = (*counters, self._seconds, self._upstream_seconds)
        self.registry.register(_State(snapshot, figures))
        self._known: dict[tuple[str, str, str, int], _Children] = {}

    def finished(self, execution: Execution) -> None:
        """Counts one call."""
        connection, status = execution.connection, execution.upstream_status
        kind = (execution.access, execution.status, status // 100 if status else 0)
        known = self._known.get((connection, *kind))
        if known is None:
            self._let_go()
            known = self._known[(connection, *kind)] = self._children(connection, *kind)
        for counter in known.counters:
            counter.inc()
        if execution.error_code:
            self._errors.labels(connection, execution.error_code).inc()
        if execution.result:
            known.seconds.observe(execution.result["duration_ms"] / 1000)
            if (waited := execution.result.get("upstream_ms")) is not None:
                known.upstream_seconds.observe(waited / 1000)

    def _let_go(self) -> None:
        """Forgets connections that are no more: names that come and go must not pile up."""
        gone = {connection for connection, *_ in self._known} - self._snapshot().connections.keys()
        for family in self._families:
            for connection in gone:
                family.remove_by_labels({"connection": connection})
        self._known = {key: known for key, known in self._known.items() if key[0] not in gone}

    def _children(self, connection: str, access: str, status: str, answer: int) -> _Children:
        """What a call of this kind is counted in, looked up once: labels are dear."""
        counters = [self._calls.labels(connection, access, status)]
        if answer:
            counters.append(self._upstream.labels(connection, f"{answer}xx"))
        seconds, upstream = self._seconds, self._upstream_seconds
        return _Children(tuple(counters), seconds.labels(connection), upstream.labels(connection))


@dataclass(frozen=True, slots=True)
class _Children:
    counters: tuple[Counter, ...]
    seconds: Histogram
    upstream_seconds: Histogram


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
