"""What the tests of the way out share."""

from __future__ import annotations

from typing import Any

from gateway.outbound.client import Answer, Egress, Request

LOOPBACK = ["127.0.0.1/32"]


async def ask(
    egress: Egress,
    url: str,
    method: str = "GET",
    headers: Any = (),
    body: bytes | None = None,
    **limits: Any,
) -> Answer:
    """The answer to a request, within bounds that a test may set."""
    return await egress.send(
        Request(method, url, tuple(headers), body),
        **{"deadline": 5, "max_bytes": 1_000_000} | limits,
    )
