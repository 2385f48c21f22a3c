"""How connections and tools are shown, the same to a model, over REST and in the console.

Secrets are masked here: whatever is `SecretStr` in the configuration, injected values, environment
of child processes, headers and options whose names speak of credentials, and what addresses have
in their query.

How executions, approvals and changes are shown, the same to a model, over REST and as events.

Field by field, so that what the store keeps besides (the exact answer for a repeated call, sealed
arguments, tools before and after) can't slip out with it.

The wire dicts of tool results that are ours: a value, or an error the model should read.

Past and running calls, and what is always allowed: a caller's own, and all for an admin.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import structlog

from gateway.calls.redact import SECRET_NAME
from gateway.catalog.definitions import is_inline, kind_of
from gateway.catalog.discover import problem_dict
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import Connection
from gateway.config.settings import Permissions
from gateway.errors import Fixable, GatewayError, NotFound
from gateway.model import Principal, Tool
from gateway.policy.access import admin_level, decide, level, oversees, user_level, visible_tools
from gateway.store import approvals, ledger
from gateway.store.approvals import Approval, StandingGrant
from gateway.store.catalog import Change
from gateway.store.ledger import Execution, ExecutionStatus, Filter, find_by_token
from gateway.store.ledger import list_executions as read_page
from gateway.web.guard import write_json

MASK = "**********"
MAX_PROBLEMS = 50
INLINE_SHOWN = 200


def tool_row(tool: Tool, permissions: Permissions) -> dict[str, Any]:
    """One tool as `list_dynamic_tools` and REST list it."""
    return {
        "name": tool.name,
        "connection": tool.connection,
        "operation": tool.operation,
        "method": tool.method,
        "path": tool.path,
        "access": tool.access,
        "risk": tool.risk,
        "requires_confirmation": decide(tool, permissions).outcome == "confirm",
        "description": tool.description,
        "tokens": tool.tokens,
    }


def connection_row(
    snapshot: Snapshot, principal: Principal, state: ConnectionState, refreshed_at: float | None
) -> dict[str, Any]:
    """One connection as `list_connections` and REST list it."""
    tools = visible_tools(snapshot, principal, state)
    return {
        "name": state.name,
        "display_name": state.display_name,
        "kind": kind_of(state.settings),
        "origin": state.origin,
        "status": state.status,
        "effective_access": level(snapshot, principal, state) or "disabled",
        "tools": len(tools),
        "tokens": sum(tool.tokens for tool in tools),
        "last_refresh": refreshed_at,
        "problems": [problem_dict(problem) for problem in state.problems[:MAX_PROBLEMS]],
        "consent_link": state.consent_link,
    }


def connection_detail(
    snapshot: Snapshot, principal: Principal, state: ConnectionState, refreshed_at: float | None
) -> dict[str, Any]:
    """One connection with its settings; those of an admin's concern only for admins."""
    row = connection_row(snapshot, principal, state, refreshed_at)
    row |= {
        "admin_access": admin_level(state),
        "user_access": user_level(snapshot, principal, state.name),
        "base_url": masked_url(state.build.base_url) if state.build else "",
        "revision": state.revision,
    }
    if principal.admin:
        row["settings"] = masked_settings(state.settings)
        row["skipped"] = len(state.skipped)
    return row


def masked_settings(settings: Connection) -> dict[str, Any]:
    """The settings as they were put, with every secret masked."""
    shown = settings.model_dump(mode="json", by_alias=True, exclude_unset=True)
    shown["kind"] = kind_of(settings)
    for table in ("inject", "env", "parameter_values"):
        if table in shown:
            shown[table] = dict.fromkeys(shown[table], MASK)
    if "headers" in shown:
        shown["headers"] = {
            name: MASK if SECRET_NAME.search(name) else value
            for name, value in shown["headers"].items()
        }
    for rule in shown.get("wrap", ()):
        rule["inject"] = dict.fromkeys(rule.get("inject", ()), MASK)
    for key in ("spec", "url", "base_url"):
        if shown.get(key) and not is_inline(shown[key]):
            shown[key] = masked_url(shown[key])
    if "args" in shown:
        shown["args"] = _masked_options(shown["args"])
    spec = shown.get("spec", "")
    if len(spec) > INLINE_SHOWN:
        shown["spec"] = f"{spec[:INLINE_SHOWN]}… ({len(spec)} characters)"
    return shown


def masked_url(url: str) -> str:
    """The address, with the values in its query masked: some services put their keys there."""
    place, _, query = url.partition("?")
    if not query:
        return url
    names = (pair.partition("=")[0] for pair in query.split("&"))
    return place + "?" + "&".join(f"{name}={MASK}" for name in names)


def _masked_options(args: list[str]) -> list[str]:
    """A command's arguments without the values of options such as `--api-key`."""
    shown: list[str] = []
    for arg in args:
        name, equals, _ = arg.partition("=")
        after = shown[-1] if shown else ""
        if after.startswith("-") and "=" not in after and SECRET_NAME.search(after):
            shown.append(MASK)
        else:
            secret = equals and SECRET_NAME.search(name)
            shown.append(f"{name}={MASK}" if secret else arg)
    return shown


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


def value_result(value: dict[str, Any]) -> dict[str, Any]:
    """A result with this object as text and as structured content."""
    text = write_json(value).decode()
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": value,
        "isError": False,
    }


def error_result(error: GatewayError) -> dict[str, Any]:
    """A failed result: the sentence as text, code and hint as structured content."""
    return {
        "content": [{"type": "text", "text": error.sentence}],
        "structuredContent": {"error": error.as_dict()},
        "isError": True,
    }


if TYPE_CHECKING:
    from gateway.web.meta_tools import Asked

log = structlog.get_logger("gateway.approvals")

DEFAULT_LIMIT = 50
STATUSES = get_args(ExecutionStatus)


async def list_executions(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One page, newest first, with the cursor behind it."""
    status = arguments.get("status")
    if status is not None and status not in STATUSES:
        raise Fixable("invalid_arguments", f"status must be one of {', '.join(STATUSES)}")
    await asked.gateway.db.settle()
    page = await read_page(
        asked.gateway.db,
        Filter(
            status=status,
            tool=arguments.get("tool"),
            connection=arguments.get("connection"),
            principal=_readable(asked.context.principal, arguments.get("principal")),
            token=arguments.get("token"),
            since=arguments.get("since"),
            connections=overseen(asked),
        ),
        limit=arguments.get("limit", DEFAULT_LIMIT),
        cursor=arguments.get("cursor"),
    )
    return {"executions": [execution_record(e) for e in page.executions], "next": page.next}


async def get_execution(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One execution by its id."""
    return execution_record(await known_execution(asked, arguments["id"]))


async def find_execution(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The call that used a token; under `executions`, every one that tried to."""
    principal = _readable(asked.context.principal, None)
    found = await find_by_token(asked.gateway.db, arguments["token"], principal)
    kept_to = overseen(asked)
    found = [each for each in found if kept_to is None or each.connection in kept_to]
    if not found:
        raise NotFound("invalid_arguments", "no call has used this token")
    records = [execution_record(execution) for execution in found]
    # What never left its token free for a later one, which then is the call that counts.
    return records[0] | {"executions": records}


async def known_execution(asked: Asked, id: str) -> Execution:
    """The execution of this id, if it exists for the caller."""
    found = await ledger.get_execution(asked.gateway.db, id)
    if found is None:  # a call that has just been answered may not be on disk yet
        await asked.gateway.db.settle()
        found = await ledger.get_execution(asked.gateway.db, id)
    caller = asked.context.principal
    if found is None or not (
        found.principal == caller.name or oversees(asked.snapshot, caller, found.connection)
    ):
        raise NotFound(
            "invalid_arguments", "there is no such execution", "list_executions names yours."
        )
    return found


async def known_grants(asked: Asked) -> list[StandingGrant]:
    """The standing grants that hold and are this caller's business."""
    found = await approvals.list_grants(asked.gateway.db, time.time())
    return [grant for grant in found if _concerns(asked, grant)]


async def revoke_grant(asked: Asked, id: str) -> StandingGrant:
    """Ends a standing grant: the next call is asked about again."""
    grant = await approvals.get_grant(asked.gateway.db, id)
    if grant is None or not _concerns(asked, grant):
        raise NotFound("invalid_arguments", "there is no such standing grant")
    await approvals.revoke_grant(asked.gateway.db, id)
    by = asked.context.principal.name
    log.info("standing grant revoked", grant=id, tool=grant.tool, of=grant.principal, by=by)
    return grant


def _concerns(asked: Asked, grant: StandingGrant) -> bool:
    caller = asked.context.principal
    return grant.principal == caller.name or oversees(asked.snapshot, caller, grant.connection)


def overseen(asked: Asked) -> tuple[str, ...] | None:
    """The connections an admin of an organization is kept to; None: no such bound."""
    caller = asked.context.principal
    if not caller.admin or caller.organization is None:
        return None
    names = asked.snapshot.connections
    return tuple(name for name in names if oversees(asked.snapshot, caller, name))


def _readable(caller: Principal, wanted: str | None) -> str | None:
    """Whose executions are read: anyone's for an admin, else one's own."""
    return (wanted or None) if caller.admin else caller.name
