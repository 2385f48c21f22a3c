"""Tools that were renamed answer to the name they had, to those who see them and to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from mcp import MCPError
from mcp.client.client import Client

from gateway.catalog.changes import former_names
from gateway.catalog.snapshot import ConnectionState, assemble, with_tools
from gateway.config.connection import OpenApiConnection
from gateway.config.settings import Settings
from gateway.model import BuiltDefinition
from tests.callers import error_code, names, own_call
from tests.configs import table
from tests.conftest import OPEN, Running, gateway_on, two_gateways
from tests.definitions import an_object, built
from tests.journeys.confirming import FREELY, ORDER, answering, config, orders_api, serving
from tests.journeys.conftest import ShopMaker
from tests.peers import Provider, items_api, until
from tests.peers_mcp import TEXT_SCHEMA, McpPeer, mcp_peer

ERAS = ["legacy", "2026-07-28"]
RENAMED = {"getOrder": "readOrder", "placeOrder": "makeOrder", "cancelOrder": "dropOrder"}
DAY = 86_400.0


def renamed(document: dict[str, Any], **ids: str) -> dict[str, Any]:
    """The definition with other operation ids: all of its operations, or those that are named."""
    new, paths = ids or RENAMED, dict[str, Any]()
    for path, item in document["paths"].items():
        paths[path] = {
            method: {**one, "operationId": new.get(one["operationId"], one["operationId"])}
            for method, one in item.items()
        }
    return {**document, "paths": paths}


async def unknown(client: Client, name: str) -> str:
    """What a client is told of a tool that does not exist, without the name."""
    with pytest.raises(MCPError) as error:
        await client.call_tool(name, {"id": "7"})
    assert name in str(error.value.error)
    return str(error.value.error).replace(name, "NAME")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_tool_is_called_by_the_name_that_a_client_has_listed(
    make_shop: ShopMaker, peer: Provider, mode: str
) -> None:
    shop = await make_shop(FREELY, table("principals.bob.connections", shop="disabled"))
    async with shop.agent(mode=mode) as ann, shop.agent("bob", mode) as bob:
        assert "shop_get_order" in await names(ann)
        peer.document = renamed(orders_api(peer.url))
        await shop.refresh()
        for called in ("shop_get_order", "call_dynamic_tool"):
            named = {"name": "shop_get_order", "arguments": {"id": "7"}}
            result = await ann.call_tool(called, {"id": "7"} if called in named.values() else named)
            assert result.structured_content == {"path": "/orders/7", "method": "GET"}
            assert (result.meta or {})["gateway/renamed"] == {
                "from": "shop_get_order",
                "to": "shop_read_order",
            }
            assert any("is called shop_read_order now" in part.text for part in result.content)  # type: ignore[union-attr]
        now = await ann.call_tool("shop_read_order", {"id": "7"})
        assert "gateway/renamed" not in (now.meta or {})
        assert (await shop.ann.call("shop_place_order", **ORDER))[0] == 200

        never = await unknown(ann, "shop_never_there")
        assert await unknown(bob, "shop_get_order") == never
    _, found = await shop.root("GET", "/executions?tool=shop_read_order&principal=ann")
    assert len(found["executions"]) == 3


async def test_what_was_said_of_either_name_is_obeyed(make_shop: ShopMaker, peer: Provider) -> None:
    shop = await make_shop('tools = { shop_cancel_order = "blocked" }')
    asked: list[Any] = []
    async with shop.agent(answer=answering("always_allow", asked)) as ann, shop.agent("bob") as bob:
        assert not (await ann.call_tool("shop_place_order", ORDER)).is_error
        waiting = asyncio.create_task(bob.call_tool("shop_place_order", ORDER))
        (question,) = await shop.root.pending()
        peer.document = renamed(orders_api(peer.url))
        await shop.refresh()

        # The standing grant of the old name, and the question that was asked under it.
        for name in ("shop_place_order", "shop_make_order"):
            assert not (await ann.call_tool(name, ORDER)).is_error
        assert len(asked) == 1
        await shop.root.decide("approve", question["id"])
        assert not (await waiting).is_error

        for name in ("shop_cancel_order", "shop_drop_order"):
            assert error_code(await ann.call_tool(name, {"id": "7"})) == "access_denied"
        again = asyncio.create_task(bob.call_tool("shop_place_order", {"book": "Persuasion"}))
        (question,) = await shop.root.pending()
        assert question["tool"] == "shop_make_order"
        await shop.root.decide("deny", question["id"])
        assert error_code(await again) == "approval_denied"
    assert peer.sent("DELETE") == 0


async def test_a_token_stands_for_the_same_call_under_either_name(
    make_shop: ShopMaker, peer: Provider
) -> None:
    shop = await make_shop(FREELY)
    token: Any = {"gateway/idempotency_token": "t-1"}
    async with shop.agent() as ann:
        first = await ann.call_tool("shop_place_order", ORDER, meta=token)
        peer.document = renamed(orders_api(peer.url))
        await shop.refresh()
        again = await ann.call_tool("shop_place_order", ORDER, meta=token)
    assert again.structured_content == first.structured_content
    assert (again.meta or {})["gateway/replayed"] is True
    assert peer.sent() == 1


async def test_a_name_that_others_had_since_leads_nowhere(
    make_shop: ShopMaker, peer: Provider, items: Provider
) -> None:
    shop = await make_shop(FREELY)
    async with shop.agent() as ann:
        peer.document = renamed(orders_api(peer.url))
        await shop.refresh()
        assert not (await ann.call_tool("shop_get_order", {"id": "7"})).is_error
        items.document = items_api(items.url, "order")
        put = {"kind": "openapi", "spec": items.spec, "prefix": "shop_"}
        assert (await shop.root("PUT", "/connections/other", put))[0] == 200
        taken = await own_call(ann, "shop_get_order", id="7")
        assert taken == {"path": "/order/7", "method": "GET"}
        assert (await shop.root("DELETE", "/connections/other"))[0] == 200
        await unknown(ann, "shop_get_order")
        assert not (await ann.call_tool("shop_cancel_order", {"id": "7"})).is_error


def elsewhere(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "servers": [{"url": "https://other.example"}]}


def at_other_paths(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "paths": {f"/v2{path}": i for path, i in document["paths"].items()}}


def swapped(document: dict[str, Any]) -> dict[str, Any]:
    return renamed(document, readOrder="dropOrder", dropOrder="readOrder")


@pytest.mark.parametrize("change", [elsewhere, at_other_paths, swapped])
def test_another_operation_never_answers_to_a_name(
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    first = orders_api("https://shop.example")
    before, after = (BuiltDefinition(built(each)) for each in (first, change(renamed(first))))
    former = former_names("shop", before, after, 0.0)
    state = ConnectionState("shop", OpenApiConnection(kind="openapi", spec="x"), "config")
    only_renamed = BuiltDefinition(built(renamed(first)))
    for found, expected in ((after, change is swapped), (only_renamed, True)):
        shop = with_tools(state_with(state, found), found.build.tools)
        now = assemble(1, Settings(), [shop], former_names=former)
        tool = now.find(now.tools, "shop_get_order", 29 * DAY)
        assert (tool is not None and tool.method == "GET") is (expected and bool(former))
        assert now.find(now.tools, "shop_get_order", 31 * DAY) is None


def state_with(state: ConnectionState, found: BuiltDefinition) -> ConnectionState:
    return replace(state, built=found)


def prefixed(peer: Provider, prefix: str) -> str:
    return OPEN + peer.table(prefix=prefix)


async def prefix_becomes(gateway: Running, peer: Provider, prefix: str) -> None:
    gateway.config.write_text(prefixed(peer, prefix), encoding="utf-8")
    await until(lambda: f"{prefix}get_order" in gateway.app.gateway.snapshot.tools)


async def test_another_prefix_in_the_file_is_followed_while_running_and_while_down(
    peer: Provider, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    async with gateway_on(file, prefixed(peer, "a_")) as gateway, Client(gateway.mcp) as client:
        await until(lambda: "a_get_order" in gateway.app.gateway.snapshot.tools)
        await prefix_becomes(gateway, peer, "b_")
        assert not (await client.call_tool("a_get_order", {"id": "7"})).is_error
        await prefix_becomes(gateway, peer, "c_")
        for name in ("a_get_order", "b_get_order", "c_get_order"):
            assert not (await client.call_tool(name, {"id": "7"})).is_error
    async with gateway_on(file, prefixed(peer, "d_")) as gateway, Client(gateway.mcp) as client:
        await until(lambda: "d_get_order" in gateway.app.gateway.snapshot.tools)
        for name in ("a_get_order", "b_get_order", "d_get_order"):
            assert not (await client.call_tool(name, {"id": "7"})).is_error


async def test_a_gateway_that_was_killed_still_knows(peer: Provider, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(config(peer, FREELY), encoding="utf-8")
    async with serving(tmp_path, "root") as (process, root):
        assert (await root.call("shop_get_order", id="7"))[0] == 200
        peer.document = renamed(orders_api(peer.url))
        assert (await root("POST", "/connections/shop/refresh"))[0] == 200
        process.kill()
        await process.wait()
    peer.guard = refuse  # what is known is known from the store
    try:
        async with serving(tmp_path, "root") as (_, root):
            status, answer = await root.call("shop_get_order", id="7")
    finally:
        peer.guard = None
    assert (status, answer["output"]) == (200, {"path": "/orders/7", "method": "GET"})


async def refuse(request: Any) -> Any:
    return web.Response(status=503)


async def test_a_tool_that_was_renamed_on_one_replica_is_on_the_other(
    peer: Provider, tmp_path: Path, store_url: str
) -> None:
    async with (
        two_gateways(tmp_path, OPEN, store_url) as (one, two),
        Client(one.mcp) as first,
        Client(two.mcp) as second,
    ):
        put = {"name": "shop", "kind": "openapi", "spec": peer.spec}
        await own_call(first, "put_connection", **put)
        await until(lambda: "shop_get_order" in two.app.gateway.snapshot.tools)
        await own_call(first, "put_connection", **put, prefix="store_")
        await until(lambda: "store_get_order" in two.app.gateway.snapshot.tools)
        for client in (first, second):
            assert not (await client.call_tool("shop_get_order", {"id": "7"})).is_error
        assert one.app.gateway.snapshot.former_names == two.app.gateway.snapshot.former_names


async def test_tools_behind_others_and_of_servers_answer_to_their_old_names(
    make_shop: ShopMaker, peer: Provider
) -> None:
    tools = {"remember": an_object({}), "echo": TEXT_SCHEMA}
    bundle = table("bundles.all", mode="meta", connections=["shop", "diary"], deny=["cancel_order"])
    async with mcp_peer(peer=McpPeer(tools=tools)) as diary:
        more = bundle + table("roles.clerk", bundles=["all"])
        shop = await make_shop(FREELY, more, ann="clerk")
        put = {"kind": "mcp", "url": diary.url}
        assert (await shop.root("PUT", "/connections/diary", put))[0] == 200
        peer.document = renamed(orders_api(peer.url))
        await shop.refresh()
        assert (await shop.root("PUT", "/connections/diary", {**put, "prefix": "d_"}))[0] == 200
        diary.tools = {"recall": an_object({}), "echo": TEXT_SCHEMA}
        assert (await shop.root("POST", "/connections/diary/refresh"))[0] == 200
        async with shop.agent() as ann, shop.agent("bob") as bob:
            order = {"server_id": "shop", "tool_name": "place_order", "args": ORDER}
            made = await ann.call_tool("mcp_call_tool", order)
            assert made.is_error is False and "gateway/renamed" in (made.meta or {})
            for gone in ("cancel_order", "drop_order"):  # the bundle never gave it
                wanted = {"server_id": "shop", "tool_name": gone, "args": {"id": "7"}}
                assert error_code(await ann.call_tool("mcp_call_tool", wanted)) is not None
            assert not (await bob.call_tool("diary_echo", {"text": "hi"})).is_error
            await unknown(bob, "diary_remember")  # what a server renames is another tool to us
    assert peer.sent("DELETE") == 0
