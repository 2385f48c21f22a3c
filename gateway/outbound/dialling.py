"""Connections whose address is judged where it is dialled.

A name is looked up by us, addresses that may not be dialled are left out, and a socket is only made
for an address that may: between the look-up and the dialling there is no gap in which a name could
come to mean something else. A connection that was kept is judged again before it is used again, so
new rules hold at once. Behind a proxy only the proxy is dialled; where a request would lead is
judged as far as its host's name resolves here.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from aiohttp import TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult
from cachetools import TTLCache
from yarl import URL

from gateway.outbound.addresses import Allowance, forbidden, locate
from gateway.outbound.failures import PROXY_UNREACHABLE

if TYPE_CHECKING:
    from aiohttp.connector import Connection

# Below the five seconds after which Node and uvicorn close an idle connection: fewer of our
# requests cross such a closing on the wire.
IDLE_SECONDS = 4.0
NAME_SECONDS = 10
MAX_NAMES = 1024
DNS_THREADS = 8
PROXY_NAME_SECONDS = 2.0  # a name that takes longer is left to the proxy
UNRESOLVED_SECONDS = 60  # so long it is not asked for again

Lookup = Callable[..., list[Any]]


class Progress:
    """How far one exchange has come."""

    __slots__ = ("dialled", "sent")

    def __init__(self) -> None:
        self.sent = False  # from when on the other side may have seen something of it
        self.dialled = False  # its connection is a new one


progress: ContextVar[Progress] = ContextVar("progress")


@dataclass(frozen=True, slots=True)
class Proxy:
    """The forward proxy that everything goes through."""

    url: URL  # without credentials, so that no library can show them
    login: str | None = field(default=None, repr=False)  # its Proxy-Authorization header

    @classmethod
    def at(cls, address: str) -> Proxy:
        """The proxy at `http://user:password@host:port`."""
        user, at, host = address.removeprefix("http://").rpartition("@")
        login = b64encode(unquote(user).encode()).decode()
        return cls(locate(f"http://{host}").url, f"Basic {login}" if at else None)


class Judge(AbstractResolver):
    """Says what names mean, and which addresses may be dialled under the rules of now."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        # Threads of our own: a slow name server must not hold up other threaded work.
        self._threads = ThreadPoolExecutor(DNS_THREADS, thread_name_prefix="dns")
        self._known: TTLCache[str, asyncio.Future[list[str]]] = TTLCache(MAX_NAMES, NAME_SECONDS)
        # By which rules a kept connection was last judged: asking who its peer is takes a while.
        self._judged: WeakKeyDictionary[object, Allowance] = WeakKeyDictionary()
        self._unresolved: TTLCache[str, bool] = TTLCache(MAX_NAMES, UNRESOLVED_SECONDS)

    def follow(self, allowance: Allowance, proxy: Proxy | None) -> None:
        """Judge by these rules from now on."""
        self.allowance = allowance
        self.proxy = proxy
        self._proxy_addresses = {proxy.url.raw_host} if proxy else set()
        self._unresolved.clear()

    async def check(self, host: str) -> None:
        """Refuse a name that may not be asked for. Raises OSError for one that is unknown."""
        self._permitted(host, await self._look_up(host))

    async def check_behind_proxy(self, host: str) -> None:
        """Refuse a name with an address that may not be dialled: the proxy picks, not we.

        A name that does not resolve here is left to the proxy.
        """
        if host in self._unresolved:
            return
        try:
            async with asyncio.timeout(PROXY_NAME_SECONDS):
                found = await self._addresses(host)
        except OSError:
            self._unresolved[host] = True
            return
        if len(self._permitted(host, found)) < len(found):
            raise forbidden(host)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name that may be dialled; aiohttp asks for them."""
        if self.proxy is not None and host == self.proxy.url.raw_host:
            addresses = await self._of_proxy(host)
        else:
            addresses = self._permitted(host, await self._addresses(host))
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in addresses
        ]

    def open_socket(self, info: Any) -> socket.socket:
        """The last door: whatever way an address took to get here, this one is being dialled."""
        family, kind, protocol, _, address = info
        if not self._may_be_used(address[0]):
            raise PermissionError(errno.EACCES, "address not allowed")
        progress.get().dialled = True
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return made

    def may_be_used_again(self, connection: Connection) -> bool:
        """Whether a kept connection leads where we may go, and nothing came on it unasked."""
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None or protocol.should_close:
            return False
        if self._judged.get(protocol) is not self.allowance:
            peer = transport.get_extra_info("peername")
            if not peer or not self._may_be_used(peer[0]):
                return False
            self._judged[protocol] = self.allowance
        return True

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _may_be_used(self, address: str) -> bool:
        return self.allowance.permits(address) or address in self._proxy_addresses

    def _permitted(self, host: str, found: list[str]) -> list[str]:
        permitted = [address for address in found if self.allowance.permits(address)]
        if not permitted:
            raise forbidden(host)
        return permitted

    async def _of_proxy(self, host: str) -> list[str]:
        try:
            found = await self._addresses(host)
        except OSError as error:
            raise PROXY_UNREACHABLE.error(sent=False) from error
        self._proxy_addresses = {host, *found}
        return found

    async def _addresses(self, host: str) -> list[str]:
        """All addresses of a name: looked up once for all who wait, remembered for a while."""
        asked = self._known.get(host)
        if asked is None or (asked.done() and (asked.cancelled() or asked.exception())):
            asked = self._known[host] = asyncio.ensure_future(self._look_up(host))
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(asked)

    async def _look_up(self, host: str) -> list[str]:
        loop, tcp = asyncio.get_running_loop(), socket.SOCK_STREAM
        found = await loop.run_in_executor(
            self._threads, self._lookup, host, 0, socket.AF_UNSPEC, tcp
        )
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        return [address[0] for *_, address in found]


class JudgingConnector(TCPConnector):
    """Gives out connections that may be used, and notes that nothing is sent before one is."""

    def __init__(self, judge: Judge) -> None:
        super().__init__(
            resolver=judge,
            socket_factory=judge.open_socket,
            use_dns_cache=False,
            keepalive_timeout=IDLE_SECONDS,
            limit=0,
        )
        self._judge = judge

    async def connect(self, *args: Any, **kwargs: Any) -> Connection:
        """A connection on which nothing was sent yet."""
        exchange = progress.get()
        exchange.sent = exchange.dialled = False
        connection = await super().connect(*args, **kwargs)
        while not (exchange.dialled or self._judge.may_be_used_again(connection)):
            connection.close()
            connection = await super().connect(*args, **kwargs)
        exchange.sent = True
        return connection
