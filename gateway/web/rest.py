"""The HTTP API: the same functions as the tools, with paths and status codes.

Each address is answered by a function of the inquiry and of its arguments by name, which are in the
address, in its query or in the body; it returns the JSON body. Routes are Starlette's; one
table turns our errors into statuses, and one shape carries them all, 404 and 405 included. No
client waits for a decision here: a call that needs one answers 202 with its execution's id and runs
by itself once it is approved.
"""

from __future__ import annotations

import inspect
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

import structlog
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.calls.questions import DECISIONS
from gateway.calls.record import BACKGROUND_META, GOING_ON, TOKEN_META, Caller, record_without_tool
from gateway.config.file import parse_permissions
from gateway.errors import (
    STATUS_OF_CODE,
    Broken,
    Fixable,
    GatewayError,
    InsufficientScope,
    NotApproved,
    NotFound,
    Refused,
    Unauthenticated,
)
from gateway.limits import MAX_BODY_BYTES, NAME_CHARS, PAGE_ENTRIES
from gateway.model import Level, ViewAddress, json_bytes, read_json
from gateway.policy.access import RAW_REQUESTS
from gateway.store import approvals
from gateway.store import catalog as changes
from gateway.store.oauth import get_client_grant, revoke_client_grants
from gateway.store.tables import ChangeDecision, ChangeStatus
from gateway.web import access, credentials, display, own_tools, rights
from gateway.web.gateway import Gateway, Inquiry, Run
from gateway.web.guard import fold, read_body, require_json
from gateway.web.identity import Identity
from gateway.web.proxy import NAME as PROXY
from gateway.web.proxy import proxy_request, resolve_request
from gateway.web.watch import event_stream

log = structlog.get_logger("gateway.edge")

PREFIX = "/api/v1"
POSTING = ("POST", "PUT", "PATCH")
CHANGING = ("PUT", "PATCH", "DELETE")  # what a POST does is judged by itself: it may be a call

# Failures of the upstream are outcomes of a call that was made: the body tells of them.
OUTCOMES = ("upstream_error", "upstream_timeout", "upstream_unreachable", "outcome_unknown")
CHANGE_DECISIONS: Mapping[str, ChangeDecision] = {"accept": "accepted", "reject": "rejected"}
CHANGE_STATUSES: tuple[ChangeStatus, ...] = get_args(ChangeStatus)


Json = dict[str, Any]
HeaderMap = Mapping[str, str] | None


def http_app(gateway: Gateway, identity: Identity, other_routes: Sequence[Route]) -> Starlette:
    """The API as an ASGI application, with other routes whose errors have the same shape."""

    def endpoint(runs: Mapping[str, Run]) -> Callable[[Request], Awaitable[Response]]:
        inputs = {m: [*inspect.signature(runs[m]).parameters.values()][1:] for m in runs}

        async def answer(request: Request) -> Response:
            inquiry, posted = await _read_request(gateway, identity, request)
            method = "GET" if request.method == "HEAD" else request.method
            arguments = _arguments(inputs[method], request, posted)
            value = await runs[method](inquiry, **arguments)
            return value if isinstance(value, Response) else json_response(value)

        return answer

    async def events(inquiry: Inquiry, request: Request) -> Response:
        return await event_stream(inquiry, identity, request)

    async def challenge(request: Request, error: Exception) -> Response:
        hint = "Send a valid token as `Authorization: Bearer …`."
        response = error_response(Refused("access_denied", str(error), hint), 401)
        response.headers["www-authenticate"] = identity.challenge(False).decode()
        return response

    routes: defaultdict[str, dict[str, Run]] = defaultdict(dict)
    for address, run in {**ADDRESSES, "GET /events": events}.items():
        method, path = address.split()
        routes[PREFIX + path][method] = run
    api = [Route(path, endpoint(each), methods=list(each)) for path, each in routes.items()]
    handlers = {**dict.fromkeys(_ERRORS, _answer_error), Unauthenticated: challenge}
    return Starlette(routes=[*api, *other_routes], exception_handlers=handlers)


async def _read_request(
    gateway: Gateway, identity: Identity, request: Request
) -> tuple[Inquiry, Any]:
    """The inquiry of the request's caller, and the posted value."""
    fields = fold(request.scope["headers"])
    principal = await identity.identify(fields)
    if request.method in CHANGING and "tools:write" in principal.withheld:
        raise InsufficientScope("tools:read", "tools:write")
    posted: Any = None
    if request.method in POSTING:
        seconds = gateway.snapshot.settings.limits.request_seconds
        raw = await read_body(fields, request.receive, MAX_BODY_BYTES, seconds)
        principal = await identity.identify(fields)  # it may have lost rights meanwhile
        if raw:
            require_json(fields)
            posted = read_json(raw)  # as strict as MCP is: a call means the same at both edges
    caller = Caller(principal, client=request.headers.get("user-agent", "")[:NAME_CHARS])
    return gateway.inquiry(caller), posted


def _arguments(inputs: list[inspect.Parameter], request: Request, posted: Any) -> Json:
    """The arguments of a function: the whole request and posted value, if it takes these; the parts
    of the address; the rest from the body of a post, else from the query."""
    values: Json = {p.name: _number(p, request.query_params.get(p.name)) for p in inputs}
    if request.method in POSTING:
        values = posted if isinstance(posted, dict) else {}
    values = {**values, **request.path_params, "request": request, "posted": posted}
    return {p.name: values[p.name] for p in inputs if values.get(p.name) is not None}


def _number(parameter: inspect.Parameter, text: str | None) -> Any:
    """The value of a text in a query: a number where the function takes a number."""
    kind = type(parameter.default)
    if text is None or kind not in (int, float):
        return text
    with suppress(ValueError):
        value = float(text)
        if math.isfinite(value) and value >= 0 and (kind is float or value.is_integer()):
            return kind(value)
    words = "a whole number" if kind is int else "a time in seconds since 1970"
    raise Fixable("invalid_arguments", f"{parameter.name} must be {words}")


# --- answers --------------------------------------------------------------------------------------


def json_response(value: Any, status: int = 200, headers: HeaderMap = None) -> Response:
    """A value as the body of an answer."""
    return Response(json_bytes(value), status, headers, "application/json")


def error_response(error: GatewayError, status: int | None = None) -> Response:
    """The response for one of our errors, in the one shape of this API."""
    body, headers = {"error": error.as_dict()}, retry_header(error.details)
    return json_response(body, status or error_status(error), headers)


def error_status(error: GatewayError) -> int:
    """The status that HTTP has for one of our errors."""
    if isinstance(error, NotFound | NotApproved):  # NotApproved: another person decided first
        return 404 if isinstance(error, NotFound) else 409
    return STATUS_OF_CODE.get(error.code, 500)


def refusal_response(refusal: HTTPException) -> Response:
    """The response to a request that can't be understood, in the one shape of this API."""
    body = {"error": Fixable("invalid_arguments", refusal.detail).as_dict()}
    return json_response(body, refusal.status_code, refusal.headers)


def retry_header(error: Mapping[str, Any]) -> Mapping[str, str]:
    """The header that tells a client when to come again, where the error has a time for that."""
    seconds = error.get("retry_after")
    return {} if seconds is None else {"retry-after": str(max(1, math.ceil(seconds)))}


async def _answer_error(request: Request, error: Exception) -> Response:
    match error:
        case GatewayError():
            return error_response(error)
        case HTTPException():
            return refusal_response(error)
        case ConnectionError():
            return Response(status_code=400)  # the client has left: nobody reads the answer
    # A stack must never reach a client; Starlette passes the error on to the server's log.
    return error_response(Broken("internal", "the gateway failed on this request"))


_ERRORS = (GatewayError, HTTPException, ConnectionError, Exception)


# --- tools and connections ------------------------------------------------------------------------


async def capabilities(inquiry: Inquiry) -> Json:
    """Who the caller is, and what it may do with each connection that exists for it."""
    snapshot, principal = inquiry.snapshot, inquiry.principal
    connections = {
        state.name: {"provider": state.settings.kind, "status": state.status}
        | display.access_row(snapshot, principal, state)
        for state in inquiry.connections()
    }
    names = ("admin", "organization", "role")
    about = {name: getattr(principal, name) for name in names}
    return {"principal": principal.name, **about, "connections": connections}


async def choose_access(inquiry: Inquiry, connection: str, access: Any = None) -> Json:
    """The caller's own choice for one connection."""
    catalog, principal, name = inquiry.gateway.catalog, inquiry.principal, connection
    inquiry.connection(name)
    if access not in get_args(Level):
        raise Fixable("invalid_arguments", f"access must be one of {', '.join(get_args(Level))}")
    await catalog.rights.choose(principal.name, name, access)
    snapshot = catalog.current
    return {
        "connection": name,
        **display.access_row(snapshot, principal, snapshot.connections[name]),
    }


async def get_connection(inquiry: Inquiry, name: str) -> Response:
    detail = await own_tools.get_connection(inquiry, name)
    return json_response(detail, headers={"etag": f'"{detail["revision"]}"'})


async def put_connection(
    inquiry: Inquiry, name: str, request: Request, posted: Any = None
) -> Response:
    inquiry.require_admin()
    gateway, values = inquiry.gateway, dict(_object(posted))
    if values.pop("name", name) != name:
        raise Fixable("invalid_arguments", "the body names another connection than the address")
    expected = rights.expected_revision(request, name in gateway.snapshot.connections)
    report = await own_tools.put(inquiry, name, values, expected)
    state = gateway.snapshot.connections.get(name)
    return json_response(report, headers={"etag": f'"{state.revision}"'} if state else None)


async def delete_connection(inquiry: Inquiry, name: str, request: Request) -> Json:
    expected = rights.expected_revision(request, True)
    return await own_tools.delete_connection(inquiry, name, expected=expected)


async def refresh_connection(inquiry: Inquiry, name: str) -> Json:
    refreshed = await own_tools.refresh_tools(inquiry, name)
    report: Json = refreshed["connections"][0]
    return report | {"revision": refreshed["revision"]}


async def preview_connection(inquiry: Inquiry, posted: Any = None) -> Json:
    values = {**_object(posted), "dry_run": True}
    if not isinstance(name := values.pop("name", "preview"), str):
        raise Fixable("invalid_arguments", "name must be a string")
    return await own_tools.put(inquiry, name, values)


def _object(posted: Any) -> Json:
    if not isinstance(posted, dict):
        raise Fixable("invalid_arguments", "the body must be a JSON object")
    return posted


async def get_tool(inquiry: Inquiry, name: str) -> Json:
    return display.tool_detail(inquiry.tool(name), inquiry.snapshot.permissions)


async def resolve_step(inquiry: Inquiry, workflow: Any = None, step: Any = None) -> Json:
    if not isinstance(workflow, str) or not isinstance(step, str):
        raise Fixable("invalid_arguments", "workflow and step must be strings")
    address = ViewAddress("step", (workflow, step))
    return display.step_view(inquiry.gateway.view_of(inquiry.snapshot, inquiry.principal, address))


# --- calls ----------------------------------------------------------------------------------------


async def call_tool(inquiry: Inquiry, name: str, request: Request, posted: Any = None) -> Response:
    if inquiry.find_tool(name) is None:
        inquiry.gateway.note_unknown(inquiry, name)
    tool = inquiry.tool(name)
    body = {} if posted is None else _object(posted)
    arguments = body.get("arguments", {})
    if not isinstance(arguments, dict):
        raise Fixable("invalid_arguments", "arguments must be an object")
    if "arguments" not in body and body.keys() - {"idempotency_token"}:  # no field is lost
        words, hint = "there are no `arguments`", 'Send {"arguments": {…}}.'
        raise Fixable("invalid_arguments", words, hint)
    caller = _caller(inquiry, request, body)
    return _result_response(await inquiry.call(tool, arguments, caller, unattended=True))


async def proxy(inquiry: Inquiry, request: Request, posted: Any = None) -> Response:
    names = ("connection", "method", "path", "query", "body")
    raw = proxy_request(**{name: _object(posted).get(name) for name in names})
    try:
        tool, judged = resolve_request(inquiry.snapshot, inquiry.principal, inquiry.view, raw)
    except NotFound:
        inquiry.gateway.note_unknown(inquiry, f"{PROXY} {raw.connection}")
        raise
    except Refused as error:
        arguments = {"method": raw.method, "path": raw.path}
        about: Json = {"connection": raw.connection, "arguments": arguments}
        record = record_without_tool(inquiry.snapshot, inquiry.caller, PROXY, error, **about)
        inquiry.gateway.invoker.record(record)
        raise
    caller = _caller(inquiry, request, posted)
    call = inquiry.call(tool, raw.arguments, caller, unattended=True, raw=raw, judged_tool=judged)
    return _result_response(await call)


def _caller(inquiry: Inquiry, request: Request, body: Mapping[str, Any]) -> Caller:
    meta: Json = {}
    token = body.get("idempotency_token", request.headers.get("idempotency-key"))
    if token is not None:
        meta[TOKEN_META] = token
    if request.query_params.get("background", "").lower() in ("true", "1"):
        meta[BACKGROUND_META] = True
    return replace(inquiry.caller, meta=meta)


def _result_response(result: Mapping[str, Any]) -> Response:
    """A tool's result in the shape of this API."""
    body = display.outcome(result)
    if "status" in body:
        headers = {"location": f"{PREFIX}/executions/{body['execution_id']}"}
        return json_response(body, 202, headers)
    error = body["error"] or {}
    code = error.get("code")
    status = 200 if code is None or code in OUTCOMES else STATUS_OF_CODE.get(code, 500)
    return json_response(body, status, retry_header(error))


# --- executions, approvals, grants, changes, permissions ------------------------------------------


async def delete_execution(inquiry: Inquiry, id: str) -> Response:
    [record] = await inquiry.records([await inquiry.cancel(id)])
    return json_response(record, 202 if record["status"] in GOING_ON else 200)


async def list_approvals(inquiry: Inquiry) -> Json:
    inquiry.require_admin()
    oversight = ("", inquiry.oversight())  # not the caller's own calls of what has gone
    waiting = await approvals.list_open(inquiry.gateway.db, time.time(), oversight)
    return {"approvals": [display.approval_row(inquiry.snapshot, each) for each in waiting]}


async def get_approval(inquiry: Inquiry, id: str) -> Json:
    return display.decided_row(inquiry.snapshot, await inquiry.approval(id))


async def decide_approval(inquiry: Inquiry, id: str, decision: Any = None) -> Json:
    approval = await inquiry.approval(id)
    if decision not in DECISIONS:
        raise Fixable("invalid_arguments", f"decision must be one of {', '.join(DECISIONS)}")
    decide = inquiry.gateway.approvals.decide
    decided = await decide(approval, decision, inquiry.principal, inquiry.edge)
    return display.decided_row(inquiry.snapshot, decided)


async def list_grants(inquiry: Inquiry) -> Json:
    """The standing grants that hold and are the caller's business."""
    grants = await approvals.list_grants(inquiry.gateway.db, time.time(), inquiry.visible_rows())
    return {"standing_grants": [display.grant_row(each) for each in grants]}


async def delete_grant(inquiry: Inquiry, id: str) -> Json:
    """Ends a standing grant: the next call is asked about again."""
    db, by = inquiry.gateway.db, inquiry.principal.name
    grant = await approvals.get_grant(db, id)
    if grant is None or not inquiry.concerns(grant):
        raise NotFound("invalid_arguments", "there is no such standing grant")
    await approvals.revoke_grant(db, id)
    log.info("standing grant revoked", grant=id, tool=grant.tool, of=grant.principal, by=by)
    return display.grant_row(grant) | {"revoked": True}


async def list_client_grants(inquiry: Inquiry) -> Json:
    """What people gave their clients, as far as it is the caller's business."""
    grants = await access.visible_grants(inquiry)
    return {"grants": [display.client_grant_row(each) for each in grants]}


async def delete_client_grant(inquiry: Inquiry, id: str) -> Json:
    """Ends what a client was given, in every process."""
    person, db = inquiry.principal, inquiry.gateway.db
    grant = await get_client_grant(db, id)
    if grant is None or not access.may_see_grant(inquiry, grant):
        raise NotFound("invalid_arguments", "there is no such grant", "GET /grants names yours.")
    await revoke_client_grants(db, time.time(), id=id)
    log.info("grant revoked", grant=id, of=grant.principal, by=person.name)
    return display.client_grant_row(grant) | {"revoked": True}


async def list_changes(
    inquiry: Inquiry, status: str = "", connection: str = "", limit: int = PAGE_ENTRIES
) -> Json:
    inquiry.require_admin()
    chosen = next((each for each in CHANGE_STATUSES if each == status), None)
    if status and chosen is None:
        raise Fixable("invalid_arguments", f"status must be one of {', '.join(CHANGE_STATUSES)}")
    db, name, oversight = inquiry.gateway.db, connection or None, inquiry.oversight()
    criteria: Json = {"connection": name, "status": chosen, "oversight": oversight}
    found = await changes.list_changes(db, **criteria, limit=limit)
    return {"changes": [display.change_row(each) for each in found]}


async def decide_change(inquiry: Inquiry, id: str, decision: str) -> Json:
    if decision not in CHANGE_DECISIONS:
        raise HTTPException(404, "Not Found")
    inquiry.require_admin()
    change = await changes.get_change(inquiry.gateway.db, id, inquiry.oversight())
    if change is None:
        raise NotFound("invalid_arguments", "there is no such change")
    if change.status != "held":
        raise NotApproved("invalid_arguments", f"the change is {change.status} already")
    own_tools.own_connection(inquiry, change.connection)
    status, by = CHANGE_DECISIONS[decision], inquiry.principal.name
    return display.change_row(await inquiry.gateway.catalog.decide_change(change, status, by=by))


async def get_permissions(inquiry: Inquiry) -> Json:
    """The permissions as written; only admins of no organization see the rules for tools that do
    not exist for them."""
    snapshot = inquiry.gateway.snapshot
    source = "config.toml" if snapshot.stored_permissions is None else "stored"
    values: Json = snapshot.written_permissions.model_dump(mode="json")
    if inquiry.oversight() is not None:
        tools = (tool for state in inquiry.connections() for tool in state.tools)
        names = {RAW_REQUESTS, *(name for tool in tools for name in snapshot.names_of(tool))}
        values["tools"] = {name: rule for name, rule in values["tools"].items() if name in names}
        auto = values["auto_approve"]
        auto["tools"] = [name for name in auto["tools"] if name in names]
    return values | {"source": source}


async def put_permissions(inquiry: Inquiry, posted: Any = None) -> Json:
    """The permissions of config.toml with these values in their place."""
    rights.require_admin_of(inquiry, "permission")
    values = dict(_object(posted))
    values.pop("source", None)  # the answer of a GET may be put again
    permissions = parse_permissions(inquiry.snapshot.settings.permissions, values)
    await inquiry.gateway.catalog.rights.put_permissions(permissions, by=inquiry.principal.name)
    return await get_permissions(inquiry)


async def delete_permissions(inquiry: Inquiry) -> Json:
    """The permissions of config.toml again."""
    rights.require_admin_of(inquiry, "permission")
    await inquiry.gateway.catalog.rights.put_permissions(None, by=inquiry.principal.name)
    return await get_permissions(inquiry)


ADDRESSES: Mapping[str, Run] = {
    "GET /capabilities": capabilities,
    "PUT /access/{connection}": choose_access,
    "GET /access/{principal}": access.view_as,
    "GET /connections": own_tools.list_connections,
    "POST /connections/preview": preview_connection,
    "GET /connections/{name}": get_connection,
    "PUT /connections/{name}": put_connection,
    "DELETE /connections/{name}": delete_connection,
    "POST /connections/{name}/refresh": refresh_connection,
    "GET /tools": own_tools.list_dynamic_tools,
    "GET /tools/{name}": get_tool,
    "POST /tools/{name}/call": call_tool,
    "POST /steps/resolve": resolve_step,
    "GET /results/{result_id}": own_tools.read_result,
    "POST /proxy": proxy,
    "GET /executions": own_tools.list_executions,
    "GET /executions/{id}": own_tools.get_execution,
    "DELETE /executions/{id}": delete_execution,
    "GET /approvals": list_approvals,
    "GET /approvals/{id}": get_approval,
    "POST /approvals/{id}": decide_approval,
    "GET /standing-grants": list_grants,
    "DELETE /standing-grants/{id}": delete_grant,
    "GET /grants": list_client_grants,
    "DELETE /grants/{id}": delete_client_grant,
    "GET /credentials": credentials.list_credentials,
    "PUT /credentials/{connection}": credentials.put_credential,
    "DELETE /credentials/{connection}": credentials.delete_credential,
    "POST /credentials/{connection}/sign-in": credentials.sign_in,
    "GET /sign-ins": credentials.list_sign_ins,
    "DELETE /sign-ins/{connection}": credentials.delete_sign_in,
    "GET /changes": list_changes,
    "POST /changes/{id}/{decision}": decide_change,
    "GET /permissions": get_permissions,
    "PUT /permissions": put_permissions,
    "DELETE /permissions": delete_permissions,
    **rights.ADDRESSES,
}
