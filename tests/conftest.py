"""The whole gateway for tests: in this process on a real port, or as a process of its own."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from gateway.app import App, Place, running
from gateway.config.file import parse_settings
from gateway.server import bind
from gateway.workers import Workers
from tests.certificates import authority
from tests.peers import stop_accepting, until

# Clients and gateways read all certificates they trust, each time: one takes less than 150 do.
TRUSTED = TemporaryDirectory(prefix="gateway-trusted-")
os.environ["SSL_CERT_FILE"] = str(authority(Path(TRUSTED.name), "trusted").file)

# Few examples, the same in every run; `make test-slow` looks for more with the other profile.
ON_A_BUSY_MACHINE: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
register_profile = hypothesis_settings.register_profile
register_profile("quick", max_examples=15, derandomize=True, **ON_A_BUSY_MACHINE)
register_profile("full", max_examples=500, **ON_A_BUSY_MACHINE)
hypothesis_settings.load_profile("quick")

# Begun first: what counts the readers of its process, before gateways have some; then the longest
# before others, so that no worker has one left when the rest are done.
FIRST = """tests/test_workers.py
test_browser test_accessibility docs/test_snippets held_calls cli/test_starting
journeys/test_approvals three_replicas overload_clients test_workers test_commands test_house
overload_upstreams processes mcp_servers test_terminal test_azure.py test_questions
principals_sessions azure_outages unattended test_cluster definition_files""".split()

OPEN = """
[auth]
mode = "none"
[network]
allow = ["127.0.0.1/32"]
[permissions]
level = "full_access"
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((n for n, name in enumerate(FIRST) if name in item.nodeid), len(FIRST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()  # what is loaded stays; looking through it again and again took a tenth of the time
    gc.set_threshold(100_000, 20, 20)


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


_readers: list[Callable[[], Any]] = [Workers]


@pytest.fixture(scope="session", autouse=True)
async def readers() -> AsyncIterator[None]:
    """The processes that read definitions, warm for all gateways of this process."""
    async with Workers() as made:
        _readers.append(lambda: nullcontext(made))
        yield


@asynccontextmanager
async def gateway_on(config: Path, text: str = OPEN, at: int = 0) -> AsyncIterator[Running]:
    """The gateway on this configuration, in this process and loop; at a free port, or at `at`."""
    settings = parse_settings(text.encode(), str(config))
    await asyncio.to_thread(config.write_text, text, encoding="utf-8")
    with bind("127.0.0.1", at) as bound:
        port: int = bound.getsockname()[1]
        place = Place(config, "127.0.0.1", port, readers=_readers[-1])
        async with running(settings, place) as app:
            server = app.server(place, grace=2, announce=False)
            task = asyncio.create_task(server.serve(sockets=[bound]))
            await until(lambda: server.started and not app.gateway.catalog.unread())
            try:
                yield Running(app, port, config)
            finally:
                await stop_accepting(*server.servers)
                server.stop()
                await task


GatewayMaker = Callable[..., Awaitable[Running]]


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
    return await make_gateway()


@pytest.fixture(scope="module")
async def module_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """As `gateway`, for all tests of a module."""
    async with gateway_on(tmp_path_factory.mktemp("gateway") / "config.toml") as made:
        yield made


@pytest.fixture
async def shared_gateway(module_gateway: Running) -> AsyncIterator[Running]:
    """The module's gateway; the connections that a test puts are deleted after it."""
    yield module_gateway
    async with aiohttp.ClientSession(f"{module_gateway.url}/api/v1/") as http:
        for name in module_gateway.app.gateway.snapshot.connections:
            async with http.delete(f"connections/{name}") as answer:
                assert answer.status in (200, 404)  # the test may have deleted it just now


@asynccontextmanager
async def two_gateways(
    folder: Path, text: str, store_url: str
) -> AsyncIterator[tuple[Running, Running]]:
    """Two gateways on one store and one key, each on a configuration file of its own."""
    store = f'[store]\nurl = "{store_url}"\nsecret_key_file = "{folder}/secret.key"\n'
    configs = [folder / name / "config.toml" for name in ("one", "two")]
    for config in configs:
        config.parent.mkdir()
    async with (
        gateway_on(configs[0], f"{text}\n{store}") as one,
        gateway_on(configs[1], f"{text}\n{store}") as two,
    ):
        yield one, two
