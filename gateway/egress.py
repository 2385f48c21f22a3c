"""The one way out: every byte the gateway sends to somebody else's server leaves here.

Four promises. An address is judged at the moment it is dialled, not when its name was first looked
up. An exchange ends at its deadline and at its size, also when the answer is packed or drips. Only
what was asked for is sent: no proxy from the environment, no cookie, no redirect, nothing repeated
but a GET or HEAD whose idle connection had just been closed. And whatever goes wrong comes out as
one of our own errors, which says whether anything may have reached the other side.
"""

from __future__ import annotations

import asyncio
import io
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from urllib.parse import urljoin

import aiohttp

from gateway.addresses import Target, forbidden, locate, networks, permitted
from gateway.dialling import DNS_THREADS, Lookup, Resolver, judged_connector
from gateway.errors import Broken, Fixable, Refused
from gateway.no_answer import CLOSED, FOREIGN, NAME_UNKNOWN, SLOW, NoAnswer, translated
from gateway.unpack import ENCODINGS, unpacked

__all__ = ["Answer", "Egress", "NoAnswer", "Request", "Stream"]

CHECK_SECONDS = 5.0
MAX_HEADER_BYTES = 32_768
LARGE_BODY_BYTES = 262_144
USER_AGENT = "dynamic-mcp-gateway"

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One request, exactly as it goes on the wire: the URL is already encoded."""

    method: str
    url: str
    headers: Pairs = ()
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Header names are in lower case, the body is unpacked."""

    status: int
    headers: Pairs
    body: bytes
    truncated: bool = False  # there was more than was asked for
    url: str = ""  # where it came from in the end

    def header(self, name: str) -> str | None:
        """The first header of this name, which is in lower case."""
        return next((value for key, value in self.headers if key == name), None)


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
        self._lookup = lookup
        self._tls: ssl.SSLContext | bool = tls or True
        self._threads: ThreadPoolExecutor | None = None
        self._pool: _Pool | None = None
        self._retired: set[_Pool] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Egress:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open for use, on the running event loop."""
        self._threads = ThreadPoolExecutor(DNS_THREADS, thread_name_prefix="dns")
        self._pool = self._new_pool()

    async def close(self) -> None:
        """Close every connection, at once."""
        pools = {self._pool, *self._retired} - {None}
        self._pool = None
        await asyncio.gather(*(pool.session.close() for pool in pools if pool), *self._closing)
        if self._threads:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def allow(self, rules: Sequence[str]) -> None:
        """Replace the allowed networks. Exchanges under way finish; no idle connection is kept."""
        self._allowed = networks(rules)
        if self._pool:
            old, self._pool = self._pool, self._new_pool()
            self._retired.add(old)
            self._close_if_done(old)

    async def check(self, url: str) -> None:
        """Refuse a URL whose host resolves to no address that may be dialled."""
        target = self._located(url)
        if target.literal:
            return
        if self._threads is None:
            raise _not_open()
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await Resolver(self._allowed, self._lookup, self._threads).resolve(
                    target.host, target.port, socket.AF_UNSPEC
                )
        except (OSError, TimeoutError) as error:
            raise NAME_UNKNOWN.error(sent=False) from error

    async def send(
        self, request: Request, *, deadline: float, max_bytes: int, same_host_redirects: int = 0
    ) -> Answer:
        """The answer, whole or up to `max_bytes`, within `deadline` seconds for everything."""
        progress = _Progress()
        try:
            async with asyncio.timeout(deadline):
                for _ in range(same_host_redirects):
                    answer = await self._exchange(request, progress, max_bytes)
                    onward = _redirected(request, answer)
                    if onward is None:
                        return answer
                    request = onward
                return await self._exchange(request, progress, max_bytes)
        except TimeoutError as error:
            raise SLOW.error(sent=progress.sent, seconds=deadline) from error

    @asynccontextmanager
    async def open(self, request: Request, *, deadline: float) -> AsyncIterator[Stream]:
        """An answer to be read as it comes: `deadline` is for its head, its body has none."""
        progress = _Progress()
        async with self._response(request, progress, deadline) as response:
            headers = _received(response)
            async with aclosing(_chunks(response, headers)) as chunks:
                yield Stream(response.status, headers, chunks)

    async def _exchange(self, request: Request, progress: _Progress, max_bytes: int) -> Answer:
        try:
            return await self._attempt(request, progress, max_bytes)
        except NoAnswer as error:
            # The server closed the idle connection just as we took it up again.
            crossed = progress.reused and isinstance(error.__cause__, CLOSED)
            if not crossed or progress.received or request.method not in ("GET", "HEAD"):
                raise
        return await self._attempt(request, progress, max_bytes)

    async def _attempt(self, request: Request, progress: _Progress, max_bytes: int) -> Answer:
        async with self._response(request, progress, None) as response:
            progress.received = True
            headers = _received(response)
            body, truncated = await _body(response, headers, max_bytes)
            return Answer(response.status, headers, body, truncated, request.url)

    @asynccontextmanager
    async def _response(
        self, request: Request, progress: _Progress, deadline: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The head of an answer. Leaving closes the connection unless the body was read out."""
        target, headers = self._located(request.url), _sendable(request)
        pool = self._pool
        if pool is None:
            raise _not_open()
        pool.users += 1
        try:
            response = await _sent(pool.session, request, target, headers, progress, deadline)
            try:
                yield response
            finally:
                response.close()
        finally:
            pool.users -= 1
            self._close_if_done(pool)

    def _located(self, url: str) -> Target:
        target = locate(url)
        if target.literal and not permitted(target.literal, self._allowed):
            raise forbidden(target.host)
        return target

    def _new_pool(self) -> _Pool:
        assert self._threads is not None
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_note_sent)
        trace.on_connection_reuseconn.append(_note_reused)
        session = aiohttp.ClientSession(
            connector=judged_connector(self._allowed, self._lookup, self._threads, self._tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("Content-Type", "User-Agent", "Accept", "Accept-Encoding"),
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            trace_configs=[trace],
        )
        # aiohttp would repeat PUT and DELETE too when a connection breaks; we must not.
        session._retry_connection = False
        return _Pool(session)

    def _close_if_done(self, pool: _Pool) -> None:
        if pool in self._retired and pool.users == 0:
            self._retired.discard(pool)
            task = asyncio.get_running_loop().create_task(pool.session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _not_open() -> Broken:
    return Broken("internal", "The gateway is not open for calls.", "Try again in a moment.")


@dataclass(slots=True, eq=False)
class _Pool:
    """One set of connections, all dialled under the same rules."""

    session: aiohttp.ClientSession
    users: int = 0


@dataclass(slots=True)
class _Progress:
    """How far an exchange has come."""

    sent: bool = False
    reused: bool = False
    received: bool = False


async def _note_sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    context.trace_request_ctx.sent = True


async def _note_reused(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    context.trace_request_ctx.reused = True


async def _sent(
    session: aiohttp.ClientSession,
    request: Request,
    target: Target,
    headers: list[tuple[str, str]],
    progress: _Progress,
    deadline: float | None,
) -> aiohttp.ClientResponse:
    body = request.body
    large = body is not None and len(body) > LARGE_BODY_BYTES
    try:
        async with asyncio.timeout(deadline):
            return await session.request(
                request.method,
                target.url,
                headers=headers,
                data=io.BytesIO(body) if body and large else body,  # large ones go out in pieces
                allow_redirects=False,
                trace_request_ctx=progress,
            )
    except Refused:
        raise forbidden(target.host) from None
    except FOREIGN as error:
        raise translated(error, sent=progress.sent) from error


# Ours to say: what belongs to the connection, and how answers are packed.
_OWN_HEADERS = frozenset(
    {"host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"content-length", "expect", "accept-encoding"}
    | {"proxy-connection", "proxy-authenticate", "proxy-authorization"}
)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def _sendable(request: Request) -> list[tuple[str, str]]:
    """The headers to send: a caller's, but for those that are ours, each checked for injection."""
    if request.method not in _METHODS:
        raise Fixable("invalid_arguments", "The method is not one of HTTP's that can be sent.")
    sendable = [("Accept-Encoding", ENCODINGS)]
    for name, value in request.headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Fixable(
                "invalid_arguments",
                f"The header {name[:64]!r} holds a character that can't be sent.",
                "Header values are plain ASCII text on one line.",
            )
        if name.lower() not in _OWN_HEADERS:
            sendable.append((name, value))
    if not any(name.lower() == "user-agent" for name, _ in request.headers):
        sendable.append(("User-Agent", USER_AGENT))
    return sendable


def _received(response: aiohttp.ClientResponse) -> Pairs:
    return tuple(
        (name.lower(), value.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        for name, value in response.headers.items()
    )


async def _body(
    response: aiohttp.ClientResponse, headers: Pairs, max_bytes: int
) -> tuple[bytes, bool]:
    """The body up to a bound, and whether there was more."""
    body = bytearray()
    async with aclosing(_chunks(response, headers)) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > max_bytes:
                return bytes(body[:max_bytes]), True
    return bytes(body), False


async def _chunks(response: aiohttp.ClientResponse, headers: Pairs) -> AsyncGenerator[bytes, None]:
    """The body as it comes, unpacked."""
    encoding = next((value for name, value in headers if name == "content-encoding"), "")
    try:
        async with aclosing(unpacked(encoding, response.content.iter_any())) as chunks:
            async for chunk in chunks:
                yield chunk
    except FOREIGN as error:
        raise translated(error, sent=True) from error


_REDIRECTS = frozenset((301, 302, 303, 307, 308))


def _redirected(request: Request, answer: Answer) -> Request | None:
    """The request that a redirect on the same host asks for, or None if it is no redirect."""
    place = answer.header("location")
    if answer.status not in _REDIRECTS or not place or request.method not in ("GET", "HEAD"):
        return None
    here, there = locate(request.url), locate(urljoin(request.url, place))
    upgraded = (here.url.scheme, here.port, there.url.scheme, there.port) == _UPGRADE
    same_port = (here.url.scheme, here.port) == (there.url.scheme, there.port)
    if here.host != there.host or not (upgraded or same_port):
        raise Refused(
            "access_denied",
            f"{here.host} redirects to another host, which is not followed.",
            "Give the address where the document really is.",
        )
    return replace(request, url=str(there.url))


_UPGRADE = ("http", 80, "https", 443)
