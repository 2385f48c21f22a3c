"""What a person is asked: the words, the form, and how the answer is read. Pure.

Everything the decision is about is in the message: the tool, where the request goes, each argument
with its value, and what should make one look twice. Values are somebody's text, so each stands on
one line, cut to a length, without characters that hide or reorder others. Only a clear answer is a
yes: what is missing, odd or declined denies.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import McpConnection
from gateway.invoke.attempt import Attempt
from gateway.invoke.prepared import Prepared
from gateway.invoke.request import build_request
from gateway.store.approvals import Approval
from gateway.store.columns import json_bytes

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
