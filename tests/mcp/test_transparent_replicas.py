"""A session's wishes hold wherever its stream is open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.store.cluster import kept_wishes
from tests.conftest import OPEN, Running, gateway_on, two_gateways
from tests.library_peer import SECRET, Era, library_peer
from tests.mcp.raw import Events
from tests.mcp.speakers import Speaker
from tests.mcp.test_transparent import ONLY


@pytest.mark.parametrize("server", ["2025", "2026"])
async def test_what_one_process_was_asked_to_watch_is_told_by_the_other(
    tmp_path: Path, server: Era
) -> None:
    uri, store = "fiction://news", f"sqlite:///{tmp_path}/gateway.db"
    async with library_peer(server) as peer, aiohttp.ClientSession() as http:
        text = OPEN + ONLY.format(url=peer.url, secret=SECRET)
        async with two_gateways(tmp_path, text, store) as (one, two):
            client = await Speaker(http, one.mcp, "2025").meet()
            await client.request("resources/subscribe", {"uri": uri})
            await client.request("logging/setLevel", {"level": "warning"})
            client.url = two.mcp
            async with client.listening() as events:
                said = await _heard(events, lambda: peer.tell_updated(uri))
                assert said["params"] == {"uri": uri}
            assert await _levels(client) == ["warning"]


@pytest.mark.parametrize("server", ["2025", "2026"])
async def test_what_a_session_wants_outlives_a_restart(tmp_path: Path, server: Era) -> None:
    uri, other = "fiction://news", "library://index"
    async with library_peer(server) as peer, aiohttp.ClientSession() as http:
        text = OPEN + ONLY.format(url=peer.url, secret=SECRET)
        async with gateway_on(tmp_path / "config.toml", text) as gateway:
            client = await Speaker(http, gateway.mcp, "2025").meet()
            for wanted in (uri, other):
                await client.request("resources/subscribe", {"uri": wanted})
            await client.request("resources/unsubscribe", {"uri": other})
            await client.request("logging/setLevel", {"level": "warning"})
            await until_kept(gateway, 2)
        async with gateway_on(tmp_path / "config.toml", text) as gateway:
            client.url = gateway.mcp
            async with client.listening() as events:
                said = await _heard(events, lambda: peer.tell_updated(uri))
                assert said["params"] == {"uri": uri}
                await peer.tell_updated(other)
                await peer.tell_updated(uri)
                assert (await events.message())["params"] == {"uri": uri}
            assert await _levels(client) == ["warning"]
            async with http.delete(gateway.mcp, headers=client._headers) as ended:
                assert ended.status == 200
            await until_kept(gateway, 0)


async def until_kept(gateway: Running, count: int) -> None:
    """Waits until the store holds so many wishes."""
    async with asyncio.timeout(15):
        while True:
            if len(await kept_wishes(gateway.app.gateway.db, 0.0)) == count:
                return
            await asyncio.sleep(0.02)


async def _heard(events: Events, tell: Callable[[], Awaitable[None]]) -> Any:
    """What is heard once the wish has come round."""
    for _ in range(50):
        await tell()
        try:
            return await events.message(0.1)
        except TimeoutError:
            continue
    raise TimeoutError


async def _levels(client: Speaker) -> list[str]:
    """What a call logs to its caller, once the wish has come round."""
    levels: list[str] = []
    for _ in range(50):
        client.heard.clear()
        await client.request("tools/call", {"name": "log", "arguments": {}})
        levels = [said["params"]["level"] for said in client.heard]
        if "debug" not in levels and levels:
            break
    return levels
