"""The one way out: every byte the gateway sends to somebody else's server leaves here.

Four promises. An address is judged at the moment it is dialled, not when its name was first looked
up. An exchange ends at its deadline and at its size, also when the answer is packed or drips. Only
what was asked for is sent: no proxy from the environment, no cookie, no redirect, nothing repeated
but a GET or HEAD whose idle connection had just been closed. And whatever goes wrong comes out as
one of our own errors, which says whether anything may have reached the other side.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urljoin

from msgspec import Struct
from msgspec.structs import replace

from gateway.addresses import Literals, Target, forbidden, locate, networks
from gateway.dialling import DNS_THREADS, Lookup, Pool, Rules
from gateway.errors import Broken, Fixable, Refused
from gateway.model import OWN_HEADERS
from gateway.no_answer import SLOW, Closed, NoAnswer, Unanswered, unanswered, undialled
from gateway.unpack import ENCODINGS, PLAIN, Bound, Room, collected, unpacked
from gateway.wire import Wire

__all__ = ["Answer", "Egress", "NoAnswer", "Request", "Stream"]

CHECK_SECONDS = 5.0
MAX_NAMES = 1024
USER_AGENT = "dynamic-mcp-gateway"

Pairs = tuple[tuple[str, str], ...]


class Request(Struct, frozen=True):
    """One request, exactly as it goes on the wire: the URL is already encoded."""

    method: str
    url: str
    headers: Pairs = ()
    body: bytes | None = None


class Answer(Struct, frozen=True):
    """What came back. Header names are in lower case, the body is unpacked."""

    status: int
    headers: Pairs
    body: bytes
    truncated: bool = False  # there was more than was asked for
    url: str = ""  # where it came from in the end

    def header(self, name: str) -> str | None:
        """The first header of this name, which is in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer whose body is still on its way. Header names are in lower case."""

    status: int
    headers: Pairs
    chunks: AsyncIterator[bytes]


class Egress:
    """The gateway's HTTP client. `lookup` is `socket.getaddrinfo`, `tls` a context of one's own."""

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        lookup: Lookup = socket.getaddrinfo,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = networks(allow)
        self._literals = Literals(self._allowed)
        self._lookup = lookup
        self._tls = tls
        self._threads: ThreadPoolExecutor | None = None
        self._pool: Pool | None = None
        self._retired: set[Pool] = set()

    async def __aenter__(self) -> Egress:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open for use, on the running event loop."""
        self._threads = ThreadPoolExecutor(DNS_THREADS, thread_name_prefix="dns")
        self._pool = Pool(self._rules())

    async def close(self) -> None:
        """Close every connection, at once."""
        pools = [*self._retired, *([self._pool] if self._pool else [])]
        self._pool = None
        await asyncio.gather(*(pool.close() for pool in pools))
        if self._threads:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def allow(self, rules: Sequence[str]) -> None:
        """Replace the allowed networks. Exchanges under way finish; no idle connection is kept."""
        self._allowed = networks(rules)
        self._literals = Literals(self._allowed)
        if self._pool:
            self._pool.retire()
            self._retired = {pool for pool in (*self._retired, self._pool) if not pool.unused}
            self._pool = Pool(self._rules())

    async def check(self, url: str) -> None:
        """Refuse a URL whose host resolves to no address that may be dialled."""
        origin = self._located(url).origin
        if origin.literal:
            return
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self._rules().addresses(origin.host, origin.port)
        except (OSError, TimeoutError) as error:
            raise undialled(socket.gaierror()) from error

    async def send(
        self,
        request: Request,
        *,
        deadline: float,
        max_bytes: int,
        room: Room | None = None,
        same_host_redirects: int = 0,
    ) -> Answer:
        """The answer, whole or up to `max_bytes`, within `deadline` seconds for everything."""
        time = _Time(deadline)
        bound = Bound(max_bytes, time.until, room)
        for _ in range(same_host_redirects):
            answer = await self._exchange(request, time, bound)
            onward = _redirected(request, answer)
            if onward is None:
                return answer
            request = onward
        return await self._exchange(request, time, bound)

    @asynccontextmanager
    async def open(self, request: Request, *, deadline: float) -> AsyncIterator[Stream]:
        """An answer to be read as it comes: `deadline` is for its head, its body has none."""
        target, time = self._located(request.url), _Time(deadline)
        head = _head(request, target)
        pool = self._current()
        wire = pool.idle(target.origin) or await _dialled(pool, target, time)
        try:
            headers = await _asked(wire, request, head, time)
            async with aclosing(_chunks(wire, headers)) as chunks:
                yield Stream(wire.status, headers, chunks)
        finally:
            pool.put_back(target.origin, wire)

    async def _exchange(self, request: Request, time: _Time, bound: Bound) -> Answer:
        target = self._located(request.url)
        head = _head(request, target)
        pool = self._current()
        wire = pool.idle(target.origin)
        if wire is not None:
            try:
                return await _answered(pool, wire, request, target, head, time, bound)
            except NoAnswer as error:
                # The server closed the idle connection just as we took it up again.
                crossed = isinstance(error.__cause__, Closed)
                if not crossed or request.method not in ("GET", "HEAD"):
                    raise
            pool = self._current()
        wire = await _dialled(pool, target, time)
        return await _answered(pool, wire, request, target, head, time, bound)

    def _current(self) -> Pool:
        if self._pool is None:
            raise _not_open()
        return self._pool

    def _located(self, url: str) -> Target:
        target = locate(url)
        if not self._literals.permits(target.origin):
            raise forbidden(target.origin.host)
        return target

    def _rules(self) -> Rules:
        if self._threads is None:
            raise _not_open()
        return Rules(self._allowed, self._lookup, self._threads, self._trusted)

    def _trusted(self) -> ssl.SSLContext:
        """Whom TLS trusts; reading the system's list takes its time, so on a thread and once."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


def _not_open() -> Broken:
    return Broken("internal", "The gateway is not open for calls.", "Try again in a moment.")


class _Time:
    """How long an exchange may take, whatever it goes through."""

    __slots__ = ("loop", "seconds", "until")

    def __init__(self, seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.seconds = seconds
        self.until = self.loop.time() + seconds

    def ends(self, wire: Wire) -> asyncio.TimerHandle:
        """A bare timer: it costs a seventh of `asyncio.timeout`."""
        return self.loop.call_at(self.until, wire.fail, TimeoutError())


async def _dialled(pool: Pool, target: Target, time: _Time) -> Wire:
    try:
        async with asyncio.timeout_at(time.until) as limit:
            return await pool.dial(target.origin)
    except OSError as error:
        if limit.expired():
            raise SLOW.error(sent=False, seconds=time.seconds) from error
        raise undialled(error) from error


async def _answered(
    pool: Pool,
    wire: Wire,
    request: Request,
    target: Target,
    head: bytes,
    time: _Time,
    bound: Bound,
) -> Answer:
    """The answer to a request on this connection, which is kept if it can be used again."""
    timer = time.ends(wire)
    try:
        wire.ask(head, request.body, bodiless=request.method == "HEAD")
        await wire.head()
        headers = _received(wire)
        body, truncated = await _body(wire, headers, bound)
        return Answer(wire.status, headers, body, truncated, request.url)
    except TimeoutError as error:
        raise SLOW.error(sent=True, seconds=time.seconds) from error
    except Unanswered as error:
        raise unanswered(error) from error
    finally:
        timer.cancel()
        pool.put_back(target.origin, wire)


async def _asked(wire: Wire, request: Request, head: bytes, time: _Time) -> Pairs:
    """The headers of an answer whose body is still on its way."""
    timer = time.ends(wire)
    try:
        wire.ask(head, request.body, bodiless=request.method == "HEAD")
        await wire.head()
        return _received(wire)
    except TimeoutError as error:
        raise SLOW.error(sent=True, seconds=time.seconds) from error
    except Unanswered as error:
        raise unanswered(error) from error
    finally:
        timer.cancel()


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_WITHOUT_BODY = frozenset(("GET", "HEAD", "OPTIONS"))


def _head(request: Request, target: Target) -> bytes:
    """The request's head: a caller's headers, but for those that are ours, each checked."""
    method = request.method
    if method not in _METHODS:
        raise Fixable("invalid_arguments", "The method is not one of HTTP's that can be sent.")
    lines = [
        f"{method} {target.path} HTTP/1.1\r\nHost: {target.origin.authority}\r\n"
        f"Accept-Encoding: {ENCODINGS}\r\n"
    ]
    agent = f"User-Agent: {USER_AGENT}\r\n"
    for name, value in request.headers:
        kind = _kind(name)
        # Printable ASCII is what may be sent; the expression only adds the tabulator.
        plain = value.isascii() and value.isprintable()
        if kind == "bad" or not (plain or _VALUE.fullmatch(value)):
            raise Fixable(
                "invalid_arguments",
                f"The header {name[:64]!r} holds a character that can't be sent.",
                "Header values are plain ASCII text on one line.",
            )
        if kind != "own":
            lines.append(f"{name}: {value}\r\n")
        if kind == "agent":
            agent = ""
    if request.body is not None or method not in _WITHOUT_BODY:
        agent += f"Content-Length: {len(request.body or b'')}\r\n"
    lines.append(agent)
    lines.append("\r\n")
    return "".join(lines).encode("ascii")


@lru_cache(maxsize=MAX_NAMES)
def _kind(name: str) -> str:
    """What is done with a header of this name."""
    if not _NAME.fullmatch(name):
        return "bad"
    if name.lower() in OWN_HEADERS:
        return "own"
    return "agent" if name.lower() == "user-agent" else "sent"


def _received(wire: Wire) -> Pairs:
    pairs = [(_lowered(n), v.rstrip(b" \t").decode("utf-8", "replace")) for n, v in wire.headers]
    return tuple(pairs)


@lru_cache(maxsize=MAX_NAMES)
def _lowered(name: bytes) -> str:
    return name.decode("latin-1").lower()


async def _body(wire: Wire, headers: Pairs, bound: Bound) -> tuple[bytes, bool]:
    """The body up to a bound, and whether there was more."""
    encoding = _encoding(headers)
    if encoding in PLAIN:
        return await collected(wire.chunk, bound)
    async with aclosing(unpacked(encoding, _arriving(wire))) as pieces:
        return await collected(lambda: anext(pieces, b""), bound)


async def _chunks(wire: Wire, headers: Pairs) -> AsyncGenerator[bytes, None]:
    """The body as it comes, unpacked."""
    try:
        async with aclosing(unpacked(_encoding(headers), _arriving(wire))) as chunks:
            async for chunk in chunks:
                yield chunk
    except Unanswered as error:
        raise unanswered(error) from error


async def _arriving(wire: Wire) -> AsyncIterator[bytes]:
    while chunk := await wire.chunk():
        yield chunk


def _encoding(headers: Pairs) -> str:
    for name, value in headers:
        if name == "content-encoding":
            return value.strip().lower()
    return ""


_REDIRECTS = frozenset((301, 302, 303, 307, 308))


def _redirected(request: Request, answer: Answer) -> Request | None:
    """The request that a redirect on the same host asks for, or None if it is no redirect."""
    place = answer.header("location")
    if answer.status not in _REDIRECTS or not place or request.method not in ("GET", "HEAD"):
        return None
    there = locate(urljoin(request.url, place))
    here, new = locate(request.url).origin, there.origin
    upgraded = (here.scheme, here.port, new.scheme, new.port) == _UPGRADE
    same_port = (here.scheme, here.port) == (new.scheme, new.port)
    if here.host != new.host or not (upgraded or same_port):
        raise Refused(
            "access_denied",
            f"{here.host} redirects to another host, which is not followed.",
            "Give the address where the document really is.",
        )
    return replace(request, url=there.url)


_UPGRADE = ("http", 80, "https", 443)
