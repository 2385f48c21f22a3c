"""Clients that list tools once and never again: what came later, what was renamed, what they are
told of it."""

from __future__ import annotations

import asyncio
from copy import copy
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from mcp.client.client import Client
from mcp_types import CallToolResult

from tests.callers import api, error_code, names, own_call
from tests.configs import table
from tests.conftest import OPEN, Running, gateway_on
from tests.definitions import operation
from tests.journeys.confirming import FREELY, ORDER, Shop, orders_api
from tests.journeys.conftest import ShopMaker
from tests.mcp.speakers import Speaker
from tests.peers import Provider, items_api, look_until, provider, until

ERAS = ["legacy", "2026-07-28"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_tool_that_came_later_is_called_by_way_of_another_under_its_own_rules(
    make_shop: ShopMaker, peer: Provider, mode: str
) -> None:
    blocked = 'tools = { later_cancel_order = "blocked" }'
    shop = await make_shop(blocked, table("principals.bob.connections", later="disabled"))
    order = {"name": "later_place_order", "arguments": ORDER}
    async with shop.agent(mode=mode) as ann, shop.agent("bob", mode) as bob:
        assert "call_dynamic_tool" in await names(ann)
        put = {"kind": "openapi", "spec": peer.spec}
        assert (await shop.root("PUT", "/connections/later", put))[0] == 200

        found = await own_call(
            ann, "call_dynamic_tool", name="later_get_order", arguments={"id": "7"}
        )
        assert found == {"path": "/orders/7", "method": "GET"}
        wrong = await ann.call_tool("call_dynamic_tool", {**order, "arguments": {"book": 7}})
        assert error_code(wrong) == "invalid_arguments"
        cancel = {"name": "later_cancel_order", "arguments": {"id": "7"}}
        assert error_code(await ann.call_tool("call_dynamic_tool", cancel)) == "access_denied"
        await waits_for_a_person(ann, shop, order)

        _, listed = await shop.ann("GET", "/executions?tool=later_place_order&status=completed")
        assert [row["arguments"] for row in listed["executions"]] == [ORDER]
        unseen = await own_call(bob, "call_dynamic_tool", **order)
        assert "later" not in unseen["error"]["message"].removeprefix("Unknown tool: later_place_")
        near = await own_call(ann, "call_dynamic_tool", name="later_place_ordr")
        assert "did you mean 'later_place_order'?" in near["error"]["message"]


async def waits_for_a_person(ann: Client, shop: Shop, order: dict[str, Any]) -> None:
    """The call is made once somebody approves of the tool that it names."""
    call = asyncio.create_task(ann.call_tool("call_dynamic_tool", order))
    (asked,) = await shop.root.pending()
    assert (asked["tool"], asked["arguments"]) == (order["name"], order["arguments"])
    await shop.root.decide("approve", asked["id"])
    assert not (await call).is_error


@pytest.mark.parametrize("tool", ["list_dynamic_tools", "mcp_list_tools"])
async def test_lists_that_tools_give_are_whole_while_tools_come_and_go(
    make_shop: ShopMaker, peer: Provider, tool: str
) -> None:
    bundle = table("bundles.all", mode="meta", connections=["shop"])
    shop = await make_shop(FREELY, bundle + table("roles.clerk", bundles=["all"]), ann="clerk")
    walk, listed, cursor = Random(7), list[str](), ""
    scope = {} if tool == "list_dynamic_tools" else {"server_id": "shop"}
    async with shop.agent() as ann:
        while cursor is not None:
            peer.document = orders_api(peer.url) | {"paths": some_paths(walk)}
            await shop.refresh()
            page = await own_call(ann, tool, limit=3, cursor=cursor, **scope)
            listed += [row["name"] for row in page["tools"]]
            cursor = page["next"]
    assert len(listed) == len(set(listed))
    assert {f"shop_get_{word}" for word in STAYS} <= set(listed)


STAYS = ("berries", "melons", "plums")


def some_paths(walk: Random) -> dict[str, Any]:
    """Those that stay, and some of many others."""
    others = [f"{letter}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    words = [*STAYS, *walk.sample(others, 9)]
    return {f"/{word}": {"get": operation(operationId=f"get_{word}")} for word in words}


CHANGED = "gateway/tools_changed"


def told(result: CallToolResult) -> dict[str, Any] | None:
    """What a result says of changes, without the revision."""
    said = (result.meta or {}).get(CHANGED)
    return said and {name: value for name, value in said.items() if name != "revision"}


def lines(result: CallToolResult) -> int:
    """How many lines of a result send the model to the list; such a line is the last."""
    found = ["list_dynamic_tools" in part.text for part in result.content]  # type: ignore[union-attr]
    assert not any(found[:-1])
    return sum(found)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_learns_with_its_results_that_its_list_is_old(
    make_shop: ShopMaker, peer: Provider, mode: str
) -> None:
    closed = table("principals.bob.connections", later="disabled")
    shop = await make_shop(FREELY, closed)
    put = {"kind": "openapi", "spec": peer.spec, "include": ["getOrder"]}
    got = ("shop_get_order", {"id": "7"})
    async with (
        shop.agent(mode=mode) as ann,
        shop.agent("bob", mode) as bob,
        shop.agent(mode=mode, called="never-lists") as silent,
    ):
        for client in (ann, bob):
            await client.list_tools()
            assert told(await client.call_tool(*got)) is None
        assert (await shop.root("PUT", "/connections/later", put))[0] == 200
        peer.document = orders_api(peer.url, cancelOrder=operation(summary="Cancel it"))
        await shop.refresh()

        news = {"added": ["later_get_order"], "removed": [], "changed": ["shop_cancel_order"]}
        first = await ann.call_tool("shop_get_order", {"id": 7})
        assert (first.is_error, told(first), lines(first)) == (True, news, 1)
        again = await ann.call_tool(*got)
        assert (again.is_error, told(again), lines(again)) == (False, news, 0)
        assert told(await bob.call_tool(*got)) == {**news, "added": []}
        assert told(await silent.call_tool(*got)) is None

        await ann.list_tools()
        assert told(await ann.call_tool(*got)) is None
        assert (await shop.root("DELETE", "/connections/later"))[0] == 200
        gone = await ann.call_tool(*got)
        assert told(gone) == {"added": [], "removed": ["later_get_order"], "changed": []}
        assert lines(gone) == 1
        assert told(await bob.call_tool(*got)) == {**news, "added": []}


@pytest.mark.parametrize("mode", ERAS)
async def test_what_one_replica_listed_the_other_tells_of(
    tmp_path: Path, store_url: str, mode: str
) -> None:
    """A balancer sends a client's requests now here, now there; a restart changes nothing."""
    key = f'[store]\nurl = "{store_url}"\nsecret_key_file = "{tmp_path}/secret.key"\n'
    async with provider() as peer, aiohttp.ClientSession() as http:
        shop = OPEN + peer.table() + key
        async with (
            gateway_on(tmp_path / "one.toml", shop) as one,
            gateway_on(tmp_path / "two.toml", shop) as two,
        ):
            era: Any = "2025" if mode == "legacy" else "2026"
            here = await Speaker(http, one.mcp, era).meet()
            there = copy(here)
            there.url = two.mcp
            await here.request("tools/list")
            await changed(peer, one, two, "pears")
            assert await told_over(there) == (["shop_get_pears"], 1)
            assert await told_over(here) == (["shop_get_pears"], 0)
            await there.request("tools/list")
            await until_quiet(here)
            await changed(peer, one, two, "plums")
        async with gateway_on(tmp_path / "one.toml", shop) as one:
            here.url = one.mcp
            assert await told_over(here) == (["shop_get_plums"], 1)


async def changed(peer: Provider, one: Running, two: Running, *names: str) -> None:
    """The API has other items, as both gateways know."""
    peer.document = items_api(peer.url, "items", *names)
    async with api(one.url) as root:
        assert (await root("POST", "/connections/shop/refresh"))[0] == 200
    await until(lambda: f"shop_get_{names[-1]}" in two.app.gateway.snapshot.tools)


async def told_over(speaker: Speaker) -> tuple[list[str], int]:
    """Which tools a result says were added, and how many lines say so."""
    result = await speaker.call("shop_get_items", id="7")
    words = [part["text"] for part in result["content"]]
    added = result["_meta"].get(CHANGED, {"added": []})["added"]
    return added, sum("list_dynamic_tools" in text for text in words)


async def until_quiet(speaker: Speaker) -> None:
    """Once this gateway has heard that the client has listed."""
    await look_until(lambda: told_over(speaker), lambda told: told == ([], 0))
