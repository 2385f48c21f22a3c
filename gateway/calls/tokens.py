"""Tokens: one upstream effect however often a call is made with the same one.

The store's claim decides who is first, over all replicas, in the transaction that puts the call on
disk. Everyone else with the same principal, token and arguments waits for that call and gets its
answer, an upstream's error included. What is known never to have left frees its token; what may
have left keeps it, as unknown, for ever.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Awaitable, Callable

from gateway.calls.answer import Result
from gateway.calls.record import (
    TOKEN_META,
    Attempt,
    NotApproved,
    Signals,
    arguments_digest,
    failed_result,
    heard_within,
    outcome_unknown,
    pending_result,
)
from gateway.errors import Broken, Fixable, GatewayError, Overloaded
from gateway.limits import MOMENT_SECONDS, SILENT_SECONDS
from gateway.model import Tool
from gateway.store.approvals import first_with_token
from gateway.store.database import Database
from gateway.store.ledger import FINISHED, Begun, Execution, get_execution

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


async def earlier_answer(
    db: Database,
    signals: Signals,
    attempt: Attempt,
    waited_for: Callable[[Execution], Awaitable[bool]],
) -> Result | None:
    """The answer of an earlier call with the caller's token, before anyone is asked again.

    None: there is none, or only one whose caller was cut off before a decision; it goes on in this
    attempt.
    """
    assert attempt.token is not None
    first = await first_with_token(db, attempt.principal, attempt.token)
    if first is None:
        return None
    same_call = (attempt.tool.name, arguments_digest(attempt.arguments))
    if (first.tool, first.args_digest) != same_call:
        raise _conflict(attempt)
    if first.status == "pending_confirmation" and not await waited_for(first):
        return None
    if first.status in _GOING_ON and attempt.unattended:
        attempt.id = first.id
        return pending_result(attempt, first.status, "The call is already on its way.")
    return _answer_again(attempt, await _end_of(db, signals, attempt, first))


async def first_answer(db: Database, signals: Signals, attempt: Attempt, begun: Begun) -> Result:
    """The answer of the call that had this token first, once it has one."""
    if begun.outcome == "conflict":
        raise _conflict(attempt)
    if begun.outcome == "ended" or begun.execution is None:
        raise NotApproved(
            "approval_expired",
            "The approval for this call was used, has expired or was withdrawn.",
            "Call again to ask for a new one.",
        )
    return _answer_again(attempt, await _end_of(db, signals, attempt, begun.execution))


async def _end_of(db: Database, signals: Signals, attempt: Attempt, first: Execution) -> Execution:
    """The first call when it is over; its process may be another one."""
    deadline = time.monotonic() + longest_seconds(attempt)
    with signals.awaiting(FINISHED, first.id) as heard:
        while True:
            first = await get_execution(db, first.id) or first
            if first.status not in _GOING_ON:
                return first
            if time.monotonic() > deadline:
                raise Overloaded(
                    "busy",
                    "The first call with this token is still on its way.",
                    f"find_execution {attempt.token} tells what became of it.",
                )
            await heard_within(heard, MOMENT_SECONDS)


def longest_seconds(attempt: Attempt) -> float:
    """How long a call may take: a decision, its deadline and, at worst, its process's burial."""
    limits = attempt.snapshot.settings.limits
    seconds = attempt.state.settings.timeout_seconds or limits.call_timeout_seconds
    if attempt.tool.upstream is not None:
        seconds = max(seconds, limits.max_call_seconds)
    return seconds + attempt.snapshot.permissions.timeout_seconds + 2 * SILENT_SECONDS


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
