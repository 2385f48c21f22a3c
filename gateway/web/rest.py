"""The HTTP API: the same functions as the tools, with paths and status codes.

Each address is answered by a function of the inquiry and of its arguments by name, which are in the
address, in its query or in the body; what it returns is the JSON body. Routes are Starlette's; one
table turns our errors into statuses, and one shape carries them all, 404 and 405 included. Nobody
is kept waiting for a decision here: a call that needs one answers 202 with its execution's id and
runs by itself once it is approved.
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
from gateway.calls.record import BACKGROUND_META, TOKEN_META, Caller, refusal_of
from gateway.config.reading import parse_permissions
from gateway.errors import (
    STATUS_OF_CODE,
    Broken,
    Fixable,
    GatewayError,
    NotApproved,
    NotFound,
    Refused,
    Unauthenticated,
)
from gateway.limits import MAX_BODY_BYTES, NAME_CHARS, PAGE_ENTRIES
from gateway.model import Level, Scope, json_bytes, read_json
from gateway.store import approvals
from gateway.store import catalog as changes
from gateway.store.oauth import get_client_grant, list_grants_that_hold, revoke_client_grants
from gateway.store.tables import ChangeStatus, Decided
from gateway.web import access, credentials, own_tools, rights, shown
from gateway.web.gateway import Gateway, Inquiry, Run
from gateway.web.guard import fold, read_body, require_json
from gateway.web.identity import Identity
from gateway.web.proxy import NAME as PROXY
from gateway.web.proxy import proxied, proxy_request
from gateway.web.watch import event_stream

log = structlog.get_logger("gateway.edge")

PREFIX = "/api/v1"
POSTING = ("POST", "PUT", "PATCH")

# Failures of the other side are outcomes of a call that was made: the body tells of them.
OUTCOMES = ("upstream_error", "upstream_timeout", "upstream_unreachable", "outcome_unknown")
CHANGE_DECISIONS: Mapping[str, Decided] = {"accept": "accepted", "reject": "rejected"}
CHANGE_STATUSES: tuple[ChangeStatus, ...] = get_args(ChangeStatus)


Shown = dict[str, Any]
Headers = Mapping[str, str] | None


def http_app(gateway: Gateway, identity: Identity, others: Sequence[Route]) -> Starlette:
    """The API as an ASGI application, with other routes whose errors have the same shape."""

    def endpoint(runs: Mapping[str, Run]) -> Callable[[Request], Awaitable[Response]]:
        wanted = {m: [*inspect.signature(runs[m]).parameters.values()][1:] for m in runs}

        async def answer(request: Request) -> Response:
            inquiry, posted = await _read_request(gateway, identity, request)
            method = "GET" if request.method == "HEAD" else request.method
            arguments = _arguments(wanted[method], request, posted)
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
    return Starlette(routes=[*api, *others], exception_handlers=handlers)


async def _read_request(
    gateway: Gateway, identity: Identity, request: Request
) -> tuple[Inquiry, Any]:
    """Who asks, and what was posted."""
    fields = fold(request.scope["headers"])
    principal = await identity.identify(fields)
    posted: Any = None
    if request.method in POSTING:
        seconds = gateway.snapshot.settings.limits.request_seconds
        raw = await read_body(fields, request.receive, MAX_BODY_BYTES, seconds)
        if raw:
            require_json(fields)
            posted = read_json(raw)  # as strict as MCP is: a call means the same through both doors
    caller = Caller(principal, client=request.headers.get("user-agent", "")[:NAME_CHARS])
    return gateway.inquiry(caller), posted


def _arguments(wanted: list[inspect.Parameter], request: Request, posted: Any) -> Shown:
    """The arguments of a function: the request and what was posted, if it wants these whole; what
    the address names; the rest from the body of a post, else from the query."""
    given: Shown = {p.name: _number(p, request.query_params.get(p.name)) for p in wanted}
    if request.method in POSTING:
        given = posted if isinstance(posted, dict) else {}
    given = {**given, **request.path_params, "request": request, "posted": posted}
    return {p.name: given[p.name] for p in wanted if given.get(p.name) is not None}


def _number(parameter: inspect.Parameter, text: str | None) -> Any:
    """What a text in an address stands for, where a function wants a number."""
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


def json_response(value: Any, status: int = 200, headers: Headers = None) -> Response:
    """A value as the body of an answer."""
    return Response(json_bytes(value), status, headers, "application/json")


def error_response(error: GatewayError, status: int | None = None) -> Response:
    """Any of our errors, in the one shape of this API."""
    shown, headers = {"error": error.as_dict()}, retry_header(error.details)
    return json_response(shown, status or error_status(error), headers)


def error_status(error: GatewayError) -> int:
    """The status that HTTP has for one of our errors."""
    if isinstance(error, NotFound | NotApproved):  # or a decision for which someone was faster
        return 404 if isinstance(error, NotFound) else 409
    return STATUS_OF_CODE.get(error.code, 500)


def refusal_response(refusal: HTTPException) -> Response:
    """A request that is not even understood, in the one shape of this API."""
    shown = {"error": Fixable("invalid_arguments", refusal.detail).as_dict()}
    return json_response(shown, refusal.status_code, refusal.headers)


def retry_header(error: Mapping[str, Any]) -> Mapping[str, str]:
    """What tells a client when to come again, where the error knows it."""
    seconds = error.get("retry_after")
    return {} if seconds is None else {"retry-after": str(max(1, math.ceil(seconds)))}


async def _answer_error(request: Request, error: Exception) -> Response:
    match error:
        case GatewayError():
            return error_response(error)
        case HTTPException():
            return refusal_response(error)
        case ConnectionError():
            return Response(status_code=400)  # the client has gone: nobody reads it
    # A stack must never reach a client; Starlette passes the error on to the server's log.
    return error_response(Broken("internal", "the gateway failed on this request"))


_ERRORS = (GatewayError, HTTPException, ConnectionError, Exception)


# --- tools and connections ------------------------------------------------------------------------


async def capabilities(inquiry: Inquiry) -> Shown:
    """Who the caller is, and what it may do with each connection that exists for it."""
    snapshot, principal = inquiry.snapshot, inquiry.principal
    connections = {
        state.name: {"provider": state.settings.kind, "status": state.status}
        | shown.access_row(snapshot, principal, state)
        for state in inquiry.connections()
    }
    names = ("admin", "organization", "role")
    about = {name: getattr(principal, name) for name in names}
    return {"principal": principal.name, **about, "connections": connections}


async def choose_access(inquiry: Inquiry, connection: str, access: Any = None) -> Shown:
    """The caller's own choice for one connection."""
    catalog, principal, name = inquiry.gateway.catalog, inquiry.principal, connection
    inquiry.connection(name)
    if access not in get_args(Level):
        raise Fixable("invalid_arguments", f"access must be one of {', '.join(get_args(Level))}")
    await catalog.rights.choose(principal.name, name, access)
    now = catalog.current
    return {"connection": name, **shown.access_row(now, principal, now.connections[name])}


async def get_connection(inquiry: Inquiry, name: str) -> Response:
    shown = await own_tools.get_connection(inquiry, name)
    return json_response(shown, headers={"etag": f'"{shown["revision"]}"'})


async def put_connection(
    inquiry: Inquiry, name: str, request: Request, posted: Any = None
) -> Response:
    inquiry.require_admin()
    gateway, values = inquiry.gateway, dict(_object(posted))
    if values.pop("name", name) != name:
        raise Fixable("invalid_arguments", "the body names another connection than the address")
    expected = rights.expected_revision(request, name in gateway.snapshot.connections)
    shown = await own_tools.put(inquiry, name, values, expected)
    state = gateway.snapshot.connections.get(name)
    return json_response(shown, headers={"etag": f'"{state.revision}"'} if state else None)


async def delete_connection(inquiry: Inquiry, name: str, request: Request) -> Shown:
    expected = rights.expected_revision(request, True)
    return await own_tools.delete_connection(inquiry, name, expected=expected)


async def refresh_connection(inquiry: Inquiry, name: str) -> Shown:
    refreshed = await own_tools.refresh_tools(inquiry, name)
    report: Shown = refreshed["connections"][0]
    return report | {"revision": refreshed["revision"]}


async def preview_connection(inquiry: Inquiry, posted: Any = None) -> Shown:
    values = {**_object(posted), "dry_run": True}
    return await own_tools.put(inquiry, values.pop("name", "preview"), values)


def _object(posted: Any) -> Shown:
    if not isinstance(posted, dict):
        raise Fixable("invalid_arguments", "the body must be a JSON object")
    return posted


async def get_tool(inquiry: Inquiry, name: str) -> Shown:
    return shown.tool_detail(inquiry.tool(name), inquiry.snapshot.permissions)


async def resolve_step(inquiry: Inquiry, workflow: Any = None, step: Any = None) -> Shown:
    if not isinstance(workflow, str) or not isinstance(step, str):
        raise Fixable("invalid_arguments", "workflow and step must be strings")
    scope = Scope("step", (workflow, step))
    return shown.step_view(inquiry.gateway.view_of(inquiry.snapshot, inquiry.principal, scope))


# --- calls ----------------------------------------------------------------------------------------


async def call_tool(inquiry: Inquiry, name: str, request: Request, posted: Any = None) -> Response:
    if inquiry.find_tool(name) is None:
        inquiry.gateway.note_unknown(inquiry, name)
    tool = inquiry.tool(name)
    wanted = {} if posted is None else _object(posted)
    arguments = wanted.get("arguments", {})
    if not isinstance(arguments, dict):
        raise Fixable("invalid_arguments", "arguments must be an object")
    if "arguments" not in wanted and wanted.keys() - {"idempotency_token"}:  # nothing is dropped
        words, hint = "there are no `arguments`", 'Send {"arguments": {…}}.'
        raise Fixable("invalid_arguments", words, hint)
    caller = _caller(inquiry, request, wanted)
    return _result_response(await inquiry.call(tool, arguments, caller, unattended=True))


async def proxy(inquiry: Inquiry, request: Request, posted: Any = None) -> Response:
    said = ("connection", "method", "path", "query", "body")
    raw = proxy_request(**{name: _object(posted).get(name) for name in said})
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
    caller = _caller(inquiry, request, posted)
    called = inquiry.call(tool, raw.arguments, caller, unattended=True, raw=raw, judged=judged)
    return _result_response(await called)


def _caller(inquiry: Inquiry, request: Request, wanted: Mapping[str, Any]) -> Caller:
    meta: Shown = {}
    token = wanted.get("idempotency_token", request.headers.get("idempotency-key"))
    if token is not None:
        meta[TOKEN_META] = token
    if request.query_params.get("background", "").lower() in ("true", "1"):
        meta[BACKGROUND_META] = True
    return replace(inquiry.caller, meta=meta)


def _result_response(result: Mapping[str, Any]) -> Response:
    """A tool's result in the shape of this API."""
    body = shown.outcome(result)
    if "status" in body:
        place = {"location": f"{PREFIX}/executions/{body['execution_id']}"}
        return json_response(body, 202, place)
    error = body["error"] or {}
    code = error.get("code")
    status = 200 if code is None or code in OUTCOMES else STATUS_OF_CODE.get(code, 500)
    return json_response(body, status, retry_header(error))


# --- executions, approvals, grants, changes, permissions ------------------------------------------


async def delete_execution(inquiry: Inquiry, id: str) -> Response:
    [record] = await inquiry.records([await inquiry.cancel(id)])
    return json_response(record, 202 if record["status"] in shown.GOING_ON else 200)


async def list_approvals(inquiry: Inquiry) -> Shown:
    inquiry.require_admin()
    waiting = await approvals.list_open(inquiry.gateway.db, time.time())
    mine = [each for each in waiting if inquiry.oversees(each.connection)]
    return {"approvals": [shown.approval_row(inquiry.snapshot, each) for each in mine]}


async def get_approval(inquiry: Inquiry, id: str) -> Shown:
    return shown.decided_row(inquiry.snapshot, await inquiry.approval(id))


async def decide_approval(inquiry: Inquiry, id: str, decision: Any = None) -> Shown:
    approval = await inquiry.approval(id)
    if decision not in DECISIONS:
        raise Fixable("invalid_arguments", f"decision must be one of {', '.join(DECISIONS)}")
    decide = inquiry.gateway.approvals.decide
    decided = await decide(approval, decision, inquiry.principal, inquiry.door)
    return shown.decided_row(inquiry.snapshot, decided)


async def list_grants(inquiry: Inquiry) -> Shown:
    """The standing grants that hold and are the caller's business."""
    found = await approvals.list_grants(inquiry.gateway.db, time.time())
    mine = [each for each in found if inquiry.concerns(each.principal, each.connection)]
    return {"standing_grants": [shown.grant_row(each) for each in mine]}


async def delete_grant(inquiry: Inquiry, id: str) -> Shown:
    """Ends a standing grant: the next call is asked about again."""
    db, by = inquiry.gateway.db, inquiry.principal.name
    grant = await approvals.get_grant(db, id)
    if grant is None or not inquiry.concerns(grant.principal, grant.connection):
        raise NotFound("invalid_arguments", "there is no such standing grant")
    await approvals.revoke_grant(db, id)
    log.info("standing grant revoked", grant=id, tool=grant.tool, of=grant.principal, by=by)
    return shown.grant_row(grant) | {"revoked": True}


async def list_client_grants(inquiry: Inquiry) -> Shown:
    """What people gave their clients: to an admin all of it, to others their own."""
    me, found = inquiry.principal, await list_grants_that_hold(inquiry.gateway.db, time.time())
    mine = [each for each in found if me.admin or each.principal == me.name]
    return {"grants": [shown.client_grant_row(each) for each in mine]}


async def delete_client_grant(inquiry: Inquiry, id: str) -> Shown:
    """Ends what a client was given, in every process."""
    me, db = inquiry.principal, inquiry.gateway.db
    grant = await get_client_grant(db, id)
    if grant is None or not (me.admin or grant.principal == me.name):
        raise NotFound("invalid_arguments", "there is no such grant", "GET /grants names yours.")
    await revoke_client_grants(db, time.time(), id=id)
    log.info("grant revoked", grant=id, of=grant.principal, by=me.name)
    return shown.client_grant_row(grant) | {"revoked": True}


async def list_changes(
    inquiry: Inquiry, status: str = "", connection: str = "", limit: int = PAGE_ENTRIES
) -> Shown:
    inquiry.require_admin()
    known = next((each for each in CHANGE_STATUSES if each == status), None)
    if status and known is None:
        raise Fixable("invalid_arguments", f"status must be one of {', '.join(CHANGE_STATUSES)}")
    db, of = inquiry.gateway.db, connection or None
    found = await changes.list_changes(db, connection=of, status=known, limit=limit)
    return {"changes": [shown.change_row(c) for c in found if inquiry.oversees(c.connection)]}


async def decide_change(inquiry: Inquiry, id: str, decision: str) -> Shown:
    if decision not in CHANGE_DECISIONS:
        raise HTTPException(404, "Not Found")
    inquiry.require_admin()
    found, by = await changes.get_change(inquiry.gateway.db, id), inquiry.principal.name
    if found is None or not inquiry.oversees(found.connection):
        raise NotFound("invalid_arguments", "there is no such change")
    if found.status != "held":
        raise NotApproved("invalid_arguments", f"the change is {found.status} already")
    status = CHANGE_DECISIONS[decision]
    return shown.change_row(await inquiry.gateway.catalog.decide_change(found.id, status, by=by))


async def get_permissions(inquiry: Inquiry) -> Shown:
    snapshot = inquiry.gateway.snapshot
    source = "config.toml" if snapshot.stored_permissions is None else "stored"
    return snapshot.written_permissions.model_dump(mode="json") | {"source": source}


async def put_permissions(inquiry: Inquiry, posted: Any = None) -> Shown:
    """The permissions of config.toml with these values in their place."""
    inquiry.require_admin()
    values = dict(_object(posted))
    values.pop("source", None)  # what a GET gave may be put again
    permissions = parse_permissions(inquiry.snapshot.settings.permissions, values)
    await inquiry.gateway.catalog.rights.put_permissions(permissions, by=inquiry.principal.name)
    return await get_permissions(inquiry)


async def delete_permissions(inquiry: Inquiry) -> Shown:
    """The permissions of config.toml again."""
    inquiry.require_admin()
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
