"""What operators see, and what a stranger does not."""

from __future__ import annotations

import re

from structlog.testing import capture_logs

from gateway.telemetry import with_request
from tests.callers import api
from tests.configs import LOCAL, principal, table
from tests.conftest import GatewayMaker, Running
from tests.peers import provider

CONFIG = (
    table("demo", enabled=True)
    + principal("ann", admin=True, organization="acme")
    + principal("bob")
    + table("connections.secret", kind="manifest", manifest="lever", organization="acme")
    + LOCAL
)
SEEN = {"ann": ["demo", "secret"], "bob": ["demo"], "nobody": list[str]()}


async def test_connections_are_named_only_to_those_who_may_know_them(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(CONFIG)
    for who, seen in SEEN.items():
        async with api(gateway.url, who) as rest:
            _, report = await rest("GET", "//health")
        assert report["status"] == "ok"
        assert report["connections_by_status"] == ({"connected": len(seen)} if seen else {})
        assert sorted(row["name"] for row in report["connections"]) == seen


async def test_metrics_have_sums_for_strangers_and_names_for_admins_of_what_is_there(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(CONFIG)
    async with provider() as peer, api(gateway.url, "ann") as ann, api(gateway.url) as stranger:
        assert (await ann.call("demo_get_book", id=1))[0] == 200
        _, summed = await stranger("GET", "//metrics")
        _, named = await ann("GET", "//metrics")
        for line in (
            'gateway_calls_total{access="read",status="completed"} 1.0',
            'gateway_connections{status="connected"} 2.0',
            "gateway_pending_approvals 0.0",
            "gateway_upstream_seconds_count 1.0",
        ):
            assert line in summed
        assert "demo" not in summed
        assert 'gateway_calls_total{access="read",connection="demo",status="completed"}' in named
        shop = {"kind": "openapi", "spec": peer.spec, "organization": "acme"}
        await ann("PUT", "/connections/shop", shop)
        await ann.call("shop_get_items", id="1")
        assert 'connection="shop"' in (await ann("GET", "//metrics"))[1]
        await ann("DELETE", "/connections/shop")
        await ann.call("demo_get_book", id=1)
        assert 'connection="shop"' not in (await ann("GET", "//metrics"))[1]


async def test_probes_answer_whatever_the_host_header_says(gateway: Running) -> None:
    async with api(gateway.url) as rest:
        rest.http.headers["Host"] = "10.0.0.7:8080"
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/health", 421)):
            assert (await rest("GET", f"/{path}"))[0] == status


async def test_a_failed_call_is_one_event_with_its_ids_and_nothing_it_was_sent(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(CONFIG)
    async with api(gateway.url, "ann") as ann:
        with capture_logs([with_request]) as logged:
            await ann.call("demo_search_books", q="szymborska")
            await ann.call("demo_get_book", id=404)
    (event,) = [each for each in logged if each["event"] == "call ended"]
    ended = {"tool": "demo_get_book", "status": "failed", "code": "upstream_error"}
    assert {**event, **ended, "upstream_status": 404} == event
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9]+", event["request"])
    assert len(event["execution"]) == 32
    assert "szymborska" not in str(logged)
