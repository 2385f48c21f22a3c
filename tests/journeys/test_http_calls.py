"""What goes to an API and comes back: arguments, files, headers that a caller needs."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.callers import own_call
from tests.configs import table
from tests.definitions import an_object
from tests.journeys.confirming import FREELY, orders_api, taking
from tests.journeys.conftest import ShopMaker
from tests.peers import Provider

LENIENT = 'validation = "lenient"'
WRONG = {"book": 7, "notes": [], "weight": 3}
SAID = [
    {"path": "/book", "message": '7 is not of type "string"'},
    {"path": "/weight", "message": "is not known; it was sent in the body as it is"},
]
BOTH = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


async def test_a_strict_connection_refuses_and_names_what_would_let_it_pass(
    make_shop: ShopMaker,
) -> None:
    shop = await make_shop(FREELY)
    error = (await shop.ann.call("shop_place_order", **WRONG))[1]["error"]
    assert (error["code"], error["problems"]) == ("invalid_arguments", SAID[:1])
    assert LENIENT in error["hint"]
    assert shop.peer.requests == []


@BOTH
async def test_a_lenient_connection_sends_it_and_warns_the_caller(
    make_shop: ShopMaker, mode: str
) -> None:
    shop = await make_shop(FREELY, connection=LENIENT)
    async with shop.agent("ann", mode) as ann:
        result = await ann.call_tool("shop_place_order", WRONG)
    _, answer = await shop.ann.call("shop_place_order", **WRONG)
    assert not result.is_error
    assert (result.meta or {})["gateway/warnings"] == answer["warnings"] == SAID
    said = "; ".join(f"{each['path']}: {each['message']}" for each in SAID)
    assert texts(result)[-1] == f"Warnings: {said}"
    assert [orjson.loads(body) for _, _, body in shop.peer.requests] == [WRONG, WRONG]
    for tool, arguments in (("place", {"notes": 1}), ("get", {"id": 7})):  # it is missing, or amiss
        _, refused = await shop.ann.call(f"shop_{tool}_order", **arguments)
        assert len(refused["error"]["problems"]) == 1
    assert len(shop.peer.requests) == 2


async def test_what_is_filled_in_is_what_the_history_shows(
    make_shop: ShopMaker, peer: Provider
) -> None:
    line = an_object({"copies": {"type": "integer", "default": 1}}, "copies")
    peer.document = orders_api(peer.url, placeOrder=taking(an_object({"line": line})))
    shop = await make_shop(FREELY)
    _, answer = await shop.ann.call("shop_place_order", line={})
    record = await shop.ann.execution(answer["execution_id"])
    assert record["arguments"] == {"line": {"copies": 1}}
    assert [orjson.loads(body) for _, _, body in peer.requests] == [{"line": {"copies": 1}}]


async def test_a_schema_that_is_not_listed_whole_can_be_read_whole(
    make_shop: ShopMaker, peer: Provider
) -> None:
    fields = {f"field_{n}": {"type": "string", "enum": ["a", "b"]} for n in range(800)}
    inner = {"type": "array", "items": an_object(fields, "field_7")}
    peer.document = orders_api(peer.url, placeOrder=taking(an_object({"inner": inner})))
    bundle = table("bundles.all", mode="meta", connections=["shop"])
    more = bundle + table("roles.clerk", bundles=["all"])
    shop = await make_shop(FREELY, more, ann="clerk")
    asked = {"server_id": "shop", "tool_name": "place_order"}
    async with shop.agent() as ann:
        meta = await own_call(ann, "mcp_get_tool_schema", **asked)
        both = await own_call(ann, "mcp_get_tool_schema", **asked, output=True)
    async with shop.agent("bob") as bob:
        tools = {tool.name: tool for tool in (await bob.list_tools()).tools}
    _, whole = await shop.bob("GET", "/tools/shop_place_order")
    listed = tools["shop_place_order"].input_schema["properties"]["inner"]["items"]
    assert (list(listed["properties"]), listed["required"]) == (["field_7"], ["field_7"])
    for schema in (whole["input_schema"], meta["input_schema"]):
        assert list(schema["properties"]["inner"]["items"]["properties"]) == list(fields)
    assert both == {**meta, "output_schema": whole["output_schema"]}


SECRET = "a-key-of-the-shop"
CONNECTION = (
    f'auth = {{ type = "api-key", name = "key", in = "query", value = "{SECRET}" }}\n'
    'operations = { getOrder = { headers_out = ["X-Trace"] } }\n'
)


async def answer(request: web.Request) -> web.StreamResponse:
    if request.method == "POST":
        return web.json_response({"id": 7}, status=201, headers={"Location": "/orders/7"})
    link = f"<https://shop/orders?page=2&key={SECRET}>; rel=next"
    told = {"Link": link, "ETag": '"v1"', "X-RateLimit-Remaining": "9", "X-Trace": "t", "X-No": "n"}
    return web.json_response({"id": 1}, headers=told)


READ = {
    "link": "<https://shop/orders?page=2&key=[redacted]>; rel=next",
    "etag": '"v1"',
    "x-ratelimit-remaining": "9",
    "x-trace": "t",
}
MADE = {"location": "/orders/7"}


@BOTH
async def test_headers_that_a_caller_needs_are_told_at_every_edge(
    make_shop: ShopMaker, peer: Provider, mode: str
) -> None:
    peer.answer = answer
    shop = await make_shop(FREELY, connection=CONNECTION)
    async with shop.agent("ann", mode) as agent:
        read = await agent.call_tool("shop_get_order", {"id": "1"})
        made = await agent.call_tool("shop_place_order", {"book": "Emma"})
    assert (read.meta or {})["gateway/headers"] == READ
    assert texts(read)[1:] == ["Next page: https://shop/orders?page=2&key=[redacted]"]
    assert (made.meta or {})["gateway/headers"] == MADE
    assert texts(made) == ['{"id": 7}', "Location: /orders/7"]
    assert (await shop.ann.call("shop_place_order", book="Emma"))[1]["headers"] == MADE
    raw = {"connection": "shop", "method": "GET", "path": "/orders/1"}
    assert (await shop.ann("POST", "/proxy", raw))[1]["headers"] == READ
    path = "/tools/shop_place_order/call?background=true"
    _, started = await shop.ann("POST", path, {"arguments": {"book": "Emma"}})
    record = await shop.ann.execution(started["execution_id"], "completed")
    assert record["result"]["headers"] == MADE


def texts(result: Any) -> list[str]:
    return [part.text for part in result.content]
