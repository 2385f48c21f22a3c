"""The 2025 era (2024-11-05 to 2025-11-25): a handshake, a session id, a GET stream.

A session lives in no process. Its id is a sealed value: its principal, which protocol version was
agreed, what the client can do. Any process with the key opens it, after a restart too; which
sessions were ended before their time is in the store. Opened ids are remembered, until another
process says that one was ended. A posted cancellation or answer that finds nothing in this process
is told to the other processes, because the request it names may run there.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from cachetools import LRUCache
from mcp_types.jsonrpc import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from starlette.exceptions import HTTPException

from gateway.calls.record import Caller
from gateway.errors import GatewayError
from gateway.limits import MAX_BATCH, MAX_REMEMBERED, SESSION_SECONDS
from gateway.mcp.messages import (
    Message,
    Reply,
    RpcError,
    check_params,
    error_body,
    is_request_id,
    notification,
    read_message,
    result_body,
)
from gateway.mcp.methods import (
    SERVER_INFO,
    Exchange,
    RequestStopped,
    RpcRequest,
    SharedParts,
    client_name,
    client_of,
    find_method,
    rpc_error,
)
from gateway.mcp.streams import ClientStream
from gateway.model import json_bytes
from gateway.store.cluster import end_session, is_ended, signal_soon
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.web.guard import event_frame, respond

BATCH_VERSION = "2025-03-26"  # the only version that has batches
ELICITATION_VERSION = "2025-06-18"  # the first version that has elicitation
RESUMING_VERSION = "2025-11-25"  # the first version whose clients read an event without data
SESSION_HEADER = b"mcp-session-id"
CLIENT_SPOKE = "mcp_said"  # the signal: a client's word on a request that runs in another process
USED_CAPABILITIES: Mapping[str, tuple[str, ...]] = {  # the capabilities we use, with their flags
    "elicitation": ("form", "url"),
    "sampling": ("tools",),
    "roots": (),
}

_PURPOSE = "mcp-session/1"  # one key seals other things too: none of them opens as a session
_EVENT_ID = re.compile(r"view-([0-9A-Za-z]{1,128})")


@dataclass(frozen=True, slots=True)
class SealedSession:
    """The terms that a client and the gateway agreed on in their handshake."""

    id: str
    principal: str
    protocol_version: str
    client: str
    capabilities: Mapping[str, Any]
    expires: float


class SealedSessions:
    """Makes session ids, opens them again, and knows which are over."""

    def __init__(self, seal: Seal, db: Database, clock: Callable[[], float] = time.time) -> None:
        self._seal = seal
        self._db = db
        self._clock = clock
        self._sessions: LRUCache[bytes, SealedSession] = LRUCache(MAX_REMEMBERED)

    def __len__(self) -> int:
        """The number of open sessions that this process has heard from lately."""
        return sum(session.expires > self._clock() for session in self._sessions.values())

    def create(
        self, principal: str, protocol_version: str, client: str, capabilities: Mapping[str, Any]
    ) -> tuple[SealedSession, bytes]:
        """A new session, and its id as it goes into the header; the id holds what we use."""
        features: dict[str, Any] = {
            name: {flag: {} for flag in flags if flag in offer}
            for name, flags in USED_CAPABILITIES.items()
            if isinstance(offer := capabilities.get(name), Mapping)
        }
        expires = int(self._clock() + SESSION_SECONDS)
        values = (secrets.token_hex(12), principal, protocol_version, client, features, expires)
        header = self._seal.seal_values(_PURPOSE, *values).encode()
        session = self._sessions[header] = SealedSession(*values)
        return session, header

    async def open(self, header: bytes, principal: str) -> SealedSession | None:
        """The session of this id, if it is this principal's and not over."""
        session = self._sessions.get(header)
        if session is None:
            values = self._seal.open_values(_PURPOSE, header.decode("latin-1"))
            if values is None or await is_ended(self._db, values[0]):
                return None
            session = self._sessions[header] = SealedSession(*values)
        alive = session.expires > self._clock() and session.principal == principal
        return session if alive else None

    def forget(self, session_id: str) -> None:
        """Forgets a session that was ended; "": any may have been, so all are looked up again."""
        for header, session in list(self._sessions.items()):
            if session_id in ("", session.id):
                del self._sessions[header]


class Era2025:
    """The requests of clients that open a session with a handshake."""

    def __init__(self, core: SharedParts, seal: Seal, db: Database) -> None:
        self._core = core
        self._db = db
        self.sessions = SealedSessions(seal, db)

    async def post(self, exchange: Exchange, value: object) -> None:
        """Answers one POST."""
        if isinstance(value, list):
            await self._post_batch(exchange, value)
            return
        message = read_message(value)
        if message.kind == "request" and message.method == "initialize":
            await self._initialize(exchange, message)
            return
        session = await self._open_session(exchange)
        if message.kind != "request":
            self._act_on(session, message)
            await respond(exchange.send, 202)
            return
        reply = Reply(exchange.send, exchange.streaming)
        await reply.finish(200, await self._answer(exchange, session, message, reply))

    async def _open_session(self, exchange: Exchange) -> SealedSession:
        """The session a request names. Raises HTTPException."""
        header = exchange.fields.get(SESSION_HEADER)
        if header is None:
            raise HTTPException(400, "Bad Request: Missing session ID")
        session = await self.sessions.open(header, exchange.principal.name)
        if session is None:
            raise HTTPException(404, "Session not found")
        return session

    async def _initialize(self, exchange: Exchange, message: Message) -> None:
        try:
            check_params(message, LATEST_HANDSHAKE_VERSION)
        except RpcError as error:
            await respond(exchange.send, 200, error_body(message.id, error))
            return
        params = message.params
        proposal = params["protocolVersion"]
        version = proposal if proposal in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        capabilities = dict(params["capabilities"])
        if version < ELICITATION_VERSION:
            capabilities.pop("elicitation", None)
        client, principal = client_name(params["clientInfo"]), exchange.principal
        session, header = self.sessions.create(principal.name, version, client, capabilities)
        snapshot, view, _ = self._core.gateway.look(principal, exchange.address, client)
        holder = client_of(_caller(exchange, session))
        self._core.client_lists.begin(holder, view, snapshot.revision)
        hello = await self._core.pass_through.hello(principal, exchange.address)
        result: dict[str, Any] = {
            "protocolVersion": version,
            "capabilities": hello.capabilities,
            "serverInfo": SERVER_INFO,
            "instructions": hello.instructions,
        }
        body = result_body(message.id, json_bytes(result))
        await respond(exchange.send, 200, body, [(SESSION_HEADER, header)])

    async def _answer(
        self, exchange: Exchange, session: SealedSession, message: Message, reply: Reply | None
    ) -> bytes:
        caller, version = _caller(exchange, session), session.protocol_version
        request = RpcRequest(self._core, exchange, message, caller, version, reply)
        try:
            return result_body(message.id, await find_method(request)(request))
        except RequestStopped:
            return error_body(message.id, RpcError(-32800, "Request cancelled"))
        except HTTPException as refusal:
            if reply is not None:
                raise
            return error_body(message.id, RpcError(INVALID_REQUEST, refusal.detail))
        except Exception as error:
            return error_body(message.id, rpc_error(error, message.method))

    def _act_on(self, session: SealedSession, message: Message) -> None:
        """Acts on a notification or a response; there is nothing to answer."""
        if message.kind == "response":
            if not self._core.flights.answer(session.id, message.id, message.body):
                self._tell_processes(session=session.id, answered=message.id, body=message.body)
        elif message.method == "notifications/cancelled":
            request_id = message.params.get("requestId")
            if is_request_id(request_id) and not self._core.flights.cancel(session.id, request_id):
                self._tell_processes(session=session.id, cancelled=request_id)

    def _tell_processes(self, **payload: Any) -> None:
        signal_soon(self._db, CLIENT_SPOKE, json_bytes(payload).decode())

    def hear_client(self, payload: str) -> None:
        """Acts on what a client said to another process."""
        message = orjson.loads(payload) if payload else {}
        if "cancelled" in message:
            self._core.flights.cancel(message["session"], message["cancelled"])
        elif "answered" in message:
            self._core.flights.answer(message["session"], message["answered"], message["body"])

    def hear_session_end(self, session_id: str) -> None:
        """Acts on the end of a session in any process; after a break, of perhaps several."""
        self.sessions.forget(session_id)
        self._core.pass_through.wishes.forget(session_id)
        self._core.streams.look_again()

    async def _post_batch(self, exchange: Exchange, values: list[Any]) -> None:
        session = await self._open_session(exchange)
        if session.protocol_version != BATCH_VERSION or not 0 < len(values) <= MAX_BATCH:
            reason = "Invalid Request: the body must be a single JSON-RPC object"
            raise RpcError(INVALID_REQUEST, reason)
        entries = (self._answer_entry(exchange, session, value) for value in values)
        bodies = [body for body in await asyncio.gather(*entries) if body is not None]
        if bodies:
            await respond(exchange.send, 200, b"[%b]" % b",".join(bodies))
        else:
            await respond(exchange.send, 202)

    async def _answer_entry(
        self, exchange: Exchange, session: SealedSession, value: object
    ) -> bytes | None:
        try:
            message = read_message(value)
        except RpcError as error:
            return error_body(None, error)
        if message.kind != "request":
            self._act_on(session, message)
            return None
        if message.method == "initialize":
            reason = "Invalid Request: initialize can't be part of a batch"
            return error_body(message.id, RpcError(INVALID_REQUEST, reason))
        return await self._answer(exchange, session, message, None)

    async def get(self, exchange: Exchange) -> None:
        """Opens the stream on which a session hears of changes."""
        if not exchange.streaming:
            raise HTTPException(406, "Not Acceptable: Client must accept text/event-stream")
        session, streams = await self._open_session(exchange), self._core.streams
        key = session.id, exchange.address
        list_ids = streams.list_ids(exchange.principal, exchange.address, session.client)
        # The event id is the digest of the view the client was last told of: a client that comes
        # back with its id learns at once of what it missed, whichever process it comes back to. A
        # client that has just listed learns of what changed before its stream was open.
        match = _EVENT_ID.fullmatch(exchange.fields.get(b"last-event-id", b"").decode("latin-1"))
        known_id = (match and match[1]) or streams.tool_list_ids.get(key) or list_ids["tools"]
        reads_ids = session.protocol_version >= RESUMING_VERSION
        stream = ClientStream(
            exchange.principal,
            exchange.address,
            session.client,
            exchange.fields.get(b"authorization"),
            holder=session.id,
            kinds=("tools", "prompts", "resources", "logs"),
            known_ids=list_ids,
            frame=lambda method, params, id: _frame(notification(method, params or None), id),
            first=_frame(b"", known_id) if reads_ids else b"",
            is_alive=partial(self._is_alive, exchange),
        )
        if known_id != list_ids["tools"]:
            stream.tell_changed("tools", list_ids["tools"])
        streams.tool_list_ids[key] = list_ids["tools"]
        await streams.serve(stream, exchange.receive, exchange.send)

    async def _is_alive(self, exchange: Exchange) -> bool:
        try:
            await self._open_session(exchange)
        except HTTPException:
            return False
        except GatewayError:
            return True  # the store is away: a later check finds out
        return True

    async def delete(self, exchange: Exchange) -> None:
        """Ends a session."""
        session = await self._open_session(exchange)
        await end_session(self._db, session.id, session.expires)
        self.hear_session_end(session.id)
        await respond(exchange.send, 200)


def _caller(exchange: Exchange, session: SealedSession) -> Caller:
    client = (session.id, session.client, session.capabilities)
    return Caller(exchange.principal, exchange.address, "2025", *client)


def _frame(data: bytes, list_id: str | None) -> bytes:
    return event_frame(data, id=None if list_id is None else f"view-{list_id}")
