"""An edit of config.toml on disk: applied, refused once, or named as needing a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
from mcp.client.client import Client
from starlette.requests import Request
from starlette.responses import Response
from structlog.testing import capture_logs

from tests.callers import own_call
from tests.conftest import OPEN, GatewayMaker, Running
from tests.peers import provider, until
from tests.peers_mcp import scripted_peer


def edit(config: Path, text: str) -> None:
    """Replaces the file the way editors do: another file is renamed over it."""
    beside = config.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(config)


async def health(gateway: Running) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}/health") as answer:
        report: dict[str, Any] = await answer.json()
        return report


async def test_a_narrowed_connection_narrows_without_asking_its_server(gateway: Running) -> None:
    async with provider() as peer:
        table = f'{OPEN}\n[connections.shop]\nkind = "openapi"\nspec = "{peer.spec}"\n'
        edit(gateway.config, table)
        await until(lambda: "shop_get_items" in gateway.app.gateway.snapshot.tools)
    edit(gateway.config, table + 'blocklist = ["/items"]\n')
    await until(lambda: "shop_get_items" not in gateway.app.gateway.snapshot.tools)


async def test_a_bad_edit_is_reported_and_the_last_good_settings_stay(gateway: Running) -> None:
    before = gateway.app.gateway.snapshot
    edit(gateway.config, OPEN + "\n[limits]\ncall_timeout = 3\n")
    await until(lambda: gateway.app.health.config_problem is not None)
    assert gateway.app.gateway.snapshot is before
    report = await health(gateway)
    assert report["status"] == "degraded"
    assert "limits.call_timeout: unknown key" in report["config_problem"]
    edit(gateway.config, OPEN)
    await until(lambda: gateway.app.health.config_problem is None)


async def test_an_edit_does_not_wait_for_a_server_that_the_last_one_brought(
    gateway: Running,
) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(message: dict[str, Any], request: Request) -> Response:
        asked.set()
        await may_answer.wait()
        return Response(status_code=503)

    async with scripted_peer(slow) as url:
        table = f'{OPEN}\n[connections.slow]\nkind = "mcp"\nurl = "{url}"\n'
        edit(gateway.config, table)
        await asyncio.wait_for(asked.wait(), 10)
        edit(gateway.config, f"{table}\n[bundles.later]\nconnections = []\n")
        await until(lambda: "later" in gateway.app.gateway.snapshot.settings.bundles, 10)
        may_answer.set()


async def test_no_edit_opens_a_bundle_to_an_untrusted_connection_that_was_put(
    gateway: Running,
) -> None:
    before = {"kind": "openapi", "trust": "untrusted"}
    bundle = f'{OPEN}\n[bundles.all]\nconnections = ["shop"]\n'
    async with provider() as peer, Client(gateway.mcp) as client:
        await own_call(client, "put_connection", name="shop", spec=peer.spec, **before)
        edit(gateway.config, bundle)
        await until(lambda: gateway.app.health.config_problem is not None)
        problem = str(gateway.app.health.config_problem)
        assert 'bundles.all.mode: must be "meta": shop is an untrusted connection' in problem
        assert not gateway.app.gateway.snapshot.settings.bundles
        edit(gateway.config, f'{bundle}mode = "meta"\nallow = ["get_*"]\n')
        await until(lambda: bool(gateway.app.gateway.snapshot.settings.bundles))


async def test_a_key_that_is_read_at_start_is_named(gateway: Running) -> None:
    first, state = f"{OPEN}[limits]\npage_tools = 7\n", gateway.app.gateway
    edit(gateway.config, first)
    await until(lambda: state.snapshot.settings.limits.page_tools == 7)  # it is being watched
    edit(gateway.config, f"{first}[server]\nshutdown_seconds = 7\n")
    await until(lambda: gateway.app.health.config_problem is not None)
    assert gateway.app.health.config_problem == "needs a restart: server.shutdown_seconds"


async def console(gateway: Running) -> str:
    """The first page, as an admin sees it."""
    async with httpx2.AsyncClient(base_url=gateway.url) as http:
        await http.post("/console/sign-in", data={"token": ""})
        return (await http.get("/console")).text


async def test_a_stricter_edit_is_told_of_while_what_was_put_is_in_force(gateway: Running) -> None:
    stricter = OPEN.replace('level = "full_access"', 'level = "read_only"')
    with capture_logs() as logged:
        async with aiohttp.ClientSession() as http:
            permissions = f"{gateway.url}/api/v1/permissions"
            assert (await http.put(permissions, json={"level": "full_access"})).status == 200
            assert (await health(gateway))["problems"] == []
            edit(gateway.config, stricter)
            catalog = gateway.app.gateway.catalog
            await until(lambda: catalog.current.settings.permissions.level == "read_only")
            report, page = await health(gateway), await console(gateway)
            assert (await http.delete(permissions)).status == 200
            after = await health(gateway)
    words = (
        "config.toml says read_only, which is stricter, but full_access was put at run time and "
        "stays in force until DELETE /api/v1/permissions"
    )
    problem = {"severity": "error", "where": "permissions.level", "message": words}
    assert (report["status"], report["problems"]) == ("degraded", [problem])
    assert "permissions.level does not hold" in page and words in page
    assert (after["status"], after["problems"]) == ("ok", [])
    told = [line for line in logged if line["event"] == "configuration problem"]
    assert told == [{**problem, "event": "configuration problem", "log_level": "warning"}]


async def test_names_that_match_nothing_are_told_of(gateway: Running) -> None:
    async with provider() as peer:
        table = f"""{OPEN}
tools = {{ shop_get_items = "confirm", shop_get_item = "blocked" }}
[connections.shop]
kind = "openapi"
spec = "{peer.spec}"
operations = {{ deleteAll = {{ access = "dangerous" }} }}
"""
        with capture_logs() as logged:
            edit(gateway.config, table)
            await until(lambda: "shop_get_items" in gateway.app.gateway.snapshot.tools)
        report, page = await health(gateway), await console(gateway)
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{gateway.url}/api/v1/connections/shop") as answer:
                [problem] = (await answer.json())["problems"]
            values = {"kind": "openapi", "spec": peer.spec, "exclude": ["nothing"]}
            url = f"{gateway.url}/api/v1/connections/preview"
            async with http.post(url, json=values) as answer:
                [previewed] = (await answer.json())["problems"]
    assert (report["status"], [each["where"] for each in report["problems"]]) == (
        "ok",
        ["permissions.tools.shop_get_item"],
    )
    assert problem["where"] == "operations.deleteAll"
    assert previewed["message"] == "'nothing' matches no operation"
    assert "permissions.tools.shop_get_item does not hold" in page
    assert "operations.deleteAll: matches no operation" in page
    told = [line for line in logged if line["event"] == "configuration problem"]
    assert {(line.get("connection"), line["where"]) for line in told} == {
        (None, "permissions.tools.shop_get_item"),
        ("shop", "operations.deleteAll"),
    }


async def test_a_removed_token_no_longer_opens(make_gateway: GatewayMaker) -> None:
    principal = '[principals.{0}]\ntoken = "{0}-token-0123456789"\n'
    gateway = await make_gateway(principal.format("ann") + principal.format("bob"))
    headers = {"Authorization": "Bearer ann-token-0123456789"}
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.get(f"{gateway.url}/api/v1/capabilities") as answer:
            assert answer.status == 200
        edit(gateway.config, principal.format("bob"))
        await until(lambda: "ann" not in gateway.app.gateway.snapshot.settings.principals)
        async with http.get(f"{gateway.url}/api/v1/capabilities") as answer:
            assert answer.status == 401


async def test_clients_stay_connected_while_edits_bring_and_take_connections(
    gateway: Running,
) -> None:
    async with provider() as peer, Client(gateway.mcp, mode="legacy") as client:
        await client.list_tools()
        edit(
            gateway.config, f'{OPEN}\n[connections.shop]\nkind = "openapi"\nspec = "{peer.spec}"\n'
        )
        await until(lambda: "shop_get_items" in gateway.app.gateway.snapshot.tools)
        result = await client.call_tool("shop_get_items", {"id": "1"})
        assert result.structured_content == {"path": "/items/1", "method": "GET"}
        edit(gateway.config, OPEN)
        await until(lambda: "shop" not in gateway.app.gateway.snapshot.connections)
