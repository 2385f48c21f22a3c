"""Calls go on through changes of everything around them, and through the end of the gateway."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.conftest import OPEN, Running, gateway_process
from tests.peers import items_api, provider

CALL = "/api/v1/tools/shop_get_items/call"


async def test_no_call_fails_while_other_connections_come_change_and_go(gateway: Running) -> None:
    async with provider() as shop, provider() as other, aiohttp.ClientSession() as http:

        async def ask(method: str, path: str, body: Any = None) -> int:
            async with http.request(method, f"{gateway.url}{path}", json=body) as answer:
                await answer.read()
                return answer.status

        async def changes() -> list[int]:
            found = []
            for number in range(30):
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
    assert len(answered) > 100
    assert set(answered) == {200}


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_call_in_flight_is_answered_before_the_gateway_ends(
    tmp_path: Path, era: str
) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        arrived.set()
        await go_on.wait()
        return web.json_response({"answer": 42})

    async with provider() as shop:
        shop.answer = slow
        config = tmp_path / "config.toml"
        table = f'[connections.shop]\nkind = "openapi"\nspec = "{shop.spec}"\n'
        await asyncio.to_thread(config.write_text, OPEN + table, encoding="utf-8")
        async with gateway_process(config) as (process, url), aiohttp.ClientSession() as http:
            call = asyncio.create_task(called(http, url, era))
            async with asyncio.timeout(20):
                await arrived.wait()
                process.send_signal(signal.SIGTERM)
                async with http.get(f"{url.removesuffix('/mcp')}/readyz") as answer:
                    assert answer.status == 503
                go_on.set()
                assert await call == {"answer": 42}
                assert await process.wait() == 0


async def called(http: aiohttp.ClientSession, url: str, era: str) -> Any:
    """The structured answer of one call, made as a client of that era makes it."""
    headers = {"Accept": "application/json, text/event-stream"}
    params: dict[str, Any] = {"name": "shop_get_items", "arguments": {"id": "1"}}
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
        headers |= {"Mcp-Method": "tools/call", "Mcp-Name": "shop_get_items"}
    headers["MCP-Protocol-Version"] = "2025-11-25" if era == "2025" else "2026-07-28"
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with http.post(url, json=message, headers=headers) as answer:
        return (await answer.json())["result"]["structuredContent"]
