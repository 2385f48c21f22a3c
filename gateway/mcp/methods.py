"""What both eras serve: one table from method to the function that answers it.

A function gets the request with everything known of its client and returns the result as JSON. The
SDK's schema for the request's protocol version decides whether a method exists there and whether
its params are right, so a method that only one era has needs no word here.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from mcp_types import SERVER_INFO_META_KEY
from mcp_types import methods as sdk_methods
from mcp_types.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    UNSUPPORTED_PROTOCOL_VERSION,
)

from gateway.calls.record import Era
from gateway.errors import GatewayError, UnknownTool, UpstreamRefused
from gateway.mcp.core import Core, Request, context_of, discovered
from gateway.mcp.in_flight import Flight, Stopped
from gateway.mcp.messages import RpcError, check_params, dump, internal_error, method_not_found
from gateway.mcp.streams import Attendant
from gateway.mcp.surface import Hello
from gateway.text import cut, visible
from gateway.web.gateway import error_result

MAX_NAME_ECHO = 256
MAX_LOGGED_FRAMES = 4
MAX_REFUSAL_CHARS = 2000
CACHING = ("ttlMs", "cacheScope")  # of 2026
OF_A_HOP = (HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION)

_log = structlog.get_logger(__name__)


async def answer(request: Request) -> bytes:
    """The result of a request, as JSON. Raises RpcError, and Stopped if the client gave up."""
    message = request.message
    if message.method in sdk_methods.SPEC_CLIENT_METHODS:
        check_params(message.method, request.version, message.params)
    method = METHODS.get(message.method)
    if method is None:
        raise method_not_found(message.method)
    try:
        return await method(request)
    except (RpcError, Stopped):
        raise
    except GatewayError as error:
        raise RpcError(INVALID_PARAMS, error.message) from error
    except Exception as error:
        _log.error("request_failed", method=message.method, **failure(error))
        raise internal_error() from error


def failure(error: Exception) -> dict[str, str]:
    """What the log says of an unexpected error: its kind and place, not its words or values."""
    frames = traceback.format_tb(error.__traceback__)[-MAX_LOGGED_FRAMES:]
    return {"error": type(error).__name__, "trace": "".join(frames)}


async def _ping(request: Request) -> bytes:
    return b"{}"


async def _discover(request: Request) -> bytes:
    core, exchange = request.core, request.exchange
    if core.offers is None:
        return core.discovered
    hello = await core.offers.hello(exchange.principal, exchange.scope)
    return discovered(core, hello) if hello != Hello() else core.discovered


async def _list_tools(request: Request) -> bytes:
    core, exchange = request.core, request.exchange
    params = request.message.params or {}
    view = core.surface.view(exchange.principal, exchange.scope)
    page = view.page(params.get("cursor"))
    if page is None:
        raise RpcError(INVALID_PARAMS, "Invalid cursor")
    if request.session is not None:
        core.streams.note(request.session, exchange.scope, view.digest)
    return b"{%b%b}" % (page, core.list_suffix if request.era == "2026" else b"")


async def _call_tool(request: Request) -> bytes:
    result = await _attended(request, _outcome(request, request.message.params or {}))
    if request.era == "2026":
        result = _stamped(result, request.core.server_info)
    return dump(result)


async def _attended(request: Request, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Awaits work that its client can cancel, and that ends with its connection in 2026."""
    core = request.core
    flight = core.calls.begin(request.session, request.message.id or 0)
    attendant = _attendant(request, flight)
    try:
        return await flight.run(work)
    finally:
        core.calls.end(flight, request.session, request.message.id or 0)
        if attendant is not None:
            attendant.dismiss()


async def _outcome(request: Request, params: Mapping[str, Any]) -> dict[str, Any]:
    context = context_of(request, params)
    try:
        return await request.core.surface.call(
            params["name"], params.get("arguments") or {}, context
        )
    except UnknownTool as error:
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {error.name[:MAX_NAME_ECHO]}") from None
    except UpstreamRefused as error:
        raise refusal(error) from error
    except GatewayError as error:
        return error_result(error)


async def _pass_through(request: Request) -> bytes:
    """Answers what is not about tools, where the view has a server that does."""
    core, message = request.core, request.message
    if core.offers is None:
        raise method_not_found(message.method)
    params = message.params or {}
    answer = core.offers.answer(message.method, params, context_of(request, params))
    try:
        result = await _attended(request, answer)
    except UpstreamRefused as error:
        raise refusal(error) from error
    except GatewayError as error:
        raise RpcError(INTERNAL_ERROR, error.message, {"code": error.code}) from error
    return dump(_shaped(result, message.method, request.era, core))


def _shaped(result: dict[str, Any], method: str, era: Era, core: Core) -> dict[str, Any]:
    """A server's result as this client's era has it; nobody but the client may keep it."""
    if era == "2025":
        return {key: value for key, value in result.items() if key not in CACHING}
    if method in sdk_methods.CACHEABLE_METHODS and "resultType" not in result:
        result = {"ttlMs": core.settings.list_ttl_ms, **result, "cacheScope": "private"}
    return _stamped(result, core.server_info)


def refusal(error: UpstreamRefused) -> RpcError:
    """A server's own error for our client; one about the way between us and it is not passed."""
    if error.rpc_code in OF_A_HOP or not error.rpc_code:
        return RpcError(INTERNAL_ERROR, error.message)
    message = cut(visible(error.rpc_message), MAX_REFUSAL_CHARS)
    return RpcError(error.rpc_code, message, error.rpc_data)


METHODS: dict[str, Callable[[Request], Awaitable[bytes]]] = {
    "ping": _ping,
    "server/discover": _discover,
    "tools/list": _list_tools,
    "tools/call": _call_tool,
    **dict.fromkeys(
        (
            "prompts/list",
            "prompts/get",
            "resources/list",
            "resources/templates/list",
            "resources/read",
            "resources/subscribe",
            "resources/unsubscribe",
            "completion/complete",
            "logging/setLevel",
        ),
        _pass_through,
    ),
}


def _attendant(request: Request, flight: Flight) -> Attendant | None:
    if request.reply is None:
        return None
    # Only in the 2026 era does hanging up mean that the call is not wanted any more.
    on_gone = (lambda: flight.stop("gone")) if request.era == "2026" else None
    return Attendant(request.exchange.receive, request.reply, on_gone)


def _stamped(result: dict[str, Any], server_info: dict[str, Any]) -> dict[str, Any]:
    meta = result.get("_meta") or {}
    if meta.get(SERVER_INFO_META_KEY) is None:
        meta = {**meta, SERVER_INFO_META_KEY: server_info}
    return {"resultType": "complete", **result, "_meta": meta}
