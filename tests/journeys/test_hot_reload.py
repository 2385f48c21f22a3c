"""Connections come, change and go while clients are connected, and nothing in flight fails."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web
from mcp.client.client import Client

from gateway.store.secrets import load_seal
from tests.callers import Operator, api, names, own_call
from tests.conftest import OPEN, Running, gateway_on
from tests.conftest import shared_gateway as gateway
from tests.mcp.speakers import Era
from tests.peers import Provider, items_api, provider

__all__ = ["gateway"]


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_put_connection_has_tools_at_once_and_loses_them_when_deleted(
    operator: Operator, items: Provider, era: Era
) -> None:
    client = await Operator(operator.http, operator.url, era).meet()
    assert isinstance(client, Operator)
    put = await client.put("shop", items.spec)
    wanted = {"name": "shop", "status": "connected", "removed": [], "changed": []}
    assert put == put | wanted | {"added": ["shop_get_items"]}
    assert "shop_get_items" in await client.tools()
    answer = await client.own("shop_get_items", id="a b/c", q="x&y")
    assert answer == {"path": "/items/a b/c", "method": "GET"}
    assert items.requests == [("GET", "/items/a%20b%2Fc?q=x%26y", b"")]
    await client.own("delete_connection", name="shop")
    assert "shop_get_items" not in await client.tools()


@pytest.mark.parametrize("dry_run", [False, True])
async def test_no_command_is_put_nor_tried(
    operator: Operator, tmp_path: Path, dry_run: bool
) -> None:
    trace = tmp_path / "ran"
    command = {"kind": "mcp", "transport": "stdio", "command": "touch", "args": [str(trace)]}
    put = await operator.own("put_connection", name="x", dry_run=dry_run, **command)
    assert put["error"]["message"] == "commands can't be put at run time"
    assert not trace.exists()


async def test_operations_whose_names_others_have_are_tools_or_skipped(
    operator: Operator, items: Provider
) -> None:
    await operator.put("shop", items.spec)
    item = {"responses": {"200": {"description": "fine"}}}
    names = ("listConnections", "shop_get_items", "shop_add", "other")
    items.document["paths"] = {f"/{name}": {"get": {"operationId": name, **item}} for name in names}
    preview = await operator.put("bare", items.spec, prefix="", dry_run=True)
    put = await operator.put("bare", items.spec, prefix="")
    renamed, other = sorted(tool["name"] for tool in preview["tools"])
    assert (renamed[:-8], other) == ("list_connections_", "other")
    assert {skipped["operation"]: skipped["reason"] for skipped in preview["skipped"]} == {
        name: f"the tool name {name!r} belongs to connection 'shop'; set another prefix"
        for name in ("shop_get_items", "shop_add")
    }
    assert put["added"] == [renamed, other]
    assert (await operator.own(renamed))["path"] == "/listConnections"
    assert (await operator.own("get_connection", name="bare"))["skipped"] == 2


async def test_what_is_injected_by_its_wire_name_is_sent(
    operator: Operator, items: Provider
) -> None:
    top = {"name": "$top", "in": "query", "schema": {"type": "integer"}}
    items.document["paths"]["/items/{id}"]["get"]["parameters"].append(top)
    await operator.put("shop", items.spec, inject={"$top": 5})
    await operator.own("shop_get_items", id="a")
    assert items.requests == [("GET", "/items/a?$top=5", b"")]


async def test_a_refresh_reports_what_was_added_changed_and_removed(
    operator: Operator, items: Provider
) -> None:
    items.document = items_api(items.url, "apples", "pears")
    await operator.put("shop", items.spec)
    items.document = items_api(items.url, "pears", "plums")
    items.document["paths"]["/pears/{id}"]["get"]["summary"] = "Get a pear"
    assert await operator.refresh() == {
        "name": "shop",
        "status": "connected",
        "added": ["shop_get_plums"],
        "removed": ["shop_get_apples"],
        "changed": ["shop_get_pears"],
        "held": [],
    }


async def test_a_refresh_of_an_unchanged_definition_transfers_and_changes_nothing(
    gateway: Running, operator: Operator, items: Provider
) -> None:
    await operator.put("shop", items.spec)
    before = gateway.app.gateway.snapshot
    await operator.own("refresh_tools")
    assert gateway.app.gateway.snapshot is before
    assert items.definition_status == [200, 304]


async def test_refreshes_that_are_asked_for_together_share_one_fetch(
    gateway: Running, operator: Operator, items: Provider
) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> None:
        arrived.set()
        await go_on.wait()

    await operator.put("shop", items.spec)
    items.fetches.clear()
    items.document, items.guard = items_api(items.url, "items", "more"), slow
    catalog = gateway.app.gateway.catalog
    runs = asyncio.gather(*(catalog.refresh(["shop"], by="ann", on_demand=True) for _ in range(12)))
    async with asyncio.timeout(60), api(gateway.url) as rest:
        await arrived.wait()
        # Who asks now may know of something that this fetch can't have seen.
        later = asyncio.create_task(rest("POST", "/connections/shop/refresh"))
        go_on.set()
        assert [report.tools["added"] for [report] in await runs] == [["shop_get_more"]] * 12
        assert (await later)[1]["added"] == []
    assert len(items.fetches) == 2


BROKEN = [b"<html>", b"{}", b'{"openapi": "3.0.3", "paths": {}}', b'{"openapi":']


async def test_a_bad_refresh_keeps_the_last_good_tools_and_shows_a_problem(
    operator: Operator, items: Provider
) -> None:
    await operator.put("shop", items.spec)
    for items.raw in BROKEN:
        report = await operator.refresh()
        assert (report["status"], bool(report["error"])) == ("failing", True), items.raw
        assert "shop_get_items" in await operator.tools()
        shown = await operator.own("get_connection", name="shop")
        problem = shown["problems"][-1]["severity"]
        assert (shown["status"], problem) == ("failing", "error"), items.raw
        items.raw = None
        report = await operator.refresh()
        assert (report["status"], report["changed"]) == ("connected", [])


async def test_what_was_put_comes_back_without_network_and_its_token_is_not_on_disk(
    operator: Operator, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    async with provider() as items, gateway_on(config) as first:
        operator.url = first.mcp
        await operator.put("shop", f"{items.spec}?token=a-token-of-its-own")
        await operator.refresh()
        assert items.definition_status == [200, 304]
        kept = on_disk(tmp_path)
    assert b"openapi.json?" in kept
    assert b"a-token-of-its-own" not in kept + on_disk(tmp_path)
    async with gateway_on(config) as second:
        operator.url = second.mcp
        assert "shop_get_items" in await operator.tools()


def on_disk(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def test_two_puts_of_one_name_at_once_leave_one_whole_winner(
    gateway: Running, operator: Operator, items: Provider
) -> None:
    async with provider() as other:
        items.document = items_api(items.url, "apples")
        other.document = items_api(other.url, "pears")
        puts = (operator.put("shop", peer.spec) for peer in (items, other) * 5)
        await asyncio.gather(*puts)
        shop = gateway.app.gateway.snapshot.connections["shop"]
        spec = getattr(shop.settings, "spec", "")
        winner = "shop_get_apples" if spec == items.spec else "shop_get_pears"
        assert [tool.name for tool in shop.tools] == [winner]
        assert winner in await operator.tools()


async def test_a_call_in_flight_ends_on_the_revision_it_began_on(
    operator: Operator, items: Provider
) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        arrived.set()
        await go_on.wait()
        return web.json_response({"answer": 42})

    items.answer = slow
    await operator.put("shop", items.spec)
    call = asyncio.create_task(operator.own("shop_get_items", id="1"))
    async with asyncio.timeout(60):
        await arrived.wait()
        await operator.own("delete_connection", name="shop")
        go_on.set()
        assert await call == {"answer": 42}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("http://127.0.0.1:1/none.json", "can't be fetched"),
        ("http://10.1.2.3/openapi.json", "not allowed"),
        ("/etc/passwd", "definition"),
        ("file:///etc/passwd", "definition"),
        ("{", "line 2, column 1"),
        ("{}", "OpenAPI"),
    ],
)
async def test_a_definition_that_cannot_be_read_is_refused_and_nothing_changes(
    gateway: Running, operator: Operator, spec: str, words: str
) -> None:
    before = gateway.app.gateway.snapshot
    error = (await operator.put("x", spec))["error"]
    assert error["code"] == "connection_invalid"
    assert words in error["message"]
    assert "root:" not in str(error)
    assert gateway.app.gateway.snapshot is before


@pytest.mark.parametrize("settings", [b"no seal", None])
async def test_a_put_connection_whose_row_is_damaged_is_off_says_why_and_stops_no_start(
    tmp_path: Path, items: Provider, settings: bytes | None
) -> None:
    config = tmp_path / "config.toml"
    async with gateway_on(config, OPEN) as made, Client(made.mcp) as client:
        for name in ("shop", "other"):
            put = {"name": name, "kind": "openapi", "spec": items.spec}
            await own_call(client, "put_connection", **put)
        sealed = load_seal(tmp_path / "state" / "secret.key").encrypt_json({"kind": "of later"})
    with closing(sqlite3.connect(tmp_path / "state" / "gateway.db")) as store, store:
        store.execute(
            "UPDATE connections SET settings = ? WHERE name = 'shop'", [settings or sealed]
        )
    async with gateway_on(config, OPEN) as made, Client(made.mcp) as client:
        assert "other_get_items" in await names(client)
        shop = await own_call(client, "get_connection", name="shop")
        assert shop["status"] == "disabled"
        assert "can't be read" in shop["problems"][0]["message"]
        await own_call(client, "put_connection", **(put | {"name": "shop"}))
        assert "shop_get_items" in await names(client)
        await own_call(client, "delete_connection", name="shop")
