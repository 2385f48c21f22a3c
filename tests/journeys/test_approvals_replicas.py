"""Approvals over two gateways on one store: decided on one, used on the other, once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.conftest import two_gateways
from tests.journeys.confirming import CALL, IDEMPOTENT, ORDER, api, client, config, error_code, sent
from tests.peers import Provider


async def test_what_waits_on_one_goes_on_once_when_it_is_decided_on_the_other(
    tmp_path: Path, store_url: str, peer: Provider
) -> None:
    text = config(peer, connection=IDEMPOTENT)
    async with (
        two_gateways(tmp_path, text, store_url) as (one, two),
        client(one.url, "ann") as agent,
        api(one.url, "ann") as ann,
        api(two.url, "root") as root,
    ):
        for decision, code in (("approve", None), ("deny", "approval_denied")):
            call = asyncio.create_task(agent.call_tool("shop_place_order", ORDER))
            assert (await root.decide(decision))[0] == 200
            async with asyncio.timeout(15):
                assert error_code(await call) == code
        assert sent(peer) == 1
        started = [await ann("POST", CALL, {"arguments": {"book": str(n)}}) for n in range(5)]
        waiting = await root.pending(5)
        await asyncio.gather(*(root.decide("approve", each["id"]) for each in waiting))
        for _, each in started:
            await root.execution(each["execution_id"], "completed")
    books = sorted(body for _, _, body in peer.requests)
    assert books == [*(b'{"book":"%d"}' % n for n in range(5)), b'{"book":"Emma"}']
