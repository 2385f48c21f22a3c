"""The one way out: every byte the gateway sends to somebody else's server leaves here.

Four promises. An address is judged at the moment it is dialled, not when its name was first looked
up. An exchange ends at its deadline and at its size, also when the answer is packed or drips. Only
what was asked for is sent: no proxy from the environment, no cookie, no redirect, nothing repeated
but a GET or HEAD whose idle connection had just been closed. And whatever goes wrong comes out as
one of our own errors, which says whether anything may have reached the other side.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import aiohttp
from aiohttp import ClientResponse
from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from gateway.errors import Broken, Fixable, Overloaded, Refused
from gateway.model import NO_TLS_FILES, TlsFiles
from gateway.outbound.addresses import Allowance, Target, forbidden, locate
from gateway.outbound.bodies import PLAIN, Bound, Room, collected, unpacked
from gateway.outbound.dialling import Judge, JudgingConnector, Lookup, Progress, Proxy, progress
from gateway.outbound.failures import (
    PROXY_WANTS_LOGIN,
    SLOW,
    BrokenOff,
    NoAnswer,
    NotHttp,
    no_answer,
)
from gateway.outbound.headers import OWN_AGENT, Pairs, encoding_of, received_headers, sent_headers
from gateway.outbound.tls import Contexts

__all__ = ["Answer", "Egress", "NoAnswer", "Request", "Stream"]

CHECK_SECONDS = 5.0
CLOSE_SECONDS = 2.0
MAX_EXCHANGES = 1024  # calls are bounded far below, by their own limits; upstreams' streams are not
MAX_FIELD_BYTES = 16_384  # of one header of an answer
MAX_HEADERS = 256
READ_BYTES = 131_072  # of an answer wait to be taken, or twice as many; then no more is read
JOINED_BYTES = 1_048_576  # a larger body goes out in steps
ROOM_PART = 0.95  # of the deadline: then an answer that still waits for room is cut


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
    """The gateway's HTTP client. `lookup` is `socket.getaddrinfo`; files count from `folder`."""

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        proxy: str | None = None,
        ca_file: str | None = None,
        folder: Path = Path(),
        lookup: Lookup = socket.getaddrinfo,
    ) -> None:
        self._folder = folder
        self._under_way = 0
        self._session: aiohttp.ClientSession | None = None
        self._judge = Judge(lookup)
        self._contexts = Contexts(folder, ca_file)
        self.follow(allow, proxy, ca_file)

    async def __aenter__(self) -> Egress:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open for use, on the running event loop."""
        self._session = aiohttp.ClientSession(
            connector=JudgingConnector(self._judge),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),  # none of its own: `send` and `open` have theirs
            auto_decompress=False,
            read_bufsize=READ_BYTES,
            max_line_size=MAX_FIELD_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_HEADERS,
            middlewares=(_send_once,),
        )

    async def close(self) -> None:
        """Close every connection, at once."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await session.close()
        await self._judge.close()

    def follow(self, allow: Sequence[str], proxy: str | None, ca_file: str | None) -> None:
        """Go by these settings from now on. Exchanges under way finish."""
        self._judge.follow(Allowance(allow), Proxy.at(proxy) if proxy else None)
        if ca_file != self._contexts.ca_file:  # new contexts need new handshakes
            self._contexts = Contexts(self._folder, ca_file)

    async def check(self, url: str) -> None:
        """Refuse a URL whose host resolves to no address that may be dialled."""
        origin = self._located(url).origin
        if origin.literal:
            return
        judge = self._judge
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await (judge.check_behind_proxy if judge.proxy else judge.check)(origin.host)
        except OSError as error:
            raise no_answer(socket.gaierror(), sent=False) from error

    async def send(
        self,
        request: Request,
        *,
        deadline: float,
        max_bytes: int,
        room: Room | None = None,
        same_host_redirects: int = 0,
        tls: TlsFiles = NO_TLS_FILES,
    ) -> Answer:
        """The answer, whole or up to `max_bytes`, within `deadline` seconds for everything."""
        now, exchange = asyncio.get_running_loop().time(), self._begin()
        bound = Bound(max_bytes, now + deadline * ROOM_PART, room)
        try:
            async with asyncio.timeout_at(now + deadline):
                for _ in range(same_host_redirects):
                    answer = await self._exchange(request, tls, bound)
                    onward = _redirected(request, answer)
                    if onward is None:
                        return answer
                    request = onward
                return await self._exchange(request, tls, bound)
        except TimeoutError as error:
            raise SLOW.error(sent=exchange.sent, seconds=deadline) from error
        finally:
            self._under_way -= 1

    @asynccontextmanager
    async def open(
        self, request: Request, *, deadline: float, tls: TlsFiles = NO_TLS_FILES
    ) -> AsyncIterator[Stream]:
        """An answer to be read as it comes: `deadline` is for its head, its body has none."""
        exchange, response = self._begin(), None
        try:
            try:
                async with asyncio.timeout(deadline):
                    response = await self._ask(request, tls)
            except TimeoutError as error:
                raise SLOW.error(sent=exchange.sent, seconds=deadline) from error
            headers = received_headers(response.raw_headers)
            yield Stream(response.status, headers, _Chunks(response, headers))
        finally:
            self._under_way -= 1
            if response is not None and not response.closed:
                response.close()

    def _begin(self) -> Progress:
        """Count one more exchange, which its caller counts off when it ends."""
        if self._under_way >= MAX_EXCHANGES:
            raise Overloaded("busy", "Too many connections are open.", "Try again in a moment.")
        self._under_way += 1
        exchange = Progress()
        progress.set(exchange)
        return exchange

    async def _exchange(self, request: Request, tls: TlsFiles, bound: Bound) -> Answer:
        response = await self._ask(request, tls)
        try:
            headers = received_headers(response.raw_headers)
            body, truncated = await _body(response, headers, bound)
            return Answer(response.status, headers, body, truncated, request.url)
        finally:
            if not response.closed:  # its body was not read to the end
                response.close()

    async def _ask(self, request: Request, tls: TlsFiles) -> ClientResponse:
        """The answer's head; asked for again where an idle connection had just been closed."""
        target, proxy = self._located(request.url), self._judge.proxy
        options = _options(request)
        secure = target.origin.scheme == "https"
        if secure:
            options |= {"ssl": await self._contexts.get(tls), "server_hostname": tls.server_name}
        if proxy is not None:
            if not target.origin.literal:
                await self._judge.check_behind_proxy(target.origin.host)
            _lead_through(proxy, options, secure)
        try:
            response = await self._head(request.method, target.url, options)
        except NoAnswer as error:
            crossed = isinstance(error.__cause__, _CROSSED) and not progress.get().dialled
            if not crossed or request.method not in ("GET", "HEAD") or request.body:
                raise
            response = await self._head(request.method, target.url, options)
        if response.status < 200 or (response.status == 407 and proxy and not secure):
            response.close()
            raise _no_upgrade() if response.status < 200 else PROXY_WANTS_LOGIN.error(sent=False)
        return response

    async def _head(self, method: str, url: URL, options: dict[str, Any]) -> ClientResponse:
        if self._session is None:
            raise Broken("internal", "The gateway is not open for calls.", "Try again in a moment.")
        progress.get().sent = True  # until the connector says that it still dials
        return await self._session.request(method, url, **options)

    def _located(self, url: str) -> Target:
        target = locate(url)
        origin = target.origin
        if origin.literal and not self._judge.allowance.permits(origin.host):
            raise forbidden(origin.host)
        return target


_CROSSED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


async def _send_once(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> ClientResponse:
    """Send, and name what goes wrong.

    aiohttp itself repeats a GET, PUT or DELETE whose connection was lost, unless the error is one
    it does not know.
    """
    try:
        return await send(request)
    except (aiohttp.ClientError, OSError) as error:
        raise no_answer(error, sent=progress.get().sent) from error


def _lead_through(proxy: Proxy, options: dict[str, Any], secure: bool) -> None:
    """Have the request go through the proxy: in a tunnel where it is secure, else as it is."""
    login = [("Proxy-Authorization", proxy.login)] if proxy.login else []
    options["proxy"] = proxy.url
    options["proxy_headers"] = [OWN_AGENT, *login]
    if not secure:
        options["headers"] += login


def _no_upgrade() -> NoAnswer:
    return no_answer(NotHttp("another protocol than was asked for"), sent=True)


def _options(request: Request) -> dict[str, Any]:
    """The request in aiohttp's terms."""
    if request.method not in _METHODS:
        raise Fixable("invalid_arguments", "The method is not one of HTTP's that can be sent.")
    headers, named = sent_headers(request.headers)
    options: dict[str, Any] = {"headers": headers, "allow_redirects": False}
    if request.body is not None:  # a large one is written in steps
        body = request.body
        options["data"] = body if len(body) <= JOINED_BYTES else BytesIO(body)
    if "accept" not in named or ("content-type" not in named and request.method not in _BODILESS):
        options["skip_auto_headers"] = _NOT_ADDED
    return options


_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_BODILESS = ("GET", "HEAD", "OPTIONS")
_NOT_ADDED = ("Accept", "Content-Type")  # by aiohttp, to a request that has none


async def _body(response: ClientResponse, headers: Pairs, bound: Bound) -> tuple[bytes, bool]:
    """The body up to a bound, and whether there was more."""
    content, encoding = response.content, encoding_of(headers)
    try:
        if encoding not in PLAIN:
            return await collected(unpacked(encoding, content.readany), bound)
        first = await content.readany()
        if content.at_eof() and len(first) <= bound.at_once:
            return first, False
        return await collected(content.readany, bound, first)
    except _LOST as error:
        raise no_answer(BrokenOff(), sent=True) from error


class _Chunks:
    """A body as it comes, unpacked."""

    def __init__(self, response: ClientResponse, headers: Pairs) -> None:
        self._following = unpacked(encoding_of(headers), response.content.readany)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._following()
        except _LOST as error:
            raise no_answer(BrokenOff(), sent=True) from error
        if not chunk:
            raise StopAsyncIteration
        return chunk


_LOST = (aiohttp.ClientError, OSError, BrokenOff)


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
    return replace(request, url=str(there.url))


_UPGRADE = ("http", 80, "https", 443)
