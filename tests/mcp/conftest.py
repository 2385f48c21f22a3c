"""A real server on a free port, the way it is run: uvicorn with uvloop and httptools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import uvloop
from cryptography.fernet import Fernet

from gateway.config.settings import AuthMode, Settings
from gateway.mcp.endpoint import McpEndpoint
from gateway.store.secrets import Seal
from gateway.web.identity import Identity
from tests.configs import token_of
from tests.mcp.toolbox import Toolbox, endpoint_over
from tests.peers_mcp import serving

TOKENS = {name: token_of(name) for name in ("ann", "bob")}
OPEN = Settings(auth=AuthMode(mode="none"))
SEAL = Seal([Fernet.generate_key().decode()])


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


def with_tokens(*names: str) -> Settings:
    """Settings under which these principals have their token."""
    return Settings.model_validate(
        {"principals": {name: {"token": TOKENS[name]} for name in names}}
    )


@dataclass
class Edge:
    """A served endpoint with everything a test may turn."""

    toolbox: Toolbox
    identity: Identity
    endpoint: McpEndpoint
    base: str
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"


EdgeMaker = Callable[..., Any]


@pytest.fixture
async def make_edge() -> AsyncIterator[EdgeMaker]:
    """Makes served endpoints; they share the key, as replicas do."""
    async with AsyncExitStack() as stack:

        async def make(
            settings: Settings = OPEN, toolbox: Toolbox | None = None, **options: Any
        ) -> Edge:
            toolbox = toolbox or Toolbox()
            identity = Identity(settings)
            over = endpoint_over(toolbox, identity, SEAL, **options)
            endpoint = await stack.enter_async_context(over)
            base = await stack.enter_async_context(serving(endpoint))
            http = await stack.enter_async_context(aiohttp.ClientSession())
            stack.callback(endpoint.streams.close)
            return Edge(toolbox, identity, endpoint, base, http)

        yield make


@pytest.fixture
async def edge(make_edge: EdgeMaker) -> Edge:
    made: Edge = await make_edge()
    return made
