"""What several journeys share: stores of their own choosing, and a shop that takes orders."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import GatewayMaker, Running
from tests.databases import migrated_file, own_postgres, postgres, store_url
from tests.journeys.confirming import FREELY, IDEMPOTENT, Api, api, config, orders_api
from tests.peers import Provider, provider

__all__ = ["migrated_file", "own_postgres", "postgres", "store_url"]


@pytest.fixture
async def peer() -> AsyncIterator[Provider]:
    """A shop with a read, a write and a delete."""
    async with provider() as shop:
        shop.document = orders_api(shop.url)
        yield shop


@pytest.fixture
async def shop(peer: Provider, make_gateway: GatewayMaker) -> Running:
    """A gateway before the shop, which asks nobody."""
    made: Running = await make_gateway(config(peer, FREELY, connection=IDEMPOTENT))
    return made


@pytest.fixture
async def ann(shop: Running) -> AsyncIterator[Api]:
    """The REST API of that gateway, as ann."""
    async with api(shop.url, "ann") as made:
        yield made


@pytest.fixture(scope="module")
async def module_peer() -> AsyncIterator[Provider]:
    """One shop for all tests of a module."""
    async with provider() as shop:
        shop.document = orders_api(shop.url)
        yield shop


@pytest.fixture
def fresh_peer(module_peer: Provider) -> Provider:
    """The module's shop, which has heard of nothing yet."""
    module_peer.document, module_peer.answer = orders_api(module_peer.url), None
    module_peer.requests.clear()
    module_peer.headers.clear()
    return module_peer
