"""Two processes behind a round-robin that share nothing but the key."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
from cryptography.fernet import Fernet
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.edge.conftest import TOKENS

CALLS = 6


@asynccontextmanager
async def replica(key: str, url: str) -> AsyncIterator[int]:
    """A replica's port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.edge.replica", key, url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(20):
            yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        async with asyncio.timeout(10):
            await process.wait()


class RoundRobin:
    """Hands each new connection to the next replica, and counts."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.served: dict[int, int] = {}
        self._turn = itertools.count()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self.ports[next(self._turn) % len(self.ports)]
        self.served[port] = self.served.get(port, 0) + 1
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(_copy(reader, forth), _copy(back, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def balanced() -> AsyncIterator[tuple[str, RoundRobin]]:
    """The one address of two replicas."""
    balancer = RoundRobin()
    server = await asyncio.start_server(balancer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    key = Fernet.generate_key().decode()
    async with AsyncExitStack() as stack:
        replicas = [replica(key, url), replica(key, url)]
        balancer.ports = list(
            await asyncio.gather(*(stack.enter_async_context(one) for one in replicas))
        )
        yield f"{url}/mcp", balancer
    server.close()


async def test_any_replica_answers_any_request_of_either_era() -> None:
    headers = {"authorization": f"Bearer {TOKENS['ann']}"}
    one_connection_a_request = httpx2.Limits(max_keepalive_connections=0)
    async with (
        balanced() as (url, balancer),
        httpx2.AsyncClient(headers=headers, limits=one_connection_a_request) as http,
    ):
        for mode in ("legacy", "2026-07-28"):
            balancer.served.clear()
            async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
                for number in range(CALLS):
                    result = await client.call_tool("echo", {"n": number})
                    assert result.structured_content == {"n": number}
                assert len((await client.list_tools()).tools) == 4
            assert len(balancer.served) == 2
            assert min(balancer.served.values()) >= CALLS // 2
