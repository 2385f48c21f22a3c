"""Sends one HTTP operation: request, credentials, exchange, answer, result."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from gateway.egress import Answer, Egress, Request
from gateway.invoke.attempt import Attempt
from gateway.invoke.output import HEAVY_BYTES, Shaped, shape
from gateway.invoke.prepared import Prepared
from gateway.invoke.request import build_request
from gateway.store.database import Database
from gateway.store.results import LargeResult, save_result

MAX_ANSWER_BYTES = 16 * 1024 * 1024
RESULT_SECONDS = 3600.0


class HttpSender:
    """Carries out calls whose target is an HTTP operation."""

    def __init__(self, egress: Egress, own_egress: Egress, db: Database) -> None:
        self._egress = egress
        self._own_egress = own_egress
        self._db = db

    async def __call__(self, attempt: Attempt, prepared: Prepared) -> dict[str, Any]:
        operation = attempt.tool.http
        assert operation is not None
        arguments = {**attempt.arguments, **prepared.inject}
        request = build_request(operation, arguments, prepared.blocklist)
        answer = await self._exchange(attempt, prepared, request)
        attempt.upstream_status = answer.status
        return await self._result(attempt, prepared, answer)

    async def _exchange(self, attempt: Attempt, prepared: Prepared, request: Request) -> Answer:
        limits = attempt.snapshot.settings.limits
        egress = self._own_egress if attempt.state.origin == "demo" else self._egress
        seconds = prepared.settings.timeout_seconds or limits.call_timeout_seconds
        request = replace(request, headers=(*request.headers, *prepared.headers))
        return await egress.send(
            request, deadline=seconds, max_bytes=max(MAX_ANSWER_BYTES, limits.max_output_bytes)
        )

    async def _result(self, attempt: Attempt, prepared: Prepared, answer: Answer) -> dict[str, Any]:
        bound = attempt.snapshot.settings.limits.max_output_bytes
        if len(answer.body) > HEAVY_BYTES:
            shaped = await asyncio.to_thread(_shaped, answer, prepared, bound, attempt.id)
        else:
            shaped = _shaped(answer, prepared, bound, attempt.id)
        if shaped.oversized is not None:
            await self._keep(attempt, shaped)
        result: dict[str, Any] = {"content": shaped.content, "isError": shaped.is_error}
        if shaped.structured is not None:
            result["structuredContent"] = shaped.structured
        return result

    async def _keep(self, attempt: Attempt, shaped: Shaped) -> None:
        assert shaped.oversized is not None
        kept = LargeResult(
            attempt.id,
            attempt.caller.principal.name,
            shaped.media_type,
            shaped.oversized,
            time.time() + RESULT_SECONDS,
        )
        await save_result(self._db, kept)


def _shaped(answer: Answer, prepared: Prepared, bound: int, result_id: str) -> Shaped:
    redacted = replace(
        answer,
        body=prepared.redactor.bytes(answer.body),
        headers=prepared.redactor.pairs(answer.headers),
    )
    return shape(redacted, max_output_bytes=bound, result_id=result_id)
