"""`/mcp` for clients of both protocol eras, as one raw ASGI endpoint.

The straight line of a POST: guard (host, origin) → principal → what the client takes and sends →
body → era → answer. The SDK's server would cost more than the rest of a call together, so only its
pure parts are used: the schemas, the ladder of checks and the table of statuses. The era is told by
the `MCP-Protocol-Version` header, as the SDK does it, and by the envelope where the header is
missing, so that a client of 2026 which forgot the header is told so.

The 2026 era (2026-07-28) is here, the eras before it are in `era_2025`. It has no sessions: every
request names its client and what that client can do. The SDK's own ladder of checks decides what a
request is and what is wrong with it: its envelope, its routing headers, and the headers of a call
against the tool's schema. Errors carry the HTTP status that the protocol gives them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from mcp.shared import inbound
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import PROTOCOL_VERSION_META_KEY
from mcp_types.jsonrpc import HEADER_MISMATCH, INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, KNOWN_PROTOCOL_VERSIONS
from starlette.exceptions import HTTPException
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Send
from starlette.types import Scope as HttpScope

from gateway.calls.record import Caller
from gateway.calls.send import UpstreamRequests
from gateway.errors import GatewayError, Unauthenticated
from gateway.limits import MAX_REMEMBERED, NAME_CHARS
from gateway.mcp.client_lists import ClientLists
from gateway.mcp.era_2025 import CLIENT_SPOKE, Era2025
from gateway.mcp.messages import (
    Message,
    Reply,
    RpcError,
    cached_if_small,
    check_params,
    error_body,
    notification,
    parse,
    read_message,
    result_body,
)
from gateway.mcp.methods import (
    Exchange,
    RequestStopped,
    RpcRequest,
    SharedParts,
    client_name,
    find_method,
    rpc_error,
    with_server_info,
)
from gateway.mcp.pass_through import PassThrough
from gateway.mcp.streams import WISH_MADE, ClientStream
from gateway.model import json_bytes, json_value
from gateway.store.client_lists import LISTED
from gateway.store.cluster import SESSION_ENDED, Signals, load_wishes
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.web.gateway import Gateway
from gateway.web.guard import (
    COMPLETE_BODY,
    JSON_TYPE,
    Fields,
    HostRules,
    check_host,
    event_frame,
    fold,
    read_body,
    require_json,
    respond,
)
from gateway.web.identity import Identity, view_address_of

_HANDSHAKE = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_KNOWN = frozenset(version.encode() for version in KNOWN_PROTOCOL_VERSIONS)
# What a page of another origin may do; its request itself is checked when it comes.
_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"*, authorization"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED = b"mcp-session-id, www-authenticate, retry-after"


class McpEndpoint:
    """The ASGI application under `/mcp`."""

    def __init__(
        self,
        gateway: Gateway,
        identity: Identity,
        requests: UpstreamRequests,
        seal: Seal,
        db: Database,
        rules: HostRules,
    ) -> None:
        self._rules = rules
        self._db = db
        pass_through = PassThrough(gateway, identity, requests, db)
        self.streams = pass_through.streams
        self._core = SharedParts(gateway, identity, pass_through, ClientLists(db))
        self._era_2025, self._era_2026 = Era2025(self._core, seal, db), Era2026(self._core)
        # When a client of each principal last spoke here, and what that client calls itself.
        self.contacts: dict[str, tuple[float, bytes]] = {}

    def listen_to(self, signals: Signals) -> None:
        """Hears what clients said to other processes."""
        signals.on(SESSION_ENDED, self._era_2025.hear_session_end)
        signals.on(CLIENT_SPOKE, self._era_2025.hear_client)
        signals.on(LISTED, self._core.client_lists.hear)
        signals.on(WISH_MADE, self._core.pass_through.wishes.hear)

    async def take_up_wishes(self) -> None:
        """Takes over the wishes of sessions from before this process began."""
        for wish in reversed(await load_wishes(self._db, time.time())):
            self._core.pass_through.wishes.take(wish)

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            exchange = await self._admit(scope, receive, send)
            if exchange is None:
                return
            if scope["method"] != "POST":
                await self._serve_other_method(scope["method"], exchange)
                return
            seconds = self._core.gateway.snapshot.settings.limits.request_seconds
            complete = COMPLETE_BODY in scope.get("extensions", ())
            body = await read_body(exchange.fields, receive, seconds=seconds, complete=complete)
            if not complete:  # the caller may have lost rights while the body came
                exchange = await self._admit(scope, receive, send)
                if exchange is None:
                    return
            value = parse(body)
            era = self._era_2026 if speaks_2026(exchange.fields, value) else self._era_2025
            await era.post(exchange, value)
        except HTTPException as refusal:
            body = error_body(None, RpcError(INVALID_REQUEST, refusal.detail))
            lines = [(k.encode(), v.encode()) for k, v in (refusal.headers or {}).items()]
            await respond(send, refusal.status_code, body, lines)
        except RpcError as error:  # the body is no request that could be answered
            await respond(send, 400, error_body(None, error))
        except ConnectionError:
            return  # the client left in the middle of its own request
        except Exception as error:
            await respond(send, 500, error_body(None, rpc_error(error)))

    async def _admit(self, scope: HttpScope, receive: Receive, send: Send) -> Exchange | None:
        """The request with its principal; None: it has been answered. Raises HTTPException."""
        address = view_address_of(scope["path"])
        if address is None:
            raise HTTPException(404, "Not Found")
        lines: list[tuple[bytes, bytes]] = scope["headers"]
        fields = fold(lines)
        check_host(self._rules, scope, fields)
        if b"origin" in fields:
            send = for_browser(send, fields[b"origin"])
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in fields:
                await respond(send, 204, headers=_PREFLIGHT)
                return None
        try:
            principal = await self._core.identity.identify(fields, address.path)
        except Unauthenticated as error:
            has_token = b"authorization" in fields
            challenge = self._core.identity.challenge(has_token, address.path)
            # Clients behind a proxy of their own see no status: the Inspector looks for this word.
            body = {"error": "invalid_token", "error_description": f"Unauthorized: {error}"}
            await respond(send, 401, json_bytes(body), [(b"www-authenticate", challenge)])
            return None
        agent = fields.get(b"user-agent", b"")[:NAME_CHARS]
        if len(self.contacts) >= MAX_REMEMBERED:
            self.contacts.clear()
        self.contacts[principal.name] = time.time(), agent
        takes_json, takes_stream = accepted_types(fields.get(b"accept", b""))
        if scope["method"] == "POST":
            if not takes_json:
                raise HTTPException(406, "Not Acceptable: Client must accept application/json")
            require_json(fields)
        return Exchange(principal, address, fields, lines, receive, send, takes_stream)

    async def _serve_other_method(self, method: str, exchange: Exchange) -> None:
        version = exchange.fields.get(b"mcp-protocol-version")
        is_2026 = version is not None and version not in _HANDSHAKE
        if is_2026 and version not in _KNOWN:
            raise HTTPException(400, "Bad Request: Unsupported protocol version")
        try:
            if method == "GET" and not is_2026:
                await self._era_2025.get(exchange)
            elif method == "DELETE" and not is_2026:
                await self._era_2025.delete(exchange)
            else:
                allow = "POST" if is_2026 else "GET, POST, DELETE"
                raise HTTPException(405, "Method Not Allowed", {"allow": allow})
        except GatewayError as error:
            raise HTTPException(404, error.message) from error

    def figures(self) -> dict[str, int]:
        """How many sessions, streams and calls are open in this process, for operators."""
        return {
            "sessions": len(self._era_2025.sessions),
            "streams": len(self.streams),
            "calls_in_flight": len(self._core.flights.in_flight),
        }


@lru_cache(maxsize=256)
def accepted_types(accept: bytes) -> tuple[bool, bool]:
    """Whether an Accept header takes JSON, and whether it takes an event stream."""
    types = {part.split(b";")[0].strip().lower() for part in accept.split(b",")}
    return (
        not types.isdisjoint((b"*/*", b"application/*", JSON_TYPE)),
        not types.isdisjoint((b"*/*", b"text/*", b"text/event-stream")),
    )


def for_browser(send: Send, origin: bytes) -> Send:
    """A `send` that lets a page of this origin, which was checked, read the answer."""
    lines = [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"origin"),
    ]

    async def send_readable(message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *lines]}
        await send(message)

    return send_readable


def speaks_2026(fields: Fields, value: object) -> bool:
    """Whether a POST speaks the 2026 era."""
    version = fields.get(b"mcp-protocol-version")
    if version is not None:
        return version not in _HANDSHAKE
    if not isinstance(value, dict) or value.get("method") == "initialize":
        return False
    params = value.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta


# --- the 2026 era ---------------------------------------------------------------------------------

_ROUTING = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")


class Era2026:
    """The requests of clients that repeat their name and capabilities in each request."""

    def __init__(self, core: SharedParts) -> None:
        self._core = core

    async def post(self, exchange: Exchange, value: object) -> None:
        """Answers one POST."""
        message = read_message(value)
        if message.kind == "response":
            raise RpcError(INVALID_REQUEST, "Invalid Request: there is nothing to respond to")
        if message.kind == "notification":
            # This wire has no client notifications to act on; clients in the field send some.
            _require_version(exchange)
            await respond(exchange.send, 202)
            return
        listens = message.method == "subscriptions/listen"
        if listens and not exchange.streaming:
            raise HTTPException(406, "Not Acceptable: Client must accept text/event-stream")
        reply = Reply(exchange.send, exchange.streaming)
        try:
            request = self._read_request(exchange, message, reply)
            if listens:
                await self._listen(request)
                return
            result = await find_method(request)(request)
            await reply.finish(200, result_body(message.id, result))
        except RequestStopped:
            return  # the client hung up: there is no reader for an answer
        except HTTPException:
            raise
        except Exception as error:
            failure = rpc_error(error, message.method)
            status = inbound.ERROR_CODE_HTTP_STATUS.get(failure.code, 200)
            await reply.finish(status, error_body(message.id, failure))

    def _read_request(self, exchange: Exchange, message: Message, reply: Reply) -> RpcRequest:
        """A request that has passed the SDK's ladder."""
        fields = exchange.fields
        if len(fields) != len(exchange.lines):
            names = [name for name, _ in exchange.lines if name.startswith(b"mcp-")]
            if len(names) != len(set(names)):
                raise RpcError(HEADER_MISMATCH, "An Mcp- header appears more than once")
        claims = (message.fixed_part, *map(fields.get, _ROUTING))
        check = cached_if_small(_check_ladder, sum(map(len, filter(None, claims))))
        version, client, capabilities = check(message.method, *claims)
        caller = Caller(exchange.principal, exchange.address, "2026", None, client, capabilities)
        return RpcRequest(self._core, exchange, message, caller, version, reply)

    async def _listen(self, request: RpcRequest) -> None:
        """Keeps the request's own answer open as the stream of changes it asked for."""
        exchange, message = request.exchange, request.message
        principal, address = exchange.principal, exchange.address
        check_params(message, request.version)
        filters: Mapping[str, Any] = message.params["notifications"]
        list_ids = self._core.streams.list_ids(principal, address, request.caller.client)
        flags = {"toolsListChanged": True} if filters.get("toolsListChanged") is True else {}
        holder = f"listen-{secrets.token_hex(8)}"
        meta = {SUBSCRIPTION_ID_META_KEY: message.id}
        result = json_bytes(with_server_info({"_meta": meta}))
        try:
            flags |= await self._core.pass_through.listen(holder, principal, address, filters)
            stream = ClientStream(
                principal,
                address,
                request.caller.client,
                exchange.fields.get(b"authorization"),
                holder=holder,
                kinds=[flag.removesuffix("ListChanged") for flag in flags],
                known_ids=list_ids,
                frame=lambda method, params, _: _frame(method, {**params, "_meta": meta}),
                first=_frame(
                    "notifications/subscriptions/acknowledged",
                    {"notifications": flags, "_meta": meta},
                ),
                last=event_frame(result_body(message.id, result)),
            )
            await self._core.streams.serve(stream, exchange.receive, exchange.send)
        finally:
            self._core.pass_through.wishes.forget(holder)


@lru_cache(maxsize=256)
def _check_ladder(
    method: str, params: bytes, *headers: bytes | None
) -> tuple[str, str, Mapping[str, Any]]:
    """The version, client and capabilities of a request that passes the SDK's ladder of checks.

    Raises RpcError for the check that failed.
    """
    pairs = zip(_ROUTING, headers, strict=True)
    texts = {name.decode(): value.decode("latin-1") for name, value in pairs if value is not None}
    body = {"method": method, "params": json_value(params)}
    route = inbound.classify_inbound_request(body, headers=texts)
    if isinstance(route, inbound.InboundLadderRejection):
        raise _rejection_error(route)
    claim = route.client_capabilities
    capabilities = claim if isinstance(claim, dict) else {}
    return route.protocol_version, client_name(route.client_info), capabilities


def _require_version(exchange: Exchange) -> None:
    version = exchange.fields.get(b"mcp-protocol-version", b"").decode("latin-1")
    rejection = inbound.unsupported_protocol_version_rejection(version)
    if rejection is not None:
        raise _rejection_error(rejection)


def _rejection_error(rejection: inbound.InboundLadderRejection) -> RpcError:
    return RpcError(rejection.code, rejection.message, rejection.data)


def _frame(method: str, params: Mapping[str, Any]) -> bytes:
    return event_frame(notification(method, params))
