"""Definitions that are shown only to those who prove themselves: fetched as the connection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.callers import Operator
from tests.conftest import OPEN, gateway_on
from tests.conftest import shared_gateway as gateway
from tests.peers import Guard, Provider, items_api, provider, until
from tests.processes import gateway_command

__all__ = ["gateway"]

SECRET = "a-secret-of-its-own"
BEARER = {"type": "bearer", "token": SECRET}
QUERY_KEY = {"type": "api-key", "name": "key", "in": "query", "value": SECRET}
KEY = {"type": "api-key", "value": SECRET}
Knows = Callable[[web.Request], bool]


def by_bearer(token: str) -> Knows:
    return lambda request: request.headers.get("Authorization") == f"Bearer {token}"


def guarded(peer: Provider, knows: Knows) -> None:
    """Has the provider show strangers another definition, as some do, and give tokens."""
    public = items_api(peer.url, "public")
    public["components"] = peer.document.get("components", {})

    async def guard(request: web.Request) -> web.StreamResponse | None:
        return None if knows(request) else web.json_response(public)

    async def give(request: web.Request) -> web.StreamResponse:
        given = {"access_token": "given-token", "expires_in": 3600}
        return web.json_response({**given, "credentials": given})

    peer.guard, peer.answer, peer.etags = guard, give, False


# How types of auth show in a request; PEER stands for the provider's address.
OAUTH2 = {"type": "oauth2", "token_url": "PEER/token", "client_id": "me", "client_secret": SECRET}


@pytest.mark.parametrize(
    ("auth", "knows"),
    [
        (BEARER, by_bearer(SECRET)),
        (QUERY_KEY, lambda request: request.query.get("key") == SECRET),
        (KEY, lambda request: request.headers.get("X-Api-Key") == SECRET),
        (OAUTH2, by_bearer("given-token")),
    ],
    ids=["bearer", "key in the query", "key without a name", "oauth2"],
)
async def test_a_definition_is_fetched_with_the_connections_own_credentials(
    operator: Operator, items: Provider, auth: dict[str, str], knows: Knows
) -> None:
    guarded(items, knows)
    own = {key: value.replace("PEER", items.url) for key, value in auth.items()}
    shown = await operator.put("shop", items.spec, auth=own, dry_run=True)
    assert [tool["name"] for tool in shown["tools"]] == ["shop_get_items"]
    assert (await operator.put("shop", items.spec, auth=own))["added"] == ["shop_get_items"]
    items.document = items_api(items.url, "items", "more")
    assert (await operator.refresh())["added"] == ["shop_get_more"]


async def test_a_key_whose_name_only_the_definition_says_is_sent_under_that_name(
    operator: Operator, items: Provider
) -> None:
    scheme = {"type": "apiKey", "in": "query", "name": "token"}
    items.document["components"] = {"securitySchemes": {"key": scheme}}
    guarded(items, lambda request: request.query.get("token") == SECRET)
    assert (await operator.put("shop", items.spec, auth=KEY))["added"] == ["shop_get_items"]


async def test_headers_go_with_the_fetch_and_to_no_other_host_than_the_apis(
    operator: Operator, items: Provider
) -> None:
    team = {"headers": {"X-Team": "hr"}, "auth": BEARER}
    await operator.put("shop", items.spec, base_url=f"{items.url}/v2", **team)
    assert items.fetches[0][1]["X-Team"] == "hr"
    async with provider() as elsewhere:
        put = await operator.put("shop", elsewhere.spec, base_url=items.url, **team)
        assert put["status"] == "connected"
        assert len(elsewhere.fetches) == 1
        assert not {"Authorization", "X-Team"} & elsewhere.fetches[0][1].keys()


async def test_credentials_never_cross_a_redirect_and_a_warning_says_so(
    operator: Operator, items: Provider
) -> None:
    async def leads_on(request: web.Request) -> web.StreamResponse | None:
        if "moved" in request.query:
            return None
        # What it was asked with comes back in the address, as many servers have it.
        raise web.HTTPFound(f"{items.spec}?moved=1&{request.query_string}")

    async def warned() -> bool:
        shown = await operator.own("get_connection", name="shop")
        return "without the connection's credentials" in str(shown["problems"])

    items.guard = leads_on
    await operator.put("shop", items.spec, auth=QUERY_KEY, headers={"X-Team": "hr"})
    moved = [(path, sent) for path, sent in items.fetches if "moved" in path]
    assert moved
    assert not any(SECRET in path or "X-Team" in sent for path, sent in moved)
    assert await warned()
    await operator.refresh()
    assert await warned()
    items.guard = None
    await operator.refresh()
    assert not await warned()


async def test_a_refusal_says_what_can_be_done(operator: Operator, items: Provider) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse | None:
        return web.Response(status=401)

    items.guard = refuse
    async with provider() as elsewhere:
        ways: list[dict[str, Any]] = [{}, {"auth": BEARER}]
        ways.append({"auth": BEARER, "base_url": elsewhere.url})
        told = [await operator.put("shop", items.spec, **more) for more in ways]
    for each, words in zip(told, ("auth", "does not accept", "base_url"), strict=True):
        assert words in each["error"]["hint"]
    assert SECRET not in str(told)


def by_token(peer: Provider) -> Guard:
    """One ETag for what is not shown to everybody."""

    async def guard(request: web.Request) -> web.StreamResponse | None:
        if "If-None-Match" in request.headers:
            return web.Response(status=304)
        token = request.headers["Authorization"].removeprefix("Bearer ")
        return web.json_response(items_api(peer.url, token), headers={"ETag": '"one"'})

    return guard


async def test_a_copy_that_was_fetched_with_other_credentials_is_never_taken_for_ones_own(
    operator: Operator, items: Provider, tmp_path: Path
) -> None:
    items.guard = by_token(items)

    def conditional(start: int = 0) -> list[bool]:
        return ["If-None-Match" in sent for _, sent in items.fetches[start:]]

    config = tmp_path / "config.toml"
    async with gateway_on(config) as gateway:
        operator.url = gateway.mcp
        for name, token in (("one", "ann"), ("two", "bob"), ("one", "eve")):
            await operator.put(name, items.spec, auth={"type": "bearer", "token": token})
            assert f"{name}_get_{token}" in await operator.tools()
        assert not any(conditional())
        await operator.refresh("two")
        assert conditional()[-1]  # it asked for this very copy
    asked = len(items.fetches)
    async with gateway_on(config) as again:
        operator.url = again.mcp
        await until(lambda: len(items.fetches) == asked + 2)
        assert not any(conditional(asked))
        assert {"one_get_eve", "two_get_bob"} <= (await operator.tools()).keys()


async def test_inspect_fetches_as_the_connection_it_names(tmp_path: Path, items: Provider) -> None:
    guarded(items, by_bearer(SECRET))
    config = tmp_path / "config.toml"
    config.write_text(OPEN + items.table(auth=BEARER), encoding="utf-8")
    code, out, _ = await gateway_command("inspect", "shop", "--config", str(config), "--json")
    assert code == 0
    assert [tool["name"] for tool in orjson.loads(out)["tools"]] == ["shop_get_items"]


async def test_a_renewed_secret_in_config_toml_fetches_anew(
    tmp_path: Path, items: Provider
) -> None:
    guarded(items, by_bearer(SECRET))
    config = tmp_path / "config.toml"
    expired = {"type": "bearer", "token": "expired"}
    async with gateway_on(config, OPEN + items.table(auth=expired)) as gateway:
        assert "shop_get_public" in gateway.app.gateway.snapshot.tools
        config.write_text(OPEN + items.table(auth=BEARER), encoding="utf-8")
        await until(lambda: "shop_get_items" in gateway.app.gateway.snapshot.tools)
