"""Which addresses may be dialled, and what a URL names.

Only public addresses may, unless a network is allowed by name. Judging is done on numbers, never on
spellings: every way of writing an address (`0x7f.1`, `2130706433`, `[::ffff:127.0.0.1]`, full-width
digits) is first brought to its number, and an IPv4 address carried inside an IPv6 one (mapped,
6to4, NAT64) is judged as itself.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

import msgspec
from yarl import URL

from gateway.errors import Fixable, Refused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_JUDGED = 1024
# Own lists, since what `ipaddress` calls global differs between Python's patch releases.
_SPECIAL_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        """0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
        192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24
        224.0.0.0/4 240.0.0.0/4""".split(),
    )
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def networks(rules: Sequence[str]) -> tuple[Network, ...]:
    """The rules of `network.allow` as networks; ValueError names the one that is none."""
    return tuple(ipaddress.ip_network(rule.strip(), strict=False) for rule in rules)


def permitted(address: Address, allowed: Sequence[Network]) -> bool:
    """Whether this address may be dialled: it is public, or inside an allowed network."""
    address = _plain(address)
    if any(address.version == n.version and address in n for n in allowed):
        return True
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _SPECIAL_V4)
    return address in _PUBLIC_V6 and not any(address in network for network in _SPECIAL_V6)


class Allowance:
    """Which addresses may be dialled under these rules: each is judged once."""

    def __init__(self, rules: Sequence[str]) -> None:
        self._allowed = networks(rules)
        self._judged: dict[str, bool] = {}

    def permits(self, address: str) -> bool:
        """Whether this address, spelled as the system's look-up spells it, may be dialled."""
        judged = self._judged.get(address)
        if judged is None:
            if len(self._judged) >= MAX_JUDGED:
                self._judged.clear()
            judged = permitted(ipaddress.ip_address(address), self._allowed)
            self._judged[address] = judged
        return judged


def _plain(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one where there is one, without a zone in any case."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    embedded = address.ipv4_mapped or address.sixtofour
    if embedded is None and int(address) >> 32 == int(_NAT64.network_address) >> 32:
        embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return embedded or ipaddress.IPv6Address(int(address))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a URL leads."""

    scheme: str
    host: str
    port: int
    literal: bool  # the host is an address, not a name
    authority: str  # host and port as a URL and the Host header say them


class Target(msgspec.Struct, frozen=True):
    """What a URL names: where, and what is asked for there, as it goes on the wire."""

    origin: Origin
    path: str
    query: str = ""

    @property
    def url(self) -> URL:
        """The same for aiohttp, which takes it as it is."""
        return URL.build(
            scheme=self.origin.scheme,
            authority=self.origin.authority,
            path=self.path,
            query_string=self.query,
            encoded=True,
        )


# No control character anywhere, and no backslash where browsers would take it for a slash.
_SHAPE = re.compile(
    r"(https?)://([^/?#\\\x00-\x1f\x7f]*)((?:/[^?#\x00-\x1f\x7f]*)?)"
    r"(?:\?([^#\x00-\x1f\x7f]*))?(?:#[^\x00-\x1f\x7f]*)?",
    re.IGNORECASE,
)
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))


def locate(url: str) -> Target:
    """Read a URL the one way it will be dialled, or refuse it."""
    found = _SHAPE.fullmatch(url)
    if not found:
        raise Fixable("connection_invalid", "Not an http or https URL.", _URL_HINT)
    scheme, authority, path, query = found.groups()
    return Target(_origin(scheme, authority), _visible(path or "/"), _visible(query or ""))


def _visible(text: str) -> str:
    return text if text.isascii() and " " not in text else quote(text, safe=_VISIBLE)


_PORTS = {"http": 80, "https": 443}
_URL_HINT = "Give a URL such as https://api.example.com/v1, without a user name or password."
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]{0,252})")


@lru_cache(maxsize=1024)
def _origin(scheme: str, authority: str) -> Origin:
    scheme = scheme.lower()
    if "@" in authority:
        raise Fixable("connection_invalid", "A URL may not hold a user name.", _URL_HINT)
    found = re.fullmatch(r"(\[[^\[\]]*\]|[^:]*)(?::(\d{0,5}))?", authority, re.ASCII)
    port = int((found and found[2]) or _PORTS[scheme])
    if not found or not 1 <= port <= 65535:
        raise Fixable("connection_invalid", "The URL's host or port can't be read.", _URL_HINT)
    host = found[1]
    literal = _ipv6(host[1:-1]) if host.startswith("[") else _ipv4(host := _name(host))
    host = str(literal) if literal else host
    shown = f"[{host}]" if ":" in host else host
    shown = shown if port == _PORTS[scheme] else f"{shown}:{port}"
    return Origin(scheme, host, port, literal is not None, shown)


def _ipv6(text: str) -> Address:
    if "%" in text:
        raise forbidden(f"[{text}]")  # a zone is only ever link-local
    try:
        return ipaddress.IPv6Address(text)
    except ValueError as error:
        raise Fixable("connection_invalid", "The URL's host can't be read.", _URL_HINT) from error


def _name(host: str) -> str:
    """The host as it is looked up: lower case, and international names in their ASCII form."""
    try:
        name = host if host.isascii() else URL.build(scheme="http", host=host).raw_host or ""
    except ValueError:
        name = ""
    if not _HOST.fullmatch(name.lower()):
        raise Fixable("connection_invalid", "The URL's host can't be read.", _URL_HINT)
    return name.lower()


def _ipv4(host: str) -> Address | None:
    """The address, in any of the spellings that a system's own look-up takes for one."""
    if host[-1] not in "0123456789abcdefx." or not host[0].isdigit():
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host.rstrip(".")))
    except (OSError, ValueError):
        return None


def forbidden(host: str) -> Refused:
    """The refusal for a host whose address may not be dialled. It never tells the address."""
    return Refused(
        "access_denied",
        f"The address of {host} is not allowed; add it to network.allow",
        "Private, loopback and link-local addresses are refused unless an operator lists them.",
    )
