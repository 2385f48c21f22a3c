"""A caller who takes a call back: the server is told, and the record says what is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp.client.client import Client

from tests.conftest import OPEN, GatewayMaker, Running
from tests.journeys.test_hot_reload import own_call
from tests.peers import until
from tests.peers_mcp import Era, mcp_peer


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_write_that_its_caller_cancels_is_cancelled_at_the_server(
    make_gateway: GatewayMaker, era: Era
) -> None:
    async with mcp_peer(era) as peer:
        table = f'[connections.peer]\nkind = "mcp"\nurl = "{peer.url}"\n'
        gateway: Running = await make_gateway(OPEN + table)
        await until(lambda: "peer_slow" in gateway.app.gateway.snapshot.tools, 10)
        async with Client(gateway.mcp, mode="legacy") as client, asyncio.timeout(10):
            call = asyncio.create_task(client.call_tool("peer_slow", {}))
            await peer.entered.wait()
            call.cancel()
            await peer.cancelled.wait()
            ended = await _first(lambda: own_call(client, "list_executions", status="unknown"))
    assert (ended["tool"], ended["error_code"]) == ("peer_slow", "outcome_unknown")


async def _first(look: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """The first execution there is, as soon as there is one."""
    while not (found := (await look())["executions"]):  # noqa: ASYNC110 - the store tells nobody
        await asyncio.sleep(0.01)
    first: dict[str, Any] = found[0]
    return first
