"""Judges the addresses that requests may go to, looks hosts up, and makes TLS contexts.

Only public addresses may be dialled, unless a network is allowed by name. Judging is done on
numbers, never on spellings: every way of writing an address (`0x7f.1`, `2130706433`,
`[::ffff:127.0.0.1]`, full-width digits) is first brought to its number, and an IPv4 address carried
inside an IPv6 one (mapped, 6to4, NAT64) is judged as itself.

A name is looked up by us, addresses that may not be dialled are left out, and a socket is only made
for an address that may: between the look-up and the dialling there is no gap in which a name could
come to mean something else. Behind a proxy only the proxy is dialled; where a request would lead is
judged as far as its host's name resolves here. TLS files are looked at again from time to time, so
that a renewed certificate needs no restart.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from aiohttp import encode_basic_auth
from aiohttp.abc import AbstractResolver, ResolveResult
from cachetools import TTLCache
from yarl import URL

from gateway.errors import Fixable, Refused
from gateway.limits import FETCH_SECONDS, MAX_REMEMBERED, REMEMBER_SECONDS
from gateway.model import TlsFiles

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(rules: Sequence[str]) -> tuple[IpNetwork, ...]:
    """The rules of `network.allow` as networks; ValueError names a rule that is none."""
    return tuple(ipaddress.ip_network(rule.strip(), strict=False) for rule in rules)


# Own lists, since Python's patch releases differ in which addresses `ipaddress` calls global.
_SPECIAL = networks(
    """0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
    192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24
    224.0.0.0/4 240.0.0.0/4 2001::/23 2001:db8::/32 2002::/16 3fff::/20""".split()
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_permitted(address: Address, allowed: Sequence[IpNetwork]) -> bool:
    """Whether this address may be dialled: it is public, or inside an allowed network."""
    address = _unwrap(address)
    if any(address in network for network in allowed):
        return True
    public = address.version == 4 or address in _PUBLIC_V6
    return public and not any(address in network for network in _SPECIAL)


def _unwrap(address: Address) -> Address:
    """The IPv4 address inside an IPv6 address, else the address itself without its zone."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    embedded = address.ipv4_mapped or address.sixtofour
    if embedded is None and int(address) >> 32 == int(_NAT64.network_address) >> 32:
        embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return embedded or ipaddress.IPv6Address(int(address))


URL_HINT = "Give a URL such as https://api.example.com/v1, without a user name or password."
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]{0,252})")


@lru_cache(MAX_REMEMBERED)
def read_authority(scheme: str, authority: str) -> str:
    """Host and port as a URL and the Host header say them."""
    if "@" in authority:
        raise Fixable("connection_invalid", "A URL may not hold a user name.", URL_HINT)
    match = re.fullmatch(r"(\[[^\[\]]*\]|[^:]*)(?::(\d{0,5}))?", authority, re.ASCII)
    port = int((match and match[2]) or _PORTS[scheme])
    if not match or not 1 <= port <= 65535:
        raise Fixable("connection_invalid", "The URL's host or port can't be read.", URL_HINT)
    host = match[1]
    host = f"[{_ipv6(host[1:-1])}]" if host.startswith("[") else _ipv4(_name(host))
    return host if port == _PORTS[scheme] else f"{host}:{port}"


@lru_cache(MAX_REMEMBERED)
def is_address(host: str) -> bool:
    """Whether the host of a URL that was located is an address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _ipv6(text: str) -> Address:
    if "%" in text:
        raise address_refusal(f"[{text}]")  # a zone is only ever link-local
    try:
        return ipaddress.IPv6Address(text)
    except ValueError as error:
        raise Fixable("connection_invalid", "The URL's host can't be read.", URL_HINT) from error


def _name(host: str) -> str:
    """The host as it is looked up: lower case, and international names in their ASCII form."""
    try:
        name = host if host.isascii() else URL.build(scheme="http", host=host).raw_host or ""
    except ValueError:
        name = ""
    if not _HOST.fullmatch(name.lower()):
        raise Fixable("connection_invalid", "The URL's host can't be read.", URL_HINT)
    return name.lower()


def _ipv4(host: str) -> str:
    """The host, or its address in any of the spellings that a system's look-up takes for one."""
    if host[-1] not in "0123456789abcdefx." or not host[0].isdigit():
        return host
    try:
        return socket.inet_ntoa(socket.inet_aton(host.rstrip(".")))
    except OSError:
        return host


def address_refusal(host: str) -> Refused:
    """The refusal for a host whose address may not be dialled. It never tells the address."""
    return Refused(
        "access_denied",
        f"The address of {host} is not allowed; add it to network.allow",
        "Private, loopback and link-local addresses are refused unless an operator lists them.",
    )


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


Lookup = Callable[..., list[Any]]


class Judge(AbstractResolver):
    """Looks up names, and judges which addresses may be dialled under the present rules."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        # Threads of our own: a slow name server must not hold up other threaded work.
        self._threads = ThreadPoolExecutor(thread_name_prefix="dns")
        self._lookups: TTLCache[str, asyncio.Future[list[str]]]
        self._lookups = TTLCache(MAX_REMEMBERED, REMEMBER_SECONDS)
        self._left_to_proxy: TTLCache[str, bool] = TTLCache(MAX_REMEMBERED, REMEMBER_SECONDS)

    def follow(self, allow: Sequence[str], proxy: Proxy | None) -> None:
        """Judges by these rules from now on."""
        allowed = networks(allow)
        # Whether an address may be dialled; each verdict is remembered.
        self.permits: Callable[[str], bool]
        self.permits = lru_cache(MAX_REMEMBERED)(lambda ip: is_permitted(ip_address(ip), allowed))
        self.proxy = proxy
        self.proxy_addresses = {proxy.url.raw_host} if proxy else set()
        self._left_to_proxy.clear()

    async def check(self, host: str) -> None:
        """Refuses a name of no address that may be dialled. Raises OSError for an unknown name."""
        if self.proxy is not None:
            await self.check_behind_proxy(host)
        else:
            async with asyncio.timeout(FETCH_SECONDS):
                self._keep_permitted(host, await self._look_up(host))

    async def check_behind_proxy(self, host: str) -> None:
        """Refuses a name with an address that may not be dialled: the proxy picks, not we.

        A name that does not resolve here, or not soon, is left to the proxy.
        """
        if host in self._left_to_proxy:
            return
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                addresses = await self._find_addresses(host)
        except OSError:
            self._left_to_proxy[host] = True
            return
        if len(self._keep_permitted(host, addresses)) < len(addresses):
            raise address_refusal(host)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name that may be dialled; aiohttp asks for them."""
        addresses = await self._find_addresses(host)
        if self.proxy is not None and host == self.proxy.url.raw_host:
            self.proxy_addresses = {host, *addresses}
        else:
            addresses = self._keep_permitted(host, addresses)
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in addresses
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _keep_permitted(self, host: str, addresses: list[str]) -> list[str]:
        allowed = [address for address in addresses if self.permits(address)]
        if not allowed:
            raise address_refusal(host)
        return allowed

    async def _find_addresses(self, host: str) -> list[str]:
        """All addresses of a name: one look-up for all who wait for it, remembered for a while."""
        lookup = self._lookups.get(host)
        if lookup is None or (lookup.done() and (lookup.cancelled() or lookup.exception())):
            lookup = self._lookups[host] = asyncio.ensure_future(self._look_up(host))
            lookup.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(lookup)

    async def _look_up(self, host: str) -> list[str]:
        try:
            rows = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._lookup, host, 0, socket.AF_UNSPEC, socket.SOCK_STREAM
            )
        except UnicodeError:  # a part between two dots is empty or too long: no name has such
            rows = []
        if not rows:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        return [address[0] for *_, address in rows]


# A context, the stamps of its files, and the time to check these again.
LoadedContext = tuple[ssl.SSLContext, tuple[tuple[int, int], ...], float]


class Contexts:
    """The TLS contexts in use. Relative paths count from `folder`."""

    def __init__(
        self, folder: Path, ca_file: str | None, *, look_again_seconds: float = REMEMBER_SECONDS
    ) -> None:
        self.ca_file = ca_file
        self._folder = folder
        self._look_again_seconds = look_again_seconds
        self._entries: dict[TlsFiles, LoadedContext] = {}

    async def get(self, tls: TlsFiles) -> ssl.SSLContext:
        """The context for these files, which are read on a thread: reading takes a while."""
        entry = self._entries.get(tls)
        if entry is None or time.monotonic() >= entry[2]:
            entry = self._entries[tls] = await asyncio.to_thread(self._load_context, tls, entry)
        return entry[0]

    def _load_context(self, tls: TlsFiles, entry: LoadedContext | None) -> LoadedContext:
        files = (self.ca_file, tls.ca_file, tls.cert_file, tls.key_file)
        stamps = tuple(_stamp(self._folder / file) for file in files if file)
        # The same context while its files are the same: its connections can be used again.
        context = entry[0] if entry is not None and entry[1] == stamps else self._make_context(tls)
        return context, stamps, time.monotonic() + self._look_again_seconds

    def _make_context(self, tls: TlsFiles) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        general = _load_files(context, self._folder, TlsFiles(ca_file=self.ca_file))
        problem = f"network.{general}" if general else _load_files(context, self._folder, tls)
        if problem:
            hint = "An operator must give the path of a PEM file; it counts from config.toml."
            raise Fixable("connection_invalid", f"TLS can't be used: {problem}", hint)
        return context


def tls_problem(folder: Path, tls: TlsFiles) -> str | None:
    """The problem of these files, after the key of the file at fault; None: there is none."""
    return _load_files(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), folder, tls)


def _load_files(context: ssl.SSLContext, folder: Path, tls: TlsFiles) -> str | None:
    """Has the context use these files; returns their problem, if there is one."""
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
        content = "certificates" if key == "ca_file" else "a certificate with its key, unencrypted"
        return f"{key}: the file does not hold {content}, in PEM format"
    except OSError as error:
        return f"{key}: the file can't be read: {error.strerror}"
    return None


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0  # the error comes where the file is read
    return status.st_mtime_ns, status.st_size
