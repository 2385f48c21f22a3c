"""Names without what generators put behind operation ids: for new connections, and for good."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from gateway.store.secrets import load_seal
from tests.callers import Api, api
from tests.conftest import OPEN, Running, gateway_on
from tests.definitions import openapi, operation
from tests.peers import Provider, provider

FLOWS = {"POST /flows": "create_flow_flows_post", "GET /flows/{id}": "read_flow_flows__id__get"}
SHORT = {"POST /flows": "create_flow", "GET /flows/{id}": "read_flow"}
FULL = {"POST /flows": "create_flow_flows_post", "GET /flows/{id}": "read_flow_flows_id_get"}
TWIN = {"POST /admin/flows": "create_flow_admin_flows_post"}
NAMESAKE = {"GET /other": "create_flow"}


def serve(peer: Provider, operations: dict[str, str]) -> None:
    """Has the provider describe these operations, with these ids."""
    paths: dict[str, Any] = {}
    for place, id in operations.items():
        method, path = place.split()
        paths.setdefault(path, {})[method.lower()] = operation(operationId=id)
    peer.document = openapi(paths, servers=[{"url": peer.url}])


async def names(rest: Api, connection: str = "shop") -> dict[str, str]:
    """The names of a connection's tools without its prefix, by method and path."""
    _, found = await rest("GET", f"/tools?connection={connection}")
    prefix = f"{connection}_"
    return {f"{t['method']} {t['path']}": t["name"].removeprefix(prefix) for t in found["tools"]}


async def refreshed(rest: Api, peer: Provider, operations: dict[str, str]) -> dict[str, str]:
    serve(peer, operations)
    await rest("POST", "/connections/shop/refresh")
    return await names(rest)


async def test_names_are_short_and_stay_what_they_are_when_operations_come_and_go(
    gateway: Running,
) -> None:
    async with provider() as peer, api(gateway.url) as rest:
        serve(peer, FLOWS)
        put = {"kind": "openapi", "spec": peer.spec}
        await rest("PUT", "/connections/shop", put)
        assert await names(rest) == SHORT
        with_twin = await refreshed(rest, peer, FLOWS | TWIN)
        assert with_twin == SHORT | {"POST /admin/flows": "create_flow_admin_flows_post"}
        with_namesake = await refreshed(rest, peer, FLOWS | NAMESAKE)
        assert with_namesake.pop("GET /other").startswith("create_flow_")
        assert with_namesake == SHORT
        await rest("PUT", "/connections/shop", {**put, "display_name": "Shop"})
        assert await refreshed(rest, peer, FLOWS) == SHORT
        assert (await rest.call("shop_create_flow"))[0] == 200
        serve(peer, FLOWS | TWIN)  # both at once: nobody has the name yet
        await rest("PUT", "/connections/twins", put)
        assert await names(rest, "twins") == FULL | TWIN | {"GET /flows/{id}": "read_flow"}


async def test_what_was_connected_before_keeps_its_names(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    async with provider() as peer:
        serve(peer, FLOWS)
        put, text = {"kind": "openapi", "spec": peer.spec}, OPEN + peer.table()
        full, short = (OPEN + peer.table(names=form) for form in ("full", "short"))
        async with gateway_on(config, full) as gateway, api(gateway.url) as rest:
            await rest("PUT", "/connections/stored", {**put, "names": "full"})
            assert [await names(rest, name) for name in ("shop", "stored")] == [FULL, FULL]
        _forget_names(tmp_path)
        async with gateway_on(config, text) as gateway, api(gateway.url) as rest:
            assert [await names(rest, name) for name in ("shop", "stored")] == [FULL, FULL]
            assert await refreshed(rest, peer, FLOWS | TWIN) == FULL | TWIN
            await rest("PUT", "/connections/stored", {**put, "display_name": "Shop"})
            assert await names(rest, "stored") == FULL | TWIN
            await rest("PUT", "/connections/fresh", put)
            _, shown = await rest("GET", "/connections/fresh")
            assert shown["settings"]["names"] == "short"
            await rest("PUT", "/connections/stored", {**put, "names": "short"})
            assert (await names(rest, "stored"))["GET /flows/{id}"] == "read_flow"
            assert (await rest.call("stored_read_flow_flows_id_get", id="1"))[0] == 200
        async with gateway_on(config, short) as gateway, api(gateway.url) as rest:
            assert (await names(rest))["GET /flows/{id}"] == "read_flow"


def _forget_names(folder: Path) -> None:
    """Makes the store one that knows of no form of names, as all were."""
    seal = load_seal(folder / "state/secret.key", None)
    with sqlite3.connect(folder / "state/gateway.db") as db:
        for name, build in db.execute("select connection, build from definitions").fetchall():
            fields = msgspec.msgpack.decode(build)
            assert fields.pop("names")
            old = (msgspec.msgpack.encode(fields), name)
            db.execute("update definitions set build = ?, build_key = '' where connection = ?", old)
        for name, sealed in db.execute("select name, settings from connections").fetchall():
            settings: Any = seal.decrypt_json(sealed)
            assert settings.pop("names")
            row = (seal.encrypt_json(settings), name)
            db.execute("update connections set settings = ? where name = ?", row)
    db.close()
