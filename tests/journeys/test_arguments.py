"""What a caller gives, from the listed schema to the request: refused, filled in or warned of."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.conftest import GatewayMaker
from tests.journeys.confirming import CALL, FREELY, api, client, config, orders_api
from tests.peers import Provider

LENIENT = 'validation = "lenient"'
WRONG = {"book": 7, "notes": [], "weight": 3}
SAID = [
    {"path": "/book", "message": '7 is not of type "string"'},
    {"path": "/weight", "message": "is not known; it was sent in the body as it is"},
]


async def test_a_strict_connection_refuses_and_names_what_would_let_it_pass(
    peer: Provider, make_gateway: GatewayMaker
) -> None:
    shop = await make_gateway(config(peer, FREELY))
    async with api(shop.url, "ann") as ann:
        _, answer = await ann("POST", CALL, {"arguments": WRONG})

    assert (answer["error"]["code"], answer["error"]["problems"]) == ("invalid_arguments", SAID[:1])
    assert 'validation = "lenient"' in answer["error"]["hint"]
    assert peer.requests == []


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_lenient_connection_sends_it_and_warns_the_caller(
    peer: Provider, make_gateway: GatewayMaker, mode: str
) -> None:
    shop = await make_gateway(config(peer, FREELY, connection=LENIENT))
    async with client(shop.url, "ann", mode) as ann:
        result = await ann.call_tool("shop_place_order", WRONG)
    async with api(shop.url, "ann") as rest:
        _, answer = await rest("POST", CALL, {"arguments": WRONG})

    assert not result.is_error
    assert (result.meta or {})["gateway/warnings"] == answer["warnings"] == SAID
    assert result.content[-1].model_dump()["text"] == (
        'Warnings: /book: 7 is not of type "string"; '
        "/weight: is not known; it was sent in the body as it is"
    )
    assert [orjson.loads(body) for _, _, body in peer.requests] == [WRONG, WRONG]


async def test_what_is_missing_is_refused_by_a_lenient_connection_too(
    peer: Provider, make_gateway: GatewayMaker
) -> None:
    shop = await make_gateway(config(peer, FREELY, connection=LENIENT))
    async with api(shop.url, "ann") as ann:
        _, answer = await ann("POST", CALL, {"arguments": {"notes": 1}})
        _, other = await ann("POST", "/tools/shop_get_order/call", {"arguments": {"id": 7}})

    assert [each["path"] for each in answer["error"]["problems"]] == ["/book"]
    assert [each["path"] for each in other["error"]["problems"]] == ["/id"]
    assert peer.requests == []


async def test_what_is_filled_in_is_what_the_history_shows(
    peer: Provider, make_gateway: GatewayMaker
) -> None:
    copies = {"type": "integer", "default": 1}
    line = {"type": "object", "properties": {"copies": copies}, "required": ["copies"]}
    place = _placing({"type": "object", "properties": {"line": line}})
    peer.document = orders_api(peer.url, placeOrder=place)
    shop = await make_gateway(config(peer, FREELY))
    async with api(shop.url, "ann") as ann:
        _, answer = await ann("POST", CALL, {"arguments": {"line": {}}})
        record = await ann.execution(answer["execution_id"])

    assert record["arguments"] == {"line": {"copies": 1}}
    assert [orjson.loads(body) for _, _, body in peer.requests] == [{"line": {"copies": 1}}]


async def test_a_schema_that_is_not_listed_whole_can_be_read_whole(
    peer: Provider, make_gateway: GatewayMaker
) -> None:
    fields = {f"field_{n}": {"type": "string", "enum": ["a", "b"]} for n in range(800)}
    inner = {"type": "object", "properties": fields, "required": ["field_7"]}
    place = _placing({"type": "object", "properties": {"inner": {"type": "array", "items": inner}}})
    peer.document = orders_api(peer.url, placeOrder=place)
    bundles = (
        '[bundles.all]\nmode = "meta"\nconnections = ["shop"]\n[roles.clerk]\nbundles = ["all"]'
    )
    text = config(peer, FREELY, more=bundles).replace(
        "[principals.ann]", '[principals.ann]\nrole = "clerk"'
    )
    shop = await make_gateway(text)
    asked = {"server_id": "shop", "tool_name": "place_order"}
    async with client(shop.url, "ann") as ann:
        meta = await ann.call_tool("mcp_get_tool_schema", asked)
    async with client(shop.url, "bob") as bob:
        tools = {tool.name: tool for tool in (await bob.list_tools()).tools}
    async with api(shop.url, "bob") as rest:
        _, whole = await rest("GET", "/tools/shop_place_order")

    listed = tools["shop_place_order"].input_schema["properties"]["inner"]["items"]
    assert (list(listed["properties"]), listed["required"]) == (["field_7"], ["field_7"])
    for schema in (whole["input_schema"], (meta.structured_content or {})["input_schema"]):
        assert list(schema["properties"]["inner"]["items"]["properties"]) == list(fields)


def _placing(schema: dict[str, Any]) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"requestBody": body, "responses": {"200": {"description": "ok"}}}
