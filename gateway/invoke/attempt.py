"""One call on its way, and the one record it ends in.

Ledger row, metrics, log line and console feed are all read off the `Execution` that `execution_of`
makes; nothing else is written down about a call.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct, field

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import CODES, GatewayError
from gateway.invoke.caller import Ask, Caller
from gateway.invoke.redact import Redactor, redact_arguments
from gateway.model import Principal, Tool, digest
from gateway.store.columns import json_bytes
from gateway.store.executions import Execution, ExecutionStatus
from gateway.store.ids import new_id

MAX_NAME_CHARS = 128
MAX_RECORDED_BYTES = 16 * 1024
CUT_CHARS = 2000
HEADERS_META = "gateway/headers"  # of an API's answer
UNATTENDED = "unattended"  # in place of an era: nobody waits, it runs by itself once approved

Find = Callable[[Snapshot, Principal], Tool]


class Door(Struct, frozen=True):
    """How a call came in, for finding its tool again after it has waited for a person."""

    find: Find  # raises UnknownTool or Refused where the caller has it no longer
    ticket: Mapping[str, Any] = field(default_factory=dict)  # what another process needs for that
    judged: Tool | None = None  # what permissions are asked about, where it is not the tool itself
    unattended: bool = False  # nobody waits for the answer


class Attempt(Struct):
    """What is known of one call as it goes along."""

    snapshot: Snapshot
    tool: Tool
    arguments: Mapping[str, Any]
    caller: Caller
    bundle_ids: tuple[str, ...]
    redactor: Redactor
    replica: str
    door: Door | None = None
    at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.perf_counter)
    id: str = ""
    reason: str = ""
    upstream_status: int | None = None
    upstream_ms: float | None = None  # how much of the time was the upstream's
    token: str | None = None
    token_given: bool = False  # by the caller, so it may have been used before
    background: bool = False  # its caller does not wait
    read_later: bool = False  # its outcome is read from its record
    on_disk: bool = False  # it has a row already
    recorded: Mapping[str, Any] | None = None
    warnings: Sequence[Mapping[str, str]] = ()  # of arguments that were sent all the same
    put: Ask | None = None  # how its client is asked, where that is not on its own stream

    def __post_init__(self) -> None:
        self.id = self.id or new_id(self.at)

    @property
    def state(self) -> ConnectionState:
        return self.snapshot.connections[self.tool.connection]

    @property
    def unattended(self) -> bool:
        return self.background or (self.door is not None and self.door.unattended)

    @property
    def duration_ms(self) -> float:
        return round((time.perf_counter() - self.began) * 1000, 2)


def execution_of(
    attempt: Attempt,
    status: ExecutionStatus,
    result: Mapping[str, Any] | None = None,
    error: GatewayError | None = None,
) -> Execution:
    """The record of a call in this state; `result` is what the caller gets."""
    tool, caller = attempt.tool, attempt.caller
    failure = failure_of(status, result, error)
    finished = status not in ("executing", "pending_confirmation")
    return Execution(
        id=attempt.id,
        tool=tool.name,
        connection=tool.connection,
        principal=caller.principal.name,
        status=status,
        access=tool.access,
        risk=tool.risk,
        arguments=shown_arguments(attempt),
        args_digest=""
        if finished and _plain_read(attempt)
        else arguments_digest(attempt.arguments),
        created_at=attempt.at,
        revision=attempt.snapshot.revision,
        result=_outcome(attempt, status, result, failure) if finished else None,
        error_code=failure["code"] if failure else None,
        upstream_status=attempt.upstream_status,
        idempotency_token=attempt.token,
        recorded=attempt.recorded,
        bundle_ids=attempt.bundle_ids,
        finished_at=time.time() if finished else None,
        reason=attempt.reason,
        session=caller.session,
        client=caller.client,
        era=UNATTENDED if attempt.unattended else caller.era,
        replica=attempt.replica,
    )


def refusal_of(
    snapshot: Snapshot,
    caller: Caller,
    tool: str,
    error: GatewayError,
    *,
    connection: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> Execution:
    """The record of a call that found no tool: nothing in it tells a hidden one from none."""
    now = time.time()
    return Execution(
        id=new_id(now),
        tool=tool if len(tool) <= MAX_NAME_CHARS else f"{tool[: MAX_NAME_CHARS - 1]}…",
        connection=connection,
        principal=caller.principal.name,
        status="denied",
        access="",
        risk="none",
        arguments=arguments or {},
        args_digest="",
        created_at=now,
        revision=snapshot.revision,
        result={"success": False, "output": None, "error": error.as_dict(), "duration_ms": 0.0},
        error_code=error.code,
        finished_at=now,
        reason="the caller has no such tool",
        session=caller.session,
        client=caller.client,
        era=caller.era,
    )


def _plain_read(attempt: Attempt) -> bool:
    """Whether nobody will ever ask if another call had the same arguments."""
    return attempt.tool.access == "read" and attempt.token is None and not attempt.on_disk


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """Names exactly these arguments, however they are ordered."""
    try:
        return digest(orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS))
    except TypeError:  # huge numbers, lone surrogates
        return digest(json.dumps(arguments, sort_keys=True).encode())


def shown_arguments(attempt: Attempt) -> Any:
    """The arguments for people: secrets masked, bounded."""
    masked = redact_arguments(attempt.arguments)
    text = json_bytes(masked)
    if attempt.redactor.bytes(text) is not text:
        return _bounded(attempt.redactor.json(masked), MAX_RECORDED_BYTES)
    return masked if len(text) <= MAX_RECORDED_BYTES else _cut(text)


def _outcome(
    attempt: Attempt,
    status: ExecutionStatus,
    result: Mapping[str, Any] | None,
    failure: Mapping[str, Any] | None,
) -> dict[str, Any]:
    # Whoever reads it later has no other place to read it from.
    limit = attempt.snapshot.settings.limits.max_output_bytes
    bound = 2 * limit if attempt.read_later else MAX_RECORDED_BYTES
    outcome: dict[str, Any] = {
        "success": status == "completed",
        "output": None if failure else _bounded(output_of(result), bound),
        "error": _bounded(failure, bound),
        "duration_ms": attempt.duration_ms,
    }
    if attempt.upstream_ms is not None:
        outcome["upstream_ms"] = attempt.upstream_ms
    if headers := (result or {}).get("_meta", {}).get(HEADERS_META):
        outcome["headers"] = headers
    if attempt.token is not None and result is not None:
        outcome["answer"] = result  # the first answer, for whoever asks again with the token
    return outcome


def failure_of(
    status: str, result: Mapping[str, Any] | None, error: GatewayError | None
) -> dict[str, Any] | None:
    """Why a call failed, as `{code, message, hint, …}`: our reason, or the upstream's answer."""
    if error is not None:
        return error.as_dict()
    if status != "failed" or result is None:
        return None
    said = (result.get("structuredContent") or {}).get("error")
    if isinstance(said, dict) and said.get("code") in CODES:
        return said
    return {"code": "upstream_error", "message": str(output_of(result)), "hint": ""}


def output_of(result: Mapping[str, Any] | None) -> Any:
    """What a result says, for history and REST: its structure, else its text."""
    if not result:
        return None
    if "structuredContent" in result:
        return result["structuredContent"]
    texts = [part["text"] for part in result.get("content", ()) if part.get("type") == "text"]
    return "\n".join(texts)


def _bounded(value: Any, bound: int) -> Any:
    """The value, or the beginning of its text where it is too large for a history."""
    text = json_bytes(value)
    return value if len(text) <= bound else _cut(text)


def _cut(text: bytes) -> dict[str, Any]:
    shown = text[:CUT_CHARS].decode("utf-8", "ignore")
    return {"truncated": True, "bytes": len(text), "preview": shown}
