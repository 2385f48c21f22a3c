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

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RoundRobin:
    """Where it listens, whom it hands connections to, and how many each has had."""

    def __init__(self) -> None:
        self.url = ""
        self.ports: list[int] = []
        self.served: dict[int, int] = {}
        self._turn = itertools.count()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await self._next()
            await asyncio.gather(_copy(reader, forth), _copy(back, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _next(self) -> Ends:
        for _ in self.ports:
            port = self.ports[next(self._turn) % len(self.ports)]
            with contextlib.suppress(ConnectionError):
                ends = await asyncio.open_connection("127.0.0.1", port)
                self.served[port] = self.served.get(port, 0) + 1
                return ends
        raise ConnectionRefusedError


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def round_robin() -> AsyncIterator[RoundRobin]:
    """A balancer that listens; its replicas are told to it once they are there."""
    balancer = RoundRobin()
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(balancer(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    balancer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield balancer
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
