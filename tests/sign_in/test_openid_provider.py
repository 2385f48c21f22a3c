"""People sign in to an API at a real authorization server, whose refresh tokens work once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.oauth.openid import Provider, Somebody, needs_provider, running_provider
from tests.oauth.people import TOKENS
from tests.peers import Provider as Peer
from tests.peers import provider
from tests.sign_in.conftest import House

pytestmark = needs_provider


@pytest.fixture
async def openid(house: House) -> AsyncIterator[Provider]:
    async with running_provider("tokens") as made:
        await made.answer_at(f"{house.url}/oauth/callback")
        yield made


@pytest.fixture
async def api(openid: Provider) -> AsyncIterator[Peer]:
    """An API that asks the provider whose a token is."""
    async with provider() as peer, httpx2.AsyncClient(timeout=60) as http:

        async def answer(request: Any) -> Any:
            from aiohttp import web

            token = request.headers.get("authorization", "")
            told = await http.get(f"{openid.issuer}/me", headers={"authorization": token})
            if told.status_code != 200:
                return web.json_response({}, status=401)
            return web.json_response({"who": told.json()["sub"]})

        peer.answer = answer
        yield peer


async def sign_in(house: House, name: str, login: str) -> None:
    person = Somebody(house.url, TOKENS[name])
    person.login = login
    async with person.http:
        page = await person.visit(await house.api(name).link("shop"))
        assert "Signed in to" in page.text, page.text


def settings(peer: Peer, openid: Provider) -> dict[str, Any]:
    auth = {
        "type": "oauth2",
        "grant": "authorization_code",
        "per": "user",
        "authorize_url": f"{openid.issuer}/auth",
        "token_url": f"{openid.issuer}/token",
        "revoke_url": f"{openid.issuer}/token/revocation",
        "issuer": openid.issuer,
        "client_id": "gateway",
        "client_secret": "provider-secret-0123456789",
        "scopes": ["openid", "email"],
    }
    return {"kind": "openapi", "spec": peer.spec, "auth": auth}


async def test_people_sign_in_and_their_tokens_are_renewed(
    house: House, openid: Provider, api: Peer
) -> None:
    await house.put("shop", **settings(api, openid))
    ann, bob = house.api("ann"), house.api("bob")
    await sign_in(house, "ann", "ann-there")
    await sign_in(house, "bob", "bob-there")
    for _ in range(4):  # six seconds: each token is renewed twice at least
        answers = await asyncio.gather(
            *(ann.call("shop_get_items", id="1") for _ in range(5)),
            *(bob.call("shop_get_items", id="1") for _ in range(5)),
        )
        who = [each["output"] and each["output"]["who"] for each in answers]
        assert who == ["ann-there"] * 5 + ["bob-there"] * 5, answers
        await asyncio.sleep(1.5)
    await ann("DELETE", "/credentials/shop")
    found = await ann.call("shop_get_items", id="1")
    assert found["error"]["code"] == "sign_in_required"


async def test_an_answer_without_the_configured_issuer_signs_nobody_in(
    house: House, openid: Provider, api: Peer
) -> None:
    wrong = settings(api, openid)
    wrong["auth"]["issuer"] = "https://other.example"
    await house.put("shop", **wrong)
    person = Somebody(house.url, TOKENS["ann"])
    async with person.http:
        page = await person.visit(await house.api("ann").link("shop"))
    assert "another provider" in page.text
