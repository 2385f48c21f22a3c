"""What the tests of the way out share."""

from __future__ import annotations

import socket
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


def names(table: dict[str, list[str]], calls: list[str] | None = None) -> Any:
    """A name server with this table; each name takes its next address and stays at the last."""

    def lookup(host: str, port: int, *_: Any) -> list[Any]:
        if calls is not None:
            calls.append(host)
        if host not in table:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        addresses = table[host]
        address = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in address.split()
        ]

    return lookup
