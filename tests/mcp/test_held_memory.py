"""What was replaced is not held in memory."""

from __future__ import annotations

import gc

from mcp import Client

from gateway.policy.view import View
from tests.conftest import Running
from tests.peers import provider


async def test_views_of_earlier_revisions_are_let_go(gateway: Running) -> None:
    async with provider() as peer, Client(gateway.mcp) as client:
        for number in range(10):
            values = {"kind": "openapi", "spec": peer.spec, "display_name": f"Items {number}"}
            await gateway.app.gateway.catalog.put("items", values, by="test")
            await client.list_tools(cache_mode="bypass")
        gc.collect()
        assert sum(type(one) is View for one in gc.get_objects()) <= 2
