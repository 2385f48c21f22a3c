"""Calls that are held while their client is asked (2026-07-28): there a question ends the request.

The client gets the question as its answer and replies by calling again. Meanwhile the call goes on
here, in a task of its own, so that its approval, its token, its row and its request upstream are
the same before and after. What the client hands back is sealed: it names the process, the call and
the question, and is bound to who calls what. A question is answered once; whoever repeats an answer
hears what came of it. Another process passes an answer on to the one that holds the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cryptography.fernet import InvalidToken

from gateway.errors import Fixable, GatewayError, Overloaded, UpstreamFailed
from gateway.invoke.approval_state import MAX_STATE_CHARS
from gateway.invoke.attempt import Attempt, arguments_digest
from gateway.invoke.background import Running
from gateway.invoke.caller import Caller
from gateway.invoke.held_relay import HeldRelay
from gateway.invoke.outcomes import failed_result, meta_of, outcome_unknown
from gateway.invoke.questions import ByKey
from gateway.invoke.signals import Signals
from gateway.store.database import Database
from gateway.store.executions import get_execution
from gateway.store.secrets import Seal

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
