"""Spans reach a collector that speaks OTLP over HTTP: one a call, without what callers sent."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from mcp.client.client import Client
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conftest import OPEN, gateway_on
from tests.journeys.test_hot_reload import own_call


async def test_each_call_is_one_span_without_its_arguments(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[bytes] = []

    async def collect(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response(body=b"", content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{runner.addresses[0][1]}")
    config = tmp_path_factory.mktemp("traced") / "config.toml"
    try:
        text = OPEN + "\n[demo]\nenabled = true\n"
        async with gateway_on(config, text) as gateway, Client(gateway.mcp) as client:
            await own_call(client, "demo_search_books", q="szymborska")
            await own_call(client, "demo_get_book", id=404)
    finally:
        async with asyncio.timeout(15):
            await runner.cleanup()
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
