"""Who calls (`Caller`), the call on its way (`Attempt`), and the one record it ends in.

Ledger row, metrics, log line and console feed are all read off the `Execution` that an attempt
makes of itself; nothing else is written down about a call. The gateway's own results are worded
here too: failed calls, and calls that go on without their caller. The model reads the sentence,
programs read the structure, and both find the execution's id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, Literal

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from gateway.calls.answer import HEADERS_META, own_result
from gateway.calls.redact import Redactor, redact_arguments
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import (
    CODES,
    ApprovalVoid,
    GatewayError,
    Refused,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnreadable,
)
from gateway.limits import MAX_QUOTE_CHARS, MAX_RECORDED_BYTES, PREVIEW_CHARS
from gateway.model import Principal, Result, Tool, ViewAddress, digest, json_bytes, new_id
from gateway.naming import cut
from gateway.store.tables import Execution, ExecutionStatus

# Keys of the `_meta` of results and of calls.
TOKEN_META = "gateway/idempotency_token"
BACKGROUND_META = "gateway/background"
WARNINGS_META = "gateway/warnings"
RENAMED_META = "gateway/renamed"  # the called and the present name
GOING_ON = ("pending_confirmation", "executing")  # the states of a call that has not ended
UNATTENDED = "unattended"  # in place of an era: nobody waits, the call runs by itself once approved

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
AskClient = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]  # method, params → result
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]  # questions → answers, by key
Notice = Callable[[str, Mapping[str, Any]], None]
Era = Literal["2025", "2026", "rest", "console"]
ToolReference = Mapping[str, Any]  # names the tool of a call, so that any process can find it
# The tool of a reference, and the tool that permissions are asked about. Raises UnknownTool or
# another of our errors where the caller has that tool no longer.
FindTool = Callable[[ToolReference, Snapshot, Principal], tuple[Tool, Tool]]


class Caller(Struct):
    """Who makes a call, and how to reach them while it runs; each edge fills in what it knows."""

    principal: Principal
    view_address: ViewAddress = ViewAddress()
    era: Era = "rest"
    session: str | None = None  # stable id of the session, where the era has them
    client: str = ""  # name/version as the client gives it, bounded
    capabilities: Mapping[str, Any] = {}
    meta: Mapping[str, Any] = {}
    progress: Progress | None = None  # None: the caller did not ask for it
    ask: AskClient | None = None  # None: this client can't be asked on this request
    input_responses: Mapping[str, Any] | None = None  # 2026: answers to an InputRequiredResult
    request_state: str | None = None
    is_gone: Callable[[], bool] = lambda: False  # whether the client has hung up
    notice: Notice | None = None  # takes log messages of this call; None: the client reads none
    log_level: str | None = None  # the lowest level that the client reads
    usable_capabilities: Mapping[str, Any] = {}  # what an upstream may ask of the client
    # What the client offers, but to trusted upstreams only.
    refused_capabilities: frozenset[str] = frozenset()
    on_refusal: Callable[[UpstreamRefused], None] | None = None  # takes an upstream's own error


def name_of_client(client: str) -> str:
    """The name of `name/version`: a client that was updated is the same one."""
    return client.rpartition("/")[0] or client.strip("/")


class Attempt(Struct):
    """One call on its way: the facts of the call as they become known."""

    snapshot: Snapshot
    tool: Tool
    judged_tool: Tool  # the tool that permissions are asked about: another one for raw requests
    arguments: Mapping[str, Any]
    caller: Caller
    redactor: Redactor
    replica: str
    reference: ToolReference = {}  # none: no other process has to find the tool
    bundle_ids: tuple[str, ...] = ()
    unattended: bool = False  # nobody waits for the answer
    created_at: float = msgspec.field(default_factory=time.time)
    began: float = msgspec.field(default_factory=time.perf_counter)
    id: str = msgspec.field(default_factory=lambda: new_id(time.time()))
    reason: str = ""
    granted: Mapping[str, Any] | None = None  # the standing grant that allows the call
    upstream_status: int | None = None
    sent_at: float | None = None
    retried_at: float | None = None
    upstream_ms: float | None = None  # how much of the time was the upstream's
    token: str | None = None
    token_given: bool = False  # by the caller, so earlier calls may have used it
    background: bool = False  # unattended from the start: the outcome is read from its record
    recorded: Mapping[str, Any] | None = None
    warnings: Sequence[Mapping[str, str]] = ()  # about arguments that were sent all the same
    put_questions: Ask | None = None  # asks a client that can't be asked on its own stream

    @property
    def state(self) -> ConnectionState:
        return self.snapshot.connections[self.tool.connection]

    @property
    def principal(self) -> str:
        return self.caller.principal.name

    @property
    def names(self) -> tuple[str, ...]:
        """The tool's name and its former names: a rule or token that goes by any of them holds."""
        return self.snapshot.names_of(self.tool)

    @property
    def max_output_bytes(self) -> int:
        return self.snapshot.settings.limits.max_output_bytes

    @property
    def may_be_held(self) -> bool:
        """Whether a server's question can be the answer to this call."""
        asks = self.tool.upstream is not None and not self.unattended
        return asks and self.caller.era == "2026" and bool(self.caller.usable_capabilities)

    @property
    def duration_ms(self) -> float:
        return round((time.perf_counter() - self.began) * 1000, 2)

    @property
    def args_digest(self) -> str:
        """Names exactly these arguments, however they are ordered."""
        return digest(self._arguments_json())

    def _arguments_json(self) -> bytes:
        try:
            return orjson.dumps(self.arguments, option=orjson.OPT_SORT_KEYS)
        except TypeError:  # huge numbers, lone surrogates
            return json.dumps(self.arguments, sort_keys=True).encode()

    @property
    def bound_to(self) -> list[str]:
        """Caller, tool and arguments: a state that a client hands back holds for these alone."""
        return [self.principal, self.tool.name, self.args_digest]

    def execution(
        self,
        status: ExecutionStatus,
        result: Mapping[str, Any] | None = None,
        error: GatewayError | None = None,
    ) -> Execution:
        """The record of a call in this state; `result` is what the caller gets."""
        tool, caller = self.tool, self.caller
        state = self.snapshot.connections.get(tool.connection)
        owner = state.settings.organization if state else None
        failure = self.redactor.clear_json(error.as_dict()) if error is not None else None
        if failure is None and status == "failed" and result is not None:
            failure = failure_in(result)
        # None as well where no part of the request went out.
        sent_at = None if isinstance(error, UpstreamFailed) and not error.sent else self.sent_at
        finished = status not in GOING_ON
        args_json = self._arguments_json()
        return Execution(
            id=self.id,
            tool=tool.name,
            connection=tool.connection,
            organization=owner or caller.principal.organization or "",
            principal=self.principal,
            status=status,
            access=tool.access,
            risk=tool.risk,
            arguments=self._shown_arguments(args_json),
            args_digest=digest(args_json),
            created_at=self.created_at,
            revision=self.snapshot.revision,
            result=self._outcome(status, result, failure, sent_at) if finished else None,
            error_code=failure["code"] if failure else None,
            upstream_status=self.upstream_status,
            idempotency_token=self.token,
            recorded=self.recorded,
            bundle_ids=self.bundle_ids,
            finished_at=time.time() if finished else None,
            reason=self.reason,
            granted=self.granted,
            session=caller.session,
            client=caller.client,
            era=UNATTENDED if self.unattended else caller.era,
            replica=self.replica,
        )

    def _shown_arguments(self, encoded: bytes) -> Any:
        """The arguments for people to read: secrets masked, size bounded."""
        try:
            arguments = redact_arguments(dict(self.arguments))
        except RecursionError:
            return {"truncated": True, "preview": "nested too deeply to be shown"}
        if len(encoded) <= MAX_RECORDED_BYTES and self.redactor.clear_bytes(encoded) is encoded:
            return arguments  # as nearly always: there are no secrets to clear
        return _limit_size(self.redactor.clear_json(arguments), MAX_RECORDED_BYTES)

    def _outcome(
        self,
        status: ExecutionStatus,
        result: Mapping[str, Any] | None,
        failure: Mapping[str, Any] | None,
        sent_at: float | None,
    ) -> dict[str, Any]:
        # The result of a background call can be read from its record only.
        bound = 2 * self.max_output_bytes if self.background else MAX_RECORDED_BYTES
        outcome: dict[str, Any] = {
            "success": status == "completed",
            "output": None if failure else _limit_size(output_of(result), bound),
            "error": failure and _limit_size(failure, bound),
            "duration_ms": self.duration_ms,
        }
        if self.upstream_ms is not None:
            outcome["upstream_ms"] = self.upstream_ms
            outcome["sent_at"] = sent_at
            if self.retried_at is not None:
                outcome["retried_at"] = self.retried_at
        if headers := (result or {}).get("_meta", {}).get(HEADERS_META):
            outcome["headers"] = headers
        if self.token is not None and result is not None:
            outcome["answer"] = result  # the first answer, for later calls with the token
        return outcome

    def failure_result(self, error: GatewayError) -> Result:
        """What the caller of a failed call gets."""
        structured = {"error": self.redactor.clear_json(error.as_dict())}
        text, status = self.redactor.clear_text(error.sentence), status_of_error(error)
        return self._own_result(status, text, structured)

    def pending_result(self, status: ExecutionStatus, text: str) -> Result:
        """What the caller gets for a call whose outcome is to be read later."""
        structured = {"execution_id": self.id, "status": status}
        return self._own_result(status, f"{text} get_execution {self.id} tells how.", structured)

    def _own_result(self, status: ExecutionStatus, text: str, structured: Result) -> Result:
        result = own_result(text, structured, is_error="error" in structured)
        return with_token({**result, "_meta": self.meta(status)}, self.token)

    def question_result(
        self, status: ExecutionStatus, questions: Mapping[str, Any], state: str
    ) -> Result:
        """Questions as a result (2026-07-28): the client answers by calling again."""
        return {
            "resultType": "input_required",
            "inputRequests": dict(questions),
            "requestState": state,
            "_meta": self.meta(status),
        }

    def with_meta(self, result: Result) -> Result:
        """The result with the fields that describe its call; warnings for programs and as text."""
        meta = self.meta(status_of_result(result))
        result = {**result, "_meta": {**result.get("_meta", {}), **meta}}
        if not self.warnings:
            return result
        warnings = self.redactor.clear_json(list(self.warnings))
        words = "; ".join(f"{each['path']}: {each['message']}" for each in warnings)
        return with_line(result, f"Warnings: {words}", {WARNINGS_META: warnings})

    def meta(self, status: ExecutionStatus) -> dict[str, Any]:
        """The `_meta` fields that describe the call in every result."""
        return {
            "gateway/execution_id": self.id,
            "gateway/status": status,
            "gateway/duration_ms": self.duration_ms,
        }

    def unknown_error(self, cause: str = "internal") -> UpstreamFailed:
        """The error for a call that may or may not have happened."""
        return UpstreamFailed(
            "outcome_unknown",
            f"{self.tool.name} was sent, and nobody knows whether it was carried out.",
            "Look at the other side before you try again; a new attempt needs a new token.",
            cause=cause,
        )


def record_without_tool(
    snapshot: Snapshot,
    caller: Caller,
    tool: str,
    error: GatewayError,
    *,
    connection: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> Execution:
    """The record of a call that found no tool; a hidden tool and a missing one look the same.

    Also of a raw request that was refused before it had one.
    """
    name = cut(tool, MAX_QUOTE_CHARS)
    no_tool = Tool(name, name, connection, None, "", "", "read", "none", "untrusted", "", "")
    attempt = Attempt(snapshot, no_tool, no_tool, arguments or {}, caller, Redactor(()), "")
    attempt.reason = "the caller has no such tool"
    outcome = {"success": False, "output": None, "error": error.as_dict(), "duration_ms": 0.0}
    return replace(attempt.execution("denied", None, error), access="", result=outcome)


def failure_in(result: Mapping[str, Any]) -> dict[str, Any]:
    """Why a call failed, as `{code, message, hint, …}`: our error, or the upstream's answer."""
    error = (result.get("structuredContent") or {}).get("error")
    if isinstance(error, dict) and error.get("code") in CODES:
        return error
    return {"code": "upstream_error", "message": str(output_of(result)), "hint": ""}


def output_of(result: Mapping[str, Any] | None) -> Any:
    """The content of a result, for history and REST: its structure, else its text."""
    if not result:
        return None
    if "structuredContent" in result:
        return result["structuredContent"]
    texts = [part["text"] for part in result.get("content", ()) if part.get("type") == "text"]
    return "\n".join(texts)


def _limit_size(value: Any, bound: int) -> Any:
    """The value, or the beginning of its text where the value is too large for a history."""
    text = json_bytes(value)
    if len(text) <= bound:
        return value
    preview = text[:PREVIEW_CHARS].decode("utf-8", "ignore")
    return {"truncated": True, "bytes": len(text), "preview": preview}


def recorded_values(names: Sequence[str], result: Result) -> dict[str, Any] | None:
    """The values of an answer that are kept beside its token, by the names of their fields."""
    body = _body(result) if names else None
    values = {name: _find_field(body, name) for name in names}
    small_values = {n: v for n, v in values.items() if len(json_bytes(v)) <= MAX_RECORDED_BYTES}
    return {name: value for name, value in small_values.items() if value is not None} or None


def _body(result: Result) -> Any:
    if "structuredContent" in result:
        return result["structuredContent"]
    for part in result.get("content", ()):
        with suppress(KeyError, orjson.JSONDecodeError):  # a part that is no text, or no JSON
            return orjson.loads(part["text"])
    return None


def _find_field(value: Any, name: str) -> Any:
    """The value of the first field of this name; an object's own fields come before inner ones."""
    if isinstance(value, dict):
        if value.get(name) is not None:
            return value[name]
        value = list(value.values())
    inside = map(_find_field, value, repeat(name)) if isinstance(value, list) else ()
    return next((found for found in inside if found is not None), None)


def with_token(result: Result, token: str | None) -> Result:
    """The result with its token, for programs and as the last line of its text."""
    if token is None:
        return result
    return with_line(result, f"Idempotency token: {token}", {TOKEN_META: token})


def with_line(result: Result, text: str, meta: Mapping[str, Any]) -> Result:
    """The result with one more line of text for models; `meta` tells programs the same."""
    return {
        **result,
        "content": [*result.get("content", ()), {"type": "text", "text": text}],
        "_meta": {**result.get("_meta", {}), **meta},
    }


def mention_rename(result: Result, name: str, tool: Tool) -> Result:
    """The result of a call by this name; where the tool had that name before, it says so."""
    if name == tool.name or "content" not in result:  # a question to the client has none
        return result
    words = f"{name} is called {tool.name} now, and answers to the old name for 30 days at most."
    return with_line(result, words, {RENAMED_META: {"from": name, "to": tool.name}})


def status_of_result(result: Result) -> ExecutionStatus:
    """The status of a call that had this result."""
    return "failed" if result.get("isError") else "completed"


def is_upstream_refusal(error: GatewayError) -> bool:
    """Whether it is the other side's own refusal: known, and final."""
    is_readable = not isinstance(error, UpstreamUnreadable)
    return is_readable and error.code in ("upstream_error", "sign_in_required")


def status_of_error(error: GatewayError) -> ExecutionStatus:
    """The status of a call after this error."""
    if error.code == "approval_expired" and not isinstance(error, ApprovalVoid):
        return "expired"
    if error.code == "outcome_unknown" or error.details.get("outcome") == "unknown":
        return "unknown"
    return "denied" if isinstance(error, Refused) else "failed"
