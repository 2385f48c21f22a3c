"""One replica in a process of its own: `python -m tests.mcp.replica KEY PUBLIC_URL`.

Prints the port it serves on, and serves until its standard input is closed.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from gateway.store.secrets import Seal
from gateway.web.identity import Identity
from tests.mcp.conftest import serving, with_tokens
from tests.mcp.toolbox import Toolbox, endpoint_over


async def main(key: str, public_url: str) -> None:
    identity = Identity(with_tokens("ann", "bob"))
    over = endpoint_over(Toolbox(), identity, Seal([key]), public_url=public_url)
    async with over as endpoint, serving(endpoint) as port:
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2]))
