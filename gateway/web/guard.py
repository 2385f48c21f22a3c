"""What every HTTP request has to pass before anything reads its meaning.

Host and Origin are checked on every path: a web page that rebinds its own name to our address, or
simply posts to us, is refused before a token is looked at. Bodies have a size and a deadline,
because the server underneath has neither. A refusal here is an HTTP matter; each edge words it in
its own shape (JSON-RPC for MCP, `{"error": …}` for REST).

A bound on what went wrong: so many a minute from one source, and so many from all together.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlsplit

from cachetools import LRUCache
from starlette.types import Message, Receive, Send
from starlette.types import Scope as HttpScope

Fields = Mapping[bytes, bytes]
HeaderLines = Iterable[tuple[bytes, bytes]]

MAX_BODY_BYTES = 4 * 1024 * 1024
SMALL_BODY_BYTES = 64 * 1024
MAX_BODIES_BYTES = 64 * 1024 * 1024  # of those that are not small, while they are on their way
REQUEST_SECONDS = 30.0
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
JSON_TYPE = b"application/json"

# Two copies of one of these would be read differently by different readers.
_SINGLE = frozenset(
    (b"host", b"origin", b"authorization", b"content-type", b"content-length", b"mcp-session-id")
)


class Refusal(Exception):
    """An HTTP request that is answered without being understood: status, words, extra headers."""

    def __init__(
        self, status: int, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


@dataclass(frozen=True, slots=True)
class HostRules:
    """Which Host and Origin values are ours, beyond the loopback names with our own port."""

    hosts: frozenset[bytes]
    origins: frozenset[bytes]


def host_rules(
    public_url: str, allowed_hosts: Iterable[str] = (), allowed_origins: Iterable[str] = ()
) -> HostRules:
    """The rules for a server that the world knows by `public_url`."""
    url = urlsplit(public_url)
    hosts = {host.lower().encode() for host in allowed_hosts}
    origins = {origin.lower().rstrip("/").encode() for origin in allowed_origins}
    default_port = {"http": 80, "https": 443}.get(url.scheme)
    name = (url.hostname or "").lower()
    name = f"[{name}]" if ":" in name else name
    port = url.port or default_port
    hosts.add(f"{name}:{port}".encode())
    origins.add(f"{url.scheme}://{name}:{port}".encode())
    if port == default_port:
        hosts.add(name.encode())
        origins.add(f"{url.scheme}://{name}".encode())
    return HostRules(frozenset(hosts), frozenset(origins))


def fold(lines: HeaderLines) -> dict[bytes, bytes]:
    """Header lines as a mapping; a copy too many of a header that must be single is refused.

    Blanks around a value are no part of it, and the parser underneath leaves those after it.
    """
    lines = lines if isinstance(lines, list) else list(lines)
    fields = {name: value.strip() for name, value in lines}
    if len(fields) == len(lines):
        return fields
    seen: dict[bytes, bytes] = {}
    for name, value in lines:
        if name in seen and name in _SINGLE:
            raise Refusal(400, f"{name.decode('latin-1')} header appears more than once")
        seen[name] = seen[name] + b", " + value.strip() if name in seen else value.strip()
    return seen


def check_host(rules: HostRules, scope: HttpScope, fields: Fields) -> None:
    """Refuse a Host or Origin that is not ours."""
    server = scope.get("server")
    port = server[1] if server else None
    host = fields.get(b"host", b"").lower()
    if host not in rules.hosts and host not in _loopback(port) and not _any_port(host, rules.hosts):
        raise Refusal(421, "Invalid Host header")
    origin = fields.get(b"origin")
    if origin is None:
        return
    origin = origin.lower()
    if (
        origin not in rules.origins
        and origin not in _loopback_origins(port)
        and not _any_port(origin, rules.origins)
    ):
        raise Refusal(403, "Invalid Origin header")


@lru_cache(maxsize=64)
def _loopback(port: int | None) -> frozenset[bytes]:
    names = {f"{name}:{port}" for name in LOOPBACK_NAMES}
    if port == 80:
        names.update(LOOPBACK_NAMES)
    return frozenset(name.encode() for name in names)


@lru_cache(maxsize=64)
def _loopback_origins(port: int | None) -> frozenset[bytes]:
    return frozenset(b"http://" + host for host in _loopback(port))


def _any_port(value: bytes, allowed: frozenset[bytes]) -> bool:
    """Whether an entry `name:*` covers the value."""
    name, _, port = value.rpartition(b":")
    return port.isdigit() and name + b":*" in allowed


@lru_cache(maxsize=256)
def accepted_types(accept: bytes) -> tuple[bool, bool]:
    """Whether an Accept header takes JSON, and whether it takes an event stream."""
    types = {part.split(b";")[0].strip().lower() for part in accept.split(b",")}
    anything = b"*/*" in types
    return (
        anything or not types.isdisjoint((JSON_TYPE, b"application/*")),
        anything or not types.isdisjoint((b"text/event-stream", b"text/*")),
    )


@lru_cache(maxsize=256)
def is_json(content_type: bytes) -> bool:
    """Whether a Content-Type header says JSON."""
    return content_type.split(b";")[0].strip().lower() == JSON_TYPE


def require_json(fields: Fields) -> None:
    """Refuse a body that does not say it is JSON."""
    if not is_json(fields.get(b"content-type", b"")):
        raise Refusal(415, "Unsupported Media Type: Content-Type must be application/json")


class BodyRoom:
    """What all bodies that are on their way to this process may take together.

    Without it, a crowd that sends most of a large body each, and no more, holds it all.
    """

    def __init__(self, bytes: int = MAX_BODIES_BYTES) -> None:
        self._left = bytes

    def take(self, size: int) -> None:
        """Counts so much more, or refuses it."""
        if size > self._left:
            again = (b"retry-after", b"1")
            raise Refusal(503, "Too many large requests are on their way", (*_CLOSE, again))
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


_room = BodyRoom()


async def read_body(
    fields: Fields,
    receive: Receive,
    limit: int = MAX_BODY_BYTES,
    seconds: float = REQUEST_SECONDS,
    room: BodyRoom = _room,
) -> bytes:
    """The whole body, within its limit and its time. A client that left raises ConnectionError."""
    declared = fields.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    if (take := _shorter(receive, "take_body")) and (body := take()) is not None:
        if len(body) > limit:
            raise _too_large(limit)
        return cast(bytes, body)
    task = asyncio.current_task()
    assert task is not None
    expired: list[bool] = []

    def expire() -> None:
        expired.append(True)
        task.cancel()

    # A bare timer costs a seventh of `asyncio.timeout`, and this runs for every request.
    timer = asyncio.get_running_loop().call_later(seconds, expire)
    try:
        return await _read(receive, limit, room)
    except asyncio.CancelledError:
        if not expired or task.uncancel() > 0:
            raise
        raise Refusal(408, "The request was not complete in time", _CLOSE) from None
    finally:
        timer.cancel()


async def _read(receive: Receive, limit: int, room: BodyRoom) -> bytes:
    chunks: list[bytes] = []  # joined once: adding to what is there would copy it every time
    size = held = 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client left before its request was complete")
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            if not message.get("more_body", False):
                return b"".join((*chunks, chunk)) if chunks else chunk
            if size > SMALL_BODY_BYTES:
                room.take(size - held)
                held = size
            chunks.append(chunk)
    finally:
        room.give_back(held)


_CLOSE = ((b"connection", b"close"),)
_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"*, authorization"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED = b"mcp-session-id, www-authenticate, retry-after"


def is_preflight(scope: HttpScope, fields: Fields) -> bool:
    """Whether a browser asks what a page of another origin may do."""
    return scope["method"] == "OPTIONS" and b"access-control-request-method" in fields


def for_browser(send: Send, origin: bytes) -> Send:
    """A `send` that lets a page of this origin read the answer. Check the origin first."""
    lines = [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"origin"),
    ]

    async def send_readable(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *lines]}
        await send(message)

    return send_readable


async def answer_preflight(send: Send) -> None:
    """Say what is allowed; the request itself is checked when it comes."""
    await respond(send, 204, headers=_PREFLIGHT)


def _too_large(limit: int) -> Refusal:
    # The rest of the body is still on its way: the connection can't be used again.
    return Refusal(413, f"Request body too large: at most {limit} bytes", _CLOSE)


async def respond(
    send: Send,
    status: int,
    body: bytes = b"",
    headers: HeaderLines = (),
    content_type: bytes = JSON_TYPE,
) -> None:
    """Send one whole answer."""
    lines = [(b"content-length", b"%d" % len(body)), *headers]
    if body:
        lines.append((b"content-type", content_type))
    if (answer := _shorter(send, "answer")) and answer(status, lines, body):
        return
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


def _shorter(way: Receive | Send, name: str) -> Callable[..., Any] | None:
    """What our own server has beside ASGI's messages: see `at_once`."""
    found: Callable[..., Any] | None = getattr(getattr(way, "__self__", None), name, None)
    return found


WINDOW_SECONDS = 60.0
MAX_FROM_ONE = 8
MAX_OVERALL = 60
MAX_SOURCES = 4096


class Throttle:
    """Remembers failures for a minute, by where they came from: an address, a principal."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        from_one: int = MAX_FROM_ONE,
        overall: int = MAX_OVERALL,
    ) -> None:
        self._clock = clock
        self._from_one = from_one
        self._all: deque[float] = deque(maxlen=overall)
        self._by_source: LRUCache[str, deque[float]] = LRUCache(MAX_SOURCES)

    def wait(self, source: str) -> float:
        """Seconds until the next attempt is looked at; 0: now."""
        now = self._clock()
        failures = (self._all, self._by_source.get(source))
        return max(_wait(each, now) for each in failures if each is not None)

    def failed(self, source: str) -> None:
        """Counts a wrong attempt."""
        now = self._clock()
        self._all.append(now)
        mine = self._by_source.get(source)
        if mine is None:
            mine = self._by_source[source] = deque(maxlen=self._from_one)
        mine.append(now)


def _wait(failures: deque[float], now: float) -> float:
    if len(failures) < (failures.maxlen or 0):
        return 0.0
    return max(0.0, failures[0] + WINDOW_SECONDS - now)
