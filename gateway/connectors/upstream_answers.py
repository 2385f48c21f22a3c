"""Reading what an upstream answers over HTTP: a head, then JSON or events, all within bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import orjson

from gateway.connectors.upstream_rpc import (
    Holds,
    Message,
    RpcFailed,
    SessionGone,
    broken,
)
from gateway.connectors.upstream_sse import Event, EventReader, EventTooLarge
from gateway.errors import UpstreamFailed
from gateway.model import NO_TLS_FILES, TlsFiles

Headers = Sequence[tuple[str, str]]
MAX_REFUSAL_BYTES = 65_536
MAX_CONTAINERS = 250_000  # read in some 30 ms; 8 MB of nothing else would take half a second


class Streamed(Protocol):
    """An answer whose body is still to come."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...  # names in lower case
    @property
    def chunks(self) -> AsyncIterator[bytes]: ...


class Open(Protocol):
    """The way out: one exchange, up to the answer's head within `deadline` seconds."""

    def __call__(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes | None,
        deadline: float,
        tls: TlsFiles = NO_TLS_FILES,
    ) -> AbstractAsyncContextManager[Streamed]: ...


def header(streamed: Streamed, name: str) -> str:
    """The first header of this name, in lower case; "" without one."""
    return next((value for key, value in streamed.headers if key == name), "")


def media_type(streamed: Streamed) -> str:
    """What the answer's body is, without parameters."""
    return header(streamed, "content-type").partition(";")[0].strip().lower()


async def events(
    streamed: Streamed, max_bytes: int, upstream: str, holds: Holds | None = None
) -> AsyncIterator[Event]:
    """The events of a stream as they come."""
    reader = EventReader(max_bytes)
    try:
        async for chunk in streamed.chunks:
            for event in reader.feed(chunk):
                yield event
            if holds is not None and not await holds(reader.held):
                raise EventTooLarge
    except EventTooLarge:
        raise too_large(upstream, max_bytes) from None


async def whole_body(
    streamed: Streamed, max_bytes: int, upstream: str, holds: Holds | None = None
) -> bytes:
    """A body of known bounds."""
    parts, size = [], 0
    async for chunk in streamed.chunks:
        size += len(chunk)
        if size > max_bytes or (holds is not None and not await holds(size)):
            raise too_large(upstream, max_bytes)
        parts.append(chunk)
    return b"".join(parts)


def message_in(data: bytes, upstream: str) -> Message:
    """The JSON-RPC message that some bytes hold."""
    if is_intricate(data):
        raise too_large(upstream, MAX_CONTAINERS, "lists and objects")
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        message = None
    if not isinstance(message, dict):
        raise broken(upstream, "sent something that is not a JSON-RPC message")
    return message


async def refusal(streamed: Streamed, upstream: str, *, in_session: bool) -> Exception:
    """What an answer other than 200 means."""
    try:
        body = await whole_body(streamed, MAX_REFUSAL_BYTES, upstream)
    except UpstreamFailed:
        body = b""
    status = streamed.status
    if in_session and _session_unknown(status, body):
        return SessionGone()
    if (error := _rpc_error(body)) is not None:
        return RpcFailed(upstream, error)
    hint = "Check the connection's auth and headers." if status in (401, 403) else ""
    return broken(upstream, f"answered with HTTP status {status}", status=status, hint=hint)


def too_large(upstream: str, most: int, unit: str = "bytes") -> UpstreamFailed:
    """The answer outgrew its bound."""
    return broken(upstream, f"sent an answer of more than {most} {unit}")


def is_intricate(data: bytes) -> bool:
    """Whether reading this JSON would hold up everyone else, by a count that takes no time."""
    return len(data) > MAX_CONTAINERS and data.count(b"{") + data.count(b"[") > MAX_CONTAINERS


def _session_unknown(status: int, body: bytes) -> bool:
    return status == 404 or (status == 400 and b"session" in body[:1000].lower())


def _rpc_error(body: bytes) -> dict[str, Any] | None:
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    error = message.get("error") if isinstance(message, dict) else None
    return error if isinstance(error, dict) else None
