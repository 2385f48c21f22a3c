"""Makes the rows that models, REST, events and the console all show alike.

Field by field, so that what else the store keeps (the exact answer for a repeated call, sealed
arguments, tools before and after) can't slip out. Secrets are masked: every
`SecretStr` of the configuration, injected values, environment of child processes, headers and
options whose names speak of credentials, and the query of addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from gateway.calls.answer import HEADERS_META
from gateway.calls.record import GOING_ON, TOKEN_META, WARNINGS_META, failure_in, output_of
from gateway.catalog.discover import is_inline
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import SECRET_NAME, ArmConnection, Connection, acts_as, secrets_of
from gateway.config.profiles import Format
from gateway.config.settings import Permissions
from gateway.limits import SUMMARY_CHARS
from gateway.model import Principal, Tool, whole_schema, without_constants
from gateway.naming import cut, listed_tokens
from gateway.policy.access import admin_level, decide, level, user_level
from gateway.policy.view import View
from gateway.store.tables import Approval, Change, ClientGrant, Execution, StandingGrant

MASK = "**********"

_TOOL = "name connection operation method path access risk description tokens".split()
_CALL = "id tool connection principal status access risk".split()
_OUTCOME = "error_code upstream_status created_at finished_at".split()
_EXECUTION = [*_CALL, "arguments", "idempotency_token", "recorded", "revision", *_OUTCOME]
_APPROVAL = """id execution_id tool connection principal session client risk method url arguments
    created_at expires_at""".split()
_DECISION = "status decided_by decided_at".split()
_GRANT = "id tool connection request principal client granted_by created_at expires_at".split()
_CLIENT_GRANT = "id client_id client_name principal resource scope created_at last_used_at".split()
_CHANGE = "id connection operation tool kind reason status at by decided_at".split()


def _fields(value: object, names: list[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


# --- tools and connections ------------------------------------------------------------------------


def tool_row(tool: Tool, permissions: Permissions, form: Format = "full") -> dict[str, Any]:
    """One tool in a list, with its token cost in the form that the client is sent."""
    must_confirm = decide(tool, permissions).outcome == "confirm"
    details = {"tokens": listed_tokens(tool, form), "requires_confirmation": must_confirm}
    return _fields(tool, _TOOL) | details


def tool_detail(tool: Tool, permissions: Permissions) -> dict[str, Any]:
    """One tool with its schemas, whole."""
    output = tool.output_schema
    return tool_row(tool, permissions) | {
        "title": tool.title,
        "trust": tool.trust,
        "fingerprint": tool.fingerprint,
        "input_schema": orjson.loads(without_constants(whole_schema(tool))),
        "output_schema": orjson.loads(output) if output else None,
    }


def tool_summary(tool: Tool, form: Format = "full") -> dict[str, Any]:
    """One tool in the lists of the `mcp_*` tools, from which a model chooses."""
    return {
        "server_id": tool.connection,
        "tool_name": tool.local_name,
        "name": tool.name,
        "title": tool.title,
        "summary": cut(tool.description, SUMMARY_CHARS),
        "access": tool.access,
        "tokens": listed_tokens(tool, form),
    }


def server_summary(state: ConnectionState, purpose: str, tools: Sequence[Tool]) -> dict[str, Any]:
    """One server beside the tools a search found there, with its own words on its purpose; without
    these, or where it is not to be trusted, with its first tools."""
    trusted_words = purpose if state.settings.trust == "trusted" else ""
    words = " ".join(trusted_words.split()) or ", ".join(tool.title for tool in tools[:3])
    return {
        "server_id": state.name,
        "display_name": state.display_name,
        "purpose": cut(words, SUMMARY_CHARS),
        "tools": len(tools),
    }


def step_view(view: View) -> dict[str, Any]:
    """The tools and servers that the bundles of a workflow's step give."""
    tools = view.tools
    return {
        "tools": [
            {"name": tool.name, "connection": tool.connection, "direct": name in view.direct_tools}
            for name, tool in tools.items()
        ],
        "bundle_ids": list(view.bundle_ids),
        "servers": sorted({tool.connection for tool in tools.values()}),
    }


def access_row(snapshot: Snapshot, principal: Principal, state: ConnectionState) -> dict[str, Any]:
    """The access that the admin gives, the one that the principal chose, and the one in force."""
    return {
        "admin_access": admin_level(state),
        "user_access": user_level(snapshot, principal, state.name),
        "effective_access": level(snapshot, principal, state) or "disabled",
    }


def azure_resource(state: ConnectionState) -> str | None:
    """The id of the resource in Azure behind a connection."""
    if not isinstance(state.settings, ArmConnection):
        return None
    return state.settings.resource_id or (state.build.envelope if state.build else None)


def masked_settings(settings: Connection) -> dict[str, Any]:
    """The settings as they were put, with every secret masked."""
    values = settings.model_dump(mode="json", by_alias=True, exclude_unset=True)
    values["kind"] = settings.kind
    for table in ("inject", "env", "parameter_values"):
        if table in values:
            values[table] = dict.fromkeys(values[table], MASK)
    if "headers" in values:
        values["headers"] = {
            name: MASK if SECRET_NAME.search(name) else value
            for name, value in values["headers"].items()
        }
    for rule in values.get("wrap", ()):
        rule["inject"] = dict.fromkeys(rule.get("inject", ()), MASK)
    for key in ("spec", "url", "base_url"):
        if values.get(key) and not is_inline(values[key]):
            values[key] = masked_url(values[key])
    if "args" in values:
        secrets = secrets_of(settings)
        values["args"] = [_masked_option(arg, secrets) for arg in values["args"]]
    spec = values.get("spec", "")
    if len(spec) > SUMMARY_CHARS:
        values["spec"] = f"{spec[:SUMMARY_CHARS]}… ({len(spec)} characters)"
    return values


def base_url_for(principal: Principal, state: ConnectionState) -> str:
    """The address that calls go to; without its path, which may hold a key, for all but admins."""
    url = state.build.base_url if state.build else ""
    is_whole = principal.admin or not url
    return masked_url(url) if is_whole else f"{urlsplit(url).scheme}://{host_of(url)}"


def masked_url(url: str) -> str:
    """The address, with the values in its query masked: some services put their keys there."""
    place, _, query = url.partition("?")
    if not query:
        return url
    names = (pair.partition("=")[0] for pair in query.split("&"))
    return place + "?" + "&".join(f"{name}={MASK}" for name in names)


def host_of(address: str) -> str:
    """The host that an address names, with its port."""
    return urlsplit(address).netloc.rpartition("@")[2]


def _masked_option(arg: str, secrets: set[str]) -> str:
    """An argument of a command, without the value of an option such as `--api-key`."""
    name, equals, value = arg.partition("=")
    if equals and value in secrets:
        return f"{name}={MASK}"
    return MASK if arg in secrets else arg


# --- calls and decisions --------------------------------------------------------------------------


def execution_record(execution: Execution, approval: Approval | None) -> dict[str, Any]:
    """One execution, as every edge gives it, with its timeline."""
    return _fields(execution, _EXECUTION) | {
        "bundle_ids": list(execution.bundle_ids),
        "result": _result(execution),
        "timeline": timeline(execution, approval),
    }


def timeline(execution: Execution, approval: Approval | None) -> list[dict[str, Any]]:
    """The steps of a call and their times, read off its rows.

    A decision is followed by its effect: the call was sent, or refused. For a call that is being
    sent, or was when its process died, no time of sending is stored: the last known time is used.
    """
    result, standing_grant, steps = execution.result or {}, execution.granted, []

    def step(
        at: float | None, event: str, by: str | None, source: str | None = None, grant: str = ""
    ) -> None:
        entry = {"at": at, "event": event, "by": by, "from": source, "grant": grant or None}
        steps.append(entry)

    if approval is not None:
        step(approval.created_at, "asked", approval.principal, approval.client or None)
        if approval.decided_at is not None:
            decision = (approval.decided_by, approval.decided_from, approval.grant_id or "")
            step(approval.decided_at, "decided", *decision)
    elif standing_grant is not None:
        step(execution.created_at, "decided", standing_grant["by"], None, standing_grant["id"])
    sent_at, upstream = _sent_at(execution, steps), execution.connection
    if sent_at is not None:
        step(sent_at, "sent", execution.principal, execution.client or None)
        if "retried_at" in result:
            step(result["retried_at"], "retried", None)
        if execution.status == "completed" or execution.upstream_status is not None:
            duration_ms = result.get("upstream_ms", result.get("duration_ms", 0.0))
            step(sent_at + duration_ms / 1000, "answered", upstream)
    elif execution.status not in GOING_ON:
        denial = approval if approval and approval.status == "denied" else None
        step(execution.finished_at, "refused", denial.decided_by if denial else None)
    if execution.finished_at is not None:
        step(execution.finished_at, "recorded", None)
    return steps


def _sent_at(execution: Execution, steps: Sequence[Mapping[str, Any]]) -> float | None:
    """The time at which a call was sent; None if it was not."""
    at: float | None = (execution.result or {}).get("sent_at")
    if at is None and execution.status in ("executing", "unknown"):
        at = max([execution.created_at, *(step["at"] for step in steps)])
    return at


def outcome(result: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of a call from its result; its `status` where the call is still going on."""
    meta = result["_meta"]
    keys = {"idempotency_token": TOKEN_META, "warnings": WARNINGS_META, "headers": HEADERS_META}
    extras = {name: meta[key] for name, key in keys.items() if meta.get(key)}
    extras["execution_id"] = meta["gateway/execution_id"]
    if meta["gateway/status"] in GOING_ON:
        return {"status": meta["gateway/status"], **extras}
    error = failure_in(result) if result.get("isError") else None
    return {
        "success": error is None,
        "output": None if error else output_of(result),
        "error": error,
        "duration_ms": meta["gateway/duration_ms"],
        **extras,
    }


def execution_event(execution: Execution) -> dict[str, Any]:
    """A call that ended, as the feed tells it: without its arguments and result."""
    duration = (execution.result or {}).get("duration_ms")
    return _fields(execution, [*_CALL, *_OUTCOME]) | {"duration_ms": duration}


ENDINGS: Mapping[str, str] = {
    "approval_denied": "the call was not approved",
    "approval_expired": "nobody approved the call in time, or what was approved has changed",
    "outcome_unknown": "nobody knows whether the call was carried out: it was being sent when "
    "the gateway stopped or the connection broke",
    "store_unavailable": "the call was not sent, since it could not be recorded first",
}


def _result(execution: Execution) -> dict[str, Any] | None:
    result = execution.result
    if result is not None:
        values = {key: result.get(key) for key in ("success", "output", "error", "duration_ms")}
        return values | {"headers": result["headers"]} if "headers" in result else values
    if execution.status in GOING_ON:
        return None
    # Ended by a decision or a crash, where no process was left to write a result.
    code = execution.error_code or "internal"
    ended_at = execution.finished_at or execution.created_at
    return {
        "success": False,
        "output": None,
        "error": {"code": code, "message": ENDINGS.get(code, "the call ended"), "hint": ""},
        "duration_ms": round((ended_at - execution.created_at) * 1000, 2),
    }


def approval_row(snapshot: Snapshot, approval: Approval) -> dict[str, Any]:
    """One call that waits for a decision, and on whose behalf it would go out."""
    state = snapshot.connections.get(approval.connection)
    behalf = acts_as(state.settings.auth, approval.principal) if state else None
    caller = "gone" if approval.waits_at == "" else "waiting"
    details = {"caller": caller, "on_behalf_of": behalf, "warnings": list(approval.warnings)}
    return _fields(approval, _APPROVAL) | details


def decided_row(snapshot: Snapshot, approval: Approval) -> dict[str, Any]:
    """An approval with its decision."""
    return approval_row(snapshot, approval) | _fields(approval, _DECISION)


def client_grant_row(grant: ClientGrant) -> dict[str, Any]:
    """What a person gave a client, as lists show it."""
    return _fields(grant, _CLIENT_GRANT)


def grant_row(grant: StandingGrant) -> dict[str, Any]:
    """One standing grant of a tool, with its principal, client, end, and who granted it."""
    return _fields(grant, _GRANT) | {"session": grant.session or None}


def change_row(change: Change) -> dict[str, Any]:
    """One operation that a refresh found changed."""
    return _fields(change, _CHANGE) | {"class": change.change_class}


def matching_rows(rows: list[dict[str, Any]], search: str) -> list[dict[str, Any]]:
    """The rows that hold every word; those with the first word in their name come first."""
    words = search.lower().split()
    if not words:
        return rows
    texts = [" ".join(map(str, row.values())).lower() for row in rows]
    pairs = zip(rows, texts, strict=True)
    found = [row for row, text in pairs if all(word in text for word in words)]
    return sorted(found, key=lambda row: words[0] not in row["name"].lower())
