"""REST: calling tools, raw requests, and cancelling what runs.

Nobody is kept waiting for a decision here: a call that needs one answers 202 with its execution's
id and runs by itself once it is approved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from gateway.edge.doors import proxy_door, tool_door
from gateway.edge.history import known_execution
from gateway.edge.meta_tools import HANDLERS, Asked
from gateway.edge.proxy import NAME as PROXY
from gateway.edge.proxy import proxied, proxy_request
from gateway.edge.rest import (
    STATUS_OF_CODE,
    Answered,
    Handler,
    object_body,
    retry_header,
    whole_number,
)
from gateway.edge.shown_history import execution_record
from gateway.errors import Fixable, NotFound, Refused, UnknownTool
from gateway.invoke.attempt import HEADERS_META, output_of, refusal_of
from gateway.invoke.background import CANCEL
from gateway.invoke.call import BACKGROUND_META
from gateway.invoke.caller import AbsentCaller
from gateway.invoke.idempotency import TOKEN_META
from gateway.invoke.outcomes import WARNINGS_META
from gateway.store.signals import signal

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


def _caller(asked: Asked, request: Request, wanted: Mapping[str, Any]) -> AbsentCaller:
    meta: dict[str, Any] = {}
    token = wanted.get("idempotency_token", request.headers.get("idempotency-key"))
    if token is not None:
        meta[TOKEN_META] = token
    if request.query_params.get("background", "").lower() in ("true", "1"):
        meta[BACKGROUND_META] = True
    return AbsentCaller(asked.context.principal, asked.context.client, meta)


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
