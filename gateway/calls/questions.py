"""What people and clients are asked while a call waits or runs, and how their answers are read.

A person who approves is shown everything the decision is about: the tool, where the request goes,
each argument, and what should make one look twice. Values are somebody's text, so each stands on
one line, cut to a length, without characters that hide or reorder others. Only a clear answer is a
yes: what is missing, odd or declined denies.

An upstream asks for words of the client's user (elicitation), for what the client's model says
(sampling), or for the folders the client works in (roots). Questions come by key, and so do the
answers. A client is only asked what it said that it can answer. An elicitation that can't be put
is declined, and no answer in time is a `cancel`; the others have no such words, so there the
server's request fails. Nothing goes on but what the protocol says that questions and answers hold,
questions cleared of secrets.
"""

from __future__ import annotations

import asyncio
import secrets
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import orjson

from gateway.calls.answer import Result
from gateway.calls.record import Ask, AskClient, Attempt, Caller
from gateway.calls.redact import Redactor
from gateway.catalog.snapshot import Snapshot
from gateway.errors import UpstreamFailed
from gateway.limits import MAX_QUOTE_CHARS, MAX_TOLD_ITEMS, STEP_BYTES
from gateway.model import json_bytes
from gateway.policy.view import elicitation_modes
from gateway.store.approvals import Approval

Decision = Literal["approve", "deny", "always_allow"]
DECISIONS: tuple[Decision, ...] = get_args(Decision)
QUESTION = "approval"  # the key of our question in an InputRequiredResult
ByKey = Mapping[str, Any]


def message(approval: Approval, display_name: str) -> str:
    """The question, in words."""
    lines = [
        "Allow this call?",
        f"Tool: {_visible(approval.tool)}",
        f"Connection: {_visible(display_name)} ({approval.connection})",
        f"Request: {approval.method} {_visible(approval.url)}",
        f"Risk: {approval.risk}",
        *_argument_lines(approval.arguments),
    ]
    lines += [f"⚠ {warning}" for warning in approval.warnings]
    return "\n".join(lines)


def approval_question(attempt: Attempt, approval: Approval) -> dict[str, Any]:
    """What a person is shown: the words and the form."""
    return {
        "message": message(approval, attempt.state.display_name),
        "requestedSchema": form(always_words(attempt.snapshot, approval)),
    }


def form(always: str) -> dict[str, Any]:
    """The form that goes with it; without an answer it says no. `always`: what that would mean."""
    choices = ["deny", "approve", *(["always_allow"] if always else [])]
    about = "approve: this call, once. deny: the agent is told no."
    if always:
        about += f" always_allow: this tool, {_visible(always)}."
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


def input_required(attempt: Attempt, approval: Approval, state: str) -> Result:
    """The question as a result (2026-07-28): the client answers by calling again."""
    params = {"mode": "form", **approval_question(attempt, approval)}
    return {
        "resultType": "input_required",
        "inputRequests": {QUESTION: {"method": ELICIT, "params": params}},
        "requestState": state,
        "_meta": {
            "gateway/execution_id": approval.execution_id,
            "gateway/status": "pending_confirmation",
        },
    }


def may_always(snapshot: Snapshot, risk: str) -> bool:
    """Whether "always allow" is offered for tools of this risk."""
    return risk != "high" or snapshot.permissions.always_allow_high_risk


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


def warnings(attempt: Attempt, *, first_write: bool, changed: bool) -> Iterator[str]:
    """What should make a person look twice."""
    tool, name = attempt.tool, attempt.state.display_name
    if tool.access == "delete":
        yield "This deletes or destroys something; it can't be undone here."
    elif tool.risk == "high":
        yield "This is marked as high risk."
    if first_write and tool.access != "read":
        since = "in this session" if attempt.caller.session else "by this caller"
        yield f"The first write to {_visible(name)} {since}."
    where, count = largest_list(attempt.arguments)
    if count > MAX_TOLD_ITEMS:
        yield f"A large number of items: {count} in {_visible(where)}."
    if changed:
        yield "The tool has changed since it was last used."
    if tool.trust == "untrusted":
        yield f"{_visible(name)} is an untrusted source."


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
    return [
        "Arguments:",
        *(f"  {_visible(key)}: {_value(item)}" for key, item in arguments.items()),
    ]


def _value(value: Any) -> str:
    text = _visible(json_bytes(value).decode().strip())
    if len(text) <= MAX_QUOTE_CHARS:
        return text
    return f"{text[:MAX_QUOTE_CHARS]}… ({len(text)} characters)"


def _visible(text: str) -> str:
    return "".join(c if unicodedata.category(c)[0] != "C" else "\ufffd" for c in str(text))


# --- what an upstream asks ------------------------------------------------------------------------

ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
ASKED_BY: Mapping[str, str] = {ELICIT: "elicitation", SAMPLE: "sampling", ROOTS: "roots"}
# What a question of each kind holds. `includeContext` would show one server what others said.
PARAMS: Mapping[str, Sequence[str]] = {
    SAMPLE: """messages modelPreferences systemPrompt temperature maxTokens stopSequences metadata
    tools toolChoice""".split(),
    ROOTS: (),
}
ANSWERS: Mapping[str, tuple[str, ...]] = {  # and an answer, the first of which it must have
    SAMPLE: ("content", "role", "model", "stopReason"),
    ROOTS: ("roots",),
}
OF_TOOLS = ("tools", "toolChoice")
CANCELLED: dict[str, Any] = {"action": "cancel"}
DECLINE: Mapping[str, Any] = {"action": "decline"}


def asker(caller: Caller, redactor: Redactor, seconds: float, put: Ask | None = None) -> Ask | None:
    """How questions reach this caller within so many seconds; None: they don't.

    `put` is the way to a client that can't be asked on its request's own stream.
    """
    reach = put or (None if caller.ask is None else one_by_one(caller.ask))
    if reach is None or not caller.askable:
        return None

    async def ask(questions: ByKey) -> ByKey:
        cleared = {key: _plain(question) for key, question in redactor.json(questions).items()}
        check_offered(cleared, caller.askable)
        wanted = {k: q for k, q in cleared.items() if _can_be_put(q, caller.askable)}
        found = await _within(seconds, reach, wanted) if wanted else {}
        answers = {key: _answer(wanted[key]["method"], found.get(key)) for key in wanted}
        return {**dict.fromkeys(cleared.keys() - wanted.keys(), DECLINE), **answers}

    return ask


def one_by_one(ask_client: AskClient) -> Ask:
    """Asks each question on the stream of the client's own request."""

    async def ask(questions: ByKey) -> ByKey:
        return {
            key: await ask_client(each["method"], _of_2025(each["params"]))
            for key, each in questions.items()
        }

    return ask


def check_offered(questions: ByKey, askable: Mapping[str, Any]) -> None:
    """Raises where a server asks for what the client does not offer, and can't be declined."""
    for question in questions.values():
        method = str(question.get("method")) if isinstance(question, Mapping) else ""
        if method != ELICIT and not _is_offered(method, question, askable):
            raise UpstreamFailed(
                "upstream_error",
                "The server asks for something that this client does not offer",
                "Use a client that offers it (elicitation, sampling, roots).",
            )


def _is_offered(method: str, question: Mapping[str, Any], askable: Mapping[str, Any]) -> bool:
    offered, params = askable.get(ASKED_BY.get(method, "")), question.get("params")
    if method != SAMPLE or offered is None or "tools" in offered:
        return offered is not None
    return not isinstance(params, Mapping) or not any(name in params for name in OF_TOOLS)


def unanswered(method: str, error: Any = None) -> dict[str, Any]:
    """What counts as the answer of a client that gave none, or an error; raises if nothing does."""
    if method == ELICIT:
        return CANCELLED
    given = error if isinstance(error, Mapping) else {}
    code, said = given.get("code"), given.get("message")
    words = said[:MAX_QUOTE_CHARS] if isinstance(said, str) else "no answer came"
    raise UpstreamFailed(
        "upstream_error",
        f"The client did not give what the server asked it for ({ASKED_BY[method]}): {words}",
        "Allow it in the client, or use another tool.",
        rpc_code=code if isinstance(code, int) else -1,  # a user who said no
    )


async def _within(seconds: float, reach: Ask, wanted: ByKey) -> ByKey:
    try:
        async with asyncio.timeout(seconds):
            return await reach(wanted)
    except TimeoutError:
        return {}


def _can_be_put(question: Mapping[str, Any], askable: Mapping[str, Any]) -> bool:
    if question["method"] != ELICIT:
        return True
    params, modes = question["params"], elicitation_modes(askable)
    name, kind = ("url", str) if params["mode"] == "url" else ("requestedSchema", dict)
    is_whole = isinstance(params.get(name), kind)
    return is_whole and params["mode"] in modes and _is_small(params)


def _is_small(params: Mapping[str, Any]) -> bool:
    try:
        return len(orjson.dumps(params)) <= STEP_BYTES
    except TypeError:  # nested too deeply
        return False


def _plain(question: Any) -> dict[str, Any]:
    """A question without what belongs to its hop."""
    found = question if isinstance(question, Mapping) else {}
    params = found.get("params")
    params = params if isinstance(params, Mapping) else {}
    if (method := found.get("method")) != ELICIT:
        names = PARAMS.get(str(method), ())
        return {"method": method, "params": {k: v for k, v in params.items() if k in names}}
    mode = "url" if params.get("mode") == "url" else "form"
    fields = ("url", "elicitationId") if mode == "url" else ("requestedSchema",)
    kept = {name: params[name] for name in fields if name in params}
    message = str(params.get("message", ""))
    return {"method": ELICIT, "params": {"mode": mode, "message": message, **kept}}


def _of_2025(params: Mapping[str, Any]) -> dict[str, Any]:
    """A question in the words of 2025: a form is not named as one, a page has an id."""
    if params.get("mode") == "url":
        return {"elicitationId": secrets.token_hex(16), **params}
    return {key: value for key, value in params.items() if key != "mode"}


def _answer(method: str, answer: Any) -> Any:
    """An answer as it goes to the server; what is none is a cancel, where that exists."""
    given = answer if isinstance(answer, Mapping) else {}
    if method == ELICIT:
        return _elicited(given)
    names = ANSWERS[method]
    if names[0] not in given:
        return unanswered(method)
    return {name: given[name] for name in names if name in given}


def _elicited(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if answer.get("action") not in ("accept", "decline"):
        return CANCELLED
    content = answer.get("content")
    if answer["action"] == "decline" or not isinstance(content, Mapping):
        return {"action": answer["action"]}
    return {"action": "accept", "content": content}
