"""The 2026 era (2026-07-28): no sessions; every request says who sends it and what it can do.

The SDK's own ladder of checks decides what a request is and what is wrong with it: its envelope,
its routing headers, and the headers of a call against the tool's schema. Errors carry the HTTP
status that the protocol gives them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import orjson
from mcp.shared import inbound
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import SERVER_INFO_META_KEY
from mcp_types.jsonrpc import HEADER_MISMATCH, INVALID_REQUEST

from gateway.mcp.messages import (
    Message,
    RpcError,
    check_params,
    error_body,
    notification,
    read_message,
    result_body,
)
from gateway.mcp.methods import (
    SERVER_INFO,
    Core,
    Exchange,
    RpcRequest,
    Stopped,
    client_name,
    find_method,
    rpc_error,
)
from gateway.mcp.streams import ClientStream, Reply
from gateway.model import json_bytes
from gateway.web.guard import RefusedRequest, event_frame, respond

_ROUTING = tuple(
    (name, name.encode())
    for name in (
        inbound.MCP_PROTOCOL_VERSION_HEADER,
        inbound.MCP_METHOD_HEADER,
        inbound.MCP_NAME_HEADER,
    )
)


class Era2026:
    """The requests of clients that say everything with each of them."""

    def __init__(self, core: Core) -> None:
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
            raise RefusedRequest(406, "Not Acceptable: Client must accept text/event-stream")
        reply = Reply(exchange.send, exchange.streaming)
        try:
            request = self._request(exchange, message, reply)
            if listens:
                await self._listen(request)
                return
            result = await find_method(request)(request)
            await reply.finish(200, result_body(message.id, result))
        except Stopped:
            return  # the client hung up: nobody is there to be answered
        except RefusedRequest:
            raise
        except Exception as error:
            failed = rpc_error(error, message.method)
            status = inbound.ERROR_CODE_HTTP_STATUS.get(failed.code, 200)
            await reply.finish(status, error_body(message.id, failed))

    def _request(self, exchange: Exchange, message: Message, reply: Reply) -> RpcRequest:
        """A request that has passed the SDK's ladder. Raises RpcError for the rung that failed."""
        fields = exchange.fields
        if len(fields) != len(exchange.lines):
            pairs = ((k.decode("latin-1"), v.decode("latin-1")) for k, v in exchange.lines)
            duplicated = inbound.find_duplicated_routing_header(pairs)
            if duplicated is not None:
                raise RpcError(HEADER_MISMATCH, f"{duplicated} header appears more than once")
        headers = {name: fields[raw].decode("latin-1") for name, raw in _ROUTING if raw in fields}
        route = inbound.classify_inbound_request(message.body, headers=headers)
        if isinstance(route, inbound.InboundLadderRejection):
            raise _error(route)
        if message.method == "tools/call":
            self._check_param_headers(exchange, message.params)
        capabilities = route.client_capabilities
        return RpcRequest(
            self._core,
            exchange,
            message,
            era="2026",
            version=route.protocol_version,
            reply=reply,
            client=client_name(route.client_info),
            capabilities=capabilities if isinstance(capabilities, Mapping) else {},
        )

    def _check_param_headers(self, exchange: Exchange, params: Mapping[str, Any]) -> None:
        """Checks the headers of a call that repeat its arguments, where the tool's schema asks."""
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            return  # the schema of the request says so better
        schema = self._core.gateway.input_schema(exchange.principal, exchange.scope, name)
        if schema is None or b'"x-mcp-header"' not in schema:
            return
        rejection = inbound.validate_mcp_param_headers(
            orjson.loads(schema), arguments, _HeaderLines(exchange.lines)
        )
        if rejection is not None:
            raise _error(rejection)

    async def _listen(self, request: RpcRequest) -> None:
        """Keeps the request's own answer open as the stream of changes it asked for."""
        exchange, message = request.exchange, request.message
        principal, scope = exchange.principal, exchange.scope
        check_params(message, request.version)
        wanted: Mapping[str, Any] = message.params["notifications"]
        lists = self._core.streams.lists(principal, scope)
        heard = {"toolsListChanged": True} if wanted.get("toolsListChanged") is True else {}
        holder = f"listen-{secrets.token_hex(8)}"
        meta = {SUBSCRIPTION_ID_META_KEY: message.id}
        result = {
            "resultType": "complete",
            "_meta": {**meta, SERVER_INFO_META_KEY: SERVER_INFO},
        }
        try:
            heard |= await self._core.pass_through.listen(holder, principal, scope, wanted)
            stream = ClientStream(
                principal,
                scope,
                exchange.fields.get(b"authorization"),
                holder=holder,
                hears=[flag.removesuffix("ListChanged") for flag in heard],
                known=lists,
                frame=lambda method, params, _: _frame(method, {**params, "_meta": meta}),
                first=_frame(
                    "notifications/subscriptions/acknowledged",
                    {"notifications": heard, "_meta": meta},
                ),
                last=event_frame(result_body(message.id, json_bytes(result))),
            )
            await self._core.streams.serve(stream, exchange.receive, exchange.send)
        finally:
            self._core.pass_through.wishes.forget(holder)


def _require_version(exchange: Exchange) -> None:
    version = exchange.fields.get(b"mcp-protocol-version", b"").decode("latin-1")
    rejection = inbound.unsupported_protocol_version_rejection(version)
    if rejection is not None:
        raise _error(rejection)


def _error(rejection: inbound.InboundLadderRejection) -> RpcError:
    return RpcError(rejection.code, rejection.message, rejection.data)


def _frame(method: str, params: Mapping[str, Any]) -> bytes:
    return event_frame(notification(method, params))


class _HeaderLines(dict[str, str]):
    """Header lines as the SDK reads them: `items` shows every copy of a header."""

    def __init__(self, lines: list[tuple[bytes, bytes]]) -> None:
        self._pairs = [(k.decode("latin-1"), v.strip().decode("latin-1")) for k, v in lines]
        super().__init__(self._pairs)

    def items(self) -> Any:
        return self._pairs
