"""Sends one HTTP operation: request, credentials, limits around the exchange, answer, result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from gateway.config.connection import Connection
from gateway.errors import UpstreamFailed
from gateway.invoke.attempt import HEADERS_META, Attempt
from gateway.invoke.charset import in_utf8
from gateway.invoke.credentials import Credentials, send_granted
from gateway.invoke.elsewhere import Elsewhere
from gateway.invoke.envelope import enveloped, opened
from gateway.invoke.limits import LargeRoom, Limits, Outcome
from gateway.invoke.media import HEAVY_BYTES
from gateway.invoke.output import Shaped, shape
from gateway.invoke.prepared import Prepared, redactor_with
from gateway.invoke.request import build_request, with_headers
from gateway.invoke.results import keep_result
from gateway.outbound.client import Answer, Egress, NoAnswer, Request
from gateway.store.database import Database

MAX_ANSWER_BYTES = 16 * 1024 * 1024

SignInLink = Callable[[str, Connection], Awaitable[str | None]]


class HttpSender:
    """Carries out calls whose target is an HTTP operation."""

    def __init__(
        self,
        egress: Egress,
        own_egress: Egress,
        credentials: Credentials,
        limits: Limits,
        db: Database,
        elsewhere: Elsewhere,
        sign_in_link: SignInLink,
    ) -> None:
        self._egress = egress
        self._own_egress = own_egress
        self._credentials = credentials
        self._limits = limits
        self._db = db
        self._elsewhere = elsewhere
        self._sign_in_link = sign_in_link

    async def __call__(self, attempt: Attempt, prepared: Prepared) -> dict[str, Any]:
        operation = attempt.tool.http
        assert operation is not None
        arguments = {**attempt.arguments, **prepared.inject}
        request = build_request(operation, arguments, prepared.blocklist)
        if operation.idempotency_header is not None and attempt.token is not None:
            request = with_headers(request, ((operation.idempotency_header, attempt.token),))
        most = attempt.snapshot.settings.limits.max_output_bytes
        with self._limits.large(prepared.name, more_than=most) as room:
            answer = await self.exchange(attempt, prepared, request, operation.base_url, room)
            return await self.result(attempt, answer)

    async def exchange(
        self,
        attempt: Attempt,
        prepared: Prepared,
        request: Request,
        base_url: str,
        room: LargeRoom,
    ) -> Answer:
        """One request of a connection, with its headers and credentials and within its limits."""
        request = with_headers(request, prepared.headers)
        envelope = prepared.envelope
        if envelope is not None:
            request = enveloped(request, base_url, envelope)
        principal = attempt.caller.principal.name
        await self._limits.admit(prepared.name, principal, prepared.rate_limit)
        async with self._limits.call(prepared.name) as outcome:

            async def send(granted: Request) -> Answer:
                return await self._send(attempt, prepared, granted, outcome, room)

            answer, grant = await send_granted(
                self._credentials, prepared.vouched_by, prepared.auth, request, base_url, send
            )
            if envelope is not None:
                answer = await opened(answer, self._elsewhere)
            outcome.answered(answer.status, answer.header("retry-after"))
        attempt.redactor = redactor_with(prepared, grant)
        attempt.upstream_status = answer.status
        if answer.status >= 400:
            await self._refuse_signed_out(attempt, answer.status)
        return answer

    async def _refuse_signed_out(self, attempt: Attempt, status: int) -> None:
        """Raises where a person can mend the failure by signing the connection in."""
        state = attempt.state
        if status != 401 and state.status != "unauthenticated":
            return
        link = await self._sign_in_link(state.name, state.settings)
        if link is not None:
            raise UpstreamFailed(
                "sign_in_required",
                f"{state.display_name} is not signed in: the API answered {status}.",
                f"Have a person sign it in, then call again: {link}",
                sign_in_url=link,
                status=status,
            )

    async def _send(
        self,
        attempt: Attempt,
        prepared: Prepared,
        request: Request,
        outcome: Outcome,
        room: LargeRoom,
    ) -> Answer:
        limits = attempt.snapshot.settings.limits
        egress = self._own_egress if attempt.state.origin == "demo" else self._egress
        seconds = prepared.settings.timeout_seconds or limits.call_timeout_seconds
        most, tls = max(MAX_ANSWER_BYTES, limits.max_output_bytes), prepared.tls
        began = time.perf_counter()
        try:
            answer = await egress.send(
                request, deadline=seconds, max_bytes=most, room=room, tls=tls
            )
        except NoAnswer as error:
            if not outcome.may_retry(request.method, error):
                outcome.failed()
                raise
            answer = await egress.send(
                request, deadline=seconds, max_bytes=most, room=room, tls=tls
            )
        finally:
            attempt.upstream_ms = (time.perf_counter() - began) * 1000
        return answer

    async def result(self, attempt: Attempt, answer: Answer) -> dict[str, Any]:
        """The answer as a tool's result; a large one is kept for its caller to read in parts."""
        if len(answer.body) > HEAVY_BYTES:
            shaped = await asyncio.to_thread(_shaped, attempt, answer)
        else:
            shaped = _shaped(attempt, answer)
        if shaped.oversized is not None:
            owner, media_type = attempt.caller.principal.name, shaped.media_type
            await keep_result(
                self._db,
                self._elsewhere,
                attempt.id,
                owner,
                media_type,
                shaped.oversized,
                cut=shaped.cut,
            )
        result: dict[str, Any] = {"content": shaped.content, "isError": shaped.is_error}
        if shaped.structured is not None:
            result["structuredContent"] = shaped.structured
        if shaped.headers is not None:
            result["_meta"] = {HEADERS_META: shaped.headers}
        return result


def _shaped(attempt: Attempt, answer: Answer) -> Shaped:
    redactor = attempt.redactor
    answer = in_utf8(answer)
    if redactor:
        headers, body = redactor.pairs(answer.headers), redactor.bytes(answer.body)
        if headers is not answer.headers or body is not answer.body:
            answer = replace(answer, body=body, headers=headers)
    bound = attempt.snapshot.settings.limits.max_output_bytes
    more = attempt.tool.http.headers_out if attempt.tool.http else ()
    return shape(answer, max_output_bytes=bound, result_id=attempt.id, headers_out=more)
