"""The whole gateway for tests: in this process on a real port, or as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.app import App, Place, running
from gateway.config.reading import parse_settings
from gateway.server import GatewayServer, bind
from tests.peers import until

START_SECONDS = 60.0  # two, where the machine has nothing else to do

OPEN = """
[auth]
mode = "none"
[network]
allow = ["127.0.0.1/32"]
[permissions]
level = "full_access"
"""


@dataclass(frozen=True)
class Running:
    """A gateway that accepts requests."""

    app: App
    port: int
    config: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def mcp(self) -> str:
        return f"{self.url}/mcp"


@asynccontextmanager
async def gateway_on(config: Path, text: str = OPEN) -> AsyncIterator[Running]:
    """The gateway on this configuration, in this process and loop."""
    settings = parse_settings(text.encode(), str(config))
    await asyncio.to_thread(config.write_text, text, encoding="utf-8")
    with bind("127.0.0.1", 0) as bound:
        port: int = bound.getsockname()[1]
        place = Place(config, "127.0.0.1", port)
        async with running(settings, place) as app:
            server = GatewayServer(app, place, grace=2, announce=False)
            task = asyncio.create_task(server.serve(sockets=[bound]))
            await until(lambda: server.started)
            try:
                yield Running(app, port, config)
            finally:
                server.stop()
                await task


GatewayMaker = Callable[..., Any]


@pytest.fixture
async def make_gateway(tmp_path: Path) -> AsyncIterator[GatewayMaker]:
    """Makes gateways on `tmp_path`/config.toml; they end with the test."""
    async with AsyncExitStack() as stack:

        async def make(text: str = OPEN) -> Running:
            return await stack.enter_async_context(gateway_on(tmp_path / "config.toml", text))

        yield make


@pytest.fixture
async def gateway(make_gateway: GatewayMaker) -> Running:
    """A gateway without tokens and confirmations, that may call servers on this machine."""
    made: Running = await make_gateway()
    return made


@asynccontextmanager
async def gateway_process(
    config: Path, *options: str, pass_fds: tuple[int, ...] = ()
) -> AsyncIterator[tuple[Any, str]]:
    """`gateway serve` as users start it; the process and the address it says it is ready at."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", str(config), "--port", "0"),
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        pass_fds=pass_fds,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("Gateway ready: http://127.0.0.1:"), line
        yield process, line.removeprefix("Gateway ready: ").strip()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                await process.wait()
