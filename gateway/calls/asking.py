"""What a person is asked: the words, the form, and how the answer is read. Pure.

Everything the decision is about is in the message: the tool, where the request goes, each argument
with its value, and what should make one look twice. Values are somebody's text, so each stands on
one line, cut to a length, without characters that hide or reorder others. Only a clear answer is a
yes: what is missing, odd or declined denies.

A question as it is kept and as it leaves this process.

What outlives the request is sealed: the exact arguments, for whoever carries the call out later,
and the state a client hands back with its answer, so that nobody else can make or change it.

Whether what a person approved still holds, and what a decision gives. Pure.

An approval is for one tool as it was, asked for by someone with the right to it. Before it is used
all of that is looked at again, on the newest snapshot.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from cryptography.fernet import InvalidToken

from gateway.calls.credentials import Prepared
from gateway.calls.record import Attempt, NotApproved, arguments_digest, shown_arguments
from gateway.calls.request import build_request
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import McpConnection
from gateway.config.settings import Permissions
from gateway.errors import GatewayError, Refused, UnknownTool
from gateway.model import Principal, Tool
from gateway.policy.access import decide, level, principal_now, shows
from gateway.store.approvals import Approval, StandingGrant
from gateway.store.secrets import Seal, new_id
from gateway.store.statements import json_bytes

Decision = Literal["approve", "deny", "always_allow"]
DECISIONS: tuple[Decision, ...] = get_args(Decision)

MAX_VALUE_CHARS = 500
MAX_MESSAGE_CHARS = 8000
MANY_ITEMS = 20
QUESTION = "approval"  # the key of our question in an InputRequiredResult


def message(approval: Approval, display_name: str) -> str:
    """The question, in words."""
    lines = [
        "Allow this call?",
        f"Tool: {_plain(approval.tool)}",
        f"Connection: {_plain(display_name)} ({approval.connection})",
        f"Request: {approval.method} {_plain(approval.url)}",
        f"Risk: {approval.risk}",
        *_argument_lines(approval.arguments),
    ]
    lines += [f"⚠ {warning}" for warning in approval.warnings]
    text = "\n".join(lines)
    if len(text) > MAX_MESSAGE_CHARS:
        # The warnings and what was cut must still be seen.
        cut = len(text) - MAX_MESSAGE_CHARS
        text = f"{text[:MAX_MESSAGE_CHARS]}\n⚠ {cut} more characters are not shown here."
    return text


def question(approval: Approval, display_name: str, always: str) -> dict[str, Any]:
    """What a person is shown: the words and the form; `always`, what "always allow" would mean."""
    return {"message": message(approval, display_name), "requestedSchema": form(always)}


def form(always: str) -> dict[str, Any]:
    """The form that goes with it; without an answer it says no."""
    choices = ["deny", "approve", *(["always_allow"] if always else [])]
    about = "approve: this call, once. deny: the agent is told no."
    if always:
        about += f" always_allow: this tool, {_plain(always)}."
    return {
        "type": "object",
        "properties": {
            "decision": {
                "type": "string",
                "title": "Decision",
                "description": about,
                "enum": choices,
                "default": "deny",
            }
        },
        "required": ["decision"],
    }


def decision_of(answer: object, always: bool) -> Decision:
    """What was decided; anything but a clear yes is a no."""
    if not isinstance(answer, Mapping) or answer.get("action") != "accept":
        return "deny"
    content = answer.get("content")
    decision = content.get("decision") if isinstance(content, Mapping) else None
    if decision == "approve":
        return "approve"
    return "always_allow" if decision == "always_allow" and always else "deny"


def input_required(approval: Approval, display_name: str, always: str, state: str) -> Any:
    """The question as a result (2026-07-28): the client answers by calling again."""
    params = {"mode": "form", **question(approval, display_name, always)}
    return {
        "resultType": "input_required",
        "inputRequests": {QUESTION: {"method": "elicitation/create", "params": params}},
        "requestState": state,
        "_meta": {
            "gateway/execution_id": approval.execution_id,
            "gateway/status": "pending_confirmation",
        },
    }


def target(attempt: Attempt, prepared: Prepared) -> tuple[str, str]:
    """Method and full URL of the request that would be made; raises where none could be."""
    operation = attempt.tool.http
    if operation is None:
        return "tools/call", _place(attempt.state, attempt.tool.operation or attempt.tool.name)
    arguments = {**attempt.arguments, **prepared.inject}
    request = build_request(operation, arguments, prepared.blocklist)
    return request.method, attempt.redactor.text(request.url)


def warnings(attempt: Attempt, *, first_write: bool, changed: bool) -> tuple[str, ...]:
    """What should make a person look twice."""
    return tuple(_warnings(attempt, first_write, changed))


def _warnings(attempt: Attempt, first_write: bool, changed: bool) -> Iterator[str]:
    tool, name = attempt.tool, attempt.state.display_name
    if tool.access == "delete":
        yield "This deletes or destroys something; it can't be undone here."
    elif tool.risk == "high":
        yield "This is marked as high risk."
    if first_write and tool.access != "read":
        since = "in this session" if attempt.caller.session else "by this caller"
        yield f"The first write to {_plain(name)} {since}."
    where, count = largest_list(attempt.arguments)
    if count > MANY_ITEMS:
        yield f"A large number of items: {count} in {_plain(where)}."
    if changed:
        yield "The tool has changed since it was last used."
    if tool.trust == "untrusted":
        yield f"{_plain(name)} is an untrusted source."


def largest_list(value: Any, at: str = "the arguments") -> tuple[str, int]:
    """Where the longest list is, and how long it is."""
    best = (at, len(value) if isinstance(value, list) else 0)
    inner: Sequence[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        inner = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        inner = [(at, item) for item in value[:1000]]
    for name, item in inner:
        if isinstance(item, (Mapping, list)):
            best = max(best, largest_list(item, name), key=lambda found: found[1])
    return best


def _argument_lines(arguments: Mapping[str, Any]) -> list[str]:
    if not arguments:
        return ["Arguments: none"]
    return ["Arguments:", *(f"  {_plain(key)}: {_value(item)}" for key, item in arguments.items())]


def _value(value: Any) -> str:
    text = _plain(json_bytes(value).decode().strip())
    if len(text) <= MAX_VALUE_CHARS:
        return text
    return f"{text[:MAX_VALUE_CHARS]}… ({len(text)} characters)"


def _plain(text: str) -> str:
    return "".join(c if unicodedata.category(c)[0] != "C" else "\ufffd" for c in str(text))


def _place(state: ConnectionState, tool: str) -> str:
    settings = state.settings
    if isinstance(settings, McpConnection) and settings.url:
        return f"{settings.url.partition('?')[0]} {tool}"
    return f"{state.name} {tool}"


PURPOSE = "approval-state/1"  # one key seals other things too: none of them opens as this
MAX_STATE_CHARS = 8192


def new_approval(
    seal: Seal, attempt: Attempt, method: str, url: str, warnings: tuple[str, ...], now: float
) -> Approval:
    """The question about this call, bound to who asks, the tool as it is and these arguments."""
    caller, tool = attempt.caller, attempt.tool
    return Approval(
        id=new_id(now),
        execution_id=attempt.id,
        principal=caller.principal.name,
        tool=tool.name,
        connection=tool.connection,
        fingerprint=tool.fingerprint,
        args_digest=arguments_digest(attempt.arguments),
        arguments=shown_arguments(attempt),
        sealed_arguments=sealed_ticket(seal, attempt),
        risk=tool.risk,
        created_at=now,
        expires_at=now + attempt.snapshot.permissions.timeout_seconds,
        session=caller.session,
        client=caller.client,
        method=method,
        url=url,
        warnings=warnings,
    )


def sealed_state(seal: Seal, approval: Approval) -> str:
    """What a client of 2026 hands back with its answer."""
    return seal.encrypt_json([PURPOSE, *_binding(approval)]).decode("ascii")


def opened_state(seal: Seal, state: str | None) -> list[Any] | None:
    """The binding in a state of ours; None: it is none of ours."""
    if state is None or len(state) > MAX_STATE_CHARS:
        return None
    try:
        value = seal.decrypt_json(state.encode("utf-8", "replace"))
    except (InvalidToken, ValueError):
        return None
    if not isinstance(value, list) or value[:1] != [PURPOSE]:
        return None
    return value[1:]


def binds(state: list[Any], attempt: Attempt, now: float) -> str | None:
    """The approval's id, if the state was made for exactly this call and is still good."""
    id, expires, *binding = state
    digest = arguments_digest(attempt.arguments)
    wanted = [attempt.caller.principal.name, attempt.tool.name, attempt.tool.fingerprint, digest]
    return id if binding == wanted and now < expires else None


def _binding(approval: Approval) -> list[Any]:
    return [
        approval.id,
        approval.expires_at,
        approval.principal,
        approval.tool,
        approval.fingerprint,
        approval.args_digest,
    ]


@dataclass(frozen=True, slots=True)
class Ticket:
    """All that is needed to carry a call out when its caller is no longer there."""

    principal: Principal
    arguments: Mapping[str, Any]
    door: Mapping[str, Any] = field(default_factory=dict)
    bundle_ids: tuple[str, ...] = ()
    token: str | None = None
    token_given: bool = False
    client: str = ""


def sealed_ticket(seal: Seal, attempt: Attempt) -> bytes:
    """The ticket of a call that waits for a decision."""
    ticket = Ticket(
        attempt.caller.principal,
        attempt.arguments,
        attempt.door.ticket if attempt.door else {},
        attempt.bundle_ids,
        attempt.token,
        attempt.token_given,
        attempt.caller.client,
    )
    return seal.encrypt_json(asdict(ticket))


def opened_ticket(seal: Seal, approval: Approval) -> Ticket | None:
    """The ticket of an approved call; None where the key no longer opens it."""
    try:
        values: Any = seal.decrypt_json(approval.sealed_arguments)
        principal = Principal(**values.pop("principal"))
        bundle_ids = tuple(values.pop("bundle_ids"))
        return Ticket(principal=principal, bundle_ids=bundle_ids, **values)
    except (InvalidToken, ValueError, TypeError, KeyError):
        return None


MAX_REQUEST_CHARS = 500
SESSION_GRANT_SECONDS = 7 * 24 * 3600.0  # a session's longest life


def judged_again(snapshot: Snapshot, attempt: Attempt, approval: Approval) -> tuple[Snapshot, Tool]:
    """The snapshot and the tool the call may be made on now; raises Refused."""
    principal = principal_now(snapshot.settings, attempt.caller.principal)
    if principal is None:
        raise Refused("access_denied", "the caller has no access any more")
    try:
        tool = _found(snapshot, attempt, principal)
    except (UnknownTool, GatewayError):
        raise Refused("access_denied", "the tool is no longer there for the caller") from None
    state = snapshot.connections[tool.connection]
    if not shows(level(snapshot, principal, state), tool):
        raise Refused("access_denied", "the caller has no access to the tool any more")
    if tool.fingerprint != approval.fingerprint:
        raise Refused("access_denied", "the tool has changed since")
    judged = attempt.door.judged if attempt.door else None
    decision = decide(judged or tool, snapshot.permissions)
    if decision.outcome == "block":
        raise Refused(decision.code, decision.reason)
    return snapshot, tool


def may_always(snapshot: Snapshot, risk: str) -> bool:
    """Whether "always allow" is offered for tools of this risk."""
    return risk != "high" or snapshot.permissions.always_allow_high_risk


def too_late(approval: Approval | None) -> NotApproved:
    """Why an approval can't be decided or used any more."""
    words = {
        "approved": "it has been approved already",
        "denied": "it has been denied already",
        "used": "it has been used already",
        "void": "the tool or the caller's rights have changed since",
    }
    status = approval.status if approval else ""
    why = words.get(status, "nobody decided in time")
    error = NotApproved(
        "approval_expired", f"The approval can't be used: {why}.", "Call again to ask anew."
    )
    error.void = status == "void"
    return error


def _found(snapshot: Snapshot, attempt: Attempt, principal: Principal) -> Tool:
    if attempt.door is not None:
        return attempt.door.find(snapshot, principal)
    tool = snapshot.tools.get(attempt.tool.name)
    if tool is None:
        raise UnknownTool(attempt.tool.name)
    return tool


def grant_of(approval: Approval, by: str, now: float, permissions: Permissions) -> StandingGrant:
    """ "Always allow": for the rest of the session, or for a while where there is none."""
    lasts = SESSION_GRANT_SECONDS if approval.session else permissions.always_allow_minutes * 60
    return StandingGrant(
        id=new_id(now),
        principal=approval.principal,
        tool=approval.tool,
        connection=approval.connection,
        fingerprint=approval.fingerprint,
        session=approval.session or "",
        client=name_of_client(approval.client),
        request=f"{approval.method} {approval.url.partition('?')[0]}"[:MAX_REQUEST_CHARS],
        granted_by=by,
        created_at=now,
        expires_at=now + lasts,
    )


def always_words(snapshot: Snapshot, approval: Approval) -> str:
    """What "always allow" means for this call; "" where it is not offered."""
    if not may_always(snapshot, approval.risk):
        return ""
    if approval.session:
        return "for the rest of this session"
    client = name_of_client(approval.client) or "this client"
    return f"for {snapshot.permissions.always_allow_minutes:g} minutes, for {client} alone"


def name_of_client(client: str) -> str:
    """The name of `name/version`: a client that was updated is the same one."""
    return client.rpartition("/")[0] or client.strip("/")
