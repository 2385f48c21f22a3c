"""A gateway with an API that each person signs in to as themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urljoin

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.conftest import Running, gateway_on
from tests.databases import postgres, store_url
from tests.oauth.people import TOKENS, Person, browser
from tests.sign_in.servers import Notes, notes_api

__all__ = ["postgres", "store_url"]

PEOPLE = "".join(
    f'[principals.{name}]\ntoken = "{token}"\nadmin = {str(name == "root").lower()}\n'
    for name, token in TOKENS.items()
)
TOKENS_MODE = f"""
[auth]
mode = "tokens"
[network]
allow = ["127.0.0.1/32"]
[permissions]
level = "full_access"
{PEOPLE}
"""


def signed_in_at(peer: Notes, **more: Any) -> dict[str, Any]:
    """The settings of a connection whose people sign in."""
    auth = {
        "type": "oauth2",
        "grant": "authorization_code",
        "per": "user",
        "authorize_url": f"{peer.url}/authorize",
        "token_url": f"{peer.url}/token",
        "revoke_url": f"{peer.url}/revoke",
        "client_id": "gw",
        "client_secret": peer.clients["gw"],
        **more,
    }
    return {"kind": "openapi", "spec": f"{peer.url}/openapi.json", "auth": auth}


class Visitor(Person):
    """A person whose browser goes wherever it is sent, and comes back."""

    async def sign_in(self, link: str) -> httpx2.Response:
        """Opens a link and does what pages ask, until one is there to be read."""
        answer = await self.visit(link)
        for _ in range(6):
            location = answer.headers.get("location")
            if location is None:
                return answer
            answer = await self.visit(urljoin(str(answer.url), location))
        return answer


class Api:
    """The REST API as one principal uses it."""

    def __init__(self, url: str, name: str) -> None:
        headers = {"authorization": f"Bearer {TOKENS[name]}"}
        self.http = browser(f"{url}/api/v1", headers=headers)

    async def __call__(self, method: str, path: str, body: Any = None) -> Any:
        return (await self.http.request(method, path, json=body)).json()

    async def call(self, tool: str, **arguments: Any) -> Any:
        return await self("POST", f"/tools/{tool}/call", {"arguments": arguments})

    async def link(self, connection: str = "notes") -> str:
        found = await self("POST", f"/credentials/{connection}/sign-in")
        return str(found["sign_in_url"])


class House:
    """A gateway, its API, and the people of both; what they opened is closed with the block."""

    def __init__(self, url: str, peer: Notes, gateway: Running | None = None) -> None:
        self.url = url.removesuffix("/mcp")
        self.peer = peer
        self._gateway = gateway
        self._open: list[httpx2.AsyncClient] = []
        self._apis: dict[str, Api] = {}

    async def __aenter__(self) -> House:
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._open:
            await each.aclose()

    @property
    def gateway(self) -> Running:
        assert self._gateway is not None
        return self._gateway

    def api(self, name: str) -> Api:
        if name not in self._apis:
            self._apis[name] = Api(self.url, name)
            self._open.append(self._apis[name].http)
        return self._apis[name]

    def person(self, name: str) -> Visitor:
        made = Visitor(self.url, TOKENS[name])
        self._open.append(made.http)
        return made

    async def put(self, name: str = "notes", **settings: Any) -> Any:
        values = settings or signed_in_at(self.peer)
        found = await self.api("root")("PUT", f"/connections/{name}", values)
        assert "error" not in found, found
        return found

    async def sign_in(self, name: str, connection: str = "notes") -> None:
        """The person signs in, and is known there by their own name."""
        self.peer.login = name
        page = await self.person(name).sign_in(await self.api(name).link(connection))
        assert "Signed in to" in page.text, page.text


@pytest.fixture
async def peer() -> AsyncIterator[Notes]:
    async with notes_api() as made:
        yield made


@pytest.fixture(scope="module")
async def people_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A gateway with people, for all tests of a module."""
    async with gateway_on(tmp_path_factory.mktemp("gateway") / "config.toml", TOKENS_MODE) as made:
        yield made


@pytest.fixture
async def house(people_gateway: Running, peer: Notes) -> AsyncIterator[House]:
    """The module's gateway; the connections that a test puts go after it, with what people gave."""
    async with House(people_gateway.url, peer, people_gateway) as made:
        yield made
        for name in people_gateway.app.gateway.snapshot.connections:
            await made.api("root")("DELETE", f"/connections/{name}")


@asynccontextmanager
async def mcp_client(url: str, name: str, era: str, answer: Any = None) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {TOKENS[name]}"}
    async with browser(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=era, elicitation_callback=answer) as made:
            yield made
