"""Connections whose address is judged where it is dialled.

A name is looked up by us, addresses that may not be dialled are left out, and the socket itself is
only made for an address that may: between the look-up and the dialling there is no gap in which a
name could come to mean something else.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.addresses import Network, forbidden, permitted

MAX_CONNECTIONS = (
    1024  # calls are bounded far below, by invoke.limits; streams of upstreams are not
)
# Below the five seconds after which Node and uvicorn close an idle connection: fewer of our
# requests cross such a closing on the wire.
IDLE_SECONDS = 4.0
DNS_SECONDS = 10
DNS_THREADS = 8

Lookup = Callable[..., list[Any]]


def judged_connector(
    allowed: Sequence[Network],
    lookup: Lookup,
    threads: ThreadPoolExecutor,
    tls: ssl.SSLContext | bool,
) -> aiohttp.TCPConnector:
    def judged_socket(info: Any) -> socket.socket:
        # The last door: whatever way an address took to get here, this is the one being dialled.
        family, kind, protocol, _, address = info
        if not permitted(ipaddress.ip_address(address[0]), allowed):
            raise PermissionError(errno.EACCES, "address not allowed")
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(
        resolver=Resolver(allowed, lookup, threads),
        socket_factory=judged_socket,
        ttl_dns_cache=DNS_SECONDS,
        keepalive_timeout=IDLE_SECONDS,
        limit=MAX_CONNECTIONS,
        ssl=tls,
    )


class Resolver(AbstractResolver):
    """Names to addresses that may be dialled; the rest are left out, and none left is a refusal."""

    def __init__(
        self, allowed: Sequence[Network], lookup: Lookup, threads: ThreadPoolExecutor
    ) -> None:
        self._allowed = allowed
        self._lookup = lookup
        self._threads = threads  # our own: a slow name server must not hold up other threaded work

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, self._lookup, host, port, family, socket.SOCK_STREAM
        )
        results = [
            ResolveResult(
                hostname=host,
                host=address[0],
                port=port,
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, _, protocol, _, address in found
            if permitted(ipaddress.ip_address(address[0]), self._allowed)
        ]
        if found and not results:
            raise forbidden(host)
        return results

    async def close(self) -> None:
        """Nothing to close: the threads belong to the Egress."""
