"""Three processes on one PostgreSQL behind a round-robin: one gateway, for all anyone can tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import aiohttp
import pytest

from tests.databases import PostgresServer
from tests.journeys.trio import (
    ITEM,
    ORDER,
    Customers,
    Trio,
    asked,
    assert_orders_are_right,
    orders_sent,
    plain_http,
    tools_on,
    trio,
)
from tests.mcp.speakers import Era, Speaker
from tests.peers import items_api, look_until, provider

ERAS: tuple[Era, ...] = ("2025", "2026")
CUSTOMERS = 4
OTHER_NUMBERS = 1_000_000  # so that no token was used before
WAIT_SECONDS = 60.0  # that a call may wait for a person, and more
SOON_SECONDS = 60.0  # it takes a tenth of one where the machine has nothing else to do


@pytest.fixture(scope="module")
async def three(
    tmp_path_factory: pytest.TempPathFactory, own_postgres: PostgresServer
) -> AsyncIterator[Trio]:
    with own_postgres.database() as url:
        async with provider() as peer, trio(tmp_path_factory.mktemp("three"), url, peer) as made:
            yield made


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with plain_http() as made:
        yield made


@pytest.fixture(autouse=True)
def unasked(three: Trio) -> None:
    three.peer.requests.clear()
    three.balancer.served.clear()


@pytest.mark.parametrize("era", ERAS)
async def test_a_change_on_one_is_told_to_the_clients_of_all_and_listed_there(
    three: Trio, http: aiohttp.ClientSession, era: Era
) -> None:
    wanted = {"toolsListChanged": True} if era == "2026" else {}
    path = "/api/v1/connections/other"
    put = {"kind": "openapi", "spec": three.peer.spec}
    async with AsyncExitStack() as stack:
        speakers = [await Speaker(http, f"{url}/mcp", era).meet() for url in three.urls]
        streams = [await stack.enter_async_context(s.listening(**wanted)) for s in speakers]
        for url, method, body in ((three.urls[0], "PUT", put), (three.urls[1], "DELETE", None)):
            assert (await asked(http, method, url + path, body))[0] == 200
            heard = await asyncio.gather(*(stream.message(SOON_SECONDS) for stream in streams))
            assert {said["method"] for said in heard} == {"notifications/tools/list_changed"}
            listed = [await tools_on(http, each) for each in three.urls]
            assert [("other_get_items" in tools) for tools in listed] == [method == "PUT"] * 3


@pytest.mark.parametrize("era", ERAS)
async def test_every_request_of_a_session_is_answered_by_whoever_gets_it(
    three: Trio, http: aiohttp.ClientSession, era: Era
) -> None:
    speaker = await Speaker(http, f"{three.url}/mcp", era).meet()
    for number in range(9):
        assert await speaker.own("shop_get_items", id=str(number)) == {"got": f"/items/{number}"}
    assert sorted(three.balancer.served.values()) in ([3, 3, 4], [3, 4, 4])


async def decided(http: aiohttp.ClientSession, url: str, decision: str) -> None:
    """Decides on the one call that waits, once there is one."""
    _, waiting = await look_until(
        lambda: asked(http, "GET", f"{url}/api/v1/approvals"), lambda found: found[1]["approvals"]
    )
    [approval] = waiting["approvals"]
    path = f"{url}/api/v1/approvals/{approval['id']}"
    assert (await asked(http, "POST", path, {"decision": decision}))[0] == 200


async def test_a_rate_limit_and_a_token_hold_over_all_three(
    three: Trio, http: aiohttp.ClientSession
) -> None:
    limit = {"requests": 6, "window_seconds": 600}
    put = {"kind": "openapi", "spec": three.peer.spec, "rate_limit": limit}
    await asked(http, "PUT", f"{three.url}/api/v1/connections/meter", put)
    await everywhere(http, three, "meter_get_items")
    call = f"{three.url}/api/v1/tools/meter_get_items/call"
    looks = [asked(http, "POST", call, {"arguments": {"id": "1"}}) for _ in range(12)]
    assert sorted([status for status, _ in await asyncio.gather(*looks)]) == [200] * 6 + [429] * 6

    order = {"arguments": {"number": 1}, "idempotency_token": "only-once"}
    answers = await asyncio.gather(
        *(asked(http, "POST", three.url + ORDER, order) for _ in range(12))
    )
    assert {(status, found["execution_id"]) for status, found in answers} == {
        (200, answers[0][1]["execution_id"])
    }
    assert orders_sent(three.peer) == {1: 1}


async def everywhere(http: aiohttp.ClientSession, three: Trio, tool: str) -> None:
    """Returns when every replica lists the tool."""
    for url in three.urls:
        await look_until(partial(tools_on, http, url), lambda tools: tool in tools)


async def test_postgresql_may_be_restarted_under_load(
    three: Trio, http: aiohttp.ClientSession, own_postgres: PostgresServer
) -> None:
    speaker = await Speaker(http, f"{three.urls[0]}/mcp", "2026", seconds=WAIT_SECONDS).meet()
    waiting = asyncio.create_task(speaker.own("shop_add_permit", number=8))
    customers = Customers(http, three.url)
    async with customers.at_work(CUSTOMERS):
        await customers.more("completed", 20)
        await asyncio.to_thread(own_postgres.stop)
        await customers.failed(f"{ORDER} store_unavailable", 10)
        await customers.more("looked", 150)  # reads go on, and who waits has looked in vain
        await asyncio.to_thread(own_postgres.start)
        await customers.more("completed", 40)
        errors = set(customers.errors)
        customers.errors.clear()
        await customers.more("completed", 40)
    assert errors == {f"{ORDER} store_unavailable"}
    assert customers.errors == {}, "all is well again"
    await assert_orders_are_right(three, customers)
    await everywhere(http, three, "shop_get_items")
    await decided(http, three.urls[1], "approve")
    assert await waiting == {"got": 8}


async def test_one_may_be_killed_under_load(three: Trio, http: aiohttp.ClientSession) -> None:
    customers = Customers(http, three.url, numbers=OTHER_NUMBERS)
    async with customers.at_work(CUSTOMERS):
        await customers.more("completed", 20)
        three.processes[2].kill()
        await three.processes[2].wait()
        await customers.more("looked", 40)
        await three.start(2)
        await customers.more("completed", 40)
    assert set(customers.errors) <= {f"{ORDER} cut off", f"{ITEM} cut off"}
    assert customers.done["unknown"] <= CUSTOMERS
    await assert_orders_are_right(three, customers)
    three.peer.document = items_api(three.peer.url, "items", "pears")
    await asked(http, "POST", f"{three.urls[2]}/api/v1/connections/shop/refresh")
    await everywhere(http, three, "shop_get_pears")
