"""Connections whose address is judged where it is dialled, and what TLS is made with.

A name is looked up by us, addresses that may not be dialled are left out, and a socket is only made
for an address that may: between the look-up and the dialling there is no gap in which a name could
come to mean something else. A connection that was kept is judged again before it is used again, so
new rules hold at once. Behind a proxy only the proxy is dialled; where a request would lead is
judged as far as its host's name resolves here. TLS files are looked at again from time to time, so
that a renewed certificate needs no restart.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import TCPConnector, encode_basic_auth
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from cachetools import TTLCache
from yarl import URL

from gateway.errors import Fixable
from gateway.limits import (
    IDLE_SECONDS,
    LOOKUP_SECONDS,
    MAX_EXCHANGES,
    MAX_REMEMBERED,
    REMEMBER_SECONDS,
)
from gateway.model import TlsFiles
from gateway.outbound.addresses import forbidden, permits_by

Lookup = Callable[..., list[Any]]


@dataclass(slots=True)
class Progress:
    """How far one exchange has come."""

    sent: bool = False  # from when on the other side may have seen something of it
    dialled: bool = False  # its connection is a new one


progress: ContextVar[Progress] = ContextVar("progress")


@dataclass(frozen=True, slots=True)
class Proxy:
    """The forward proxy that everything goes through."""

    url: URL  # without credentials, so that no library can show them
    login: Mapping[str, str] = field(repr=False)  # its Proxy-Authorization header, if any

    @classmethod
    def at(cls, address: str) -> Proxy:
        """The proxy at `http://user:password@host:port`."""
        url = URL(address)
        user, password = url.user, url.password or ""
        if user is None:
            return cls(url, {})
        login = encode_basic_auth(user, password, encoding="utf-8")
        return cls(url.with_user(None), {"Proxy-Authorization": login})


class Judge(AbstractResolver):
    """Says what names mean, and which addresses may be dialled under the rules of now."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        # Threads of our own: a slow name server must not hold up other threaded work.
        self._threads = ThreadPoolExecutor(thread_name_prefix="dns")
        self._known: TTLCache[str, asyncio.Future[list[str]]]
        self._known = TTLCache(MAX_REMEMBERED, REMEMBER_SECONDS)
        self._left_to_proxy: TTLCache[str, bool] = TTLCache(MAX_REMEMBERED, REMEMBER_SECONDS)

    def follow(self, allow: Sequence[str], proxy: Proxy | None) -> None:
        """Judge by these rules from now on."""
        self.permits = permits_by(allow)
        self.proxy = proxy
        self._proxy_addresses = {proxy.url.raw_host} if proxy else set()
        self._left_to_proxy.clear()

    async def check(self, host: str) -> None:
        """Refuse a name that may not be asked for. Raises OSError for one that is unknown."""
        if self.proxy is not None:
            await self.check_behind_proxy(host)
        else:
            async with asyncio.timeout(LOOKUP_SECONDS):
                self._permitted(host, await self._look_up(host))

    async def check_behind_proxy(self, host: str) -> None:
        """Refuse a name with an address that may not be dialled: the proxy picks, not we.

        A name that does not resolve here, or not soon, is left to the proxy.
        """
        if host in self._left_to_proxy:
            return
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = await self._addresses(host)
        except OSError:
            self._left_to_proxy[host] = True
            return
        if len(self._permitted(host, found)) < len(found):
            raise forbidden(host)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name that may be dialled; aiohttp asks for them."""
        addresses = await self._addresses(host)
        if self.proxy is not None and host == self.proxy.url.raw_host:
            self._proxy_addresses = {host, *addresses}
        else:
            addresses = self._permitted(host, addresses)
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
        peer = transport.get_extra_info("peername")
        return bool(peer) and self._may_be_used(peer[0])

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _may_be_used(self, address: str) -> bool:
        return self.permits(address) or address in self._proxy_addresses

    def _permitted(self, host: str, found: list[str]) -> list[str]:
        permitted = [address for address in found if self.permits(address)]
        if not permitted:
            raise forbidden(host)
        return permitted

    async def _addresses(self, host: str) -> list[str]:
        """All addresses of a name: looked up once for all who wait, remembered for a while."""
        asked = self._known.get(host)
        if asked is None or (asked.done() and (asked.cancelled() or asked.exception())):
            asked = self._known[host] = asyncio.ensure_future(self._look_up(host))
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(asked)

    async def _look_up(self, host: str) -> list[str]:
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, self._lookup, host, 0, socket.AF_UNSPEC, socket.SOCK_STREAM
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
            limit=MAX_EXCHANGES,
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


Stamps = tuple[tuple[int, int], ...]


class Contexts:
    """The TLS contexts in use. Relative paths count from `folder`."""

    def __init__(
        self, folder: Path, ca_file: str | None, *, look_again_seconds: float = REMEMBER_SECONDS
    ) -> None:
        self.ca_file = ca_file
        self._folder = folder
        self._look_again_seconds = look_again_seconds
        self._known: dict[TlsFiles, tuple[ssl.SSLContext, Stamps, float]] = {}

    async def get(self, tls: TlsFiles) -> ssl.SSLContext:
        """The context for these files, which are read on a thread: that takes its time."""
        now, known = asyncio.get_running_loop().time(), self._known.get(tls)
        if known is None or now >= known[2]:
            stamps = await asyncio.to_thread(self._stamps, tls)
            if known is None or known[1] != stamps:
                context = await asyncio.to_thread(self._read, tls)
            else:
                context = known[0]  # the same one: its connections can be used again
            known = self._known[tls] = context, stamps, now + self._look_again_seconds
        return known[0]

    def _stamps(self, tls: TlsFiles) -> Stamps:
        files = (self.ca_file, tls.ca_file, tls.cert_file, tls.key_file)
        return tuple(_stamp(self._folder / file) for file in files if file)

    def _read(self, tls: TlsFiles) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        general = _load(context, self._folder, TlsFiles(ca_file=self.ca_file))
        problem = f"network.{general}" if general else _load(context, self._folder, tls)
        if problem:
            hint = "An operator must give the path of a PEM file; it counts from config.toml."
            raise Fixable("connection_invalid", f"TLS can't be used: {problem}", hint)
        return context


def tls_problem(folder: Path, tls: TlsFiles) -> str | None:
    """What is wrong with these files, after the key that names one of them."""
    return _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), folder, tls)


def _load(context: ssl.SSLContext, folder: Path, tls: TlsFiles) -> str | None:
    """Have the context use these files; or what is wrong with them."""
    key = "ca_file"
    try:
        if tls.ca_file:
            context.load_verify_locations(folder / tls.ca_file)
        key = "cert_file"
        if tls.cert_file:
            key_file = folder / (tls.key_file or tls.cert_file)
            key = key if key_file.exists() else "key_file"
            # With a password, though an empty one, OpenSSL does not ask for one at the terminal.
            context.load_cert_chain(folder / tls.cert_file, key_file, password="")
    except ssl.SSLError:
        what = "certificates" if key == "ca_file" else "a certificate with its key, unencrypted"
        return f"{key}: the file does not hold {what}, in PEM format"
    except OSError as error:
        return f"{key}: the file can't be read: {error.strerror}"
    return None


def _stamp(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0  # the error comes where it is read
    return found.st_mtime_ns, found.st_size
