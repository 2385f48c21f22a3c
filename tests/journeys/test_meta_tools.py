"""Tools that are reached through others: what a search says of servers, and names nearly right."""

from __future__ import annotations

from typing import Any

from tests.callers import own_call
from tests.configs import table
from tests.definitions import an_object, openapi, operation
from tests.journeys.confirming import FREELY, orders_api
from tests.journeys.conftest import ShopMaker
from tests.peers import Provider
from tests.peers_mcp import McpPeer, mcp_peer


def clerk(*connections: str) -> str:
    """A role that reaches all tools but one by way of others."""
    allow = ["place_order", "cancel_order", "remember_day", "hear"]
    bundle = table("bundles.all", mode="meta", connections=["shop", *connections], allow=allow)
    return bundle + table("roles.clerk", bundles=["all"])


def described(url: str) -> dict[str, Any]:
    document = orders_api(url)
    document["info"]["description"] = "Orders of the\n shop."
    return document


async def test_search_says_which_servers_its_answers_come_from_and_what_each_is_for(
    make_shop: ShopMaker, peer: Provider
) -> None:
    peer.document = described(peer.url)
    async with (
        mcp_peer(peer=McpPeer(tools={"remember_day": an_object({})})) as diary,
        mcp_peer(peer=McpPeer(tools={"hear": an_object({})})) as gossip,
    ):
        more = clerk("diary", "gossip")
        more += diary.table("diary") + gossip.table("gossip", trust="untrusted")
        shop = await make_shop(FREELY, more, ann="clerk")
        async with shop.agent() as ann:
            orders = await own_call(ann, "mcp_search_tools", query="place an order")
            nothing = await own_call(ann, "mcp_search_tools", query="xyzzy")
    assert orders["tools"][0]["name"] == "shop_place_order"
    assert orders["servers"][0]["purpose"] == "Orders of the shop."
    assert nothing["tools"] == []
    assert {row["server_id"]: row["purpose"] for row in nothing["servers"]} == {
        "shop": "Orders of the shop.",
        "diary": "Be kind.",
        "gossip": "hear",
    }


NEARLY = [
    ("shop", "place_ordr", "'place_order' on 'shop'"),
    ("shops", "place_order", "'place_order' on 'shop'"),
    ("shop", "get_ordr", ""),  # there is a `get_order`, which the caller does not see
]


async def test_name_that_is_not_there_is_answered_with_the_one_that_was_meant(
    make_shop: ShopMaker,
) -> None:
    shop = await make_shop(FREELY, clerk(), ann="clerk")
    async with shop.agent() as ann:
        for server, name, meant in NEARLY:
            answer = await own_call(ann, "mcp_call_tool", server_id=server, tool_name=name)
            message = answer["error"]["message"]
            assert f"there is no tool {name!r} on {server!r}" in message
            assert meant in message
            assert "get_order" not in message


async def test_what_all_tools_of_an_api_say_is_said_once(
    make_shop: ShopMaker, peer: Provider
) -> None:
    words = "Every call needs an account, see https://shop.example/accounts."
    more = {"summary": "Looks", "description": words}
    paths = {f"/{n}": {"get": operation(operationId=f"look_{n}", **more)} for n in "abcdefgh"}
    peer.document = openapi(paths, servers=[{"url": peer.url}])
    bundle = table("bundles.all", mode="meta", connections=["shop"])
    shop = await make_shop(FREELY, bundle + table("roles.clerk", bundles=["all"]), ann="clerk")
    async with shop.agent() as ann:
        listed = await own_call(ann, "mcp_list_tools", server_id="shop")
        instructions = ann.instructions or ""
    assert (len(listed["tools"]), listed["instructions"]) == (8, words)
    assert f"## shop (its tools here begin with `shop_`)\n{words}" in instructions
    assert words not in str(listed["tools"])
    _, shown = await shop.ann("GET", "/connections/shop")
    assert shown["instructions"] == words
