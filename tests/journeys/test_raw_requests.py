"""Raw requests to a connection's API: under the same rules as its tools, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.configs import table
from tests.journeys.confirming import FREELY, Shop, orders_api
from tests.journeys.conftest import ShopMaker
from tests.peers import Provider
from tests.peers_mcp import mcp_peer


@pytest.fixture
def peer(peer: Provider) -> Provider:
    """The shop, whose API lies below an address of its own."""
    peer.document = orders_api(f"{peer.url}/base")
    return peer


def wanted(method: str, path: str, **more: Any) -> dict[str, Any]:
    return {"connection": "shop", "method": method, "path": path, **more}


async def asked(shop: Shop, *requests: tuple[str, str] | dict[str, Any]) -> list[tuple[int, str]]:
    """Status and code of the answers to raw requests of ann's."""
    found = []
    for request in requests:
        body = request if isinstance(request, dict) else wanted(*request)
        status, answer = await shop.ann("POST", "/proxy", body)
        found.append((status, (answer.get("error") or {}).get("code", "")))
    return found


async def test_request_goes_to_the_connection_and_is_recorded(make_shop: ShopMaker) -> None:
    shop = await make_shop(FREELY)
    request = wanted("post", "/stock/../notes?a=1", query={"b": [2, 3]}, body=[1])
    status, answer = await shop.ann("POST", "/proxy", request)
    record = await shop.ann.execution(answer["execution_id"])
    assert shop.peer.requests == [("POST", "/base/notes?a=1&b=2&b=3", b"[1]")]
    assert (status, answer["success"]) == (200, True)
    sent = {"method": "POST", "path": "/notes", "query": {"a": "1", "b": [2, 3]}, "body": [1]}
    done = {"tool": "proxy", "access": "write", "risk": "medium", "status": "completed"}
    assert record == record | done | {"arguments": sent}


RULES = """
access = "read-write"
blocklist = ["/users"]
operations = { cancelOrder = { access = "dangerous" }, getOrder = { access = "write" } }
"""
DANGEROUS = 'operations = { cancelOrder = { access = "dangerous" } }'
BLOCKED, READ_ONLY = (403, "blocked_path"), (403, "read_only")


async def test_what_is_blocked_dangerous_or_beyond_ones_access_is_not_reached(
    make_shop: ShopMaker,
) -> None:
    shop = await make_shop(FREELY, connection=RULES)
    paths = "/Users/7 /%75sers /../outside".split()
    blocked = [*(("GET", path) for path in paths), ("DELETE", "/orders/7")]
    blocked += [("DELETE", "/orders/%37/")]
    wrong = [("TRACE", "/orders"), ("GET", "http://elsewhere/")]
    assert await asked(shop, *blocked) == [BLOCKED] * 5
    assert await asked(shop, *wrong) == [(422, "invalid_arguments")] * 2
    assert shop.peer.requests == []
    await shop.ann("PUT", "/access/shop", {"access": "read-only"})
    requests = ("POST", "/notes"), ("GET", "/orders/7"), ("GET", "/notes")  # one set to be a write
    assert await asked(shop, *requests) == [READ_ONLY, READ_ONLY, (200, "")]
    await shop.ann("PUT", "/access/shop", {"access": "disabled"})
    assert await asked(shop, ("GET", "/notes")) == [(403, "access_denied")]
    assert shop.peer.sent("GET") == 1


TENANT = {"name": "tenant", "in": "query", "schema": {"type": "string"}}


async def test_what_the_connection_fills_in_is_filled_in_and_nobody_elses_to_say(
    make_shop: ShopMaker, peer: Provider
) -> None:
    for path in peer.document["paths"].values():
        path.get("get", {}).setdefault("parameters", []).append(TENANT)
    shop = await make_shop(FREELY, connection='inject = { tenant = "mine", book = "ours" }')
    assert await asked(shop, ("GET", "/orders/7")) == [(200, "")]
    assert shop.peer.requests == [("GET", "/base/orders/7?tenant=mine", b"")]
    said = [wanted("GET", "/orders/7", query={name: "x"}) for name in ("tenant", "Tenant[]")]
    said += [wanted("POST", "/orders", body={"notes": []})]  # where only its tool can fill it in
    said += [wanted("POST", "/notes", body={"tenant": "x"})]
    assert await asked(shop, *said) == [BLOCKED] * 4
    assert len(shop.peer.requests) == 1


async def test_a_slash_in_a_value_does_not_lead_to_another_operation(
    make_shop: ShopMaker, peer: Provider
) -> None:
    paths = peer.document["paths"]
    secret = {**paths["/orders/{id}"]["get"], "operationId": "getSecret"}
    paths["/orders/{id}/secret"] = {"get": secret}
    shop = await make_shop(
        FREELY, connection='operations = { getSecret = { access = "dangerous" } }'
    )
    _, refused = await shop.ann.call("shop_get_order", id="7/secret")
    _, sent = await shop.ann.call("shop_get_order", id="7/public")
    assert (refused["error"]["code"], sent["success"]) == ("blocked_path", True)
    assert await asked(shop, ("GET", "/orders/7%2Fpublic")) == [(200, "")]
    assert [path for _, path, _ in shop.peer.requests] == ["/base/orders/7%2Fpublic"] * 2


@pytest.mark.parametrize(
    "beside", ['exclude = ["cancel*"]', 'blocklist = ["/nowhere"]\ninclude = ["get*"]']
)
async def test_what_is_dangerous_stays_so_when_it_is_left_out_for_another_reason_too(
    make_shop: ShopMaker, beside: str
) -> None:
    shop = await make_shop(FREELY, connection=f"{DANGEROUS}\n{beside}")
    assert await asked(shop, ("DELETE", "/orders/7")) == [BLOCKED]
    assert shop.peer.requests == []


async def test_an_operation_that_is_no_tool_keeps_its_access_and_its_rule(
    make_shop: ShopMaker, peer: Provider
) -> None:
    report = {"operationId": "sendReport", "responses": {}, "deprecated": True}
    peer.document["paths"]["/reports"] = {"get": report}
    rules = """operations = { getOrder = { access = "write" }, sendReport = { access = "delete" } }
exclude = ["getOrder", "cancelOrder"]"""
    tools = 'tools = { shop_cancel_order = "blocked" }'
    shop = await make_shop(f"{FREELY}\n{tools}", connection=rules)
    assert await asked(shop, ("DELETE", "/orders/7")) == [(403, "access_denied")]
    await shop.ann("PUT", "/access/shop", {"access": "read-only"})
    reads = (("GET", "/orders/7"), ("HEAD", "/orders/7"), ("GET", "/reports"))
    assert await asked(shop, *reads) == [READ_ONLY] * 3
    assert peer.requests == []


async def test_what_is_dangerous_is_known_by_its_whole_address(
    make_shop: ShopMaker, peer: Provider
) -> None:
    def post(id: str, **more: Any) -> dict[str, Any]:
        return {"post": {"operationId": id, "responses": {}, **more}}

    peer.document["servers"] = [{"url": peer.url}]
    peer.document["paths"] |= {
        "/wipe": {"servers": [{"url": f"{peer.url}/admin"}], **post("wipe")},
        "/jobs?action=purge": post("purge"),
        "/{connectionId}/mails": post("send", **{"x-ms-summary": "Sends mail"}),
    }
    rules = "".join(f'operations.{id}.access = "dangerous"\n' for id in ("wipe", "purge", "send"))
    shop = await make_shop(FREELY, connection=rules)
    paths = "/admin/wipe /jobs?action=purge /jobs?x=1&ACTION=purge /mails".split()
    assert await asked(shop, *(("POST", path) for path in paths)) == [BLOCKED] * 4
    assert peer.requests == []


async def test_a_request_says_its_method_once(make_shop: ShopMaker) -> None:
    shop = await make_shop(FREELY)
    twice = [
        wanted("POST", "/notes?_method=DELETE"),
        wanted("POST", "/notes?%5fmethod=DELETE"),
        wanted("GET", "/notes", query={"X-HTTP-Method-Override": "DELETE"}),
        wanted("POST", "/notes", query={"_method[]": ["DELETE"]}),
        wanted("POST", "/notes", body={"_method": "DELETE"}),
    ]
    deep = wanted("POST", "/notes", body={"a": {"_method": "x"}})
    assert await asked(shop, *twice, deep) == [BLOCKED] * 5 + [(200, "")]
    assert len(shop.peer.requests) == 1


async def test_a_tool_says_its_method_once(make_shop: ShopMaker, peer: Provider) -> None:
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
    shop = await make_shop(FREELY)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("list", {"X-HTTP-Method-Override": "DELETE"}),
        ("list", {"filters": {"_method": "DELETE"}}),
        ("add", {"body": {"_method": "DELETE"}}),
        ("write", {"body": "a=1&%5Fmethod=DELETE"}),
        ("list", {"filters": {"colour": "red"}}),
    ]
    answers = [await shop.ann.call(f"shop_{name}", **arguments) for name, arguments in calls]
    assert [status for status, _ in answers] == [422, 422, 422, 422, 200]
    assert peer.requests == [("GET", "/base/notes?colour=red", b"")]


async def test_connections_without_an_http_api_or_a_definition_are_refused(
    make_shop: ShopMaker,
) -> None:
    async with mcp_peer() as server:
        gone = table("connections.gone", kind="openapi", spec="missing.json")
        shop = await make_shop(FREELY, server.table("tools") + gone)
        names = ("tools", "gone", "nothing")
        requests = (wanted("GET", "/x") | {"connection": name} for name in names)
        assert await asked(shop, *requests) == [
            (404, "unsupported_provider"),
            (409, "not_connected"),
            (404, "connection_invalid"),
        ]


async def test_write_needs_a_decision_and_then_runs_by_itself(make_shop: ShopMaker) -> None:
    shop = await make_shop()
    request = wanted("PUT", "/notes/7", body={"a": 1})
    status, waiting = await shop.ann("POST", "/proxy", request)
    assert status == 202
    [asked] = await shop.root.pending()
    assert (asked["method"], asked["url"]) == ("PUT", f"{shop.peer.url}/base/notes/7")
    await shop.root.decide("approve", asked["id"])
    record = await shop.ann.execution(waiting["execution_id"], "completed")
    assert record["upstream_status"] == 200
    assert shop.peer.requests == [("PUT", "/base/notes/7", b'{"a":1}')]


async def test_role_reaches_only_what_its_bundles_give(make_shop: ShopMaker) -> None:
    bundle = table("bundles.reading", connections=["shop"], allow=["get_*"])
    role = table("roles.reader", bundles=["reading"])
    shop = await make_shop(FREELY, bundle + role, ann="reader")
    requests = ("GET", "/orders/7"), ("GET", "/notes"), ("POST", "/orders")
    assert [status for status, _ in await asked(shop, *requests)] == [200, 403, 403]
    assert [path for _, path, _ in shop.peer.requests] == ["/base/orders/7"]
