"""Connections whose address is judged where it is dialled, and kept for a while to be used again.

A name is looked up by us, addresses that may not be dialled are left out, and the socket itself is
only made for an address that may: between the look-up and the dialling there is no gap in which a
name could come to mean something else. A pool holds the connections made under one set of rules;
when the rules change it is retired, and nothing it holds is used for another request.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohappyeyeballs import start_connection

from gateway.addresses import Network, Origin, forbidden, permitted
from gateway.errors import Overloaded
from gateway.no_answer import Closed
from gateway.wire import Wire

MAX_CONNECTIONS = 1024  # calls are bounded far below, by invoke.limits; upstreams' streams are not
# Below the five seconds after which Node and uvicorn close an idle connection: fewer of our
# requests cross such a closing on the wire.
IDLE_SECONDS = 4.0
SWEEP_SECONDS = 1.0
NAME_SECONDS = 10.0
MAX_NAMES = 1024
DNS_THREADS = 8
SECOND_ADDRESS_SECONDS = 0.25  # after which the next address of a name is tried beside the first
CLOSE_SECONDS = 2.0

Lookup = Callable[..., list[Any]]
AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Rules:
    """How names become addresses, which of them may be dialled, and whom TLS trusts."""

    allowed: Sequence[Network]
    lookup: Lookup
    threads: ThreadPoolExecutor  # our own: a slow name server must not hold up other threaded work
    tls: Callable[[], ssl.SSLContext]

    async def addresses(self, host: str, port: int) -> list[AddressInfo]:
        """The addresses of a name that may be dialled; none left is a refusal."""
        found = await asyncio.get_running_loop().run_in_executor(
            self.threads, self.lookup, host, port, socket.AF_UNSPEC, socket.SOCK_STREAM
        )
        judged = [
            (family, kind, protocol, "", address)
            for family, kind, protocol, _, address in found
            if permitted(ipaddress.ip_address(address[0]), self.allowed)
        ]
        if found and not judged:
            raise forbidden(host)
        return judged

    def judged_socket(self, info: Any) -> socket.socket:
        """The last door: whatever way an address took to get here, this one is being dialled."""
        family, kind, protocol, _, address = info
        if not permitted(ipaddress.ip_address(address[0]), self.allowed):
            raise PermissionError(errno.EACCES, "address not allowed")
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return made


class Pool:
    """One set of connections, all dialled under the same rules."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        self._open: set[Wire] = set()
        self._idle: dict[tuple[str, str], list[Wire]] = {}  # by origin
        self._known: dict[Origin, tuple[float, list[AddressInfo]]] = {}
        self._asking: dict[Origin, asyncio.Task[list[AddressInfo]]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._retired = False
        self._closed = False
        self._empty = asyncio.Event()

    def idle(self, origin: Origin) -> Wire | None:
        """A connection that was used before and is still open."""
        wires = self._idle.get(origin.key)
        while wires:
            wire = wires.pop()  # the one used last: the rest may go
            if wire.open and self._loop.time() - wire.idle_since < IDLE_SECONDS:
                return wire
            wire.close()
        return None

    async def dial(self, origin: Origin) -> Wire:
        """A new connection. Raises OSError where none can be made."""
        if len(self._open) >= MAX_CONNECTIONS:
            self._let_go(self._loop.time())
            if len(self._open) >= MAX_CONNECTIONS:
                raise Overloaded("busy", "Too many connections are open.", "Try again in a moment.")
        addresses = await self._addresses(origin)
        made = await start_connection(
            addresses,
            happy_eyeballs_delay=SECOND_ADDRESS_SECONDS,
            interleave=1,
            socket_factory=self._rules.judged_socket,
        )
        wire = await self._connected(origin, made)
        self._open.add(wire)
        if self._closed:  # meanwhile; a pool that is only retired carries this one to its end
            wire.fail(Closed())
        return wire

    def put_back(self, origin: Origin, wire: Wire) -> None:
        """Keep a connection for the next request, or close it if it can't be used again."""
        if self._retired or not wire.rest():
            wire.close()
            return
        wire.idle_since = self._loop.time()
        self._idle.setdefault(origin.key, []).append(wire)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def retire(self) -> None:
        """Use no connection again; exchanges under way finish."""
        self._retired = True
        self._let_go(float("inf"))

    async def close(self) -> None:
        """Close every connection, at once."""
        self._closed = True
        self.retire()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for task in self._asking.values():
            task.cancel()
        for wire in list(self._open):
            wire.fail(Closed())
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._empty.wait()

    @property
    def unused(self) -> bool:
        """Whether no connection is open any more."""
        return not self._open

    def _lost(self, wire: Wire) -> None:
        self._open.discard(wire)
        if self._retired and not self._open:
            self._empty.set()

    def _sweep(self) -> None:
        self._sweeping = None
        self._let_go(self._loop.time() - IDLE_SECONDS)
        if self._idle:
            self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _let_go(self, since: float) -> None:
        """Close what has been idle since then."""
        for key, wires in list(self._idle.items()):
            kept = [wire for wire in wires if wire.open and wire.idle_since > since]
            for wire in wires:
                if wire not in kept:
                    wire.close()
                    self._open.discard(wire)
            if kept:
                self._idle[key] = kept
            else:
                del self._idle[key]

    async def _connected(self, origin: Origin, made: socket.socket) -> Wire:
        tls, name = None, None
        try:
            if origin.scheme == "https":
                tls = await self._loop.run_in_executor(self._rules.threads, self._rules.tls)
                name = origin.host.rstrip(".")
            _, wire = await self._loop.create_connection(
                lambda: Wire(self._lost), sock=made, ssl=tls, server_hostname=name
            )
        except BaseException:
            made.close()
            raise
        return wire

    async def _addresses(self, origin: Origin) -> list[AddressInfo]:
        """Where to dial: looked up once for all who wait, and remembered for a few seconds."""
        if origin.literal is not None:
            return [_info(origin)]
        known = self._known.get(origin)
        if known is not None and self._loop.time() < known[0]:
            return known[1]
        task = self._asking.get(origin)
        if task is None:
            task = self._asking[origin] = asyncio.create_task(self._ask(origin))
            task.add_done_callback(_noted)
        return await asyncio.shield(task)

    async def _ask(self, origin: Origin) -> list[AddressInfo]:
        try:
            found = await self._rules.addresses(origin.host, origin.port)
        finally:
            del self._asking[origin]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        if len(self._known) >= MAX_NAMES:
            self._known.clear()
        self._known[origin] = (self._loop.time() + NAME_SECONDS, found)
        return found


def _noted(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # whoever asked has it; all may have left


def _info(origin: Origin) -> AddressInfo:
    kind, tcp = socket.SOCK_STREAM, socket.IPPROTO_TCP
    if isinstance(origin.literal, ipaddress.IPv6Address):
        return socket.AF_INET6, kind, tcp, "", (origin.host, origin.port, 0, 0)
    return socket.AF_INET, kind, tcp, "", (origin.host, origin.port)
