"""Calls that are held while their client is asked (2026-07-28): there a question ends the request.

The client gets the question as its answer and replies by calling again. Meanwhile the call goes on
here, in a task of its own, so that its approval, its token, its row and its request upstream are
the same before and after. What the client hands back is sealed: it names the process, the call and
the question, and is bound to who calls what. A question is answered once; whoever repeats an answer
hears what came of it. Another process passes an answer on to the one that holds the call.

Passes a client's answer on to the process that holds its call, and brings back what it says.

Both are letters: signals of the store. The process that holds the call may end meanwhile; then
nothing comes back.

What an upstream asks while a call runs, put to the client that made the call.

It asks for words of the client's user (elicitation), for what the client's model says (sampling),
or for the folders the client works in (roots). Questions come by key, one from a server of the 2025
era, any number at once from later ones, and so do the answers. A client is only asked what it said
that it can answer. An elicitation that can't be put is declined, and no answer in time is a
`cancel`; the others have no such words, so there the server's request fails. Of a question and of
an answer nothing goes on but what the protocol says they hold, questions cleared of secrets.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
import structlog
from cryptography.fernet import InvalidToken

from gateway.calls.asking import MAX_STATE_CHARS
from gateway.calls.record import (
    Ask,
    AskClient,
    Attempt,
    Caller,
    Signals,
    arguments_digest,
    failed_result,
    meta_of,
    outcome_unknown,
)
from gateway.calls.redact import Redactor
from gateway.calls.running import Running
from gateway.calls.tokens import longest
from gateway.errors import Fixable, GatewayError, Overloaded, UpstreamFailed
from gateway.policy.view import elicitation_modes
from gateway.store.cluster import living, signal
from gateway.store.database import Database
from gateway.store.ledger import get_execution
from gateway.store.secrets import Seal, new_id

log = structlog.get_logger("gateway.call")

LETTER = "held_letter"  # the signal: to which process, which letter, what it says
LOOK_SECONDS = 2.0  # between two looks at whether the other process lives
MAX_LETTERS = 256  # being answered at a time

Hear = Callable[[str, int, Any], Awaitable[dict[str, Any] | None]]


class HeldRelay:
    """One process's letters about held calls."""

    def __init__(self, db: Database, signals: Signals, replica: str, hear: Hear) -> None:
        self._db = db
        self._replica = replica
        self._hear = hear
        self._awaited: dict[str, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        signals.on(LETTER, self._take)

    async def passed_on(
        self, attempt: Attempt, replica: str, told: tuple[str, int, Any]
    ) -> dict[str, Any] | None:
        """What the call says to the answer; None: it is held no longer."""
        letter, deadline = new_id(time.time()), time.monotonic() + longest(attempt)
        said = self._awaited[letter] = asyncio.get_running_loop().create_future()
        try:
            await self._send(replica, letter, [self._replica, *told])
            while time.monotonic() < deadline:
                alive = replica in await living(self._db)
                await asyncio.wait([said], timeout=LOOK_SECONDS)
                if said.done() or not alive:
                    found: dict[str, Any] | None = said.result() if said.done() else None
                    return found
        finally:
            del self._awaited[letter]
        hint = f"get_execution {attempt.id} tells what became of it."
        raise Overloaded("busy", "The call is still on its way.", hint)

    def _take(self, payload: str) -> None:
        to, _, rest = payload.partition(" ")
        if to != self._replica:
            return
        letter, _, text = rest.partition(" ")
        value, said = json.loads(text), self._awaited.get(letter)
        if said is not None:
            if not said.done():
                said.set_result(value)
        elif isinstance(value, list) and len(self._answering) < MAX_LETTERS:
            task = asyncio.create_task(self._answer(letter, *value), name=f"letter {letter}")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, letter: str, sender: str, id: str, round: int, answers: Any) -> None:
        try:
            await self._send(sender, letter, await self._hear(id, round, answers))
        except GatewayError as error:
            log.warning("letter not answered", code=error.code)

    async def _send(self, to: str, letter: str, value: Any) -> None:
        payload = f"{to} {letter} {json.dumps(value)}"
        await self._db.write(lambda tx: signal(tx, LETTER, payload))


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
MAX_QUESTION_BYTES = 65_536
MAX_MESSAGE_CHARS = 500
REFUSED = -1  # the protocol's code for a user who said no
CANCEL: dict[str, Any] = {"action": "cancel"}
DECLINE: Mapping[str, Any] = {"action": "decline"}

ByKey = Mapping[str, Any]


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
        return CANCEL
    given = error if isinstance(error, Mapping) else {}
    code, said = given.get("code"), given.get("message")
    words = said[:MAX_MESSAGE_CHARS] if isinstance(said, str) else "no answer came"
    raise UpstreamFailed(
        "upstream_error",
        f"The client did not give what the server asked it for ({ASKED_BY[method]}): {words}",
        "Allow it in the client, or use another tool.",
        rpc_code=code if isinstance(code, int) else REFUSED,
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
        return len(orjson.dumps(params)) <= MAX_QUESTION_BYTES
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
        return CANCEL
    content = answer.get("content")
    if answer["action"] == "decline" or not isinstance(content, Mapping):
        return {"action": answer["action"]}
    return {"action": "accept", "content": content}


PURPOSE = "held-call/1"  # one key seals other things too: none of them opens as this
MAX_HELD = 256  # calls of this process that wait for an answer, or did so a moment ago
MAX_HELD_OF_ONE = 16  # of one principal
KEEP_SECONDS = 60.0  # for a client that did not hear the end

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Named:
    """What the client's state names: a question of a call in a process."""

    replica: str
    execution: str
    round: int


@dataclass(slots=True, eq=False)
class _Held:
    attempt: Attempt
    bound_to: list[str]  # as the client gave it: more may be filled in meanwhile
    task: asyncio.Task[Result] | None = None
    round: int = 0
    listeners: int = 0  # requests that wait for what it says next
    said: asyncio.Future[Result] = field(default_factory=lambda: _future())
    asked: ByKey = field(default_factory=dict)
    answer: asyncio.Future[ByKey] | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one question at a time

    @property
    def over(self) -> bool:
        return self.task is None or self.task.done()

    def take(self, round: int, answers: ByKey | None) -> None:
        """An answer to what is asked now; any other leaves things as they are."""
        if answers is None or round != self.round or not self.asked.keys() <= answers.keys():
            return
        if self.answer is not None and not self.answer.done():
            self.said = _future()
            self.answer.set_result(answers)

    def end(self, task: asyncio.Task[Result]) -> None:
        if self.said.done():  # a question nobody answers any more
            self.said = _future()
        if task.cancelled():
            self.said.cancel()
        elif (error := task.exception()) is not None:
            self.said.set_exception(error)
        else:
            self.said.set_result(task.result())


class HeldCalls:
    """The calls of this process whose clients are asked by answering them."""

    def __init__(
        self, db: Database, seal: Seal, signals: Signals, running: Running, replica: str
    ) -> None:
        self._db = db
        self._seal = seal
        self._running = running
        self._replica = replica
        self._held: dict[str, _Held] = {}  # by execution, the oldest first
        self._relay = HeldRelay(db, signals, replica, self._hear)
        self._draining = False

    async def first_word(self, attempt: Attempt, work: Coroutine[Any, Any, Result]) -> Result:
        """What the call says first: its result, or a question."""
        held = _Held(attempt, _bound_to(attempt))
        attempt.put = partial(self._put, held)
        held.task = self._running.start_unbounded(attempt, work)
        held.task.add_done_callback(held.end)
        return await self._next_word(held)

    async def next_word(self, attempt: Attempt) -> Result | None:
        """What a held call says to the answer this client brings; None: it brings none to us."""
        named = self._named(attempt)
        if named is None:
            return None
        attempt.id = named.execution
        try:
            return await self._heard(named, attempt) or failed_result(
                attempt, await self._gone(attempt)
            )
        except GatewayError as error:  # of this answer, not of the call
            return failed_result(attempt, error)

    def drain(self) -> None:
        """Nobody is asked any more: this process ends, and what it holds with it."""
        self._draining = True
        for held in self._held.values():
            held.take(held.round, dict.fromkeys(held.asked))

    async def _heard(self, named: Named, attempt: Attempt) -> Result | None:
        told = (named.execution, named.round, attempt.caller.input_responses)
        if named.replica == self._replica:
            return await self._hear(*told, attempt.caller)
        return await self._relay.passed_on(attempt, named.replica, told)

    async def _hear(
        self, execution: str, round: int, answers: ByKey | None, caller: Caller | None = None
    ) -> Result | None:
        held = self._held.get(execution)
        if held is None:
            return None
        if caller is not None:  # progress, logs and refusals go where someone listens
            held.attempt.caller = caller
        held.take(round, answers)
        return await self._next_word(held)

    async def _next_word(self, held: _Held) -> Result:
        held.listeners += 1
        try:
            return await asyncio.shield(held.said)
        except asyncio.CancelledError:
            if held.listeners == 1 and held.task is not None:
                held.task.cancel()  # hanging up is how a client of 2026 cancels
            raise
        finally:
            held.listeners -= 1

    async def _put(self, held: _Held, questions: ByKey) -> ByKey:
        """Has the client asked and gives its answers: none, where nobody listens any more."""
        async with held.turn:
            if held.over or not held.listeners or self._draining or not self._makes_room(held):
                return {}
            return await self._answered(held, questions)

    async def _answered(self, held: _Held, questions: ByKey) -> ByKey:
        held.round += 1
        held.asked, held.answer = questions, _future()
        held.said.set_result(self._question(held))
        try:
            return await held.answer
        finally:
            held.answer = None
            if held.said.done() and not held.over:
                held.said = _future()

    def _makes_room(self, held: _Held) -> bool:
        if held.attempt.id in self._held:
            return True
        who = held.attempt.caller.principal.name
        ended = [id for id, other in self._held.items() if other.over]
        mine = sum(
            other.attempt.caller.principal.name == who
            for other in self._held.values()
            if not other.over
        )
        if mine >= MAX_HELD_OF_ONE or len(self._held) - len(ended) >= MAX_HELD:
            return False
        if len(self._held) >= MAX_HELD:
            del self._held[ended[0]]
        self._held[held.attempt.id] = held
        assert held.task is not None
        held.task.add_done_callback(lambda _: self._forget_later(held.attempt.id))
        return True

    def _forget_later(self, id: str) -> None:
        asyncio.get_running_loop().call_later(KEEP_SECONDS, self._held.pop, id, None)

    def _question(self, held: _Held) -> Result:
        attempt = held.attempt
        named = [self._replica, attempt.id, held.round]
        state = self._seal.encrypt_json([PURPOSE, *named, *held.bound_to])
        return {
            "resultType": "input_required",
            "inputRequests": dict(held.asked),
            "requestState": state.decode("ascii"),
            "_meta": meta_of(attempt, "executing"),
        }

    def _named(self, attempt: Attempt) -> Named | None:
        state = attempt.caller.request_state
        if state is None or len(state) > MAX_STATE_CHARS:
            return None
        try:
            value: Any = self._seal.decrypt_json(state.encode("utf-8", "replace"))
        except (InvalidToken, ValueError):
            return None
        if not isinstance(value, list) or value[:1] != [PURPOSE]:
            return None
        _, replica, execution, round, *binding = value
        if binding != _bound_to(attempt):
            raise Fixable(
                "invalid_arguments",
                "The answer belongs to another call.",
                "Call again without it to be asked anew.",
            )
        return Named(replica, execution, round)

    async def _gone(self, attempt: Attempt) -> GatewayError:
        """Why an answer reaches nobody; the call's own row stays what it is."""
        row = await get_execution(self._db, attempt.id)
        if row is not None and row.status not in ("executing", "unknown"):
            return Fixable(
                "invalid_arguments",
                f"The answer came too late: the call has ended as {row.status}.",
                f"get_execution {attempt.id} tells how.",
            )
        if attempt.tool.access == "read":
            return Overloaded(
                "busy", "The gateway was restarted before the answer came.", "Call again."
            )
        return outcome_unknown(attempt, UpstreamFailed("internal", ""))


def _bound_to(attempt: Attempt) -> list[str]:
    digest = arguments_digest(attempt.arguments)
    return [attempt.caller.principal.name, attempt.tool.name, digest]


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def may_be_held(attempt: Attempt) -> bool:
    """Whether a server's question can be the answer to this call."""
    caller = attempt.caller
    asks = attempt.tool.upstream is not None and not attempt.unattended
    return asks and caller.era == "2026" and bool(caller.askable)
