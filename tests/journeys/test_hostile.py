"""Callers and definitions that mean harm, over real HTTP: what they try has no effect on others."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from multidict import CIMultiDict

from tests.callers import Api, api
from tests.conftest import OPEN, GatewayMaker, Running
from tests.conftest import shared_gateway as gateway
from tests.mcp.speakers import Speaker
from tests.peers import items_api, provider, until

__all__ = ["gateway"]

HUGE = "9" * 30  # no integer of 64 bits
DEFINITION = orjson.dumps(items_api("http://93.184.216.34")).decode()


@pytest.fixture
async def rest(gateway: Running) -> AsyncIterator[Api]:
    async with api(gateway.url) as made:
        yield made


async def posted(rest: Api, path: str, body: str) -> tuple[int, Any]:
    """The answer to these very bytes."""
    headers, data = {"Content-Type": "application/json"}, io.BytesIO(body.encode())
    url = f"{rest.base}/api/v1{path}"
    async with rest.http.post(url, data=data, headers=headers) as answer:
        return answer.status, await answer.json()


async def put(rest: Api, **settings: Any) -> tuple[int, Any]:
    return await rest("PUT", "/connections/shop", {"kind": "openapi", **settings})


async def called(rest: Api, tool: str, arguments: Any) -> Any:
    speaker = Speaker(rest.http, f"{rest.base}/mcp", "2026")
    return await speaker.request("tools/call", {"name": tool, "arguments": arguments})


async def test_a_number_that_json_writers_refuse_does_not_hide_the_history(rest: Api) -> None:
    async with provider() as peer:
        await put(rest, spec=peer.spec)
        refused = await called(rest, "shop_get_items", {"id": int(HUGE)})
        assert refused["structuredContent"]["error"]["code"] == "invalid_arguments"
        newest = f"{rest.base}/api/v1/executions?tool=shop_get_items"
        found: list[Any] = []
        async with asyncio.timeout(60):  # refused calls are written in batches
            while not found:
                async with rest.http.get(newest) as answer:
                    assert answer.status == 200
                    found = json.loads(await answer.read())["executions"]
        assert [each["arguments"] for each in found] == [{"id": int(HUGE)}]
        assert (await called(rest, "list_executions", {}))["isError"] is False


BODIES = {
    "key twice": '{"arguments":{"id":"1","id":"2"}}',
    "deep": '{"arguments":{"id":' + "[" * 900 + "]" * 900 + "}}",
    "huge number": '{"arguments":{"id":' + HUGE + "}}",
}


async def test_rest_takes_no_body_that_readers_could_take_differently(rest: Api) -> None:
    async with provider() as peer:
        await put(rest, spec=peer.spec)
        for kind, body in BODIES.items():
            status, answer = await posted(rest, "/tools/shop_get_items/call", body)
            assert (status, answer["error"]["code"]) == (422, "invalid_arguments"), kind
        assert peer.requests == []


async def test_rest_drops_nothing_that_was_sent_as_arguments(rest: Api) -> None:
    async with provider() as peer:
        await put(rest, spec=peer.spec)
        status, answer = await posted(rest, "/tools/shop_get_items/call", '{"id":"1"}')
        assert (status, answer["error"]["code"]) == (422, "invalid_arguments")
        assert peer.requests == []


@pytest.mark.parametrize("name", ["Origin", "Authorization"])
async def test_a_header_that_is_there_twice_is_refused_at_every_address(
    rest: Api, name: str
) -> None:
    headers = CIMultiDict([(name, "http://127.0.0.1"), (name, "127.0.0.1")])
    for path in ("/console", "/api/v1/tools"):
        async with rest.http.get(f"{rest.base}{path}", headers=headers) as answer:
            assert answer.status == 400


async def test_no_operation_draws_credentials_to_another_host(rest: Api) -> None:
    async with provider() as peer, provider() as thief:
        document = items_api(peer.url, "mine", "stolen")
        document["paths"]["/stolen/{id}"]["servers"] = [{"url": thief.url}]
        auth = {"type": "bearer", "token": "not-for-everyone"}
        _, done = await put(rest, spec=orjson.dumps(document).decode(), auth=auth)
        assert done["added"] == ["shop_get_mine"]
        assert thief.headers == []


BASE_URLS = ["http://93.184.216.34@127.0.0.1", "http://a.example\r\nX: y", "http://a.example\\@b"]
BASE_URLS += ["http://[", "http://[x]/"]


async def test_a_base_url_that_cannot_be_dialled_is_refused_at_once(rest: Api) -> None:
    for url in BASE_URLS:
        status, answer = await put(rest, spec=DEFINITION, base_url=url)
        assert (status, answer["error"]["code"]) == (422, "connection_invalid"), url


NOT_ALLOWED = "The address of {} is not allowed; add it to network.allow"


async def test_a_vault_at_a_private_address_is_refused_at_once(rest: Api) -> None:
    auth = {"type": "nango", "url": "http://10.0.0.1", "secret_key": "s" * 8}
    auth |= {"connection_id": "x", "provider_config_key": "y"}
    status, answer = await put(rest, spec=DEFINITION, auth=auth)
    assert (status, answer["error"]["message"]) == (422, NOT_ALLOWED.format("10.0.0.1"))


async def test_a_refresh_that_leads_to_a_private_address_keeps_what_was_served(rest: Api) -> None:
    async with provider() as peer:
        await put(rest, spec=peer.spec)
        peer.document = items_api("http://169.254.169.254", "items", "more")
        _, report = await rest("POST", "/connections/shop/refresh")
        problem = NOT_ALLOWED.format("169.254.169.254")
        assert (report["status"], report["error"]) == ("failing", problem)
        assert (await rest.call("shop_get_items", id="1"))[1]["success"]


REFUSED_SERVERS = ["http://169.254.169.254/", "http://[::1]:9101", "http://a!b"]


@pytest.mark.parametrize("server", REFUSED_SERVERS)
async def test_an_operation_with_a_refused_server_is_skipped_and_the_rest_stays(
    gateway: Running, rest: Api, server: str
) -> None:
    async with provider() as peer:
        await put(rest, spec=peer.spec)
        peer.document = items_api(peer.url, "items", "more")
        peer.document["paths"]["/more/{id}"]["servers"] = [{"url": server}]
        _, report = await rest("POST", "/connections/shop/refresh")
        assert (report["status"], report["added"]) == ("connected", [])
        assert (await put(rest, spec=peer.spec))[0] == 200
        preview = {"kind": "openapi", "spec": peer.spec}
        _, shown = await rest("POST", "/connections/preview", preview)
        assert [tool["operation"] for tool in shown["tools"]] == ["get_items"]
        assert [skipped["operation"] for skipped in shown["skipped"]] == ["get_more"]
        assert shown["skipped"][0]["reason"].startswith(("The address of ", "The URL's host "))
        (skipped,) = gateway.app.gateway.snapshot.connections["shop"].skipped
        assert (skipped.operation, skipped.tool) == ("get_more", "shop_get_more")
        assert (await rest.call("shop_get_items", id="1"))[1]["success"]


async def test_an_operation_is_a_tool_once_its_server_is_allowed(
    make_gateway: GatewayMaker,
) -> None:
    async with provider() as peer:
        peer.document = items_api(peer.url, "items", "more")
        peer.document["paths"]["/more/{id}"]["servers"] = [{"url": "http://[::1]:9101"}]
        gateway = await make_gateway(OPEN + peer.table())
        text = gateway.config.read_text("utf-8")
        async with api(gateway.url) as rest:
            found = gateway.app.gateway
            assert len(found.snapshot.connections["shop"].tools) == 1
            gateway.config.write_text(text.replace('"127.0.0.1/32"', '"127.0.0.1/32", "::1/128"'))
            await until(lambda: len(found.snapshot.settings.network.allow) == 2)
            _, report = await rest("POST", "/connections/shop/refresh")
            assert report["added"] == ["shop_get_more"]
            assert len(found.snapshot.connections["shop"].tools) == 2


@pytest.mark.parametrize("junk", [5, 1.5, True, None, [], {}, ["a"], "", "No Name"], ids=repr)
async def test_a_name_or_kind_that_is_none_is_refused(rest: Api, junk: Any) -> None:
    good = {"name": "shop", "kind": "openapi", "spec": DEFINITION}
    for values in ({**good, "name": junk}, {**good, "kind": junk}, junk):
        for way in (("POST", "/connections/preview"), ("PUT", "/connections/shop")):
            assert (await rest(*way, values))[0] == 422, (way, values)
        arguments = values if isinstance(values, dict) else {"name": junk}
        assert (await called(rest, "put_connection", arguments))["isError"]


async def test_a_body_larger_than_any_is_refused_unread(rest: Api) -> None:
    body = '{"query": "' + "x" * 5 * 1024 * 1024 + '"}'
    assert (await posted(rest, "/proxy", body))[0] == 413
