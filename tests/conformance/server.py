"""Serves the conformance tools: `python -m tests.conformance.server PORT`."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from cryptography.fernet import Fernet

from gateway.mcp.endpoint import EdgeSettings, McpEndpoint
from gateway.web.identity import AuthSettings, Identity
from tests.conformance.surface import Surface


def app(port: int) -> Any:
    """The real endpoint over the conformance tools."""
    seal = Fernet(Fernet.generate_key())
    settings = EdgeSettings(public_url=f"http://127.0.0.1:{port}")
    endpoint: list[McpEndpoint] = []

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        if not endpoint:
            endpoint.append(McpEndpoint(Surface(), Identity(AuthSettings()), seal, settings))
        await endpoint[0](scope, receive, send)

    return asgi


if __name__ == "__main__":
    port = int(sys.argv[1])
    uvicorn.run(
        app(port),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
