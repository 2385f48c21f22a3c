"""The 2026 era: every request stands alone, and hanging up is how a client cancels.

The ladder of checks is the SDK's own (`mcp.shared.inbound`), in its order: body, routing headers,
envelope, version, then the `Mcp-Param-*` headers of a call against the tool's schema. Errors carry
the HTTP status that the protocol gives them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import orjson
from mcp_types import SERVER_INFO_META_KEY
from mcp_types.jsonrpc import HEADER_MISMATCH, INVALID_PARAMS, INVALID_REQUEST

from gateway.errors import GatewayError
from gateway.mcp.core import Core, Exchange, Request, client_name
from gateway.mcp.in_flight import Stopped
from gateway.mcp.messages import (
    Message,
    RequestId,
    RpcError,
    check_params,
    dump,
    error_body,
    error_status,
    inbound,
    notification,
    read_message,
    result_body,
    subscriptions,
)
from gateway.mcp.methods import answer
from gateway.mcp.streams import Reply
from gateway.mcp.subscriptions import Frames, Stream, Wants
from gateway.web.guard import Refusal, event_frame, respond

_ROUTING = tuple(
    (name, name.encode())
    for name in (
        inbound.MCP_PROTOCOL_VERSION_HEADER,
        inbound.MCP_METHOD_HEADER,
        inbound.MCP_NAME_HEADER,
    )
)


async def serve_post(core: Core, exchange: Exchange, value: object) -> None:
    """Answer one POST of the 2026 era."""
    message = read_message(value)
    if message.kind == "response":
        raise RpcError(INVALID_REQUEST, "Invalid Request: there is nothing to respond to")
    if message.kind == "notification":
        # This wire has no client notifications to act on; clients in the field send some anyway.
        _require_version(exchange)
        await respond(exchange.send, 202)
        return
    assert message.id is not None
    if message.method == "subscriptions/listen" and not exchange.streaming:
        raise Refusal(406, "Not Acceptable: Client must accept text/event-stream")
    reply = Reply(exchange.send, exchange.streaming)
    try:
        route = _route(core, exchange, message)
        if message.method == "subscriptions/listen":
            await _listen(core, exchange, message, route)
            return
        result = await answer(_request(core, exchange, message, route, reply))
        await reply.finish(200, result_body(message.id, result))
    except RpcError as error:
        await reply.finish(error_status(error), error_body(message.id, error))
    except GatewayError as error:  # an address that is nothing to this principal
        refused = RpcError(INVALID_PARAMS, error.message)
        await reply.finish(error_status(refused), error_body(message.id, refused))
    except Stopped:
        return  # the client hung up: nobody is there to be answered


def _require_version(exchange: Exchange) -> None:
    version = exchange.fields.get(b"mcp-protocol-version", b"").decode("latin-1")
    rejection = inbound.unsupported_protocol_version_rejection(version)
    if rejection is not None:
        raise _error(rejection)


def _route(core: Core, exchange: Exchange, message: Message) -> inbound.InboundModernRoute:
    """The SDK's ladder over one request. Raises RpcError for the first rung that fails."""
    fields = exchange.fields
    if len(fields) != len(exchange.lines):
        pairs = ((k.decode("latin-1"), v.decode("latin-1")) for k, v in exchange.lines)
        duplicated = inbound.find_duplicated_routing_header(pairs)
        if duplicated is not None:
            raise RpcError(HEADER_MISMATCH, f"{duplicated} header appears more than once")
    headers = {name: fields[raw].decode("latin-1") for name, raw in _ROUTING if raw in fields}
    verdict = inbound.classify_inbound_request(message.body, headers=headers)
    if isinstance(verdict, inbound.InboundLadderRejection):
        raise _error(verdict)
    if message.method == "tools/call":
        _check_param_headers(core, exchange, message.params or {})
    return verdict


def _check_param_headers(core: Core, exchange: Exchange, params: Mapping[str, Any]) -> None:
    name, arguments = params.get("name"), params.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        return  # the schema of the request says so better
    schema = core.surface.input_schema(exchange.principal, exchange.scope, name)
    if schema is None or b'"x-mcp-header"' not in schema:
        return
    rejection = inbound.validate_mcp_param_headers(
        orjson.loads(schema), arguments, _Lines(exchange.lines)
    )
    if rejection is not None:
        raise _error(rejection)


class _Lines(dict[str, str]):
    """Header lines as the SDK reads them: `items` shows every copy of a header."""

    def __init__(self, lines: list[tuple[bytes, bytes]]) -> None:
        self._pairs = [(k.decode("latin-1"), v.strip().decode("latin-1")) for k, v in lines]
        super().__init__(self._pairs)

    def items(self) -> Any:
        return self._pairs


def _error(rejection: inbound.InboundLadderRejection) -> RpcError:
    return RpcError(rejection.code, rejection.message, rejection.data)


def _request(
    core: Core,
    exchange: Exchange,
    message: Message,
    route: inbound.InboundModernRoute,
    reply: Reply,
) -> Request:
    capabilities = route.client_capabilities
    return Request(
        core,
        exchange,
        message,
        era="2026",
        version=route.protocol_version,
        reply=reply,
        client=client_name(route.client_info),
        capabilities=capabilities if isinstance(capabilities, Mapping) else {},
    )


async def _listen(
    core: Core, exchange: Exchange, message: Message, route: inbound.InboundModernRoute
) -> None:
    """Keep the request's own answer open as the stream of changes it asked for."""
    assert message.id is not None
    check_params(message.method, route.protocol_version, message.params)
    wanted: Mapping[str, Any] = (message.params or {})["notifications"]
    digest = core.surface.view(exchange.principal, exchange.scope).digest
    heard: dict[str, Any] = {}
    if wanted.get("toolsListChanged") is True:
        heard["toolsListChanged"] = True
    holder = f"listen-{secrets.token_hex(8)}"
    try:
        if core.offers is not None:
            principal, scope = exchange.principal, exchange.scope
            heard |= await core.offers.listen(holder, principal, scope, wanted)
        wants = Wants(
            holder,
            prompts="promptsListChanged" in heard,
            resources="resourcesListChanged" in heard,
        )
        frames = _frames(core, message.id, heard)
        stream = Stream(
            exchange.principal, exchange.scope, exchange.fields, frames, digest, wants=wants
        )
        await core.streams.serve(stream, exchange.receive, exchange.send)
    finally:
        if core.offers is not None:
            core.offers.forget(holder)


def _frames(core: Core, request_id: RequestId, heard: Mapping[str, Any]) -> Frames:
    meta = {subscriptions.SUBSCRIPTION_ID_META_KEY: request_id}
    acknowledged = notification(
        "notifications/subscriptions/acknowledged", {"notifications": heard, "_meta": meta}
    )
    changed = event_frame(notification("notifications/tools/list_changed", {"_meta": meta}))
    result = {
        "resultType": "complete",
        "_meta": {**meta, SERVER_INFO_META_KEY: core.server_info},
    }
    return Frames(
        event_frame(acknowledged),
        (lambda _: changed) if "toolsListChanged" in heard else (lambda _: b""),
        event_frame(result_body(request_id, dump(result))),
        lambda method, params: event_frame(notification(method, {**params, "_meta": meta})),
    )
