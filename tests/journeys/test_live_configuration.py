"""An edit of config.toml on disk: applied, refused once, or named as needing a restart."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from starlette.requests import Request
from starlette.responses import Response
from structlog.testing import capture_logs

from tests.callers import Api, Operator, api, own_call
from tests.configs import LOCAL, bearer, principal, table
from tests.conftest import OPEN, GatewayMaker, Running
from tests.definitions import operation
from tests.mcp.raw import ACCEPT, call, modern
from tests.peers import Provider, provider, soon, until
from tests.peers_mcp import scripted_peer


def edit(config: Path, text: str) -> None:
    """Replaces the file the way editors do: another file is renamed over it."""
    beside = config.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(config)


@pytest.fixture
async def rest(gateway: Running) -> AsyncIterator[Api]:
    async with api(gateway.url) as made:
        yield made


async def offers(gateway: Running, offered: bool = True) -> None:
    """Returns when the tool of the items is there, or gone."""
    await until(lambda: ("shop_get_items" in gateway.app.gateway.snapshot.tools) == offered)


async def test_a_narrowed_connection_narrows_without_asking_its_server(gateway: Running) -> None:
    async with provider() as peer:
        edit(gateway.config, OPEN + peer.table())
        await offers(gateway)
    edit(gateway.config, OPEN + peer.table(blocklist=["/items"]))
    await offers(gateway, False)


async def test_a_bad_edit_is_reported_and_the_last_good_settings_stay(
    gateway: Running, rest: Api
) -> None:
    before = gateway.app.gateway.snapshot
    edit(gateway.config, OPEN + "\n[limits]\ncall_timeout = 3\n")
    await until(lambda: gateway.app.health.config_problem is not None)
    assert gateway.app.gateway.snapshot is before
    _, report = await rest("GET", "//health")
    assert report["status"] == "degraded"
    assert "limits.call_timeout: unknown key" in report["config_problem"]
    edit(gateway.config, OPEN)
    await until(lambda: gateway.app.health.config_problem is None)


@pytest.mark.parametrize(
    "left", [None, b"", b"\xef\xbb\xbf", b"# No.\n[limits]\n[permissions.tools]\n"]
)
async def test_a_configuration_that_is_gone_is_told_of_and_its_settings_stay(
    gateway: Running, rest: Api, left: bytes | None
) -> None:
    edit(gateway.config, OPEN + table("limits", page_tools=7))
    await until(lambda: gateway.app.gateway.snapshot.settings.limits.page_tools == 7)
    before = gateway.app.gateway.snapshot
    gateway.config.unlink()
    if left is not None:
        gateway.config.write_bytes(left)
    await until(lambda: gateway.app.health.config_problem is not None)
    _, report = await rest("GET", "//health")
    assert "config.toml is not there, or is empty" in report["config_problem"]
    assert gateway.app.gateway.snapshot is before
    edit(gateway.config, OPEN)
    await until(lambda: gateway.app.health.config_problem is None)


async def test_a_name_without_keys_is_something(gateway: Running) -> None:
    edit(gateway.config, "[roles.nobody]\n")
    await until(lambda: "nobody" in gateway.app.gateway.snapshot.settings.roles)


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_an_edit_is_applied_at_once_after_the_start_and_whatever_changes_beside_the_file(
    make_gateway: GatewayMaker, tmp_path: Path, is_mounted: bool
) -> None:
    def change(page: int) -> None:
        folder = tmp_path / f"..{page}" if is_mounted else tmp_path
        folder.mkdir(exist_ok=True)
        edit(folder / "config.toml", OPEN + table("limits", page_tools=page))
        if is_mounted:  # as Kubernetes does it: config.toml is reached through a link
            (tmp_path / "..new").symlink_to(folder)
            (tmp_path / "..new").replace(tmp_path / "..data")

    def holds(page: int) -> bool:
        (tmp_path / "beside").touch()
        return gateway.app.gateway.snapshot.settings.limits.page_tools == page

    change(5)
    if is_mounted:
        (tmp_path / "config.toml").symlink_to("..data/config.toml")
    gateway = await make_gateway()
    for page in (6, 7):
        change(page)
        await until(partial(holds, page))


async def test_of_an_edit_that_the_store_keeps_from_being_applied_nothing_holds(
    gateway: Running, operator: Operator, items: Provider
) -> None:
    def store(statement: str) -> None:
        with closing(sqlite3.connect(gateway.config.parent / "state" / "gateway.db")) as file, file:
            file.execute(statement)

    health, narrowed = gateway.app.health, OPEN.replace("127.0.0.1/32", "127.0.0.2/32")
    await operator.put("shop", items.spec)
    store("ALTER TABLE choices RENAME TO away")
    edit(gateway.config, narrowed)
    await until(lambda: health.config_problem is not None)
    edit(gateway.config, "")
    await until(lambda: "is empty" in str(health.config_problem))
    edit(gateway.config, narrowed)
    await until(lambda: "is empty" not in str(health.config_problem))
    assert (await operator.own("shop_get_items", id="1"))["path"] == "/items/1"
    store("ALTER TABLE away RENAME TO choices")
    await until(lambda: health.config_problem is None)
    refusal = await operator.own("shop_get_items", id="1")
    assert refusal["error"]["code"] == "access_denied"


async def test_an_edit_does_not_wait_for_a_server_that_the_last_one_brought(
    gateway: Running,
) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(message: dict[str, Any], request: Request) -> Response:
        asked.set()
        await may_answer.wait()
        return Response(status_code=503)

    async with scripted_peer(slow) as url:
        text = OPEN + table("connections.slow", kind="mcp", url=url)
        edit(gateway.config, text)
        await soon(asked.wait())
        edit(gateway.config, text + table("bundles.later", connections=[]))
        await until(lambda: "later" in gateway.app.gateway.snapshot.settings.bundles)
        may_answer.set()


async def test_no_edit_opens_a_bundle_to_an_untrusted_connection_that_was_put(
    gateway: Running, operator: Operator, items: Provider
) -> None:
    bundle = OPEN + table("bundles.all", connections=["shop"])
    await operator.put("shop", items.spec, trust="untrusted")
    edit(gateway.config, bundle)
    await until(lambda: gateway.app.health.config_problem is not None)
    problem = str(gateway.app.health.config_problem)
    assert 'bundles.all.mode: must be "meta": shop is an untrusted connection' in problem
    assert not gateway.app.gateway.snapshot.settings.bundles
    edit(gateway.config, f'{bundle}mode = "meta"\nallow = ["get_*"]\n')
    await until(lambda: bool(gateway.app.gateway.snapshot.settings.bundles))


async def test_a_key_that_is_read_at_start_is_named(gateway: Running) -> None:
    first, state = OPEN + table("limits", page_tools=7), gateway.app.gateway
    edit(gateway.config, first)
    await until(lambda: state.snapshot.settings.limits.page_tools == 7)  # it is being watched
    edit(gateway.config, first + table("server", shutdown_seconds=7))
    await until(lambda: gateway.app.health.config_problem is not None)
    assert gateway.app.health.config_problem == "needs a restart: server.shutdown_seconds"


async def console(gateway: Running) -> str:
    """The first page, as an admin sees it."""
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as http:
        await http.post("/console/sign-in", data={"token": ""})
        return (await http.get("/console")).text


async def test_a_stricter_edit_is_told_of_while_what_was_put_is_in_force(
    gateway: Running, rest: Api
) -> None:
    stricter = OPEN.replace('level = "full_access"', 'level = "read_only"')
    with capture_logs() as logged:
        assert (await rest("PUT", "/permissions", {"level": "full_access"}))[0] == 200
        assert (await rest("GET", "//health"))[1]["problems"] == []
        edit(gateway.config, stricter)
        catalog = gateway.app.gateway.catalog
        await until(lambda: catalog.current.settings.permissions.level == "read_only")
        (_, report), page = await rest("GET", "//health"), await console(gateway)
        assert (await rest("DELETE", "/permissions"))[0] == 200
        _, after = await rest("GET", "//health")
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


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_connection_of_the_configuration_is_not_put(
    gateway: Running, operator: Operator, items: Provider, dry_run: bool
) -> None:
    edit(gateway.config, OPEN + items.table())
    await offers(gateway)
    put = await operator.put("shop", items.spec, dry_run=dry_run)
    assert put["error"]["message"] == "the connection 'shop' is defined in config.toml"


async def test_names_that_match_nothing_are_told_of(
    gateway: Running, rest: Api, items: Provider
) -> None:
    tools = 'tools = { shop_get_items = "confirm", shop_get_item = "blocked" }\n'
    shop = items.table(operations={"deleteAll": {"access": "dangerous"}})
    with capture_logs() as logged:
        edit(gateway.config, OPEN + tools + shop)
        await offers(gateway)
    (_, report), page = await rest("GET", "//health"), await console(gateway)
    where = "permissions.tools.shop_get_item"
    assert (report["status"], [each["where"] for each in report["problems"]]) == ("ok", [where])
    assert f"{where} does not hold" in page
    assert "operations.deleteAll: matches no operation" in page
    [problem] = (await rest("GET", "/connections/shop"))[1]["problems"]
    assert problem["where"] == "operations.deleteAll"
    values = {"kind": "openapi", "spec": items.spec, "exclude": ["nothing"]}
    [previewed] = (await rest("POST", "/connections/preview", values))[1]["problems"]
    assert previewed["message"] == "'nothing' matches no operation"
    told = [line for line in logged if line["event"] == "configuration problem"]
    assert {(line.get("connection"), line["where"]) for line in told} == {
        (None, where),
        ("shop", "operations.deleteAll"),
    }


async def test_a_removed_token_no_longer_opens(make_gateway: GatewayMaker) -> None:
    gateway = await make_gateway(principal("ann") + principal("bob"))
    async with api(gateway.url, "ann") as ann:
        assert (await ann("GET", "/capabilities"))[0] == 200
        edit(gateway.config, principal("bob"))
        await until(lambda: "ann" not in gateway.app.gateway.snapshot.settings.principals)
        assert (await ann("GET", "/capabilities"))[0] == 401


@pytest.mark.parametrize("edge", ["rest", "mcp"])
async def test_rights_that_end_while_a_request_comes_are_gone_when_it_is_there(
    make_gateway: GatewayMaker, items: Provider, edge: str
) -> None:
    items.document["paths"]["/items/{id}"]["post"] = operation(operationId="add")
    message, headers = modern(call("shop_add", id="1"))
    path = "/mcp" if edge == "mcp" else "/api/v1/tools/shop_add/call"
    text = json.dumps(message if edge == "mcp" else {"arguments": {"id": "1"}}).encode()
    free = LOCAL + table("permissions", level="full_access") + items.table()
    gateway = await make_gateway(free + principal("ann"))
    await offers(gateway)

    async def slowly() -> AsyncIterator[bytes]:
        yield text[:10]
        edit(gateway.config, free + principal("ann", access="read-only"))
        people = gateway.app.gateway.snapshot.settings.principals
        while people["ann"].access != "read-only":
            await asyncio.sleep(0.02)
            people = gateway.app.gateway.snapshot.settings.principals
        yield text[10:]

    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as http:
        sent = {**bearer("ann"), **ACCEPT, **headers}
        answer = await http.post(path, content=slowly(), headers=sent)
    assert "Unknown tool: shop_add" in answer.text
    async with api(gateway.url, "ann") as rest:
        _, listed = await rest("GET", "/tools")
    assert [tool["name"] for tool in listed["tools"]] == ["shop_get_items"]
    assert items.requests == []


async def test_clients_stay_connected_while_edits_bring_and_take_connections(
    gateway: Running, items: Provider
) -> None:
    async with Client(gateway.mcp, mode="legacy") as client:
        await client.list_tools()
        edit(gateway.config, OPEN + items.table())
        await offers(gateway)
        answer = await own_call(client, "shop_get_items", id="1")
        assert answer == {"path": "/items/1", "method": "GET"}
        edit(gateway.config, OPEN)
        await offers(gateway, False)
