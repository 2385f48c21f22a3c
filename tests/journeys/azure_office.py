"""Azure with connections of a group, a gateway before it, and a client of that gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.callers import Api, api
from tests.conftest import OPEN, GatewayMaker, Running
from tests.mcp.speakers import Speaker
from tests.peers import until
from tests.peers_arm import Azure, azure


class Office(Speaker):
    """Who asks the gateway before Azure, over MCP and over REST."""

    def __init__(self, peer: Azure, gateway: Running, rest: Api) -> None:
        super().__init__(rest.http, gateway.mcp, "2026")
        self.peer, self.gateway, self.rest = peer, gateway, rest

    async def put(self, name: str, **values: Any) -> Any:
        return await self.own("put_connection", name=name, kind="arm", **values)

    async def has(self, tool: str) -> Office:
        """Returns when the tool is there, however busy the machine is."""
        await until(lambda: tool in self.gateway.app.gateway.snapshot.tools, 60)
        return self


OfficeMaker = Callable[..., Awaitable[Office]]


@pytest.fixture
async def peer() -> AsyncIterator[Azure]:
    async with azure() as made:
        yield made


@pytest.fixture
async def make_office(make_gateway: GatewayMaker, peer: Azure) -> AsyncIterator[OfficeMaker]:
    """Makes gateways before Azure; `invoke` is how it calls what is there."""
    async with AsyncExitStack() as stack:

        async def make(
            more: str = "", invoke: str = "", settings: str = OPEN, name: str = ""
        ) -> Office:
            way = f'invoke = "{invoke}"\n' if invoke else ""
            gateway = await make_gateway(settings + more + peer.table + way)
            return Office(peer, gateway, await stack.enter_async_context(api(gateway.url, name)))

        yield make


@pytest.fixture
async def office(peer: Azure, make_office: OfficeMaker) -> Office:
    """One with a connection that is signed in."""
    peer.add("office365")
    return await (await make_office()).has("office365_send_email_v2")
