"""Principals and what they see, put at run time: on every replica, over restarts and crashes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.callers import Api, api
from tests.configs import LOCAL, principal, table
from tests.conftest import Running, gateway_on, two_gateways
from tests.mcp.speakers import Era, Speaker
from tests.processes import gateway_process

CONFIG = LOCAL + table("demo", enabled=True) + principal("root", admin=True)
SOON_SECONDS = 15.0  # one, where the machine has nothing else to do


def bearing(token: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"})


async def put(root: Api, path: str, **values: Any) -> dict[str, Any]:
    status, answer = await root("PUT", path, values)
    assert status == 200, answer
    return dict(answer)


async def status_soon(token: str, url: str, wanted: int) -> None:
    """The status that the token gets at a gateway, as soon as it is the one wanted."""
    async with bearing(token) as http, asyncio.timeout(SOON_SECONDS):
        while True:
            async with http.get(f"{url}/api/v1/tools") as answer:
                if answer.status == wanted:
                    return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def listener(gateway: Running, token: str, era: Era) -> AsyncIterator[Any]:
    """What a client of this token hears of its list of tools."""
    wanted = {"toolsListChanged": True} if era == "2026" else {}
    async with bearing(token) as http:
        speaker = await Speaker(http, gateway.mcp, era).meet()
        await speaker.tools()
        async with speaker.listening(**wanted) as events:
            yield events


async def test_what_is_put_on_one_replica_holds_on_the_other_and_only_those_concerned_are_told(
    tmp_path: Path, store_url: str
) -> None:
    async with AsyncExitStack() as stack:
        one, two = await stack.enter_async_context(two_gateways(tmp_path, CONFIG, store_url))
        root = await stack.enter_async_context(api(one.url, "root"))
        await put(root, "/bundles/reading", connections=["demo"], allow=["list_*"])
        await put(root, "/roles/reader", bundles=["reading"])
        agent = (await put(root, "/principals/agent", role="reader", new_token=True))["token"]
        other = (await put(root, "/principals/other", new_token=True))["token"]
        for token in (agent, other):
            await status_soon(token, two.url, 200)
        agents = await stack.enter_async_context(listener(two, agent, "2026"))
        others = await stack.enter_async_context(listener(two, other, "2025"))

        await put(root, "/bundles/reading", connections=["demo"], allow=["list_*", "get_*"])
        assert (await agents.message())["method"] == "notifications/tools/list_changed"
        await put(root, "/principals/other", access="read-only")
        assert (await others.message())["method"] == "notifications/tools/list_changed"
        # Each heard of its own change, once: the next that comes is the end.
        renewed = (await put(root, "/principals/other", new_token=True))["token"]
        assert await others.ended()
        await status_soon(other, two.url, 401)
        await status_soon(renewed, two.url, 200)
        assert (await root("DELETE", "/principals/agent"))[0] == 200
        await status_soon(agent, one.url, 401)
        await status_soon(agent, two.url, 401)
        assert "method" not in await agents.message()  # the answer to its request: it is over


async def test_both_replicas_refuse_what_only_together_would_be_wrong(
    tmp_path: Path, store_url: str
) -> None:
    async with (
        two_gateways(tmp_path, CONFIG, store_url) as (one, two),
        api(one.url, "root") as here,
        api(two.url, "root") as there,
    ):
        for number in range(5):
            name, digest = f"twin{number}", f"{number:064x}"
            done = await asyncio.gather(
                here("PUT", f"/principals/{name}a", {"token_sha256": digest}),
                there("PUT", f"/principals/{name}b", {"token_sha256": digest}),
            )
            assert sorted(status for status, _ in done) == [200, 422]
            await here("PUT", f"/bundles/b{number}", {"connections": ["demo"]})
            done = await asyncio.gather(
                here("DELETE", f"/bundles/b{number}"),
                there("PUT", f"/roles/r{number}", {"bundles": [f"b{number}"]}),
            )
            assert sorted(status for status, _ in done) == [200, 422]


async def test_what_was_put_is_there_after_a_restart_and_what_no_longer_holds_gives_nothing(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.toml"
    role = table("bundles.all", connections=["demo"]) + table("roles.clerk", bundles=["all"])
    async with gateway_on(config, CONFIG + role) as made, api(made.url, "root") as root:
        tokens = {
            name: (await put(root, f"/principals/{name}", role=its, new_token=True))["token"]
            for name, its in (("kept", None), ("lost", "clerk"))
        }
        await put(root, "/routes/hiring/clerk", screen=["all"])
    async with gateway_on(config, CONFIG) as made, api(made.url, "root") as root:
        await status_soon(tokens["kept"], made.url, 200)
        await status_soon(tokens["lost"], made.url, 401)
        _, health = await root("GET", "//health")
        wheres = {problem["where"] for problem in health["problems"]}
        assert wheres == {
            "principals.lost.role",
            "routes.hiring.clerk",
            "routes.hiring.clerk.screen",
        }
        assert health["status"] == "degraded"
    async with gateway_on(config, CONFIG + role) as made:
        await status_soon(tokens["lost"], made.url, 200)


DAMAGE = {
    "no JSON": "UPDATE rights SET settings = '{' WHERE name = 'agent'",
    "no object": "UPDATE rights SET settings = '[7]' WHERE name = 'agent'",
    "no kind": "UPDATE rights SET kind = 'principle' WHERE name = 'agent'",
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_row_that_a_hand_damaged_gives_nothing_is_told_of_and_stops_no_start(
    tmp_path: Path, damage: str
) -> None:
    config = tmp_path / "config.toml"
    async with gateway_on(config, CONFIG) as made, api(made.url, "root") as root:
        tokens = {
            name: (await put(root, f"/principals/{name}", new_token=True))["token"]
            for name in ("agent", "other")
        }
        await put(root, "/roles/clerk")
        await put(root, "/routes/hiring/clerk")
    with closing(sqlite3.connect(tmp_path / "state" / "gateway.db")) as store, store:
        store.execute(DAMAGE[damage])
        store.execute("UPDATE rights SET name = 'hiring' WHERE kind = 'route'")
    async with gateway_on(config, CONFIG) as made, api(made.url, "root") as root:
        await status_soon(tokens["other"], made.url, 200)
        await status_soon(tokens["agent"], made.url, 401)
        told = {each["where"] for each in (await root("GET", "//health"))[1]["problems"]}
        row = {"rights.agent"} if damage == "no kind" else set()
        assert told == {"principals.agent", 'routes.hiring.""', *row}
        assert (await root("GET", "/routes"))[0] == (await root("GET", "/principals"))[0] == 200
        again = await put(root, "/principals/agent", new_token=True)
        await status_soon(again["token"], made.url, 200)


async def test_a_put_is_there_whole_or_not_at_all_when_the_gateway_is_killed(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG, encoding="utf-8")
    acknowledged: dict[str, str] = {}
    async with gateway_process(config) as (process, url), api(url, "root") as root:

        async def put_on(start: str) -> None:
            for number in range(10_000):
                name = f"{start}{number}"
                made = await put(root, f"/principals/{name}", new_token=True)
                acknowledged[name] = made["token"]
                if len(acknowledged) == 10:
                    process.kill()

        putting = (put_on(start) for start in "abc")
        failed = await asyncio.gather(*putting, return_exceptions=True)
        assert all(isinstance(each, aiohttp.ClientError) for each in failed), failed
        await process.wait()
    async with gateway_on(config, CONFIG) as made, api(made.url, "root") as root:
        rows = {row["name"]: row for row in (await root("GET", "/principals"))[1]["principals"]}
        assert acknowledged.keys() <= rows.keys()
        assert all(row["has_token"] and not row["problems"] for row in rows.values())
        for token in acknowledged.values():
            await status_soon(token, made.url, 200)
