"""Figures for Prometheus: read off execution records as calls end, and off the parts when asked.

Labels are bounded: connections, states, access levels and error codes, never tools, principals or
anything a caller can choose.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.catalog.snapshot import Snapshot
from gateway.store.executions import Execution

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
