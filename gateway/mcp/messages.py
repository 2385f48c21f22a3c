"""JSON-RPC as bytes: reading it strictly, checking it as the SDK does, writing it cheaply.

Parameters are checked by the SDK's own models, so that what we accept and what it accepts is one
thing; only the plainest form of the hottest request is waved through by a look at it.

The SDK's own checks, without the clients and servers that come with them.

`mcp/__init__` imports the SDK's clients, servers and their HTTP library: a third of the time that
the gateway takes to start, and nothing of it is used here. These three modules say of themselves
that they are pure (they import `mcp_types` at most), so they are loaded from their files alone.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeGuard

import msgspec
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types import methods as sdk_methods
from mcp_types.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
)
from pydantic import ValidationError

from gateway.web import guard

if TYPE_CHECKING:
    from mcp.shared import inbound as inbound
    from mcp.shared import subscriptions as subscriptions
    from mcp.shared import uri_template as uri_template
else:

    def _alone(name: str) -> ModuleType:
        found = importlib.util.find_spec("mcp")  # finds the package and does not import it
        path = Path(found.submodule_search_locations[0], "shared", f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    inbound = _alone("inbound")
    subscriptions = _alone("subscriptions")
    uri_template = _alone("uri_template")


RequestId = str | int
dump = guard.write_json
REQUEST_CANCELLED = -32800  # what the SDK answers a cancelled request of the 2025 era with


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
    id: RequestId | None
    method: str
    params: dict[str, Any] | None
    body: dict[str, Any]


def read_json(body: bytes) -> object:
    """The value of a JSON text. Raises RpcError for text that is not exactly one value."""
    try:
        return guard.read_json(body)
    except guard.NotJson as error:
        raise RpcError(PARSE_ERROR, f"Parse error: {error}") from None


def read_message(value: object) -> Message:
    """One message out of parsed JSON. Raises RpcError for anything that is not one."""
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        _invalid("the body must be a single JSON-RPC 2.0 object")
    method = value.get("method")
    if method is None and "method" not in value:
        return _response(value)
    if not isinstance(method, str):
        _invalid("method must be a string")
    params = value.get("params")
    if params is not None and not isinstance(params, dict):
        _invalid("params must be an object")
    if "id" not in value:
        return Message("notification", None, method, params, value)
    request_id = value["id"]
    if not is_request_id(request_id):
        _invalid("id must be a string or an integer")
    return Message("request", request_id, method, params, value)


def _response(value: dict[str, Any]) -> Message:
    result, error = value.get("result"), value.get("error")
    if isinstance(result, dict) == isinstance(error, dict) or not is_request_id(value.get("id")):
        _invalid("neither a request, nor a notification, nor a response")
    return Message("response", value["id"], "", None, value)


def _invalid(what: str) -> NoReturn:
    raise RpcError(INVALID_REQUEST, f"Invalid Request: {what}")


def is_request_id(value: object) -> TypeGuard[RequestId]:
    """Whether a value may be a request's id."""
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def check_params(method: str, version: str, params: Mapping[str, Any] | None) -> None:
    """Check a request's params against the protocol's own schema. Raises RpcError."""
    if method == "tools/call" and params is not None and is_plain_call(params):
        return
    try:
        sdk_methods.validate_client_request(method, version, params)
    except KeyError:
        raise method_not_found(method) from None
    except ValidationError:
        raise RpcError(INVALID_PARAMS, "Invalid request parameters", "") from None


_CALL_KEYS = frozenset({"name", "arguments", "_meta"})
_META_KEYS = frozenset(
    {PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY}
)
_INFO_KEYS = frozenset({"name", "version"})


def is_plain_call(params: Mapping[str, Any]) -> bool:
    """Whether a call has the form nearly all have, which every version's schema accepts.

    `_meta` is absent or holds the envelope of 2026 and nothing else. (That an envelope is there
    where it must be is the ladder's business.)
    """
    if not (params.keys() <= _CALL_KEYS and type(params.get("name")) is str):
        return False
    if type(params.get("arguments")) is not dict:
        return False
    meta = params.get("_meta")
    if meta is None:
        return "_meta" not in params
    return type(meta) is dict and meta.keys() == _META_KEYS and _is_plain_envelope(meta)


def _is_plain_envelope(meta: Mapping[str, Any]) -> bool:
    info = meta[CLIENT_INFO_META_KEY]
    return (
        meta[CLIENT_CAPABILITIES_META_KEY] == {}
        and type(meta[PROTOCOL_VERSION_META_KEY]) is str
        and type(info) is dict
        and info.keys() == _INFO_KEYS
        and type(info["name"]) is str
        and type(info["version"]) is str
    )


def method_not_found(method: str) -> RpcError:
    """The error for a method that this version, or this server, does not have."""
    return RpcError(METHOD_NOT_FOUND, "Method not found", method)


def internal_error() -> RpcError:
    """The error that says nothing but that it was ours."""
    return RpcError(INTERNAL_ERROR, "Internal error")


def error_body(request_id: RequestId | None, error: RpcError) -> bytes:
    """A JSON-RPC error response."""
    detail: dict[str, object] = {"code": error.code, "message": error.message}
    if error.data is not None:
        detail["data"] = error.data
    return dump({"jsonrpc": "2.0", "id": request_id, "error": detail})


def result_body(request_id: RequestId, result: bytes) -> bytes:
    """A JSON-RPC response around a result that is JSON already."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (dump(request_id), result)


def error_status(error: RpcError) -> int:
    """The HTTP status of an error in the 2026 era."""
    return inbound.ERROR_CODE_HTTP_STATUS.get(error.code, 200)


def progress_token(meta: Mapping[str, Any]) -> RequestId | None:
    """The progress token of a request's `_meta`, if it asks for progress."""
    token = meta.get("progressToken")
    return token if is_request_id(token) else None


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """A JSON-RPC notification."""
    body: dict[str, object] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        body["params"] = params
    return dump(body)
