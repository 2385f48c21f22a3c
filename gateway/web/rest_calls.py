"""REST: calling tools, raw requests, and cancelling what runs.

Nobody is kept waiting for a decision here: a call that needs one answers 202 with its execution's
id and runs by itself once it is approved.

REST: executions, approvals, standing grants, changes, permissions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Literal, get_args

from starlette.requests import Request
from starlette.responses import Response

from gateway.calls.asking import DECISIONS
from gateway.calls.call import BACKGROUND_META
from gateway.calls.record import (
    HEADERS_META,
    WARNINGS_META,
    Caller,
    NotApproved,
    output_of,
    refusal_of,
)
from gateway.calls.running import CANCEL
from gateway.calls.tokens import TOKEN_META
from gateway.config.reading import parse_permissions
from gateway.config.settings import Permissions
from gateway.errors import Fixable, NotFound, Refused, UnknownTool
from gateway.policy.access import oversees
from gateway.store import approvals
from gateway.store import catalog as changes
from gateway.store.cluster import signal
from gateway.store.ledger import MAX_PAGE
from gateway.web import shown as history
from gateway.web.gateway import proxy_door, tool_door
from gateway.web.meta_tools import HANDLERS, Asked
from gateway.web.proxy import NAME as PROXY
from gateway.web.proxy import proxied, proxy_request
from gateway.web.rest import (
    STATUS_OF_CODE,
    Answered,
    Handler,
    error_response,
    need_admin,
    object_body,
    retry_header,
    whole_number,
)
from gateway.web.shown import (
    approval_row,
    change_row,
    decided_row,
    execution_record,
    grant_row,
    known_execution,
)

# Failures of the other side are outcomes of a call that was made: the body tells of them.
OUTCOMES = ("upstream_error", "upstream_timeout", "upstream_unreachable", "outcome_unknown")
MAX_OFFSET = 999_999_999
GOING_ON = ("pending_confirmation", "executing")


async def call_tool(asked: Asked, request: Request, body: Any) -> Answered:
    name = request.path_params["name"]
    tool = asked.view.tools.get(name)
    if tool is None:
        asked.gateway.note_unknown(asked.snapshot, asked.context, name)
        raise UnknownTool(name)
    wanted = object_body({} if body is None else body)
    arguments = wanted.get("arguments", {})
    if not isinstance(arguments, dict):
        raise Fixable("invalid_arguments", "arguments must be an object")
    result = await asked.gateway.invoker.call(
        asked.snapshot,
        tool,
        arguments,
        _caller(asked, request, wanted),
        asked.view.bundle_ids,
        tool_door(asked.gateway, name, asked.context.scope, unattended=True),
    )
    return answered(result)


async def read_result(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    """A part of an answer that was too large, as the tool of this name gives it."""
    wanted: dict[str, Any] = {
        "result_id": request.path_params["id"],
        "pointer": request.query_params.get("pointer", ""),
        "offset": whole_number(request, "offset", 0, MAX_OFFSET),
    }
    if "limit" in request.query_params:
        wanted["limit"] = max(1, whole_number(request, "limit", 1, MAX_OFFSET))
    return await HANDLERS["read_result"](asked, wanted)


async def proxy(asked: Asked, request: Request, body: Any) -> Answered:
    wanted = object_body(body, "connection", "method", "path")
    raw = proxy_request(
        wanted["connection"],
        wanted["method"],
        wanted["path"],
        query=wanted.get("query"),
        body=wanted.get("body"),
    )
    try:
        found = proxied(asked.snapshot, asked.context.principal, asked.view, raw)
    except NotFound:
        asked.gateway.note_unknown(asked.snapshot, asked.context, f"{PROXY} {raw.connection}")
        raise
    except Refused as error:
        asked.gateway.invoker.record(
            refusal_of(
                asked.snapshot,
                asked.context,
                PROXY,
                error,
                connection=raw.connection,
                arguments={"method": raw.method, "path": raw.path},
            )
        )
        raise
    result = await asked.gateway.invoker.call(
        asked.snapshot,
        found.tool,
        raw.arguments,
        _caller(asked, request, wanted),
        asked.view.bundle_ids,
        proxy_door(asked.gateway, raw, found.judged),
    )
    return answered(result)


async def cancel_execution(asked: Asked, request: Request, body: Any) -> Answered:
    execution = await known_execution(asked, request.path_params["id"])
    gateway, id = asked.gateway, execution.id
    if execution.status == "pending_confirmation":
        await gateway.approvals.withdraw(id, asked.context.principal.name)
    elif execution.status == "executing" and not await gateway.invoker.running.cancelled(id):
        await gateway.db.write(lambda tx: signal(tx, CANCEL, id))
    execution = await known_execution(asked, id)
    status = 202 if execution.status in GOING_ON else 200
    return Answered(execution_record(execution), status)


def answered(result: Mapping[str, Any]) -> Answered:
    """A tool's result in the shape of this API."""
    meta = result["_meta"]
    id, token = meta["gateway/execution_id"], meta.get(TOKEN_META)
    more = {} if token is None else {"idempotency_token": token}
    if warnings := meta.get(WARNINGS_META):
        more["warnings"] = warnings
    if headers := meta.get(HEADERS_META):
        more["headers"] = headers
    if meta["gateway/status"] in GOING_ON:
        going_on = {"execution_id": id, "status": meta["gateway/status"], **more}
        return Answered(going_on, 202, {"location": f"/api/v1/executions/{id}"})
    error = _error(result) if result.get("isError") else None
    body = {
        "success": error is None,
        "output": None if error else output_of(result),
        "error": error,
        "duration_ms": meta["gateway/duration_ms"],
        "execution_id": id,
        **more,
    }
    code = None if error is None else error.get("code")
    status = 200 if code is None or code in OUTCOMES else STATUS_OF_CODE.get(code, 500)
    return Answered(body, status, retry_header(error or {}))


def _caller(asked: Asked, request: Request, wanted: Mapping[str, Any]) -> Caller:
    meta: dict[str, Any] = {}
    token = wanted.get("idempotency_token", request.headers.get("idempotency-key"))
    if token is not None:
        meta[TOKEN_META] = token
    if request.query_params.get("background", "").lower() in ("true", "1"):
        meta[BACKGROUND_META] = True
    return Caller(asked.context.principal, client=asked.context.client, meta=meta)


def _error(result: Mapping[str, Any]) -> dict[str, Any]:
    structured = result.get("structuredContent")
    if isinstance(structured, dict) and isinstance(structured.get("error"), dict):
        found: dict[str, Any] = structured["error"]
        return found
    return {"code": "upstream_error", "message": str(output_of(result))[:2000], "hint": ""}


ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "/tools/{name}/call", call_tool),
    ("GET", "/results/{id}", read_result),
    ("POST", "/proxy", proxy),
    ("DELETE", "/executions/{id}", cancel_execution),
]


FILTERS = ("status", "tool", "connection", "principal", "token", "cursor")
CHANGE_STATUSES: tuple[changes.ChangeStatus, ...] = get_args(changes.ChangeStatus)


async def list_executions(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    query = request.query_params
    wanted: dict[str, Any] = {name: query[name] for name in FILTERS if name in query}
    if "since" in query:
        wanted["since"] = _seconds(query["since"])
    wanted["limit"] = whole_number(request, "limit", history.DEFAULT_LIMIT, MAX_PAGE)
    return await history.list_executions(asked, wanted)


async def get_execution(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    return await history.get_execution(asked, {"id": request.path_params["id"]})


async def list_approvals(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    need_admin(asked)
    waiting = await approvals.list_open(asked.gateway.db, time.time())
    return {"approvals": [approval_row(a) for a in waiting if _concerns(asked, a.connection)]}


async def get_approval(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    need_admin(asked)
    return decided_row(await _known_approval(asked, request.path_params["id"]))


async def _known_approval(asked: Asked, id: str) -> approvals.Approval:
    found = await approvals.get_approval(asked.gateway.db, id)
    if found is None or not _concerns(asked, found.connection):
        raise NotFound("invalid_arguments", "there is no such approval")
    return found


def _concerns(asked: Asked, connection: str) -> bool:
    return oversees(asked.snapshot, asked.context.principal, connection)


async def decide_approval(asked: Asked, request: Request, body: Any) -> dict[str, Any] | Response:
    need_admin(asked)
    decision = object_body(body, "decision")["decision"]
    if decision not in DECISIONS:
        raise Fixable("invalid_arguments", f"decision must be one of {', '.join(DECISIONS)}")
    by = asked.context.principal
    await _known_approval(asked, request.path_params["id"])
    try:
        decided = await asked.gateway.approvals.decide(request.path_params["id"], decision, by)
    except NotApproved as error:  # someone, or time, was faster
        return error_response(error, 409)
    return decided_row(decided)


async def list_grants(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    return {"standing_grants": [grant_row(grant) for grant in await history.known_grants(asked)]}


async def revoke_grant(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    return grant_row(await history.revoke_grant(asked, request.path_params["id"])) | {
        "revoked": True
    }


async def list_changes(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    need_admin(asked)
    given = request.query_params.get("status")
    status = next((each for each in CHANGE_STATUSES if each == given), None)
    if status != given:
        raise Fixable("invalid_arguments", f"status must be one of {', '.join(CHANGE_STATUSES)}")
    found = await changes.list_changes(
        asked.gateway.db,
        connection=request.query_params.get("connection"),
        status=status,
        limit=whole_number(request, "limit", 100, changes.MAX_LISTED),
    )
    return {"changes": [change_row(c) for c in found if _concerns(asked, c.connection)]}


async def accept_change(asked: Asked, request: Request, body: Any) -> dict[str, Any] | Response:
    return await _decide_change(asked, request.path_params["id"], "accepted")


async def reject_change(asked: Asked, request: Request, body: Any) -> dict[str, Any] | Response:
    return await _decide_change(asked, request.path_params["id"], "rejected")


async def _decide_change(
    asked: Asked, id: str, status: Literal["accepted", "rejected"]
) -> dict[str, Any] | Response:
    need_admin(asked)
    found = await changes.get_change(asked.gateway.db, id)
    if found is not None and not _concerns(asked, found.connection):
        found, id = None, ""
    if found is not None and found.status != "held":
        decided = Fixable("invalid_arguments", f"the change is {found.status} already")
        return error_response(decided, 409)
    by = asked.context.principal.name
    return change_row(await asked.gateway.catalog.decide_change(id, status, by=by))


async def get_permissions(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    return _permissions(asked)


async def put_permissions(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    need_admin(asked)
    values = dict(object_body(body))
    values.pop("source", None)  # what a GET gave may be put again
    permissions = parse_permissions(asked.snapshot.settings.permissions, values)
    await asked.gateway.catalog.put_permissions(permissions, by=asked.context.principal.name)
    return _permissions(asked)


async def delete_permissions(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    need_admin(asked)
    await asked.gateway.catalog.put_permissions(None, by=asked.context.principal.name)
    return _permissions(asked)


def _permissions(asked: Asked) -> dict[str, Any]:
    snapshot = asked.gateway.snapshot
    permissions: Permissions = snapshot.permissions
    source = "config.toml" if snapshot.stored_permissions is None else "stored"
    return permissions.model_dump(mode="json") | {"source": source}


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Fixable("invalid_arguments", "since must be a time in seconds since 1970")
    return value


HISTORY_ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/executions", list_executions),
    ("GET", "/executions/{id}", get_execution),
    ("GET", "/approvals", list_approvals),
    ("GET", "/approvals/{id}", get_approval),
    ("POST", "/approvals/{id}", decide_approval),
    ("GET", "/standing-grants", list_grants),
    ("DELETE", "/standing-grants/{id}", revoke_grant),
    ("GET", "/changes", list_changes),
    ("POST", "/changes/{id}/accept", accept_change),
    ("POST", "/changes/{id}/reject", reject_change),
    ("GET", "/permissions", get_permissions),
    ("PUT", "/permissions", put_permissions),
    ("DELETE", "/permissions", delete_permissions),
]
