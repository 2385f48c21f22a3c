"""Connections come, change and go while clients are connected, and nothing in flight fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiohttp import web
from mcp.client.client import Client

from tests.conftest import Running, gateway_on
from tests.conftest import shared_gateway as gateway
from tests.peers import items_api, provider

__all__ = ["gateway"]


async def own_call(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    content: dict[str, Any] | None = result.structured_content
    assert content is not None
    return content


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_put_connection_has_tools_at_once_and_loses_them_when_deleted(
    gateway: Running, mode: str
) -> None:
    async with provider() as peer, Client(gateway.mcp, mode=mode) as client:
        put = await own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
        assert {key: put[key] for key in ("name", "status", "added", "removed", "changed")} == {
            "name": "shop",
            "status": "connected",
            "added": ["shop_get_items"],
            "removed": [],
            "changed": [],
        }
        assert "shop_get_items" in await names(client)
        answer = await own_call(client, "shop_get_items", id="a b/c", q="x&y")
        assert answer == {"path": "/items/a b/c", "method": "GET"}
        assert peer.requests == [("GET", "/items/a%20b%2Fc?q=x%26y", b"")]
        await own_call(client, "delete_connection", name="shop")
        assert "shop_get_items" not in await names(client)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_no_command_is_put_nor_tried(gateway: Running, tmp_path: Path, dry_run: bool) -> None:
    trace = tmp_path / "ran"
    command = {"kind": "mcp", "transport": "stdio", "command": "touch", "args": [str(trace)]}
    async with Client(gateway.mcp) as client:
        put = await own_call(client, "put_connection", name="x", dry_run=dry_run, **command)
        assert put["error"]["message"] == "commands can't be put at run time"
    assert not trace.exists()


async def test_a_dry_run_shows_the_tools_and_keeps_nothing(gateway: Running) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        preview = await own_call(
            client, "put_connection", name="shop", kind="openapi", spec=peer.spec, dry_run=True
        )
        assert [tool["name"] for tool in preview["tools"]] == ["shop_get_items"]
        assert (preview["format"], preview["base_url"]) == ("openapi-3.0", peer.url)
        assert (await own_call(client, "list_connections"))["connections"] == []


async def test_operations_whose_names_others_have_are_tools_or_skipped(gateway: Running) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        await own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
        item = {"responses": {"200": {"description": "fine"}}}
        names = ("listConnections", "shop_get_items", "shop_add", "other")
        peer.document["paths"] = {
            f"/{name}": {"get": {"operationId": name, **item}} for name in names
        }
        wanted = {"name": "bare", "kind": "openapi", "spec": peer.spec, "prefix": ""}
        preview = await own_call(client, "put_connection", **wanted, dry_run=True)
        put = await own_call(client, "put_connection", **wanted)
        renamed, other = sorted(tool["name"] for tool in preview["tools"])
        assert (renamed[:-8], other) == ("list_connections_", "other")
        assert {skipped["operation"]: skipped["reason"] for skipped in preview["skipped"]} == {
            name: f"the tool name {name!r} belongs to connection 'shop'; set another prefix"
            for name in ("shop_get_items", "shop_add")
        }
        assert put["added"] == [renamed, other]
        assert (await own_call(client, renamed))["path"] == "/listConnections"
        assert (await own_call(client, "get_connection", name="bare"))["skipped"] == 2


async def test_what_is_injected_by_its_wire_name_is_sent(gateway: Running) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        top = {"name": "$top", "in": "query", "schema": {"type": "integer"}}
        peer.document["paths"]["/items/{id}"]["get"]["parameters"].append(top)
        connection = {"name": "shop", "kind": "openapi", "spec": peer.spec}
        await own_call(client, "put_connection", **connection, inject={"$top": 5})
        await own_call(client, "shop_get_items", id="a")
        assert peer.requests == [("GET", "/items/a?$top=5", b"")]


async def test_a_refresh_reports_what_was_added_changed_and_removed(gateway: Running) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        peer.document = items_api(peer.url, "apples", "pears")
        await own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
        peer.document = items_api(peer.url, "pears", "plums")
        peer.document["paths"]["/pears/{id}"]["get"]["summary"] = "Get a pear"
        report = (await own_call(client, "refresh_tools", connection="shop"))["connections"][0]
        assert report == {
            "name": "shop",
            "status": "connected",
            "added": ["shop_get_plums"],
            "removed": ["shop_get_apples"],
            "changed": ["shop_get_pears"],
            "held": [],
        }


async def test_a_refresh_of_an_unchanged_definition_transfers_and_changes_nothing(
    gateway: Running,
) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        await own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
        before = gateway.app.gateway.snapshot
        await own_call(client, "refresh_tools")
        assert gateway.app.gateway.snapshot is before
        assert peer.definition_status == [200, 304]


async def test_refreshes_that_are_asked_for_together_share_one_fetch(gateway: Running) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> None:
        arrived.set()
        await go_on.wait()

    async with provider() as peer, Client(gateway.mcp) as client, httpx2.AsyncClient() as http:
        await own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
        peer.fetches.clear()
        peer.document, peer.guard = items_api(peer.url, "items", "more"), slow
        catalog = gateway.app.gateway.catalog
        asked = asyncio.gather(
            *(catalog.refresh(["shop"], by="ann", asked=True) for _ in range(12))
        )
        async with asyncio.timeout(15):
            await arrived.wait()
            # Who asks now may know of something that this fetch can't have seen.
            address = f"{gateway.url}/api/v1/connections/shop/refresh"
            later = asyncio.create_task(http.post(address))
            go_on.set()
            assert [report.tools["added"] for [report] in await asked] == [["shop_get_more"]] * 12
            assert (await later).json()["added"] == []
        assert len(peer.fetches) == 2


BROKEN = [b"<html>", b"{}", b'{"openapi": "3.0.3", "paths": {}}', b'{"openapi":']


async def test_a_bad_refresh_keeps_the_last_good_tools_and_shows_a_problem(
    gateway: Running,
) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        await own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
        for peer.raw in BROKEN:
            report = (await own_call(client, "refresh_tools"))["connections"][0]
            assert (report["status"], bool(report["error"])) == ("failing", True), peer.raw
            assert "shop_get_items" in await names(client)
            shown = await own_call(client, "get_connection", name="shop")
            problem = shown["problems"][-1]["severity"]
            assert (shown["status"], problem) == ("failing", "error"), peer.raw
            peer.raw = None
            report = (await own_call(client, "refresh_tools"))["connections"][0]
            assert (report["status"], report["changed"]) == ("connected", [])


async def test_what_was_put_comes_back_without_network_and_its_token_is_not_on_disk(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.toml"
    async with (
        provider() as peer,
        gateway_on(config) as first,
        Client(first.mcp) as client,
    ):
        spec = f"{peer.spec}?token=a-token-of-its-own"
        await own_call(client, "put_connection", name="shop", kind="openapi", spec=spec)
        await own_call(client, "refresh_tools", connection="shop")
        assert peer.definition_status == [200, 304]
        kept = on_disk(tmp_path)
    assert b"openapi.json?" in kept
    assert b"a-token-of-its-own" not in kept + on_disk(tmp_path)
    async with gateway_on(config) as second, Client(second.mcp) as client:
        assert "shop_get_items" in await names(client)


def on_disk(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def test_two_puts_of_one_name_at_once_leave_one_whole_winner(gateway: Running) -> None:
    async with provider() as one, provider() as two, Client(gateway.mcp) as client:
        one.document = items_api(one.url, "apples")
        two.document = items_api(two.url, "pears")
        await asyncio.gather(
            *(
                own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
                for peer in (one, two) * 5
            )
        )
        shop = gateway.app.gateway.snapshot.connections["shop"]
        spec = getattr(shop.settings, "spec", "")
        winner = "shop_get_apples" if spec == one.spec else "shop_get_pears"
        assert [tool.name for tool in shop.tools] == [winner]
        assert winner in await names(client)


async def test_a_call_in_flight_ends_on_the_revision_it_began_on(gateway: Running) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        arrived.set()
        await go_on.wait()
        return web.json_response({"answer": 42})

    async with provider() as peer, Client(gateway.mcp) as client:
        peer.answer = slow
        await own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
        call = asyncio.create_task(client.call_tool("shop_get_items", {"id": "1"}))
        async with asyncio.timeout(15):
            await arrived.wait()
        async with Client(gateway.mcp) as other:
            await own_call(other, "delete_connection", name="shop")
        go_on.set()
        async with asyncio.timeout(15):
            result = await call
        assert result.structured_content == {"answer": 42}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"spec": "http://127.0.0.1:1/none.json"}, "can't be fetched"),
        ({"spec": "http://10.1.2.3/openapi.json"}, "not allowed"),
        ({"spec": "/etc/passwd"}, "definition"),
        ({"spec": "file:///etc/passwd"}, "definition"),
        ({"spec": "{"}, "line 2, column 1"),
        ({"spec": "{}"}, "OpenAPI"),
    ],
    ids=str,
)
async def test_a_definition_that_cannot_be_read_is_refused_and_nothing_changes(
    gateway: Running, values: dict[str, str], words: str
) -> None:
    before = gateway.app.gateway.snapshot
    async with Client(gateway.mcp) as client:
        result = await client.call_tool(
            "put_connection", {"name": "x", "kind": "openapi", **values}
        )
    assert result.is_error
    assert result.structured_content is not None
    error = result.structured_content["error"]
    assert error["code"] == "connection_invalid"
    assert words in error["message"]
    assert "root:" not in str(error)
    assert gateway.app.gateway.snapshot is before
