"""One call, start to end, in one straight line.

decide → check the arguments → ask a person where one must be asked → claim the token → put a write
on disk → send → shape → record. Whatever door a call came through, it comes through here, and it
always ends in exactly one execution record. A write that was begun is finished and recorded even if
its caller has gone; a read ends with its caller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from gateway.calls.arguments import fitting_arguments
from gateway.calls.credentials import Prepared, PreparedConnections
from gateway.calls.held import HeldCalls, may_be_held
from gateway.calls.record import (
    ANSWERED,
    Attempt,
    Caller,
    Door,
    NotApproved,
    Signals,
    Unanswered,
    execution_of,
    failed_result,
    failure,
    going_on,
    meta_of,
    outcome_unknown,
    status_of,
    was_sent,
    with_warnings,
)
from gateway.calls.running import Running, to_its_end
from gateway.calls.tokens import FirstAnswers, take_token, with_token
from gateway.catalog.snapshot import Snapshot
from gateway.errors import Broken, GatewayError, Refused
from gateway.model import Tool
from gateway.policy.access import decide, level, shows
from gateway.store.approvals import Approval, use_approval
from gateway.store.database import Database
from gateway.store.ledger import (
    FINISHED,
    Execution,
    ExecutionStatus,
    begin,
    finish,
    record_finished,
)
from gateway.store.secrets import Seal

log = structlog.get_logger("gateway.call")

BACKGROUND_META = "gateway/background"
RECORD_SECONDS = 2.0

Sender = Callable[[Attempt, Prepared], Awaitable[dict[str, Any]]]
Finished = Callable[[Execution], None]


class Approver(Protocol):
    """Asks a person."""

    async def obtain(self, attempt: Attempt) -> Approval | None:
        """What the call may go on with: an approval to be used up, or None where none is needed.

        Raises NotApproved, or Unanswered where the caller can't be kept waiting.
        """

    async def waited_for(self, execution: Execution) -> bool:
        """Whether someone still waits for the decision on this call."""

    async def void(self, approval: Approval) -> None:
        """Withdraws an approval that is not going to be used."""


@dataclass(frozen=True, slots=True)
class Senders:
    """The two ways out of the gateway."""

    http: Sender
    upstream: Sender


class Invoker:
    """Carries calls out."""

    def __init__(
        self,
        db: Database,
        prepared: PreparedConnections,
        senders: Senders,
        *,
        replica: str,
        seal: Seal,
        signals: Signals | None = None,
        approver: Approver | None = None,
    ) -> None:
        self._db = db
        self._prepared = prepared
        self._senders = senders
        self._replica = replica
        self._signals = signals or Signals()
        self._approver = approver
        self._first_answers = FirstAnswers(db, self._signals)
        self._listeners: list[Finished] = []
        self.running = Running()
        self.held = HeldCalls(db, seal, self._signals, self.running, replica)

    def on_finished(self, listener: Finished) -> None:
        """Calls back with the record of each call that ended here."""
        self._listeners.append(listener)

    async def call(
        self,
        snapshot: Snapshot,
        tool: Tool,
        arguments: Mapping[str, Any],
        caller: Caller,
        bundle_ids: tuple[str, ...] = (),
        door: Door | None = None,
    ) -> dict[str, Any]:
        """The wire dict of the result. Failures are results too."""
        attempt = self.attempt(snapshot, tool, arguments, caller, bundle_ids, door)
        attempt.background = attempt.read_later = caller.meta.get(BACKGROUND_META) is True
        try:
            said = await self.held.next_word(attempt)
        except GatewayError as error:
            return self._refuse(attempt, error)
        if said is not None:
            return said
        outcome = self._outcome(attempt)
        return await (self.held.first_word(attempt, outcome) if may_be_held(attempt) else outcome)

    async def _outcome(self, attempt: Attempt) -> dict[str, Any]:
        try:
            return await self._call(attempt)
        except Unanswered as unanswered:
            return unanswered.result
        except NotApproved as error:
            return with_token(failed_result(attempt, error), attempt.token)
        except GatewayError as error:
            return self._refuse(attempt, error)
        except asyncio.CancelledError:
            if attempt.tool.access == "read" and not attempt.on_disk:
                self._record(attempt, "failed", None, Broken("cancelled", "the caller left"))
            raise
        except Exception as error:  # the boundary: a caller gets a code, the log gets the place
            log.error("call failed", tool=attempt.tool.name, execution=attempt.id, **failure(error))
            return self._refuse(attempt, Broken("internal", "the gateway failed on this call"))

    def attempt(
        self,
        snapshot: Snapshot,
        tool: Tool,
        arguments: Mapping[str, Any],
        caller: Caller,
        bundle_ids: tuple[str, ...] = (),
        door: Door | None = None,
    ) -> Attempt:
        """A call that is about to be made."""
        redactor = self._prepared.of(snapshot, tool.connection).redactor
        return Attempt(snapshot, tool, arguments, caller, bundle_ids, redactor, self._replica, door)

    async def resume(self, attempt: Attempt, approval: Approval) -> None:
        """Carries out a call that was approved after its caller had left."""
        if self.running.draining:
            return  # it stays approved: another process makes the call, or the next one here
        attempt.read_later = True
        self._allow(attempt)
        await self.running.finished(attempt, self._write(attempt, approval))

    async def _call(self, attempt: Attempt) -> dict[str, Any]:
        approval = await self._approved(attempt) if self._allow(attempt) else None
        if isinstance(approval, dict):
            return approval
        if attempt.background:
            return await self._in_background(attempt, approval)
        if attempt.tool.access == "read" and attempt.token is None and approval is None:
            result = await self._send(attempt)
            self._record(attempt, _ended(result), result)
            return result
        return await self.running.finished(attempt, self._write(attempt, approval))

    def _allow(self, attempt: Attempt) -> bool:
        """Whether a person must be asked first; raises where the call may not be made at all."""
        snapshot, tool = attempt.snapshot, attempt.tool
        granted = level(snapshot, attempt.caller.principal, attempt.state)
        if not shows(granted, tool):
            raise Refused("access_denied", f"you have no access to {attempt.state.display_name}")
        judged = attempt.door.judged if attempt.door else None
        decision = decide(judged or tool, snapshot.permissions)
        attempt.reason = decision.reason
        if decision.outcome == "block":
            raise Refused(decision.code, _blocked(attempt, decision.code), decision.reason)
        attempt.arguments, attempt.warnings = fitting_arguments(
            tool, attempt.arguments, lenient=attempt.state.settings.validation == "lenient"
        )
        if attempt.token is None:
            take_token(attempt)
        return decision.outcome == "confirm" and self._approver is not None

    async def _approved(self, attempt: Attempt) -> Approval | dict[str, Any] | None:
        """The approval to use up, or the answer where the caller's token had one already."""
        assert self._approver is not None
        if attempt.token_given:
            earlier = await self._first_answers.earlier(attempt, self._approver.waited_for)
            if earlier is not None:
                return earlier
        return await self._approver.obtain(attempt)

    async def _in_background(self, attempt: Attempt, approval: Approval | None) -> dict[str, Any]:
        """Begins a call and answers at once; the outcome is read from its record."""
        self.running.check_room(attempt)
        first = await self._begin(attempt, approval)
        if first is not None:
            return first
        self.running.start(attempt, self._complete(attempt))
        started = going_on(attempt, "executing", "The call runs in the background.")
        return with_token(started, attempt.token)

    async def _write(self, attempt: Attempt, approval: Approval | None) -> dict[str, Any]:
        first = await to_its_end(self._begin(attempt, approval))  # else its row had no end
        return first if first is not None else await self._complete(attempt)

    async def _begin(self, attempt: Attempt, approval: Approval | None) -> dict[str, Any] | None:
        """Puts the call on disk; gives the first answer where its token had one already."""
        execution = execution_of(attempt, "executing")
        attempt.on_disk = True
        if approval is None:
            begun = await begin(self._db, execution)
        else:
            begun = await use_approval(self._db, approval, execution, time.time())
        if begun.outcome == "new":
            return None
        if approval is not None and begun.outcome != "ended" and self._approver is not None:
            await self._approver.void(approval)  # its call was made already, under its token
        return await self._first_answers.answer_of(attempt, begun)

    async def _complete(self, attempt: Attempt) -> dict[str, Any]:
        """Sends a call that is on disk, and puts its end there too, whatever happens."""
        try:
            result = await self._send(attempt)
        except asyncio.CancelledError as error:
            # Someone wanted it stopped. The task is the call's own: what it has to tell is how
            # the call ended.
            if task := asyncio.current_task():
                task.uncancel()
            return await self._fail(attempt, Broken("cancelled", "the call was cancelled"), error)
        except GatewayError as error:
            return await self._fail(attempt, error, error)
        except Exception as error:  # whatever it was, the row must not stay as executing
            log.error("call failed", execution=attempt.id, **failure(error))
            told = Broken("internal", "the gateway failed on this call")
            return await self._fail(attempt, told, error)
        result = with_token(result, attempt.token)
        await self._end(attempt, execution_of(attempt, _ended(result), result))
        return result

    async def _fail(
        self, attempt: Attempt, error: GatewayError, cause: BaseException
    ) -> dict[str, Any]:
        """Records a call that did not get an answer: as failed, or as unknown if it was sent."""
        sent = was_sent(attempt, cause)
        in_doubt = attempt.token is not None or error.code == "cancelled"
        if sent and in_doubt and error.code not in ANSWERED and attempt.tool.access != "read":
            error = outcome_unknown(attempt, error)
        result = with_token(failed_result(attempt, error), attempt.token)
        execution = execution_of(attempt, status_of(error), result, error)
        await self._end(attempt, execution, sent=sent)
        return result

    async def _send(self, attempt: Attempt) -> dict[str, Any]:
        prepared = self._prepared.of(attempt.snapshot, attempt.tool.connection)
        send = self._senders.http if attempt.tool.http else self._senders.upstream
        result = await send(attempt, prepared)
        result["_meta"] = {**result.get("_meta", {}), **meta_of(attempt, _ended(result))}
        return with_warnings(attempt, result)

    async def _end(self, attempt: Attempt, execution: Execution, *, sent: bool = True) -> None:
        try:
            await finish(self._db, execution, sent=sent)
        except GatewayError:
            # It has happened, and the caller is told so; the record follows when the store is back.
            self.running.start_unbounded(attempt, self._finish_later(execution, sent))
        self._tell(execution)

    async def _finish_later(self, execution: Execution, sent: bool) -> None:
        """Tries until the store is back: such calls stay few, since none begins without it."""
        try:
            while True:
                await asyncio.sleep(RECORD_SECONDS)
                with suppress(GatewayError):
                    await finish(self._db, execution, sent=sent)
                    return
        except asyncio.CancelledError:
            log.error("execution not recorded", execution=execution.id)
            raise

    def _refuse(self, attempt: Attempt, error: GatewayError) -> dict[str, Any]:
        result = with_token(failed_result(attempt, error), attempt.token)
        self._record(attempt, status_of(error), result, error)
        return result

    def _record(
        self,
        attempt: Attempt,
        status: ExecutionStatus,
        result: Mapping[str, Any] | None,
        error: GatewayError | None = None,
    ) -> None:
        self.record(execution_of(attempt, status, result, error))

    def record(self, execution: Execution) -> None:
        """Puts the record of a call that is over on disk soon, and tells of it."""
        record_finished(self._db, execution)
        self._tell(execution)

    def _tell(self, execution: Execution) -> None:
        if execution.idempotency_token is not None:
            self._signals.hear(FINISHED, execution.id)
        for listener in self._listeners:
            listener(execution)


def _ended(result: Mapping[str, Any]) -> ExecutionStatus:
    return "failed" if result.get("isError") else "completed"


def _blocked(attempt: Attempt, code: str) -> str:
    if code == "read_only":
        return f"You have read-only access to {attempt.state.display_name}"
    return f"{attempt.tool.name} is blocked"
