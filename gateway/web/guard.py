"""HTTP at the rim: the checks every request has to pass, and how answers are written.

Host and Origin are checked on every path: a web page that rebinds its own name to our address, or
simply posts to us, is refused before a token is looked at. Bodies have a size and a deadline,
because the server underneath has neither. A refusal here is an HTTPException; each edge words it in
its own shape (JSON-RPC for MCP, `{"error": …}` for REST).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as HttpScope
from yarl import URL

from gateway import limits
from gateway.store.cluster import wait_until_set

Fields = Mapping[bytes, bytes]
HeaderLines = Iterable[tuple[bytes, bytes]]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
JSON_TYPE = b"application/json"

_QUOTABLE = re.compile(r"[A-Za-z0-9.:/_\[\]-]{1,128}")  # header values a refusal may repeat
_HOSTS = ("allowed_hosts", "gateway.example.com")  # the key to change, and an example
_ORIGINS = ("allowed_origins", "https://app.example.com")

# Headers that may come once only: of two copies one reader takes the first, another the last.
_SINGLE = frozenset(
    (b"host", b"origin", b"authorization", b"content-type", b"content-length", b"mcp-session-id")
)


# --- Host and Origin ------------------------------------------------------------------------------


class HostRules(NamedTuple):
    """The Host and Origin values that are ours, beyond the loopback names with our own port."""

    hosts: frozenset[bytes]
    origins: frozenset[bytes]


def host_rules(
    public_url: str, allowed_hosts: Iterable[str] = (), allowed_origins: Iterable[str] = ()
) -> HostRules:
    """The rules for a server that the world knows by `public_url`."""
    url = URL(public_url.lower())
    own = {f"{url.host_subcomponent}:{url.port}"}
    if url.is_default_port():
        own.add(url.host_subcomponent or "")
    hosts = {host.lower() for host in (*allowed_hosts, *own)}
    allowed = (origin.lower().rstrip("/") for origin in allowed_origins)
    origins = {*allowed, *(f"{url.scheme}://{host}" for host in own)}
    return HostRules(frozenset(map(str.encode, hosts)), frozenset(map(str.encode, origins)))


def check_host(rules: HostRules, scope: HttpScope, fields: Fields) -> None:
    """Refuses a Host or Origin that is not ours."""
    server = scope.get("server")
    port = server[1] if server else None
    host = fields.get(b"host", b"")
    if not _is_own_host(rules, port, host):
        raise HTTPException(421, _host_problem("Host", host, *_HOSTS))
    origin = fields.get(b"origin")
    if origin is None:
        return
    scheme, _, page = origin.lower().partition(b"://")
    own_pages = _loopback_hosts(port) if scheme == b"http" else frozenset[bytes]()
    if page not in own_pages and not _is_allowed(origin.lower(), rules.origins):
        raise HTTPException(403, _host_problem("Origin", origin, *_ORIGINS))


def _host_problem(header: str, value: bytes, key: str, example: str) -> str:
    """What is wrong with a header, and what to write into config.toml if it should be right."""
    text = value.decode("latin-1")
    name, entry = (text, text) if _QUOTABLE.fullmatch(text) else ("it", example)
    return (
        f"Invalid {header} header: {name} is not one of this gateway's. If it should be, write "
        f'into config.toml server.{key} = ["{entry}"], or the address that clients use as '
        'server.public_url = "https://gateway.example.com", and restart.'
    )


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


def fold(lines: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Folds header lines into a mapping; a second copy of a header that must be single is refused.

    Blanks around a value are no part of it, and the parser underneath leaves the trailing ones.
    """
    names, values = zip(*lines, strict=True) if lines else ((), ())
    fields = dict(zip(names, map(bytes.strip, values), strict=True))
    if len(fields) == len(names):
        return fields
    joined: dict[bytes, bytes] = {}
    for name, value in lines:
        if name in joined and name in _SINGLE:
            raise HTTPException(400, f"{name.decode('latin-1')} header appears more than once")
        joined[name] = joined[name] + b", " + value.strip() if name in joined else value.strip()
    return joined


def require_json(fields: Fields) -> None:
    """Refuses a request whose Content-Type does not say that its body is JSON."""
    content_type = fields.get(b"content-type", b"")
    if content_type != JSON_TYPE and content_type.split(b";")[0].strip().lower() != JSON_TYPE:
        raise HTTPException(415, "Unsupported Media Type: Content-Type must be application/json")


COMPLETE_BODY = "gateway.has_come"  # an extension of a request's scope: its whole body is there
_CLOSE = {"connection": "close"}  # the rest of a body that was not read is still on its way


async def read_body(
    fields: Fields,
    receive: Receive,
    limit: int = limits.MAX_BODY_BYTES,
    seconds: float = limits.REQUEST_SECONDS,
    *,
    complete: bool = False,  # the whole body is there already: no deadline is needed
) -> bytes:
    """The whole body, within its limit and its time. A client that left raises ConnectionError."""
    declared = fields.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    if complete:
        return await _read_chunks(receive, limit)
    try:
        async with asyncio.timeout(seconds):
            return await _read_chunks(receive, limit)
    except TimeoutError:
        raise HTTPException(408, "The request was not complete in time", _CLOSE) from None


async def _read_chunks(receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []  # joined once: adding each to the others would copy them every time
    size, has_more = 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client left before its request was complete")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(limit)
        has_more = message.get("more_body", False)
    return b"".join(chunks)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"Request body too large: at most {limit} bytes", _CLOSE)


# --- answers --------------------------------------------------------------------------------------


async def respond(send: Send, status: int, body: bytes = b"", headers: HeaderLines = ()) -> None:
    """Sends one whole answer: JSON, or nothing."""
    lines = [(b"content-length", b"%d" % len(body)), *headers]
    if body:
        lines.append((b"content-type", JSON_TYPE))
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
WriteNews = Callable[[Say], Awaitable[bool]]  # writes what is new; False: the stream is over


def event_frame(data: bytes, kind: str = "message", id: str | int | None = None) -> bytes:
    """One server-sent event; without a kind it has no event name."""
    head = ("" if id is None else f"id: {id}\n") + (f"event: {kind}\n" if kind else "")
    lines = b"".join(b"data: %b\n" % line for line in data.splitlines() or (b"",))
    return b"%b%b\n" % (head.encode(), lines)


class EventStream(Response):
    """Server-sent events to one reader: a step, then sleep until woken, while both sides want.

    Nothing is queued here. A step looks at the present state and writes what is new in it, at the
    reader's own pace; a reader that takes nothing for a while is let go, and comes back by itself.
    `leave` is called when the stream is over, whichever side ended it.
    """

    def __init__(
        self,
        step: WriteNews,
        woken: asyncio.Event,
        leave: Callable[[], None],
        rest: Callable[[], float] = float,  # between two steps: a burst of news is one step
    ) -> None:
        super().__init__()
        self._step = step
        self._woken = woken
        self._leave = leave
        self._rest = rest

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.create_task(self._write(send)), asyncio.create_task(_await_close(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        last_sent = time.monotonic()

        async def say(body: bytes) -> None:
            nonlocal last_sent
            if body:
                async with asyncio.timeout(limits.SEND_SECONDS):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                last_sent = time.monotonic()

        headers = [*EVENT_STREAM_HEADERS, (b"x-content-type-options", b"nosniff")]
        with suppress(TimeoutError, OSError):  # the reader takes nothing, or has gone
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await say(b"retry: 2000\n\n")
            while await self._step(say):
                if time.monotonic() - last_sent > limits.PING_SECONDS:
                    await say(PING)
                await asyncio.sleep(self._rest())
                # Sleeps until there may be something new; bounded, since a wake-up may be lost.
                await wait_until_set(self._woken, limits.MOMENT_SECONDS)
            await send({"type": "http.response.body", "body": b""})


async def _await_close(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# --- pages and forms ------------------------------------------------------------------------------

Form = Mapping[str, str]

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
        "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # No referrer to other sites; "no-referrer" would make browsers hide our own forms' origin.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


def check_origin(request: Request) -> None:
    """Refuses a post from another site's page; `allowed_origins` are for MCP, not for pages."""
    fields = fold(request.scope["headers"])
    origin, host = fields.get(b"origin"), fields.get(b"host", b"")
    is_foreign = origin is not None and origin.lower().partition(b"://")[2] != host.lower()
    site = fields.get(b"sec-fetch-site", b"same-origin")
    if is_foreign or site not in (b"same-origin", b"none"):
        raise HTTPException(403, "This form comes from another site.")


async def read_form(request: Request, limit: int) -> Form:
    """The fields of a posted form; a file's text is among them."""
    fields = fold(request.scope["headers"])
    body = await read_body(fields, request.receive, limit)
    kind = fields.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind == b"multipart/form-data":
        return await _read_parts(request, body)
    if body and kind != b"application/x-www-form-urlencoded":
        raise HTTPException(415, "A form is expected here.")
    try:
        # In a thread: a pasted definition is megabytes.
        pairs = await asyncio.to_thread(parse_qsl, body.decode("ascii"), True, max_num_fields=500)
    except ValueError:
        raise HTTPException(400, "The form can't be read.") from None
    return dict(pairs)


async def _read_parts(request: Request, body: bytes) -> Form:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), limits.STEP_BYTES):
            yield body[start : start + limits.STEP_BYTES]
            await asyncio.sleep(0)

    reader = MultiPartParser(request.headers, pieces(), max_files=1, max_part_size=len(body))
    try:
        form = await reader.parse()
    except (MultiPartException, KeyError):
        raise HTTPException(400, "The form can't be read.") from None
    try:
        return {
            key: (part.encode() if isinstance(part, str) else await part.read()).decode("utf-8-sig")
            for key, part in form.multi_items()
        }
    except UnicodeError:  # also halves of letters, of which some charsets make text
        raise HTTPException(400, "The form or its file is not text in UTF-8.") from None
    finally:
        await form.close()
