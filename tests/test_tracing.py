"""Spans reach a collector that speaks OTLP over HTTP: one a call, without what callers sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp.client.client import Client
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.callers import own_call
from tests.conftest import OPEN, gateway_on
from tests.peers import provider


async def test_each_call_is_one_span_without_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with provider() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        text = f"{OPEN}\n[demo]\nenabled = true\n"
        async with gateway_on(tmp_path / "c.toml", text) as made, Client(made.mcp) as client:
            await own_call(client, "demo_search_books", q="szymborska")
            await own_call(client, "demo_get_book", id=404)
    received = [body for _, path, body in collector.requests if path == "/v1/traces"]
    spans = [
        span
        for body in received
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert {span.name: span.status.message for span in spans} == {
        "tools/call demo_search_books": "",
        "tools/call demo_get_book": "upstream_error",
    }
    assert b"szymborska" not in b"".join(received)
