"""One call, start to end, in one straight line.

decide → check the arguments → ask a person where one must be asked → claim the token → put a write
on disk → send → shape → record. Whatever door a call came through, it comes through here, and it
always ends in exactly one execution record. A write that was begun is finished and recorded even if
its caller has gone; a read ends with its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from gateway.catalog.snapshot import Snapshot
from gateway.errors import Broken, GatewayError, Refused
from gateway.invoke.arguments import check_arguments
from gateway.invoke.attempt import Attempt, execution_of
from gateway.invoke.caller import Caller
from gateway.invoke.prepared import Prepared, PreparedConnections
from gateway.model import Tool
from gateway.policy.access import level, shows
from gateway.policy.decide import decide
from gateway.store.database import Database
from gateway.store.executions import ExecutionStatus, begin, finish, record_finished

log = structlog.get_logger("gateway.call")

Sender = Callable[[Attempt, Prepared], Awaitable[dict[str, Any]]]


class Approver(Protocol):
    """Asks a person; returns when the call may go on, raises Refused when it may not."""

    async def obtain(self, attempt: Attempt) -> None: ...


@dataclass(frozen=True, slots=True)
class Senders:
    """The two ways out of the gateway."""

    http: Sender
    upstream: Sender


class Invoker:
    """Carries calls out."""

    def __init__(
        self,
        db: Database,
        prepared: PreparedConnections,
        senders: Senders,
        *,
        replica: str,
        approver: Approver | None = None,
        finished: Callable[[Any], None] = lambda execution: None,
    ) -> None:
        self._db = db
        self._prepared = prepared
        self._senders = senders
        self._replica = replica
        self._approver = approver
        self._finished = finished
        self._writing: set[asyncio.Task[dict[str, Any]]] = set()

    async def call(
        self,
        snapshot: Snapshot,
        tool: Tool,
        arguments: Mapping[str, Any],
        caller: Caller,
        bundle_ids: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """The wire dict of the result. Failures are results too."""
        prepared = self._prepared.of(snapshot, tool.connection)
        attempt = Attempt(
            snapshot, tool, arguments, caller, bundle_ids, prepared.redactor, self._replica
        )
        try:
            await self._allow(attempt)
            if tool.access == "read" and attempt.token is None:
                result = await self._send(attempt, prepared)
                self._record(attempt, "failed" if result["isError"] else "completed", result)
                return result
            return await self._finish_whatever_happens(attempt, prepared)
        except GatewayError as error:
            return self._refuse(attempt, error)
        except asyncio.CancelledError:
            if tool.access == "read":
                self._record(attempt, "failed", None, Broken("cancelled", "the caller left"))
            raise
        except Exception:  # the boundary: a caller gets a code, the log gets the stack
            log.exception("call failed", tool=tool.name, execution=attempt.id)
            return self._refuse(attempt, Broken("internal", "the gateway failed on this call"))

    async def _allow(self, attempt: Attempt) -> None:
        """Returns when the call may be sent; raises when it may not."""
        snapshot, tool = attempt.snapshot, attempt.tool
        granted = level(snapshot, attempt.caller.principal, attempt.state)
        if not shows(granted, tool):
            raise Refused("access_denied", f"you have no access to {attempt.state.display_name}")
        decision = decide(tool, snapshot.permissions)
        attempt.reason = decision.reason
        if decision.outcome == "block":
            raise Refused(decision.code, _blocked(attempt, decision.code), decision.reason)
        check_arguments(tool.fingerprint, tool.input_schema, attempt.arguments)
        if decision.outcome == "confirm" and self._approver is not None:
            await self._approver.obtain(attempt)

    async def _send(self, attempt: Attempt, prepared: Prepared) -> dict[str, Any]:
        send = self._senders.http if attempt.tool.http else self._senders.upstream
        result = await send(attempt, prepared)
        result["_meta"] = {
            **result.get("_meta", {}),
            "gateway/execution_id": attempt.id,
            "gateway/status": "failed" if result["isError"] else "completed",
            "gateway/duration_ms": attempt.duration_ms,
        }
        return result

    async def _finish_whatever_happens(
        self, attempt: Attempt, prepared: Prepared
    ) -> dict[str, Any]:
        """A write runs in a task of its own: once begun it is finished and recorded."""
        task = asyncio.create_task(self._write(attempt, prepared), name=f"call {attempt.id}")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return await asyncio.shield(task)

    async def _write(self, attempt: Attempt, prepared: Prepared) -> dict[str, Any]:
        await begin(self._db, execution_of(attempt, "executing"))
        try:
            result = await self._send(attempt, prepared)
        except GatewayError as error:
            sent = getattr(error, "sent", False)
            result = self._result_of(attempt, error)
            await self._end(attempt, "failed", result, error, sent=sent)
            return result
        await self._end(attempt, "failed" if result["isError"] else "completed", result, None)
        return result

    async def _end(
        self,
        attempt: Attempt,
        status: ExecutionStatus,
        result: Mapping[str, Any],
        error: GatewayError | None,
        *,
        sent: bool = True,
    ) -> None:
        execution = execution_of(attempt, status, result, error)
        await finish(self._db, execution, sent=sent)
        self._finished(execution)

    def _refuse(self, attempt: Attempt, error: GatewayError) -> dict[str, Any]:
        result = self._result_of(attempt, error)
        self._record(attempt, _status_of(error), result, error)
        return result

    def _record(
        self,
        attempt: Attempt,
        status: ExecutionStatus,
        result: Mapping[str, Any] | None,
        error: GatewayError | None = None,
    ) -> None:
        execution = execution_of(attempt, status, result, error)
        record_finished(self._db, execution)
        self._finished(execution)

    def _result_of(self, attempt: Attempt, error: GatewayError) -> dict[str, Any]:
        shown = attempt.redactor.json(error.as_dict())
        text = f"{shown['message']} {shown['hint']}".strip()
        return {
            "content": [{"type": "text", "text": text}],
            "structuredContent": {"error": shown},
            "isError": True,
            "_meta": {
                "gateway/execution_id": attempt.id,
                "gateway/status": _status_of(error),
                "gateway/duration_ms": attempt.duration_ms,
            },
        }

    async def drain(self, seconds: float) -> None:
        """Waits for writes that are under way, at most so long."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=seconds)


def _blocked(attempt: Attempt, code: str) -> str:
    if code == "read_only":
        return f"You have read-only access to {attempt.state.display_name}"
    return f"{attempt.tool.name} is blocked"


def _status_of(error: GatewayError) -> ExecutionStatus:
    if error.code == "approval_expired":
        return "expired"
    return "denied" if isinstance(error, Refused) else "failed"
