"""A gateway process under a crowd: what it answers meanwhile, and what the kernel says it takes.

It serves a shop that is well. While a crowd does its worst, calls of the shop and health must go
on; the peak of the process's resident memory says whether what it holds is bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
import pytest
from aiohttp import web

from tests.conftest import OPEN
from tests.peers import Provider, provider, until
from tests.processes import gateway_process

MEBIBYTE = 1024 * 1024
HEALTHY_SECONDS = 10.0  # a few milliseconds, where the machine has nothing else to do
LARGE_CHARS = 100_000


@dataclass
class Served:
    """A gateway process, and what it was like before the crowd came."""

    url: str
    pid: int
    http: aiohttp.ClientSession
    shop: Provider
    resting: int = 0
    slowest: float = 0.0

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def growth(self) -> int:
        """How far the peak of its memory lies above what it had before, in bytes."""
        return memory(self.pid, "VmHWM") - self.resting

    def connections(self) -> int:
        """How many connections clients have to it."""
        found = psutil.Process(self.pid).net_connections("tcp")
        return sum(each.laddr.port == self.port and bool(each.raddr) for each in found)

    async def taken(self, more: int, before: int, seconds: float = 30.0) -> None:
        """Returns when it has so many connections more than before."""
        await until(lambda: self.connections() > before + more, seconds, 0.1)

    async def let_go(self, before: int, seconds: float = 30.0) -> None:
        """Returns when it has let go of all connections but a few."""
        await until(lambda: self.connections() <= before + 5, seconds, 0.1)

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.http.request(method, self.url + path, json=body) as found:
            return found.status, orjson.loads(await found.read())

    async def call(self, tool: str, id: str = "1") -> str:
        """The code a call ends with, or what its answer is like."""
        body = {"arguments": {"id": id}}
        _, found = await self.ask("POST", f"/api/v1/tools/{tool}/call", body)
        error = found.get("error")
        if error is not None:
            return str(error["code"])
        output = found["output"]
        cut = isinstance(output, dict) and output.get("truncated")
        return "cut" if cut else "answered"


def memory(pid: int, field: str) -> int:
    """A figure of the kernel's on a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


async def answer(request: web.Request) -> web.Response:
    """A word, or a large text where that is asked for."""
    large = request.path.endswith("/large")
    return web.json_response({"text": "x" * LARGE_CHARS if large else "hello"})


@pytest.fixture(scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Served]:
    """Clients have so long to complete a request, or to go on reading, as the module says."""
    seconds = getattr(request.module, "REQUEST_SECONDS", 60)
    config = tmp_path_factory.mktemp("crowds") / "config.toml"
    async with provider() as shop, many_connections() as http:
        shop.answer = answer
        table = f'[connections.shop]\nkind = "openapi"\nspec = "{shop.spec}"\n'
        limits = f"[limits]\nrequest_seconds = {seconds}\nmax_output_bytes = 262144\n"
        config.write_text(OPEN + limits + table, encoding="utf-8")
        async with gateway_process(config) as (process, url):
            made = Served(url.removesuffix("/mcp"), process.pid, http, shop)
            for _ in range(20):
                assert await made.call("shop_get_items") == "answered"
            made.resting = memory(process.pid, "VmRSS")
            yield made


def many_connections() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=60)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


@asynccontextmanager
async def others_unharmed(served: Served) -> AsyncIterator[None]:
    """Calls of the shop, and health, are answered all the while."""
    over = asyncio.Event()
    served.slowest = 0.0

    async def look() -> None:
        while not over.is_set():
            began = time.monotonic()
            assert await served.call("shop_get_items") == "answered"
            assert (await served.ask("GET", "/health"))[0] == 200
            served.slowest = max(served.slowest, time.monotonic() - began)
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        yield
        over.set()
    assert served.slowest < HEALTHY_SECONDS
