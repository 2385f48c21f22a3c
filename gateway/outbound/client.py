"""The one way out: every request to an API, an MCP server or a provider of tokens leaves here.

Four promises. An address is judged at the moment it is dialled, not when its name was first looked
up. An exchange ends at its deadline and at its size, also when the answer is packed or drips. Only
what was asked for is sent: no proxy from the environment, no cookie, no redirect, nothing repeated
but a GET or HEAD whose idle connection had just been closed. And every failure comes out as one of
our own errors, which says whether anything may have reached the other side.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

import aiohttp
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from aiohttp.connector import Connection
from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from gateway import limits
from gateway.errors import Broken, Fixable, Refused, UpstreamFailed
from gateway.model import NO_TLS_FILES, OWN_HEADERS, TlsFiles
from gateway.outbound.addresses import (
    URL_HINT,
    Contexts,
    Judge,
    Lookup,
    Proxy,
    address_refusal,
    is_address,
    read_authority,
)
from gateway.outbound.certificates import end_of
from gateway.outbound.content import Room, collect

Pairs = tuple[tuple[str, str], ...]

OWN_AGENT = {"User-Agent": "dynamic-mcp-gateway"}


class Request(Struct, frozen=True):
    """One request, exactly as it goes on the wire: the URL is already encoded."""

    method: str
    url: str
    headers: Pairs = ()
    body: bytes | None = None


class Answer(Struct, frozen=True):
    """The answer to a request. Header names are in lower case, the body is unpacked."""

    status: int
    headers: Pairs
    body: bytes
    truncated: bool = False  # the body was longer than was asked for

    def header(self, name: str) -> str | None:
        """The first header of this name, which is in lower case."""
        return dict(self.headers[::-1]).get(name)


class NoAnswer(UpstreamFailed):
    """The exchange failed. `sent` is False only if the other side can't have seen the request."""


class Stream:
    """An answer whose body is still on its way, while the block lasts. Header names are in lower
    case; aiohttp unpacks a body step by step: a bomb is cut."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: ClientResponse) -> None:
        self.status, self.headers = response.status, _read_headers(response)
        self._response = response

    async def read(self) -> bytes:
        """The next bytes of the body that have come; none at its end."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswer("upstream_unreachable", _BROKEN_OFF, _HINT, sent=True) from error

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._response.content.at_eof():  # else its connection is in use again
            self._response.close()


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
        self.folder = folder
        self._session: aiohttp.ClientSession | None = None
        # When servers' certificates end, by the server's origin.
        self.certificate_ends: LRUCache[str, datetime] = LRUCache(limits.MAX_REMEMBERED)
        self._judge = Judge(lookup)
        self._contexts = Contexts(folder, ca_file)
        self.follow(allow, proxy, ca_file)

    async def __aenter__(self) -> Egress:
        self._session = aiohttp.ClientSession(
            connector=JudgedConnector(self._judge, self.certificate_ends),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "gzip, deflate", **OWN_AGENT},
            timeout=aiohttp.ClientTimeout(),  # no timeouts here: `send` and `open` set theirs
            read_bufsize=limits.STEP_BYTES,
            max_line_size=limits.STEP_BYTES,
            max_field_size=limits.STEP_BYTES,
            middlewares=(_ask_once,),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes every connection, at once."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._judge.close()

    def follow(self, allow: Sequence[str], proxy: str | None, ca_file: str | None) -> None:
        """Follows these settings from now on. Exchanges under way finish."""
        self._judge.follow(allow, Proxy.at(proxy) if proxy else None)
        if ca_file != self._contexts.ca_file:  # new contexts need new handshakes
            self._contexts = Contexts(self.folder, ca_file)

    async def check(self, url: str) -> None:
        """Refuses a URL whose host resolves to no address that may be dialled."""
        host = self._locate(url).raw_host or ""
        if not is_address(host):
            try:
                await self._judge.check(host)
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
        # Shortly before the end an answer that still waits for room is cut: better than none.
        until = asyncio.get_running_loop().time() + 0.95 * deadline
        progress.set(TransferProgress())
        try:
            async with asyncio.timeout(deadline):
                while True:
                    with await self._request(request, tls) as stream:
                        body, truncated = await collect(stream.read, max_bytes, room, until)
                    answer = Answer(stream.status, stream.headers, body, truncated)
                    onward = _next_request(request, answer) if same_host_redirects else None
                    if onward is None:
                        return answer
                    request, same_host_redirects = onward, same_host_redirects - 1
        except TimeoutError as error:
            raise _timeout_error(deadline) from error

    async def open(
        self, request: Request, *, deadline: float | None, tls: TlsFiles = NO_TLS_FILES
    ) -> Stream:
        """An answer to be read as it comes: `deadline` is for its head, its body has none.

        None: the caller keeps the time, and asks `was_sent` when that has run out.
        """
        progress.set(TransferProgress())
        if deadline is None:
            return await self._request(request, tls)
        try:
            async with asyncio.timeout(deadline):
                return await self._request(request, tls)
        except TimeoutError as error:
            raise _timeout_error(deadline) from error

    async def _request(self, request: Request, tls: TlsFiles) -> Stream:
        """The answer's head; requested again where an idle connection had just been closed."""
        if self._session is None:
            raise Broken("internal", "The gateway is not open for calls.", "Try again in a moment.")
        url, proxy, options = self._locate(request.url), self._judge.proxy, _http_options(request)
        if url.scheme == "https":
            options |= {"ssl": await self._contexts.get(tls), "server_hostname": tls.server_name}
        if proxy is not None:
            if not is_address(url.raw_host or ""):
                await self._judge.check_behind_proxy(url.raw_host or "")
            options |= {"proxy": proxy.url, "proxy_headers": {**OWN_AGENT, **proxy.login}}
            if url.scheme == "http":  # no tunnel: the proxy reads the request itself
                options["headers"] += proxy.login.items()
        repeatable = request.method in ("GET", "HEAD") and not request.body
        while True:
            progress.get().sent = True  # until the connector says that it still dials
            try:
                response = await self._session.request(request.method, url, **options)
                break
            except (_ConnectionLost, aiohttp.ClientError, OSError) as failure:
                error = failure.error if isinstance(failure, _ConnectionLost) else failure
                exchange, proxied = progress.get(), proxy is not None
                if exchange.dialled or not (repeatable and isinstance(error, _IDLE_CLOSED)):
                    raise no_answer(error, sent=exchange.sent, proxied=proxied) from error
                repeatable = False
        if response.status < 200 or (response.status == 407 and proxy and url.scheme == "http"):
            response.close()
            switched = response.status < 200  # to another protocol than was asked for
            words, hint = (_NOT_HTTP, _HINT) if switched else (_PROXY_WANTS_LOGIN, _PROXY_HINT)
            raise NoAnswer("upstream_unreachable", words, hint, sent=switched)
        return Stream(response)

    def _locate(self, url: str) -> URL:
        located = locate(url)
        host = located.raw_host or ""
        if is_address(host) and not self._judge.permits(host):
            raise address_refusal(host)
        return located


# No control character anywhere, and no backslash where browsers would take it for a slash.
_SHAPE = re.compile(
    r"(https?)://([^/?#\\\x00-\x1f\x7f]*)((?:/[^?#\x00-\x1f\x7f]*)?)"
    r"(?:\?([^#\x00-\x1f\x7f]*))?(?:#[^\x00-\x1f\x7f]*)?",
    re.IGNORECASE,
)
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))


def locate(url: str) -> URL:
    """Reads a URL the one way it will be dialled, spelled as it goes on the wire; or refuses it."""
    match = _SHAPE.fullmatch(url)
    if not match:
        raise Fixable("connection_invalid", "Not an http or https URL.", URL_HINT)
    scheme, authority, path, query = match.groups()
    return URL.build(
        scheme=scheme.lower(),
        authority=read_authority(scheme.lower(), authority),
        path=_quote_invisible(path or "/"),
        query_string=_quote_invisible(query or ""),
        encoded=True,
    )


def _quote_invisible(text: str) -> str:
    return text if text.isascii() and " " not in text else quote(text, safe=_VISIBLE)


@dataclass(slots=True)
class TransferProgress:
    """How far one exchange has come."""

    sent: bool = False  # whether the other side may have seen a part of its request
    dialled: bool = False  # whether its connection is a new one


progress: ContextVar[TransferProgress] = ContextVar("progress")


def was_sent() -> bool:
    """Whether the other side may have seen a part of this task's last request."""
    return progress.get().sent


class JudgedConnector(aiohttp.TCPConnector):
    """Gives out connections that may be used; until then it notes that nothing was sent.

    A connection that was kept is judged again before it is used again: new rules hold at once.
    """

    def __init__(self, judge: Judge, certificate_ends: LRUCache[str, datetime]) -> None:
        super().__init__(
            resolver=judge,
            socket_factory=self._open_socket,
            use_dns_cache=False,
            keepalive_timeout=limits.IDLE_SECONDS,
            limit=limits.MAX_EXCHANGES,
        )
        self._judge = judge
        self._certificate_ends = certificate_ends

    async def connect(self, *args: Any, **kwargs: Any) -> Connection:
        """A connection on which nothing was sent yet."""
        exchange = progress.get()
        exchange.sent = exchange.dialled = False
        connection = await super().connect(*args, **kwargs)
        while not (exchange.dialled or self._may_be_used_again(connection)):
            connection.close()
            connection = await super().connect(*args, **kwargs)
        if exchange.dialled and connection.transport and (end := end_of(connection.transport)):
            self._certificate_ends[str(args[0].url.origin())] = end
        exchange.sent = True
        return connection

    def _open_socket(self, info: Any) -> socket.socket:
        """The last check: however an address came here, it is dialled now."""
        family, kind, protocol, _, address = info
        if not self._may_be_used(address[0]):
            raise PermissionError(errno.EACCES, "address not allowed")
        progress.get().dialled = True
        new_socket = socket.socket(family, kind, protocol)
        new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return new_socket

    def _may_be_used_again(self, connection: Connection) -> bool:
        """Whether a kept connection leads to a permitted address, and no byte came unasked."""
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None or protocol.should_close:
            return False
        peer = transport.get_extra_info("peername")
        return bool(peer) and self._may_be_used(peer[0])

    def _may_be_used(self, address: str) -> bool:
        return self._judge.permits(address) or address in self._judge.proxy_addresses


_IDLE_CLOSED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class _ConnectionLost(Exception):
    """A connection was lost before the head of an answer came."""

    def __init__(self, error: Exception) -> None:
        self.error = error


async def _ask_once(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """Sends a request that aiohttp does not repeat.

    aiohttp itself repeats a GET, PUT or DELETE whose connection was lost, unless it does not know
    the error.
    """
    try:
        return await send(request)
    except (aiohttp.ClientError, OSError) as error:
        raise _ConnectionLost(error) from error


_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def _http_options(request: Request) -> dict[str, Any]:
    """The request in aiohttp's terms."""
    if request.method not in _METHODS:
        raise Fixable("invalid_arguments", "The method is not one of HTTP's that can be sent.")
    body = request.body
    data = BytesIO(body) if body is not None and len(body) > limits.LARGE_BYTES else body
    headers = _sendable_headers(request.headers)
    options = {"headers": headers, "allow_redirects": False, "data": data}
    names = [name.lower() for name, _ in headers]
    may_have_body = body is not None or request.method in ("POST", "PUT", "PATCH")
    if "accept" not in names or (may_have_body and "content-type" not in names):
        options["skip_auto_headers"] = ("Accept", "Content-Type")  # else aiohttp sends its own
    return options


_is_name = lru_cache(limits.MAX_REMEMBERED)(re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch)


def _sendable_headers(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """A caller's headers, each checked, without those that the gateway sets itself."""
    for name, value in pairs:
        if not (_is_name(name) and value.isascii() and value.replace("\t", " ").isprintable()):
            raise Fixable(
                "invalid_arguments",
                f"The header {name[:64]!r} holds a character that can't be sent.",
                "Header values are plain ASCII text on one line.",
            )
    return [pair for pair in pairs if pair[0].lower() not in OWN_HEADERS]


def _read_headers(response: ClientResponse) -> Pairs:
    """A server's headers, their names in lower case."""
    headers = [
        (name.decode("latin-1").lower(), value.strip(b" \t").decode("utf-8", "replace"))
        for name, value in response.raw_headers
    ]
    return tuple(headers)


def _next_request(request: Request, answer: Answer) -> Request | None:
    """The request that a redirect on the same host asks for, or None if it is no redirect."""
    location = answer.header("location")
    is_redirect = answer.status in (301, 302, 303, 307, 308) and request.method in ("GET", "HEAD")
    if not is_redirect or not location:
        return None
    source, target = locate(request.url), locate(urljoin(request.url, location))
    is_upgrade = source.port == 80 and target.scheme == "https" and target.port == 443
    if source.host != target.host or not (is_upgrade or source.origin() == target.origin()):
        raise Refused(
            "access_denied",
            f"{source.host} redirects to another host, which is not followed.",
            "Give the address where the document really is.",
        )
    return replace(request, url=str(target))


_HINT = "Try again later; if it stays so, check the connection's address."
_PROXY_HINT = "Try again later; if it stays so, an operator must check network.proxy."
_PROXY_UNREACHABLE = "The proxy could not be reached."
_PROXY_WANTS_LOGIN = "The proxy does not accept the gateway's credentials."
_NOT_RESOLVED = "The host's name could not be resolved."
_BROKEN_OFF = "The answer broke off, or can't be unpacked."
_NOT_HTTP = "The answer is not valid HTTP."
# The first entry that fits counts. The text of the error itself is not used: it names hosts.
_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ClientHttpProxyError, "The proxy did not connect to the server."),
    (aiohttp.ClientProxyConnectionError, _PROXY_UNREACHABLE),
    (aiohttp.ClientConnectorDNSError, _NOT_RESOLVED),
    (socket.gaierror, _NOT_RESOLVED),
    (aiohttp.ClientConnectorCertificateError, "The server's TLS certificate is not valid."),
    (aiohttp.ClientConnectorSSLError, "No TLS connection could be made."),
    (aiohttp.ClientConnectorError, "No connection could be made."),
    (aiohttp.ClientPayloadError, _BROKEN_OFF),
    (aiohttp.ClientResponseError, _NOT_HTTP),
    (Exception, "The connection was closed before it was answered."),
)


def _timeout_error(deadline: float) -> NoAnswer:
    words = f"There was no complete answer within {deadline:g} s."
    hint = "Ask for less at once, or raise timeout_seconds of the connection."
    return NoAnswer("upstream_timeout", words, hint, sent=progress.get().sent)


def no_answer(error: Exception, *, sent: bool, proxied: bool = False) -> NoAnswer:
    """Our own error for an exchange that failed with this error."""
    words = next(words for kind, words in _WORDS if isinstance(error, kind))
    hint, cause = _PROXY_HINT if proxied else _HINT, error.__cause__
    if isinstance(error, aiohttp.ClientHttpProxyError) and error.status == 407:
        words = _PROXY_WANTS_LOGIN
    elif proxied and isinstance(error, aiohttp.ClientConnectorDNSError):
        words = _PROXY_UNREACHABLE  # we then resolve the name of the proxy only
    elif isinstance(error, aiohttp.ClientConnectorError) and error.errno == errno.ECONNREFUSED:
        words = _PROXY_UNREACHABLE if proxied else "The connection was refused."
    elif isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or ""):
        # TLS 1.3 refuses a client's certificate after the handshake, where the answer is awaited.
        words = "The server refused the TLS connection; it may ask for a client certificate."
        hint = "An operator must check `tls` of the connection."
    return NoAnswer("upstream_unreachable", words, hint, sent=sent)
