"""One call, start to end, in one straight line.

decide → check the arguments → ask a person where one must be asked → claim the token and put a
write on disk → send → shape → record. Whatever door a call came through, it comes through here, and
it always ends in exactly one execution record. A write that was begun is finished and recorded even
if its caller has gone; a read ends with its caller.

A token has one upstream effect however often a call is made with it. The store's claim decides who
is first, over all replicas, in the transaction that puts the call on disk. Everyone else with the
same principal, token and arguments waits for that call and gets its answer, an upstream's error
included. What is known never to have left frees its token; what may have left keeps it for ever.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import structlog

from gateway.calls.answer import Result
from gateway.calls.approvals import Approvals
from gateway.calls.arguments import fitting_arguments
from gateway.calls.credentials import Prepared, PreparedConnections
from gateway.calls.held import HeldCalls, Running, to_its_end
from gateway.calls.record import (
    BACKGROUND_META,
    REFUSED_UPSTREAM,
    TOKEN_META,
    Attempt,
    Caller,
    Door,
    NotApproved,
    Unanswered,
    arguments_digest,
    describe_failure,
    execution_of,
    failed_result,
    meta_of,
    outcome_unknown,
    pending_result,
    status_of,
    with_token,
    with_warnings,
)
from gateway.calls.request import build_request
from gateway.catalog.snapshot import Snapshot
from gateway.config.connection import McpConnection
from gateway.errors import Broken, Fixable, GatewayError, Overloaded, UpstreamFailed
from gateway.limits import MOMENT_SECONDS, PREVIEW_CHARS
from gateway.model import Tool
from gateway.policy.access import permit
from gateway.store.approvals import Approval, first_with_token, use_approval
from gateway.store.cluster import Signals, heard_within
from gateway.store.database import Database
from gateway.store.ledger import (
    FINISHED,
    Begun,
    Execution,
    ExecutionStatus,
    begin,
    finish,
    get_execution,
    record_finished,
)
from gateway.store.secrets import Seal

log = structlog.get_logger("gateway.call")

Send = Callable[[Attempt, Prepared], Awaitable[Result]]


class Invoker:
    """Carries calls out."""

    def __init__(
        self,
        db: Database,
        prepared: PreparedConnections,
        send: Send,
        approvals: Approvals,
        signals: Signals,
        seal: Seal,
        *,
        replica: str,
    ) -> None:
        self._db = db
        self._prepared = prepared
        self._send_prepared = send
        self._approvals = approvals
        self._signals = signals
        self._replica = replica
        self._listeners: list[Callable[[Execution], None]] = []
        self.running = Running()
        self.held = HeldCalls(db, seal, signals, self.running, replica)

    def on_finished(self, listener: Callable[[Execution], None]) -> None:
        """Calls back with the record of each call that ended here."""
        self._listeners.append(listener)

    def call(
        self,
        snapshot: Snapshot,
        tool: Tool,
        arguments: Mapping[str, Any],
        caller: Caller,
        bundle_ids: tuple[str, ...] = (),
        door: Door | None = None,
    ) -> Coroutine[Any, Any, Result]:
        """The result of the call. Failures are results too."""
        attempt = self.attempt(snapshot, tool, arguments, caller, bundle_ids, door)
        attempt.background = attempt.read_later = caller.meta.get(BACKGROUND_META) is True
        if caller.request_state is None and not attempt.may_be_held:
            return self._outcome(attempt)
        return self._outcome_or_question(attempt)

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
        self._decide(attempt)
        self._check(attempt)
        await self.running.finish(attempt, self._make_write(attempt, approval))

    async def _outcome_or_question(self, attempt: Attempt) -> Result:
        """As `_outcome`, for clients that are asked by answering them, and for their answers."""
        try:
            said = await self.held.next_word(attempt)
        except GatewayError as error:
            return self._refuse(attempt, error)
        if said is not None:
            return said
        if attempt.may_be_held:
            return await self.held.first_word(attempt, self._outcome(attempt))
        return await self._outcome(attempt)

    async def _outcome(self, attempt: Attempt) -> Result:
        try:
            return await self._make(attempt)
        except Unanswered as unanswered:
            return unanswered.result
        except NotApproved as error:
            return failed_result(attempt, error)
        except GatewayError as error:
            return self._refuse(attempt, error)
        except asyncio.CancelledError:
            if attempt.tool.access == "read" and not attempt.on_disk:
                self._record(attempt, "failed", None, Broken("cancelled", "the caller left"))
            raise
        except Exception as error:  # the boundary: a caller gets a code, the log gets the place
            name, failure = attempt.tool.name, describe_failure(error)
            log.error("call failed", tool=name, execution=attempt.id, **failure)
            return self._refuse(attempt, Broken("internal", "the gateway failed on this call"))

    async def _make(self, attempt: Attempt) -> Result:
        must_ask = self._decide(attempt)
        self._check(attempt)
        approval = await self._ask(attempt) if must_ask else None
        if isinstance(approval, dict):
            return approval
        if attempt.background:
            return await self._make_in_background(attempt, approval)
        if attempt.tool.access == "read" and attempt.token is None and approval is None:
            result = self._shape(attempt, await self._send(attempt))
            self._record(attempt, _status(result), result)
            return result
        return await self.running.finish(attempt, self._make_write(attempt, approval))

    async def _make_in_background(self, attempt: Attempt, approval: Approval | None) -> Result:
        """Begins a call and answers at once; the outcome is read from its record."""
        self.running.check_room(attempt)
        first = await self._claim(attempt, approval)
        if first is not None:
            return first
        self.running.start(attempt, self._complete(attempt))
        return pending_result(attempt, "executing", "The call runs in the background.")

    async def _make_write(self, attempt: Attempt, approval: Approval | None) -> Result:
        first = await to_its_end(self._claim(attempt, approval))  # else its row had no end
        return first if first is not None else await self._complete(attempt)

    async def _complete(self, attempt: Attempt) -> Result:
        """Sends a call that is on disk, and puts its end there too, whatever happens."""
        try:
            result = self._shape(attempt, await self._send(attempt))
        except asyncio.CancelledError as error:
            # Someone wanted it stopped. The task is the call's own: what it has to tell is how
            # the call ended.
            if task := asyncio.current_task():
                task.uncancel()
            return await self._fail(attempt, Broken("cancelled", "the call was cancelled"), error)
        except GatewayError as error:
            return await self._fail(attempt, error, error)
        except Exception as error:  # whatever it was, the row must not stay as executing
            log.error("call failed", execution=attempt.id, **describe_failure(error))
            told = Broken("internal", "the gateway failed on this call")
            return await self._fail(attempt, told, error)
        result = with_token(result, attempt.token)
        await self._record_end(attempt, execution_of(attempt, _status(result), result))
        return result

    # --- the steps --------------------------------------------------------------------------------

    def _decide(self, attempt: Attempt) -> bool:
        """Whether a person must be asked first; raises where the call may not be made at all."""
        principal = attempt.caller.principal
        decision = permit(attempt.snapshot, principal, attempt.tool, attempt.judged)
        attempt.reason = decision.reason
        return decision.outcome == "confirm"

    def _check(self, attempt: Attempt) -> None:
        """Refuses arguments that do not fit; fills in defaults and the token."""
        lenient = attempt.state.settings.validation == "lenient"
        fitting = fitting_arguments(attempt.tool, attempt.arguments, lenient=lenient)
        attempt.arguments, attempt.warnings = fitting
        if attempt.token is None:
            take_token(attempt)

    async def _ask(self, attempt: Attempt) -> Approval | Result | None:
        """The approval to use up, or the answer where the caller's token had one already."""
        if attempt.token_given:
            earlier = await self._earlier_answer(attempt)
            if earlier is not None:
                return earlier
        return await self._approvals.obtain(attempt, self._target(attempt))

    def _target(self, attempt: Attempt) -> tuple[str, str]:
        """Method and address of the request that would be made; raises where none could be."""
        operation, settings = attempt.tool.http, attempt.state.settings
        if operation is None:
            url = settings.url if isinstance(settings, McpConnection) else None
            place = url.partition("?")[0] if url else attempt.state.name
            return "tools/call", f"{place} {attempt.tool.operation or attempt.tool.name}"
        prepared = self._prepared.of(attempt.snapshot, attempt.tool.connection)
        arguments = {**attempt.arguments, **prepared.inject}
        request = build_request(operation, arguments, prepared.blocklist)
        return request.method, attempt.redactor.text(request.url)[:PREVIEW_CHARS]

    async def _claim(self, attempt: Attempt, approval: Approval | None) -> Result | None:
        """Puts the call on disk; gives the first answer where its token had one already."""
        execution = execution_of(attempt, "executing")
        attempt.on_disk = True
        if approval is None:
            begun = await begin(self._db, execution)
        else:
            begun = await use_approval(self._db, approval, execution, time.time())
        if begun.outcome == "new":
            return None
        if approval is not None and begun.outcome != "ended":
            await self._approvals.void(approval)  # its call was made already, under its token
        return await self._first_answer(attempt, begun)

    def _send(self, attempt: Attempt) -> Awaitable[Result]:
        prepared = self._prepared.of(attempt.snapshot, attempt.tool.connection)
        return self._send_prepared(attempt, prepared)

    def _shape(self, attempt: Attempt, result: Result) -> Result:
        """The result with what it says of its call."""
        meta = {**result.get("_meta", {}), **meta_of(attempt, _status(result))}
        return with_warnings(attempt, {**result, "_meta": meta})

    # --- tokens that were used before -------------------------------------------------------------

    async def _earlier_answer(self, attempt: Attempt) -> Result | None:
        """The answer of an earlier call with the caller's token, before anyone is asked again.

        None: there is none, or only one whose caller was cut off before a decision; it goes on in
        this attempt.
        """
        assert attempt.token is not None
        first = await first_with_token(self._db, attempt.principal, attempt.token)
        if first is None:
            return None
        same_call = (attempt.tool.name, arguments_digest(attempt.arguments))
        if (first.tool, first.args_digest) != same_call:
            raise _conflict(attempt)
        if first.status == "pending_confirmation" and not await self._approvals.has_waiter(
            first.id, first.era, first.replica
        ):
            return None
        if first.status in _GOING_ON and attempt.unattended:
            attempt.id = first.id
            return pending_result(attempt, first.status, "The call is already on its way.")
        return _answer_again(attempt, await self._end_of(attempt, first))

    async def _first_answer(self, attempt: Attempt, begun: Begun) -> Result:
        """The answer of the call that had this token first, once it has one."""
        if begun.outcome == "conflict":
            raise _conflict(attempt)
        if begun.outcome == "ended" or begun.execution is None:
            raise NotApproved(
                "approval_expired",
                "The approval for this call was used, has expired or was withdrawn.",
                "Call again to ask for a new one.",
            )
        return _answer_again(attempt, await self._end_of(attempt, begun.execution))

    async def _end_of(self, attempt: Attempt, first: Execution) -> Execution:
        """The first call when it is over; its process may be another one."""
        deadline = time.monotonic() + attempt.longest_seconds
        with self._signals.awaiting(FINISHED, first.id) as heard:
            while True:
                first = await get_execution(self._db, first.id) or first
                if first.status not in _GOING_ON:
                    return first
                if time.monotonic() > deadline:
                    raise Overloaded(
                        "busy",
                        "The first call with this token is still on its way.",
                        f"find_execution {attempt.token} tells what became of it.",
                    )
                await heard_within(heard, MOMENT_SECONDS)

    # --- the record -------------------------------------------------------------------------------

    def _refuse(self, attempt: Attempt, error: GatewayError) -> Result:
        result = failed_result(attempt, error)
        self._record(attempt, status_of(error), result, error)
        return result

    def _record(
        self,
        attempt: Attempt,
        status: ExecutionStatus,
        result: Result | None,
        error: GatewayError | None = None,
    ) -> None:
        self.record(execution_of(attempt, status, result, error))

    def record(self, execution: Execution) -> None:
        """Puts the record of a call that is over on disk soon, and tells of it."""
        record_finished(self._db, execution)
        self._tell(execution)

    async def _fail(self, attempt: Attempt, error: GatewayError, cause: BaseException) -> Result:
        """Records a call that did not get an answer: as failed, or as unknown if it was sent."""
        sent = _was_sent(attempt, cause)
        in_doubt = attempt.token is not None or error.code == "cancelled"
        is_final = error.code in REFUSED_UPSTREAM or attempt.tool.access == "read"
        if sent and in_doubt and not is_final:
            error = outcome_unknown(attempt, error.code)
        result = failed_result(attempt, error)
        execution = execution_of(attempt, status_of(error), result, error)
        await self._record_end(attempt, execution, sent=sent)
        return result

    async def _record_end(
        self, attempt: Attempt, execution: Execution, *, sent: bool = True
    ) -> None:
        try:
            await finish(self._db, execution, sent=sent)
        except GatewayError:
            # It has happened, and the caller is told so; the record follows when the store is back.
            self.running.start_unbounded(self._record_later(execution, sent))
        self._tell(execution)

    async def _record_later(self, execution: Execution, sent: bool) -> None:
        """Tries until the store is back: such calls stay few, since none begins without it."""
        try:
            while True:
                await asyncio.sleep(MOMENT_SECONDS)
                with suppress(GatewayError):
                    await finish(self._db, execution, sent=sent)
                    return
        except asyncio.CancelledError:
            log.error("execution not recorded", execution=execution.id)
            raise

    def _tell(self, execution: Execution) -> None:
        if execution.idempotency_token is not None:
            self._signals.hear(FINISHED, execution.id)
        for listener in self._listeners:
            listener(execution)


def _status(result: Result) -> ExecutionStatus:
    return "failed" if result.get("isError") else "completed"


def _was_sent(attempt: Attempt, error: BaseException) -> bool:
    """Whether the other side may have seen the request before this went wrong."""
    if isinstance(error, UpstreamFailed):
        return error.sent
    if attempt.upstream_status is not None:
        return True
    return not isinstance(error, GatewayError)  # ours come before sending; of others who knows


# --- tokens ---------------------------------------------------------------------------------------

_VISIBLE = re.compile(r"[\x21-\x7e]{1,200}")
_GOING_ON = ("executing", "pending_confirmation")


def take_token(attempt: Attempt) -> None:
    """Gives the attempt its token: the caller's own, or a fresh one where the tool needs one."""
    given = attempt.caller.meta.get(TOKEN_META)
    needed = _needs_token(attempt.tool)
    if given is None:
        attempt.token = str(uuid.uuid4()) if needed else None
        return
    if not isinstance(given, str) or not _VISIBLE.fullmatch(given):
        raise Fixable(
            "invalid_arguments",
            f"{TOKEN_META} must be 1 to 200 visible ASCII characters",
            "A UUID is a good token.",
        )
    if needed or attempt.tool.access != "read":
        attempt.token, attempt.token_given = given, True


def _needs_token(tool: Tool) -> bool:
    """Whether the other side takes an idempotency token for this tool."""
    if tool.http is not None:
        return tool.http.idempotency_header is not None and tool.access != "read"
    return tool.upstream is not None and tool.upstream.idempotency_field is not None


def _conflict(attempt: Attempt) -> Fixable:
    token, attempt.token = attempt.token, None  # it stands for the other call, not for this one
    return Fixable(
        "idempotency_conflict",
        "This idempotency token was used for a call with another tool or other arguments.",
        "Use a new token for a new call; find_execution shows the earlier one.",
        token=token,
    )


def _answer_again(attempt: Attempt, first: Execution) -> Result:
    """What the caller of the first call got, or would have got."""
    attempt.id = first.id
    answer = (first.result or {}).get("answer")
    if answer is not None:
        return {**answer, "_meta": {**answer.get("_meta", {}), "gateway/replayed": True}}
    return failed_result(attempt, _error_of(attempt, first))


def _error_of(attempt: Attempt, first: Execution) -> GatewayError:
    match first.status:
        case "unknown":
            return outcome_unknown(attempt)
        case "denied":
            return NotApproved("approval_denied", "The call was not approved.")
        case "expired":
            return NotApproved("approval_expired", "Nobody approved the call in time.")
    return Broken(
        first.error_code or "internal",
        "The first call with this token failed before it was sent.",
        "It may be tried again with the same token.",
    )
