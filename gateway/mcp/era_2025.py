"""The 2025 era (2024-11-05 to 2025-11-25): a handshake, a session id, a GET stream.

The session id is sealed (see `sessions`), so nothing here outlives its request but open streams
and calls in flight. A posted cancellation or answer that finds nothing in this process is handed to
the relay, because the request it speaks of may run in another.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from mcp_types.jsonrpc import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION

from gateway.errors import GatewayError
from gateway.mcp.core import Core, Exchange, Request, client_name
from gateway.mcp.in_flight import Stopped
from gateway.mcp.messages import (
    REQUEST_CANCELLED,
    Message,
    RpcError,
    check_params,
    dump,
    error_body,
    is_request_id,
    notification,
    read_message,
    result_body,
)
from gateway.mcp.methods import answer
from gateway.mcp.sessions import Session
from gateway.mcp.streams import Reply
from gateway.mcp.subscriptions import Frames, Stream, Wants
from gateway.mcp.surface import Hello
from gateway.web.guard import Refusal, event_frame, respond

BATCH_VERSION = "2025-03-26"  # the one version that has batches
ELICITATION_VERSION = "2025-06-18"  # the first one that has it
MAX_BATCH = 50
RETRY_MS = 2000
SESSION_HEADER = b"mcp-session-id"

_EVENT_ID = re.compile(r"view-[0-9A-Za-z]{1,128}")
_CHANGED = notification("notifications/tools/list_changed")


async def serve_post(core: Core, exchange: Exchange, value: object) -> None:
    """Answer one POST of the 2025 era."""
    if isinstance(value, list):
        await _serve_batch(core, exchange, value)
        return
    message = read_message(value)
    if message.kind == "request" and message.method == "initialize":
        await _initialize(core, exchange, message)
        return
    session = open_session(core, exchange)
    if message.kind != "request":
        _take_note(core, session, message)
        await respond(exchange.send, 202)
        return
    reply = Reply(exchange.send, exchange.streaming)
    await reply.finish(200, await _answered(_request(core, exchange, session, message, reply)))


def open_session(core: Core, exchange: Exchange) -> Session:
    """The session a request names. Raises Refusal."""
    header = exchange.fields.get(SESSION_HEADER)
    if header is None:
        raise Refusal(400, "Bad Request: Missing session ID")
    session = core.sessions.open(header, exchange.principal.name)
    if session is None:
        raise Refusal(404, "Session not found")
    return session


async def _initialize(core: Core, exchange: Exchange, message: Message) -> None:
    assert message.id is not None
    try:
        check_params("initialize", LATEST_HANDSHAKE_VERSION, message.params)
    except RpcError as error:
        await respond(exchange.send, 200, error_body(message.id, error))
        return
    params = message.params or {}
    asked = params["protocolVersion"]
    version = asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
    capabilities = dict(params["capabilities"])
    if version < ELICITATION_VERSION:
        capabilities.pop("elicitation", None)
    session_id = core.sessions.create(
        exchange.principal.name, version, client_name(params["clientInfo"]), capabilities
    )
    hello = await _hello(core, exchange)
    result: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": True}, **hello.capabilities},
        "serverInfo": core.server_info,
    }
    if instructions := hello.instructions or core.settings.instructions:
        result["instructions"] = instructions
    body = result_body(message.id, dump(result))
    await respond(exchange.send, 200, body, [(SESSION_HEADER, session_id)])


async def _hello(core: Core, exchange: Exchange) -> Hello:
    if core.offers is None:
        return Hello()
    try:
        return await core.offers.hello(exchange.principal, exchange.scope)
    except GatewayError:
        return Hello()  # an address that is nothing to this principal says so when it is used


def _request(
    core: Core, exchange: Exchange, session: Session, message: Message, reply: Reply | None
) -> Request:
    return Request(
        core,
        exchange,
        message,
        era="2025",
        version=session.protocol_version,
        reply=reply,
        session=session.id,
        client=session.client,
        capabilities=session.capabilities,
    )


async def _answered(request: Request) -> bytes:
    request_id = request.message.id
    assert request_id is not None
    try:
        return result_body(request_id, await answer(request))
    except RpcError as error:
        return error_body(request_id, error)
    except Stopped:
        return error_body(request_id, RpcError(REQUEST_CANCELLED, "Request cancelled"))


def _take_note(core: Core, session: Session, message: Message) -> None:
    """Act on a notification or a response; there is nothing to answer."""
    if message.kind == "response":
        assert message.id is not None
        known = core.calls.answer(session.id, message.id, message.body)
        if not known and core.relay is not None:
            core.relay.answered(session.id, message.id, message.body)
    elif message.method == "notifications/cancelled":
        request_id = (message.params or {}).get("requestId")
        if not is_request_id(request_id):
            return
        if not core.calls.cancel(session.id, request_id) and core.relay is not None:
            core.relay.cancelled(session.id, request_id)


async def _serve_batch(core: Core, exchange: Exchange, values: list[Any]) -> None:
    session = open_session(core, exchange)
    if session.protocol_version != BATCH_VERSION or not 0 < len(values) <= MAX_BATCH:
        raise RpcError(
            INVALID_REQUEST, "Invalid Request: the body must be a single JSON-RPC object"
        )
    answers = await asyncio.gather(
        *(_batch_entry(core, exchange, session, value) for value in values)
    )
    bodies = [body for body in answers if body is not None]
    if bodies:
        await respond(exchange.send, 200, b"[%b]" % b",".join(bodies))
    else:
        await respond(exchange.send, 202)


async def _batch_entry(
    core: Core, exchange: Exchange, session: Session, value: object
) -> bytes | None:
    try:
        message = read_message(value)
    except RpcError as error:
        return error_body(None, error)
    if message.kind != "request":
        _take_note(core, session, message)
        return None
    if message.method == "initialize":
        what = "Invalid Request: initialize can't be part of a batch"
        return error_body(message.id, RpcError(INVALID_REQUEST, what))
    return await _answered(_request(core, exchange, session, message, None))


async def serve_get(core: Core, exchange: Exchange) -> None:
    """Open the stream on which a session hears of changes."""
    if not exchange.streaming:
        raise Refusal(406, "Not Acceptable: Client must accept text/event-stream")
    session = open_session(core, exchange)
    digest = core.surface.view(exchange.principal, exchange.scope).digest
    # The event id is the digest of the view the client was last told of: a client that comes back
    # with one learns at once of what it missed, whichever replica it comes back to. One that has
    # just listed learns of what changed before its stream was open.
    known = _told_before(exchange) or core.streams.noted(session.id, exchange.scope) or digest
    stream = Stream(
        exchange.principal,
        exchange.scope,
        exchange.fields,
        Frames(
            _first_frame(session, known),
            lambda new: event_frame(_CHANGED, id=_event_id(new)),
            notice=lambda method, params: event_frame(notification(method, params or None)),
        ),
        known,
        session.id,
        lambda: core.sessions.alive(session),
        wants=Wants(session.id, prompts=True, resources=True, logs=True),
    )
    if known != digest:
        stream.tell_changed(digest)
    core.streams.note(session.id, exchange.scope, digest)
    await core.streams.serve(stream, exchange.receive, exchange.send)


def _event_id(digest: str) -> str:
    return f"view-{digest}"


def _told_before(exchange: Exchange) -> str | None:
    last = exchange.fields.get(b"last-event-id", b"").decode("latin-1")
    return last.removeprefix("view-") if _EVENT_ID.fullmatch(last) else None


def _first_frame(session: Session, digest: str) -> bytes:
    if session.protocol_version >= "2025-11-25":
        return b"id: %b\r\nretry: %d\r\ndata: \r\n\r\n" % (_event_id(digest).encode(), RETRY_MS)
    return b"retry: %d\r\n\r\n" % RETRY_MS  # older clients can't read an event without data


async def serve_delete(core: Core, exchange: Exchange) -> None:
    """End a session."""
    session = open_session(core, exchange)
    await core.sessions.end(exchange.fields[SESSION_HEADER], session)
    if core.offers is not None:
        core.offers.forget(session.id)
    core.streams.look_again()
    await respond(exchange.send, 200)
