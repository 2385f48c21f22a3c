"""JSON-RPC messages: their outer form, the SDK's checks of what is inside, how ours are written.

Parameters are checked by the SDK's own models, so that the gateway accepts just what the
SDK accepts. An error of the protocol is an `RpcError` until it is written.

The answer to a request is plain JSON, unless something has to be said before it: the first progress
notification, question or keep-alive turns it into an event stream. Saying something never waits for
the client to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, NoReturn, TypeGuard, TypeVar

import msgspec
from mcp_types import methods as sdk_methods
from mcp_types.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from pydantic import ValidationError
from starlette.types import Receive, Send

from gateway import limits
from gateway.errors import Fixable
from gateway.model import json_bytes, json_value, read_json
from gateway.web.guard import EVENT_STREAM_HEADERS, PING, event_frame, respond

RequestId = str | int


class RpcError(Exception):
    """An answer that is a JSON-RPC error: code, message, data."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Message(msgspec.Struct, frozen=True):
    """One JSON-RPC message whose outer form is sound."""

    kind: Literal["request", "notification", "response"]
    id: RequestId  # "" for a notification
    method: str  # "" for a response
    params: dict[str, Any]
    body: dict[str, Any]
    fixed_part: bytes = b""  # the same in each request: see `_fixed_part`


def parse(body: bytes) -> Any:
    """The JSON value of a request's body. Raises RpcError."""
    try:
        return read_json(body)
    except Fixable as error:
        raise RpcError(PARSE_ERROR, f"Parse error: {error.message}") from None


def read_message(value: object) -> Message:
    """One message out of parsed JSON. Raises RpcError for anything that is not one."""
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        _refuse("the body must be a single JSON-RPC 2.0 object")
    if "method" not in value:
        return _read_response(value)
    method, params = value["method"], value.get("params")
    if not isinstance(method, str):
        _refuse("method must be a string")
    if params is not None and not isinstance(params, dict):
        _refuse("params must be an object")
    if "id" not in value:
        return Message("notification", "", method, params or {}, value)
    if not is_request_id(value["id"]):
        _refuse("id must be a string or an integer")
    return Message("request", value["id"], method, params or {}, value, _fixed_part(method, params))


def _fixed_part(method: str, params: dict[str, Any] | None) -> bytes:
    """The params of a request as JSON, without a call's arguments.

    Only the arguments differ from call to call; what the checks find out about the rest is cached
    under these bytes.
    """
    if params and method == "tools/call" and isinstance(params.get("arguments"), dict):
        params = {**params, "arguments": {}}
    return json_bytes(params)


def _read_response(value: dict[str, Any]) -> Message:
    result, error, id = value.get("result"), value.get("error"), value.get("id")
    if isinstance(result, dict) == isinstance(error, dict) or not is_request_id(id):
        _refuse("neither a request, nor a notification, nor a response")
    return Message("response", id, "", {}, value)


def _refuse(reason: str) -> NoReturn:
    raise RpcError(INVALID_REQUEST, f"Invalid Request: {reason}")


def is_request_id(value: object) -> TypeGuard[RequestId]:
    """Whether a value may be a request's id."""
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def check_params(message: Message, version: str) -> None:
    """Checks a request's params against the protocol's own schema. Raises RpcError."""
    params = message.fixed_part
    try:
        cached_if_small(_check_fixed_part, len(params))(message.method, version, params)
    except KeyError:
        raise method_not_found(message.method) from None
    except ValidationError:
        raise RpcError(INVALID_PARAMS, "Invalid request parameters", "") from None


T = TypeVar("T")


def cached_if_small(read: Callable[..., T], size: int) -> Callable[..., T]:
    """A cached function; the uncached one behind it where its input is too large to keep."""
    if size <= limits.PREVIEW_CHARS:
        return read
    uncached: Callable[..., T] = read.__wrapped__  # type: ignore[attr-defined]
    return uncached


@lru_cache(maxsize=256)
def _check_fixed_part(method: str, version: str, params: bytes) -> None:
    sdk_methods.validate_client_request(method, version, json_value(params))


def method_not_found(method: str) -> RpcError:
    """The error for a method that this version, or this server, does not have."""
    return RpcError(METHOD_NOT_FOUND, "Method not found", method)


def error_body(request_id: RequestId | None, error: RpcError) -> bytes:
    """A JSON-RPC error response."""
    detail: dict[str, object] = {"code": error.code, "message": error.message}
    if error.data is not None:
        detail["data"] = error.data
    return json_bytes({"jsonrpc": "2.0", "id": request_id, "error": detail})


def result_body(request_id: RequestId, result: bytes) -> bytes:
    """A JSON-RPC response around a result that is JSON already."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (json_bytes(request_id), result)


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """A JSON-RPC notification."""
    body: dict[str, object] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        body["params"] = params
    return json_bytes(body)


class Reply:
    """The answer to one request, and what is said before it."""

    def __init__(self, send: Send, streaming: bool) -> None:
        self.streaming = streaming  # whether the client takes an event stream
        self.on_leave: list[Callable[[], None]] = []
        self._send = send
        self._started = self._closed = False
        self._queue: list[bytes] = []
        self._sender: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def say(self, frame: bytes, droppable: bool = True) -> None:
        """Sends a frame ahead of the answer, without waiting for it to be read."""
        is_full = droppable and len(self._queue) >= limits.MAX_QUEUED
        if self._closed or not self.streaming or is_full:
            return
        self._queue.append(frame)
        if self._sender is None:
            self._sender = asyncio.create_task(self._empty_queue())

    async def _empty_queue(self) -> None:
        try:
            while self._queue:
                async with asyncio.timeout(limits.SEND_SECONDS):
                    await self._send_frame(self._queue.pop(0))
        except (TimeoutError, OSError):
            self.give_up_client()
        finally:
            self._sender = None

    async def _send_frame(self, frame: bytes, has_more: bool = True) -> None:
        if not self._started:
            self._started = True
            start = {"type": "http.response.start", "status": 200, "headers": EVENT_STREAM_HEADERS}
            await self._send(start)
        await self._send({"type": "http.response.body", "body": frame, "more_body": has_more})

    def watch_connection(self, receive: Receive) -> None:
        """Watches the connection until the answer is sent.

        The client hears a keep-alive now and then; the functions in `on_leave` run when it leaves.
        """
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch_connection(receive))

    async def _watch_connection(self, receive: Receive) -> None:
        while not self._closed:
            try:
                async with asyncio.timeout(limits.PING_SECONDS):
                    message = await receive()
            except TimeoutError:
                self.say(PING)
                continue
            if message["type"] == "http.disconnect":
                self.give_up_client()

    def stop_watching(self) -> None:
        """Stops watching the connection."""
        self.on_leave.clear()  # a listener holds this reply: only the collector would free the two
        if self._watcher is not None:
            self._watcher.cancel()

    def give_up_client(self) -> None:
        """Gives up a client that is gone or does not read: nothing more is said to it."""
        self._closed = True
        self._queue.clear()
        for listener in tuple(self.on_leave):
            listener()

    def is_gone(self) -> bool:
        """Whether the client has left before its answer."""
        return self._closed

    async def finish(self, status: int, body: bytes) -> None:
        """Sends the answer itself, after everything that was said before."""
        if self._sender is not None:
            await self._sender
        self._closed = True
        if self._started:
            await self._send_frame(event_frame(body), has_more=False)
        else:
            await respond(self._send, status, body)
