"""The HTTP API: the same functions as the tools, with paths and status codes.

Each address is answered by small functions of an `ApiCall`; what they return is the JSON body.
Routes are Starlette's; one table turns our errors into statuses, and one shape carries them all,
404 and 405 included. Nobody is kept waiting for a decision here: a call that needs one answers 202
with its execution's id and runs by itself once it is approved.
"""

from __future__ import annotations

import inspect
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.calls.questions import DECISIONS
from gateway.calls.record import BACKGROUND_META, TOKEN_META, Caller, NotApproved, refusal_of
from gateway.config.reading import parse_permissions
from gateway.errors import (
    STATUS_OF_CODE,
    Broken,
    Fixable,
    GatewayError,
    NotFound,
    Refused,
    Unauthenticated,
    UnknownTool,
)
from gateway.limits import MAX_BODY_BYTES, PAGE_ENTRIES
from gateway.model import Level, NotJson, Scope, json_bytes, read_json
from gateway.policy.access import admin_level, level
from gateway.store import approvals
from gateway.store import catalog as changes
from gateway.web import own_tools, shown
from gateway.web.gateway import Gateway, Inquiry, Run, proxy_door, tool_door
from gateway.web.guard import (
    Identity,
    RefusedRequest,
    fold,
    read_body,
    require_json,
)
from gateway.web.proxy import NAME as PROXY
from gateway.web.proxy import proxied, proxy_request
from gateway.web.watch import event_stream

PREFIX = "/api/v1"

# Failures of the other side are outcomes of a call that was made: the body tells of them.
OUTCOMES = ("upstream_error", "upstream_timeout", "upstream_unreachable", "outcome_unknown")
CHANGE_STATUSES: tuple[changes.ChangeStatus, ...] = get_args(changes.ChangeStatus)


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request to the API."""

    inquiry: Inquiry
    request: Request
    body: Any = None

    @property
    def id(self) -> str:
        """What the address names."""
        named: str = next(iter(self.request.path_params.values()))
        return named

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name)

    def object(self, *keys: str) -> dict[str, Any]:
        """The body as an object that holds these keys."""
        if not isinstance(self.body, dict):
            raise Fixable("invalid_arguments", "the body must be a JSON object")
        if missing := [key for key in keys if key not in self.body]:
            raise Fixable("invalid_arguments", f"missing: {', '.join(missing)}")
        return self.body


Handler = Callable[[ApiCall], Awaitable[Any]]
Headers = Mapping[str, str] | None


def at_address(run: Run) -> Handler:
    """One of the gateway's own tools, with its arguments in the address and its query."""
    parameters = list(inspect.signature(run).parameters.values())[1:]

    async def handler(call: ApiCall) -> dict[str, Any]:
        given = {**call.request.query_params, **call.request.path_params}
        values = {p.name: _value(p, given[p.name]) for p in parameters if p.name in given}
        return await run(call.inquiry, **values)

    return handler


def _value(parameter: inspect.Parameter, text: str) -> Any:
    """What a text in an address stands for, where a function wants a number."""
    kind = str(parameter.annotation).partition(" ")[0]
    if kind not in ("int", "float"):
        return text
    with suppress(ValueError):
        value = float(text)
        if math.isfinite(value) and value >= 0 and (kind == "float" or value.is_integer()):
            return value if kind == "float" else int(value)
    words = "a whole number" if kind == "int" else "a time in seconds since 1970"
    raise Fixable("invalid_arguments", f"{parameter.name} must be {words}")


def http_app(gateway: Gateway, identity: Identity, others: Sequence[Route]) -> Starlette:
    """The API as an ASGI application, with other routes whose errors have the same shape."""

    def endpoint(handlers: Mapping[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            value = await handlers[method](await _api_call(gateway, identity, request))
            return value if isinstance(value, Response) else json_response(value)

        return answer

    async def events(call: ApiCall) -> Response:
        return await event_stream(call.inquiry, identity, call.request)

    async def challenge(request: Request, error: Exception) -> Response:
        hint = "Send a valid token as `Authorization: Bearer …`."
        response = error_response(Refused("access_denied", str(error), hint), 401)
        response.headers["www-authenticate"] = identity.challenge(False).decode()
        return response

    routes: defaultdict[str, dict[str, Handler]] = defaultdict(dict)
    for address, handler in {**ADDRESSES, "GET /events": events}.items():
        method, path = address.split()
        routes[PREFIX + path][method] = handler
    api = [Route(path, endpoint(each), methods=list(each)) for path, each in routes.items()]
    handlers = {**dict.fromkeys(_ERRORS, _answer_error), Unauthenticated: challenge}
    return Starlette(routes=[*api, *others], exception_handlers=handlers)


async def _api_call(gateway: Gateway, identity: Identity, request: Request) -> ApiCall:
    fields = fold(request.scope["headers"])
    principal = await identity.identify(fields)
    body: Any = None
    if request.method in ("POST", "PUT", "PATCH"):
        seconds = gateway.snapshot.settings.limits.request_seconds
        raw = await read_body(fields, request.receive, MAX_BODY_BYTES, seconds)
        if raw:
            require_json(fields)
            body = read_json(raw)  # as strict as MCP is: a call means the same through both doors
    caller = Caller(principal, client=request.headers.get("user-agent", "")[:128])
    return ApiCall(gateway.inquiry(caller), request, body)


# --- answers --------------------------------------------------------------------------------------


def json_response(value: Any, status: int = 200, headers: Headers = None) -> Response:
    """A value as the body of an answer."""
    return Response(json_bytes(value), status, headers, "application/json")


def error_response(error: GatewayError, status: int | None = None) -> Response:
    """Any of our errors, in the one shape of this API."""
    if status is None:
        status = 404 if isinstance(error, NotFound) else STATUS_OF_CODE.get(error.code, 500)
    return json_response({"error": error.as_dict()}, status, _retry_header(error.details))


def refusal_response(refusal: RefusedRequest) -> Response:
    """A request that is not even understood, in the one shape of this API."""
    response = error_response(Fixable("invalid_arguments", refusal.message), refusal.status)
    response.raw_headers.extend(refusal.headers)
    return response


def _retry_header(error: Mapping[str, Any]) -> Headers:
    """What tells a client when to come again, where the error knows it."""
    seconds = error.get("retry_after")
    return None if seconds is None else {"retry-after": str(max(1, math.ceil(seconds)))}


async def _answer_error(request: Request, error: Exception) -> Response:
    match error:
        case GatewayError():
            return error_response(error)
        case RefusedRequest():
            return refusal_response(error)
        case NotJson():
            return error_response(Fixable("invalid_arguments", f"the body can't be read: {error}"))
        case UnknownTool():
            hint = "GET /api/v1/tools lists yours."
            return error_response(NotFound("invalid_arguments", str(error), hint))
        case HTTPException(headers={"Allow": methods}):
            words = f"use {methods} here"
            return refusal_response(RefusedRequest(405, words, ((b"allow", methods.encode()),)))
        case HTTPException():
            return refusal_response(RefusedRequest(404, "there is nothing at this address"))
        case ConnectionError():
            return Response(status_code=400)  # the client has gone: nobody reads it
    # A stack must never reach a client; Starlette passes the error on to the server's log.
    return error_response(Broken("internal", "the gateway failed on this request"))


_ERRORS = (
    GatewayError,
    RefusedRequest,
    NotJson,
    UnknownTool,
    HTTPException,
    ConnectionError,
    Exception,
)


# --- tools and connections ------------------------------------------------------------------------


async def capabilities(call: ApiCall) -> dict[str, Any]:
    inquiry = call.inquiry
    return shown.capabilities(inquiry.snapshot, inquiry.principal, inquiry.connections())


async def choose_access(call: ApiCall) -> dict[str, Any]:
    gateway, principal = call.inquiry.gateway, call.inquiry.principal
    state = call.inquiry.connection(call.id)
    access = call.object("access")["access"]
    if access not in get_args(Level):
        raise Fixable("invalid_arguments", f"access must be one of {', '.join(get_args(Level))}")
    await gateway.catalog.choose(principal.name, state.name, access)
    snapshot = gateway.snapshot
    return {
        "connection": state.name,
        "admin_access": admin_level(state),
        "user_access": access,
        "effective_access": level(snapshot, principal, snapshot.connections[state.name]),
    }


async def get_connection(call: ApiCall) -> Response:
    shown = await own_tools.get_connection(call.inquiry, call.id)
    return json_response(shown, headers={"etag": f'"{shown["revision"]}"'})


async def put_connection(call: ApiCall) -> Response:
    call.inquiry.require_admin()
    gateway, name, values = call.inquiry.gateway, call.id, dict(call.object())
    if values.pop("name", name) != name:
        raise Fixable("invalid_arguments", "the body names another connection than the address")
    headers, expected = call.request.headers, _expected(call.request)
    if headers.get("if-none-match", "").strip() == "*":
        expected = 0
    elif headers.get("if-match", "").strip() == "*" and name not in gateway.snapshot.connections:
        expected = -1
    shown = await own_tools.put(call.inquiry, name, values, expected)
    state = gateway.snapshot.connections.get(name)
    return json_response(shown, headers={"etag": f'"{state.revision}"'} if state else None)


async def delete_connection(call: ApiCall) -> dict[str, Any]:
    expected = _expected(call.request)
    return await own_tools.delete_connection(call.inquiry, call.id, expected=expected)


async def refresh_connection(call: ApiCall) -> dict[str, Any]:
    refreshed = await own_tools.refresh_tools(call.inquiry, call.id)
    report: dict[str, Any] = refreshed["connections"][0]
    return report | {"revision": refreshed["revision"]}


async def preview_connection(call: ApiCall) -> dict[str, Any]:
    values = {**call.object(), "dry_run": True}
    return await own_tools.put(call.inquiry, values.pop("name", "preview"), values)


def _expected(request: Request) -> int | None:
    """The revision an If-Match names; one that is not ours can match nothing."""
    match = request.headers.get("if-match", "*").strip()
    if match == "*":
        return None
    text = match.removeprefix("W/").strip('"')
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


async def get_tool(call: ApiCall) -> dict[str, Any]:
    tool = call.inquiry.view.tools.get(call.id)
    if tool is None:
        raise UnknownTool(call.id)
    return shown.tool_detail(tool, call.inquiry.snapshot.permissions)


async def resolve_step(call: ApiCall) -> dict[str, Any]:
    wanted = call.object("workflow", "step")
    names = (wanted["workflow"], wanted["step"])
    if not all(isinstance(name, str) for name in names):
        raise Fixable("invalid_arguments", "workflow and step must be strings")
    inquiry = call.inquiry
    seen = inquiry.gateway.view_of(inquiry.snapshot, inquiry.principal, Scope("step", names))
    return shown.step_view(seen)


# --- calls ----------------------------------------------------------------------------------------


async def call_tool(call: ApiCall) -> Response:
    inquiry, name = call.inquiry, call.id
    tool = inquiry.view.tools.get(name)
    if tool is None:
        inquiry.gateway.note_unknown(inquiry, name)
        raise UnknownTool(name)
    wanted = {} if call.body is None else call.object()
    arguments = wanted.get("arguments", {})
    if not isinstance(arguments, dict):
        raise Fixable("invalid_arguments", "arguments must be an object")
    door = tool_door(inquiry.gateway, name, inquiry.caller.scope, unattended=True)
    return _result_response(await inquiry.call(tool, arguments, door, _caller(call, wanted)))


async def proxy(call: ApiCall) -> Response:
    inquiry, wanted = call.inquiry, call.object("connection", "method", "path")
    said = ("connection", "method", "path", "query", "body")
    raw = proxy_request(**{name: wanted.get(name) for name in said})
    try:
        tool, judged = proxied(inquiry.snapshot, inquiry.principal, inquiry.view, raw)
    except NotFound:
        inquiry.gateway.note_unknown(inquiry, f"{PROXY} {raw.connection}")
        raise
    except Refused as error:
        about = {"method": raw.method, "path": raw.path}
        on, by, at = inquiry.snapshot, inquiry.caller, raw.connection
        refused = refusal_of(on, by, PROXY, error, connection=at, arguments=about)
        inquiry.gateway.invoker.record(refused)
        raise
    door = proxy_door(inquiry.gateway, raw, judged)
    caller = _caller(call, wanted)
    return _result_response(await inquiry.call(tool, raw.arguments, door, caller))


def _caller(call: ApiCall, wanted: Mapping[str, Any]) -> Caller:
    meta: dict[str, Any] = {}
    token = wanted.get("idempotency_token", call.request.headers.get("idempotency-key"))
    if token is not None:
        meta[TOKEN_META] = token
    if (call.query("background") or "").lower() in ("true", "1"):
        meta[BACKGROUND_META] = True
    return replace(call.inquiry.caller, meta=meta)


def _result_response(result: Mapping[str, Any]) -> Response:
    """A tool's result in the shape of this API."""
    body = shown.outcome(result)
    if "status" in body:
        place = {"location": f"{PREFIX}/executions/{body['execution_id']}"}
        return json_response(body, 202, place)
    error = body["error"] or {}
    code = error.get("code")
    status = 200 if code is None or code in OUTCOMES else STATUS_OF_CODE.get(code, 500)
    return json_response(body, status, _retry_header(error))


# --- executions, approvals, grants, changes, permissions ------------------------------------------


async def delete_execution(call: ApiCall) -> Response:
    execution = await call.inquiry.cancel(call.id)
    status = 202 if execution.status in shown.GOING_ON else 200
    return json_response(shown.execution_record(execution), status)


async def list_approvals(call: ApiCall) -> dict[str, Any]:
    call.inquiry.require_admin()
    waiting = await approvals.list_open(call.inquiry.gateway.db, time.time())
    mine = [each for each in waiting if call.inquiry.oversees(each.connection)]
    return {"approvals": [shown.approval_row(each) for each in mine]}


async def get_approval(call: ApiCall) -> dict[str, Any]:
    return shown.decided_row(await call.inquiry.approval(call.id))


async def decide_approval(call: ApiCall) -> Any:
    approval = await call.inquiry.approval(call.id)
    decision = call.object("decision")["decision"]
    if decision not in DECISIONS:
        raise Fixable("invalid_arguments", f"decision must be one of {', '.join(DECISIONS)}")
    inquiry = call.inquiry
    try:
        decided = await inquiry.gateway.approvals.decide(approval, decision, inquiry.principal)
    except NotApproved as error:  # someone, or time, was faster
        return error_response(error, 409)
    return shown.decided_row(decided)


async def list_grants(call: ApiCall) -> dict[str, Any]:
    return {"standing_grants": [shown.grant_row(grant) for grant in await call.inquiry.grants()]}


async def delete_grant(call: ApiCall) -> dict[str, Any]:
    return shown.grant_row(await call.inquiry.revoke_grant(call.id)) | {"revoked": True}


async def list_changes(
    inquiry: Inquiry,
    status: str | None = None,
    connection: str | None = None,
    limit: int = PAGE_ENTRIES,
) -> dict[str, Any]:
    inquiry.require_admin()
    known = next((each for each in CHANGE_STATUSES if each == status), None)
    if known != status:
        raise Fixable("invalid_arguments", f"status must be one of {', '.join(CHANGE_STATUSES)}")
    db = inquiry.gateway.db
    found = await changes.list_changes(db, connection=connection, status=known, limit=limit)
    return {"changes": [shown.change_row(c) for c in found if inquiry.oversees(c.connection)]}


async def decide_change(call: ApiCall, status: Literal["accepted", "rejected"]) -> Any:
    inquiry, found = call.inquiry, await call.inquiry.change(call.id)
    if found.status != "held":
        decided = Fixable("invalid_arguments", f"the change is {found.status} already")
        return error_response(decided, 409)
    by = inquiry.principal.name
    return shown.change_row(await inquiry.gateway.catalog.decide_change(found.id, status, by=by))


async def get_permissions(call: ApiCall) -> dict[str, Any]:
    snapshot = call.inquiry.gateway.snapshot
    source = "config.toml" if snapshot.stored_permissions is None else "stored"
    return snapshot.permissions.model_dump(mode="json") | {"source": source}


async def put_permissions(call: ApiCall) -> dict[str, Any]:
    call.inquiry.require_admin()
    values = dict(call.object())
    values.pop("source", None)  # what a GET gave may be put again
    permissions = parse_permissions(call.inquiry.snapshot.settings.permissions, values)
    by = call.inquiry.principal.name
    await call.inquiry.gateway.catalog.put_permissions(permissions, by=by)
    return await get_permissions(call)


async def delete_permissions(call: ApiCall) -> dict[str, Any]:
    call.inquiry.require_admin()
    await call.inquiry.gateway.catalog.put_permissions(None, by=call.inquiry.principal.name)
    return await get_permissions(call)


ADDRESSES: Mapping[str, Handler] = {
    "GET /capabilities": capabilities,
    "PUT /access/{connection}": choose_access,
    "GET /connections": at_address(own_tools.list_connections),
    "POST /connections/preview": preview_connection,
    "GET /connections/{name}": get_connection,
    "PUT /connections/{name}": put_connection,
    "DELETE /connections/{name}": delete_connection,
    "POST /connections/{name}/refresh": refresh_connection,
    "GET /tools": at_address(own_tools.list_dynamic_tools),
    "GET /tools/{name}": get_tool,
    "POST /tools/{name}/call": call_tool,
    "POST /steps/resolve": resolve_step,
    "GET /results/{result_id}": at_address(own_tools.read_result),
    "POST /proxy": proxy,
    "GET /executions": at_address(own_tools.list_executions),
    "GET /executions/{id}": at_address(own_tools.get_execution),
    "DELETE /executions/{id}": delete_execution,
    "GET /approvals": list_approvals,
    "GET /approvals/{id}": get_approval,
    "POST /approvals/{id}": decide_approval,
    "GET /standing-grants": list_grants,
    "DELETE /standing-grants/{id}": delete_grant,
    "GET /changes": at_address(list_changes),
    "POST /changes/{id}/accept": partial(decide_change, status="accepted"),
    "POST /changes/{id}/reject": partial(decide_change, status="rejected"),
    "GET /permissions": get_permissions,
    "PUT /permissions": put_permissions,
    "DELETE /permissions": delete_permissions,
}
