"""kill -9 at random moments, many times: nothing acknowledged is lost, nothing is there by half.

One gateway process works on puts, deletes, refreshes, write calls and approvals at once and is
killed after a random while. The next one, on the same store and with no definition to be had, must
know everything that was acknowledged, serve whole connections only, carry on with what was
approved, and never send a write twice. GATEWAY_CRASHES sets how many times.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.conftest import OPEN
from tests.journeys.trio import ADD
from tests.peers import Provider, items_api, provider
from tests.processes import gateway_process

CRASHES = int(os.environ.get("GATEWAY_CRASHES", "200"))
WORK_SECONDS = 0.6
APPROVED_SECONDS = 20.0
NAMES = ("ants", "bees", "cats")
ENDED = ("completed", "unknown")


@dataclass
class Known:
    """What the outside world was told."""

    peer: Provider
    chance: random.Random
    put: dict[str, str | None] = field(default_factory=dict)  # name → display name, None: deleted
    doubtful: set[str] = field(default_factory=set)  # asked for when it died: either is right
    offered: str = ""  # what the shop's definition has beside the items
    shop: set[str] = field(default_factory=set)  # which of these a refresh may have left it with
    called: dict[str, tuple[str, ...]] = field(default_factory=dict)  # execution → what it may be
    numbers: int = 0
    sent: Counter[bytes] = field(default_factory=Counter)

    def next_call(self) -> dict[str, Any]:
        self.numbers += 1
        return {"arguments": {"number": self.numbers}}


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_and_nothing_is_sent_twice(
    tmp_path: Path, store_url: str
) -> None:
    config = tmp_path / "config.toml"
    async with provider() as peer:
        known = Known(peer, random.Random(20261116))
        peer.document = items_api(peer.url, "items", **ADD)
        text = (
            f'{OPEN}tools = {{ shop_add_permit = "confirm" }}\n[store]\nurl = "{store_url}"\n'
            f'[connections.shop]\nkind = "openapi"\nspec = "{peer.spec}"\n'
        )
        await asyncio.to_thread(config.write_text, text, encoding="utf-8")
        for _ in range(CRASHES):
            await crash(config, known)
            await asyncio.to_thread(whole, store_url)
        async with gateway_process(config) as (_, url), rest(url) as http:
            await check(http, known)
    twice = [number for number, times in known.sent.items() if times > 1]
    assert (twice, known.numbers > CRASHES) == ([], True)


def rest(url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(f"{url.removesuffix('mcp')}api/v1/")


async def crash(config: Path, known: Known) -> None:
    """One life of a gateway: looked at, set to work, and killed."""
    known.peer.raw = b"" if known.shop else None  # what it served must come from its own store
    async with gateway_process(config) as (process, url), rest(url) as http:
        await check(http, known)
        known.peer.raw = None
        jobs = (puts, refreshes, orders, orders, permits, permits)
        work = [asyncio.create_task(job(http, known)) for job in jobs]
        await asyncio.sleep(known.chance.uniform(0.0, WORK_SECONDS))
        process.kill()
        await process.wait()
        ends = await asyncio.gather(*work, return_exceptions=True)
    wrong = [end for end in ends if not isinstance(end, aiohttp.ClientError)]
    assert wrong == []
    known.sent.update(body for method, _, body in known.peer.requests if method == "POST")
    known.peer.requests.clear()


async def check(http: aiohttp.ClientSession, known: Known) -> None:
    """What was acknowledged is there, and what is there is whole."""
    found = await answer(http, "GET", "connections")
    rows = {row["name"]: row for row in found["connections"]}
    check_puts(known, rows)
    await check_shop(http, known)
    for id, may_be in known.called.items():
        await ended_as(http, f"executions/{id}", may_be)
    known.called.clear()
    waiting = await answer(http, "GET", "approvals")
    for row in waiting["approvals"]:  # asked for in an earlier life, decided in this one
        await approve(http, known, row["execution_id"], row["id"])
    for row in rows.values():
        assert row["tools"] > 0, f"{row['name']} is there by half: {row}"


def check_puts(known: Known, rows: dict[str, Any]) -> None:
    for name, title in known.put.items():
        if name in known.doubtful:
            known.put[name] = rows[name]["display_name"] if name in rows else None
        elif title is None:
            assert name not in rows, f"{name} was deleted and is back"
        else:
            assert rows[name]["display_name"] == title, f"{name} lost what was put last"
    known.doubtful.clear()


async def check_shop(http: aiohttp.ClientSession, known: Known) -> None:
    listed = await answer(http, "GET", "tools?connection=shop")
    names = {tool["name"] for tool in listed["tools"] if tool["name"].startswith("shop_get_")}
    served = names - {"shop_get_items"} or {""}
    assert len(served) == 1, f"a refresh is there by half: {names}"
    assert served <= (known.shop or {""}), "a refresh is lost"
    known.shop = {*served, known.offered}  # a refresh of its own may find that at any time


async def ended_as(http: aiohttp.ClientSession, url: str, may_be: tuple[str, ...]) -> None:
    """Waits for an execution to be what it may be: what was approved is carried out again."""
    found: Any = None
    async with asyncio.timeout(APPROVED_SECONDS):
        while (found := await answer(http, "GET", url))["status"] not in may_be:
            assert found["status"] in ("pending_confirmation", "executing"), (found, may_be)
            await asyncio.sleep(0.05)


async def puts(http: aiohttp.ClientSession, known: Known) -> None:
    while True:
        name = known.chance.choice(NAMES)
        title = f"{name} {known.chance.randrange(10**9)}"
        known.doubtful.add(name)
        known.put.setdefault(name, None)
        if known.put[name] is not None and known.chance.random() < 0.3:
            await answer(http, "DELETE", f"connections/{name}")
            known.put[name] = None
        else:
            values = {"kind": "openapi", "spec": known.peer.spec, "display_name": title}
            await answer(http, "PUT", f"connections/{name}", values)
            known.put[name] = title
        known.doubtful.discard(name)


async def refreshes(http: aiohttp.ClientSession, known: Known) -> None:
    while True:
        more = f"more{known.chance.randrange(9)}"
        known.offered = f"shop_get_{more}"
        known.shop.add(known.offered)
        known.peer.document = items_api(known.peer.url, "items", more, **ADD)
        await answer(http, "POST", "connections/shop/refresh")
        known.shop = {known.offered}


async def orders(http: aiohttp.ClientSession, known: Known) -> None:
    while True:
        done = await answer(http, "POST", "tools/shop_add_order/call", known.next_call())
        known.called[done["execution_id"]] = ("completed",)


async def permits(http: aiohttp.ClientSession, known: Known) -> None:
    """Calls that wait for a decision, which is then given."""
    while True:
        call = "tools/shop_add_permit/call"
        asked = (await answer(http, "POST", call, known.next_call(), 202))["execution_id"]
        known.called[asked] = ("pending_confirmation", *ENDED)
        waiting = await answer(http, "GET", "approvals")
        ours = [row["id"] for row in waiting["approvals"] if row["execution_id"] == asked]
        await approve(http, known, asked, ours[0])


async def approve(http: aiohttp.ClientSession, known: Known, execution: str, approval: str) -> None:
    await answer(http, "POST", f"approvals/{approval}", {"decision": "approve"})
    known.called[execution] = ENDED


async def answer(
    http: aiohttp.ClientSession, method: str, url: str, body: Any = None, status: int = 200
) -> Any:
    async with http.request(method, url, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


def whole(store_url: str) -> None:
    """The file passes SQLite's own check; PostgreSQL was not the one that was killed."""
    if store_url.startswith("sqlite"):
        connection = sqlite3.connect(store_url.removeprefix("sqlite:///"))
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()
