"""REST: executions, approvals, standing grants, changes, permissions."""

from __future__ import annotations

import math
import time
from typing import Any, Literal, get_args

from starlette.requests import Request
from starlette.responses import Response

from gateway.config.reading import parse_permissions
from gateway.config.settings import Permissions
from gateway.edge import history
from gateway.edge.meta_tools import Asked
from gateway.edge.rest import Handler, error_response, need_admin, object_body, whole_number
from gateway.edge.shown_history import approval_row, change_row, decided_row, grant_row
from gateway.errors import Fixable, NotFound
from gateway.invoke.asking import DECISIONS
from gateway.invoke.outcomes import NotApproved
from gateway.policy.access import oversees
from gateway.store import approvals, changes
from gateway.store.history import MAX_PAGE

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


ROUTES: list[tuple[str, str, Handler]] = [
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
