"""Two processes behind a round-robin that share nothing but the key."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
from cryptography.fernet import Fernet
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.balancer import RoundRobin, round_robin
from tests.mcp.conftest import TOKENS

CALLS = 6


@asynccontextmanager
async def replica(key: str, url: str) -> AsyncIterator[int]:
    """A replica's port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.mcp.replica", key, url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(60):
            yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        async with asyncio.timeout(10):
            await process.wait()


@asynccontextmanager
async def balanced() -> AsyncIterator[tuple[str, RoundRobin]]:
    """The one address of two replicas."""
    key = Fernet.generate_key().decode()
    async with round_robin() as balancer, AsyncExitStack() as stack:
        replicas = [replica(key, balancer.url), replica(key, balancer.url)]
        balancer.ports = list(
            await asyncio.gather(*(stack.enter_async_context(one) for one in replicas))
        )
        yield f"{balancer.url}/mcp", balancer


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
