"""The wire dicts of results that are ours: failed calls, and calls that go on without their caller.

The model reads the sentence, programs read the structure, and both find the execution's id.
"""

from __future__ import annotations

import traceback
from typing import Any

from gateway.errors import GatewayError, Refused, UpstreamFailed
from gateway.invoke.attempt import Attempt
from gateway.store.executions import ExecutionStatus

WARNINGS_META = "gateway/warnings"
MAX_LOGGED_FRAMES = 4
# The other side's own refusal: known, and final.
ANSWERED = ("upstream_error", "sign_in_required")


class Unanswered(Exception):
    """The call goes on, but not in this request: `result` says how."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__()
        self.result = result


class NotApproved(Refused):
    """A person, or time, said no. The execution's row says so already."""

    void = False  # what was approved is not there any more


def failed_result(attempt: Attempt, error: GatewayError) -> dict[str, Any]:
    """What the caller of a failed call gets."""
    shown = attempt.redactor.json(error.as_dict())
    text = attempt.redactor.text(error.sentence)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": {"error": shown},
        "isError": True,
        "_meta": meta_of(attempt, status_of(error)),
    }


def going_on(attempt: Attempt, status: ExecutionStatus, text: str) -> dict[str, Any]:
    """What the caller gets of a call whose outcome is to be read later."""
    return {
        "content": [{"type": "text", "text": f"{text} get_execution {attempt.id} tells how."}],
        "structuredContent": {"execution_id": attempt.id, "status": status},
        "isError": False,
        "_meta": meta_of(attempt, status),
    }


def meta_of(attempt: Attempt, status: ExecutionStatus) -> dict[str, Any]:
    """What every result says of its call."""
    return {
        "gateway/execution_id": attempt.id,
        "gateway/status": status,
        "gateway/duration_ms": attempt.duration_ms,
    }


def with_warnings(attempt: Attempt, result: dict[str, Any]) -> dict[str, Any]:
    """The result with what its caller should know of the arguments, for programs and as text."""
    if not attempt.warnings:
        return result
    warnings = attempt.redactor.json(list(attempt.warnings))
    words = "; ".join(f"{each['path']}: {each['message']}" for each in warnings)
    return {
        **result,
        "content": [*result["content"], {"type": "text", "text": f"Warnings: {words}"}],
        "_meta": {**result["_meta"], WARNINGS_META: warnings},
    }


def status_of(error: GatewayError) -> ExecutionStatus:
    """The state a call is in after this error."""
    if error.code == "approval_expired":
        return "denied" if getattr(error, "void", False) else "expired"
    if error.code == "outcome_unknown":
        return "unknown"
    return "denied" if isinstance(error, Refused) else "failed"


def failure(error: BaseException) -> dict[str, str]:
    """What the log says of an unexpected error: its kind and place, not its words or values."""
    frames = traceback.format_tb(error.__traceback__)[-MAX_LOGGED_FRAMES:]
    return {"error": type(error).__name__, "trace": "".join(frames)}


def was_sent(attempt: Attempt, error: BaseException) -> bool:
    """Whether the other side may have seen the request before this went wrong."""
    if isinstance(error, UpstreamFailed):
        return error.sent
    if attempt.upstream_status is not None:
        return True
    return not isinstance(error, GatewayError)  # ours come before sending; of others who knows


def outcome_unknown(attempt: Attempt, error: BaseException) -> UpstreamFailed:
    """The error for a call that may or may not have happened."""
    cause = error.code if isinstance(error, GatewayError) else "internal"
    return UpstreamFailed(
        "outcome_unknown",
        f"{attempt.tool.name} was sent, and nobody knows whether it was carried out.",
        "Look at the other side before you try again; a new attempt needs a new token.",
        cause=cause,
    )
