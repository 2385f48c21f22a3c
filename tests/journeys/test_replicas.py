"""Two gateways on one store: what one is told, the other serves, within a second."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from mcp.client.client import Client

from gateway.calls.record import Caller
from gateway.model import Principal
from tests.callers import api, names, own_call
from tests.conftest import OPEN, Running, gateway_on, two_gateways
from tests.peers import items_api, look_until, provider, until

PAGES_OF_FOUR = "\n[limits]\npage_tools = 4\n"


@pytest.fixture
async def replicas(tmp_path: Path, store_url: str) -> AsyncIterator[tuple[Running, Running]]:
    async with two_gateways(tmp_path, OPEN, store_url) as made:
        yield made


async def test_what_is_put_chosen_changed_and_deleted_on_one_holds_on_the_other(
    replicas: tuple[Running, Running],
) -> None:
    one, two = replicas

    def tools() -> set[str]:
        return set(two.app.gateway.snapshot.tools)

    async with provider() as peer, Client(one.mcp) as client, Client(two.mcp) as other:
        await own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
        await until(lambda: tools() == {"shop_get_items"})
        peer.document = items_api(peer.url, "pears")
        await own_call(client, "refresh_tools", connection="shop")
        await until(lambda: tools() == {"shop_get_pears"})
        answer = await own_call(other, "shop_get_pears", id="7")
        assert answer == {"path": "/pears/7", "method": "GET"}
        async with api(one.url) as rest:
            _, chosen = await rest("PUT", "/access/shop", {"access": "disabled"})
        assert chosen["effective_access"] == "disabled"
        await until(lambda: ("local", "shop") in two.app.gateway.snapshot.choices)
        assert "shop_get_pears" not in await names(other)
        await own_call(client, "delete_connection", name="shop")
        await until(lambda: tools() == set())


async def test_of_two_put_connections_with_one_prefix_the_older_keeps_its_names(
    replicas: tuple[Running, Running],
) -> None:
    one, two = replicas

    def owner(replica: Running, name: str) -> str:
        tool = replica.app.gateway.snapshot.tools.get(name)
        return tool.connection if tool else ""

    async with provider() as older, provider() as newer, Client(one.mcp) as client:
        older.document = items_api(older.url, "items")
        newer.document = items_api(newer.url, "items", "pears")
        put = {"kind": "openapi", "prefix": "shop_"}
        await own_call(client, "put_connection", name="zoo", spec=older.spec, **put)
        await until(lambda: owner(two, "shop_get_items") == "zoo")
        rival = {"name": "aviary", "spec": newer.spec, **put}
        preview = await own_call(client, "put_connection", dry_run=True, **rival)
        added = await own_call(client, "put_connection", **rival)
        assert [tool["name"] for tool in preview["tools"]] == added["added"] == ["shop_get_pears"]
        await own_call(client, "put_connection", name="zoo", spec=older.spec, **put)  # once more
        for replica in replicas:
            await until(partial(lambda each: owner(each, "shop_get_pears") == "aviary", replica))
            assert owner(replica, "shop_get_items") == "zoo"
        await two.app.gateway.catalog.apply(two.app.gateway.snapshot.settings)
        assert owner(two, "shop_get_items") == "zoo"


async def paged_by_four(replica: Running) -> None:
    """An edit of its configuration, in force."""
    replica.config.write_text(replica.config.read_text("utf-8") + PAGES_OF_FOUR, "utf-8")
    await until(lambda: replica.app.gateway.snapshot.settings.limits.page_tools == 4)


async def toggled(client: Client, one: Running, two: Running, **put: str) -> None:
    """The connection is put, or deleted if it is there, and both gateways know."""
    there = put["name"] in one.app.gateway.snapshot.connections
    change = {"name": put["name"]} if there else put
    await own_call(client, "delete_connection" if there else "put_connection", **change)
    revision = one.app.gateway.snapshot.revision
    await until(lambda: two.app.gateway.snapshot.revision >= revision)


@pytest.mark.parametrize(
    ("store_url", "mode"),
    [("sqlite", "legacy"), ("postgresql", "2026-07-28")],
    indirect=["store_url"],
)
async def test_pages_from_either_make_one_list_while_tools_come_and_go(
    replicas: tuple[Running, Running], mode: str
) -> None:
    one, two = replicas
    await paged_by_four(one)
    await paged_by_four(two)
    async with (
        provider() as peer,
        Client(one.mcp, mode=mode) as first,
        Client(two.mcp, mode=mode) as second,
    ):
        put = {"kind": "openapi", "spec": peer.spec}
        await toggled(first, one, two, name="shop", **put)
        view = one.app.gateway.inquiry(Caller(Principal("local"))).view
        stays = {"shop_get_items", *view.own_names}
        listed, cursor, come_and_go = list[str](), None, itertools.cycle(["aa", "mm", "zz"])
        for client in itertools.cycle([first, second]):
            page = await client.list_tools(cursor=cursor)
            listed += [tool.name for tool in page.tools]
            if (cursor := page.next_cursor) is None:
                break
            await toggled(first, one, two, name=next(come_and_go), **put)
    assert len(listed) == len(set(listed)) > 8
    assert stays <= set(listed)


async def refreshed(client: Client) -> None:
    """The shop was read again, however busy the machine is."""
    await look_until(
        lambda: own_call(client, "refresh_tools", connection="shop"),
        lambda found: found["connections"][0]["status"] == "connected",
    )


async def test_what_a_refresh_reports_is_served_while_the_store_is_read_again(
    tmp_path: Path, store_url: str
) -> None:
    """Many connections make reading take long; puts of others make it happen all the time."""
    text = f'{OPEN}\n[store]\nurl = "{store_url}"\n'
    async with (
        gateway_on(tmp_path / "config.toml", text) as one,
        provider() as peer,
        provider() as other,
        Client(one.mcp) as client,
    ):
        other.document = items_api(other.url, *(f"items{number}" for number in range(20)))
        put = {"kind": "openapi", "spec": other.spec}
        for number in range(6):
            await own_call(client, "put_connection", name=f"other{number}", **put)
        await own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
        over = asyncio.Event()

        async def puts() -> None:
            while not over.is_set():
                await own_call(client, "put_connection", name="other0", **put)

        async with asyncio.TaskGroup() as group:
            group.create_task(puts())
            for fruit in ("pears", "plums") * 2:
                peer.document = items_api(peer.url, fruit)
                await refreshed(client)
                served = {t for t in one.app.gateway.snapshot.tools if t.startswith("shop_")}
                assert served == {f"shop_get_{fruit}"}
            over.set()
