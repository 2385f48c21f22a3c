"""Three gateways as processes of their own, on one PostgreSQL and one key, behind a round-robin."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp import web

from tests.balancer import RoundRobin, round_robin
from tests.conftest import OPEN
from tests.peers import Provider, items_api, until
from tests.processes import gateway_process

ORDER = "/api/v1/tools/shop_add_order/call"
ITEM = "/api/v1/tools/shop_get_items/call"
PERMIT = "/api/v1/tools/shop_add_permit/call"
RECORDED_SECONDS = 120.0  # what could not be recorded is tried again every few seconds
WORK_SECONDS = 0.02  # that the shop takes for an order: some are under way at any moment
PAUSE_SECONDS = 0.05  # of a client that tries again, or thinks of the next thing to ask


def adding(operation: str) -> dict[str, Any]:
    """A write operation that takes a number."""
    number = {"type": "object", "properties": {"number": {"type": "integer"}}}
    body = {"required": True, "content": {"application/json": {"schema": number}}}
    answers = {"200": {"description": "ok"}}
    return {"post": {"operationId": operation, "requestBody": body, "responses": answers}}


ADD = {"/orders": adding("addOrder"), "/permits": adding("addPermit")}


async def echo(request: web.Request) -> web.Response:
    """What was ordered, or which item was asked for: an answer that belongs to its question."""
    sent = await request.read()
    if sent:
        await asyncio.sleep(WORK_SECONDS)
    return web.json_response({"got": orjson.loads(sent)["number"] if sent else request.path})


@dataclass
class Trio:
    """The three, by address, and the one address of them all."""

    folder: Path
    balancer: RoundRobin
    peer: Provider
    stack: AsyncExitStack
    urls: list[str] = field(default_factory=list)
    processes: list[Any] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.balancer.url

    async def start(self, index: int) -> None:
        """Starts a replica and hands it to the balancer; the one it replaces is forgotten."""
        config = self.folder / str(index) / "config.toml"
        process, url = await self.stack.enter_async_context(gateway_process(config))
        self.urls[index], self.processes[index] = url.removesuffix("/mcp"), process
        self.balancer.ports = [port for url in self.urls if (port := urlsplit(url).port)]


@asynccontextmanager
async def trio(folder: Path, store_url: str, peer: Provider) -> AsyncIterator[Trio]:
    """Three gateways that are ready, with the shop among their connections."""
    peer.document, peer.answer = items_api(peer.url, "items", **ADD), echo
    async with round_robin() as balancer, AsyncExitStack() as stack:
        three = Trio(folder, balancer, peer, stack, [""] * 3, [None] * 3)
        text = (
            f'{OPEN}tools = {{ shop_add_permit = "confirm" }}\n'
            f'[server]\npublic_url = "{balancer.url}"\nshutdown_seconds = 2\n'
            f'[store]\nurl = "{store_url}"\nsecret_key_file = "{folder}/secret.key"\n'
            f"[demo]\nenabled = false\n"
            f'[connections.shop]\nkind = "openapi"\nspec = "{peer.spec}"\n'
            'idempotency_header = "Idempotency-Key"\n'
        )
        for index in range(3):
            (folder / str(index)).mkdir()
            (folder / str(index) / "config.toml").write_text(text, encoding="utf-8")
        await asyncio.gather(*(three.start(index) for index in range(3)))
        yield three


@asynccontextmanager
async def plain_http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that makes a new connection for every request, so that each goes elsewhere."""
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield http


async def asked(
    http: aiohttp.ClientSession, method: str, url: str, body: Any = None
) -> tuple[int, Any]:
    async with http.request(method, url, json=body) as answer:
        return answer.status, orjson.loads(await answer.read() or b"null")


async def tools_on(http: aiohttp.ClientSession, url: str) -> set[str]:
    _, listed = await asked(http, "GET", f"{url}/api/v1/tools")
    return {tool["name"] for tool in listed["tools"]}


@dataclass
class Customers:
    """Clients that order and look, on and on, and repeat what failed under the same token."""

    http: aiohttp.ClientSession
    url: str
    numbers: int = 0
    done: Counter[str] = field(default_factory=Counter)  # what came of orders and looks
    errors: Counter[str] = field(default_factory=Counter)  # on the way
    ordered: dict[int, str] = field(default_factory=dict)
    closing: bool = False

    @asynccontextmanager
    async def at_work(self, count: int) -> AsyncIterator[None]:
        """So many of each kind work while the block lasts, and finish what they have begun."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._orders())
                group.create_task(self._looks())
            yield
            self.closing = True

    async def more(self, kind: str, count: int, seconds: float = 120.0) -> None:
        """Returns when so many more have come to this end."""
        wanted = self.done[kind] + count
        await until(lambda: self.done[kind] >= wanted, seconds)

    async def failed(self, code: str, count: int = 1, seconds: float = 120.0) -> None:
        """Returns when so many have failed so on the way."""
        await until(lambda: self.errors[code] >= count, seconds)

    async def _orders(self) -> None:
        while not self.closing:
            self.numbers += 1
            number = self.numbers
            body = {"arguments": {"number": number}, "idempotency_token": f"order-{number}"}
            self.ordered[number] = await self._until_ended(ORDER, body, number)
            self.done[self.ordered[number]] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def _looks(self) -> None:
        while not self.closing:
            self.numbers += 1
            body = {"arguments": {"id": str(self.numbers)}}
            await self._until_ended(ITEM, body, f"/items/{self.numbers}")
            self.done["looked"] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def _until_ended(self, path: str, body: Any, wanted: object) -> str:
        while True:
            try:
                status, found = await asked(self.http, "POST", self.url + path, body)
            except aiohttp.ClientError:
                self.errors[f"{path} cut off"] += 1
                continue
            if status == 200 and found["success"]:
                assert found["output"] == {"got": wanted}, (wanted, found)
                return "completed"
            if found["error"]["code"] == "outcome_unknown":
                return "unknown"
            self.errors[f"{path} {found['error']['code']}"] += 1
            await asyncio.sleep(PAUSE_SECONDS)


async def assert_orders_are_right(three: Trio, customers: Customers) -> None:
    """None was sent twice, and what was said to be done was done, and is on record as done."""
    sent = orders_sent(three.peer)
    assert [number for number, times in sent.items() if times > 1] == []
    completed = {number for number, end in customers.ordered.items() if end == "completed"}
    assert completed <= set(sent)
    async with asyncio.timeout(RECORDED_SECONDS):
        while not completed <= await orders_recorded(customers.http, three.url):  # noqa: ASYNC110
            await asyncio.sleep(0.5)


async def orders_recorded(http: aiohttp.ClientSession, url: str) -> set[int]:
    """Which orders the ledger says are completed."""
    found: set[int] = set()
    page = {"tool": "shop_add_order", "status": "completed", "limit": "500", "cursor": ""}
    while True:
        given = "&".join(f"{key}={value}" for key, value in page.items() if value)
        _, listed = await asked(http, "GET", f"{url}/api/v1/executions?{given}")
        found |= {each["arguments"]["number"] for each in listed["executions"]}
        page["cursor"] = listed["next"] or ""
        if not page["cursor"]:
            return found


def orders_sent(peer: Provider) -> Counter[int]:
    """How often each order reached the shop."""
    bodies = (body for method, path, body in peer.requests if path == "/orders")
    return Counter(orjson.loads(body)["number"] for body in bodies)
