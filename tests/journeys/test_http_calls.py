"""What goes to an API and comes back beside the JSON: files with their types, telling headers."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from aiohttp import web

from tests.calls.test_body import parts_of
from tests.conftest import GatewayMaker, Running
from tests.journeys.confirming import FREELY, api, client, config, orders_api
from tests.peers import provider

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


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_headers_that_a_caller_needs_are_told_at_every_door(
    make_gateway: GatewayMaker, mode: str
) -> None:
    async with provider() as shop:
        shop.document, shop.answer = orders_api(shop.url), answer
        gateway: Running = await make_gateway(config(shop, FREELY, connection=CONNECTION))
        async with api(gateway.url, "ann") as ann, client(gateway.url, "ann", mode) as agent:
            read = await agent.call_tool("shop_get_order", {"id": "1"})
            assert (read.meta or {})["gateway/headers"] == READ
            assert texts(read)[1:] == ["Next page: https://shop/orders?page=2&key=[redacted]"]
            made = await agent.call_tool("shop_place_order", {"book": "Emma"})
            assert (made.meta or {})["gateway/headers"] == {"location": "/orders/7"}
            assert texts(made) == ['{"id": 7}', "Location: /orders/7"]

            order = {"arguments": {"book": "Emma"}}
            _, rested = await ann("POST", "/tools/shop_place_order/call", order)
            assert rested["headers"] == {"location": "/orders/7"}
            raw = {"connection": "shop", "method": "GET", "path": "/orders/1"}
            assert (await ann("POST", "/proxy", raw))[1]["headers"] == READ
            path = "/tools/shop_place_order/call?background=true"
            _, started = await ann("POST", path, order)
            record = await ann.execution(started["execution_id"], "completed")
            assert record["result"]["headers"] == {"location": "/orders/7"}


def texts(result: Any) -> list[str]:
    return [part.text for part in result.content]


async def test_a_file_arrives_as_what_it_is(make_gateway: GatewayMaker) -> None:
    file = {"type": "string", "format": "binary"}
    photos = {"cover": file, "pages": {"type": "array", "items": file}, "logo": file}
    content = {"schema": {"type": "object", "properties": photos}}
    content["encoding"] = {"logo": {"contentType": "image/svg+xml, image/png"}}

    async with provider() as shop:
        shop.document = orders_api(
            shop.url, placeOrder={"requestBody": {"content": {"multipart/form-data": content}}}
        )
        gateway: Running = await make_gateway(config(shop, FREELY))
        async with client(gateway.url, "ann") as agent:
            arguments = {
                "cover": given(b"cover"),
                "cover_filename": "Emma.jpg",
                "pages": [given(b"1"), given(b"2")],
                "pages_filename": ["1.pdf", "2.txt"],
                "pages_content_type": ["", "text/markdown"],
                "logo": given(b"logo"),
            }
            result = await agent.call_tool("shop_place_order", arguments)
            assert not result.is_error
    assert parts_of((shop.headers[-1]["Content-Type"], shop.requests[-1][2])) == [
        ("cover", "Emma.jpg", "image/jpeg", b"cover"),
        ("pages", "1.pdf", "application/pdf", b"1"),
        ("pages", "2.txt", "text/markdown", b"2"),
        ("logo", "logo", "image/svg+xml", b"logo"),
    ]


def given(content: bytes) -> str:
    return base64.b64encode(content).decode()
