"""The HTTP API's manners: one shape of errors, and headers that clients act on."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.callers import api
from tests.configs import LOCAL, principal, table
from tests.conftest import OPEN, GatewayMaker, Running
from tests.mcp.speakers import Speaker
from tests.peers import provider

CALL = ("POST", "/api/v1/tools/shop_get_items/call", {"arguments": {"id": "1"}})


async def ask(
    gateway: Running, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """Status, body and headers of an answer."""
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.request(method, f"{gateway.url}{path}", json=body) as answer,
    ):
        names = {name.lower(): value for name, value in answer.headers.items()}
        return answer.status, await answer.json(), names


async def test_a_call_over_the_rate_says_when_to_come_again(make_gateway: GatewayMaker) -> None:
    async with provider() as peer:
        limit = {"requests": 1, "window_seconds": 60}
        gateway = await make_gateway(OPEN + peer.table(rate_limit=limit))
        assert (await ask(gateway, *CALL))[0] == 200
        status, body, headers = await ask(gateway, *CALL)
    assert (status, body["error"]["code"]) == (429, "rate_limited")
    assert headers["retry-after"] == str(body["error"]["retry_after"])


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("PATCH", "/api/v1/tools", {}, 405),
        ("GET", "/api/v1/nothing", {}, 404),
        ("GET", "/api/v1/tools", {"Origin": "http://evil.example"}, 403),
        ("GET", "/api/v1/tools", {"Host": "evil.example"}, 421),
    ],
    ids=str,
)
async def test_every_refusal_has_the_one_shape(
    gateway: Running, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    found, body, names = await ask(gateway, method, path, **headers)
    assert (found, set(body)) == (status, {"error"})
    assert set(body["error"]) == {"code", "message", "hint"}
    assert ("allow" in names) == (status == 405)
    assert status != 405 or set(names["allow"].split(", ")) == {"GET", "HEAD"}


async def test_without_an_issuer_there_is_no_metadata(gateway: Running) -> None:
    assert (await ask(gateway, "GET", "/.well-known/oauth-protected-resource"))[0] == 404


async def test_a_call_is_found_by_its_id_as_soon_as_it_is_answered(
    make_gateway: GatewayMaker,
) -> None:
    async with provider() as peer:
        gateway = await make_gateway(OPEN + peer.table())
        _, answered, _ = await ask(gateway, *CALL)
        _, listed, _ = await ask(gateway, "GET", "/api/v1/executions")
        _, again, _ = await ask(gateway, *CALL)
        status, found, _ = await ask(gateway, "GET", f"/api/v1/executions/{again['execution_id']}")
    assert [each["id"] for each in listed["executions"]] == [answered["execution_id"]]
    assert (status, found["status"]) == (200, "completed")


async def test_health_counts_the_sessions_that_are_open(gateway: Running) -> None:
    async with aiohttp.ClientSession() as http:
        speaker = await Speaker(http, gateway.mcp, "2025").meet()
        await speaker.request("ping")
        assert (await ask(gateway, "GET", "/health"))[1]["sessions"] == 1
        async with http.delete(gateway.mcp, headers=speaker._headers) as answer:
            assert answer.status == 200
        assert (await ask(gateway, "GET", "/health"))[1]["sessions"] == 0


async def test_a_refresh_of_all_names_only_connections_one_may_know(
    make_gateway: GatewayMaker,
) -> None:
    admin = table("principals.local", admin=True, organization="globex")
    demo = table("demo", enabled=True)
    async with provider() as peer, aiohttp.ClientSession() as http:
        shop = peer.table(organization="acme")
        gateway = await make_gateway(OPEN + admin + demo + shop)
        refreshed = await Speaker(http, gateway.mcp, "2026").own("refresh_tools")
    assert [each["name"] for each in refreshed["connections"]] == ["demo"]


async def test_only_admins_see_the_path_of_an_address_where_a_key_may_stand(
    make_gateway: GatewayMaker,
) -> None:
    people = principal("root", admin=True) + principal("ann")
    async with provider() as peer:
        secret = f"{peer.url}/s/sk-0123456789"
        gateway = await make_gateway(people + LOCAL + peer.table(base_url=secret))
        found = {}
        for name in ("root", "ann"):
            async with api(gateway.url, name) as ask:
                found[name] = (await ask("GET", "/connections/shop"))[1]
    assert (found["root"]["base_url"], found["ann"]["base_url"]) == (secret, peer.url)
    assert "sk-0123456789" not in str(found["ann"])
