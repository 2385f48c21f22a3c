"""Definitions that lie in files: saving one reloads it, a bad save keeps the last good one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from mcp.client.client import Client
from structlog.testing import capture_logs

from tests.callers import Operator, api, names
from tests.conftest import OPEN, GatewayMaker, Running, two_gateways
from tests.connectors.manifests import LIBRARY
from tests.peers import items_api, until

SHOP = f'{OPEN}[connections.shop]\nkind = "openapi"\nspec = "apis/shop.json"\n'
SOON = 60.0  # a second, where the machine has nothing else to do

Save = Callable[[Path, bytes], None]


def in_place(file: Path, raw: bytes) -> None:
    file.write_bytes(raw)


def by_rename(file: Path, raw: bytes) -> None:
    """As editors do: another file is renamed over it."""
    beside = file.with_suffix(".new")
    beside.write_bytes(raw)
    beside.replace(file)


def by_link(file: Path, raw: bytes) -> None:
    """As mounted configuration is replaced: a link leads to another file from now on."""
    version = file.with_name(f"version-{len(list(file.parent.iterdir()))}")
    version.write_bytes(raw)
    link = file.with_suffix(".link")
    link.symlink_to(version)
    link.replace(file)


def definition(*items: str) -> bytes:
    return orjson.dumps(items_api("http://127.0.0.1:9", *items))


def tools(gateway: Running) -> set[str]:
    return set(gateway.app.gateway.snapshot.tools)


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    file = tmp_path / "apis" / "shop.json"
    file.parent.mkdir()
    file.write_bytes(definition("items"))
    return file


@pytest.fixture
async def shop(make_gateway: GatewayMaker, file: Path) -> Running:
    """A gateway with one connection, whose definition is this file."""
    made = await make_gateway(SHOP)
    assert tools(made) == {"shop_get_items"}
    return made


@pytest.mark.parametrize("save", [in_place, by_rename, by_link])
async def test_saving_a_definition_reloads_it_and_tells_clients(
    shop: Running, file: Path, save: Save
) -> None:
    told = asyncio.Event()

    async def heard(message: Any) -> None:
        if "list_changed" in repr(message) or "ListChanged" in repr(message):
            told.set()

    async with Client(shop.mcp, mode="legacy", message_handler=heard) as client:
        for items in (("items", "pears"), ("plums",), ("items",)):
            await names(client)
            told.clear()
            save(file, definition(*items))
            async with asyncio.timeout(SOON):
                await told.wait()
            listed = {name for name in await names(client) if name.startswith("shop_")}
            assert listed == {f"shop_get_{item}" for item in items}


async def test_a_bad_save_is_reported_once_and_the_last_good_tools_stay(
    shop: Running, file: Path
) -> None:
    state: Callable[[], Any] = lambda: shop.app.gateway.snapshot.connections["shop"]  # noqa: E731
    with capture_logs() as logged:
        by_rename(file, b'{"openapi": "3.0.3", ')
        await until(lambda: state().status == "failing", SOON)
        assert tools(shop) == {"shop_get_items"}
        # It is tried again like everything that fails, and nothing is said of it anew.
        await shop.app.gateway.catalog.refresh(["shop"], by="schedule")
    assert [line["event"] for line in logged].count("refresh failed") == 1
    async with api(shop.url) as rest:
        assert (await rest("GET", "//health"))[1]["status"] == "degraded"
    by_rename(file, definition("pears"))
    await until(lambda: tools(shop) == {"shop_get_pears"}, SOON)
    assert (state().status, state().problems) == ("connected", ())


async def test_a_file_that_is_away_keeps_its_tools_and_is_read_when_it_is_back(
    shop: Running, file: Path
) -> None:
    await asyncio.to_thread(file.rename, file.with_suffix(".old"))
    assert tools(shop) == {"shop_get_items"}
    in_place(file, definition("items", "pears"))
    await until(lambda: tools(shop) == {"shop_get_items", "shop_get_pears"}, SOON)


async def test_a_manifest_of_ones_own_is_watched_too(
    make_gateway: GatewayMaker, tmp_path: Path
) -> None:
    file = tmp_path / "library.toml"
    file.write_bytes(LIBRARY)
    auth = 'auth = { type = "bearer", token = "t" }\non_behalf_of = "reader-7"\n'
    table = f'[connections.city]\nkind = "manifest"\nmanifest = "library.toml"\n{auth}'
    gateway = await make_gateway(OPEN + table)
    assert "city_search_books" in tools(gateway)
    by_rename(file, LIBRARY.replace(b'"searchBooks"', b'"findBooks"'))
    await until(lambda: "city_find_books" in tools(gateway), SOON)


async def test_what_was_put_with_a_file_is_watched_and_what_was_deleted_is_not(
    gateway: Running, operator: Operator, file: Path
) -> None:
    await operator.put("shop", str(file))
    by_rename(file, definition("pears"))
    await until(lambda: tools(gateway) == {"shop_get_pears"}, SOON)
    await operator.own("delete_connection", name="shop")
    by_rename(file, b"{")
    await operator.put("other", "{}")
    assert tools(gateway) == set()


@pytest.fixture
async def replicas(
    tmp_path: Path, store_url: str, file: Path
) -> AsyncIterator[tuple[Running, Running]]:
    """Two gateways on one store, with the same file of a definition."""
    text = SHOP.replace("apis/shop.json", str(file))
    async with two_gateways(tmp_path, text, store_url) as made:
        yield made


async def test_a_save_that_several_replicas_see_is_one_change(
    replicas: tuple[Running, Running], file: Path
) -> None:
    by_rename(file, definition("items", "pears"))
    wanted = {"shop_get_items", "shop_get_pears"}
    for replica in replicas:
        await until(lambda each=replica: tools(each) == wanted, SOON)  # type: ignore[misc]
        await replica.app.gateway.catalog.refresh(["shop"], by="ann")
    async with api(replicas[0].url) as rest:
        changes = (await rest("GET", "/changes"))[1]["changes"]
    assert [(each["kind"], each["tool"]) for each in changes] == [("added", "shop_get_pears")]
