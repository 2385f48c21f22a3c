"""The feed: what is told to whom, and how a reader that was cut off goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from tests.callers import Api, api
from tests.conftest import gateway_on
from tests.journeys.confirming import ORDER, Shop, config
from tests.journeys.conftest import ShopMaker
from tests.mcp.raw import Events
from tests.peers import Provider


@asynccontextmanager
async def events(rest: Api, last: str | None = None) -> AsyncIterator[Events]:
    """The feed as it comes."""
    headers = {} if last is None else {"Last-Event-ID": last}
    async with rest.http.get(f"{rest.base}/api/v1/events", headers=headers) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        yield Events(answer)


async def next_of(feed: Events, kind: str) -> tuple[str | None, dict[str, Any]]:
    """The id and the words of the next event of this kind."""
    async with asyncio.timeout(60):
        while (fields := await feed.next()).get("event") != kind:
            pass
    return fields.get("id"), orjson.loads(fields["data"])


async def test_feed_tells_of_confirmations_and_results_and_goes_on_where_it_was_cut(
    make_shop: ShopMaker,
) -> None:
    shop = await make_shop()
    async with events(shop.root) as feed:
        _, waiting = await shop.ann.call("shop_place_order", **ORDER)
        id, asked = await next_of(feed, "confirmation")
        assert (asked["status"], asked["execution_id"]) == ("pending", waiting["execution_id"])
    await shop.root.decide("approve")
    await shop.ann.execution(waiting["execution_id"], "completed")
    async with events(shop.root, id) as feed:
        _, decided = await next_of(feed, "confirmation")
        assert (decided["status"], decided["decided_by"]) == ("approved", "root")
        _, result = await next_of(feed, "result")
        assert (result["id"], result["status"]) == (waiting["execution_id"], "completed")
        _, read = await shop.ann.call("shop_get_order", id="1")
        assert (await next_of(feed, "result"))[1]["id"] == read["execution_id"]


async def test_feed_gives_others_only_their_own_and_tells_of_tools_and_connections(
    own_shop: Shop,
) -> None:
    shop = own_shop
    async with events(shop.bob) as feed:
        await shop.ann.call("shop_place_order", **ORDER)
        _, his = await shop.bob.call("shop_place_order", **ORDER)
        assert (await next_of(feed, "result"))[1]["id"] == his["execution_id"]
        shop.peer.document["paths"] = {"/x": {"get": {"responses": {}}}}
        await shop.refresh()
        await next_of(feed, "tools_changed")
        assert (await next_of(feed, "connection"))[1] == {
            "name": "shop",
            "status": "connected",
            "tools": 1,
            "effective_access": "read-write",
        }


async def test_feed_ends_when_the_gateway_does(peer: Provider, tmp_path: Path) -> None:
    async with AsyncExitStack() as ends_last, AsyncExitStack() as ends_first:
        running = gateway_on(tmp_path / "config.toml", config(peer))
        shop = await ends_first.enter_async_context(running)
        root = await ends_last.enter_async_context(api(shop.url, "root"))
        feed = await ends_last.enter_async_context(events(root))
        async with asyncio.timeout(60):
            await ends_first.aclose()
            assert await feed.ended()
