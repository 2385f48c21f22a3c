"""One call on its way, and the one record it ends in.

Ledger row, metrics, log line and console feed are all read off the `Execution` that `execution_of`
makes; nothing else is written down about a call.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import GatewayError
from gateway.invoke.caller import Caller
from gateway.invoke.redact import Redactor, redact_arguments
from gateway.model import Tool, digest
from gateway.store.executions import Execution, ExecutionStatus
from gateway.store.ids import new_id

MAX_RECORDED_BYTES = 16 * 1024
CUT_CHARS = 2000


@dataclass(slots=True)
class Attempt:
    """What is known of one call as it goes along."""

    snapshot: Snapshot
    tool: Tool
    arguments: Mapping[str, Any]
    caller: Caller
    bundle_ids: tuple[str, ...]
    redactor: Redactor
    replica: str
    at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.perf_counter)
    id: str = ""
    reason: str = ""
    upstream_status: int | None = None
    token: str | None = None
    recorded: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.id = self.id or new_id(self.at)

    @property
    def state(self) -> ConnectionState:
        return self.snapshot.connections[self.tool.connection]

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
    finished = status not in ("executing", "pending_confirmation")
    return Execution(
        id=attempt.id,
        tool=tool.name,
        connection=tool.connection,
        principal=caller.principal.name,
        status=status,
        access=tool.access,
        risk=tool.risk,
        arguments=_bounded(attempt.redactor.json(redact_arguments(attempt.arguments))),
        args_digest=arguments_digest(attempt.arguments),
        created_at=attempt.at,
        revision=attempt.snapshot.revision,
        result=_outcome(attempt, status, result, error) if finished else None,
        error_code=error.code if error else None,
        upstream_status=attempt.upstream_status,
        idempotency_token=attempt.token,
        recorded=attempt.recorded,
        bundle_ids=attempt.bundle_ids,
        finished_at=time.time() if finished else None,
        reason=attempt.reason,
        session=caller.session,
        client=caller.client,
        era=caller.era,
        replica=attempt.replica,
    )


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """Names exactly these arguments, however they are ordered."""
    return digest(orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS))


def _outcome(
    attempt: Attempt,
    status: ExecutionStatus,
    result: Mapping[str, Any] | None,
    error: GatewayError | None,
) -> dict[str, Any]:
    outcome: dict[str, Any] = {
        "success": status == "completed",
        "output": None if error else _bounded(output_of(result)),
        "error": error.as_dict() if error else None,
        "duration_ms": attempt.duration_ms,
    }
    if attempt.token is not None and result is not None:
        outcome["answer"] = result  # the first answer, for whoever asks again with the token
    return outcome


def output_of(result: Mapping[str, Any] | None) -> Any:
    """What a result says, for history and REST: its structure, else its text."""
    if not result:
        return None
    if "structuredContent" in result:
        return result["structuredContent"]
    texts = [part["text"] for part in result.get("content", ()) if part.get("type") == "text"]
    return "\n".join(texts)


def _bounded(value: Any) -> Any:
    """The value, or the beginning of its text where it is too large for a history."""
    text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    if len(text) <= MAX_RECORDED_BYTES:
        return value
    shown = text[:CUT_CHARS].decode("utf-8", "ignore")
    return {"truncated": True, "bytes": len(text), "preview": shown}
