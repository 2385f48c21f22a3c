"""Calls go on through changes of everything around them, and through the end of the gateway."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.callers import Api, api, call_to_be_cut_off
from tests.configs import table
from tests.conftest import OPEN, Running, gateway_on
from tests.journeys.trio import ADD
from tests.mcp.speakers import Era, Speaker
from tests.peers import Provider, items_api, look_until, provider
from tests.processes import gateway_process


async def test_no_call_fails_while_other_connections_come_change_and_go(gateway: Running) -> None:
    async with provider() as shop, provider() as other, api(gateway.url) as rest:

        async def changes() -> list[int]:
            found = []
            for number in range(6):
                other.document = items_api(other.url, "items", f"more{number % 5}")
                name = f"/connections/other{number % 3}"
                put = {"kind": "openapi", "spec": other.spec}
                asked = [("PUT", name, put), ("POST", f"{name}/refresh", None)]
                asked += [("DELETE", name, None)] if number % 2 else []
                found += [(await rest(*each))[0] for each in asked]
            return found

        async def calls(done: asyncio.Event) -> list[int]:
            found = []
            while not done.is_set():
                found.append((await rest.call("shop_get_items", id="1"))[0])
            return found

        await rest("PUT", "/connections/shop", {"kind": "openapi", "spec": shop.spec})
        done = asyncio.Event()
        callers = [asyncio.create_task(calls(done)) for _ in range(8)]
        async with asyncio.timeout(60):
            changed = await changes()
            done.set()
            answered = [status for each in await asyncio.gather(*callers) for status in each]
    assert set(changed) == {200}
    assert len(answered) > 20
    assert set(answered) == {200}


class SlowShop:
    """A shop that answers when it is told to, before a gateway process."""

    def __init__(self, peer: Provider, config: Path, more: str) -> None:
        peer.document, peer.answer = items_api(peer.url, "items", **ADD), self.answer
        self.arrived, self.go_on = asyncio.Semaphore(0), asyncio.Event()
        self.text, self.config = OPEN + more + peer.table(), config
        config.write_text(self.text, encoding="utf-8")

    async def answer(self, request: web.Request) -> web.Response:
        self.arrived.release()
        await self.go_on.wait()
        return web.json_response({"answer": 42})


@asynccontextmanager
async def slow_shop(folder: Path, more: str = "") -> AsyncIterator[tuple[SlowShop, Any, Api]]:
    """The shop, the process of a gateway before it, and the REST API of that."""
    async with provider() as peer:
        shop = SlowShop(peer, folder / "config.toml", more)
        async with (
            gateway_process(shop.config) as (process, url),
            api(url) as rest,
            asyncio.timeout(60),
        ):
            yield shop, process, rest


async def test_calls_in_flight_are_answered_before_the_gateway_ends(tmp_path: Path) -> None:
    async with slow_shop(tmp_path) as (shop, process, rest):
        eras: tuple[Era, ...] = ("2025", "2026")
        calls = asyncio.gather(*(called(rest, era) for era in eras))
        await shop.arrived.acquire()
        await shop.arrived.acquire()
        process.send_signal(signal.SIGTERM)
        assert (await rest("GET", "//readyz"))[0] == 503
        shop.go_on.set()
        assert await calls == [{"answer": 42}] * 2
        assert await process.wait() == 0


async def called(rest: Api, era: Era) -> Any:
    """The structured answer of one call, made as a client of that era makes it."""
    speaker = await Speaker(rest.http, f"{rest.base}/mcp", era).meet()
    call = {"name": "shop_get_items", "arguments": {"id": "1"}}
    return (await speaker.request("tools/call", call))["structuredContent"]


async def test_calls_that_no_connection_waits_for_finish_before_the_gateway_ends(
    tmp_path: Path,
) -> None:
    async with slow_shop(tmp_path, 'tools = { shop_add_permit = "confirm" }\n') as made:
        shop, process, rest = made
        await left_alone(rest)
        for _ in range(4):
            await shop.arrived.acquire()
        process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):  # long after its last connection is gone
            async with asyncio.timeout(1.5):
                await process.wait()
        shop.go_on.set()
        assert await process.wait() == 0
    async with gateway_on(shop.config, shop.text) as again, api(again.url) as rest:
        _, found = await rest("GET", "/executions")
    ends = sorted((each["tool"], each["status"]) for each in found["executions"])
    tools = ("shop_add_order", "shop_add_order", "shop_add_permit", "shop_get_items")
    assert ends == [(tool, "completed") for tool in tools]


async def left_alone(rest: Api) -> None:
    """Begins four calls that nobody waits for: two in the background, one approved, one left."""
    number, id = {"arguments": {"number": 1}}, {"arguments": {"id": "1"}}
    for call, body in (
        ("shop_get_items/call?background=true", id),
        ("shop_add_order/call?background=true", number),
        ("shop_add_permit/call", number),
    ):
        assert (await rest("POST", f"/tools/{call}", body))[0] == 202
    assert (await rest.decide("approve"))[0] == 200
    async with call_to_be_cut_off(rest, "shop_add_order", {"number": 2}, "2026-07-28"):
        await in_flight(rest, 1)
    await in_flight(rest, 0)


async def in_flight(rest: Api, calls: int) -> None:
    """Returns when connections wait for so many calls."""
    await look_until(
        lambda: rest("GET", "//health"), lambda found: found[1]["calls_in_flight"] == calls
    )


async def test_a_second_signal_ends_the_gateway_while_calls_still_run(tmp_path: Path) -> None:
    patient = table("server", shutdown_seconds=600)
    async with slow_shop(tmp_path, patient) as (shop, process, rest):
        call = "/tools/shop_get_items/call?background=true"
        assert (await rest("POST", call, {"arguments": {"id": "1"}}))[0] == 202
        await shop.arrived.acquire()
        process.send_signal(signal.SIGTERM)
        await look_until(lambda: rest("GET", "//readyz"), lambda found: found[0] == 503)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
