"""What is looked at without anyone asking: what failed, what is lazy, what a validator says."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.client.client import Client

from tests.conftest import OPEN, GatewayMaker, Running
from tests.journeys.test_hot_reload import names, own_call
from tests.peers import provider, until

STDIO_PEER = Path(__file__).parents[1] / "stdio_peer.py"


async def test_advice_of_the_validator_arrives_later_and_changes_no_tool(gateway: Running) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        del peer.document["info"]["version"]
        await own_call(client, "put_connection", name="shop", kind="openapi", spec=peer.spec)
        before = gateway.app.gateway.snapshot.tools
        await until(lambda: bool(gateway.app.gateway.snapshot.connections["shop"].problems), 15)
        assert gateway.app.gateway.snapshot.tools == before
        shown = await own_call(client, "get_connection", name="shop")
        assert "version" in str(shown["problems"])


async def test_a_lazy_server_is_started_by_the_first_view_that_needs_it(
    make_gateway: GatewayMaker,
) -> None:
    table = f"""
[connections.peer]
kind = "mcp"
transport = "stdio"
command = {sys.executable!r}
args = [{str(STDIO_PEER)!r}]
lazy = true
"""
    gateway: Running = await make_gateway(OPEN + table)

    def status() -> str:
        return gateway.app.gateway.snapshot.connections["peer"].status

    assert status() == "pending"
    async with Client(gateway.mcp) as client:
        await client.list_tools()
        await until(lambda: status() == "connected", 10)
        assert any(name.startswith("peer_") for name in await names(client))
