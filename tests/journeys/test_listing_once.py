"""Clients that list tools once and never again: what came later, what was renamed, what they are
told of it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from mcp.client.client import Client

from tests.callers import error_code, names, own_call
from tests.configs import table
from tests.definitions import operation
from tests.journeys.confirming import FREELY, ORDER, Shop, orders_api
from tests.journeys.conftest import ShopMaker
from tests.peers import Provider

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
