"""How executions, approvals and changes are shown, the same to a model, over REST and as events.

Field by field, so that what the store keeps besides (the exact answer for a repeated call, sealed
arguments, tools before and after) can't slip out with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.store.approvals import Approval, StandingGrant
from gateway.store.changes import Change
from gateway.store.executions import Execution

WAITING = ("pending_confirmation", "executing")
ENDINGS: Mapping[str, str] = {
    "approval_denied": "the call was not approved",
    "approval_expired": "nobody approved the call in time, or what was approved has changed",
    "outcome_unknown": "nobody knows whether the call was carried out: it was being sent when "
    "the gateway stopped or the connection broke",
    "store_unavailable": "the call was not sent, since it could not be recorded first",
}


def execution_record(execution: Execution) -> dict[str, Any]:
    """One execution, as every edge gives it."""
    return {
        "id": execution.id,
        "tool": execution.tool,
        "connection": execution.connection,
        "principal": execution.principal,
        "status": execution.status,
        "access": execution.access,
        "risk": execution.risk,
        "arguments": execution.arguments,
        "result": _result(execution),
        "error_code": execution.error_code,
        "upstream_status": execution.upstream_status,
        "idempotency_token": execution.idempotency_token,
        "recorded": execution.recorded,
        "bundle_ids": list(execution.bundle_ids),
        "created_at": execution.created_at,
        "finished_at": execution.finished_at,
        "revision": execution.revision,
    }


def execution_event(execution: Execution) -> dict[str, Any]:
    """What the feed says of a call that ended: all but what was said in it."""
    duration = (execution.result or {}).get("duration_ms")
    return {
        "id": execution.id,
        "tool": execution.tool,
        "connection": execution.connection,
        "principal": execution.principal,
        "status": execution.status,
        "access": execution.access,
        "risk": execution.risk,
        "error_code": execution.error_code,
        "upstream_status": execution.upstream_status,
        "duration_ms": duration,
        "created_at": execution.created_at,
        "finished_at": execution.finished_at,
    }


def approval_row(approval: Approval) -> dict[str, Any]:
    """One call that waits for a decision."""
    return {
        "id": approval.id,
        "execution_id": approval.execution_id,
        "tool": approval.tool,
        "connection": approval.connection,
        "principal": approval.principal,
        "session": approval.session,
        "client": approval.client,
        "risk": approval.risk,
        "method": approval.method,
        "url": approval.url,
        "arguments": approval.arguments,
        "warnings": list(approval.warnings),
        "created_at": approval.created_at,
        "expires_at": approval.expires_at,
    }


def decided_row(approval: Approval) -> dict[str, Any]:
    """An approval with what became of it."""
    return approval_row(approval) | {
        "status": approval.status,
        "decided_by": approval.decided_by,
        "decided_at": approval.decided_at,
    }


def grant_row(grant: StandingGrant) -> dict[str, Any]:
    """One tool that somebody is always allowed: for whom, in what, how long, and by whom."""
    return {
        "id": grant.id,
        "tool": grant.tool,
        "connection": grant.connection,
        "request": grant.request,
        "principal": grant.principal,
        "session": grant.session or None,
        "client": grant.client,
        "granted_by": grant.granted_by,
        "created_at": grant.created_at,
        "expires_at": grant.expires_at,
    }


def change_row(change: Change) -> dict[str, Any]:
    """One operation that a refresh found changed."""
    return {
        "id": change.id,
        "connection": change.connection,
        "operation": change.operation,
        "tool": change.tool,
        "kind": change.kind,
        "class": change.change_class,
        "reason": change.reason,
        "status": change.status,
        "at": change.at,
        "by": change.by,
        "decided_at": change.decided_at,
    }


def _result(execution: Execution) -> dict[str, Any] | None:
    kept = execution.result
    if kept is not None:
        shown = {key: kept.get(key) for key in ("success", "output", "error", "duration_ms")}
        return shown | {"headers": kept["headers"]} if "headers" in kept else shown
    if execution.status in WAITING:
        return None
    # Ended by a decision or a crash, where nobody was left to write a result.
    code = execution.error_code or "internal"
    ended = execution.finished_at or execution.created_at
    return {
        "success": False,
        "output": None,
        "error": {"code": code, "message": ENDINGS.get(code, "the call ended"), "hint": ""},
        "duration_ms": round((ended - execution.created_at) * 1000, 2),
    }
