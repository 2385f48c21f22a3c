"""Sends one call to an upstream MCP server, and takes its result over as it is.

Injected values go in here and nowhere else. Nothing of the client travels along: no header, no
token, no `_meta` but the level from which on it reads logs. A result over the bound becomes a
preview that `read_result` can continue, like any other large answer.

A server's question goes to a client that can answer: on the call's own stream, or, in 2026-07-28,
as the answer itself, to which the client replies by calling again. The latter only for calls that
neither a person approved nor a token protects: both are for one call, and calling again is another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import orjson

from gateway.config.connection import McpConnection
from gateway.errors import UpstreamFailed, UpstreamRefused
from gateway.invoke.attempt import Attempt
from gateway.invoke.caller import Elicit, Notice, Progress
from gateway.invoke.limits import Limits
from gateway.invoke.output import HEAVY_BYTES, PREVIEW_CHARS
from gateway.invoke.prepared import Prepared
from gateway.invoke.redact import Redactor
from gateway.model import Tool
from gateway.policy.decide import decide
from gateway.store.database import Database
from gateway.store.results import LargeResult, save_result

RESULT_SECONDS = 3600.0
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
ASKED_BY: Mapping[str, str] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

Question = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class Sessions(Protocol):
    """The part of the upstream sessions that a call needs."""

    async def call(
        self,
        name: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        deadline: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        elicit: Question | None = None,
        notice: Notice | None = None,
        capabilities: Mapping[str, Any] | None = None,
        relay_input: bool = False,
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
    ) -> dict[str, Any]: ...


class UpstreamSender:
    """Carries out calls whose target is an upstream MCP server's tool."""

    def __init__(self, sessions: Sessions, limits: Limits, db: Database) -> None:
        self._sessions = sessions
        self._limits = limits
        self._db = db

    async def __call__(self, attempt: Attempt, prepared: Prepared) -> dict[str, Any]:
        operation, caller = attempt.tool.upstream, attempt.caller
        assert operation is not None
        arguments = {**attempt.arguments, **injected(attempt.tool, prepared)}
        if operation.idempotency_field is not None:
            arguments[operation.idempotency_field] = attempt.token
        await self._limits.admit(prepared.name, caller.principal.name, prepared.rate_limit)
        async with self._limits.call(prepared.name) as outcome:
            began = time.perf_counter()
            try:
                result = await self._call(attempt, prepared.name, operation.tool, arguments)
            except UpstreamRefused as error:
                if caller.refused is not None:
                    caller.refused(cleared_refusal(error, attempt.redactor))
                raise
            except UpstreamFailed as error:
                if error.code != "upstream_error":
                    outcome.failed()
                raise
            finally:
                attempt.upstream_ms = (time.perf_counter() - began) * 1000
            outcome.answered(200)
        return await self._taken_over(attempt, result)

    async def _call(
        self, attempt: Attempt, name: str, tool: str, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        caller = attempt.caller
        relays = bool(caller.askable) and attempt.token is None and _is_free(attempt)
        result = await self._sessions.call(
            name,
            tool,
            arguments,
            progress=caller.progress,
            meta={LOG_LEVEL: caller.log_level} if caller.log_level else None,
            elicit=question(caller.elicit),
            notice=caller.notice,
            capabilities=caller.askable if relays else None,
            relay_input=relays,
            input_responses=caller.input_responses if relays else None,
            request_state=caller.request_state if relays else None,
        )
        return relayed(result, caller.askable) if relays else result

    async def _taken_over(self, attempt: Attempt, result: dict[str, Any]) -> dict[str, Any]:
        try:
            raw = orjson.dumps(result)
        except TypeError as error:
            raise UpstreamFailed(
                "upstream_error", "The server's answer is nested too deeply"
            ) from error
        bound = attempt.snapshot.settings.limits.max_output_bytes
        if len(raw) > HEAVY_BYTES:
            cleared = await asyncio.to_thread(attempt.redactor.bytes, raw)
        else:
            cleared = attempt.redactor.bytes(raw)
        if len(cleared) > bound:
            return await self._kept(attempt, cleared, bool(result.get("isError")))
        taken: dict[str, Any] = result if cleared is raw else orjson.loads(cleared)
        if "resultType" in taken:  # a question, not an answer
            return taken
        return {**taken, "content": taken.get("content", []), "isError": bool(taken.get("isError"))}

    async def _kept(self, attempt: Attempt, raw: bytes, is_error: bool) -> dict[str, Any]:
        owner, until = attempt.caller.principal.name, time.time() + RESULT_SECONDS
        await save_result(self._db, LargeResult(attempt.id, owner, "application/json", raw, until))
        preview = raw[: PREVIEW_CHARS * 4].decode("utf-8", "ignore")[:PREVIEW_CHARS]
        text = (
            f"The answer is too large to show: {len(raw)} bytes. Read it in parts with read_result "
            f"and result_id {attempt.id!r}. It begins:\n\n{preview}"
        )
        return {
            "content": [{"type": "text", "text": text}],
            "structuredContent": {
                "truncated": True,
                "bytes": len(raw),
                "result_id": attempt.id,
                "preview": preview,
            },
            "isError": is_error,
        }


def cleared_refusal(error: UpstreamRefused, redactor: Redactor) -> UpstreamRefused:
    """What a server said in place of a result, without secrets."""
    told = UpstreamRefused(error.code, error.message, error.hint, **error.details)
    told.rpc_code = error.rpc_code
    told.rpc_message = redactor.text(error.rpc_message)
    told.rpc_data = redactor.json(error.rpc_data)
    return told


def relayed(result: dict[str, Any], askable: Mapping[str, Any]) -> dict[str, Any]:
    """A result for a client of 2026; what it can't be asked for is the server's fault."""
    if result.get("resultType") != "input_required":
        return result
    questions = result.get("inputRequests") or {}
    asked = [q.get("method") if isinstance(q, Mapping) else None for q in questions.values()]
    if any(ASKED_BY.get(str(method)) not in askable for method in asked):
        raise UpstreamFailed(
            "upstream_error",
            "The server asks for something that this client does not offer, or not through here",
            "Use a client that can be asked, or connect it to the server directly.",
        )
    return result


def _is_free(attempt: Attempt) -> bool:
    judged = attempt.door.judged if attempt.door else None
    return decide(judged or attempt.tool, attempt.snapshot.permissions).outcome == "allow"


def question(elicit: Elicit | None) -> Question | None:
    """An upstream's question to its user, put to the user of our client."""
    if elicit is None:
        return None

    async def ask(params: Mapping[str, Any]) -> Mapping[str, Any]:
        if "requestedSchema" not in params:
            return {"action": "decline"}  # only forms can be passed on
        return await elicit(str(params.get("message", "")), dict(params["requestedSchema"]))

    return ask


def injected(tool: Tool, prepared: Prepared) -> Mapping[str, Any]:
    """The values that are filled in for the caller: the connection's, and the wrapped tool's."""
    operation, settings = tool.upstream, prepared.settings
    assert operation is not None and isinstance(settings, McpConnection)
    values = dict(settings.inject)
    for rule in settings.wrap:
        if rule.tool == operation.tool and rule.as_ in (None, tool.name):
            values |= rule.inject
    return {name: value for name, value in values.items() if name in operation.inject}
