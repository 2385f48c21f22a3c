"""One call, start to end, in one straight line.

decide → check the arguments → have the caller sign in, where calls go out as them → ask a person,
where approval is needed → claim the token and put a write on disk → send → shape → record. Calls
come here from every edge, and each call always ends in exactly one execution record. A write that
was begun is finished and recorded even if its caller has left; a read ends with its caller. Where
the upstream may ask a client of 2026 something, `questions.py` holds the call while it goes this
way: the client gets each question as the answer to its request, and replies by calling again.

A token has one upstream effect however often a call is made with it. The store's claim decides
which call is first, over all replicas, in the transaction that puts the call on disk. Later calls
with the same principal, token and arguments wait for the first and get its answer, an upstream's
error included. A call that surely never left frees its token; any other call keeps it as long as
its record.
"""

from __future__ import annotations

import asyncio
import re
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import structlog

from gateway.calls.admission import CallTasks
from gateway.calls.approvals import ApprovalOrAnswer, Approvals, Target
from gateway.calls.arguments import fitting_arguments
from gateway.calls.credentials import PreparedConnection, PreparedConnections, Proof
from gateway.calls.questions import HeldCalls
from gateway.calls.record import (
    BACKGROUND_META,
    GOING_ON,
    TOKEN_META,
    UNATTENDED,
    Attempt,
    Caller,
    ToolReference,
    is_upstream_refusal,
    status_of_error,
    status_of_result,
    with_token,
)
from gateway.calls.redact import Redactor
from gateway.calls.request import build_request
from gateway.catalog.snapshot import Snapshot
from gateway.config.connection import McpConnection
from gateway.errors import Broken, Fixable, GatewayError, NotApproved, Overloaded, UpstreamFailed
from gateway.limits import CALLS_PER_PRINCIPAL, MOMENT_SECONDS, PREVIEW_CHARS
from gateway.model import Result, Tool
from gateway.policy.access import permit
from gateway.store import ledger
from gateway.store.approvals import list_approved, use_approval
from gateway.store.cluster import wait_until_set
from gateway.store.tables import CONFIRMATION, Approval, Execution

log = structlog.get_logger("gateway.call")

APPROVED = object()  # the owner of calls that were approved after their callers had left
Arguments = Mapping[str, Any]
Send = Callable[[Attempt, PreparedConnection], Awaitable[Result]]
# None once the caller may call as themselves; else the question for their client.
SignIn = Callable[[Attempt, Proof], Awaitable[Result | None]]


class Invoker:
    """Carries calls out."""

    def __init__(
        self, prepared: PreparedConnections, send: Send, approvals: Approvals, sign_in: SignIn
    ) -> None:
        self._db, self._signals = approvals.db, approvals.signals
        self._send, self._sign_in = send, sign_in
        self._prepared, self._approvals = prepared, approvals
        self._listeners: list[Callable[[Execution], None]] = []
        self.running = CallTasks()
        self.held_calls = HeldCalls(
            approvals.db, approvals.seal, approvals.signals, self.running.start, approvals.replica
        )

    def redactor(self, snapshot: Snapshot, connection: str) -> Redactor:
        """The redactor that keeps a connection's secrets out of texts that are shown."""
        return self._prepared.of(snapshot, connection).redactor

    def on_finished(self, listener: Callable[[Execution], None]) -> None:
        """Calls the listener with the record of each call that ended here."""
        self._listeners.append(listener)

    def call(
        self,
        snapshot: Snapshot,
        tool: Tool,
        arguments: Arguments,
        caller: Caller,
        reference: ToolReference,
        bundle_ids: tuple[str, ...] = (),
        *,
        judged_tool: Tool | None = None,
        unattended: bool = False,
    ) -> Coroutine[Any, Any, Result]:
        """The result of the call. Failures are results too.

        `judged_tool` is the tool that permissions are asked about, where that is another one.
        `unattended`: nobody waits while a person decides.
        """
        attempt = self._build_attempt(snapshot, tool, judged_tool or tool, arguments, caller)
        attempt.reference, attempt.bundle_ids = reference, bundle_ids
        attempt.background = caller.meta.get(BACKGROUND_META) is True
        attempt.unattended = unattended or attempt.background
        if caller.request_state is None and not attempt.may_be_held:
            return self._make_or_fail(attempt)
        return self.held_calls.next_result(attempt, self._make_or_fail)

    def _build_attempt(
        self, snap: Snapshot, tool: Tool, judged: Tool, args: Arguments, caller: Caller
    ) -> Attempt:
        redactor, replica = self.redactor(snap, tool.connection), self._approvals.replica
        return Attempt(snap, tool, judged, args, caller, redactor, replica)

    async def _make_or_fail(self, attempt: Attempt) -> Result:
        try:
            return await self._make_call(attempt)
        except NotApproved as error:  # the execution's row says so already
            return attempt.failure_result(error)
        except Exception as error:  # the boundary: a caller gets a code, the log gets the place
            return self._record_failure(attempt, _error_for_caller(attempt, error))

    async def _make_call(self, attempt: Attempt) -> Result:
        must_ask = self._decide(attempt)
        self._check_arguments(attempt)
        prepared = self._prepared_of(attempt)
        if prepared.auth.by_people:
            question = await self._ask_to_sign_in(attempt, prepared.auth)
            if question is not None:
                return question
        approval, answer = await self._obtain_approval(attempt) if must_ask else (None, None)
        if answer is not None:
            return answer
        if attempt.background:
            return await self._make_in_background(attempt, approval)
        if attempt.tool.access != "read" or attempt.token is not None or approval is not None:
            return await self.running.run_to_end(attempt.id, self._make_write(attempt, approval))
        try:
            result = attempt.with_meta(await self._send(attempt, prepared))
        except asyncio.CancelledError:
            self._record_departure(attempt)
            raise
        self.record(attempt.execution(status_of_result(result), result))
        return result

    async def _make_in_background(self, attempt: Attempt, approval: Approval | None) -> Result:
        """Begins a call and answers at once; the outcome is read from its record."""
        if self.running.count(attempt.principal) >= CALLS_PER_PRINCIPAL:
            raise Overloaded(
                "busy",
                f"{CALLS_PER_PRINCIPAL} of your calls are running in the background.",
                "Wait until one has ended, or cancel one.",
            )
        first_answer = await self._claim(attempt, approval)
        if first_answer is not None:
            return first_answer
        self.running.start(self._complete(attempt), attempt.id, attempt.principal)
        return attempt.pending_result("executing", "The call runs in the background.")

    async def _make_write(self, attempt: Attempt, approval: Approval | None) -> Result:
        with self._recording_departure(attempt):
            first_answer = await self._claim(attempt, approval)
        return first_answer if first_answer is not None else await self._complete(attempt)

    async def _complete(self, attempt: Attempt) -> Result:
        """Sends a call that is on disk, and puts its end there too, whatever happens."""
        try:
            result = attempt.with_meta(await self._send(attempt, self._prepared_of(attempt)))
            result = with_token(result, attempt.token)
            execution = attempt.execution(status_of_result(result), result)
        except (asyncio.CancelledError, Exception) as error:
            return await self._record_failure_on_disk(attempt, error)
        await self._record_end(execution)
        return result

    # --- the steps --------------------------------------------------------------------------------

    def _decide(self, attempt: Attempt) -> bool:
        """Whether a person must be asked first; raises where the call may not be made at all."""
        principal = attempt.caller.principal
        decision = permit(attempt.snapshot, principal, attempt.tool, attempt.judged_tool)
        attempt.reason = decision.reason
        return decision.outcome == "confirm"

    def _check_arguments(self, attempt: Attempt) -> None:
        """Refuses arguments that do not fit; fills in defaults and the token."""
        lenient = attempt.state.settings.validation == "lenient"
        fitting = fitting_arguments(attempt.tool, attempt.arguments, lenient=lenient)
        attempt.arguments, attempt.warnings = fitting
        if attempt.token is None:
            give_token(attempt)

    async def _ask_to_sign_in(self, attempt: Attempt, auth: Proof) -> Result | None:
        """The question for the caller's client; None once the caller may call as themselves."""
        with self._recording_departure(attempt):
            return await self._sign_in(attempt, auth)

    async def _obtain_approval(self, attempt: Attempt) -> ApprovalOrAnswer:
        """The approval to use up; or the result that the caller gets in place of a new call."""
        if attempt.token is not None and attempt.token_given:
            first = await ledger.call_of_token(self._db, attempt.principal, attempt.token)
            if first is not None and not _is_same_call(attempt, first):
                raise _conflict(attempt)
            if first is not None and not _has_open_question(first):
                return None, await self._answer_again(attempt, first)
        return await self._approvals.obtain(attempt, self._target(attempt))

    async def _claim(self, attempt: Attempt, approval: Approval | None) -> Result | None:
        """Puts the call on disk; gives the first call's answer where its token was used before."""
        execution = attempt.execution("executing")
        if approval is None:
            claim = await ledger.begin_execution(self._db, execution)
        else:
            claim = await use_approval(self._db, approval, execution, time.time())
        if claim.is_new:
            return None
        if approval is not None:
            await self._approvals.void(approval)  # the call was made already, under its token
        if claim.execution is None or not _is_same_call(attempt, claim.execution):
            raise _conflict(attempt)
        return await self._answer_again(attempt, claim.execution)

    def record(self, execution: Execution) -> None:
        """Puts the record of a call that is over on disk soon, and tells the listeners."""
        ledger.record_finished(self._db, execution)
        self._tell_listeners(execution)

    # --- what the steps need ----------------------------------------------------------------------

    def _prepared_of(self, attempt: Attempt) -> PreparedConnection:
        return self._prepared.of(attempt.snapshot, attempt.tool.connection)

    def _target(self, attempt: Attempt) -> Target:
        """Method and address of the request that would be made; raises where none could be."""
        operation, settings = attempt.tool.http, attempt.state.settings
        if operation is None:
            url = settings.url if isinstance(settings, McpConnection) else None
            place = urlsplit(url).hostname if url else attempt.state.name  # a path may hold a key
            return "tools/call", f"{place} {attempt.tool.operation or attempt.tool.name}"
        prepared = self._prepared_of(attempt)
        arguments = {**attempt.arguments, **prepared.settings.inject}
        request = build_request(operation, arguments, prepared.blocklist)
        return request.method, attempt.redactor.clear_text(request.url)[:PREVIEW_CHARS]

    async def _answer_again(self, attempt: Attempt, first: Execution) -> Result:
        """The result of the first call with this token, once that call has ended."""
        attempt.id = id = first.id
        if attempt.unattended and first.status == "pending_confirmation":
            return attempt.pending_result(first.status, "The call is already on its way.")
        with self._signals.event_for(ledger.FINISHED, id) as signal:  # from any process
            while (first := await ledger.get_execution(self._db, id) or first).status in GOING_ON:
                await wait_until_set(signal, MOMENT_SECONDS)
        answer = (first.result or {}).get("answer")
        if answer is not None:
            return {**answer, "_meta": {**answer.get("_meta", {}), "gateway/replayed": True}}
        return attempt.failure_result(_first_error(attempt, first))

    @contextmanager
    def _recording_departure(self, attempt: Attempt) -> Iterator[None]:
        """Records the call as over where its caller leaves meanwhile."""
        id = attempt.id
        try:
            yield
        except asyncio.CancelledError:
            if attempt.id == id:  # else it waited for the first call with its token
                self._record_departure(attempt)
            raise

    def _record_departure(self, attempt: Attempt) -> None:
        """Records a call that was not sent, or only reads, and whose caller left."""
        error = Broken("cancelled", "the caller left")
        self.record(attempt.execution("failed", None, error))

    def _record_failure(self, attempt: Attempt, error: GatewayError) -> Result:
        """Records that a call without a row failed, in whichever way."""
        result = attempt.failure_result(error)
        self.record(attempt.execution(status_of_error(error), result, error))
        return result

    async def _record_failure_on_disk(self, attempt: Attempt, cause: BaseException) -> Result:
        """Records that a call with a row got no answer: as failed, or as unknown if it was sent."""
        task = asyncio.current_task()
        if task is not None and isinstance(cause, asyncio.CancelledError):
            task.uncancel()  # the task is the call's own: it goes on to record how the call ended
        error, sent = _error_for_caller(attempt, cause), _was_sent(attempt, cause)
        in_doubt = attempt.token is not None or error.code == "cancelled"
        if sent and not is_upstream_refusal(error) and attempt.tool.access != "read":
            error = attempt.unknown_error(error.code) if in_doubt else _unsure_error(error)
        result = attempt.failure_result(error)
        await self._record_end(attempt.execution(status_of_error(error), result, error), sent=sent)
        return result

    async def _record_end(self, execution: Execution, *, sent: bool = True) -> None:
        await ledger.finish_execution(self._db, execution, sent=sent)
        self._tell_listeners(execution)

    def _tell_listeners(self, execution: Execution) -> None:
        if execution.idempotency_token is not None:
            self._signals.hear(ledger.FINISHED, execution.id)
        for listener in self._listeners:
            listener(execution)

    # --- calls that were approved after their callers had left ------------------------------------

    async def make_approved(self) -> None:
        """Makes approved calls that nobody waits for, REST's and background ones, for ever.

        Every process looks, woken by the store or every few seconds. Using an approval up is a
        compare-and-set, so that one process makes the call and the others find nothing to do.
        """
        wake_up = asyncio.Event()
        self._signals.on(CONFIRMATION, lambda _: wake_up.set())
        while not self._approvals.draining:  # then other processes make them
            await wait_until_set(wake_up, MOMENT_SECONDS)
            room = CALLS_PER_PRINCIPAL - self.running.count(APPROVED)
            approvals: list[Approval] = []
            with suppress(GatewayError):  # the store failed: the next round will do
                approvals = await list_approved(self._db, UNATTENDED, time.time(), room)
            for approval in approvals:
                try:
                    await self._resume(approval)
                except Exception as error:  # one call's trouble must not stop the others
                    failure = describe_failure(error)
                    log.warning("approved call not made", approval=approval.id, **failure)

    async def _resume(self, approval: Approval) -> None:
        """Starts a call that was approved after its caller had left."""
        ticket = await self._approvals.open_ticket(approval)
        made_with = await self._approvals.judge(ticket.principal, ticket.reference, approval)
        caller = Caller(ticket.principal, session=approval.session, client=approval.client)
        attempt = self._build_attempt(*made_with, ticket.arguments, caller)
        attempt.id, attempt.created_at = approval.execution_id, approval.created_at
        attempt.token, attempt.reference = ticket.token, ticket.reference
        attempt.background = attempt.unattended = True
        self._decide(attempt)
        self._check_arguments(attempt)
        self.running.start(self._make_write(attempt, approval), attempt.id, APPROVED)


def _error_for_caller(attempt: Attempt, cause: BaseException) -> GatewayError:
    """The error that the caller gets for this cause."""
    if isinstance(cause, GatewayError):
        return cause
    if isinstance(cause, asyncio.CancelledError):
        return Broken("cancelled", "the call was cancelled")
    name, failure = attempt.tool.name, describe_failure(cause)
    log.error("call failed", tool=name, execution=attempt.id, **failure)
    return Broken("internal", "the gateway failed on this call")


def describe_failure(error: BaseException) -> dict[str, str]:
    """What the log says of an unexpected error: its kind and place, not its words or values."""
    frames = traceback.format_tb(error.__traceback__)[-4:]
    return {"error": type(error).__name__, "trace": "".join(frames)}


def _unsure_error(error: GatewayError) -> GatewayError:
    """The error of a write that went out and has no token to ask about its outcome with."""
    hint = "It may have been carried out: look at the other side before you try again."
    return UpstreamFailed(error.code, error.message, hint, **error.details, outcome="unknown")


def _was_sent(attempt: Attempt, error: BaseException) -> bool:
    """Whether the other side may have seen the request before this went wrong."""
    if isinstance(error, UpstreamFailed):
        return error.sent
    if attempt.upstream_status is not None:
        return True
    return not isinstance(error, GatewayError)  # our own errors come before sending


# --- tokens ---------------------------------------------------------------------------------------

_VISIBLE = re.compile(r"[\x21-\x7e]{1,200}")


def give_token(attempt: Attempt) -> None:
    """Gives the attempt its token: the caller's own, or a fresh one where the tool needs one."""
    token = attempt.caller.meta.get(TOKEN_META)
    is_needed = _needs_token(attempt.tool)
    if token is None:
        attempt.token = str(uuid.uuid4()) if is_needed else None
        return
    if not isinstance(token, str) or not _VISIBLE.fullmatch(token):
        raise Fixable(
            "invalid_arguments",
            f"{TOKEN_META} must be 1 to 200 visible ASCII characters",
            "A UUID is a good token.",
        )
    if is_needed or attempt.tool.access != "read":
        attempt.token, attempt.token_given = token, True


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


def _is_same_call(attempt: Attempt, first: Execution) -> bool:
    """Whether a token stands for this very call, under a name that its tool has or had."""
    return first.tool in attempt.names and first.args_digest == attempt.args_digest


def _has_open_question(first: Execution) -> bool:
    """Whether the first call still waits for a person, and the same call again may join it."""
    return first.status == "pending_confirmation" and first.era != UNATTENDED


def _first_error(attempt: Attempt, first: Execution) -> GatewayError:
    """Why the first call with this token has no answer."""
    if first.status == "unknown":
        return attempt.unknown_error()
    kind = Broken if first.status == "failed" else NotApproved
    return kind(
        first.error_code or "internal",
        f"The first call with this token was not sent: it ended as {first.status}.",
        "It may be tried again with the same token.",
    )
