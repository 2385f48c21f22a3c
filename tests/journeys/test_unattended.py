"""Calls whose caller does not wait: REST's that need a decision, background ones, cancelling."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from mcp.client.client import Client
from mcp_types import RequestParamsMeta

from gateway.limits import CALLS_PER_PRINCIPAL
from tests.callers import api, client, own_call
from tests.configs import table
from tests.conftest import OPEN, GatewayMaker
from tests.journeys.confirming import CALL, ORDER, Gate, Shop
from tests.journeys.conftest import ShopMaker
from tests.journeys.test_wrapped_tools import booking_peer
from tests.peers import until
from tests.peers_mcp import Era, mcp_peer


async def test_rest_call_that_needs_a_decision_runs_by_itself_once_approved_or_is_withdrawn(
    make_shop: ShopMaker,
) -> None:
    shop = await make_shop()
    status, waiting = await shop.ann.call("shop_place_order", **ORDER)
    assert (status, waiting["status"]) == (202, "pending_confirmation")
    await shop.root.decide("approve")
    record = await shop.ann.execution(waiting["execution_id"], "completed")
    assert record["result"]["output"] == {"path": "/orders", "method": "POST"}
    _, denied = await shop.ann.call("shop_place_order", **ORDER)
    await shop.root.decide("deny")
    ended = await shop.ann.execution(denied["execution_id"], "denied")
    assert ended["error_code"] == "approval_denied"
    _, waiting = await shop.ann.call("shop_place_order", **ORDER)
    _, withdrawn = await shop.ann("DELETE", f"/executions/{waiting['execution_id']}")
    assert (withdrawn["status"], await shop.root.pending(0)) == ("denied", [])
    assert shop.peer.sent() == 1


async def test_an_approval_is_void_once_the_connection_adds_something_else_or_leads_elsewhere(
    make_shop: ShopMaker,
) -> None:
    async with booking_peer({"content": []}) as (url, booked):
        hotel = table("connections.hotel", kind="mcp", url=f"{url}?of=A")
        shop = await make_shop(more=hotel, connection='inject = { notes = ["of=A"] }\n')
        _, order = await shop.ann.call("shop_place_order", **ORDER)
        _, stay = await shop.ann.call("hotel_book", room="7", idempotency_token="T")
        text = shop.config.read_text("utf-8")
        shop.config.write_text(text.replace("of=A", "of=B"), "utf-8")
        snapshots = shop.app.gateway.catalog
        settings = snapshots.current.connections["hotel"].settings
        await until(lambda: snapshots.current.connections["hotel"].settings != settings)
        for approval in await shop.root.pending(2):
            await shop.root("POST", f"/approvals/{approval['id']}", {"decision": "approve"})
        for waiting in (order, stay):
            record = await shop.ann.execution(waiting["execution_id"], "denied")
            assert record["error_code"] == "approval_expired"
    assert (shop.peer.sent(), booked) == (0, [])


async def test_background_call_is_answered_at_once_and_read_later(shop: Shop) -> None:
    gate = Gate(shop.peer)
    meta = cast(RequestParamsMeta, {"gateway/background": True})
    async with shop.agent() as agent:
        started = await agent.call_tool("shop_get_order", {"id": "7"}, meta=meta)
        id = (started.structured_content or {})["execution_id"]
        assert (await own_call(agent, "get_execution", id=id))["status"] == "executing"
        gate.release.set()
        record = await shop.ann.execution(id, "completed")
    assert record["result"]["output"] == {"placed": True}
    status, second = await shop.ann("POST", f"{CALL}?background=true", {"arguments": ORDER})
    assert (status, second["status"]) == (202, "executing")
    assert (await shop.ann.execution(second["execution_id"], "completed"))["access"] == "write"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_call_that_tells_of_its_progress_outlives_its_timeout(
    make_gateway: GatewayMaker, mode: str
) -> None:
    long, heard = {"steps": 16, "pause": 0.25}, list[float]()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with mcp_peer("both") as up:
        gateway = await make_gateway(OPEN + up.table(timeout_seconds=3))
        async with api(gateway.url, "ann") as ann, client(gateway.url, "ann", mode) as agent:
            path = "/tools/up_steps/call?background=true"
            _, started = await ann("POST", path, {"arguments": long})
            result = await agent.call_tool("up_steps", long, progress_callback=hear)
            await ann.execution(started["execution_id"], "completed")
    assert (result.is_error, heard[-1:]) == (False, [16])


async def test_background_calls_are_bounded_and_can_be_cancelled(own_shop: Shop) -> None:
    shop = own_shop
    Gate(shop.peer)
    path = "/tools/shop_get_order/call?background=true"
    reads = ({"arguments": {"id": str(n)}} for n in range(CALLS_PER_PRINCIPAL + 1))
    started = [await shop.ann("POST", path, body) for body in reads]
    assert [status for status, _ in started] == [202] * CALLS_PER_PRINCIPAL + [503]
    read = started[0][1]["execution_id"]
    assert (await shop.ann("DELETE", f"/executions/{read}"))[1]["status"] == "failed"
    status, write = await shop.ann("POST", f"{CALL}?background=true", {"arguments": ORDER})
    assert status == 202
    await until(lambda: shop.peer.sent() == 1)
    assert (await shop.bob("DELETE", f"/executions/{write['execution_id']}"))[0] == 404
    _, cancelled = await shop.ann("DELETE", f"/executions/{write['execution_id']}")
    assert (cancelled["status"], cancelled["error_code"]) == ("unknown", "outcome_unknown")


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_write_that_its_caller_cancels_is_cancelled_at_the_server(
    make_gateway: GatewayMaker, era: Era
) -> None:
    async with mcp_peer(era) as peer:
        gateway = await make_gateway(OPEN + peer.table())
        await until(lambda: "up_slow" in gateway.app.gateway.snapshot.tools)
        async with Client(gateway.mcp, mode="legacy") as client, asyncio.timeout(60):
            call = asyncio.create_task(client.call_tool("up_slow", {}))
            await peer.entered.wait()
            call.cancel()
            await peer.cancelled.wait()
            ended: list[tuple[str, str]] = []
            while not ended:  # the store tells nobody
                found = await own_call(client, "list_executions", status="unknown")
                ended = [(each["tool"], each["error_code"]) for each in found["executions"]]
    assert ended == [("up_slow", "outcome_unknown")]
