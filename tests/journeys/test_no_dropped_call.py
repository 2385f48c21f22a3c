"""Calls go on through changes of everything around them, and through the end of the gateway."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.conftest import OPEN, Running, gateway_on
from tests.journeys.trio import ADD, asked
from tests.peers import items_api, provider
from tests.processes import gateway_process

CALL = "/api/v1/tools/shop_get_items/call"


async def test_no_call_fails_while_other_connections_come_change_and_go(gateway: Running) -> None:
    async with provider() as shop, provider() as other, aiohttp.ClientSession() as http:

        async def ask(method: str, path: str, body: Any = None) -> int:
            async with http.request(method, f"{gateway.url}{path}", json=body) as answer:
                await answer.read()
                return answer.status

        async def changes() -> list[int]:
            found = []
            for number in range(12):
                other.document = items_api(other.url, "items", f"more{number % 5}")
                name = f"/api/v1/connections/other{number % 3}"
                put = {"kind": "openapi", "spec": other.spec}
                found.append(await ask("PUT", name, put))
                found.append(await ask("POST", f"{name}/refresh"))
                if number % 2:
                    found.append(await ask("DELETE", name))
            return found

        async def calls(done: asyncio.Event) -> list[int]:
            found = []
            while not done.is_set():
                found.append(await ask("POST", CALL, {"arguments": {"id": "1"}}))
            return found

        assert (
            await ask("PUT", "/api/v1/connections/shop", {"kind": "openapi", "spec": shop.spec})
            == 200
        )
        done = asyncio.Event()
        callers = [asyncio.create_task(calls(done)) for _ in range(8)]
        async with asyncio.timeout(60):
            changed = await changes()
            done.set()
            answered = [status for each in await asyncio.gather(*callers) for status in each]
    assert set(changed) == {200}
    assert len(answered) > 50
    assert set(answered) == {200}


async def test_calls_in_flight_are_answered_before_the_gateway_ends(tmp_path: Path) -> None:
    arrived, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        arrived.release()
        await go_on.wait()
        return web.json_response({"answer": 42})

    async with provider() as shop:
        shop.answer = slow
        config = tmp_path / "config.toml"
        table = f'[connections.shop]\nkind = "openapi"\nspec = "{shop.spec}"\n'
        await asyncio.to_thread(config.write_text, OPEN + table, encoding="utf-8")
        async with gateway_process(config) as (process, url), aiohttp.ClientSession() as http:
            calls = asyncio.gather(*(called(http, url, era) for era in ("2025", "2026")))
            async with asyncio.timeout(20):
                await arrived.acquire()
                await arrived.acquire()
                process.send_signal(signal.SIGTERM)
                async with http.get(f"{url.removesuffix('/mcp')}/readyz") as answer:
                    assert answer.status == 503
                go_on.set()
                assert await calls == [{"answer": 42}] * 2
                assert await process.wait() == 0


async def test_calls_that_no_connection_waits_for_finish_before_the_gateway_ends(
    tmp_path: Path,
) -> None:
    arrived, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        arrived.release()
        await go_on.wait()
        return web.json_response({"answer": 42})

    async with provider() as shop, aiohttp.ClientSession() as http:
        shop.document, shop.answer = items_api(shop.url, "items", **ADD), slow
        config = tmp_path / "config.toml"
        tools = 'tools = { shop_add_permit = "confirm" }\n'
        table = f'[connections.shop]\nkind = "openapi"\nspec = "{shop.spec}"\n'
        await asyncio.to_thread(config.write_text, OPEN + tools + table, encoding="utf-8")
        async with gateway_process(config) as (process, url), asyncio.timeout(40):
            await left_alone(http, url)
            for _ in range(4):
                await arrived.acquire()
            process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):  # long after its last connection is gone
                async with asyncio.timeout(1.5):
                    await process.wait()
            go_on.set()
            assert await process.wait() == 0
        async with gateway_on(config, OPEN + tools + table) as again:
            _, found = await asked(http, "GET", api(again.mcp, "executions"))
    ends = [(each["tool"], each["status"]) for each in found["executions"]]
    assert sorted(ends) == [
        ("shop_add_order", "completed"),
        ("shop_add_order", "completed"),
        ("shop_add_permit", "completed"),
        ("shop_get_items", "completed"),
    ]


async def left_alone(http: aiohttp.ClientSession, url: str) -> None:
    """Begins four calls that nobody waits for: two in the background, one approved, one left."""
    number, id = {"arguments": {"number": 1}}, {"arguments": {"id": "1"}}
    for call, body in (
        ("shop_get_items/call?background=true", id),
        ("shop_add_order/call?background=true", number),
        ("shop_add_permit/call", number),
    ):
        assert (await asked(http, "POST", api(url, f"tools/{call}"), body))[0] == 202
    _, waiting = await asked(http, "GET", api(url, "approvals"))
    approval = api(url, f"approvals/{waiting['approvals'][0]['id']}")
    assert (await asked(http, "POST", approval, {"decision": "approve"}))[0] == 200
    left = asyncio.create_task(called(http, url, "2026", "shop_add_order", {"number": 2}))
    await in_flight(http, url, 1)
    left.cancel()
    await in_flight(http, url, 0)


async def in_flight(http: aiohttp.ClientSession, url: str, calls: int) -> None:
    """Returns when connections wait for so many calls."""
    health = f"{url.removesuffix('/mcp')}/health"
    while (await asked(http, "GET", health))[1]["calls_in_flight"] != calls:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def api(url: str, path: str) -> str:
    return f"{url.removesuffix('/mcp')}/api/v1/{path}"


async def test_a_second_signal_ends_the_gateway_while_calls_still_run(tmp_path: Path) -> None:
    arrived = asyncio.Event()

    async def never(request: web.Request) -> web.Response:
        arrived.set()
        return await asyncio.Future()

    async with provider() as shop, aiohttp.ClientSession() as http:
        shop.answer = never
        config = tmp_path / "config.toml"
        table = f'[connections.shop]\nkind = "openapi"\nspec = "{shop.spec}"\n'
        text = f"{OPEN}[server]\nshutdown_seconds = 600\n{table}"
        await asyncio.to_thread(config.write_text, text, encoding="utf-8")
        async with gateway_process(config) as (process, url), asyncio.timeout(40):
            call = api(url, "tools/shop_get_items/call?background=true")
            assert (await asked(http, "POST", call, {"arguments": {"id": "1"}}))[0] == 202
            await arrived.wait()
            process.send_signal(signal.SIGTERM)
            while await asked_ready(http, url) != 503:  # noqa: ASYNC110 - the signal is heard
                await asyncio.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0


async def asked_ready(http: aiohttp.ClientSession, url: str) -> int:
    async with http.get(f"{url.removesuffix('/mcp')}/readyz") as answer:
        return answer.status


async def called(
    http: aiohttp.ClientSession,
    url: str,
    era: str,
    tool: str = "shop_get_items",
    arguments: dict[str, Any] = {"id": "1"},  # noqa: B006 - read only
) -> Any:
    """The structured answer of one call, made as a client of that era makes it."""
    headers = {"Accept": "application/json, text/event-stream"}
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if era == "2025":
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}}
        hello["clientInfo"] = {"name": "test", "version": "1"}
        first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
        async with http.post(url, json=first, headers=headers) as answer:
            headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
    else:
        meta = "io.modelcontextprotocol/"
        params["_meta"] = {
            f"{meta}protocolVersion": "2026-07-28",
            f"{meta}clientCapabilities": {},
        }
        headers |= {"Mcp-Method": "tools/call", "Mcp-Name": tool}
    headers["MCP-Protocol-Version"] = "2025-11-25" if era == "2025" else "2026-07-28"
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with http.post(url, json=message, headers=headers) as answer:
        return (await answer.json())["result"]["structuredContent"]
