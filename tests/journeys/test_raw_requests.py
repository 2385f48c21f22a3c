"""Raw requests to a connection's API: under the same rules as its tools, and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import GatewayMaker, Running
from tests.journeys.confirming import FREELY, api, config, orders_api, sent
from tests.peers import Provider, provider
from tests.peers_mcp import mcp_peer


@pytest.fixture
async def peer() -> AsyncIterator[Provider]:
    async with provider() as shop:
        shop.document = orders_api(f"{shop.url}/base")
        yield shop


def wanted(method: str, path: str, **more: Any) -> dict[str, Any]:
    return {"connection": "shop", "method": method, "path": path, **more}


async def test_request_goes_to_the_connection_and_is_recorded(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    shop: Running = await make_gateway(config(peer, FREELY))
    async with api(shop.url, "ann") as ann:
        status, answer = await ann(
            "POST", "/proxy", wanted("post", "/stock/../notes?a=1", query={"b": [2, 3]}, body=[1])
        )
        record = await ann.execution(answer["execution_id"])
    assert peer.requests == [("POST", "/base/notes?a=1&b=2&b=3", b"[1]")]
    assert (status, answer["success"]) == (200, True)
    assert {key: record[key] for key in ("tool", "access", "risk", "status", "arguments")} == {
        "tool": "proxy",
        "access": "write",
        "risk": "medium",
        "status": "completed",
        "arguments": {
            "method": "POST",
            "path": "/notes",
            "query": {"a": "1", "b": [2, 3]},
            "body": [1],
        },
    }


RULES = """
access = "read-write"
blocklist = ["/users"]
operations = { cancelOrder = { access = "dangerous" }, getOrder = { access = "write" } }
"""


REFUSED = [
    ("GET", "/Users/7", 403, "blocked_path"),
    ("GET", "/%75sers", 403, "blocked_path"),
    ("GET", "/../outside", 403, "blocked_path"),
    ("DELETE", "/orders/7", 403, "blocked_path"),
    ("DELETE", "/orders/%37/", 403, "blocked_path"),
    ("TRACE", "/orders", 422, "invalid_arguments"),
    ("GET", "http://elsewhere/", 422, "invalid_arguments"),
]


async def test_what_is_blocked_or_dangerous_is_not_reached(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    shop: Running = await make_gateway(config(peer, FREELY, connection=RULES))
    answers, messages = [], set()
    async with api(shop.url, "ann") as ann:
        for method, path, _, code in REFUSED:
            status, body = await ann("POST", "/proxy", wanted(method, path))
            answers.append((method, path, status, body["error"]["code"]))
            if code == "blocked_path":
                messages.add(body["error"]["message"])
    assert (answers, peer.requests) == (REFUSED, [])
    assert messages == {"Access to this endpoint is not allowed"}


DANGEROUS = 'operations = { cancelOrder = { access = "dangerous" } }'


@pytest.mark.parametrize(
    "beside",
    [
        'exclude = ["cancel*"]',
        'include = ["get*"]',
        'blocklist = ["/nowhere"]\nexclude = ["*"]\ninclude = ["place*"]',
    ],
)
async def test_what_is_dangerous_stays_so_when_it_is_left_out_for_another_reason_too(
    make_gateway: GatewayMaker, peer: Provider, beside: str
) -> None:
    shop: Running = await make_gateway(config(peer, FREELY, connection=f"{DANGEROUS}\n{beside}"))
    async with api(shop.url, "ann") as ann:
        status, answer = await ann("POST", "/proxy", wanted("DELETE", "/orders/7"))
    assert (status, answer["error"]["code"], peer.requests) == (403, "blocked_path", [])


async def test_an_operation_that_is_no_tool_keeps_its_access_and_its_rule(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    peer.document["paths"]["/reports"] = {
        "get": {"operationId": "sendReport", "responses": {}, "deprecated": True}
    }
    rules = """operations = { getOrder = { access = "write" }, sendReport = { access = "delete" } }
exclude = ["getOrder", "cancelOrder"]"""
    tools = 'tools = { shop_cancel_order = "blocked" }'
    shop: Running = await make_gateway(config(peer, f"{FREELY}\n{tools}", connection=rules))
    async with api(shop.url, "ann") as ann:
        blocked = await ann("POST", "/proxy", wanted("DELETE", "/orders/7"))
        await ann("PUT", "/access/shop", {"access": "read-only"})
        answers = [
            await ann("POST", "/proxy", wanted(method, path))
            for method, path in (("GET", "/orders/7"), ("HEAD", "/orders/7"), ("GET", "/reports"))
        ]
    assert [(status, body["error"]["code"]) for status, body in (blocked, *answers)] == [
        (403, "access_denied"),
        *[(403, "read_only")] * 3,
    ]
    assert peer.requests == []


async def test_what_is_dangerous_is_known_by_its_whole_address(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    peer.document["servers"] = [{"url": peer.url}]
    peer.document["paths"] |= {
        "/wipe": {
            "servers": [{"url": f"{peer.url}/admin"}],
            "post": {"operationId": "wipe", "responses": {}},
        },
        "/jobs?action=purge": {"post": {"operationId": "purge", "responses": {}}},
        "/{connectionId}/mails": {
            "post": {"operationId": "send", "responses": {}, "x-ms-summary": "Sends mail"}
        },
    }
    rules = "".join(f'operations.{id}.access = "dangerous"\n' for id in ("wipe", "purge", "send"))
    shop: Running = await make_gateway(config(peer, FREELY, connection=rules))
    async with api(shop.url, "ann") as ann:
        answers = [
            await ann("POST", "/proxy", wanted("POST", path))
            for path in ("/admin/wipe", "/jobs?action=purge", "/jobs?x=1&ACTION=purge", "/mails")
        ]
    assert [body["error"]["code"] for _, body in answers] == ["blocked_path"] * 4
    assert peer.requests == []


async def test_a_request_says_its_method_once(make_gateway: GatewayMaker, peer: Provider) -> None:
    shop: Running = await make_gateway(config(peer, FREELY))
    said: list[dict[str, Any]] = [
        wanted("POST", "/notes?_method=DELETE"),
        wanted("POST", "/notes?%5fmethod=DELETE"),
        wanted("GET", "/notes", query={"X-HTTP-Method-Override": "DELETE"}),
        wanted("POST", "/notes", query={"_method[]": ["DELETE"]}),
        wanted("POST", "/notes", body={"_method": "DELETE"}),
    ]
    async with api(shop.url, "ann") as ann:
        answers = [await ann("POST", "/proxy", request) for request in said]
        deep = await ann("POST", "/proxy", wanted("POST", "/notes", body={"a": {"_method": "x"}}))
    assert [(status, body["error"]["code"]) for status, body in answers] == [
        (403, "blocked_path")
    ] * len(said)
    assert (deep[0], len(peer.requests)) == (200, 1)


async def test_a_tool_says_its_method_once(make_gateway: GatewayMaker, peer: Provider) -> None:
    anything = {"type": "object", "additionalProperties": {"type": "string"}}
    override = {"name": "X-HTTP-Method-Override", "in": "header", "schema": {"type": "string"}}
    filters = {"name": "filters", "in": "query", "schema": anything}
    form = {"content": {"application/x-www-form-urlencoded": {"schema": anything}}}
    text = {"content": {"application/x-www-form-urlencoded": {"schema": {"type": "string"}}}}
    peer.document["paths"]["/notes"] = {
        "get": {"operationId": "list", "parameters": [override, filters], "responses": {}},
        "post": {"operationId": "add", "requestBody": form, "responses": {}},
        "put": {"operationId": "write", "requestBody": text, "responses": {}},
    }
    shop: Running = await make_gateway(config(peer, FREELY))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("list", {"X-HTTP-Method-Override": "DELETE"}),
        ("list", {"filters": {"_method": "DELETE"}}),
        ("add", {"body": {"_method": "DELETE"}}),
        ("write", {"body": "a=1&%5Fmethod=DELETE"}),
        ("list", {"filters": {"colour": "red"}}),
    ]
    async with api(shop.url, "ann") as ann:
        answers = [
            await ann("POST", f"/tools/shop_{name}/call", {"arguments": arguments})
            for name, arguments in calls
        ]
    assert [status for status, _ in answers] == [422, 422, 422, 422, 200]
    assert peer.requests == [("GET", "/base/notes?colour=red", b"")]


async def test_read_only_caller_reads_only(make_gateway: GatewayMaker, peer: Provider) -> None:
    shop: Running = await make_gateway(config(peer, FREELY, connection=RULES))
    async with api(shop.url, "ann") as ann:
        await ann("PUT", "/access/shop", {"access": "read-only"})
        answers = [
            await ann("POST", "/proxy", wanted(method, path))
            for method, path in (("POST", "/notes"), ("GET", "/orders/7"), ("GET", "/notes"))
        ]
        await ann("PUT", "/access/shop", {"access": "disabled"})
        off = await ann("POST", "/proxy", wanted("GET", "/notes"))
    assert [status for status, _ in answers] == [403, 403, 200]
    assert answers[0][1]["error"] == {
        "code": "read_only",
        "message": "You have read-only access to Orders",
        "hint": "",
    }
    assert answers[1][1]["error"]["code"] == "read_only"  # configured as a write
    assert (off[0], off[1]["error"]["code"]) == (403, "access_denied")
    assert sent(peer, "GET") == 1


async def test_connections_without_an_http_api_or_a_definition_are_refused(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    async with mcp_peer() as server:
        more = f"""
[connections.tools]
kind = "mcp"
url = "{server.url}"
[connections.gone]
kind = "openapi"
spec = "missing.json"
"""
        shop: Running = await make_gateway(config(peer, FREELY, more))
        async with api(shop.url, "ann") as ann:
            answers = [
                await ann("POST", "/proxy", {**wanted("GET", "/x"), "connection": name})
                for name in ("tools", "gone", "nothing")
            ]
    assert [(status, body["error"]["code"]) for status, body in answers] == [
        (404, "unsupported_provider"),
        (409, "not_connected"),
        (404, "connection_invalid"),
    ]


async def test_write_needs_a_decision_and_then_runs_by_itself(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    shop: Running = await make_gateway(config(peer))
    async with api(shop.url, "ann") as ann, api(shop.url, "root") as root:
        status, waiting = await ann("POST", "/proxy", wanted("PUT", "/notes/7", body={"a": 1}))
        assert status == 202
        [asked] = await root.pending()
        assert (asked["method"], asked["url"]) == ("PUT", f"{peer.url}/base/notes/7")
        await root.decide("approve", asked["id"])
        record = await ann.execution(waiting["execution_id"], "completed")
    assert record["upstream_status"] == 200
    assert peer.requests == [("PUT", "/base/notes/7", b'{"a":1}')]


async def test_role_reaches_only_what_its_bundles_give(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    roles = """
[bundles.reading]
connections = ["shop"]
allow = ["get_*"]
[roles.reader]
bundles = ["reading"]
"""
    text = config(peer, FREELY, roles).replace(
        "[principals.ann]", '[principals.ann]\nrole = "reader"'
    )
    shop: Running = await make_gateway(text)
    async with api(shop.url, "ann") as ann:
        answers = [
            await ann("POST", "/proxy", wanted(method, path))
            for method, path in (("GET", "/orders/7"), ("GET", "/notes"), ("POST", "/orders"))
        ]
    assert [status for status, _ in answers] == [200, 403, 403]
    assert [path for _, path, _ in peer.requests] == ["/base/orders/7"]
