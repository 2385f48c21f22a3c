"""Sends one call, within the connection's limits: as an HTTP request, or to an upstream MCP server.

What the connection adds goes in here and nowhere else: its injected values, headers, credentials
and the idempotency token. Nothing of the client travels along: no header, no token, no `_meta` but
the lowest level of the logs it reads. An upstream's result is taken over as it is, and its question
goes to a client that can answer. A result over the bound becomes a preview, and the whole result is
kept for its caller to read in parts.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import jwt
import orjson

from gateway.azure.connector import unwrap_answer, wrap_request
from gateway.blocklist import may_mean
from gateway.calls.admission import Admission
from gateway.calls.answer import preview_result, shape
from gateway.calls.credentials import AZURE, Credentials, PreparedConnection, proof_of
from gateway.calls.questions import check_questions, make_asker
from gateway.calls.record import Attempt, Caller, Notice, Progress, recorded_values
from gateway.calls.redact import Redactor
from gateway.calls.request import build_request, with_headers
from gateway.config.connection import Connection, McpConnection
from gateway.config.settings import Azure
from gateway.errors import (
    GatewayError,
    Refused,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnreadable,
)
from gateway.limits import AZURE_SECONDS, MAX_ANSWER_BYTES, RESULT_SECONDS, STEP_BYTES
from gateway.model import HttpOperation, Principal, Result, Tool, UpstreamOperation
from gateway.outbound.client import Answer, Egress, NoAnswer, Request
from gateway.outbound.content import RunInWorker
from gateway.policy.access import decide
from gateway.store.database import Database
from gateway.store.ledger import save_result
from gateway.store.tables import LargeResult
from gateway.upstream.protocol import INTERACTIVE, Hooks, every_page
from gateway.upstream.registry import Upstreams

LOG_LEVEL = "io.modelcontextprotocol/logLevel"

MakeSignInLink = Callable[[str, Connection], Awaitable[str | None]]


@dataclass(slots=True)
class Sender:
    """The two ways out of the gateway."""

    egress: Egress
    own_egress: Egress
    credentials: Credentials
    upstreams: Upstreams
    admission: Admission
    db: Database
    work: RunInWorker
    sign_in_link: MakeSignInLink

    def __call__(self, attempt: Attempt, prepared: PreparedConnection) -> Awaitable[Result]:
        """The result of the call."""
        if attempt.tool.http is not None:
            return self._send_http(attempt, prepared, attempt.tool.http)
        assert attempt.tool.upstream is not None
        return self._send_upstream(attempt, prepared, attempt.tool.upstream)

    # --- HTTP -------------------------------------------------------------------------------------

    async def _send_http(
        self, attempt: Attempt, prepared: PreparedConnection, operation: HttpOperation
    ) -> Result:
        request = _request(attempt, prepared, operation)
        owner, principal = attempt.principal, attempt.caller.principal
        health = await self.admission.admit(prepared.name, owner, prepared.rate_limit)
        limits = attempt.snapshot.settings.limits
        with self.admission.room_for_large(prepared.name, attempt.max_output_bytes) as room:
            send = partial(
                self.own_egress.send if attempt.state.origin == "demo" else self.egress.send,
                deadline=prepared.settings.timeout_seconds or limits.call_timeout_seconds,
                max_bytes=max(MAX_ANSWER_BYTES, limits.max_output_bytes),
                room=room,
                tls=prepared.settings.tls,
            )
            async with health:
                send_args = (prepared.auth, request, operation.base_url, send, principal)
                attempt.sent_at, began = time.time(), time.perf_counter()
                try:
                    answer, credentials = await self.credentials.send(*send_args)
                except NoAnswer as error:
                    if not health.may_retry(request.method, error):
                        raise
                    attempt.retried_at = time.time()
                    answer, credentials = await self.credentials.send(*send_args)
                finally:
                    attempt.upstream_ms = (time.perf_counter() - began) * 1000
                if prepared.envelope is not None:
                    answer = await unwrap_answer(answer, self.work)
                health.note_answer(answer.status, answer.header("retry-after"))
            attempt.redactor = prepared.redactor_with(credentials.secrets)
            attempt.upstream_status = answer.status
            if answer.status >= 400:
                await self._refuse_signed_out(attempt, answer.status)
            return await self._shape_answer(attempt, operation, answer)

    async def _refuse_signed_out(self, attempt: Attempt, status: int) -> None:
        """Raises where a person can mend the failure by signing the connection in."""
        state = attempt.state
        if status != 401 and state.status != "unauthenticated":
            return
        link = await self.sign_in_link(state.name, state.settings)
        if link is not None:
            raise UpstreamFailed(
                "sign_in_required",
                f"{state.display_name} is not signed in: the API answered {status}.",
                f"Have a person sign it in, then call again: {link}",
                sign_in_url=link,
                status=status,
            )

    async def _shape_answer(
        self, attempt: Attempt, operation: HttpOperation, answer: Answer
    ) -> Result:
        options = (attempt.max_output_bytes, attempt.id, operation.headers_out)
        work = partial(shape, answer, attempt.redactor, *options)
        heavy = len(answer.body) > STEP_BYTES
        result, whole_answer = await asyncio.to_thread(work) if heavy else work()
        if whole_answer is not None:
            await self._keep_result(attempt, *whole_answer)
        return result

    async def _keep_result(self, attempt: Attempt, media_type: str, body: bytes) -> None:
        """Keeps a large answer for its caller to read in parts, under the call's own id."""
        until, owner = time.time() + RESULT_SECONDS, attempt.principal
        large_result = LargeResult(attempt.id, owner, len(body), media_type, body, until)
        await save_result(self.db, large_result)

    # --- upstream MCP servers ---------------------------------------------------------------------

    async def _send_upstream(
        self, attempt: Attempt, prepared: PreparedConnection, operation: UpstreamOperation
    ) -> Result:
        caller, ask = attempt.caller, None
        make_redactor = partial(redactor_so_far, self.credentials, prepared, caller.principal, [])
        attempt.redactor = await make_redactor()
        if not attempt.unattended:
            seconds = attempt.snapshot.permissions.timeout_seconds
            ask = make_asker(caller, attempt.redactor, seconds, attempt.put_questions)
        params = _params(attempt, prepared, operation, may_ask=ask is not None)
        principal = attempt.principal
        health = await self.admission.admit(prepared.name, principal, prepared.rate_limit)
        with self.admission.room_for_large(prepared.name, attempt.max_output_bytes) as room:
            callbacks = (_progress(attempt), ask, _notice(attempt))
            hooks = Hooks(*callbacks, caller.usable_capabilities if ask else None, room.holds)
            async with health:
                attempt.sent_at, began = time.time(), time.perf_counter()
                try:
                    result = await self.upstreams.request(
                        prepared.name, "tools/call", params, principal=principal, hooks=hooks
                    )
                except UpstreamRefused as error:
                    if attempt.caller.on_refusal is not None:  # the newest caller's
                        attempt.redactor = await make_redactor()
                        clear_refusal(error, attempt.redactor)
                        attempt.caller.on_refusal(error)
                    raise
                finally:
                    attempt.upstream_ms = (time.perf_counter() - began) * 1000
                health.note_answer(200)
            attempt.redactor = await make_redactor()
            if values := recorded_values(operation.record, result):  # before the answer is cut
                attempt.recorded = attempt.redactor.clear_json(values)
            return await self._take_over(attempt, result)

    async def _take_over(self, attempt: Attempt, result: Result) -> Result:
        """The result as it is; or a preview, in a form that every listed output schema allows."""
        refuse_malformed(result)
        raw, result = await clear_result(result, attempt.redactor)
        is_error = bool(result.get("isError"))
        if len(raw) <= attempt.max_output_bytes:
            # What the gateway says of a call stands in `_meta` under names of its own.
            meta = result.get("_meta") or {}
            meta = {key: meta[key] for key in meta if not key.startswith("gateway/")}
            content = result.get("content") or []
            return {**result, "content": content, "isError": is_error, "_meta": meta}
        if (structured := result.get("structuredContent")) is not None:
            data = await asyncio.to_thread(orjson.dumps, structured)
            # An answer whose text only repeats its data is kept as that data.
            raw = data if len(data) * 5 >= len(raw) else raw
        await self._keep_result(attempt, "application/json", raw)
        return {**preview_result(attempt.id, raw, "application/json"), "isError": is_error}


async def redactor_so_far(
    credentials: Credentials, prepared: PreparedConnection, principal: Principal, sent: list[str]
) -> Redactor:
    """The redactor that clears a server's answers of the credentials it was sent so far."""
    if prepared.auth.ready is None and getattr(prepared.settings, "url", None):
        with suppress(GatewayError):  # the request itself says why there are none
            sent.extend((await credentials.obtain(prepared.auth, principal)).secrets)
    return prepared.redactor_with(sent)


def _request(attempt: Attempt, prepared: PreparedConnection, operation: HttpOperation) -> Request:
    """The request, complete but for its credentials."""
    arguments = {**attempt.arguments, **prepared.settings.inject}
    request = build_request(operation, arguments, prepared.blocklist)
    if attempt.judged_tool is attempt.tool and _ENCODED_SLASH.search(request.url.partition("?")[0]):
        _check_reach(attempt, operation, request)  # raw requests were judged by their path
    if operation.idempotency_header is not None and attempt.token is not None:
        request = with_headers(request, ((operation.idempotency_header, attempt.token),))
    request = with_headers(request, prepared.headers)
    if prepared.envelope is None:
        return request
    return wrap_request(request, operation.base_url, prepared.envelope)


_ENCODED_SLASH = re.compile(r"%(?:25)*(?:2f|5c)", re.IGNORECASE)


def _check_reach(attempt: Attempt, operation: HttpOperation, request: Request) -> None:
    """Refuses a value with a slash that makes the path another operation's, with its own rules.

    Many servers read an encoded slash as a slash before they choose the operation.
    """
    state, base_url = attempt.state, operation.base_url
    path = request.url.removeprefix(base_url.removesuffix("/")).partition("?")[0]
    routes = [(t.method, t.path) for t in state.tools if t.http and t.http is not operation]
    routes += [(each.method, each.path) for each in state.build.skipped] if state.build else []
    plain_path = _ENCODED_SLASH.sub("-", path)
    for method, template in routes:
        matches = method.upper() == request.method and may_mean(template, base_url, path)
        if matches and not may_mean(template, base_url, plain_path):
            raise Refused(
                "blocked_path",
                f"The path would be that of another operation, {method.upper()} {template}",
                "Give a value without a slash, or call that operation's own tool.",
            )


def _params(
    attempt: Attempt, prepared: PreparedConnection, operation: UpstreamOperation, *, may_ask: bool
) -> dict[str, Any]:
    """The params of the `tools/call` request."""
    arguments = {**attempt.arguments, **_injections(attempt.tool, operation, prepared.settings)}
    if operation.idempotency_field is not None:
        arguments[operation.idempotency_field] = attempt.token
    caller = attempt.caller
    meta = {LOG_LEVEL: caller.log_level} if caller.log_level else {}
    params = {"name": operation.tool, "arguments": arguments, "_meta": meta}
    # Answers that the gateway did not ask for are the server's, unless a person must approve.
    may_ask = may_ask and attempt.token is None
    if may_ask and decide(attempt.judged_tool, attempt.snapshot.permissions).outcome == "allow":
        answers = {"inputResponses": caller.input_responses, "requestState": caller.request_state}
        params |= {name: value for name, value in answers.items() if value is not None}
    return params


def _injections(tool: Tool, operation: UpstreamOperation, settings: Connection) -> dict[str, Any]:
    """The arguments that are filled in for the caller: the connection's, and a wrapped tool's."""
    assert isinstance(settings, McpConnection)
    values = dict(settings.inject)
    for rule in settings.wrap:
        if rule.tool == operation.tool and rule.as_ in (None, tool.name):
            values |= rule.inject
    return {name: value for name, value in values.items() if name in operation.inject}


def _progress(attempt: Attempt) -> Progress | None:
    """Passes progress to the newest caller: a client that was asked something calls again.

    A call whose outcome is read later has progress too: progress puts the call's end off.
    """
    if attempt.caller.progress is None and not attempt.background:
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


_HOP_FIELDS = ("inputResponses", "requestState", "_meta")


@dataclass(slots=True)
class UpstreamRequests:
    """Sends upstream MCP servers requests that are not calls: prompts, resources, completion.

    Nothing of the client travels along but its request. A server's question goes to a client
    that can answer: on the request's own stream, or, from 2026-07-28, as the answer itself.
    """

    upstreams: Upstreams
    admission: Admission
    credentials: Credentials

    async def ask(
        self,
        server: PreparedConnection,
        caller: Caller,
        ask_seconds: float,
        method: str,
        params: Mapping[str, Any],
    ) -> Result:
        """The server's result, cleared of secrets. Raises UpstreamRefused in the server's words."""
        name, principal, usable = server.name, caller.principal.name, caller.usable_capabilities
        peer = self.upstreams.peer(name)
        may_relay = caller.era == "2026" and bool(usable) and method in INTERACTIVE
        may_pass_on = may_relay and peer is not None and peer.era != "2025"
        outgoing = {key: params[key] for key in params if may_pass_on or key not in _HOP_FIELDS}
        outgoing["_meta"] = {LOG_LEVEL: caller.log_level} if caller.log_level else {}
        make_redactor = partial(redactor_so_far, self.credentials, server, caller.principal, [])
        ask = make_asker(caller, await make_redactor(), ask_seconds)
        hooks = Hooks(caller.progress, ask, caller.notice, usable or None)
        async with await self.admission.admit(name, principal, server.rate_limit) as health:
            try:
                result = await self.upstreams.request(
                    name, method, outgoing, principal=principal, hooks=hooks, relay_input=may_relay
                )
            except UpstreamRefused as error:
                health.note_answer(200)
                clear_refusal(error, await make_redactor())
                raise
            health.note_answer(200)
        if may_relay and result.get("resultType") == "input_required":
            check_questions(result.get("inputRequests") or {}, caller)
        return (await clear_result(result, await make_redactor()))[1]

    async def list_all(
        self, server: PreparedConnection, caller: Caller, ask_seconds: float, method: str, kind: str
    ) -> list[dict[str, Any]]:
        """All items of one of the server's lists, cleared of secrets."""
        page = partial(self.ask, server, caller, ask_seconds, method)
        return await every_page(page, server.name, kind)


_CONTENT_OF = {"text": "text", "image": "data", "audio": "data", "resource_link": "uri"}


def refuse_malformed(result: Result) -> None:
    """Raises where a server's result is none that a client can read."""
    content = result.get("content") or []
    objects = [result.get("structuredContent") or {}, result.get("_meta") or {}]
    objects += content if isinstance(content, list) else [None]
    is_sound = all(isinstance(each, dict) for each in objects)
    if not is_sound or not all(
        isinstance(part.get(_CONTENT_OF.get(str(part.get("type")), "type")), str)
        for part in content
    ):
        raise UpstreamUnreadable("upstream_error", "The server's answer is not a tool's result.")


async def clear_result(result: Result, redactor: Redactor) -> tuple[bytes, Result]:
    """An upstream's result without secrets: as JSON, and parsed."""
    try:
        raw = orjson.dumps(result)
    except TypeError as error:
        words = "The server's answer is nested too deeply"
        raise UpstreamUnreadable("upstream_error", words) from error
    clear = redactor.clear_bytes
    cleared = await asyncio.to_thread(clear, raw) if len(raw) > STEP_BYTES else clear(raw)
    return cleared, result if cleared is raw else orjson.loads(cleared)


def clear_refusal(error: UpstreamRefused, redactor: Redactor) -> None:
    """Takes secrets out of the error that a server sent in place of a result."""
    error.rpc_message = redactor.clear_text(error.rpc_message)
    error.rpc_data = redactor.clear_json(error.rpc_data)


# --- Azure ----------------------------------------------------------------------------------------


async def ask_azure(
    egress: Egress, credentials: Credentials, azure: Azure, request: Request, max_bytes: int
) -> Answer:
    """Azure's answer; a token that Azure no longer accepts is replaced once."""

    send = partial(egress.send, deadline=AZURE_SECONDS, max_bytes=max_bytes)
    auth = proof_of(AZURE, azure.auth)
    return (await credentials.send(auth, request, azure.endpoint, send))[0]


async def azure_identity(credentials: Credentials, azure: Azure) -> dict[str, str]:
    """The gateway's identity at Azure, read off its own token; empty where the token has none.

    The claims are not checked here: Azure checks what it is told.
    """
    own_credentials = await credentials.obtain(proof_of(AZURE, azure.auth))
    try:
        claims = jwt.decode(own_credentials.secrets[0], options={"verify_signature": False})
    except (IndexError, jwt.InvalidTokenError):
        return {}
    identity = {"objectId": claims.get("oid"), "tenantId": claims.get("tid")}
    return {name: value for name, value in identity.items() if isinstance(value, str)}
