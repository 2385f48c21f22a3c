"""Definitions that are shown only to those who prove themselves: fetched as the connection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from mcp.client.client import Client

from tests.callers import names, own_call
from tests.conftest import OPEN, Running, gateway_on
from tests.conftest import shared_gateway as gateway
from tests.peers import Provider, items_api, provider, until
from tests.processes import gateway_command

__all__ = ["gateway"]

SECRET = "a-secret-of-its-own"
BEARER = f"Bearer {SECRET}"

# How each type of auth shows in a request; PEER stands for the provider's address.
WAYS: list[tuple[dict[str, Any], Callable[[web.Request], bool]]] = [
    ({"type": "bearer", "token": SECRET}, lambda r: r.headers.get("Authorization") == BEARER),
    (
        {"type": "basic", "username": "me", "password": SECRET},
        lambda r: r.headers.get("Authorization", "").startswith("Basic "),
    ),
    (
        {"type": "api-key", "name": "X-Key", "in": "header", "value": SECRET},
        lambda r: r.headers.get("X-Key") == SECRET,
    ),
    (
        {"type": "api-key", "name": "key", "in": "query", "value": SECRET},
        lambda r: r.query.get("key") == SECRET,
    ),
    ({"type": "api-key", "value": SECRET}, lambda r: r.headers.get("X-Api-Key") == SECRET),
    (
        {
            "type": "oauth2",
            "token_url": "PEER/token",
            "client_id": "me",
            "client_secret": SECRET,
        },
        lambda r: r.headers.get("Authorization") == "Bearer given-token",
    ),
    (
        {
            "type": "nango",
            "url": "PEER/nango",
            "secret_key": SECRET,
            "connection_id": "c",
            "provider_config_key": "p",
        },
        lambda r: r.headers.get("Authorization") == "Bearer given-token",
    ),
]


def guarded(peer: Provider, knows: Callable[[web.Request], bool]) -> None:
    """Has the provider show strangers another definition, as some do, and give tokens."""
    public = items_api(peer.url, "public")

    async def guard(request: web.Request) -> web.StreamResponse | None:
        return None if knows(request) else web.json_response(public)

    async def give(request: web.Request) -> web.StreamResponse:
        given = {"access_token": "given-token", "expires_in": 3600}
        return web.json_response({**given, "credentials": given})

    peer.guard, peer.answer, peer.etags = guard, give, False


def aimed(auth: dict[str, Any], peer: Provider) -> dict[str, Any]:
    return {key: str(value).replace("PEER", peer.url) for key, value in auth.items()}


@pytest.mark.parametrize(("auth", "knows"), WAYS, ids=[way[0]["type"] for way in WAYS])
async def test_a_definition_is_fetched_with_the_connections_own_credentials(
    gateway: Running, auth: dict[str, Any], knows: Callable[[web.Request], bool]
) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        guarded(peer, knows)
        values = {"kind": "openapi", "spec": peer.spec, "auth": aimed(auth, peer)}
        shown = await own_call(client, "put_connection", name="shop", dry_run=True, **values)
        assert [tool["name"] for tool in shown["tools"]] == ["shop_get_items"]
        put = await own_call(client, "put_connection", name="shop", **values)
        assert put["added"] == ["shop_get_items"]
        peer.document = items_api(peer.url, "items", "more")
        report = (await own_call(client, "refresh_tools", connection="shop"))["connections"][0]
        assert report["added"] == ["shop_get_more"]


async def test_a_key_whose_name_only_the_definition_says_is_sent_under_that_name(
    gateway: Running,
) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        scheme = {"type": "apiKey", "in": "query", "name": "token"}
        public = items_api(peer.url, "public")
        public["components"] = {"securitySchemes": {"key": scheme}}
        whole = items_api(peer.url, "items")
        whole["components"] = public["components"]
        peer.document = whole

        async def guard(request: web.Request) -> web.StreamResponse | None:
            known = request.query.get("token") == SECRET
            return None if known else web.json_response(public)

        peer.guard = guard
        auth = {"type": "api-key", "value": SECRET}
        values = {"kind": "openapi", "spec": peer.spec, "auth": auth}
        put = await own_call(client, "put_connection", name="shop", **values)
        assert put["added"] == ["shop_get_items"]


async def test_headers_of_the_connection_go_with_the_fetch(gateway: Running) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        headers = {"X-Team": "hr"}
        values = {"kind": "openapi", "spec": peer.spec, "headers": headers}
        await own_call(client, "put_connection", name="shop", base_url=f"{peer.url}/v2", **values)
        assert peer.fetches[0][1]["X-Team"] == "hr"


async def test_another_host_than_the_apis_gets_no_credentials(gateway: Running) -> None:
    async with provider() as peer, provider() as elsewhere, Client(gateway.mcp) as client:
        auth = {"type": "bearer", "token": SECRET}
        values = {"kind": "openapi", "spec": elsewhere.spec, "base_url": peer.url, "auth": auth}
        put = await own_call(
            client, "put_connection", name="shop", headers={"X-Team": "hr"}, **values
        )
        assert put["status"] == "connected"
        assert len(elsewhere.fetches) == 1
        assert not {"Authorization", "X-Team"} & elsewhere.fetches[0][1].keys()


async def test_credentials_never_cross_a_redirect_and_a_warning_says_so(gateway: Running) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:

        async def leads_on(request: web.Request) -> web.StreamResponse | None:
            if "moved" in request.query:
                return None
            # What it was asked with comes back in the address, as many servers have it.
            raise web.HTTPFound(f"{peer.spec}?moved=1&{request.query_string}")

        peer.guard = leads_on
        auth = {"type": "api-key", "name": "key", "in": "query", "value": SECRET}
        values = {"kind": "openapi", "spec": peer.spec, "auth": auth}
        headers = {"X-Team": "hr"}
        await own_call(client, "put_connection", name="shop", headers=headers, **values)
        moved = [(path, sent) for path, sent in peer.fetches if "moved" in path]
        assert moved
        assert not any(SECRET in path or "X-Team" in sent for path, sent in moved)
        for _ in range(2):
            shown = await own_call(client, "get_connection", name="shop")
            assert "without the connection's credentials" in str(shown["problems"])
            await own_call(client, "refresh_tools", connection="shop")
        peer.guard = None
        await own_call(client, "refresh_tools", connection="shop")
        shown = await own_call(client, "get_connection", name="shop")
        assert "without the connection's credentials" not in str(shown["problems"])


async def test_a_refusal_says_what_can_be_done(gateway: Running) -> None:
    async with provider() as peer, provider() as elsewhere, Client(gateway.mcp) as client:

        async def refuse(request: web.Request) -> web.StreamResponse | None:
            return web.Response(status=401)

        peer.guard = refuse
        values = {"name": "shop", "kind": "openapi", "spec": peer.spec}
        auth = {"type": "bearer", "token": SECRET}
        told = [
            await own_call(client, "put_connection", **values, **more)
            for more in ({}, {"auth": auth}, {"auth": auth, "base_url": elsewhere.url})
        ]
        hints = [each["error"]["hint"] for each in told]
        assert "auth" in hints[0]
        assert "does not accept" in hints[1]
        assert "base_url" in hints[2]
        assert SECRET not in str(told)


async def test_a_copy_that_was_fetched_with_other_credentials_is_never_taken_for_ones_own(
    tmp_path: Path,
) -> None:
    """Of a server that has one ETag for what it does not show to everybody."""
    async with provider() as peer:

        async def by_token(request: web.Request) -> web.StreamResponse | None:
            if "If-None-Match" in request.headers:
                return web.Response(status=304)
            token = request.headers["Authorization"].removeprefix("Bearer ")
            return web.json_response(items_api(peer.url, token), headers={"ETag": '"one"'})

        peer.guard = by_token
        config = tmp_path / "config.toml"
        async with gateway_on(config) as gateway, Client(gateway.mcp) as client:
            for name, token in (("one", "ann"), ("two", "bob"), ("one", "eve")):
                auth = {"type": "bearer", "token": token}
                values = {"kind": "openapi", "spec": peer.spec, "auth": auth}
                await own_call(client, "put_connection", name=name, **values)
                assert f"{name}_get_{token}" in await names(client)
            assert not any("If-None-Match" in sent for _, sent in peer.fetches)
            await own_call(client, "refresh_tools", connection="two")
            assert "If-None-Match" in peer.fetches[-1][1]  # it asked for this very copy
        asked = len(peer.fetches)
        async with gateway_on(config) as again, Client(again.mcp) as client:
            await until(lambda: len(peer.fetches) == asked + 2)
            assert not any("If-None-Match" in sent for _, sent in peer.fetches[asked:])
            assert {"one_get_eve", "two_get_bob"} <= await names(client)


async def test_inspect_fetches_as_the_connection_it_names(tmp_path: Path) -> None:
    async with provider() as peer:
        guarded(peer, lambda request: request.headers.get("Authorization") == BEARER)
        table = f'[connections.shop]\nkind = "openapi"\nspec = "{peer.spec}"\n'
        auth = f'auth = {{ type = "bearer", token = "{SECRET}" }}\n'
        config = tmp_path / "config.toml"
        config.write_text(OPEN + table + auth, encoding="utf-8")
        words = ("inspect", "shop", "--config", str(config), "--json")
        code, out, _ = await gateway_command(*words)
        assert code == 0
        assert [tool["name"] for tool in orjson.loads(out)["tools"]] == ["shop_get_items"]


async def test_a_renewed_secret_in_config_toml_fetches_anew(tmp_path: Path) -> None:
    async with provider() as peer:
        guarded(peer, lambda request: request.headers.get("Authorization") == BEARER)
        table = f'{OPEN}[connections.shop]\nkind = "openapi"\nspec = "{peer.spec}"\n'
        line = 'auth = {{ type = "bearer", token = "{}" }}\n'
        config, text = tmp_path / "config.toml", table + line.format("expired")
        async with gateway_on(config, text) as gateway:
            assert "shop_get_public" in gateway.app.gateway.snapshot.tools
            config.write_text(table + line.format(SECRET), encoding="utf-8")
            await until(lambda: "shop_get_items" in gateway.app.gateway.snapshot.tools)
