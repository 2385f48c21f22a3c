"""Sends one call to an upstream MCP server, and takes its result over as it is.

Injected values go in here and nowhere else. Nothing of the client travels along: no header, no
token, no `_meta` but what the gateway itself puts there. A result over the bound becomes a preview
that `read_result` can continue, like any other large answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import orjson

from gateway.config.connection import McpConnection
from gateway.errors import UpstreamFailed
from gateway.invoke.attempt import Attempt
from gateway.invoke.caller import Elicit, Progress
from gateway.invoke.limits import Limits
from gateway.invoke.output import HEAVY_BYTES, PREVIEW_CHARS
from gateway.invoke.prepared import Prepared
from gateway.model import Tool
from gateway.store.database import Database
from gateway.store.results import LargeResult, save_result

RESULT_SECONDS = 3600.0

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
        self._limits.take(prepared.name, caller.principal.name, prepared.rate_limit)
        async with self._limits.call(prepared.name) as outcome:
            try:
                result = await self._sessions.call(
                    prepared.name,
                    operation.tool,
                    arguments,
                    progress=caller.progress,
                    elicit=_question(caller.elicit),
                )
            except UpstreamFailed as error:
                if error.code != "upstream_error":
                    outcome.failed()
                raise
            outcome.answered(200)
        return await self._taken_over(attempt, result)

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


def _question(elicit: Elicit | None) -> Question | None:
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
