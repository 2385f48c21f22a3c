"""Sends one HTTP operation: request, credentials, limits around the exchange, answer, result.

Sends one call to an upstream MCP server, and takes its result over as it is.

Injected values go in here and nowhere else. Nothing of the client travels along: no header, no
token, no `_meta` but the level from which on it reads logs. A result over the bound becomes a
preview that `read_result` can continue, like any other large answer.

A server's question goes to a client that can answer (see `questions`), and is declined for others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import orjson
from msgspec.structs import replace

from gateway.azure.envelope import enveloped, opened
from gateway.calls.admission import Admission, Holds, LargeRoom, Outcome
from gateway.calls.answer import PREVIEW_CHARS, Shaped, shape, with_text_in_utf8
from gateway.calls.credentials import Credentials, Prepared, redactor_with, send_granted
from gateway.calls.held import asker
from gateway.calls.limits import HEAVY_BYTES, RESULT_SECONDS
from gateway.calls.record import HEADERS_META, Ask, Attempt, Notice, Progress
from gateway.calls.redact import Redactor
from gateway.calls.request import build_request, with_headers
from gateway.calls.tokens import recorded_values
from gateway.config.connection import Connection, McpConnection
from gateway.errors import UpstreamFailed, UpstreamRefused
from gateway.model import Tool
from gateway.outbound.client import Answer, Egress, NoAnswer, Request
from gateway.outbound.content import Work
from gateway.policy.access import decide
from gateway.store.database import Database
from gateway.store.results import LargeResult, save_result

MAX_ANSWER_BYTES = 16 * 1024 * 1024

SignInLink = Callable[[str, Connection], Awaitable[str | None]]


class HttpSender:
    """Carries out calls whose target is an HTTP operation."""

    def __init__(
        self,
        egress: Egress,
        own_egress: Egress,
        credentials: Credentials,
        limits: Admission,
        db: Database,
        work: Work,
        sign_in_link: SignInLink,
    ) -> None:
        self._egress = egress
        self._own_egress = own_egress
        self._credentials = credentials
        self._limits = limits
        self._db = db
        self._work = work
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
                answer = await opened(answer, self._work)
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
            await _keep_result(self._db, attempt, shaped.media_type, shaped.oversized)
        result: dict[str, Any] = {"content": shaped.content, "isError": shaped.is_error}
        if shaped.structured is not None:
            result["structuredContent"] = shaped.structured
        if shaped.headers is not None:
            result["_meta"] = {HEADERS_META: shaped.headers}
        return result


async def _keep_result(db: Database, attempt: Attempt, media_type: str, body: bytes) -> None:
    """Keeps a large answer for its caller to read in parts, under the call's own id."""
    owner, until = attempt.caller.principal.name, time.time() + RESULT_SECONDS
    await save_result(db, LargeResult(attempt.id, owner, len(body), media_type, body, until))


def _shaped(attempt: Attempt, answer: Answer) -> Shaped:
    redactor = attempt.redactor
    answer = with_text_in_utf8(answer)
    if redactor:
        headers, body = redactor.pairs(answer.headers), redactor.bytes(answer.body)
        if headers is not answer.headers or body is not answer.body:
            answer = replace(answer, body=body, headers=headers)
    bound = attempt.snapshot.settings.limits.max_output_bytes
    more = attempt.tool.http.headers_out if attempt.tool.http else ()
    return shape(answer, max_output_bytes=bound, result_id=attempt.id, headers_out=more)


LOG_LEVEL = "io.modelcontextprotocol/logLevel"
MOST_TEXT_PER_DATA = 5  # an answer that is so much larger than its data has more to say


class Sessions(Protocol):
    """The part of the upstream sessions that a call needs."""

    async def call(
        self,
        name: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        principal: str | None = None,
        deadline: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        ask: Ask | None = None,
        notice: Notice | None = None,
        capabilities: Mapping[str, Any] | None = None,
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
        holds: Holds | None = None,
    ) -> dict[str, Any]: ...


class UpstreamSender:
    """Carries out calls whose target is an upstream MCP server's tool."""

    def __init__(self, sessions: Sessions, limits: Admission, db: Database) -> None:
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
        most = attempt.snapshot.settings.limits.max_output_bytes
        with self._limits.large(prepared.name, more_than=most) as room:
            result = await self._answer(attempt, prepared.name, operation.tool, arguments, room)
            if found := recorded_values(operation.record, result):  # before the answer is cut
                attempt.recorded = attempt.redactor.json(found)
            return await self._taken_over(attempt, result)

    async def _answer(
        self,
        attempt: Attempt,
        name: str,
        tool: str,
        arguments: Mapping[str, Any],
        room: LargeRoom,
    ) -> dict[str, Any]:
        async with self._limits.call(name) as outcome:
            began = time.perf_counter()
            try:
                result = await self._call(attempt, name, tool, arguments, room)
            except UpstreamRefused as error:
                if (told := attempt.caller.refused) is not None:
                    told(cleared_refusal(error, attempt.redactor))
                raise
            except UpstreamFailed as error:
                if error.code != "upstream_error":
                    outcome.failed()
                raise
            finally:
                attempt.upstream_ms = (time.perf_counter() - began) * 1000
            outcome.answered(200)
        return result

    async def _call(
        self,
        attempt: Attempt,
        name: str,
        tool: str,
        arguments: Mapping[str, Any],
        room: LargeRoom,
    ) -> dict[str, Any]:
        caller, seconds = attempt.caller, attempt.snapshot.permissions.timeout_seconds
        asks = None if attempt.unattended else asker(caller, attempt.redactor, seconds, attempt.put)
        # What a client says unasked is for the server, unless it is for who approves.
        unasked = asks is not None and attempt.token is None and _is_free(attempt)
        return await self._sessions.call(
            name,
            tool,
            arguments,
            principal=caller.principal.name,
            progress=_progress(attempt),
            meta={LOG_LEVEL: caller.log_level} if caller.log_level else None,
            ask=asks,
            notice=_notice(attempt),
            capabilities=caller.askable if asks else None,
            input_responses=caller.input_responses if unasked else None,
            request_state=caller.request_state if unasked else None,
            holds=room.holds,
        )

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
            return await self._kept(attempt, result, cleared)
        taken: dict[str, Any] = result if cleared is raw else orjson.loads(cleared)
        return {**taken, "content": taken.get("content", []), "isError": bool(taken.get("isError"))}

    async def _kept(self, attempt: Attempt, result: dict[str, Any], raw: bytes) -> dict[str, Any]:
        """A preview of the answer, in a form that every listed output schema allows."""
        kept = await asyncio.to_thread(_data, result, raw, attempt.redactor)
        await _keep_result(self._db, attempt, "application/json", kept)
        preview = kept[: PREVIEW_CHARS * 4].decode("utf-8", "ignore")[:PREVIEW_CHARS]
        text = (
            f"The answer is too large to show: {len(kept)} bytes. Read it in parts with read_result"
            f" and result_id {attempt.id!r}. It begins:\n\n{preview}"
        )
        return {
            "content": [{"type": "text", "text": text}],
            "structuredContent": {
                "truncated": True,
                "bytes": len(kept),
                "result_id": attempt.id,
                "preview": preview,
            },
            "isError": bool(result.get("isError")),
        }


def _data(result: Mapping[str, Any], raw: bytes, redactor: Redactor) -> bytes:
    """The structured content of an answer, where its text only repeats it; else all of it."""
    if (structured := result.get("structuredContent")) is None:
        return raw
    data = redactor.bytes(orjson.dumps(structured))
    return data if len(data) * MOST_TEXT_PER_DATA >= len(raw) else raw


def cleared_refusal(error: UpstreamRefused, redactor: Redactor) -> UpstreamRefused:
    """What a server said in place of a result, without secrets."""
    told = UpstreamRefused(error.code, error.message, error.hint, **error.details)
    told.rpc_code = error.rpc_code
    told.rpc_message = redactor.text(error.rpc_message)
    told.rpc_data = redactor.json(error.rpc_data)
    return told


def _progress(attempt: Attempt) -> Progress | None:
    """To whoever waits for the call then: its client may have been asked, and called again.

    A call whose outcome is read later has progress too: it puts the call's end off.
    """
    if attempt.caller.progress is None and not attempt.read_later:
        return None

    async def tell(done: float, total: float | None, text: str | None) -> None:
        if (progress := attempt.caller.progress) is not None:
            await progress(done, total, text)

    return tell


def _notice(attempt: Attempt) -> Notice | None:
    if attempt.caller.notice is None:
        return None

    def tell(method: str, params: Mapping[str, Any]) -> None:
        if (notice := attempt.caller.notice) is not None:
            notice(method, params)

    return tell


def _is_free(attempt: Attempt) -> bool:
    judged = attempt.door.judged if attempt.door else None
    return decide(judged or attempt.tool, attempt.snapshot.permissions).outcome == "allow"


def injected(tool: Tool, prepared: Prepared) -> Mapping[str, Any]:
    """The values that are filled in for the caller: the connection's, and the wrapped tool's."""
    operation, settings = tool.upstream, prepared.settings
    assert operation is not None and isinstance(settings, McpConnection)
    values = dict(settings.inject)
    for rule in settings.wrap:
        if rule.tool == operation.tool and rule.as_ in (None, tool.name):
            values |= rule.inject
    return {name: value for name, value in values.items() if name in operation.inject}
