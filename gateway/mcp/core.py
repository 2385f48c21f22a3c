"""What all requests share, and what is known of one.

The SDK's own models write what `server/discover` says, once for views that have tools and nothing
else, and for each other view as it is asked for.

How the client of one request can be reached while it waits.

Progress, questions and log messages go ahead of the answer on the request's own stream, if the
client takes one. Who can't be reached has None there, and whoever asks finds another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from mcp_types import (
    LOG_LEVEL_META_KEY,
    SERVER_INFO_META_KEY,
    DiscoverResult,
    Implementation,
    ServerCapabilities,
)
from mcp_types import methods as sdk_methods
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from starlette.types import Receive, Send

from gateway.calls.record import AskClient, Caller, Era, Notice, Progress
from gateway.limits import MAX_BODY_BYTES, REQUEST_SECONDS
from gateway.mcp.in_flight import Calls, Relay
from gateway.mcp.messages import Message, dump, notification, progress_token
from gateway.mcp.sessions import MAX_CLIENT_CHARS, Sessions
from gateway.mcp.streams import Reply
from gateway.mcp.subscriptions import MAX_STREAMS_PER_PRINCIPAL, Streams
from gateway.mcp.surface import Hello, Offers, Surface
from gateway.mcp.wishes import reaches
from gateway.model import Principal
from gateway.policy.view import Scope
from gateway.upstream.protocol import LOGGED
from gateway.web.guard import Fields, HostRules, event_frame, host_rules
from gateway.web.identity import Identity


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
        offers: Offers | None = None,
    ) -> None:
        self.surface = surface
        self.offers = offers
        self.identity = identity
        self.sessions = sessions
        self.settings = settings
        self.relay = relay
        self.calls = Calls()
        self.streams = Streams(surface, identity, settings.max_streams_per_principal, offers)
        self.rules: HostRules = host_rules(
            settings.public_url, settings.allowed_hosts, settings.allowed_origins
        )
        info = Implementation(name=settings.name, title=settings.title, version=settings.version)
        self.server_info = info.model_dump(by_alias=True, mode="json", exclude_none=True)
        self.stamp = dump({SERVER_INFO_META_KEY: self.server_info})
        self.discovered = discovered(self, Hello())
        self.list_suffix = (
            b',"resultType":"complete","ttlMs":%d,"cacheScope":"private","_meta":%b'
            % (
                settings.list_ttl_ms,
                self.stamp,
            )
        )


def discovered(core: Core, hello: Hello) -> bytes:
    """What `server/discover` answers where the view has this beside its tools."""
    capabilities = {"tools": {"listChanged": True}, **hello.capabilities}
    result = DiscoverResult(
        supported_versions=list(MODERN_PROTOCOL_VERSIONS),
        capabilities=ServerCapabilities.model_validate(capabilities),
        instructions=hello.instructions or core.settings.instructions,
        ttl_ms=core.settings.list_ttl_ms,
        cache_scope="private",
    )
    wire = sdk_methods.serialize_server_result(
        "server/discover",
        LATEST_MODERN_VERSION,
        result.model_dump(by_alias=True, mode="json", exclude_none=True),
    )
    return dump({**wire, "_meta": {SERVER_INFO_META_KEY: core.server_info}})


class Exchange(msgspec.Struct):
    """One HTTP request, past the guard and with its principal."""

    principal: Principal
    scope: Scope
    fields: Fields
    lines: list[tuple[bytes, bytes]]
    receive: Receive
    send: Send
    streaming: bool  # the client takes an event stream


class Request(msgspec.Struct):
    """One JSON-RPC request and what is known of who sent it."""

    core: Core
    exchange: Exchange
    message: Message
    era: Era
    version: str
    reply: Reply | None = None  # None: within a batch, where nothing can be said before the answer
    session: str | None = None
    client: str = ""
    capabilities: Mapping[str, Any] = msgspec.field(default_factory=dict)


def client_name(info: object) -> str:
    """`name/version` as a client says it, bounded."""
    if not isinstance(info, Mapping):
        return ""
    return f"{info.get('name', '')}/{info.get('version', '')}"[:MAX_CLIENT_CHARS]


def context_of(request: Request, params: Mapping[str, Any]) -> Caller:
    """What a request knows of its client."""
    exchange = request.exchange
    meta = params.get("_meta") or {}
    return Caller(
        principal=exchange.principal,
        scope=exchange.scope,
        era=request.era,
        session=request.session,
        client=request.client,
        capabilities=request.capabilities,
        meta=meta,
        progress=_progress(request, meta),
        ask=_ask(request),
        input_responses=params.get("inputResponses"),
        request_state=params.get("requestState"),
        gone=None if request.reply is None else request.reply.is_gone,
        notice=_notice(request, meta),
        log_level=_log_level(request, meta),
    )


def _notice(request: Request, meta: Mapping[str, Any]) -> Notice | None:
    """Says a server's log messages on the request's own stream; in 2026 only if asked to."""
    reply, offers = request.reply, request.core.offers
    if offers is None or reply is None or not reply.streaming:
        return None
    wanted = _log_level(request, meta)
    if wanted is None and request.era == "2026":
        return None

    def notice(method: str, params: Mapping[str, Any]) -> None:
        known = method == LOGGED or request.era == "2025"
        if known and reaches(params.get("level"), wanted):
            reply.say(event_frame(notification(method, params)))

    return notice


def _log_level(request: Request, meta: Mapping[str, Any]) -> str | None:
    if request.era == "2026":
        level = meta.get(LOG_LEVEL_META_KEY)
        return level if isinstance(level, str) else None
    offers = request.core.offers
    return None if offers is None else offers.log_level(request.session)


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
        reply.say(event_frame(notification("notifications/progress", params)))

    return progress


def _ask(request: Request) -> AskClient | None:
    reply, session = request.reply, request.session
    if request.era != "2025" or reply is None or not reply.streaming or session is None:
        return None
    return None if not request.capabilities else partial(request.core.calls.ask, session, reply)
