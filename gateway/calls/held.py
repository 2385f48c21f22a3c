"""Calls that outlive the request they came in with.

A write runs in a task of its own: once begun it is finished and recorded, whether or not its caller
is still there; a caller who says so stops it. A background call is one whose caller does not wait.
A call that was approved after its caller had left is made from its ticket, by whichever process is
first.

From 2026-07-28 on an upstream's question ends the request: the client gets it as its answer and
replies by calling again, while the call is held here, so that its approval, token, row and request
upstream stay the same. What the client hands back is sealed: it names the process, the call and the
question, and is bound to who calls what. Another process passes an answer on to the one that holds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog
from cryptography.fernet import InvalidToken
from msgspec import Struct

from gateway.calls.answer import Result
from gateway.calls.record import (
    UNATTENDED,
    Attempt,
    Caller,
    arguments_digest,
    describe_failure,
    failed_result,
    meta_of,
    outcome_unknown,
)
from gateway.errors import Fixable, GatewayError, Overloaded
from gateway.limits import (
    CALLS_PER_PRINCIPAL,
    MAX_RECORDED_BYTES,
    MAX_WAITING_CALLS,
    MOMENT_SECONDS,
)
from gateway.model import Principal, new_id
from gateway.store.approvals import APPROVAL_CHANGED, Approval, approved_of_era, void_approvals
from gateway.store.cluster import Signals, heard_within, living
from gateway.store.database import Database, signal
from gateway.store.ledger import get_execution
from gateway.store.secrets import Seal

log = structlog.get_logger("gateway.call")

CANCEL = "cancel"  # the signal, with the execution's id; the word of a caller who says so
Work = Coroutine[Any, Any, Any]
ByKey = Mapping[str, Any]
_T = TypeVar("_T")


class Running:
    """The calls of this process that no request carries."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Any]] = {}  # by execution
        self._background: dict[str, str] = {}  # the principal, by execution
        self._more: set[asyncio.Task[Any]] = set()
        self.draining = False  # this process ends: what waits in the store is left to others

    async def finish(self, attempt: Attempt, work: Work) -> Result:
        """What the work gives; a caller who leaves does not stop it, one who says so does."""
        task = self._start(attempt.id, work)
        try:
            result: Result = await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if error.args == (CANCEL,):
                task.cancel()
            raise
        return result

    def check_room(self, attempt: Attempt) -> None:
        """Refuses one background call too many."""
        if list(self._background.values()).count(attempt.principal) >= CALLS_PER_PRINCIPAL:
            raise Overloaded(
                "busy",
                f"{CALLS_PER_PRINCIPAL} of your calls are running in the background.",
                "Wait until one has ended, or cancel one.",
            )

    def start(self, attempt: Attempt, work: Work) -> None:
        """Runs a background call of the principal."""
        self._background[attempt.id] = attempt.principal
        self._start(attempt.id, work)

    def start_unbounded(self, work: Work) -> asyncio.Task[Any]:
        """Runs what others bound: a call that may be held, or what is left to do of one."""
        task = asyncio.create_task(work)
        self._more.add(task)
        task.add_done_callback(self._more.discard)
        return task

    def cancel(self, id: str) -> bool:
        """Cancels a call; False: it does not run here."""
        task = self._tasks.get(id)
        return task is not None and task.cancel()

    async def cancel_and_wait(self, id: str) -> bool:
        """Cancels a call and waits until it is recorded; False: it does not run here."""
        task = self._tasks.get(id)
        if task is None or not task.cancel():
            return False
        await asyncio.wait([task], timeout=MOMENT_SECONDS)
        return True

    async def drain(self, seconds: float) -> None:
        """Waits until nothing runs any more, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while tasks := {*self._tasks.values(), *self._more}:  # one may begin another
                    await asyncio.wait(tasks)

    async def close(self) -> None:
        """Ends what still runs; each call is recorded as what it then is."""
        tasks = {*self._tasks.values(), *self._more}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=MOMENT_SECONDS)

    def _start(self, id: str, work: Work) -> asyncio.Task[Any]:
        task = self._tasks[id] = asyncio.create_task(work, name=f"call {id}")
        task.add_done_callback(lambda _: self._end(id, task))
        return task

    def _end(self, id: str, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(id) is task:
            del self._tasks[id]
            self._background.pop(id, None)
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may have to


async def to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """What the work gives; a cancellation meanwhile counts afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        result = await task
        if (waiting := asyncio.current_task()) is not None:
            waiting.cancel()
        return result


# --- calls that are held --------------------------------------------------------------------------

PURPOSE = "held-call/1"
LETTER = "held_letter"  # the signal: to which process, which letter, what it says


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
        self._awaited: dict[str, asyncio.Future[Any]] = {}  # what comes back, by letter
        self._draining = False
        signals.on(LETTER, self._take_letter)

    async def first_word(self, attempt: Attempt, work: Coroutine[Any, Any, Result]) -> Result:
        """What the call says first: its result, or a question."""
        held = _Held(attempt, _bound_to(attempt))
        attempt.put = partial(self._put, held)
        held.task = self._running.start_unbounded(work)
        held.task.add_done_callback(held.end)
        return await self._next_word(held)

    async def next_word(self, attempt: Attempt) -> Result | None:
        """What a held call says to the answer this client brings; None: it brings none to us."""
        found = open_state(self._seal, PURPOSE, attempt.caller.request_state)
        if found is None:
            return None
        replica, attempt.id, round, *bound_to = found
        if bound_to != _bound_to(attempt):
            attempt.id = new_id(attempt.at)
            raise Fixable(
                "invalid_arguments",
                "The answer belongs to another call.",
                "Call again without it to be asked anew.",
            )
        answers = attempt.caller.input_responses
        try:
            if replica == self._replica:
                said = await self._hear(attempt.id, round, answers, attempt.caller)
            else:
                said = await self._pass_on(attempt, replica, round, answers)
            return said or failed_result(attempt, await self._why_gone(attempt))
        except GatewayError as error:  # of this answer, not of the call
            return failed_result(attempt, error)

    def drain(self) -> None:
        """Nobody is asked any more: this process ends, and what it holds with it."""
        self._draining = True
        for held in self._held.values():
            held.take(held.round, dict.fromkeys(held.asked))

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
        attempt = held.attempt
        if attempt.id in self._held:
            return True
        others = [other.attempt.principal for other in self._held.values() if not other.over]
        mine = others.count(attempt.principal)
        if mine >= CALLS_PER_PRINCIPAL or len(self._held) >= MAX_WAITING_CALLS:
            return False
        self._held[attempt.id] = held
        assert held.task is not None
        held.task.add_done_callback(lambda _: self._forget_later(attempt))
        return True

    def _forget_later(self, attempt: Attempt) -> None:
        """Keeps the outcome a while, for a client that did not hear the end."""
        seconds = attempt.snapshot.permissions.timeout_seconds
        asyncio.get_running_loop().call_later(seconds, self._held.pop, attempt.id, None)

    def _question(self, held: _Held) -> Result:
        attempt = held.attempt
        named = [self._replica, attempt.id, held.round, *held.bound_to]
        return {
            "resultType": "input_required",
            "inputRequests": dict(held.asked),
            "requestState": seal_state(self._seal, PURPOSE, named),
            "_meta": meta_of(attempt, "executing"),
        }

    async def _why_gone(self, attempt: Attempt) -> GatewayError:
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
        return outcome_unknown(attempt)

    # --- between processes: letters, which are signals of the store ------------------------------

    async def _pass_on(
        self, attempt: Attempt, replica: str, round: int, answers: ByKey | None
    ) -> Result | None:
        """What a call that another process holds says to the answer; None: it holds it no longer.

        That process may end meanwhile; then nothing comes back.
        """
        letter, deadline = new_id(time.time()), time.monotonic() + attempt.longest_seconds
        said = self._awaited[letter] = _future()
        try:
            await self._send_letter(replica, letter, [self._replica, attempt.id, round, answers])
            while time.monotonic() < deadline:
                alive = replica in await living(self._db)
                await asyncio.wait([said], timeout=MOMENT_SECONDS)
                if said.done() or not alive:
                    found: Result | None = said.result() if said.done() else None
                    return found
        finally:
            del self._awaited[letter]
        hint = f"get_execution {attempt.id} tells what became of it."
        raise Overloaded("busy", "The call is still on its way.", hint)

    def _take_letter(self, payload: str) -> None:
        to, _, rest = payload.partition(" ")
        if to != self._replica:
            return
        letter, _, text = rest.partition(" ")
        value, said = json.loads(text), self._awaited.get(letter)
        if said is not None:
            if not said.done():
                said.set_result(value)
        elif isinstance(value, list):
            self._running.start_unbounded(self._answer_letter(letter, *value))

    async def _answer_letter(
        self, letter: str, sender: str, id: str, round: int, answers: Any
    ) -> None:
        try:
            await self._send_letter(sender, letter, await self._hear(id, round, answers))
        except GatewayError as error:
            log.warning("letter not answered", code=error.code)

    async def _send_letter(self, to: str, letter: str, value: Any) -> None:
        payload = f"{to} {letter} {json.dumps(value)}"
        await self._db.write(lambda tx: signal(tx, LETTER, payload))


def _bound_to(attempt: Attempt) -> list[str]:
    digest = arguments_digest(attempt.arguments)
    return [attempt.principal, attempt.tool.name, digest]


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def seal_state(seal: Seal, purpose: str, values: Sequence[Any]) -> str:
    """What a client of 2026 hands back with its answer; one key seals states of several kinds."""
    return seal.encrypt_json([purpose, *values]).decode("ascii")


def open_state(seal: Seal, purpose: str, state: str | None) -> list[Any] | None:
    """The values in a state of ours; None: it is none of this kind."""
    if state is None or len(state) > MAX_RECORDED_BYTES:
        return None
    try:
        value = seal.decrypt_json(state.encode("utf-8", "replace"))
    except (InvalidToken, ValueError):
        return None
    return value[1:] if isinstance(value, list) and value[:1] == [purpose] else None


# --- calls that were approved after their callers had left ----------------------------------------


class Ticket(Struct, frozen=True):
    """All that is needed to carry a call out when its caller is no longer there."""

    principal: Principal
    arguments: Mapping[str, Any]
    door: Mapping[str, Any]
    bundle_ids: tuple[str, ...]
    token: str | None
    token_given: bool
    client: str


def seal_ticket(seal: Seal, attempt: Attempt) -> bytes:
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
    return seal.encrypt_json(msgspec.to_builtins(ticket))


class ApprovedRuns:
    """Finds approved calls nobody waits for, REST's and background ones, and has them made.

    Every process looks, woken by the store or every few seconds; using an approval up is a
    compare-and-set, so that one of them makes the call and the others find nothing to do.
    """

    def __init__(
        self,
        db: Database,
        seal: Seal,
        signals: Signals,
        resume: Callable[[Approval, Ticket], Awaitable[None]],
    ) -> None:
        self._db = db
        self._seal = seal
        self._resume = resume
        self._woken = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        signals.on(APPROVAL_CHANGED, lambda _: self._woken.set())

    async def run(self) -> None:
        """Goes on for ever."""
        while True:
            await heard_within(self._woken, MOMENT_SECONDS)
            try:
                room = CALLS_PER_PRINCIPAL - len(self._running)
                for approval in await approved_of_era(self._db, UNATTENDED, time.time(), room):
                    self._start(approval)
            except GatewayError as error:
                log.warning("approved calls not read", code=error.code)

    async def close(self) -> None:
        """Starts nothing more; calls that were begun are finished by those who make them."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _start(self, approval: Approval) -> None:
        if approval.id not in self._running:
            task = self._running[approval.id] = asyncio.create_task(self._make(approval))
            task.add_done_callback(lambda _: self._running.pop(approval.id, None))

    async def _make(self, approval: Approval) -> None:
        try:
            sealed = self._seal.decrypt_json(approval.sealed_arguments)
            ticket = msgspec.convert(sealed, Ticket)
        except (InvalidToken, ValueError, msgspec.ValidationError):
            log.error("approved call can't be opened", approval=approval.id)
            await void_approvals(self._db, [approval.id], time.time())
            return
        try:
            await self._resume(approval, ticket)
        except GatewayError as error:
            # Another process was faster, or the store fails: then it is found again.
            log.debug("approved call not made", approval=approval.id, code=error.code)
        except Exception as error:  # one call's trouble must not stop the others
            log.error("approved call failed", approval=approval.id, **describe_failure(error))
