"""Reports the gateway's work: logs, figures, and OpenTelemetry spans if switched on.

Logs are events with fields: readable on a terminal, one JSON object a line elsewhere. A call that
went well is in the ledger and in the figures; only other calls are logged. Spans are made of a
call's record when it has ended, so that tracing costs nothing while it runs; OpenTelemetry's usual
variables configure it (OTEL_EXPORTER_OTLP_ENDPOINT switches it on, OTEL_SERVICE_NAME names us).
Names, states and codes are reported, never arguments or answers. Labels of figures are bounded:
connections, states, access levels and error codes, never a text that a caller can choose.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from bisect import bisect_left
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import accumulate, count
from typing import Any

import structlog
from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.store.tables import Execution

# The number of the current request in this process. It becomes text only where an event is logged:
# nearly every request comes and goes without one.
_request: ContextVar[int] = ContextVar("request")
_numbers = count(1)
_process = secrets.token_hex(4)

log = structlog.get_logger("gateway.call")


def begin_request() -> None:
    """Numbers a request: all events from here on, also those of tasks started, name it."""
    _request.set(next(_numbers))


def set_up(level: int = logging.INFO) -> None:
    """Sends the logs of the gateway and its libraries to standard error."""
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    processors: list[structlog.types.Processor] = [
        with_request,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *processors,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=processors,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def with_request(
    logger: object, name: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """Adds to an event the request that it belongs to."""
    number = _request.get(0)
    if number:
        event["request"] = f"{_process}-{number}"
    return event


_LOGGED = "tool connection principal status upstream_status session".split()


def log_call(execution: Execution) -> None:
    """Logs how a call ended, unless it went well."""
    if execution.status != "completed":
        fields = {name: getattr(execution, name) for name in _LOGGED}
        duration = (execution.result or {}).get("duration_ms")
        code = execution.error_code
        log.info("call ended", execution=execution.id, code=code, duration_ms=duration, **fields)


# Families of figures: their names, words and labels.
_COUNTED = (
    ("calls", "Calls by connection, access and how they ended.", "access status"),
    ("errors", "Calls that failed or were refused, by code.", "code"),
    ("upstream_answers", "Answers of upstream APIs by class of status.", "status"),
)
_TIMED = (
    ("call_seconds", "How long calls took, from the first look at them to their record."),
    ("upstream_seconds", "How long upstream APIs and servers took to answer."),
)
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Metrics:
    """Figures for Prometheus: of calls, counted when they end; all others when they are read.

    The library's own counters would take ten times as long as these.
    """

    def __init__(self) -> None:
        self._counts: Tally[tuple[str, ...]] = Tally()  # by family, connection and other labels
        # By family and connection: the calls in each bucket; the last number is the sum of seconds.
        self._seconds: defaultdict[tuple[str, str], list[float]]
        self._seconds = defaultdict(lambda: [0.0] * (len(_BUCKETS) + 2))

    def count_call(self, execution: Execution) -> None:
        """Counts one call; a call that found no tool is counted where it was refused."""
        name, status, result = execution.connection, execution.upstream_status, execution.result
        if not name:
            return
        self._counts["calls", name, execution.access, execution.status] += 1
        if status:
            self._counts["upstream_answers", name, f"{status // 100}xx"] += 1
        if execution.error_code:
            self._counts["errors", name, execution.error_code] += 1
        if result:
            self._observe("call_seconds", name, result["duration_ms"] / 1000)
            if (upstream_ms := result.get("upstream_ms")) is not None:
                self._observe("upstream_seconds", name, upstream_ms / 1000)

    def _observe(self, family: str, name: str, seconds: float) -> None:
        figures = self._seconds[family, name]
        figures[bisect_left(_BUCKETS, seconds)] += 1
        figures[-1] += seconds

    def forget_all_but(self, names: Iterable[str]) -> None:
        """Forgets connections that are no more: names that come and go must not pile up."""
        current = {*names}
        tables: tuple[dict[Any, Any], ...] = (self._counts, self._seconds)
        for figures in tables:
            for key in [key for key in figures if key[1] not in current]:
                del figures[key]

    def _families(self) -> Iterator[Metric]:
        for name, words, labels in _COUNTED:
            family = CounterMetricFamily(
                f"gateway_{name}", words, labels=["connection", *labels.split()]
            )
            for key, number in self._counts.items():
                if key[0] == name:
                    family.add_metric(key[1:], number)
            yield family
        for name, words in _TIMED:
            timed = HistogramMetricFamily(f"gateway_{name}", words, labels=["connection"])
            for (family_name, connection), (*figures, total) in self._seconds.items():
                if family_name == name:
                    buckets = zip((*map(str, _BUCKETS), "+Inf"), accumulate(figures), strict=True)
                    timed.add_metric([connection], [*buckets], total)
            yield timed

    def text(
        self, statuses: Iterable[str], unknown: int, figures: Mapping[str, float], *, by_name: bool
    ) -> bytes:
        """All figures, those of this moment included; not `by_name`: summed over connections."""
        families = [*self._families(), *_current_figures(statuses, unknown, figures)]
        return generate_latest(_Families(families if by_name else map(_sum_up, families)))


class _Families(Collector):
    """The families of figures as the library wants them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _current_figures(
    statuses: Iterable[str], unknown: int, figures: Mapping[str, float]
) -> Iterator[Metric]:
    info = GaugeMetricFamily("gateway_info", "The running version.", labels=["version"])
    info.add_metric([__version__], 1)
    by_status = GaugeMetricFamily(
        "gateway_connections", "Connections by status.", labels=["status"]
    )
    for status, number in Tally(statuses).items():
        by_status.add_metric([status], number)
    words = "Calls of tools that the caller does not have, hidden or not there at all."
    yield from (info, by_status, CounterMetricFamily("gateway_unknown_tool_calls", words, unknown))
    for name, value in {**figures, "tasks": len(asyncio.all_tasks())}.items():
        yield GaugeMetricFamily(f"gateway_{name}", name.replace("_", " ").capitalize(), value)


def _sum_up(family: Metric) -> Metric:
    """The same figures without the names of connections, summed up."""
    sums: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for sample in family.samples:
        labels = tuple(pair for pair in sample.labels.items() if pair[0] != "connection")
        sums[sample.name, labels] += sample.value
    summed = Metric(family.name, family.documentation, family.type, family.unit)
    for (name, labels), value in sums.items():
        summed.add_sample(name, dict(labels), value)
    return summed


ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def tracer() -> tuple[Callable[[Execution], None], Callable[[], None]] | None:
    """Functions that take a call's record, and send the rest at the end; None: switched off."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    # These cost a third of a second to import, and most gateways never need them.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanKind, Status, StatusCode

    name = os.environ.get("OTEL_SERVICE_NAME", "dynamic-mcp-gateway")
    resource = Resource.create({"service.name": name, "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    spans = provider.get_tracer("gateway", __version__)

    def record_span(execution: Execution) -> None:
        span = spans.start_span(
            f"tools/call {execution.tool}",
            kind=SpanKind.SERVER,
            start_time=int(execution.created_at * 1_000_000_000),
            attributes=_attributes(execution),
        )
        if execution.status != "completed":
            span.set_status(Status(StatusCode.ERROR, execution.error_code or execution.status))
        span.end(int((execution.finished_at or execution.created_at) * 1_000_000_000))

    return record_span, provider.shutdown


def _attributes(execution: Execution) -> dict[str, Any]:
    """The attributes of a span: names, states and codes, never arguments or answers."""
    attributes = {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": execution.tool,
        "gateway.connection": execution.connection,
        "gateway.principal": execution.principal,
        "gateway.execution_id": execution.id,
        "gateway.status": execution.status,
        "gateway.access": execution.access,
        "gateway.revision": execution.revision,
        "error.type": execution.error_code,
        "http.response.status_code": execution.upstream_status,
    }
    return {name: value for name, value in attributes.items() if value is not None}
