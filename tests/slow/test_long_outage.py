"""PostgreSQL away for longer than a process may be silent, while three gateways are at work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.limits import SILENT_SECONDS
from tests.databases import PostgresServer
from tests.journeys.trio import ORDER, Customers, assert_orders_are_right, plain_http, trio
from tests.peers import provider

CUSTOMERS = 8


@pytest.mark.slow
async def test_an_outage_longer_than_any_heartbeat_leaves_nothing_wrong(
    tmp_path: Path, own_postgres: PostgresServer
) -> None:
    with own_postgres.database() as url:
        async with provider() as peer, trio(tmp_path, url, peer) as three, plain_http() as http:
            customers = Customers(http, three.url)
            async with customers.at_work(CUSTOMERS):
                await customers.more("completed", 40)
                await asyncio.to_thread(own_postgres.stop)
                await asyncio.sleep(SILENT_SECONDS + 5)
                await customers.failed(f"{ORDER} store_unavailable", 10)
                await asyncio.to_thread(own_postgres.start)
                await customers.more("completed", 100)
                errors = set(customers.errors)
                customers.errors.clear()
                await customers.more("completed", 100)
            assert errors == {f"{ORDER} store_unavailable"}
            assert customers.errors == {}
            await assert_orders_are_right(three, customers)
