"""Asking a person, and using what they said exactly once.

Every question is a row in the store: bound to who asked, to the tool as it was and to exact
arguments. How it is put to a person differs. A client of 2025 is asked on its own stream, one of
2026 is answered with the question and calls again with sealed state; for others the call waits, and
any admin may decide in the meantime, on any replica. Whatever way the answer came, it is one
compare-and-set on that row, and after it the call is judged again on what holds now.

A caller that is cut off leaves its row behind. The same call made again takes it over, decided or
not, so that nobody is asked twice and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from gateway.calls.held import open_state, seal_state, seal_ticket
from gateway.calls.questions import (
    ELICIT,
    QUESTION,
    Decision,
    approval_question,
    decision_of,
    input_required,
    may_always,
    name_of_client,
    warnings,
)
from gateway.calls.record import (
    UNATTENDED,
    Attempt,
    Caller,
    NotApproved,
    Unanswered,
    arguments_digest,
    execution_of,
    failed_result,
    meta_of,
    pending_result,
    shown_arguments,
)
from gateway.catalog.snapshot import Snapshot
from gateway.config.settings import Permissions
from gateway.errors import GatewayError, Overloaded, Refused, UnknownTool
from gateway.limits import (
    CALLS_PER_PRINCIPAL,
    MAX_QUOTE_CHARS,
    MOMENT_SECONDS,
    SESSION_SECONDS,
)
from gateway.model import Principal, Tool, new_id
from gateway.policy.access import permit, principal_now
from gateway.policy.view import elicitation_modes
from gateway.store import approvals as store
from gateway.store.approvals import (
    APPROVAL_CHANGED,
    Approval,
    OpenApproval,
    StandingGrant,
)
from gateway.store.cluster import Signals, heard_within, living
from gateway.store.database import Database
from gateway.store.ledger import FINISHED, Execution, get_execution
from gateway.store.secrets import Seal

log = structlog.get_logger("gateway.approvals")

Target = tuple[str, str]  # method and address of the request that would be made
PURPOSE = "approval-state/2"  # of the state that a client of 2026 hands back


class Approvals:
    """Obtains decisions for calls, and takes them from those who decide."""

    def __init__(
        self,
        db: Database,
        seal: Seal,
        signals: Signals,
        current: Callable[[], Snapshot],
        *,
        replica: str,
        told: Callable[[Approval], None] = lambda approval: None,
        ended: Callable[[Execution], None] = lambda execution: None,
    ) -> None:
        self._db = db
        self._seal = seal
        self._signals = signals
        self._current = current
        self._replica = replica
        self._told = told
        self._ended = ended
        # By execution: the approval it waits for, and whether its caller has gone.
        self._waiting: dict[str, tuple[str, Callable[[], bool]]] = {}
        self._draining = False

    async def obtain(self, attempt: Attempt, target: Target) -> Approval | None:
        """What the call may go on with: an approval to be used up, or None where none is needed.

        Raises NotApproved, or Unanswered where the caller can't be kept waiting.
        """
        if grant := await self._grant(attempt):
            attempt.reason = f"always allowed by {grant.granted_by} (standing grant {grant.id})"
            return None
        approval = await self._answered(attempt) or await self._open(attempt, target)
        attempt.id, attempt.at, attempt.on_disk = approval.execution_id, approval.created_at, True
        if approval.status == "pending":
            self._refuse_to_wait(attempt, approval)
            approval = await self._wait(attempt, approval)
        if approval.status == "denied":
            raise NotApproved(
                "approval_denied",
                f"A person did not approve {attempt.tool.name}.",
                "Don't try it again unless the user asks for it.",
            )
        if approval.status != "approved":
            raise too_late(approval)
        await self.recheck(attempt, approval)
        return approval

    async def has_waiter(self, execution_id: str, era: str, replica: str) -> bool:
        """Whether someone still waits for the decision on this call."""
        if era == UNATTENDED:
            return True
        if replica == self._replica:
            _, gone = self._waiting.get(execution_id, ("", lambda: True))
            return not gone()
        return bool(replica) and replica in await living(self._db)

    async def decide(self, approval: Approval, decision: Decision, by: Principal) -> Approval:
        """A person's decision, from wherever they sit; the first one stays."""
        snapshot = self._current()
        if approval.principal == by.name and snapshot.settings.auth.mode != "none":
            raise Refused(
                "access_denied",
                "nobody decides on a call of their own",
                "Another admin must approve or deny it.",
            )
        if decision == "always_allow" and not may_always(snapshot, approval.risk):
            raise Refused(
                "access_denied",
                "a high-risk tool can't be allowed for good",
                "Approve this one call, or set permissions.always_allow_high_risk.",
            )
        decided = await self._decide(approval, decision, by.name)
        if decided is None:
            raise too_late(await store.get_approval(self._db, approval.id))
        return decided

    async def recheck(self, attempt: Attempt, approval: Approval) -> None:
        """Judges the call on what holds now; an approval for something else is void."""
        try:
            attempt.tool = judge_again(snapshot := self._current(), attempt, approval)
            attempt.snapshot = snapshot
        except Refused as refused:
            await self.void(approval)
            error = NotApproved(
                "approval_expired",
                f"The approval is void: {refused.message}.",
                "Look at the tool again, then call again.",
            )
            error.void = True
            raise error from refused

    async def void(self, approval: Approval) -> None:
        """Withdraws an approval that was given for something else than there is now."""
        await self._end(await store.void_approvals(self._db, [approval.id], time.time()))

    async def withdraw(self, execution_id: str, by: str) -> bool:
        """Ends a call that still waits for a decision; False: it does not wait any more."""
        approval = await store.approval_of(self._db, execution_id)
        return approval is not None and await self._decide(approval, "deny", by) is not None

    async def expire(self) -> None:
        """Ends what nobody decided in time, or used in time."""
        await self._end(await store.expire_approvals(self._db, time.time()))

    def drain(self) -> None:
        """Sends those who wait away; their questions stay, for when they call again."""
        self._draining = True
        for approval_id, _ in self._waiting.values():
            self._signals.hear(APPROVAL_CHANGED, approval_id)

    async def _grant(self, attempt: Attempt) -> StandingGrant | None:
        caller, tool = attempt.caller, attempt.tool
        if not may_always(attempt.snapshot, tool.risk):
            return None
        return await store.find_grant(
            self._db,
            principal=attempt.principal,
            tool=tool.name,
            fingerprint=tool.fingerprint,
            session=caller.session or "",
            client=name_of_client(caller.client),
            now=time.time(),
        )

    async def _answered(self, attempt: Attempt) -> Approval | None:
        """The approval a client of 2026 answers, with its answer taken; None: it answers none."""
        caller = attempt.caller
        state = open_state(self._seal, PURPOSE, caller.request_state)
        if state is None or not takes_forms(caller):
            return None
        approval = await store.get_approval(self._db, state[0])
        if approval is None or not _is_for(approval, attempt) or time.time() >= approval.expires_at:
            raise Refused(
                "approval_expired",
                "The answer came too late, or belongs to another call.",
                "Call again without it to be asked anew.",
            )
        answer = (caller.input_responses or {}).get(QUESTION)
        if approval.status != "pending" or answer is None:
            return approval
        await self._take_answer(attempt, approval, answer)
        return await store.get_approval(self._db, approval.id)

    async def _take_answer(self, attempt: Attempt, approval: Approval, answer: object) -> None:
        """The decision of the client that made the call, in whichever era it was asked."""
        decision = decision_of(answer, may_always(attempt.snapshot, approval.risk))
        # The session that answers may be another one than that which first asked.
        mine = replace(approval, session=attempt.caller.session)
        await self._decide(mine, decision, attempt.principal)

    async def _open(self, attempt: Attempt, target: Target) -> Approval:
        """The approval this call left behind when it was cut off, else a new question."""
        if not attempt.unattended:
            for found in await store.open_approvals(
                self._db,
                principal=attempt.principal,
                tool=attempt.tool.name,
                fingerprint=attempt.tool.fingerprint,
                args_digest=arguments_digest(attempt.arguments),
                now=time.time(),
            ):
                if await self._took_over(found):
                    return found.approval
        return await self._ask(attempt, target)

    async def _took_over(self, found: OpenApproval) -> bool:
        approval, replica = found.approval, found.replica
        if await self.has_waiter(approval.execution_id, found.era, replica):
            # Who waits uses an approval at once: one that lies there is nobody's any more.
            decided = approval.decided_at or time.time()
            return found.era != UNATTENDED and time.time() - decided > MOMENT_SECONDS
        if approval.status == "approved":
            return True  # of several who want to use it, one will
        return await store.take_over(self._db, approval.execution_id, replica, self._replica)

    async def _ask(self, attempt: Attempt, target: Target) -> Approval:
        now, tool, principal = time.time(), attempt.tool, attempt.principal
        mine, _ = await store.count_pending(self._db, principal, now)
        if mine >= CALLS_PER_PRINCIPAL:
            raise Overloaded(
                "busy",
                f"{mine} calls already wait for a decision.",
                "Try again when some have been decided.",
            )
        session = attempt.caller.session
        wrote = await store.wrote_before(self._db, principal, tool.connection, session)
        changed = await store.changed_since_used(self._db, principal, tool.name, tool.connection)
        shown = tuple(warnings(attempt, first_write=not wrote, changed=changed))
        approval = self._new_approval(attempt, target, now, shown)
        execution = execution_of(attempt, "pending_confirmation")
        await store.create_approval(self._db, approval, execution)
        self._told(approval)
        return approval

    def _new_approval(
        self, attempt: Attempt, target: Target, now: float, warnings: tuple[str, ...]
    ) -> Approval:
        """The question about this call, bound to who asks, the tool as it is and the arguments."""
        caller, tool = attempt.caller, attempt.tool
        method, url = target
        return Approval(
            id=new_id(now),
            execution_id=attempt.id,
            principal=attempt.principal,
            tool=tool.name,
            connection=tool.connection,
            fingerprint=tool.fingerprint,
            args_digest=arguments_digest(attempt.arguments),
            arguments=shown_arguments(attempt),
            sealed_arguments=seal_ticket(self._seal, attempt),
            risk=tool.risk,
            created_at=now,
            expires_at=now + attempt.snapshot.permissions.timeout_seconds,
            session=caller.session,
            client=caller.client,
            method=method,
            url=url,
            warnings=warnings,
        )

    def _refuse_to_wait(self, attempt: Attempt, approval: Approval) -> None:
        """Answers callers at once who don't wait: they read later, or call again."""
        if attempt.unattended:
            text = "The call waits for a person's decision and runs by itself once approved."
            raise Unanswered(pending_result(attempt, "pending_confirmation", text))
        if takes_forms(attempt.caller):
            state = seal_state(self._seal, PURPOSE, [approval.id])
            raise Unanswered(input_required(attempt, approval, state))

    async def _wait(self, attempt: Attempt, approval: Approval) -> Approval:
        """The approval when it is no longer pending."""
        gone = attempt.caller.gone or (lambda: False)
        self._waiting[attempt.id] = (approval.id, gone)
        asking = asyncio.create_task(self._elicit(attempt, approval), name=f"ask {approval.id}")
        try:
            with self._signals.awaiting(APPROVAL_CHANGED, approval.id) as heard:
                while True:
                    approval = await self._as_it_is(approval)
                    if approval.status != "pending":
                        break
                    self._stop_waiting_for_nobody(attempt, gone)
                    await self._say_progress(attempt, approval)
                    left = approval.expires_at - time.time()
                    if await heard_within(heard, min(left, MOMENT_SECONDS)):
                        continue
                    if time.time() >= approval.expires_at:
                        await self.expire()
                    else:
                        await self.recheck(attempt, approval)
            self._stop_waiting_for_nobody(attempt, gone)
            return approval
        finally:
            del self._waiting[attempt.id]
            asking.cancel()
            if approval.status in ("pending", "approved"):
                store.let_go(self._db, attempt.id, self._replica)

    async def _as_it_is(self, approval: Approval) -> Approval:
        """The approval now; while the store can't be asked, as it was: the wait outlasts that."""
        try:
            return await store.get_approval(self._db, approval.id) or approval
        except GatewayError:
            return approval

    def _stop_waiting_for_nobody(self, attempt: Attempt, gone: Callable[[], bool]) -> None:
        if gone() or self._draining:
            restarting = Overloaded(
                "busy",
                "The gateway is restarting; the call was not made.",
                "Call again: if it is approved meanwhile, nobody is asked a second time.",
            )
            result = failed_result(attempt, restarting)
            raise Unanswered({**result, "_meta": meta_of(attempt, "pending_confirmation")})

    async def _say_progress(self, attempt: Attempt, approval: Approval) -> None:
        if attempt.caller.progress is not None:
            waited = round(time.time() - approval.created_at, 1)
            total = round(approval.expires_at - approval.created_at, 1)
            text = f"Waiting for a person to approve {approval.tool}"
            await attempt.caller.progress(waited, total, text)

    async def _elicit(self, attempt: Attempt, approval: Approval) -> None:
        """Asks the caller itself, where its client can be asked on the call's own stream."""
        caller = attempt.caller
        if caller.ask is None or not has_forms(caller):
            return
        try:
            answer = await caller.ask(ELICIT, approval_question(attempt, approval))
            if caller.gone is not None and caller.gone():
                return  # cut off, which is no answer
            await self._take_answer(attempt, approval, answer)
        except GatewayError as error:  # the store; an admin can still decide
            log.warning("answer not taken", approval=approval.id, error=error.code)

    async def _decide(self, approval: Approval, decision: Decision, by: str) -> Approval | None:
        """One compare-and-set; None: it had been decided, or was too late."""
        now, permissions = time.time(), self._current().permissions
        decided = await store.decide_approval(
            self._db,
            approval.id,
            "denied" if decision == "deny" else "approved",
            by=by,
            now=now,
            usable_until=now + permissions.timeout_seconds,
            grant=grant_of(approval, by, now, permissions) if decision == "always_allow" else None,
        )
        if decided is None:
            return None
        log.info("approval decided", approval=approval.id, tool=approval.tool, by=by, as_=decision)
        if decided.status == "denied":
            await self._end([decided])
        else:
            self._tell(decided)
        return decided

    async def _end(self, approvals: Sequence[Approval]) -> None:
        """Tells of calls that ended without being made."""
        for approval in approvals:
            self._tell(approval)
            execution = await get_execution(self._db, approval.execution_id)
            if execution is not None and execution.finished_at is not None:
                self._signals.hear(FINISHED, execution.id)
                self._ended(execution)

    def _tell(self, approval: Approval) -> None:
        self._signals.hear(APPROVAL_CHANGED, approval.id)
        self._told(approval)


def has_forms(caller: Caller) -> bool:
    """Whether this client shows its user forms."""
    return "form" in elicitation_modes(caller.capabilities)


def takes_forms(caller: Caller) -> bool:
    """Whether this client can be asked by answering it with a question (2026-07-28)."""
    return caller.era == "2026" and has_forms(caller)


def _is_for(approval: Approval, attempt: Attempt) -> bool:
    """Whether an approval was asked for exactly this call."""
    bound_to = (approval.principal, approval.tool, approval.fingerprint, approval.args_digest)
    digest = arguments_digest(attempt.arguments)
    return bound_to == (attempt.principal, attempt.tool.name, attempt.tool.fingerprint, digest)


def judge_again(snapshot: Snapshot, attempt: Attempt, approval: Approval) -> Tool:
    """The tool that the call may be made of now; raises Refused.

    An approval is for one tool as it was, asked for by someone with the right to it.
    """
    principal = principal_now(snapshot.settings, attempt.caller.principal)
    if principal is None:
        raise Refused("access_denied", "the caller has no access any more")
    try:
        if attempt.door is not None:
            tool = attempt.door.find(snapshot, principal)
        else:
            tool = snapshot.tools[attempt.tool.name]
    except (UnknownTool, GatewayError, KeyError):
        raise Refused("access_denied", "the tool is no longer there for the caller") from None
    permit(snapshot, principal, tool, attempt.door.judged if attempt.door else None)
    if tool.fingerprint != approval.fingerprint:
        raise Refused("access_denied", "the tool has changed since")
    return tool


def too_late(approval: Approval | None) -> NotApproved:
    """Why an approval can't be decided or used any more."""
    words = {
        "approved": "it has been approved already",
        "denied": "it has been denied already",
        "used": "it has been used already",
        "void": "the tool or the caller's rights have changed since",
    }
    status = approval.status if approval else ""
    why = words.get(status, "nobody decided in time")
    error = NotApproved(
        "approval_expired", f"The approval can't be used: {why}.", "Call again to ask anew."
    )
    error.void = status == "void"
    return error


def grant_of(approval: Approval, by: str, now: float, permissions: Permissions) -> StandingGrant:
    """ "Always allow": for the rest of the session, or for a while where there is none."""
    lasts = SESSION_SECONDS if approval.session else permissions.always_allow_minutes * 60
    return StandingGrant(
        id=new_id(now),
        principal=approval.principal,
        tool=approval.tool,
        connection=approval.connection,
        fingerprint=approval.fingerprint,
        session=approval.session or "",
        client=name_of_client(approval.client),
        request=f"{approval.method} {approval.url.partition('?')[0]}"[:MAX_QUOTE_CHARS],
        granted_by=by,
        created_at=now,
        expires_at=now + lasts,
    )
