"""Approvals over two gateways on one store: decided on one, used on the other, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import Running, two_gateways
from tests.journeys.confirming import CALL, IDEMPOTENT, ORDER, api, client, config, error_code, sent
from tests.peers import Provider


@pytest.fixture
async def replicas(
    tmp_path: Path, store_url: str, peer: Provider
) -> AsyncIterator[tuple[Running, Running]]:
    text = config(peer, connection=IDEMPOTENT)
    async with two_gateways(tmp_path, text, store_url) as replicas:
        yield replicas


async def test_call_waiting_on_one_goes_on_when_decided_on_the_other(
    replicas: tuple[Running, Running], peer: Provider
) -> None:
    one, two = replicas
    async with client(one.url, "ann") as ann, api(two.url, "root") as root:
        for decision, code in (("approve", None), ("deny", "approval_denied")):
            call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
            assert (await root.decide(decision))[0] == 200
            async with asyncio.timeout(5):
                assert error_code(await call) == code
    assert sent(peer) == 1


async def test_approved_rest_calls_run_once_whoever_runs_them(
    replicas: tuple[Running, Running], peer: Provider
) -> None:
    one, two = replicas
    async with api(one.url, "ann") as ann, api(two.url, "root") as root:
        started = [await ann("POST", CALL, {"arguments": {"book": str(n)}}) for n in range(5)]
        waiting = await root.pending(5)
        await asyncio.gather(*(root.decide("approve", each["id"]) for each in waiting))
        for _, each in started:
            await root.execution(each["execution_id"], "completed")
    assert sorted(body for _, _, body in peer.requests) == [b'{"book":"%d"}' % n for n in range(5)]
