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
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.calls.record import (
    Attempt,
    NotApproved,
    Signals,
    arguments_digest,
    failed_result,
    going_on,
    heard_within,
    outcome_unknown,
)
from gateway.errors import Broken, Fixable, GatewayError, Overloaded, UpstreamFailed
from gateway.model import Tool
from gateway.store.approvals import first_with_token
from gateway.store.database import Database
from gateway.store.ledger import FINISHED, Begun, Execution, get_execution
from gateway.store.statements import json_bytes

TOKEN_META = "gateway/idempotency_token"
VISIBLE = re.compile(r"[\x21-\x7e]{1,200}")
WAITING = ("executing", "pending_confirmation")
LOOK_SECONDS = 1.0  # a signal may be lost
GRACE_SECONDS = 20.0  # beyond the first call's own deadline; covers the death of its process
MAX_RECORDED_BYTES = 4096
MAX_SEARCHED = 10_000

WaitedFor = Callable[[Execution], Awaitable[bool]]


def take_token(attempt: Attempt) -> None:
    """Gives the attempt its token: the caller's own, or a fresh one where the tool needs one."""
    given = attempt.caller.meta.get(TOKEN_META)
    needed = needs_token(attempt.tool)
    if given is None:
        attempt.token = str(uuid.uuid4()) if needed else None
        return
    if not isinstance(given, str) or not VISIBLE.fullmatch(given):
        raise Fixable(
            "invalid_arguments",
            f"{TOKEN_META} must be 1 to 200 visible ASCII characters",
            "A UUID is a good token.",
        )
    if needed or attempt.tool.access != "read":
        attempt.token, attempt.token_given = given, True


def needs_token(tool: Tool) -> bool:
    """Whether the other side takes an idempotency token for this tool."""
    if tool.http is not None:
        return tool.http.idempotency_header is not None and tool.access != "read"
    return tool.upstream is not None and tool.upstream.idempotency_field is not None


def with_token(result: dict[str, Any], token: str | None) -> dict[str, Any]:
    """The result with its token, for programs and as the last line of its text."""
    if token is None:
        return result
    line = {"type": "text", "text": f"Idempotency token: {token}"}
    return {
        **result,
        "content": [*result.get("content", ()), line],
        "_meta": {**result.get("_meta", {}), TOKEN_META: token},
    }


class FirstAnswers:
    """Finds the call that a token was first used for, and gives its answer again."""

    def __init__(self, db: Database, signals: Signals) -> None:
        self._db = db
        self._signals = signals

    async def earlier(self, attempt: Attempt, waited_for: WaitedFor) -> dict[str, Any] | None:
        """The answer of an earlier call with the caller's token, before anyone is asked again.

        None: there is none, or only one whose caller was cut off before a decision; it goes on
        in this attempt.
        """
        assert attempt.token is not None
        first = await first_with_token(self._db, attempt.caller.principal.name, attempt.token)
        if first is None:
            return None
        if (first.tool, first.args_digest) != _call_of(attempt):
            raise _conflict(attempt)
        if first.status == "pending_confirmation" and not await waited_for(first):
            return None
        if first.status in WAITING and attempt.unattended:
            attempt.id = first.id
            return going_on(attempt, first.status, "The call is already on its way.")
        return _answer(attempt, await self._ended(attempt, first))

    async def answer_of(self, attempt: Attempt, begun: Begun) -> dict[str, Any]:
        """The answer of the call that had this token first, once it has one."""
        if begun.outcome == "conflict":
            raise _conflict(attempt)
        if begun.outcome == "ended" or begun.execution is None:
            raise NotApproved(
                "approval_expired",
                "The approval for this call was used, has expired or was withdrawn.",
                "Call again to ask for a new one.",
            )
        return _answer(attempt, await self._ended(attempt, begun.execution))

    async def _ended(self, attempt: Attempt, first: Execution) -> Execution:
        """The first call when it is over; its process may be another one."""
        deadline = time.monotonic() + longest(attempt)
        with self._signals.awaiting(FINISHED, first.id) as heard:
            while True:
                first = await get_execution(self._db, first.id) or first
                if first.status not in WAITING:
                    return first
                if time.monotonic() > deadline:
                    raise Overloaded(
                        "busy",
                        "The first call with this token is still on its way.",
                        f"find_execution {attempt.token} tells what became of it.",
                    )
                await heard_within(heard, LOOK_SECONDS)


def recorded_values(names: Sequence[str], result: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values of an answer to be kept beside its token: JSON pointers, or names of fields."""
    if not names:
        return None
    body = _body(result)
    found = {
        name: _pointed(body, name) if name[:1] == "/" else _named(body, name) for name in names
    }
    kept = {n: v for n, v in found.items() if v is not None and _is_small(v)}
    return kept or None


def _call_of(attempt: Attempt) -> tuple[str, str]:
    return attempt.tool.name, arguments_digest(attempt.arguments)


def _conflict(attempt: Attempt) -> Fixable:
    token, attempt.token = attempt.token, None  # it stands for the other call, not for this one
    return Fixable(
        "idempotency_conflict",
        "This idempotency token was used for a call with another tool or other arguments.",
        "Use a new token for a new call; find_execution shows the earlier one.",
        token=token,
    )


def longest(attempt: Attempt) -> float:
    """How long the first call may take: a decision, its deadline and, at worst, a burial."""
    limits = attempt.snapshot.settings.limits
    seconds = attempt.state.settings.timeout_seconds or limits.call_timeout_seconds
    if attempt.tool.upstream is not None:
        seconds = max(seconds, limits.max_call_seconds)
    return seconds + attempt.snapshot.permissions.timeout_seconds + GRACE_SECONDS


def _answer(attempt: Attempt, first: Execution) -> dict[str, Any]:
    """What the caller of the first call got, or would have got."""
    attempt.id = first.id
    answer = (first.result or {}).get("answer")
    if answer is not None:
        return {**answer, "_meta": {**answer.get("_meta", {}), "gateway/replayed": True}}
    return with_token(failed_result(attempt, _error_of(attempt, first)), attempt.token)


def _error_of(attempt: Attempt, first: Execution) -> GatewayError:
    match first.status:
        case "unknown":
            return outcome_unknown(attempt, UpstreamFailed("internal", ""))
        case "denied":
            return NotApproved("approval_denied", "The call was not approved.")
        case "expired":
            return NotApproved("approval_expired", "Nobody approved the call in time.")
    return Broken(
        first.error_code or "internal",
        "The first call with this token failed before it was sent.",
        "It may be tried again with the same token.",
    )


def _body(result: Mapping[str, Any]) -> Any:
    if "structuredContent" in result:
        return result["structuredContent"]
    for part in result.get("content", ()):
        if part.get("type") == "text":
            try:
                return orjson.loads(part["text"])
            except orjson.JSONDecodeError:
                continue
    return None


def _pointed(value: Any, pointer: str) -> Any:
    for step in pointer[1:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isascii() and name.isdigit():
            value = value[int(name)] if int(name) < len(value) else None
        else:
            return None
    return value


def _named(value: Any, name: str) -> Any:
    """The value of the nearest field of this name, level by level."""
    level = deque([value])
    for _ in range(MAX_SEARCHED):
        if not level:
            return None
        here = level.popleft()
        if isinstance(here, dict):
            if here.get(name) is not None:
                return here[name]
            level.extend(here.values())
        elif isinstance(here, list):
            level.extend(here)
    return None


def _is_small(value: Any) -> bool:
    return len(json_bytes(value)) <= MAX_RECORDED_BYTES
