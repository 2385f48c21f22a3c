"""Asking a person about a call, and using the decision exactly once.

A call waits in one of two ways: for a person to allow it (here), or for its client to answer what
the upstream asks (`questions.py`). A call that waits for a person is a row of the store, bound to
its caller, to the tool as it was, to whose its connection is, where that leads and what it adds
unseen (`BINDING`), and to exact arguments. Every step is a compare-and-set on that row, so it does
not matter which process takes it:

    asked ──► pending ──► approved ──► used: the call is put on disk in the same transaction
                 ├──────► denied
                 ├──────► expired   nobody decided in time, or nobody used it in time
                 └──────► void      the tool or the caller's rights have changed

How the question reaches a person, and which process makes the call, depends on the caller:

    caller                how it is asked                 who makes the call once approved
    2025, takes forms     on the stream of its request    the process where the request waits
    2026, takes forms     the question is its answer      the caller: it calls again with the answer
    other MCP clients     not at all                      the process where the request waits
    REST, background      not at all                      any process, from the ticket in the row

An admin may decide in all four cases; with `self_approval = false` it must be another admin than
the caller, whose client is then not asked. A caller that is cut off leaves its row behind. The same
MCP call made again shares the open row, decided or not, so that nobody is asked twice; of several
calls that share a row, one uses it up, and nothing is done twice. Before a call is made it is
judged once more, by the rules that hold then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import structlog
from cryptography.fernet import InvalidToken
from msgspec import Struct

from gateway import limits
from gateway.calls import questions
from gateway.calls.questions import ApprovalChoice, may_always, question_of
from gateway.calls.record import UNATTENDED, Attempt, Caller, FindTool, name_of_client
from gateway.catalog.snapshot import Snapshot
from gateway.config.settings import Permissions
from gateway.errors import ApprovalVoid, Broken, GatewayError, NotApproved, Overloaded, Refused
from gateway.model import Principal, Result, Tool, elicitation_modes, new_id
from gateway.policy.access import permit_again
from gateway.store import approvals as store
from gateway.store.cluster import Signals, wait_until_set
from gateway.store.database import Database
from gateway.store.oauth import is_revoked
from gateway.store.secrets import Seal
from gateway.store.tables import CONFIRMATION, Approval, StandingGrant
from gateway.upstream.protocol import ELICIT

log = structlog.get_logger("gateway.approvals")

Target = tuple[str, str]  # method and address of the request that would be made
ApprovalOrAnswer = tuple[Approval | None, Result | None]  # to use up; in place of a new call
PURPOSE = "approval-state/2"  # of the state that a client of 2026 hands back
EXECUTION_FIELDS = (
    "principal tool connection organization arguments args_digest risk session client".split()
)
# Settings of a connection that say whose it is, where its calls go, and with what.
BINDING = set("args command cwd env headers inject on_behalf_of organization url wrap".split())
QUESTION = "approval"  # the key of our question in an InputRequiredResult


class Ticket(Struct, frozen=True):
    """All that a process needs to make a call whose caller has left; sealed in its row."""

    principal: Principal
    arguments: Mapping[str, Any]
    reference: Mapping[str, Any] = msgspec.field(name="door")  # as tickets in stores have it
    token: str | None


@dataclass(slots=True)
class Approvals:
    """Obtains decisions for calls, and takes them from the people who decide."""

    db: Database
    seal: Seal
    signals: Signals
    current: Callable[[], Snapshot]
    find_tool: FindTool
    replica: str
    draining: bool = False  # waiting callers are sent away; their questions stay for a next call

    # --- for callers ------------------------------------------------------------------------------

    async def obtain(self, attempt: Attempt, target: Target) -> ApprovalOrAnswer:
        """The approval that the call is to use up, None where it needs none; and a result where
        the call goes on without this request. Raises where no person allowed it.
        """
        if grant := await self._find_grant(attempt):
            attempt.reason = f"always allowed by {grant.granted_by} (standing grant {grant.id})"
            attempt.granted = {"id": grant.id, "by": grant.granted_by}
            return None, None
        approval = await self._find_answered_approval(attempt)
        approval = approval or await self._find_open_approval(attempt)
        approval = approval or await self._create_approval(attempt, target)
        attempt.id, attempt.created_at = approval.execution_id, approval.created_at
        if approval.status == "pending":
            if attempt.unattended:
                text = "The call waits for a person's decision and runs by itself once approved."
                return None, attempt.pending_result("pending_confirmation", text)
            if _may_leave(attempt):
                return None, self._question_as_answer(attempt, approval)
            approval = await self._wait(attempt, approval)
            if self._must_stop_waiting(attempt.caller):
                return None, _send_away(attempt)
        if approval.status == "denied":
            raise NotApproved(
                "approval_denied",
                f"A person did not approve {attempt.tool.name}.",
                "Don't try it again unless the user asks for it.",
            )
        if approval.status != "approved":
            raise too_late_error(approval)
        await self._judge_attempt(attempt, approval)
        return approval, None

    async def _find_grant(self, attempt: Attempt) -> StandingGrant | None:
        """The "always allow" that holds for this call: of its session, else of its client."""
        caller, tool = attempt.caller, attempt.tool
        if not may_always(attempt.snapshot, tool.risk):
            return None
        grant = await store.find_grant(
            self.db,
            time.time(),
            session=caller.session or "",
            client=name_of_client(caller.client),
            tools=attempt.names,
            principal=attempt.principal,
            fingerprint=self._fingerprint(attempt.snapshot, tool),
        )
        is_own = grant is not None and grant.granted_by == attempt.principal
        return None if is_own and not self.current().permissions.self_approval else grant

    async def _find_answered_approval(self, attempt: Attempt) -> Approval | None:
        """The approval that a client of 2026 answers, the answer taken; None: it answers none."""
        caller = attempt.caller
        state = self.seal.open_values(PURPOSE, caller.request_state)
        if state is None:
            return None
        approval = await store.get_approval(self.db, state[0])
        binding = self._binding_of(attempt).items()
        same_call = all(getattr(approval, name, None) == value for name, value in binding)
        same_tool = approval is not None and approval.tool in attempt.names
        if approval is None or not same_call or not same_tool or time.time() >= approval.expires_at:
            raise Refused(
                "approval_expired",
                "The answer came too late, or belongs to another call.",
                "Call again without it to be asked anew.",
            )
        answer = (caller.input_responses or {}).get(QUESTION)
        if approval.status != "pending" or answer is None:
            return approval
        await self._take_answer(attempt, approval, answer)
        return await store.get_approval(self.db, approval.id)

    async def _find_open_approval(self, attempt: Attempt) -> Approval | None:
        """The open approval of this very call, whose first caller was cut off or waits too."""
        if attempt.unattended:
            return None
        values = {"tools": attempt.names, **self._binding_of(attempt)}
        return await store.find_open(self.db, time.time(), UNATTENDED, **values)

    async def _create_approval(self, attempt: Attempt, target: Target) -> Approval:
        """Stores a new approval for this call, pending."""
        now, tool, principal = time.time(), attempt.tool, attempt.principal
        waiting = await store.count_waiting(self.db, now, (principal, ("", (), ())))
        if waiting >= limits.CALLS_PER_PRINCIPAL:
            raise Overloaded(
                "busy",
                f"{waiting} calls already wait for a decision.",
                "Try again when some have been decided.",
            )
        caller = attempt.caller
        has_written = await store.has_written(self.db, principal, tool.connection, caller.session)
        is_changed = await store.has_tool_changed(self.db, principal, tool.name, tool.connection)
        warnings = questions.approval_warnings(
            attempt, first_write=not has_written, changed=is_changed
        )
        execution = attempt.execution("pending_confirmation")
        ticket = Ticket(caller.principal, attempt.arguments, attempt.reference, attempt.token)
        approval = Approval(
            **{name: getattr(execution, name) for name in EXECUTION_FIELDS},
            id=new_id(now),
            execution_id=execution.id,
            fingerprint=self._fingerprint(attempt.snapshot, tool),
            sealed_arguments=self.seal.encrypt_json(msgspec.to_builtins(ticket)),
            created_at=now,
            expires_at=now + attempt.snapshot.permissions.timeout_seconds,
            method=target[0],
            url=target[1],
            warnings=tuple(warnings),
            waits_at=None if _may_leave(attempt) else self.replica,
        )
        await store.create_approval(self.db, approval, execution)
        return approval

    def _question_as_answer(self, attempt: Attempt, approval: Approval) -> Result:
        params = {"mode": "form", **question_of(attempt, approval)}
        input_requests = {QUESTION: {"method": ELICIT, "params": params}}
        state = self.seal.seal_values(PURPOSE, approval.id)
        return attempt.question_result("pending_confirmation", input_requests, state)

    async def _wait(self, attempt: Attempt, approval: Approval) -> Approval:
        """The approval once it is no longer pending, or as it is when the wait must stop."""
        asking = asyncio.create_task(self._elicit(attempt, approval), name=f"ask {approval.id}")
        try:
            with self.signals.event_for(CONFIRMATION, approval.id) as signal:
                while not self._must_stop_waiting(attempt.caller):
                    with suppress(GatewayError):  # the wait outlasts an outage of the store
                        approval = await store.get_approval(self.db, approval.id) or approval
                    if approval.status != "pending":
                        break
                    if approval.waits_at == "":  # another caller that shared it has gone
                        store.note_waiting(self.db, approval.id, self.replica)
                    await _say_progress(attempt, approval)
                    seconds_left = approval.expires_at - time.time()
                    if seconds_left <= 0:
                        await store.expire_approvals(self.db, time.time())
                    elif not await wait_until_set(signal, min(seconds_left, limits.MOMENT_SECONDS)):
                        with suppress(Broken):  # as above
                            await self._judge_attempt(attempt, approval)
            return approval
        finally:
            asking.cancel()
            if approval.status == "pending":
                store.note_waiting(self.db, approval.id, "")

    def _must_stop_waiting(self, caller: Caller) -> bool:
        return self.draining or caller.is_gone()

    async def _elicit(self, attempt: Attempt, approval: Approval) -> None:
        """Asks the caller itself, where its client can be asked on the call's own stream."""
        caller = attempt.caller
        if caller.ask is None or not _may_be_asked(attempt):
            return
        try:
            answer = await caller.ask(ELICIT, question_of(attempt, approval))
            if not caller.is_gone():  # a caller that was cut off has not answered
                await self._take_answer(attempt, approval, answer)
        except GatewayError as error:  # the store; an admin can still decide
            log.warning("answer not taken", approval=approval.id, error=error.code)

    async def _take_answer(self, attempt: Attempt, approval: Approval, answer: object) -> None:
        """The decision of the client that made the call, in whichever era it was asked."""
        if not self.current().permissions.self_approval:  # it may have changed since
            return
        decision = questions.decision_of(answer, may_always(attempt.snapshot, approval.risk))
        # The session that answers may not be the session that called first.
        approval = replace(approval, session=attempt.caller.session)
        await self._decide(approval, decision, attempt.principal, "client")

    def _binding_of(self, attempt: Attempt) -> dict[str, Any]:
        """What an approval is bound to beside the tool's name: the caller, the tool as it is, and
        exact arguments."""
        return {
            "principal": attempt.principal,
            "fingerprint": self._fingerprint(attempt.snapshot, attempt.tool),
            "args_digest": attempt.args_digest,
        }

    def _fingerprint(self, snapshot: Snapshot, tool: Tool) -> str:
        """The tool as a person allows it, with what its connection does to calls unseen."""
        settings = snapshot.connections[tool.connection].settings
        added = settings.model_dump(mode="json", include=BINDING, exclude_defaults=True)
        return self.seal.digest([tool.fingerprint, added]) if added else tool.fingerprint

    # --- for people who decide --------------------------------------------------------------------

    async def decide(
        self, approval: Approval, decision: ApprovalChoice, by: Principal, edge: str
    ) -> Approval:
        """Takes a person's decision, with the edge it came in by; the first decision stays."""
        snapshot = self.current()
        if approval.principal == by.name and not snapshot.permissions.self_approval:
            raise Refused(
                "access_denied",
                "nobody decides on a call of their own while permissions.self_approval = false",
                "Another admin must approve or deny it.",
            )
        if decision == "always_allow" and not may_always(snapshot, approval.risk):
            raise Refused(
                "access_denied",
                "a high-risk tool can't be allowed for good",
                "Approve this one call, or set permissions.always_allow_high_risk.",
            )
        row = await self._decide(approval, decision, by.name, edge)
        if row is None:
            raise too_late_error(await store.get_approval(self.db, approval.id))
        return row

    async def withdraw(self, execution_id: str, by: str, edge: str) -> None:
        """Ends a call that waits for a decision, or was approved and is not under way yet."""
        approval = await store.approval_of(self.db, execution_id)
        if approval and await self._decide(approval, "deny", by, edge) is None:
            await self.void(approval)

    async def void(self, approval: Approval) -> None:
        """Withdraws an approval, so that no call can use it any more."""
        await store.void_approval(self.db, approval.id, time.time())

    async def _decide(
        self, approval: Approval, decision: ApprovalChoice, by: str, edge: str
    ) -> Approval | None:
        """Decides by one compare-and-set; None: it had been decided before, or the time was up."""
        now, permissions = time.time(), self.current().permissions
        row = await store.decide_approval(
            self.db,
            approval.id,
            "denied" if decision == "deny" else "approved",
            by=by,
            edge=edge,
            now=now,
            usable_until=now + permissions.timeout_seconds,
            grant=grant_of(approval, by, now, permissions) if decision == "always_allow" else None,
        )
        if row is not None:
            log.info("approval decided", approval=row.id, by=by, as_=decision)
            self.signals.hear(CONFIRMATION, row.id)  # sooner than by the store
        return row

    # --- for processes that make approved calls ---------------------------------------------------

    async def judge(
        self, principal: Principal, reference: Mapping[str, Any], approval: Approval
    ) -> tuple[Snapshot, Tool, Tool]:
        """What the call is made with now: snapshot, tool, and the tool permissions are asked about.

        An approval that was given for another tool, or another set of rights, is void.
        """

        def is_unchanged(snapshot: Snapshot, tool: Tool) -> bool:
            return self._fingerprint(snapshot, tool) == approval.fingerprint

        try:
            if principal.grant and await is_revoked(self.db, principal.grant):
                raise Refused("access_denied", "the access of its client has ended")
            snapshot, find = self.current(), partial(self.find_tool, reference)
            return snapshot, *permit_again(snapshot, principal, find, is_unchanged)
        except Refused as refused:
            await self.void(approval)
            raise ApprovalVoid(
                "approval_expired",
                f"The approval is void: {refused.message}.",
                "Look at the tool again, then call again.",
            ) from refused

    async def _judge_attempt(self, attempt: Attempt, approval: Approval) -> None:
        found = await self.judge(attempt.caller.principal, attempt.reference, approval)
        attempt.snapshot, attempt.tool, attempt.judged_tool = found

    async def open_ticket(self, approval: Approval) -> Ticket:
        """The ticket of an approved call; an approval whose ticket can't be opened is void."""
        try:
            return msgspec.convert(self.seal.decrypt_json(approval.sealed_arguments), Ticket)
        except (InvalidToken, ValueError, msgspec.ValidationError) as error:
            await self.void(approval)
            raise ApprovalVoid("approval_expired", "The call can't be opened.") from error


def _may_be_asked(attempt: Attempt) -> bool:
    """Whether the client that makes a call can be asked about it, and its user may decide."""
    takes_forms = "form" in elicitation_modes(attempt.caller.capabilities)
    return takes_forms and attempt.snapshot.permissions.self_approval


def _may_leave(attempt: Attempt) -> bool:
    """Whether no request waits for a person: the call runs by itself, or its client calls again."""
    return attempt.unattended or attempt.caller.era == "2026" and _may_be_asked(attempt)


def _send_away(attempt: Attempt) -> Result:
    """The answer to a caller that has gone, or that this process can't keep waiting."""
    restarting = Overloaded(
        "busy",
        "The gateway is restarting; the call was not made.",
        "Call again: if it is approved meanwhile, nobody is asked a second time.",
    )
    return attempt.failure_result(restarting) | {"_meta": attempt.meta("pending_confirmation")}


async def _say_progress(attempt: Attempt, approval: Approval) -> None:
    if attempt.caller.progress is not None:
        waited = round(time.time() - approval.created_at, 1)
        total = round(approval.expires_at - approval.created_at, 1)
        snapshot = attempt.snapshot
        decider = "anybody on this machine" if snapshot.settings.auth.mode == "none" else "an admin"
        decider += "" if snapshot.permissions.self_approval else f" other than {approval.principal}"
        text = f"Waiting for a person to approve {approval.tool}: {decider} can"
        text += f" (approval {approval.id[: limits.ID_CHARS]})"
        await attempt.caller.progress(waited, total, text)


def too_late_error(approval: Approval | None) -> NotApproved:
    """Why an approval can't be decided or used any more."""
    words = {
        "approved": "it has been approved already",
        "denied": "it has been denied already",
        "used": "it has been used already",
        "void": "the tool or the caller's rights have changed since",
    }
    status = approval.status if approval else ""
    reason = words.get(status, "nobody decided in time")
    error_class = ApprovalVoid if status == "void" else NotApproved
    return error_class(
        "approval_expired", f"The approval can't be used: {reason}.", "Call again to ask anew."
    )


def grant_of(approval: Approval, by: str, now: float, permissions: Permissions) -> StandingGrant:
    """ "Always allow": for the rest of the session, or for a while where there is none."""
    seconds = limits.SESSION_SECONDS if approval.session else permissions.always_allow_minutes * 60
    return StandingGrant(
        id=new_id(now),
        principal=approval.principal,
        tool=approval.tool,
        connection=approval.connection,
        organization=approval.organization,
        fingerprint=approval.fingerprint,
        session=approval.session or "",
        client=name_of_client(approval.client),
        request=f"{approval.method} {approval.url.partition('?')[0]}"[: limits.MAX_QUOTE_CHARS],
        granted_by=by,
        created_at=now,
        expires_at=now + seconds,
    )
