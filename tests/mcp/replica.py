"""One replica in a process of its own: `python -m tests.mcp.replica KEY PUBLIC_URL`.

Prints the port it serves on, and serves until its standard input is closed.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from cryptography.fernet import Fernet

from gateway.mcp.endpoint import EdgeSettings, McpEndpoint
from gateway.web.identity import Identity
from tests.mcp.conftest import serving, with_tokens
from tests.mcp.toolbox import Toolbox


async def main(key: str, public_url: str) -> None:
    identity = Identity(with_tokens("ann", "bob"))
    settings = EdgeSettings(public_url=public_url)
    endpoint = McpEndpoint(Toolbox(), identity, Fernet(key), settings)
    async with serving(endpoint) as port:
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await endpoint.drain(0.0)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2]))
