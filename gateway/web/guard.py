"""HTTP at the rim: what every request has to pass, and how answers and streams are written.

Host and Origin are checked on every path: a web page that rebinds its own name to our address, or
simply posts to us, is refused before a token is looked at. Bodies have a size and a deadline,
because the server underneath has neither, and JSON is read so strictly that the next reader can't
read something else in it. A refusal here is an HTTP matter; each edge words it in its own shape
(JSON-RPC for MCP, `{"error": …}` for REST).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import orjson
from cachetools import LRUCache
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as HttpScope

from gateway.limits import (
    ALL_FAILURES_A_MINUTE,
    FAILURES_A_MINUTE,
    MAX_BODY_BYTES,
    MAX_REMEMBERED,
    PING_SECONDS,
    REQUEST_SECONDS,
    SEND_SECONDS,
    STREAM_CHECK_SECONDS,
)

Fields = Mapping[bytes, bytes]
HeaderLines = Iterable[tuple[bytes, bytes]]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
JSON_TYPE = b"application/json"

# Two copies of one of these would be read differently by different readers.
_SINGLE = frozenset(
    (b"host", b"origin", b"authorization", b"content-type", b"content-length", b"mcp-session-id")
)


class RefusedRequest(Exception):
    """An HTTP request that is answered without being understood: status, words, extra headers."""

    def __init__(
        self, status: int, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


# --- Host and Origin ------------------------------------------------------------------------------


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


def check_host(rules: HostRules, scope: HttpScope, fields: Fields) -> None:
    """Refuses a Host or Origin that is not ours."""
    server = scope.get("server")
    port = server[1] if server else None
    if not _is_own_host(rules, port, fields.get(b"host", b"")):
        raise RefusedRequest(421, "Invalid Host header")
    origin = fields.get(b"origin")
    if origin is None:
        return
    scheme, _, host = origin.lower().partition(b"://")
    own_pages = _loopback_hosts(port) if scheme == b"http" else frozenset[bytes]()
    if host not in own_pages and not _is_allowed(origin.lower(), rules.origins):
        raise RefusedRequest(403, "Invalid Origin header")


@lru_cache(maxsize=64)
def _is_own_host(rules: HostRules, port: int | None, host: bytes) -> bool:
    return _is_allowed(host.lower(), rules.hosts, _loopback_hosts(port))


def _loopback_hosts(port: int | None) -> frozenset[bytes]:
    names = {f"{name}:{port}" for name in LOOPBACK_NAMES}
    if port == 80:
        names.update(LOOPBACK_NAMES)
    return frozenset(name.encode() for name in names)


def _is_allowed(value: bytes, *allowed: frozenset[bytes]) -> bool:
    """Whether the value is listed, or an entry `name:*` covers it."""
    name, _, port = value.rpartition(b":")
    any_port = name + b":*" if port.isdigit() else value
    return any(value in values or any_port in values for values in allowed)


# --- headers and bodies ---------------------------------------------------------------------------


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
            raise RefusedRequest(400, f"{name.decode('latin-1')} header appears more than once")
        seen[name] = seen[name] + b", " + value.strip() if name in seen else value.strip()
    return seen


def require_json(fields: Fields) -> None:
    """Refuses a body that does not say it is JSON."""
    content_type = fields.get(b"content-type", b"")
    if content_type != JSON_TYPE and content_type.split(b";")[0].strip().lower() != JSON_TYPE:
        raise RefusedRequest(415, "Unsupported Media Type: Content-Type must be application/json")


_CLOSE = ((b"connection", b"close"),)  # the rest of a body that was not read is still on its way


async def read_body(
    fields: Fields,
    receive: Receive,
    limit: int = MAX_BODY_BYTES,
    seconds: float = REQUEST_SECONDS,
) -> bytes:
    """The whole body, within its limit and its time. A client that left raises ConnectionError."""
    too_large = RefusedRequest(413, f"Request body too large: at most {limit} bytes", _CLOSE)
    declared = fields.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    chunks: list[bytes] = []  # joined once: adding to what is there would copy it every time
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError("the client left before its request was complete")
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > limit:
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise RefusedRequest(408, "The request was not complete in time", _CLOSE) from None


# --- JSON -----------------------------------------------------------------------------------------


class NotJson(ValueError):
    """Text that is not exactly one JSON value, or that two readers would read differently."""


def read_json(body: bytes) -> Any:
    """The value of a JSON text, stricter than any one parser. Raises NotJson.

    A key given twice is refused, because the next reader may take the other value; an integer
    beyond 64 bits stays exact. Both show when the fast parser's output is written again, and only
    the rare suspect is read a second time by the slow one.
    """
    try:
        value = orjson.loads(body)
        written = orjson.dumps(value)
        if written == body or _is_kept_whole(body, written):
            return value
        return json.loads(body, object_pairs_hook=_unique)
    except NotJson:
        raise
    except (ValueError, RecursionError, TypeError):
        raise NotJson("it is not JSON") from None


_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def _is_kept_whole(body: bytes, written: bytes) -> bool:
    # `:` occurs once for each key and within strings: written out again, only the colons of dropped
    # keys are missing. Escaped ones would upset the count.
    return (
        body.count(b":") == written.count(b":")
        and b"\\u003" not in body
        and _LONG_NUMBER.search(body) is None
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, part in pairs:
        if key in value:
            raise NotJson(f"the key {key[:64]!r} is given twice")
        value[key] = part
    return value


def write_json(value: object) -> bytes:
    """A value as JSON; the slow writer takes what the fast one refuses (long integers, half a
    surrogate pair in an upstream's text)."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), default=str).encode()


# --- answers --------------------------------------------------------------------------------------


async def respond(
    send: Send,
    status: int,
    body: bytes = b"",
    headers: HeaderLines = (),
    content_type: bytes = JSON_TYPE,
) -> None:
    """Sends one whole answer."""
    lines = [(b"content-length", b"%d" % len(body)), *headers]
    if body:
        lines.append((b"content-type", content_type))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


# --- server-sent events ---------------------------------------------------------------------------

PING = b": ping\n\n"
EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

Say = Callable[[bytes], Awaitable[None]]
Step = Callable[[Say], Awaitable[bool]]  # says what is new; False: there will be no more


def event_frame(data: bytes, kind: str = "message", id: str | int | None = None) -> bytes:
    """One server-sent event; without a kind one that has no name."""
    head = ("" if id is None else f"id: {id}\n") + (f"event: {kind}\n" if kind else "")
    lines = b"".join(b"data: %b\n" % line for line in data.splitlines() or (b"",))
    return b"%b%b\n" % (head.encode(), lines)


class EventStream(Response):
    """Server-sent events to one reader: a step, then sleep until woken, while both sides want.

    Nothing is queued here. A step looks at what there is and says what is new, at the reader's own
    pace; a reader that takes nothing for a while is let go, and comes back by itself. `leave` is
    called when the stream is over, whoever ended it.
    """

    def __init__(
        self,
        step: Step,
        woken: asyncio.Event,
        leave: Callable[[], None],
        rest: float = 0.0,  # between two steps: a burst of news is one step
    ) -> None:
        super().__init__()
        self._step = step
        self._woken = woken
        self._leave = leave
        self._rest = rest

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.create_task(self._write(send)), asyncio.create_task(_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        said = time.monotonic()

        async def say(body: bytes) -> None:
            nonlocal said
            if body:
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                said = time.monotonic()

        headers = [*EVENT_STREAM_HEADERS, (b"x-content-type-options", b"nosniff")]
        with suppress(TimeoutError, OSError):  # the reader takes nothing, or has gone
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await say(b"retry: 2000\n\n")
            while await self._step(say):
                if time.monotonic() - said > PING_SECONDS:
                    await say(PING)
                await asyncio.sleep(self._rest)
                await self._sleep()
            await send({"type": "http.response.body", "body": b""})

    async def _sleep(self) -> None:
        """Until there may be something new; at most so long, since a wake-up may be lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STREAM_CHECK_SECONDS):
                await self._woken.wait()
        self._woken.clear()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# --- failures -------------------------------------------------------------------------------------


class Throttle:
    """Bounds what went wrong within a minute: from one source (an address, a principal), and all.

    The first attempts are looked at; those beyond wait until the oldest is a minute ago.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: deque[float] = deque(maxlen=ALL_FAILURES_A_MINUTE)
        self._by_source: LRUCache[str, deque[float]] = LRUCache(MAX_REMEMBERED)

    def wait(self, source: str) -> float:
        """Seconds until the next attempt is looked at; 0: now."""
        return max(self._wait(self._all), self._wait(self._by_source.get(source, deque())))

    def _wait(self, failures: deque[float]) -> float:
        if len(failures) != failures.maxlen:
            return 0.0
        return max(0.0, failures[0] + 60.0 - self._clock())

    def failed(self, source: str) -> None:
        """Counts a wrong attempt."""
        now = self._clock()
        self._all.append(now)
        self._by_source.setdefault(source, deque(maxlen=FAILURES_A_MINUTE)).append(now)
