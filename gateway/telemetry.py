"""What is told of the gateway at work: logs, and OpenTelemetry spans where somebody collects them.

Logs are events with fields: readable on a terminal, one JSON object a line elsewhere. A call that
went well is in the ledger and in the figures; only the others are logged. Spans are made of a
call's record when it has ended, so that tracing costs nothing while it runs; the usual variables
decide (OTEL_EXPORTER_OTLP_ENDPOINT switches it on, OTEL_SERVICE_NAME and the others mean what they
always mean). Names, states and codes are told, never arguments or answers.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import Any

import structlog

from gateway import __version__
from gateway.store.ledger import Execution

# Which request something is logged for, by its number in this process. Text is made of it only
# where it is logged: nearly every request comes and goes without a word.
_request: ContextVar[int] = ContextVar("request")
_numbers = count(1)
_process = secrets.token_hex(4)


def begin_request() -> None:
    """Whatever is logged from here on, also by tasks that are started, names this request."""
    _request.set(next(_numbers))


def set_up(level: int = logging.INFO) -> None:
    """Sends what the gateway and its libraries log to standard error."""
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    shared: list[structlog.types.Processor] = [
        with_request,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("uvicorn.error", "alembic", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def with_request(
    logger: object, name: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """Adds which request an event belongs to."""
    number = _request.get(0)
    if number:
        event["request"] = f"{_process}-{number}"
    return event


ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def tracer() -> tuple[Callable[[Execution], None], Callable[[], None]] | None:
    """What takes records of calls, and what sends the rest at the end; None: nobody listens."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    # These cost a third of a second to import, and most gateways never need them.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME", "dynamic-mcp-gateway")
    resource = Resource.create({"service.name": name, "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    spans = provider.get_tracer("gateway", __version__)

    def finished(execution: Execution) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        span = spans.start_span(
            f"tools/call {execution.tool}",
            kind=SpanKind.SERVER,
            start_time=int(execution.created_at * 1_000_000_000),
            attributes=_attributes(execution),
        )
        if execution.status != "completed":
            span.set_status(Status(StatusCode.ERROR, execution.error_code or execution.status))
        span.end(int((execution.finished_at or execution.created_at) * 1_000_000_000))

    return finished, provider.shutdown


def _attributes(execution: Execution) -> dict[str, Any]:
    """What is safe to send: names, states and codes, never arguments or answers."""
    found = {
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
    return {name: value for name, value in found.items() if value is not None}


log = structlog.get_logger("gateway.call")
_LOGGED = "tool connection principal status upstream_status session".split()


def log_call(execution: Execution) -> None:
    """Logs how a call ended, unless it went well."""
    if execution.status != "completed":
        told = {name: getattr(execution, name) for name in _LOGGED}
        took = (execution.result or {}).get("duration_ms")
        code = execution.error_code
        log.info("call ended", execution=execution.id, code=code, duration_ms=took, **told)
