"""What is looked at without anyone asking: what failed, what is lazy, what a validator says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.client.client import Client

from tests.callers import Operator, names
from tests.configs import stdio_table
from tests.conftest import OPEN, GatewayMaker, Running
from tests.peers import Provider, soon, until
from tests.peers_mcp import PLAIN_SCHEMA, Context, McpPeer, mcp_peer


async def test_advice_of_the_validator_arrives_later_and_changes_no_tool(
    gateway: Running, operator: Operator, items: Provider
) -> None:
    del items.document["info"]["version"]
    await operator.put("shop", items.spec)
    before = gateway.app.gateway.snapshot.tools
    await until(lambda: bool(gateway.app.gateway.snapshot.connections["shop"].problems))
    assert gateway.app.gateway.snapshot.tools == before
    shown = await operator.own("get_connection", name="shop")
    assert "version" in str(shown["problems"])


async def test_a_lazy_server_is_started_by_the_first_view_that_needs_it(
    make_gateway: GatewayMaker,
) -> None:
    gateway = await make_gateway(OPEN + stdio_table("peer", lazy=True))

    def status() -> str:
        return gateway.app.gateway.snapshot.connections["peer"].status

    assert status() == "pending"
    async with Client(gateway.mcp) as client:
        await client.list_tools()
        await until(lambda: status() == "connected")
        assert any(name.startswith("peer_") for name in await names(client))


@dataclass
class SlowToList(McpPeer):
    """A server whose list takes as long as the test says."""

    may_list: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def list_tools(self, ctx: Context, params: Any) -> types.ListToolsResult:
        self.asked.set()
        await self.may_list.wait()
        return await super().list_tools(ctx, params)


async def test_a_server_that_is_slow_to_list_holds_up_no_change_of_another(
    make_gateway: GatewayMaker,
) -> None:
    slow = SlowToList()
    slow.may_list.set()
    async with mcp_peer() as quick, mcp_peer(peer=slow):
        peers = {"quick": quick, "slow": slow}
        tables = (peer.table(name) for name, peer in peers.items())
        gateway = await make_gateway(OPEN + "".join(tables))

        def offered(name: str) -> bool:
            return name in gateway.app.gateway.snapshot.tools

        await until(lambda: offered("quick_echo") and offered("slow_echo"), 10)
        await soon(asyncio.gather(quick.listening.wait(), slow.listening.wait()))
        slow.may_list.clear()
        slow.asked.clear()
        slow.tools["later"] = quick.tools["soon"] = PLAIN_SCHEMA
        await slow.announce()
        await soon(slow.asked.wait())
        await quick.announce()
        await until(lambda: offered("quick_soon"), 10)
        assert not offered("slow_later")
        slow.may_list.set()
        await until(lambda: offered("slow_later"), 10)
