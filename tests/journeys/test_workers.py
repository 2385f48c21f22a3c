"""Several processes on one port, as users start them."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
from aiohttp import web

from tests.conftest import OPEN
from tests.journeys.trio import asked, plain_http, tools_on
from tests.peers import Provider, items_api, provider, until
from tests.processes import users_process

LOOKS = 16  # on connections of their own: the kernel hands some to either
SOON_SECONDS = 60.0  # a tenth of one, where the machine has nothing else to do


async def test_workers_are_one_gateway_though_one_is_killed_and_everyone_hears_the_signal(
    tmp_path: Path,
) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        arrived.set()
        await go_on.wait()
        return web.json_response({"answer": 42})

    config = tmp_path / "config.toml"
    config.write_text(f"{OPEN}\n[server]\nworkers = 2\n", encoding="utf-8")
    async with (
        provider() as peer,
        plain_http() as http,
        users_process(config) as (process, url),
        asyncio.timeout(60),
    ):
        base = url.removesuffix("/mcp")

        await know_and_count_together(http, base, peer)
        await replaced_when_killed(process, http, base)
        peer.answer = slow
        call = f"{base}/api/v1/tools/shop_get_pears/call"
        asking = asyncio.create_task(asked(http, "POST", call, {"arguments": {"id": "1"}}))
        await arrived.wait()
        # As from a terminal, or an init system: the workers hear it, and once more by their parent.
        for each in (*workers_of(process), process):
            each.send_signal(signal.SIGINT)
        while await answers(urlsplit(url).port):  # noqa: ASYNC110 - another process makes it so
            await asyncio.sleep(0.05)
        go_on.set()
        assert (await asking)[1]["output"] == {"answer": 42}
        assert await process.wait() == 0


async def know_and_count_together(http: aiohttp.ClientSession, base: str, peer: Provider) -> None:
    """What one worker is told all know, and a limit holds over all."""
    limited, freely = (f"{base}/api/v1/connections/{name}" for name in ("limited", "shop"))
    put = {"kind": "openapi", "spec": peer.spec}
    limit = {"rate_limit": {"requests": 6, "window_seconds": 600}}
    assert (await asked(http, "PUT", limited, {**put, **limit}))[0] == 200
    assert (await asked(http, "PUT", freely, put))[0] == 200
    await listed_by_all(http, base, "shop_get_items")
    peer.document = items_api(peer.url, "items", "pears")
    await asked(http, "POST", f"{freely}/refresh")
    await listed_by_all(http, base, "shop_get_pears")
    call, body = f"{base}/api/v1/tools/limited_get_items/call", {"arguments": {"id": "1"}}
    found = [(await asked(http, "POST", call, body))[0] for _ in range(LOOKS)]
    assert sorted(found) == [200] * 6 + [429] * (LOOKS - 6)


async def listed_by_all(http: aiohttp.ClientSession, base: str, tool: str) -> None:
    """Returns when whoever is asked knows the tool, many times over."""
    async with asyncio.timeout(SOON_SECONDS):
        listed: list[set[str]] = [set()]
        while not all(tool in names for names in listed):
            listed = [await tools_on(http, base) for _ in range(LOOKS)]


async def replaced_when_killed(process: Any, http: aiohttp.ClientSession, base: str) -> None:
    """Kills a worker; every request is answered meanwhile, and there are two again."""
    [first, _] = workers_of(process)
    first.kill()
    await until(lambda: first.pid not in [each.pid for each in workers_of(process)])
    for _ in range(LOOKS):
        async with http.get(f"{base}/readyz") as answer:
            assert answer.status == 200
    await until(lambda: len(workers_of(process)) == 2, 30)
    await until(lambda: all(each.net_connections() for each in workers_of(process)), 30)


def workers_of(process: Any) -> list[Any]:
    """The processes that serve; each may have children of its own."""
    return [
        child
        for child in psutil.Process(process.pid).children()
        if child.status() != psutil.STATUS_ZOMBIE
    ]


async def answers(port: int | None) -> bool:
    """Whether someone listens on the port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError as error:  # reset: by a worker that just stopped; another may listen
        return isinstance(error, ConnectionResetError)
    writer.close()
    return True
