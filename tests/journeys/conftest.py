"""What several journeys share: stores of their own choosing, and a shop that takes orders."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.callers import Operator
from tests.conftest import Running
from tests.databases import own_postgres, postgres, store_url
from tests.journeys.confirming import FREELY, IDEMPOTENT, Shop, config, orders_api, shop_on
from tests.peers import Provider, provider

__all__ = ["own_postgres", "postgres", "store_url"]

ShopMaker = Callable[..., Awaitable[Shop]]


@pytest.fixture(scope="module")
async def module_peer() -> AsyncIterator[Provider]:
    """One shop for all tests of a module: a read, a write and a delete."""
    async with provider() as shop:
        yield shop


@pytest.fixture
def peer(module_peer: Provider) -> Provider:
    """The module's shop, which has heard of nothing yet."""
    module_peer.document, module_peer.answer = orders_api(module_peer.url), None
    module_peer.requests.clear()
    module_peer.headers.clear()
    return module_peer


@pytest.fixture
async def items() -> AsyncIterator[Provider]:
    """An API with one read, by which items are got."""
    async with provider() as made:
        yield made


@pytest.fixture
async def operator(gateway: Running) -> AsyncIterator[Operator]:
    """Who looks after the test's gateway."""
    async with aiohttp.ClientSession() as http:
        yield Operator(http, gateway.mcp, "2026")


@pytest.fixture
async def make_shop(peer: Provider, tmp_path: Path) -> AsyncIterator[ShopMaker]:
    """Makes gateways before the shop, with the words of `config`."""
    async with AsyncExitStack() as stack:

        async def make(*words: str, **more: Any) -> Shop:
            text = config(peer, *words, **more)
            return await stack.enter_async_context(shop_on(tmp_path / "config.toml", peer, text))

        yield make


@pytest.fixture
async def own_shop(make_shop: ShopMaker) -> Shop:
    """A gateway before the shop, which asks nobody and which no other test sees."""
    return await make_shop(FREELY, connection=IDEMPOTENT)


@pytest.fixture(scope="module")
async def module_shop(
    module_peer: Provider, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Shop]:
    """One that asks nobody, for all tests of a module."""
    module_peer.document = orders_api(module_peer.url)
    file = tmp_path_factory.mktemp("shop") / "config.toml"
    text = config(module_peer, FREELY, connection=IDEMPOTENT)
    async with shop_on(file, module_peer, text) as made:
        yield made


@pytest.fixture
def shop(module_shop: Shop, peer: Provider) -> Shop:
    """The module's gateway, before a shop that has heard of nothing yet."""
    return module_shop
