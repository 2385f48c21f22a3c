"""Headers, both ways: a caller's as they may be sent, a server's as we read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gateway.errors import Fixable
from gateway.model import OWN_HEADERS

ENCODINGS = "gzip, deflate"  # what `bodies` unpacks
OWN_ENCODINGS = ("Accept-Encoding", ENCODINGS)
OWN_AGENT = ("User-Agent", "dynamic-mcp-gateway")
MAX_NAMES = 1024  # that are remembered

Pairs = tuple[tuple[str, str], ...]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


def sent_headers(pairs: Iterable[tuple[str, str]]) -> tuple[list[tuple[str, str]], set[str]]:
    """A caller's headers but for those that are ours, each checked; and their names, lowered."""
    headers, named = [OWN_ENCODINGS], set()
    for name, value in pairs:
        lowered = _sendable(name)
        # Printable ASCII is what may be sent; the expression only adds the tabulator.
        plain = value.isascii() and value.isprintable()
        if lowered is None or not (plain or _VALUE.fullmatch(value)):
            raise Fixable(
                "invalid_arguments",
                f"The header {name[:64]!r} holds a character that can't be sent.",
                "Header values are plain ASCII text on one line.",
            )
        if lowered not in OWN_HEADERS:
            headers.append((name, value))
            named.add(lowered)
    if "user-agent" not in named:
        headers.append(OWN_AGENT)
    return headers, named


@lru_cache(maxsize=MAX_NAMES)
def _sendable(name: str) -> str | None:
    """The name in lower case; None for what is no header's name."""
    return name.lower() if _NAME.fullmatch(name) else None


def received_headers(raw: Sequence[tuple[bytes, bytes]]) -> Pairs:
    """A server's headers, their names in lower case."""
    return tuple([(_lowered(n), v.strip(b" \t").decode("utf-8", "replace")) for n, v in raw])


@lru_cache(maxsize=MAX_NAMES)
def _lowered(name: bytes) -> str:
    return name.decode("latin-1").lower()


def encoding_of(headers: Pairs) -> str:
    """How a body with these headers is packed; "" where it is not."""
    for name, value in headers:
        if name == "content-encoding":
            return value.strip().lower()
    return ""
