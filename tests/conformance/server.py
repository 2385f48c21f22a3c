"""Serves the conformance tools: `python -m tests.conformance.server PORT`."""

from __future__ import annotations

import sys

import uvicorn
import uvloop
from cryptography.fernet import Fernet

from gateway.store.secrets import Seal
from gateway.web.identity import Identity
from tests.conformance.surface import Surface
from tests.mcp.conftest import OPEN
from tests.mcp.toolbox import endpoint_over


async def main(port: int) -> None:
    """Serves the real endpoint over the conformance tools."""
    identity, seal = Identity(OPEN), Seal([Fernet.generate_key().decode()])
    over = endpoint_over(Surface(), identity, seal, public_url=f"http://127.0.0.1:{port}")
    async with over as endpoint:
        config = uvicorn.Config(
            endpoint,
            host="127.0.0.1",
            port=port,
            http="httptools",
            lifespan="off",
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
