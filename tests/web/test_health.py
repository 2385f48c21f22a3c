"""What operators see, and what a stranger does not."""

from __future__ import annotations

import re

from structlog.testing import capture_logs

from gateway.telemetry import with_request
from tests.callers import api, client, own_call
from tests.configs import LOCAL, principal, table
from tests.conftest import OPEN, GatewayMaker
from tests.peers import provider

CONFIG = (
    table("demo", enabled=True)
    + principal("ann", admin=True, organization="acme")
    + principal("root", admin=True)
    + principal("bob", connections={"gone": "read-only"})
    + table("connections.secret", kind="manifest", manifest="lever", organization="acme")
    + LOCAL
)
SEEN = {"root": ["demo", "secret"], "ann": ["demo", "secret"], "bob": ["demo"]}


async def test_connections_are_named_only_to_those_who_may_know_them(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(CONFIG)
    for who, seen in SEEN.items():
        async with api(gateway.url, who) as rest:
            _, report = await rest("GET", "//health")
        assert report["status"] == "ok"
        assert report["connections_by_status"] == {"connected": len(seen)}
        assert sorted(row["name"] for row in report["connections"]) == seen
        assert ("problems" in report, "left_out" in report) == (who == "root", who != "root")
        # What is written of others is theirs, and for admins of no organization to mend.
        assert ("principals.bob" in str(report)) == (who == "root")


async def test_a_stranger_hears_the_status_and_that_the_rest_is_left_out(
    make_gateway: GatewayMaker,
) -> None:
    lost = table("connections.lost", kind="openapi", spec="nowhere.json")
    gateway = await make_gateway(CONFIG + lost)
    async with api(gateway.url) as stranger, api(gateway.url, "ann") as ann:
        _, report = await stranger("GET", "//health")
        assert report["status"] == (await ann("GET", "//health"))[1]["status"] == "degraded"
        assert report["left_out"] == "connections and problems: send a token to see them"
        assert report["connections"] == []
        assert not report.keys() & {"tools", "connections_by_status", "problems"}


async def test_tools_are_counted_in_the_callers_own_view(make_gateway: GatewayMaker) -> None:
    """Whatever tells how many tools a connection has tells how many of them the caller can use."""
    some = ["get_book", "search_books", "add_book"]
    roles = table("bundles.some", connections=["demo"], allow=some) + table(
        "roles.reader", bundles=["some"]
    )
    people = principal("bob", role="reader", access="read-only") + principal("ann", admin=True)
    gateway = await make_gateway(table("demo", enabled=True) + people + roles + LOCAL)
    for who, count in (("bob", 2), ("ann", 7)):
        async with api(gateway.url, who) as rest, client(gateway.url, who) as agent:
            [row] = (await rest("GET", "/connections"))[1]["connections"]
            [told] = (await own_call(agent, "list_connections"))["connections"]
            found = [row, told, (await rest("GET", "/connections/demo"))[1]]
            found += (await rest("GET", "//health"))[1]["connections"]
            _, listed = await rest("GET", "/tools")
        assert [each["tools"] for each in found] == [count] * 4
        assert (listed["total"], listed["tokens"]) == (count, row["tokens"])


async def test_metrics_have_sums_and_for_admins_of_no_organization_names_of_what_is_there(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(CONFIG)
    async with (
        provider() as peer,
        api(gateway.url, "root") as root,
        api(gateway.url, "ann") as ann,
        api(gateway.url) as stranger,
    ):
        assert (await ann.call("demo_get_book", id=1))[0] == 200
        _, summed = await stranger("GET", "//metrics")
        _, named = await root("GET", "//metrics")
        for line in (
            'gateway_calls_total{access="read",status="completed"} 1.0',
            'gateway_connections{status="connected"} 2.0',
            "gateway_pending_approvals 0.0",
            "gateway_upstream_seconds_count 1.0",
        ):
            assert line in summed
        assert "demo" not in summed + (await ann("GET", "//metrics"))[1]
        assert 'gateway_calls_total{access="read",connection="demo",status="completed"}' in named
        shop = {"kind": "openapi", "spec": peer.spec, "organization": "acme"}
        await ann("PUT", "/connections/shop", shop)
        await ann.call("shop_get_items", id="1")
        assert 'connection="shop"' in (await root("GET", "//metrics"))[1]
        await ann("DELETE", "/connections/shop")
        await ann.call("demo_get_book", id=1)
        assert 'connection="shop"' not in (await root("GET", "//metrics"))[1]


PATHS = ("/healthz", "/readyz", "/health", "/metrics")


async def test_probes_answer_by_any_host_and_name_nothing_to_a_rebound_page(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(OPEN + table("demo", enabled=True))
    async with api(gateway.url) as rest:
        assert "demo" in str([await rest("GET", f"/{path}") for path in PATHS])
        for host in ("10.0.0.7:8080", "evil.example:8080"):
            rest.http.headers["Host"] = host
            said = [await rest("GET", f"/{path}") for path in PATHS]
            assert [status for status, _ in said] == [200] * len(PATHS)
            assert "demo" not in str(said)


async def test_a_scrape_by_a_pods_address_with_a_token_has_names(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(CONFIG)
    async with api(gateway.url, "ann") as ann:
        ann.http.headers["Host"] = "10.0.0.7:8080"
        await ann.call("demo_get_book", id=1)
        assert "connections" in (await ann("GET", "//health"))[1]
        status, refused = await ann("GET", "/tools")
    assert status == 421
    assert 'server.allowed_hosts = ["10.0.0.7:8080"]' in refused["error"]["message"]
    assert "server.public_url" in refused["error"]["message"]


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
