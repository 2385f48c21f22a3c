"""What operators see, and what a stranger does not."""

from __future__ import annotations

from typing import Any

import aiohttp

from tests.conftest import GatewayMaker, Running
from tests.peers import provider

CONFIG = """
[demo]
enabled = true
[principals.ann]
token = "ann-token-0123456789"
admin = true
organization = "acme"
[principals.bob]
token = "bob-token-0123456789"
[connections.secret]
kind = "manifest"
manifest = "lever"
organization = "acme"
"""


async def test_connections_are_named_only_to_those_who_may_know_them(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(CONFIG)
    seen: dict[str, set[str]] = {}
    async with aiohttp.ClientSession() as http:
        for who in ("ann", "bob", "nobody"):
            headers = {"Authorization": f"Bearer {who}-token-0123456789"}
            async with http.get(f"{gateway.url}/health", headers=headers) as answer:
                report = await answer.json()
            assert report["status"] == "ok"
            counted = {"ann": {"connected": 2}, "bob": {"connected": 1}, "nobody": {}}
            assert report["connections_by_status"] == counted[who]
            seen[who] = {row["name"] for row in report["connections"]}
    assert seen == {"ann": {"demo", "secret"}, "bob": {"demo"}, "nobody": set()}


async def test_metrics_have_sums_for_strangers_and_names_for_admins(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(CONFIG)
    ann = {"Authorization": "Bearer ann-token-0123456789"}
    call = f"{gateway.url}/api/v1/tools/demo_get_book/call"
    async with aiohttp.ClientSession() as http:
        async with http.post(call, json={"arguments": {"id": 1}}, headers=ann) as answer:
            assert answer.status == 200
        async with http.get(f"{gateway.url}/metrics") as answer:
            summed = await answer.text()
        async with http.get(f"{gateway.url}/metrics", headers=ann) as answer:
            named = await answer.text()
    assert 'gateway_calls_total{access="read",status="completed"} 1.0' in summed
    assert "demo" not in summed
    assert 'gateway_calls_total{access="read",connection="demo",status="completed"} 1.0' in named
    assert 'gateway_connections{status="connected"} 2.0' in summed
    assert "gateway_pending_approvals 0.0" in summed
    assert "gateway_upstream_seconds_count 1.0" in summed


async def test_metrics_forget_connections_that_are_no_more(make_gateway: GatewayMaker) -> None:
    here = '[network]\nallow = ["127.0.0.1/32"]\n'
    gateway = await make_gateway(CONFIG + here)
    api, headers = f"{gateway.url}/api/v1", {"Authorization": "Bearer ann-token-0123456789"}
    async with provider() as peer, aiohttp.ClientSession(headers=headers) as http:

        async def done(method: str, path: str, body: Any = None) -> None:
            async with http.request(method, f"{api}{path}", json=body) as answer:
                assert answer.status == 200, await answer.text()

        shop = {"kind": "openapi", "spec": peer.spec, "organization": "acme"}
        await done("PUT", "/connections/shop", shop)
        await done("POST", "/tools/shop_get_items/call", {"arguments": {"id": "1"}})
        async with http.get(f"{gateway.url}/metrics") as answer:
            assert 'connection="shop"' in await answer.text()
        await done("DELETE", "/connections/shop")
        await done("POST", "/tools/demo_get_book/call", {"arguments": {"id": 1}})
        async with http.get(f"{gateway.url}/metrics") as answer:
            assert 'connection="shop"' not in await answer.text()


async def test_probes_answer_whatever_the_host_header_says(gateway: Running) -> None:
    async with aiohttp.ClientSession(headers={"Host": "10.0.0.7:8080"}) as http:
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/health", 421)):
            async with http.get(gateway.url + path) as answer:
                assert answer.status == status
