"""A real server on a free port, the way it is run: uvicorn with uvloop and httptools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import uvicorn
import uvloop
from cryptography.fernet import Fernet

from gateway.config.settings import AuthMode, Settings
from gateway.mcp.endpoint import McpEndpoint
from gateway.store.secrets import Seal
from gateway.web.identity import Identity
from tests.mcp.toolbox import Toolbox, endpoint_over

TOKENS = {"ann": "ann-token-0123456789", "bob": "bob-token-0123456789"}
OPEN = Settings(auth=AuthMode(mode="none"))
SEAL = Seal([Fernet.generate_key().decode()])


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


def with_tokens(*names: str) -> Settings:
    """Settings under which these principals have their token."""
    return Settings.model_validate(
        {"principals": {name: {"token": TOKENS[name]} for name in names}}
    )


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    """Serve an ASGI app; yields its port.

    The server is started and stopped by hand: its own loop looks ten times a second whether it
    should stop, which would be most of the time these tests take.
    """
    config = uvicorn.Config(app, port=0, http="httptools", lifespan="off", log_level="error")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        for listening in server.servers:
            listening.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        if server.server_state.tasks:
            await asyncio.wait(server.server_state.tasks, timeout=2)


@dataclass
class Edge:
    """A served endpoint with everything a test may turn."""

    toolbox: Toolbox
    identity: Identity
    endpoint: McpEndpoint
    port: int
    http: aiohttp.ClientSession
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}/mcp"


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
            port = await stack.enter_async_context(serving(endpoint))
            http = await stack.enter_async_context(aiohttp.ClientSession())
            stack.callback(endpoint.close_streams)
            return Edge(toolbox, identity, endpoint, port, http)

        yield make


@pytest.fixture
async def edge(make_edge: EdgeMaker) -> Edge:
    made: Edge = await make_edge()
    return made
