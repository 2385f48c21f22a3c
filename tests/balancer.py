"""A round-robin in front of several gateways, as small as one can be and still be real.

Each new connection goes to the next replica; one that refuses it is passed over, as a balancer
does with a backend that has died. What a replica breaks off is broken off here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.raw_server import accepting, pump

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RoundRobin:
    """Where it listens, whom it hands connections to, and how many each has had."""

    def __init__(self) -> None:
        self.url = ""
        self.ports: list[int] = []
        self.served: dict[int, int] = {}
        self._turn = itertools.count()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await self._next()
        await asyncio.gather(pump(reader, forth), pump(back, writer))

    async def _next(self) -> Ends:
        for _ in self.ports:
            port = self.ports[next(self._turn) % len(self.ports)]
            with contextlib.suppress(ConnectionError):
                ends = await asyncio.open_connection("127.0.0.1", port)
                self.served[port] = self.served.get(port, 0) + 1
                return ends
        raise ConnectionRefusedError


@asynccontextmanager
async def round_robin() -> AsyncIterator[RoundRobin]:
    """A balancer that listens; its replicas are told to it once they are there."""
    balancer = RoundRobin()
    async with accepting(balancer) as port:
        balancer.url = f"http://127.0.0.1:{port}"
        yield balancer
