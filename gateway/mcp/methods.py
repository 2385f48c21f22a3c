"""What both eras serve: one table from method to the function that answers it.

A function gets the request with everything known of its client and returns the result as JSON. The
SDK's schema for the request's protocol version decides whether a method exists there and whether
its params are right, so a method that only one era has needs no rule here. A call runs in the task
of its own HTTP request, so two requests with one id can't be crossed; what a client names by id (a
cancellation, the answer to a question) is looked up by session and id.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import TracebackType
from typing import Any

import msgspec
import structlog
from mcp.shared.inbound import validate_mcp_param_headers
from mcp_types import LOG_LEVEL_META_KEY, SERVER_INFO_META_KEY
from mcp_types import methods as sdk_methods
from mcp_types.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.exceptions import HTTPException
from starlette.types import Receive, Send

from gateway import __version__
from gateway.calls.admission import CANCEL
from gateway.calls.call import describe_failure
from gateway.calls.questions import fallback_answer
from gateway.calls.record import AskClient, Caller, Progress, name_of_client
from gateway.calls.record import Notice as TakeNotice
from gateway.calls.result_forms import error_result, fit_result
from gateway.errors import GatewayError, InsufficientScope, UnknownTool, UpstreamRefused
from gateway.limits import MAX_REMEMBERED, NAME_CHARS, WATCH_AFTER_SECONDS
from gateway.mcp.client_lists import ClientLists
from gateway.mcp.messages import (
    Message,
    Reply,
    RequestId,
    RpcError,
    check_params,
    is_request_id,
    method_not_found,
    notification,
)
from gateway.mcp.pass_through import HANDLERS, PassThrough
from gateway.mcp.streams import LOGGED, reaches
from gateway.model import Principal, Result, ViewAddress, json_bytes, json_value
from gateway.naming import cut, visible
from gateway.store.client_lists import ListHolder
from gateway.web.gateway import Gateway, Inquiry
from gateway.web.guard import Fields, event_frame
from gateway.web.identity import Identity

SERVER_INFO = {
    "name": "dynamic-mcp-gateway",
    "title": "Dynamic MCP gateway",
    "version": __version__,
}
# A list of 2026 says how long a client may believe it without asking again: not at all.
LIST_END = b',"resultType":"complete","ttlMs":0,"cacheScope":"private","_meta":%b' % json_bytes(
    {SERVER_INFO_META_KEY: SERVER_INFO}
)

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class SharedParts:
    """What all requests share."""

    gateway: Gateway
    identity: Identity
    pass_through: PassThrough
    client_lists: ClientLists

    def __post_init__(self) -> None:
        self.streams = self.pass_through.streams
        self.flights = Flights()


class Exchange(msgspec.Struct):
    """One HTTP request, past the guard and with its principal."""

    principal: Principal
    address: ViewAddress
    fields: Fields
    lines: list[tuple[bytes, bytes]]
    receive: Receive
    send: Send
    streaming: bool  # the client takes an event stream


class RpcRequest(msgspec.Struct):
    """One JSON-RPC request, its HTTP exchange and its caller."""

    core: SharedParts
    exchange: Exchange
    message: Message
    caller: Caller
    version: str
    reply: Reply | None  # None: within a batch, where nothing can be said before the answer


class RequestStopped(Exception):
    """A request that its client gave up on."""


Method = Callable[[RpcRequest], Awaitable[bytes]]


def find_method(request: RpcRequest) -> Method:
    """The function that answers a request, once its params are checked. Raises RpcError."""
    name = request.message.method
    if name in sdk_methods.SPEC_CLIENT_METHODS:
        check_params(request.message, request.version)
    method = METHODS.get(name)
    if method is None:
        raise method_not_found(name)
    return method


def rpc_error(error: Exception, method: str = "") -> RpcError:
    """What a client is told of a request that failed; the log has the rest."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, GatewayError):
        return RpcError(INVALID_PARAMS, error.message)
    log.error("request_failed", method=method, **describe_failure(error))
    return RpcError(INTERNAL_ERROR, "Internal error")


async def _ping(request: RpcRequest) -> bytes:
    return b"{}"


async def _discover(request: RpcRequest) -> bytes:
    exchange = request.exchange
    hello = await request.core.pass_through.hello(exchange.principal, exchange.address)
    result = {
        "supportedVersions": MODERN_PROTOCOL_VERSIONS,
        "capabilities": hello.capabilities,
        "instructions": hello.instructions,
        "ttlMs": 0,
        "cacheScope": "private",
    }
    return json_bytes(with_server_info(result))


async def _list_tools(request: RpcRequest) -> bytes:
    core, caller, address = request.core, request.caller, request.caller.view_address
    snapshot, view, serving = core.gateway.look(caller.principal, address, caller.client)
    size = serving.page_tools or snapshot.settings.limits.page_tools
    cursor = request.message.params.get("cursor")
    page = view.page(cursor, size)
    if page is None:
        raise RpcError(INVALID_PARAMS, "Invalid cursor")
    if cursor is None:  # a change between two pages is told of
        client = client_of(caller)
        state = core.client_lists.by_client.get(client)
        if state is None or not state.has_list or state.digest != view.digest:
            core.client_lists.note(client, view, snapshot.revision)
    if caller.session is not None:
        core.streams.tool_list_ids[caller.session, address] = view.digest
    return b"{%b%b}" % (page, LIST_END if caller.era == "2026" else b"")


async def _call_tool(request: RpcRequest) -> bytes:
    params, gateway = request.message.params, request.core.gateway
    name, arguments = params["name"], params.get("arguments") or {}
    inquiry = gateway.inquiry(reachable_caller(request))
    caller = inquiry.caller
    if caller.era == "2026":
        _check_param_headers(inquiry, request.exchange.fields, name, arguments)
    with Flight(request):
        try:
            result = await gateway.call(inquiry, name, arguments)
        except UnknownTool as error:
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {cut(error.name, 256)}") from None
        except UpstreamRefused as error:
            raise _refusal(error) from error
        except InsufficientScope as error:
            exchange = request.exchange
            challenge = request.core.identity.challenge(True, exchange.address.path, error.scopes)
            raise HTTPException(
                403, error.message, {"www-authenticate": challenge.decode()}
            ) from error
        except GatewayError as error:
            result = error_result(error)
    result = await _fit_for_client(request.core, inquiry, name, result)
    return json_bytes(with_server_info(result) if caller.era == "2026" else result)


def _check_param_headers(
    inquiry: Inquiry, fields: Fields, name: str, arguments: Mapping[str, Any]
) -> None:
    """Checks the headers of a call that repeat its arguments, where the tool's schema asks."""
    schema = inquiry.gateway.input_schema(inquiry, name)
    if schema is None or schema.find(b'"x-mcp-header"') < 0:
        return
    headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in fields.items()}
    rejection = validate_mcp_param_headers(json_value(schema), arguments, headers)
    if rejection is not None:
        raise RpcError(rejection.code, rejection.message, rejection.data)


async def _fit_for_client(core: SharedParts, inquiry: Inquiry, name: str, result: Result) -> Result:
    """A call's result in the form its client takes, with news of its tools."""
    serving, view, snapshot = inquiry.serving(), inquiry.view, inquiry.snapshot
    if not serving.takes_all:
        db, owner, bounded = core.gateway.db, inquiry.principal.name, name != "read_result"
        result = await fit_result(result, serving, db, owner, bounded=bounded)
    if serving.form != "full":
        view = core.gateway.view_of(snapshot, inquiry.principal, view.address, serving.form)
    client, client_lists = client_of(inquiry.caller), core.client_lists
    state = client_lists.by_client.get(client)
    if state is None or state.digest != view.digest or state.changes is not None:
        result = await client_lists.tell(client, view, snapshot.revision, result)
    return result


async def _pass_through(request: RpcRequest) -> bytes:
    """Answers what is not about tools, where the view has a server that does."""
    method, params = request.message.method, request.message.params
    with Flight(request):
        try:
            caller = reachable_caller(request)
            result = await request.core.pass_through.answer(method, params, caller)
        except UpstreamRefused as error:
            raise _refusal(error) from error
        except GatewayError as error:
            raise RpcError(INTERNAL_ERROR, error.message, {"code": error.code}) from error
    if caller.era == "2025":
        result.pop("ttlMs", None)
        result.pop("cacheScope", None)
        return json_bytes(result)
    if method in sdk_methods.CACHEABLE_METHODS and "resultType" not in result:
        result = {"ttlMs": 0, **result, "cacheScope": "private"}
    return json_bytes(with_server_info(result))


def _refusal(error: UpstreamRefused) -> RpcError:
    """A server's own error for our client; an error about the way to it is not passed on."""
    if error.rpc_code in (0, HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION):
        return RpcError(INTERNAL_ERROR, error.message)
    return RpcError(error.rpc_code, cut(visible(error.rpc_message), 2000), error.rpc_data)


def with_server_info(result: dict[str, Any]) -> dict[str, Any]:
    """A result as 2026 has it: complete, and with the server that it is of."""
    meta = result.get("_meta") or {}
    if meta.get(SERVER_INFO_META_KEY) is None:
        meta = {**meta, SERVER_INFO_META_KEY: SERVER_INFO}
    return {"resultType": "complete", **result, "_meta": meta}


METHODS: Mapping[str, Method] = {
    "ping": _ping,
    "server/discover": _discover,
    "tools/list": _list_tools,
    "tools/call": _call_tool,
    **dict.fromkeys(HANDLERS, _pass_through),
}


def client_name(info: object) -> str:
    """`name/version` as a client says it, bounded; its last slash parts the two."""
    claim = info if isinstance(info, dict) else {}
    name, version = claim.get("name", ""), claim.get("version", "")
    return _join_name(str(name)[:NAME_CHARS], str(version)[:NAME_CHARS]) if claim else ""


@lru_cache(maxsize=MAX_REMEMBERED)
def _join_name(name: str, version: str) -> str:
    version = visible(version)[: NAME_CHARS // 4].replace("/", "-")
    return f"{visible(name)[: NAME_CHARS - 1 - len(version)]}/{version}"


def client_of(caller: Caller) -> ListHolder:
    """The key of a client's list: its session or, where there is none, its principal and name."""
    name = "" if caller.session else name_of_client(caller.client)
    return ListHolder(caller.principal.name, caller.session or "", name, caller.view_address.path)


def reachable_caller(request: RpcRequest) -> Caller:
    """The caller of a request, with the ways to reach its client while it waits.

    Progress, questions and log messages go ahead of the answer on the request's own stream, if the
    client takes one. Where the client can't be reached in a way, that way is None.
    """
    caller, reply, params = request.caller, request.reply, request.message.params
    caller.meta = params.get("_meta") or {}
    caller.input_responses = params.get("inputResponses")
    caller.request_state = params.get("requestState")
    caller.log_level = _log_level(request)
    if reply is not None:
        caller.is_gone = reply.is_gone
        if reply.streaming:
            caller.progress = _progress(reply, caller.meta.get("progressToken"))
            caller.notice = _notice(caller, reply)
            caller.ask = _ask(request, reply)
    return caller


def _log_level(request: RpcRequest) -> str | None:
    if request.caller.era == "2025":
        return request.core.pass_through.wishes.level(request.caller.session)
    level = request.caller.meta.get(LOG_LEVEL_META_KEY)
    return level if isinstance(level, str) else None


def _progress(reply: Reply, token: object) -> Progress | None:
    if not is_request_id(token):
        return None

    async def progress(amount: float, total: float | None, message: str | None) -> None:
        fields = {"progressToken": token, "progress": amount, "total": total, "message": message}
        params = {name: value for name, value in fields.items() if value is not None}
        reply.say(event_frame(notification("notifications/progress", params)))

    return progress


def _notice(caller: Caller, reply: Reply) -> TakeNotice | None:
    """Says a server's log messages on the request's own stream; in 2026 only if asked to."""
    lowest, era = caller.log_level, caller.era  # `notice` must not keep the caller alive
    if lowest is None and era == "2026":
        return None

    def notice(method: str, params: Mapping[str, Any]) -> None:
        is_readable = method == LOGGED or era == "2025"
        if is_readable and reaches(params.get("level"), lowest):
            reply.say(event_frame(notification(method, params)))

    return notice


def _ask(request: RpcRequest, reply: Reply) -> AskClient | None:
    caller = request.caller
    if caller.session is None or not caller.capabilities:
        return None
    return partial(request.core.flights.ask, caller.session, reply)


class Flight:
    """One request in flight, which its client can cancel, and which ends with its connection in
    2026; `with` raises RequestStopped where the client gave up on it."""

    __slots__ = ("_flights", "_reply", "_task", "is_seen", "is_stopped", "key", "receive")

    def __init__(self, request: RpcRequest) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.is_stopped = self.is_seen = False
        self.receive = request.exchange.receive
        self._task, self._flights = task, request.core.flights
        self.key: RequestKey = (request.caller.session or "", comparable_id(request.message.id))
        self._reply = request.reply
        # Only in the 2026 era does hanging up mean that the call is not wanted any more.
        if self._reply is not None and request.caller.era == "2026":
            self._reply.on_leave.append(self.stop)

    def stop(self, message: str | None = None) -> None:
        """Cancels the request; a message tells the call that its client cancelled it."""
        if not self.is_stopped:
            self.is_stopped = True
            self._task.cancel(message)

    def watch_if_seen_before(self) -> None:
        """Watches the connection of a request that a second look finds in flight."""
        if self.is_seen and self._reply is not None:
            self._reply.watch_connection(self.receive)
        self.is_seen = True

    def __enter__(self) -> None:
        self._flights.begin(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._flights.in_flight.discard(self)
        if self._reply is not None:
            self._reply.stop_watching()
        if self.is_stopped:
            self._task.uncancel()
        if not isinstance(error, asyncio.CancelledError):
            return
        if self.is_stopped:
            raise RequestStopped from None
        if not self._task.cancelling():
            raise RuntimeError("the call was cancelled from within") from None


RequestKey = tuple[str, RequestId]  # the session, "" where there is none, and the request's id


class Flights:
    """All requests in flight in this process, and the questions that wait for a client's answer."""

    def __init__(self) -> None:
        self.in_flight: set[Flight] = set()
        self._questions: dict[RequestKey, asyncio.Future[Mapping[str, Any]]] = {}
        self._is_looking = False

    def begin(self, flight: Flight) -> None:
        """Takes a request in; one look at all of them is cheaper than a timer for each."""
        self.in_flight.add(flight)
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._look_at_flights)

    def _look_at_flights(self) -> None:
        for flight in self.in_flight:
            flight.watch_if_seen_before()
        self._is_looking = bool(self.in_flight)
        if self._is_looking:
            asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._look_at_flights)

    def cancel(self, session: str, request_id: RequestId) -> bool:
        """Cancels the requests that run here under this id; False: there is none."""
        key = (session, comparable_id(request_id))
        flights = [flight for flight in self.in_flight if flight.key == key]
        for flight in flights:
            flight.stop(CANCEL)
        return bool(flights)

    async def ask(
        self, session: str, reply: Reply, method: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Asks the client something on a request's own stream, and gives its result.

        The question waits as long as its caller lets it; a client that leaves has given no answer.
        """
        request_id = f"gateway-{secrets.token_hex(8)}"
        question = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        key, future = (session, request_id), asyncio.get_running_loop().create_future()
        leave = partial(_set_result, future, {})
        self._questions[key] = future
        reply.on_leave.append(leave)
        try:
            reply.say(event_frame(json_bytes(question)), droppable=False)
            body = {} if reply.is_gone() else await future
        finally:
            reply.on_leave.remove(leave)
            del self._questions[key]
        result = body.get("result")
        return result if isinstance(result, dict) else fallback_answer(method, body.get("error"))

    def answer(self, session: str, request_id: RequestId, body: Mapping[str, Any]) -> bool:
        """Hands a client's response to the request that asked; False: no request here asked."""
        future = self._questions.get((session, request_id))
        if future is None:
            return False
        _set_result(future, body)
        return True


def comparable_id(request_id: RequestId) -> RequestId:
    """An id under which `7` and `"7"` are the same, as clients that echo ids expect."""
    if isinstance(request_id, str) and request_id.isascii() and len(request_id) < 19:
        return int(request_id) if request_id.removeprefix("-").isdigit() else request_id
    return request_id


def _set_result(future: asyncio.Future[Mapping[str, Any]], value: Mapping[str, Any]) -> None:
    if not future.done():
        future.set_result(value)
