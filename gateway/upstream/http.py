"""One upstream over streamable HTTP, thin: a request is one POST, answered as JSON or as events.

Connections, address checks and TLS belong to the gateway's one way out. Up to 2025-11-25 a session
id ties requests together: when the upstream forgot it (404) the session is gone and its link
meets the upstream anew; an answer's stream that ends early is taken up again where it can be.
From 2026-07-28 nothing is kept, and a request repeats in its headers what proxies route on. Only
configured headers and credentials are sent, never those of a client.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
)
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION

from gateway import limits
from gateway.errors import GatewayError, UpstreamFailed
from gateway.outbound.client import Egress, Request, Stream, was_sent
from gateway.upstream import protocol
from gateway.upstream.protocol import Holds, Hooks, Notice, Peer, RpcMessage
from gateway.upstream.session import Session, Upstream

Headers = Sequence[tuple[str, str]]
# Given the headers that were refused just now, and whether this was the second refusal.
Authorize = Callable[[Headers | None, bool], Awaitable[Headers]]
ParamHeaders = Mapping[str, Mapping[tuple[str, ...], str]]  # arguments repeated in headers, by tool

EVENTS = "text/event-stream"
ACCEPT = f"application/json, {EVENTS}"
NO_STREAM = (200, 400, 404, 405, 406, 501)  # answers to a GET by servers that have no stream
_PROTOCOL_HEADER = re.compile(r"accept|content-type|last-event-id|mcp-.*", re.IGNORECASE)


class HttpSession(Session):
    """A conversation with one upstream over HTTP."""

    def __init__(
        self,
        upstream: Upstream,
        notice: Notice,
        offers: Mapping[str, Any],
        egress: Egress,
        authorize: Authorize,
        param_headers: ParamHeaders,
    ) -> None:
        super().__init__(upstream, notice, offers)
        self._egress = egress
        self._authorize = authorize
        self._param_headers = param_headers
        self._session_id = ""

    async def close(self) -> None:
        """Ends the session, if the upstream keeps one; whether the upstream hears that or not."""
        was_lost = self.lost.is_set()
        await super().close()
        if self._session_id and not was_lost:
            with suppress(GatewayError):
                head = await self._headers(self.peer)
                with await self._open("DELETE", head, None, limits.MOMENT_SECONDS):
                    pass

    def _keeps_state(self) -> bool:
        return bool(self._session_id)

    async def _send(self, message: RpcMessage) -> None:
        head = await self._headers(self.peer)
        with await self._open(
            "POST", head, protocol.encode_message(message), limits.HELD_SECONDS
        ) as stream:
            await _read_to_end(stream)

    async def _answer(
        self, message: RpcMessage, peer: Peer, hooks: Hooks, limit: asyncio.Timeout, ends: float
    ) -> dict[str, Any]:
        body, refused_head = protocol.encode_message(message), None
        seconds = ends - asyncio.get_running_loop().time()
        while True:
            head = [*await self._headers(peer, refused_head), *self._routing_headers(message, peer)]
            limit.reschedule(ends)
            try:
                response = await self._open("POST", head, body, None)
            except asyncio.CancelledError:
                if limit.expired() and not was_sent():
                    raise protocol.timeout_error(self.name, seconds, sent=False) from None
                raise
            with response as stream:
                if stream.status == 401 and refused_head is not None:
                    await self._authorize(head, True)  # a person may have to sign in again
                if stream.status != 401 or refused_head is not None:
                    return await self._result(stream, message["method"], peer, hooks)
            refused_head = head  # not processed: once more, with fresh credentials
            limit.reschedule(None)

    async def _result(
        self, stream: Stream, method: str, peer: Peer, hooks: Hooks
    ) -> dict[str, Any]:
        if stream.status != 200:
            raise await self._refusal(stream, peer)
        if method == "initialize":
            self._session_id = _header(stream, "mcp-session-id")
        if not _is_events(stream):
            body = await _read_body(stream, limits.MAX_MESSAGE_BYTES, self.name, hooks.holds)
            return protocol.outcome(protocol.read_message(body, self.name), self.name)
        async with aclosing(self._messages(stream, peer, hooks.holds, Event(), 0)) as messages:
            result = await self._read_result(messages, hooks)
        await _read_to_end(stream)
        return result

    async def _messages(
        self, stream: Stream, peer: Peer, holds: Holds | None, last: Event, resumes: int
    ) -> AsyncGenerator[RpcMessage, None]:
        """The messages of a stream; a stream that ends early is taken up again where it can be."""
        async for event in read_events(stream.read, self.name, holds, last):
            last = event
            if event.data:
                yield protocol.read_message(event.data, self.name)
        if not last.id or peer.era == "2026" or resumes == limits.MAX_ROUNDS:
            return
        pause = limits.REST_SECONDS if last.retry_ms is None else last.retry_ms / 1000
        await asyncio.sleep(min(pause, limits.HELD_SECONDS))
        head = [*await self._headers(peer), ("Last-Event-ID", last.id)]
        with await self._open("GET", head, None, limits.HELD_SECONDS) as again:
            if again.status == 200:
                async for message in self._messages(again, peer, holds, last, resumes + 1):
                    yield message

    async def _refusal(self, stream: Stream, peer: Peer) -> Exception:
        """The error for an answer other than 200."""
        status, body, error = stream.status, b"", None
        with suppress(UpstreamFailed):
            body = await _read_body(stream, limits.STEP_BYTES, self.name)
            error = protocol.read_message(body, self.name).get("error")
        no_session = status == 404 or (status == 400 and b"session" in body[:1000].lower())
        if self._session_id and no_session:
            return protocol.SessionGone()
        if not isinstance(error, dict):
            hint = "Check the connection's auth and headers." if status in (401, 403) else ""
            problem = f"answered with HTTP status {status}"
            return protocol.answer_error(self.name, problem, status=status, hint=hint)
        refusal = protocol.RpcFailed(self.name, error)
        other_version = refusal.rpc_code == UNSUPPORTED_PROTOCOL_VERSION
        was_met = peer is self.peer and peer.version
        return protocol.SessionGone() if other_version and was_met else refusal

    async def _listen_unasked(self, on_open: Callable[[], None]) -> None:
        head = await self._headers(self.peer, accept=EVENTS)
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.LISTEN_SECONDS):
                with await self._open("GET", head, None, limits.LISTEN_SECONDS) as stream:
                    await self._hear(stream, on_open)

    async def _hear(self, stream: Stream, on_open: Callable[[], None]) -> None:
        status = stream.status
        if self._session_id and status == 404:
            raise protocol.SessionGone
        if status in NO_STREAM and not (status == 200 and _is_events(stream)):
            raise protocol.NotOffered
        if status != 200:
            raise protocol.answer_error(
                self.name, f"answered with HTTP status {status}", status=status
            )
        on_open()
        async for event in read_events(stream.read, self.name):
            message = protocol.read_message(event.data, self.name) if event.data else {}
            if isinstance(message.get("method"), str):
                self._handle_stray(message)

    def _give_up(self, message: RpcMessage, peer: Peer) -> None:
        if peer.era == "2025":  # in the 2026 era closing the request was the signal
            super()._give_up(message, peer)

    def _open(
        self, method: str, headers: Headers, body: bytes | None, deadline: float | None
    ) -> Awaitable[Stream]:
        request = Request(method, self._upstream.url or "", tuple(headers), body)
        return self._egress.open(request, deadline=deadline, tls=self._upstream.tls)

    async def _headers(
        self, peer: Peer, refused_head: Headers | None = None, accept: str = ACCEPT
    ) -> list[tuple[str, str]]:
        configured = self._upstream.headers.items()
        head = [pair for pair in configured if not _PROTOCOL_HEADER.fullmatch(pair[0])]
        head += (("Accept", accept), ("Content-Type", "application/json"))
        head += await self._authorize(refused_head, False)
        if peer.version:
            head.append((MCP_PROTOCOL_VERSION_HEADER, peer.version))
            if self._session_id:
                head.append(("mcp-session-id", self._session_id))
        return head

    def _routing_headers(self, message: RpcMessage, peer: Peer) -> Headers:
        """The headers of a 2026-07-28 request that repeat its content, for proxies to route on."""
        if peer.era != "2026":
            return ()
        method, params = message["method"], message["params"]
        head = {MCP_METHOD_HEADER: method}
        target = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(target, str):
            head[MCP_NAME_HEADER] = encode_header_value(target)
        if method == "tools/call" and (headers := self._param_headers.get(target)):
            head |= mcp_param_headers(headers, protocol.mapping(params.get("arguments")))
        return tuple(head.items())


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event: its data, and what the stream said of itself up to here."""

    data: bytes = b""
    id: str = ""
    retry_ms: int | None = None


async def read_events(
    read: Callable[[], Awaitable[bytes]],
    upstream: str,
    holds: Holds | None = None,
    last: Event | None = None,
) -> AsyncIterator[Event]:
    """The events of a stream as they come; an event that outgrows its bound is an error."""
    id, retry_ms = (last.id, last.retry_ms) if last else ("", None)
    rest, data, size, fresh = bytearray(), list[bytes](), 0, False
    while chunk := await read():
        rest += chunk
        *lines, tail = rest.split(b"\n") if b"\n" in chunk else (rest,)
        rest = bytearray(tail) if lines else rest
        for line in lines:
            name, _, text = line.rstrip(b"\r").partition(b":")
            value = bytes(text.removeprefix(b" "))
            if name == b"data":
                data.append(value)
                size += len(value)
            elif name == b"id" and b"\0" not in value:
                id, fresh = value.decode("utf-8", "replace"), True
            elif name == b"retry" and value.isdigit() and len(value) < 10:
                retry_ms, fresh = int(value), True
            elif not name and (data or fresh):
                yield Event(b"\n".join(data), id, retry_ms)
                data, size, fresh = [], 0, False
            if size > limits.MAX_MESSAGE_BYTES:
                break
        total = len(rest) + size
        if total > limits.MAX_MESSAGE_BYTES or (holds is not None and not await holds(total)):
            raise protocol.too_large_error(upstream, limits.MAX_MESSAGE_BYTES)


async def _read_body(stream: Stream, most: int, upstream: str, holds: Holds | None = None) -> bytes:
    parts, size = [], 0
    while chunk := await stream.read():
        size += len(chunk)
        if size > most or (holds is not None and not await holds(size)):
            raise protocol.too_large_error(upstream, most)
        parts.append(chunk)
    return b"".join(parts)


async def _read_to_end(stream: Stream) -> None:
    """A connection can only be used again once its answer was read to the end."""
    with suppress(GatewayError, TimeoutError):
        async with asyncio.timeout(limits.LAST_BYTES_SECONDS):
            while await stream.read():
                pass


def _header(stream: Stream, name: str) -> str:
    return next((value for key, value in stream.headers if key == name), "")


def _is_events(stream: Stream) -> bool:
    return _header(stream, "content-type").partition(";")[0].strip().lower() == EVENTS
