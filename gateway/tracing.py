"""OpenTelemetry spans, where an endpoint is configured: one for each call, read off its record.

The usual variables decide: OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT) switches it on,
OTEL_SERVICE_NAME and the others mean what they always mean. Spans are made when a call has ended,
so that tracing costs nothing while it runs; they are sent by a thread of the exporter's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gateway import __version__
from gateway.store.executions import Execution

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
NANOSECONDS = 1_000_000_000


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
            start_time=int(execution.created_at * NANOSECONDS),
            attributes=_attributes(execution),
        )
        if execution.status != "completed":
            span.set_status(Status(StatusCode.ERROR, execution.error_code or execution.status))
        span.end(int((execution.finished_at or execution.created_at) * NANOSECONDS))

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
