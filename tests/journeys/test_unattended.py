"""Calls whose caller does not wait: REST's that need a decision, background ones, cancelling."""

from __future__ import annotations

from typing import cast

import pytest
from mcp_types import RequestParamsMeta

from gateway.limits import CALLS_PER_PRINCIPAL
from tests.conftest import OPEN, GatewayMaker, Running
from tests.journeys.confirming import CALL, ORDER, Api, Gate, api, client, config, sent
from tests.peers import Provider, until
from tests.peers_mcp import mcp_peer


async def test_rest_call_that_needs_a_decision_runs_by_itself_once_approved(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    shop: Running = await make_gateway(config(peer))
    async with api(shop.url, "ann") as ann, api(shop.url, "root") as root:
        status, waiting = await ann("POST", CALL, {"arguments": ORDER})
        assert (status, waiting["status"]) == (202, "pending_confirmation")
        await root.decide("approve")
        record = await ann.execution(waiting["execution_id"], "completed")
        assert record["result"]["output"] == {"path": "/orders", "method": "POST"}
        _, denied = await ann("POST", CALL, {"arguments": ORDER})
        await root.decide("deny")
        ended = await ann.execution(denied["execution_id"], "denied")
        assert ended["error_code"] == "approval_denied"
    assert sent(peer) == 1


async def test_background_call_is_answered_at_once_and_read_later(
    shop: Running, peer: Provider, ann: Api
) -> None:
    gate = Gate(peer)
    meta = cast(RequestParamsMeta, {"gateway/background": True})
    async with client(shop.url, "ann") as agent:
        started = await agent.call_tool("shop_get_order", {"id": "7"}, meta=meta)
        id = (started.structured_content or {})["execution_id"]
        running = await agent.call_tool("get_execution", {"id": id})
        assert (running.structured_content or {})["status"] == "executing"
        gate.release.set()
        record = await ann.execution(id, "completed")
    assert record["result"]["output"] == {"placed": True}
    status, second = await ann("POST", f"{CALL}?background=true", {"arguments": ORDER})
    assert (status, second["status"]) == (202, "executing")
    assert (await ann.execution(second["execution_id"], "completed"))["access"] == "write"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_call_that_tells_of_its_progress_outlives_its_timeout(
    make_gateway: GatewayMaker, mode: str
) -> None:
    long, heard = {"steps": 16, "pause": 0.25}, list[float]()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with mcp_peer("both") as up:
        table = f'[connections.up]\nkind = "mcp"\nurl = "{up.url}"\ntimeout_seconds = 3\n'
        gateway: Running = await make_gateway(OPEN + table)
        async with api(gateway.url, "ann") as ann, client(gateway.url, "ann", mode) as agent:
            path = "/tools/up_steps/call?background=true"
            _, started = await ann("POST", path, {"arguments": long})
            result = await agent.call_tool("up_steps", long, progress_callback=hear)
            await ann.execution(started["execution_id"], "completed")
    assert (result.is_error, heard[-1:]) == (False, [16])


async def test_background_calls_are_bounded_and_can_be_cancelled(
    shop: Running, peer: Provider, ann: Api
) -> None:
    Gate(peer)
    path = "/tools/shop_get_order/call?background=true"
    started = [
        await ann("POST", path, {"arguments": {"id": str(n)}})
        for n in range(CALLS_PER_PRINCIPAL + 1)
    ]
    assert [status for status, _ in started] == [202] * CALLS_PER_PRINCIPAL + [503]
    read = started[0][1]["execution_id"]
    assert (await ann("DELETE", f"/executions/{read}"))[1]["status"] == "failed"
    status, write = await ann("POST", f"{CALL}?background=true", {"arguments": ORDER})
    assert status == 202
    await until(lambda: sent(peer) == 1)
    async with api(shop.url, "bob") as bob:
        assert (await bob("DELETE", f"/executions/{write['execution_id']}"))[0] == 404
    _, cancelled = await ann("DELETE", f"/executions/{write['execution_id']}")
    assert (cancelled["status"], cancelled["error_code"]) == ("unknown", "outcome_unknown")


async def test_waiting_call_can_be_withdrawn(make_gateway: GatewayMaker, peer: Provider) -> None:
    shop: Running = await make_gateway(config(peer))
    async with api(shop.url, "ann") as ann, api(shop.url, "root") as root:
        _, waiting = await ann("POST", CALL, {"arguments": ORDER})
        _, ended = await ann("DELETE", f"/executions/{waiting['execution_id']}")
        assert ended["status"] == "denied"
        assert await root.pending(0) == []
    assert sent(peer) == 0
