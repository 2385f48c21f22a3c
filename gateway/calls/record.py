"""Who calls (`Caller`), the call on its way (`Attempt`), and the one record it ends in.

Ledger row, metrics, log line and console feed are all read off the `Execution` that an attempt
makes of itself; nothing else is written down about a call. The results that are ours are worded
here too: failed calls, and calls that go on without their caller. The model reads the sentence,
programs read the structure, and both find the execution's id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import repeat
from typing import Any, Literal

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from gateway.calls.answer import own_result
from gateway.calls.redact import Redactor, redact_arguments
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import (
    CODES,
    ApprovalVoid,
    GatewayError,
    Refused,
    UpstreamFailed,
    UpstreamRefused,
)
from gateway.limits import MAX_QUOTE_CHARS, MAX_RECORDED_BYTES, PREVIEW_CHARS
from gateway.model import HEADERS_META, Principal, Result, Scope, Tool, json_bytes, new_id
from gateway.naming import cut
from gateway.store.tables import Execution, ExecutionStatus

# What results and calls say of themselves in `_meta`.
TOKEN_META = "gateway/idempotency_token"
BACKGROUND_META = "gateway/background"
WARNINGS_META = "gateway/warnings"
ELICIT = "elicitation/create"  # the method that asks a client's user something
UNATTENDED = "unattended"  # in place of an era: nobody waits, it runs by itself once approved
# The other side's own refusal: known, and final.
REFUSED_UPSTREAM = ("upstream_error", "sign_in_required")

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
AskClient = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]  # method, params → result
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]  # questions → answers, by key
Notice = Callable[[str, Mapping[str, Any]], None]
Era = Literal["2025", "2026", "rest", "console"]
Door = Mapping[str, Any]  # how a call came in, as data: by this any process finds its tool again
# The tool behind a door, and the one that permissions are asked about. Raises UnknownTool or one of
# our errors where the caller has it no longer.
FindTool = Callable[[Door, Snapshot, Principal], tuple[Tool, Tool]]


class Caller(Struct):
    """Who makes a call, and how they can be reached while it runs; each door fills in its own."""

    principal: Principal
    scope: Scope = Scope()
    era: Era = "rest"
    session: str | None = None  # stable id of the session, where the era has them
    client: str = ""  # name/version as the client says, bounded
    capabilities: Mapping[str, Any] = {}
    meta: Mapping[str, Any] = {}
    progress: Progress | None = None  # None: the caller did not ask for it
    ask: AskClient | None = None  # None: this client can't be asked on this request
    input_responses: Mapping[str, Any] | None = None  # 2026: answers to an InputRequiredResult
    request_state: str | None = None
    gone: Callable[[], bool] = lambda: False  # whether the client has hung up
    notice: Notice | None = None  # takes log messages of this call; None: the client reads none
    log_level: str | None = None  # from which level on
    askable: Mapping[str, Any] = {}  # what an upstream may ask of it
    withheld: frozenset[str] = frozenset()  # what it offers and an untrusted upstream may not have
    refused: Callable[[UpstreamRefused], None] | None = None  # told an upstream's own error


def name_of_client(client: str) -> str:
    """The name of `name/version`: a client that was updated is the same one."""
    return client.rpartition("/")[0] or client.strip("/")


class Attempt(Struct):
    """One call on its way: what is known of it as it goes along."""

    snapshot: Snapshot
    tool: Tool
    judged: Tool  # what permissions are asked about: another one than the tool for raw requests
    arguments: Mapping[str, Any]
    caller: Caller
    door: Door
    redactor: Redactor
    replica: str
    bundle_ids: tuple[str, ...] = ()
    unattended: bool = False  # nobody waits for the answer
    at: float = msgspec.field(default_factory=time.time)
    began: float = msgspec.field(default_factory=time.perf_counter)
    id: str = msgspec.field(default_factory=lambda: new_id(time.time()))
    reason: str = ""
    granted: Mapping[str, Any] | None = None  # the standing grant that allows it
    upstream_status: int | None = None
    sent_at: float | None = None
    retried_at: float | None = None
    upstream_ms: float | None = None  # how much of the time was the upstream's
    token: str | None = None
    token_given: bool = False  # by the caller, so it may have been used before
    background: bool = False  # unattended from the start: the outcome is read from its record
    recorded: Mapping[str, Any] | None = None
    warnings: Sequence[Mapping[str, str]] = ()  # of arguments that were sent all the same
    put: Ask | None = None  # how its client is asked, where that is not on its own stream

    @property
    def state(self) -> ConnectionState:
        return self.snapshot.connections[self.tool.connection]

    @property
    def principal(self) -> str:
        return self.caller.principal.name

    @property
    def names(self) -> tuple[str, ...]:
        """What the tool is called, and was called before: what was said of either is obeyed."""
        return self.snapshot.names_of(self.tool)

    @property
    def max_output_bytes(self) -> int:
        return self.snapshot.settings.limits.max_output_bytes

    @property
    def may_be_held(self) -> bool:
        """Whether a server's question can be the answer to this call."""
        asks = self.tool.upstream is not None and not self.unattended
        return asks and self.caller.era == "2026" and bool(self.caller.askable)

    @property
    def duration_ms(self) -> float:
        return round((time.perf_counter() - self.began) * 1000, 2)

    @property
    def args_digest(self) -> str:
        """Names exactly these arguments, however they are ordered."""
        return sha256(self._written_arguments()).hexdigest()

    def _written_arguments(self) -> bytes:
        try:
            return orjson.dumps(self.arguments, option=orjson.OPT_SORT_KEYS)
        except TypeError:  # huge numbers, lone surrogates
            return json.dumps(self.arguments, sort_keys=True).encode()

    @property
    def bound_to(self) -> list[str]:
        """Who calls what with which arguments: what a client hands back is good for this alone."""
        return [self.principal, self.tool.name, self.args_digest]

    def execution(
        self,
        status: ExecutionStatus,
        result: Mapping[str, Any] | None = None,
        error: GatewayError | None = None,
    ) -> Execution:
        """The record of a call in this state; `result` is what the caller gets."""
        tool, caller = self.tool, self.caller
        failure = self.redactor.json(error.as_dict()) if error is not None else None
        if failure is None and status == "failed" and result is not None:
            failure = failure_in(result)
        if isinstance(error, UpstreamFailed) and not error.sent:
            self.sent_at = None  # nothing of it went out
        finished = status not in ("executing", "pending_confirmation")
        written = self._written_arguments()
        return Execution(
            id=self.id,
            tool=tool.name,
            connection=tool.connection,
            principal=self.principal,
            status=status,
            access=tool.access,
            risk=tool.risk,
            arguments=self._shown_arguments(written),
            args_digest=sha256(written).hexdigest(),
            created_at=self.at,
            revision=self.snapshot.revision,
            result=self._outcome(status, result, failure) if finished else None,
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

    def _shown_arguments(self, written: bytes) -> Any:
        """The arguments for people: secrets masked, bounded."""
        try:
            masked = redact_arguments(dict(self.arguments))
        except RecursionError:
            return {"truncated": True, "preview": "nested too deeply to be shown"}
        if len(written) <= MAX_RECORDED_BYTES and self.redactor.bytes(written) is written:
            return masked  # as nearly always: there is nothing to clear
        return _bounded(self.redactor.json(masked), MAX_RECORDED_BYTES)

    def _outcome(
        self,
        status: ExecutionStatus,
        result: Mapping[str, Any] | None,
        failure: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        # Whoever reads it later has no other place to read it from.
        bound = 2 * self.max_output_bytes if self.background else MAX_RECORDED_BYTES
        outcome: dict[str, Any] = {
            "success": status == "completed",
            "output": None if failure else _bounded(output_of(result), bound),
            "error": failure and _bounded(failure, bound),
            "duration_ms": self.duration_ms,
        }
        if self.upstream_ms is not None:
            outcome["upstream_ms"] = self.upstream_ms
            outcome["sent_at"] = self.sent_at
            if self.retried_at is not None:
                outcome["retried_at"] = self.retried_at
        if headers := (result or {}).get("_meta", {}).get(HEADERS_META):
            outcome["headers"] = headers
        if self.token is not None and result is not None:
            outcome["answer"] = result  # the first answer, for whoever asks again with the token
        return outcome

    def failure_result(self, error: GatewayError) -> Result:
        """What the caller of a failed call gets."""
        shown = {"error": self.redactor.json(error.as_dict())}
        text, status = self.redactor.text(error.sentence), status_of(error)
        return self._own_result(status, text, shown)

    def pending_result(self, status: ExecutionStatus, text: str) -> Result:
        """What the caller gets of a call whose outcome is to be read later."""
        shown = {"execution_id": self.id, "status": status}
        return self._own_result(status, f"{text} get_execution {self.id} tells how.", shown)

    def _own_result(self, status: ExecutionStatus, text: str, structured: Result) -> Result:
        result = own_result(text, structured, failed="error" in structured)
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
        """The result with what it says of its call; warnings for programs and as text."""
        result = {**result, "_meta": {**result.get("_meta", {}), **self.meta(status_in(result))}}
        if not self.warnings:
            return result
        warnings = self.redactor.json(list(self.warnings))
        words = "; ".join(f"{each['path']}: {each['message']}" for each in warnings)
        return with_line(result, f"Warnings: {words}", {WARNINGS_META: warnings})

    def meta(self, status: ExecutionStatus) -> dict[str, Any]:
        """What every result says of its call."""
        return {
            "gateway/execution_id": self.id,
            "gateway/status": status,
            "gateway/duration_ms": self.duration_ms,
        }

    def unknown(self, cause: str = "internal") -> UpstreamFailed:
        """The error for a call that may or may not have happened."""
        return UpstreamFailed(
            "outcome_unknown",
            f"{self.tool.name} was sent, and nobody knows whether it was carried out.",
            "Look at the other side before you try again; a new attempt needs a new token.",
            cause=cause,
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
    name = cut(tool, MAX_QUOTE_CHARS)
    none = Tool(name, name, connection, None, "", "", "read", "none", "untrusted", "", "")
    attempt = Attempt(snapshot, none, none, arguments or {}, caller, {}, Redactor(()), "")
    attempt.reason = "the caller has no such tool"
    told = {"success": False, "output": None, "error": error.as_dict(), "duration_ms": 0.0}
    return replace(attempt.execution("denied", None, error), access="", result=told)


def failure_in(result: Mapping[str, Any]) -> dict[str, Any]:
    """Why a call failed, as `{code, message, hint, …}`: our reason, or the upstream's answer."""
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
    if len(text) <= bound:
        return value
    shown = text[:PREVIEW_CHARS].decode("utf-8", "ignore")
    return {"truncated": True, "bytes": len(text), "preview": shown}


def recorded_values(names: Sequence[str], result: Result) -> dict[str, Any] | None:
    """The values of an answer to be kept beside its token, by the names of their fields."""
    body = _body(result) if names else None
    found = {name: _named(body, name) for name in names}
    small = {n: v for n, v in found.items() if len(json_bytes(v)) <= MAX_RECORDED_BYTES}
    return {name: value for name, value in small.items() if value is not None} or None


def _body(result: Result) -> Any:
    if "structuredContent" in result:
        return result["structuredContent"]
    for part in result.get("content", ()):
        with suppress(KeyError, orjson.JSONDecodeError):  # what is no text, or no JSON
            return orjson.loads(part["text"])
    return None


def _named(value: Any, name: str) -> Any:
    """The value of the first field of this name, one of an object before those inside it."""
    if isinstance(value, dict):
        if value.get(name) is not None:
            return value[name]
        value = list(value.values())
    inside = map(_named, value, repeat(name)) if isinstance(value, list) else ()
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


def status_in(result: Result) -> ExecutionStatus:
    """The state a call is in that had this result."""
    return "failed" if result.get("isError") else "completed"


def status_of(error: GatewayError) -> ExecutionStatus:
    """The state a call is in after this error."""
    if error.code == "approval_expired" and not isinstance(error, ApprovalVoid):
        return "expired"
    if error.code == "outcome_unknown" or error.details.get("outcome") == "unknown":
        return "unknown"
    return "denied" if isinstance(error, Refused) else "failed"
