"""One call, start to end, in one straight line.

decide → check the arguments → have its person sign in, where calls go out as them → ask a person,
where one must be asked → claim the token and put a write on disk → send → shape → record. Whatever
door a call came through, it comes through here, and it always ends in exactly one execution record.
A write that was begun is finished and recorded even if its caller has gone; a read ends with its
caller.

A token has one upstream effect however often a call is made with it. The store's claim decides who
is first, over all replicas, in the transaction that puts the call on disk. Everyone else with the
same principal, token and arguments waits for that call and gets its answer, an upstream's error
included. What is known never to have left frees its token; what may have left keeps it for ever.
"""

from __future__ import annotations

import asyncio
import re
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import structlog

from gateway.calls.admission import Running
from gateway.calls.approvals import Approvals, Target
from gateway.calls.arguments import fitting_arguments
from gateway.calls.credentials import Prepared, PreparedConnections, Proof
from gateway.calls.questions import HeldCalls
from gateway.calls.record import (
    BACKGROUND_META,
    REFUSED_UPSTREAM,
    TOKEN_META,
    UNATTENDED,
    Attempt,
    Caller,
    Door,
    status_in,
    status_of,
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
from gateway.store.approvals import approved_of_era, first_with_token, use_approval
from gateway.store.cluster import heard_within
from gateway.store.ledger import (
    FINISHED,
    begin,
    finish,
    finish_soon,
    get_execution,
    record_finished,
)
from gateway.store.tables import CONFIRMATION, Approval, Execution

log = structlog.get_logger("gateway.call")

APPROVED = object()  # whose calls are that were approved after their callers had left
Arguments = Mapping[str, Any]
Send = Callable[[Attempt, Prepared], Awaitable[Result]]
# None once the caller may call as themselves; else what their client is asked.
SignIn = Callable[[Attempt, Proof], Awaitable[Result | None]]


class Invoker:
    """Carries calls out."""

    def __init__(
        self,
        prepared: PreparedConnections,
        send: Send,
        approvals: Approvals,
        sign_in: SignIn,
    ) -> None:
        self._db, self._signals = approvals.db, approvals.signals
        self._sign_in = sign_in
        self._prepared = prepared
        self._send = send
        self._approvals = approvals
        self._listeners: list[Callable[[Execution], None]] = []
        self.running = Running()
        self.held = HeldCalls(
            approvals.db, approvals.seal, approvals.signals, self.running.start, approvals.replica
        )

    def redactor(self, snapshot: Snapshot, connection: str) -> Redactor:
        """What keeps a connection's secrets out of words that are shown."""
        return self._prepared.of(snapshot, connection).redactor

    def on_finished(self, listener: Callable[[Execution], None]) -> None:
        """Calls back with the record of each call that ended here."""
        self._listeners.append(listener)

    def call(
        self,
        snapshot: Snapshot,
        tool: Tool,
        arguments: Arguments,
        caller: Caller,
        door: Door,
        bundle_ids: tuple[str, ...] = (),
        *,
        judged: Tool | None = None,
        unattended: bool = False,
    ) -> Coroutine[Any, Any, Result]:
        """The result of the call. Failures are results too.

        `judged` is what permissions are asked about, where it is not the tool itself. `unattended`:
        nobody waits while a person decides.
        """
        attempt = self._attempt(snapshot, tool, judged or tool, arguments, caller, door)
        attempt.bundle_ids = bundle_ids
        attempt.background = caller.meta.get(BACKGROUND_META) is True
        attempt.unattended = unattended or attempt.background
        if caller.request_state is None and not attempt.may_be_held:
            return self._outcome(attempt)
        return self.held.hear(attempt, self._outcome)

    def _attempt(
        self, on: Snapshot, tool: Tool, judged: Tool, said: Arguments, caller: Caller, door: Door
    ) -> Attempt:
        redactor, replica = self.redactor(on, tool.connection), self._approvals.replica
        return Attempt(on, tool, judged, said, caller, door, redactor, replica)

    async def _outcome(self, attempt: Attempt) -> Result:
        try:
            return await self._make(attempt)
        except NotApproved as error:  # its row says so already
            return attempt.failure_result(error)
        except Exception as error:  # the boundary: a caller gets a code, the log gets the place
            return self._refuse(attempt, _error_told(attempt, error))

    async def _make(self, attempt: Attempt) -> Result:
        must_ask = self._decide(attempt)
        self._check(attempt)
        prepared = self._prepared_for(attempt)
        if prepared.auth.by_people and (question := await self._sign_in(attempt, prepared.auth)):
            return question
        approval = await self._ask(attempt) if must_ask else None
        if isinstance(approval, dict):
            return approval
        if attempt.background:
            return await self._make_in_background(attempt, approval)
        if attempt.tool.access != "read" or attempt.token is not None or approval is not None:
            return await self.running.finish(attempt.id, self._make_write(attempt, approval))
        try:
            result = attempt.with_meta(await self._send(attempt, prepared))
        except asyncio.CancelledError:
            self._record_left(attempt)
            raise
        self.record(attempt.execution(status_in(result), result))
        return result

    async def _make_in_background(self, attempt: Attempt, approval: Approval | None) -> Result:
        """Begins a call and answers at once; the outcome is read from its record."""
        if self.running.count(attempt.principal) >= CALLS_PER_PRINCIPAL:
            raise Overloaded(
                "busy",
                f"{CALLS_PER_PRINCIPAL} of your calls are running in the background.",
                "Wait until one has ended, or cancel one.",
            )
        first = await self._claim(attempt, approval)
        if first is not None:
            return first
        self.running.start(self._complete(attempt), attempt.id, attempt.principal)
        return attempt.pending_result("executing", "The call runs in the background.")

    async def _make_write(self, attempt: Attempt, approval: Approval | None) -> Result:
        try:
            first = await self._claim(attempt, approval)
        except asyncio.CancelledError:
            self._record_left(attempt)
            raise
        return first if first is not None else await self._complete(attempt)

    async def _complete(self, attempt: Attempt) -> Result:
        """Sends a call that is on disk, and puts its end there too, whatever happens."""
        try:
            result = attempt.with_meta(await self._send(attempt, self._prepared_for(attempt)))
        except (asyncio.CancelledError, Exception) as error:
            return await self._fail(attempt, error)
        result = with_token(result, attempt.token)
        await self._record_end(attempt.execution(status_in(result), result))
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
        """The approval to use up, or the answer where the call goes on, or went, without it."""
        if attempt.token is not None and attempt.token_given:
            first = await first_with_token(self._db, attempt.principal, attempt.token)
            if first is not None and not _is_same_call(attempt, first):
                raise _conflict(attempt)
            if first is not None and not _is_shared(first):
                return await self._answer_again(attempt, first)
        return await self._approvals.obtain(attempt, self._target(attempt))

    async def _claim(self, attempt: Attempt, approval: Approval | None) -> Result | None:
        """Puts the call on disk; gives the first answer where its token had one already."""
        execution = attempt.execution("executing")
        if approval is None:
            begun = await begin(self._db, execution)
        else:
            begun = await use_approval(self._db, approval, execution, time.time())
        if begun.outcome == "new":
            return None
        if approval is not None:
            await self._approvals.void(approval)  # its call was made already, under its token
        if begun.execution is None or not _is_same_call(attempt, begun.execution):
            raise _conflict(attempt)
        return await self._answer_again(attempt, begun.execution)

    def record(self, execution: Execution) -> None:
        """Puts the record of a call that is over on disk soon, and tells of it."""
        record_finished(self._db, execution)
        self._tell(execution)

    # --- what the steps need ----------------------------------------------------------------------

    def _prepared_for(self, attempt: Attempt) -> Prepared:
        return self._prepared.of(attempt.snapshot, attempt.tool.connection)

    def _target(self, attempt: Attempt) -> Target:
        """Method and address of the request that would be made; raises where none could be."""
        operation, settings = attempt.tool.http, attempt.state.settings
        if operation is None:
            url = settings.url if isinstance(settings, McpConnection) else None
            place = url.partition("?")[0] if url else attempt.state.name
            return "tools/call", f"{place} {attempt.tool.operation or attempt.tool.name}"
        prepared = self._prepared_for(attempt)
        arguments = {**attempt.arguments, **prepared.inject}
        request = build_request(operation, arguments, prepared.blocklist)
        return request.method, attempt.redactor.text(request.url)[:PREVIEW_CHARS]

    async def _answer_again(self, attempt: Attempt, first: Execution) -> Result:
        """What the caller of the first call with this token got, or would have got."""
        attempt.id = first.id
        if attempt.unattended and first.status == "pending_confirmation":
            return attempt.pending_result(first.status, "The call is already on its way.")
        with self._signals.awaiting(FINISHED, first.id) as heard:  # its process may be another one
            while (first := await get_execution(self._db, first.id) or first).status in _GOING_ON:
                await heard_within(heard, MOMENT_SECONDS)
        answer = (first.result or {}).get("answer")
        if answer is not None:
            return {**answer, "_meta": {**answer.get("_meta", {}), "gateway/replayed": True}}
        return attempt.failure_result(_first_error(attempt, first))

    def _record_left(self, attempt: Attempt) -> None:
        """Records a call whose caller left before it was sent, or that only reads."""
        error = Broken("cancelled", "the caller left")
        self.record(attempt.execution("failed", None, error))

    def _refuse(self, attempt: Attempt, error: GatewayError) -> Result:
        result = attempt.failure_result(error)
        self.record(attempt.execution(status_of(error), result, error))
        return result

    async def _fail(self, attempt: Attempt, cause: BaseException) -> Result:
        """Records a call that did not get an answer: as failed, or as unknown if it was sent."""
        task = asyncio.current_task()
        if task is not None and isinstance(cause, asyncio.CancelledError):
            task.uncancel()  # it is the call's own: what it has to tell is how the call ended
        error, sent = _error_told(attempt, cause), _was_sent(attempt, cause)
        in_doubt = attempt.token is not None or error.code == "cancelled"
        is_final = error.code in REFUSED_UPSTREAM or attempt.tool.access == "read"
        if sent and not is_final:
            error = attempt.unknown(error.code) if in_doubt else _unsure(error)
        result = attempt.failure_result(error)
        await self._record_end(attempt.execution(status_of(error), result, error), sent=sent)
        return result

    async def _record_end(self, execution: Execution, *, sent: bool = True) -> None:
        try:
            await finish(self._db, execution, sent=sent)
        except GatewayError:
            # It has happened, and the caller is told so; the record follows when the store is back.
            finish_soon(self._db, execution, sent=sent)
        self._tell(execution)

    def _tell(self, execution: Execution) -> None:
        if execution.idempotency_token is not None:
            self._signals.hear(FINISHED, execution.id)
        for listener in self._listeners:
            listener(execution)

    # --- calls that were approved after their callers had left ------------------------------------

    async def make_approved(self) -> None:
        """Makes approved calls that nobody waits for, REST's and background ones, for ever.

        Every process looks, woken by the store or every few seconds. Using an approval up is a
        compare-and-set, so that one of them makes the call and the others find nothing to do.
        """
        woken = asyncio.Event()
        self._signals.on(CONFIRMATION, lambda _: woken.set())
        while not self._approvals.draining:  # then they are left to other processes
            await heard_within(woken, MOMENT_SECONDS)
            room = CALLS_PER_PRINCIPAL - self.running.count(APPROVED)
            approved: list[Approval] = []
            with suppress(GatewayError):  # the store fails: the next time will do
                approved = await approved_of_era(self._db, UNATTENDED, time.time(), room)
            for approval in approved:
                try:
                    await self._resume(approval)
                except Exception as error:  # one call's trouble must not stop the others
                    failure = describe_failure(error)
                    log.warning("approved call not made", approval=approval.id, **failure)

    async def _resume(self, approval: Approval) -> None:
        """Starts a call that was approved after its caller had left."""
        ticket = await self._approvals.open_ticket(approval)
        principal, door = ticket.principal, ticket.door
        found = await self._approvals.judge(principal, door, approval)
        caller = Caller(principal, session=approval.session, client=approval.client)
        attempt = self._attempt(*found, ticket.arguments, caller, door)
        attempt.id, attempt.at = approval.execution_id, approval.created_at
        attempt.token, attempt.background, attempt.unattended = ticket.token, True, True
        self._decide(attempt)
        self._check(attempt)
        self.running.start(self._make_write(attempt, approval), attempt.id, APPROVED)


def _error_told(attempt: Attempt, cause: BaseException) -> GatewayError:
    """The error that the caller is told."""
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


def _unsure(error: GatewayError) -> GatewayError:
    """The error of a write that went out and has no token to ask by."""
    hint = "It may have been carried out: look at the other side before you try again."
    return UpstreamFailed(error.code, error.message, hint, **error.details, outcome="unknown")


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


def _is_same_call(attempt: Attempt, first: Execution) -> bool:
    """Whether a token stands for this very call, under a name that its tool has or had."""
    return first.tool in attempt.names and first.args_digest == attempt.args_digest


def _is_shared(first: Execution) -> bool:
    """Whether the same call made again goes on with the question that the first one asked."""
    return first.status == "pending_confirmation" and first.era != UNATTENDED


def _first_error(attempt: Attempt, first: Execution) -> GatewayError:
    """Why the first call with this token has no answer."""
    if first.status == "unknown":
        return attempt.unknown()
    kind = Broken if first.status == "failed" else NotApproved
    return kind(
        first.error_code or "internal",
        f"The first call with this token was not sent: it ended as {first.status}.",
        "It may be tried again with the same token.",
    )
