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
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import quote

from yarl import URL

from gateway.errors import Fixable, Refused
from gateway.limits import MAX_REMEMBERED

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(rules: Sequence[str]) -> tuple[Network, ...]:
    """The rules of `network.allow` as networks; ValueError names the one that is none."""
    return tuple(ipaddress.ip_network(rule.strip(), strict=False) for rule in rules)


# Own lists, since what `ipaddress` calls global differs between Python's patch releases.
_SPECIAL = networks(
    """0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
    192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24
    224.0.0.0/4 240.0.0.0/4 2001::/23 2001:db8::/32 2002::/16 3fff::/20""".split()
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def permitted(address: Address, allowed: Sequence[Network]) -> bool:
    """Whether this address may be dialled: it is public, or inside an allowed network."""
    address = _plain(address)
    if any(address in network for network in allowed):
        return True
    public = address.version == 4 or address in _PUBLIC_V6
    return public and not any(address in network for network in _SPECIAL)


def permits_by(rules: Sequence[str]) -> Callable[[str], bool]:
    """Whether an address may be dialled under these rules; each answer is remembered."""
    allowed = networks(rules)
    return lru_cache(MAX_REMEMBERED)(lambda address: permitted(ip_address(address), allowed))


def _plain(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one where there is one, without a zone in any case."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    embedded = address.ipv4_mapped or address.sixtofour
    if embedded is None and int(address) >> 32 == int(_NAT64.network_address) >> 32:
        embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return embedded or ipaddress.IPv6Address(int(address))


# No control character anywhere, and no backslash where browsers would take it for a slash.
_SHAPE = re.compile(
    r"(https?)://([^/?#\\\x00-\x1f\x7f]*)((?:/[^?#\x00-\x1f\x7f]*)?)"
    r"(?:\?([^#\x00-\x1f\x7f]*))?(?:#[^\x00-\x1f\x7f]*)?",
    re.IGNORECASE,
)
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))


def locate(url: str) -> URL:
    """Read a URL the one way it will be dialled, spelled as it goes on the wire; or refuse it."""
    found = _SHAPE.fullmatch(url)
    if not found:
        raise Fixable("connection_invalid", "Not an http or https URL.", _URL_HINT)
    scheme, authority, path, query = found.groups()
    return URL.build(
        scheme=scheme.lower(),
        authority=_authority(scheme.lower(), authority),
        path=_visible(path or "/"),
        query_string=_visible(query or ""),
        encoded=True,
    )


def _visible(text: str) -> str:
    return text if text.isascii() and " " not in text else quote(text, safe=_VISIBLE)


_PORTS = {"http": 80, "https": 443}
_URL_HINT = "Give a URL such as https://api.example.com/v1, without a user name or password."
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]{0,252})")


@lru_cache(MAX_REMEMBERED)
def _authority(scheme: str, authority: str) -> str:
    """Host and port as a URL and the Host header say them."""
    if "@" in authority:
        raise Fixable("connection_invalid", "A URL may not hold a user name.", _URL_HINT)
    found = re.fullmatch(r"(\[[^\[\]]*\]|[^:]*)(?::(\d{0,5}))?", authority, re.ASCII)
    port = int((found and found[2]) or _PORTS[scheme])
    if not found or not 1 <= port <= 65535:
        raise Fixable("connection_invalid", "The URL's host or port can't be read.", _URL_HINT)
    host = found[1]
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


def _ipv4(host: str) -> str:
    """The host, or its address in any of the spellings that a system's look-up takes for one."""
    if host[-1] not in "0123456789abcdefx." or not host[0].isdigit():
        return host
    try:
        return socket.inet_ntoa(socket.inet_aton(host.rstrip(".")))
    except OSError:
        return host


def forbidden(host: str) -> Refused:
    """The refusal for a host whose address may not be dialled. It never tells the address."""
    return Refused(
        "access_denied",
        f"The address of {host} is not allowed; add it to network.allow",
        "Private, loopback and link-local addresses are refused unless an operator lists them.",
    )
