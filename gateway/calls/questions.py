"""The questions that people and clients get while a call waits, and the reading of their answers.

A person who approves is shown everything the decision is about. Values are somebody's text, so each
stands on one line, cut to a length, without characters that hide or reorder others. Only a clear
answer is a yes: what is missing, odd or declined denies.

An upstream asks for words of the client's user (elicitation), for what the client's model says
(sampling), or for the folders the client works in (roots); questions and answers come by key. A
client is only asked what it said that it can answer. An elicitation that can't be put is declined,
and no answer in time is a `cancel`; a sampling or roots request then fails. The fields of one hop
stay there, and questions are cleared of secrets.

A client of 2025 is asked on the stream of its request; one of 2026-07-28 gets the question as its
answer and replies by calling again. Meanwhile the call is held by the process where it runs, so
that its approval, token, row and request upstream stay the same:

    runs ──► asks ──► answered: runs on, and may ask again
      │        └────► nobody answers in time, or this process ends: the upstream is told `cancel`
      └────► ends: the outcome is kept a while, for a client that did not hear it

What the client hands back is sealed: it names the process, the call and the round of questions, and
is bound to caller, tool and arguments. Another process passes the answer on to the holder.
"""

from __future__ import annotations

import asyncio
import secrets
import unicodedata
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from gateway import limits
from gateway.calls.record import Ask, AskClient, Attempt, Caller, name_of_client
from gateway.calls.redact import Redactor
from gateway.catalog.snapshot import Snapshot
from gateway.config.connection import acts_as
from gateway.errors import Fixable, GatewayError, Overloaded, UpstreamFailed
from gateway.model import Result, elicitation_modes, json_bytes
from gateway.store.cluster import Letters, Signals, Start
from gateway.store.database import Database
from gateway.store.ledger import get_execution
from gateway.store.secrets import Seal
from gateway.store.tables import Approval
from gateway.upstream.protocol import ELICIT

ByKey = Mapping[str, Any]
MakeCall = Callable[[Attempt], Coroutine[Any, Any, Result]]
ApprovalChoice = Literal["approve", "deny", "always_allow"]
DECISIONS: tuple[ApprovalChoice, ...] = get_args(ApprovalChoice)


# --- what a person is shown -----------------------------------------------------------------------


def may_always(snapshot: Snapshot, risk: str) -> bool:
    """Whether "always allow" is offered for tools of this risk."""
    return risk != "high" or snapshot.permissions.always_allow_high_risk


def question_of(attempt: Attempt, approval: Approval) -> dict[str, Any]:
    """The question as words and a form."""
    return {
        "message": question_text(
            approval,
            attempt.state.display_name,
            acts_as(attempt.state.settings.auth, approval.principal),
        ),
        "requestedSchema": approval_form(always_words(attempt.snapshot, approval)),
    }


def question_text(approval: Approval, display_name: str, behalf: str | None = None) -> str:
    """The question, in words."""
    lines = [
        "Allow this call?",
        f"Tool: {_visible(approval.tool)}",
        f"Connection: {_visible(display_name)} ({approval.connection})",
        *([f"On behalf of: {_visible(behalf)}"] if behalf else []),
        f"Request: {approval.method} {_visible(approval.url)}",
        f"Risk: {approval.risk}",
        "Arguments:" if approval.arguments else "Arguments: none",
    ]
    lines += [f"  {_visible(name)}: {_quote(item)}" for name, item in approval.arguments.items()]
    lines += [f"⚠ {warning}" for warning in approval.warnings]
    return "\n".join(lines)


def approval_form(always: str) -> dict[str, Any]:
    """The form that a person fills in, `deny` by default; `always` words a third choice."""
    about = "approve: this call, once. deny: the agent is told no."
    if always:
        about += f" always_allow: this tool, {_visible(always)}."
    decision = {
        "type": "string",
        "title": "Decision",
        "description": about,
        "enum": ["deny", "approve", *(["always_allow"] if always else [])],
        "default": "deny",
    }
    return {"type": "object", "properties": {"decision": decision}, "required": ["decision"]}


def decision_of(answer: object, always: bool) -> ApprovalChoice:
    """The decision in a person's answer; anything but a clear yes is a no."""
    if not isinstance(answer, Mapping) or answer.get("action") != "accept":
        return "deny"
    content = answer.get("content")
    decision = content.get("decision") if isinstance(content, Mapping) else None
    if decision == "approve":
        return "approve"
    return "always_allow" if decision == "always_allow" and always else "deny"


def always_words(snapshot: Snapshot, approval: Approval) -> str:
    """The words for "always allow" in the form of this call; "" where it is not offered."""
    if not may_always(snapshot, approval.risk):
        return ""
    if approval.session:
        return "for the rest of this session"
    client = name_of_client(approval.client) or "this client"
    return f"for {snapshot.permissions.always_allow_minutes:g} minutes, for {client} alone"


def approval_warnings(attempt: Attempt, *, first_write: bool, changed: bool) -> Iterator[str]:
    """The reasons why a person should look twice before they approve."""
    tool, name = attempt.tool, attempt.state.display_name
    if tool.access == "delete":
        yield "This deletes or destroys something; it can't be undone here."
    elif tool.risk == "high":
        yield "This is marked as high risk."
    if first_write and tool.access != "read":
        since = "in this session" if attempt.caller.session else "by this caller"
        yield f"The first write to {_visible(name)} {since}."
    where, count = largest_list(attempt.arguments)
    if count > limits.MAX_TOLD_ITEMS:
        yield f"A large number of items: {count} in {_visible(where)}."
    if changed:
        yield "The tool has changed since it was last used."
    if tool.trust == "untrusted":
        yield f"{_visible(name)} is an untrusted source."


def largest_list(value: Any, at: str = "the arguments") -> tuple[str, int]:
    """The place of the longest list in the arguments, and its length."""
    own, inner = (at, 0), list[tuple[str, Any]]()
    if isinstance(value, Mapping):
        inner = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        own, inner = (at, len(value)), [(at, item) for item in value[:1000]]
    return max([own, *(largest_list(item, name) for name, item in inner)], key=lambda pair: pair[1])


def _quote(value: Any) -> str:
    text = _visible(json_bytes(value).decode().strip())
    if len(text) <= limits.MAX_QUOTE_CHARS:
        return text
    return f"{text[: limits.MAX_QUOTE_CHARS]}… ({len(text)} characters)"


def _visible(text: str) -> str:
    return "".join(c if unicodedata.category(c)[0] != "C" else "\ufffd" for c in str(text))


# --- what an upstream asks ------------------------------------------------------------------------

SAMPLE, ROOTS = "sampling/createMessage", "roots/list"
CAPABILITY_OF: Mapping[str, str] = {ELICIT: "elicitation", SAMPLE: "sampling", ROOTS: "roots"}
ANSWER_FIELD: Mapping[str, str] = {SAMPLE: "content", ROOTS: "roots"}  # that an answer must have
# Fields of a hop, not of the question. `includeContext` would tell a server what others said.
HOP_FIELDS = {"_meta", "task", "includeContext", "resultType"}
CANCELLED: dict[str, Any] = {"action": "cancel"}
DECLINED: dict[str, Any] = {"action": "decline"}


def make_asker(
    caller: Caller, redactor: Redactor, seconds: float, put: Ask | None = None
) -> Ask | None:
    """A function that asks this caller, for at most `seconds`; None: the caller can't be asked.

    `put` is the way to a client that can't be asked on its request's own stream.
    """
    reach = put or (None if caller.ask is None else partial(_ask_one_by_one, caller.ask))
    if (reach is None or not caller.usable_capabilities) and not caller.refused_capabilities:
        return None

    async def ask(questions: ByKey) -> ByKey:
        clean = {key: _plain(question) for key, question in redactor.clear_json(questions).items()}
        check_questions(clean, caller)
        answerable = {k: q for k, q in clean.items() if reach and _can_be_put(q, caller)}
        replies: ByKey = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                replies = await reach(answerable) if reach and answerable else {}
        answers = {key: _answer(answerable[key]["method"], replies.get(key)) for key in answerable}
        return {**dict.fromkeys(clean.keys() - answerable.keys(), DECLINED), **answers}

    return ask


async def _ask_one_by_one(ask_client: AskClient, questions: ByKey) -> ByKey:
    """Asks each question on the stream of the client's own request."""
    return {
        key: await ask_client(question["method"], _of_2025(question["params"]))
        for key, question in questions.items()
    }


def check_questions(questions: ByKey, caller: Caller) -> None:
    """Raises where a server asks what it may not, or what a client can't answer or decline."""
    for question in questions.values():
        plain = _plain(question)
        method, params = plain["method"], plain["params"]
        capability = CAPABILITY_OF.get(str(method), "")
        offered = caller.usable_capabilities.get(capability)
        wants_tools = method == SAMPLE and {"tools", "toolChoice"} & params.keys()
        is_missing = offered is None or wants_tools and "tools" not in offered
        if capability in caller.refused_capabilities:
            raise UpstreamFailed(
                "upstream_error",
                f'The server may not ask for {capability}: its connection has trust = "untrusted"',
                'The client offers it; trust = "trusted" on the connection would allow it.',
            )
        if method != ELICIT and is_missing:
            raise UpstreamFailed(
                "upstream_error",
                "The server asks for something that this client does not offer",
                "Use a client that offers it (elicitation, sampling, roots).",
            )


def fallback_answer(method: str, error: Any = None) -> dict[str, Any]:
    """The answer that stands for a client's silence or error; raises where none can."""
    if method == ELICIT:
        return CANCELLED
    details = error if isinstance(error, Mapping) else {}
    code, text = details.get("code"), details.get("message")
    reason = text[: limits.MAX_QUOTE_CHARS] if isinstance(text, str) else "no answer came"
    raise UpstreamFailed(
        "upstream_error",
        f"The client did not give what the server asked it for ({CAPABILITY_OF[method]}): {reason}",
        "Allow it in the client, or use another tool.",
        rpc_code=code if isinstance(code, int) else -1,  # as where a user said no
    )


def _can_be_put(question: Mapping[str, Any], caller: Caller) -> bool:
    if question["method"] != ELICIT:
        return True
    params = question["params"]
    name, kind = ("url", str) if params["mode"] == "url" else ("requestedSchema", dict)
    is_whole = isinstance(params.get(name), kind) and len(json_bytes(params)) <= limits.STEP_BYTES
    return is_whole and params["mode"] in elicitation_modes(caller.usable_capabilities)


def _plain(question: Any) -> dict[str, Any]:
    """A question without the fields of its hop."""
    fields = question if isinstance(question, Mapping) else {}
    method, params = fields.get("method"), _without_hop(fields.get("params"))
    if method == ELICIT:
        params["mode"] = "url" if params.get("mode") == "url" else "form"
        params["message"] = str(params.get("message", ""))
    return {"method": method, "params": params}


def _without_hop(value: Any) -> dict[str, Any]:
    fields = value if isinstance(value, Mapping) else {}
    return {name: item for name, item in fields.items() if name not in HOP_FIELDS}


def _of_2025(params: Mapping[str, Any]) -> dict[str, Any]:
    """A question in the words of 2025: a form has no `mode`, a page has an id."""
    if params.get("mode") == "url":
        return {"elicitationId": secrets.token_hex(16), **params}
    return {key: value for key, value in params.items() if key != "mode"}


def _answer(method: str, answer: Any) -> dict[str, Any]:
    """An answer as it goes to the server; for no proper answer, a cancel where that exists."""
    fields = _without_hop(answer)
    if method == ELICIT:
        action, content = fields.get("action"), fields.get("content")
        if action == "accept" and isinstance(content, Mapping):
            return {"action": action, "content": content}
        return {"action": action} if action in ("accept", "decline") else CANCELLED
    return fields if ANSWER_FIELD[method] in fields else fallback_answer(method)


# --- calls that are held while their client answers -----------------------------------------------

PURPOSE = "held-call/1"


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class _HeldCall:
    attempt: Attempt
    bound_to: list[str]  # of the client's own arguments: more may be filled in later
    task: asyncio.Task[Result]
    listeners: int = 0  # requests that wait for its next question or its outcome
    round: int = 0
    questions: ByKey = field(default_factory=dict)
    question: asyncio.Future[Result] = field(default_factory=_future)
    answers: asyncio.Future[ByKey] = field(default_factory=_future)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one round at a time

    def take(self, round: int, answers: ByKey | None) -> None:
        """Takes answers to the current questions; answers to other ones change nothing."""
        is_asking = self.question.done() and not self.answers.done() and round == self.round
        if is_asking and answers is not None and self.questions.keys() <= answers.keys():
            self.question = _future()
            self.answers.set_result(answers)


@dataclass
class HeldCalls:
    """The calls of this process whose questions go to the client as the answer to its call."""

    db: Database
    seal: Seal
    signals: Signals
    start: Start
    replica: str
    calls: dict[str, _HeldCall] = field(default_factory=dict)  # by execution
    draining: bool = False

    def __post_init__(self) -> None:
        self._letters = Letters(self.db, self.signals, self.replica, self._answer, self.start)

    async def next_result(self, attempt: Attempt, make: MakeCall) -> Result:
        """The next result of a call, a new or a held one: its outcome, or a question."""
        caller = attempt.caller
        state = self.seal.open_values(PURPOSE, caller.request_state)
        if state is None and not attempt.may_be_held:
            return await make(attempt)
        if state is None:
            call = _HeldCall(attempt, attempt.bound_to, self.start(make(attempt)))
            attempt.put_questions = partial(self._put, call)
            return await self._listen(call)
        replica, id, round, *bound_to = state
        try:
            if bound_to != attempt.bound_to:
                raise Fixable(
                    "invalid_arguments",
                    "The answer belongs to another call.",
                    "Call again without it to be asked anew.",
                )
            attempt.id = id
            if replica == self.replica:
                result = await self._answer(id, round, caller.input_responses, caller)
            else:
                result = await self._letters.ask(replica, id, round, caller.input_responses)
            return result or attempt.failure_result(await self._lost_call_error(attempt))
        except GatewayError as error:  # refuses this answer; the call goes on
            return attempt.failure_result(error)

    def drain(self) -> None:
        """Asks no client any more and ends the calls that are held: this process ends."""
        self.draining = True
        for call in self.calls.values():
            call.take(call.round, dict.fromkeys(call.questions))

    async def _answer(
        self, id: str, round: int, answers: ByKey | None, caller: Caller | None = None
    ) -> Result | None:
        """The next result of a call after these answers; None: it is not held by this process."""
        call = self.calls.get(id)
        if call is None:
            return None
        if caller is not None:  # progress, logs and refusals go to this request now
            call.attempt.caller = caller
        call.take(round, answers)
        return await self._listen(call)

    async def _listen(self, call: _HeldCall) -> Result:
        call.listeners += 1
        question = call.question
        try:
            await asyncio.wait({call.task, question}, return_when=asyncio.FIRST_COMPLETED)
            return call.task.result() if call.task.done() else question.result()
        except asyncio.CancelledError:
            if call.listeners == 1:
                call.task.cancel()  # hanging up is how a client of 2026 cancels
            raise
        finally:
            call.listeners -= 1

    async def _put(self, call: _HeldCall, questions: ByKey) -> ByKey:
        """Has the client asked and returns its answers: none, where no request listens any more."""
        async with call.turn:
            nobody_listens = call.task.done() or not call.listeners or self.draining
            if nobody_listens or not self._hold(call):
                return {}
            call.round += 1
            call.questions, call.answers = questions, _future()
            values = [self.replica, call.attempt.id, call.round, *call.bound_to]
            state = self.seal.seal_values(PURPOSE, *values)
            result = call.attempt.question_result("executing", questions, state)
            call.question.set_result(result)
            try:
                return await call.answers
            finally:
                if call.question.done():  # nobody answered in time
                    call.question = _future()

    def _hold(self, call: _HeldCall) -> bool:
        id, principal = call.attempt.id, call.attempt.principal
        if id in self.calls:
            return True
        principals = [c.attempt.principal for c in self.calls.values() if not c.task.done()]
        if (
            principals.count(principal) >= limits.CALLS_PER_PRINCIPAL
            or len(self.calls) >= limits.MAX_WAITING_CALLS
        ):
            return False
        self.calls[id] = call
        delay, loop = call.attempt.snapshot.permissions.timeout_seconds, asyncio.get_running_loop()
        call.task.add_done_callback(lambda _: loop.call_later(delay, self.calls.pop, id, None))
        return True

    async def _lost_call_error(self, attempt: Attempt) -> GatewayError:
        """The error for an answer to a call that is held no more; its row stays as it is."""
        row = await get_execution(self.db, attempt.id)
        if row is not None and row.status not in ("executing", "unknown"):
            return Fixable(
                "invalid_arguments",
                f"The answer came too late: the call has ended as {row.status}.",
                f"get_execution {attempt.id} tells how.",
            )
        if attempt.tool.access != "read":
            return attempt.unknown_error()
        return Overloaded(
            "busy", "The gateway was restarted before the answer came.", "Call again."
        )
