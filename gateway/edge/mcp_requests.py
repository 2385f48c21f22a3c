"""What both eras serve: one table from method to the function that answers it.

A function gets the request with everything known of its client and returns the result as JSON. The
SDK's schema for the request's protocol version decides whether a method exists there and whether
its params are right, so a method that only one era has needs no word here.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from mcp_types import (
    SERVER_INFO_META_KEY,
    DiscoverResult,
    Implementation,
    ServerCapabilities,
    ToolsCapability,
)
from mcp_types import methods as sdk_methods
from mcp_types.jsonrpc import INVALID_PARAMS
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from starlette.types import Receive, Send

from gateway.edge.http_guard import (
    MAX_BODY_BYTES,
    REQUEST_SECONDS,
    Fields,
    HostRules,
    host_rules,
)
from gateway.edge.identity import Identity
from gateway.edge.mcp_calls import Calls, Flight, Relay, Stopped
from gateway.edge.mcp_messages import (
    Message,
    RpcError,
    check_params,
    dump,
    internal_error,
    method_not_found,
    notification,
    progress_token,
)
from gateway.edge.mcp_streams import Attendant, Reply, event
from gateway.edge.sessions import MAX_CLIENT_CHARS, Sessions
from gateway.edge.subscriptions import MAX_STREAMS_PER_PRINCIPAL, Streams
from gateway.edge.surface import CallContext, Elicit, Era, Progress, Surface
from gateway.errors import GatewayError, UnknownTool
from gateway.model import Principal
from gateway.policy.view import Scope

MAX_NAME_ECHO = 256
MAX_LOGGED_FRAMES = 4

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """What the MCP edge is told at start."""

    public_url: str = "http://127.0.0.1:8080"
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    name: str = "dynamic-mcp-gateway"
    title: str = "Dynamic MCP gateway"
    version: str = "0.1.0"
    instructions: str | None = None
    list_ttl_ms: int = 0  # how long a client may believe a list without asking again
    max_streams_per_principal: int = MAX_STREAMS_PER_PRINCIPAL
    max_body_bytes: int = MAX_BODY_BYTES
    request_seconds: float = REQUEST_SECONDS


class Core:
    """What all requests share."""

    def __init__(
        self,
        surface: Surface,
        identity: Identity,
        sessions: Sessions,
        settings: EdgeSettings,
        relay: Relay | None,
    ) -> None:
        self.surface = surface
        self.identity = identity
        self.sessions = sessions
        self.settings = settings
        self.relay = relay
        self.calls = Calls()
        self.streams = Streams(surface, identity, settings.max_streams_per_principal)
        self.rules: HostRules = host_rules(
            settings.public_url, settings.allowed_hosts, settings.allowed_origins
        )
        info = Implementation(name=settings.name, title=settings.title, version=settings.version)
        self.server_info = info.model_dump(by_alias=True, mode="json", exclude_none=True)
        self.stamp = dump({SERVER_INFO_META_KEY: self.server_info})
        self.discovered = _discovered(self)
        self.list_suffix = (
            b',"resultType":"complete","ttlMs":%d,"cacheScope":"private","_meta":%b'
            % (
                settings.list_ttl_ms,
                self.stamp,
            )
        )


def _discovered(core: Core) -> bytes:
    result = DiscoverResult(
        supported_versions=list(MODERN_PROTOCOL_VERSIONS),
        capabilities=ServerCapabilities(tools=ToolsCapability(list_changed=True)),
        instructions=core.settings.instructions,
        ttl_ms=core.settings.list_ttl_ms,
        cache_scope="private",
    )
    wire = sdk_methods.serialize_server_result(
        "server/discover",
        LATEST_MODERN_VERSION,
        result.model_dump(by_alias=True, mode="json", exclude_none=True),
    )
    return dump({**wire, "_meta": {SERVER_INFO_META_KEY: core.server_info}})


@dataclass(slots=True)
class Exchange:
    """One HTTP request, past the guard and with its principal."""

    principal: Principal
    scope: Scope
    fields: Fields
    lines: list[tuple[bytes, bytes]]
    receive: Receive
    send: Send
    streaming: bool  # the client takes an event stream


@dataclass(slots=True)
class Request:
    """One JSON-RPC request and what is known of who sent it."""

    core: Core
    exchange: Exchange
    message: Message
    era: Era
    version: str
    reply: Reply | None = None  # None: within a batch, where nothing can be said before the answer
    session: str | None = None
    client: str = ""
    capabilities: Mapping[str, Any] = field(default_factory=dict)


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
    return request.core.discovered


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
    core, params = request.core, request.message.params or {}
    flight = core.calls.begin(request.session, request.message.id or 0)
    attendant = _attendant(request, flight)
    try:
        result = await flight.run(_outcome(request, params))
    finally:
        core.calls.end(flight, request.session, request.message.id or 0)
        if attendant is not None:
            attendant.dismiss()
    if request.era == "2026":
        result = _stamped(result, core.server_info)
    return dump(result)


async def _outcome(request: Request, params: Mapping[str, Any]) -> dict[str, Any]:
    context = _context(request, params)
    try:
        return await request.core.surface.call(
            params["name"], params.get("arguments") or {}, context
        )
    except UnknownTool as error:
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {error.name[:MAX_NAME_ECHO]}") from None
    except GatewayError as error:
        return tool_error(error)


def tool_error(error: GatewayError) -> dict[str, Any]:
    """A failed call as a result the model can read."""
    text = f"{error.message} {error.hint}".strip()
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": {"error": error.as_dict()},
        "isError": True,
    }


METHODS: dict[str, Callable[[Request], Awaitable[bytes]]] = {
    "ping": _ping,
    "server/discover": _discover,
    "tools/list": _list_tools,
    "tools/call": _call_tool,
}


def _attendant(request: Request, flight: Flight) -> Attendant | None:
    if request.reply is None:
        return None
    # Only in the 2026 era does hanging up mean that the call is not wanted any more.
    on_gone = (lambda: flight.stop("gone")) if request.era == "2026" else None
    return Attendant(request.exchange.receive, request.reply, on_gone)


def _context(request: Request, params: Mapping[str, Any]) -> CallContext:
    exchange = request.exchange
    meta = params.get("_meta") or {}
    return CallContext(
        principal=exchange.principal,
        scope=exchange.scope,
        era=request.era,
        protocol_version=request.version,
        session=request.session,
        client=request.client,
        capabilities=request.capabilities,
        meta=meta,
        progress=_progress(request, meta),
        elicit=_elicit(request),
        input_responses=params.get("inputResponses"),
        request_state=params.get("requestState"),
        gone=None if request.reply is None else request.reply.is_gone,
    )


def _progress(request: Request, meta: Mapping[str, Any]) -> Progress | None:
    token, reply = progress_token(meta), request.reply
    if token is None or reply is None or not reply.streaming:
        return None

    async def progress(done: float, total: float | None, message: str | None) -> None:
        params: dict[str, Any] = {"progressToken": token, "progress": done}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        reply.say(event(notification("notifications/progress", params)))

    return progress


def _elicit(request: Request) -> Elicit | None:
    reply, session = request.reply, request.session
    if request.era != "2025" or reply is None or not reply.streaming or session is None:
        return None
    if request.version < "2025-06-18" or not takes_forms(request.capabilities):
        return None
    calls = request.core.calls

    async def elicit(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        params = {"message": message, "requestedSchema": schema}
        return await calls.ask(session, reply, "elicitation/create", params)

    return elicit


def takes_forms(capabilities: Mapping[str, Any]) -> bool:
    """Whether a client can be asked with a form: `elicitation: {}` says so, as `form` does."""
    elicitation = capabilities.get("elicitation")
    if not isinstance(elicitation, Mapping):
        return False
    return "form" in elicitation or "url" not in elicitation


def client_name(info: object) -> str:
    """`name/version` as a client says it, bounded."""
    if not isinstance(info, Mapping):
        return ""
    return f"{info.get('name', '')}/{info.get('version', '')}"[:MAX_CLIENT_CHARS]


def _stamped(result: dict[str, Any], server_info: dict[str, Any]) -> dict[str, Any]:
    meta = result.get("_meta") or {}
    if meta.get(SERVER_INFO_META_KEY) is None:
        meta = {**meta, SERVER_INFO_META_KEY: server_info}
    return {"resultType": "complete", **result, "_meta": meta}
