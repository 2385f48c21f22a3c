"""kill -9 at random moments, many times: nothing acknowledged is lost, nothing is there by half.

One gateway process works on puts, refreshes, deletes and write calls at once and is killed after a
random while; the next one, on the same store, must know everything that was acknowledged, serve
whole connections only, and never have sent a write twice. GATEWAY_CRASHES sets how many times.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.conftest import OPEN, gateway_process
from tests.peers import Provider, items_api, provider

CRASHES = int(os.environ.get("GATEWAY_CRASHES", "200"))
NAMES = ("ants", "bees", "cats")
ADD = {
    "/orders": {
        "post": {
            "operationId": "addOrder",
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "properties": {"number": {"type": "integer"}},
                            "required": ["number"],
                        }
                    }
                },
            },
            "responses": {"200": {"description": "ok"}},
        }
    }
}


@dataclass
class Known:
    """What the outside world was told."""

    put: dict[str, str | None] = field(default_factory=dict)  # name → display name, None: deleted
    doubtful: set[str] = field(default_factory=set)  # asked for when it died: either is right
    ordered: int = 0


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    chance = random.Random(20261116)
    config = tmp_path / "config.toml"
    known = Known()
    async with provider() as peer:
        peer.document = items_api(peer.url, "items", **ADD)
        config.write_text(
            f'{OPEN}\n[connections.shop]\nkind = "openapi"\nspec = "{peer.spec}"\n',
            encoding="utf-8",
        )
        for _ in range(CRASHES):
            async with gateway_process(config) as (process, url):
                await check(url.removesuffix("/mcp"), known)
                work = [
                    asyncio.create_task(job(url.removesuffix("/mcp"), peer, known, chance))
                    for job in (puts, refreshes, orders, orders)
                ]
                await asyncio.sleep(chance.uniform(0.0, 0.6))
                process.kill()
                await process.wait()
                await asyncio.gather(*work, return_exceptions=True)
            whole(tmp_path / "state" / "gateway.db")
            numbers = [body for method, _, body in peer.requests if method == "POST"]
            assert len(numbers) == len(set(numbers)), "a write was sent twice"
            peer.requests.clear()


async def check(base: str, known: Known) -> None:
    """What was acknowledged is there, and what is there is whole."""
    async with aiohttp.ClientSession() as http:
        found = await answer(http, "GET", f"{base}/api/v1/connections")
    rows = {row["name"]: row for row in found["connections"]}
    for name, title in known.put.items():
        if name in known.doubtful:
            known.put[name] = rows[name]["display_name"] if name in rows else None
        elif title is None:
            assert name not in rows, f"{name} was deleted and is back"
        else:
            assert rows[name]["display_name"] == title, f"{name} lost what was put last"
    known.doubtful.clear()
    for row in rows.values():
        assert row["tools"] > 0, f"{row['name']} is there by half: {row}"


async def puts(base: str, peer: Provider, known: Known, chance: random.Random) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            name = chance.choice(NAMES)
            title = f"{name} {chance.randrange(10**9)}"
            known.doubtful.add(name)
            known.put.setdefault(name, None)
            url = f"{base}/api/v1/connections/{name}"
            if known.put[name] is not None and chance.random() < 0.3:
                await answer(http, "DELETE", url)
                known.put[name] = None
            else:
                values = {"kind": "openapi", "spec": peer.spec, "display_name": title}
                await answer(http, "PUT", url, values)
                known.put[name] = title
            known.doubtful.discard(name)


async def refreshes(base: str, peer: Provider, known: Known, chance: random.Random) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            peer.document = items_api(peer.url, "items", f"more{chance.randrange(9)}", **ADD)
            await answer(http, "POST", f"{base}/api/v1/connections/shop/refresh")


async def orders(base: str, peer: Provider, known: Known, chance: random.Random) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            known.ordered += 1
            arguments = {"arguments": {"number": known.ordered}}
            await answer(http, "POST", f"{base}/api/v1/tools/shop_add_order/call", arguments)


async def answer(http: aiohttp.ClientSession, method: str, url: str, body: Any = None) -> Any:
    async with http.request(method, url, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


def whole(path: Path) -> None:
    """The file passes SQLite's own check."""
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
