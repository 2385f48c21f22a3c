"""The protocol's side of a conversation with an upstream, whatever carries it.

Messages are plain dicts. One request is answered by a run of messages: progress and notices, the
upstream's own questions, at last the answer; `settle` reads such a run for both transports. Two
eras are spoken: up to 2025-11-25 a handshake opens a session, from 2026-07-28 each request carries
its own envelope in `_meta` and a question comes back as a result (`input_required`).

Of the client nothing is passed on but arguments and the `_meta` that the caller hands in.

What a 2026-07-28 request over HTTP repeats in its headers, so that proxies can route on it.

`Mcp-Method` and `Mcp-Name` repeat the request; `Mcp-Param-TOKEN` repeats each argument whose
property is marked `x-mcp-header: TOKEN` in the tool's input schema. A mark is only valid on plain
properties of a plain type; a tool with an invalid mark must not be called at all.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import orjson
import structlog

from gateway import __version__
from gateway.errors import Fixable, GatewayError, UpstreamFailed, UpstreamRefused
from gateway.text import cut, visible

Message = dict[str, Any]
Era = Literal["handshake", "modern"]
Spoken = Literal["auto", "2025", "2026"]  # which era a connection is to be spoken to in
Progress = Callable[[float, float | None, str | None], Awaitable[None]]
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]  # questions → answers, by key
Notice = Callable[[str, Mapping[str, Any]], None]
Holds = Callable[[int], Awaitable[bool]]
Send = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]

MODERN_VERSION = "2026-07-28"
HANDSHAKE_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
CLIENT_INFO: Mapping[str, Any] = {"name": "dynamic-mcp-gateway", "version": __version__}
CLIENT_CAPABILITIES: Mapping[str, Any] = {"elicitation": {"form": {}}}
# A session may be of several clients: it offers what any of them may be able to do.
SESSION_CAPABILITIES: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
LISTEN_FILTER: Mapping[str, Any] = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
}
INTERACTIVE = frozenset(("tools/call", "prompts/get", "resources/read"))  # may ask the caller

ELICIT = "elicitation/create"
QUESTIONS = (ELICIT, "sampling/createMessage", "roots/list")
NOT_OFFERED = "asks for something that this client does not offer"
QUESTION = "question"  # the key of one that has none, as it comes on its own
LOGGED = "notifications/message"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
ASKED_ELSEWHERE = "notifications/elicitation/complete"
OWN_NOTICES = (
    LOGGED,
    ACKNOWLEDGED,
    ASKED_ELSEWHERE,
)  # on a request's own stream they are its caller's alone

METHOD_NOT_FOUND = -32601
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022
MAX_MESSAGE_CHARS = 500
MAX_ROUNDS = 10
PROBE_SECONDS = 10.0
_ROUND_PAUSES = (0.05, 0.1, 0.2, 0.25)
_META = "io.modelcontextprotocol/"

log = structlog.get_logger(__name__)


class RpcFailed(UpstreamRefused):
    """The upstream answered with a JSON-RPC error."""

    def __init__(self, upstream: str, error: Any) -> None:
        given = error if isinstance(error, dict) else {}
        code, text = given.get("code"), given.get("message")
        self.rpc_code = code if isinstance(code, int) else 0
        self.rpc_message = text if isinstance(text, str) else ""
        self.rpc_data = given.get("data")
        said = cut(visible(self.rpc_message).strip(), MAX_MESSAGE_CHARS) or "no reason given"
        super().__init__(
            "upstream_error",
            f"{upstream} refused the request: {said}",
            "The message is the upstream server's own; change the arguments or ask its operator.",
            rpc_code=self.rpc_code,
        )
        self.sent = True


class SessionGone(Exception):
    """The upstream no longer knows this session; nothing was done, a new one may try again."""


class NotOffered(Exception):
    """The upstream has no stream of notices."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Where what an upstream says before its answer goes."""

    progress: Progress | None = None
    ask: Ask | None = None  # None: an upstream's questions are declined
    notice: Notice | None = None  # of what belongs to this request: its log messages
    capabilities: Mapping[str, Any] | None = None  # of who asks, where they differ from ours
    holds: Holds | None = None  # whether so many bytes of an answer may be held


NO_HOOKS = Hooks()


@dataclass(frozen=True, slots=True)
class Peer:
    """What an upstream said of itself when we met."""

    era: Era
    version: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    instructions: str | None = None
    keeps_state: bool = False  # what one request does may be seen by the next one of the session


PROBE = Peer("modern", MODERN_VERSION)
GREETING = Peer("handshake", "")
Exchange = Callable[[str, Mapping[str, Any], Peer, float], Awaitable[dict[str, Any]]]


def unreachable(upstream: str, what: str, *, sent: bool) -> UpstreamFailed:
    """The upstream can't be spoken to; `sent` says whether the request may have arrived."""
    hint = "Try again later; the operator sees the cause in the connection's problems."
    error = UpstreamFailed("upstream_unreachable", f"{upstream} {what}", hint)
    error.sent = sent
    return error


def timed_out(upstream: str, seconds: float, *, sent: bool) -> UpstreamFailed:
    """The upstream did not answer in time."""
    hint = (
        "Try again, or raise the connection's timeout_seconds; limits.max_call_seconds is for "
        "calls that tell of their progress."
    )
    message = f"{upstream} did not answer within {seconds:.3g} s"
    error = UpstreamFailed("upstream_timeout", message, hint)
    error.sent = sent
    return error


def broken(
    upstream: str, what: str, *, status: int | None = None, hint: str = ""
) -> UpstreamFailed:
    """The upstream answered, but not with what the protocol asks for."""
    details = {} if status is None else {"status": status}
    hint = hint or "The upstream server is at fault; its operator can mend it."
    error = UpstreamFailed("upstream_error", f"{upstream} {what}", hint, **details)
    error.sent = True
    return error


def request_message(
    request_id: int,
    method: str,
    params: Mapping[str, Any],
    peer: Peer,
    *,
    progress: bool = False,
    capabilities: Mapping[str, Any] | None = None,
) -> Message:
    """One request as it goes out, with the envelope its era asks for."""
    meta = {k: v for k, v in (params.get("_meta") or {}).items() if _passable(k)}
    if progress:
        meta["progressToken"] = request_id
    if peer.era == "modern":
        meta[_META + "protocolVersion"] = peer.version
        meta[_META + "clientInfo"] = CLIENT_INFO
        offered = CLIENT_CAPABILITIES if capabilities is None else capabilities
        meta[_META + "clientCapabilities"] = offered
    sent = {**params, "_meta": meta} if meta else {k: v for k, v in params.items() if k != "_meta"}
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": sent}


def encoded(message: Mapping[str, Any]) -> bytes:
    """A message as JSON on one line."""
    try:
        return orjson.dumps(message)
    except TypeError as error:
        hint = "Use fewer levels, and integers of at most 64 bits."
        raise Fixable(
            "invalid_arguments", "The arguments can't be written as JSON", hint
        ) from error


def _passable(key: str) -> bool:
    """Progress tokens and envelopes belong to one hop; a log level is the caller's own wish."""
    return key != "progressToken" and (not key.startswith(_META) or key == _META + "logLevel")


async def negotiate(
    exchange: Exchange,
    remembered: Era | None,
    seconds: float,
    spoken: Spoken = "auto",
    offers: Mapping[str, Any] = SESSION_CAPABILITIES,  # where they are said once a session
) -> Peer:
    """Meets an upstream in the newest era it speaks, or the one that worked before or is chosen.

    Any refusal of the first attempt means "not this era"; an outage says nothing about eras and is
    raised as it is.
    """
    initialize = partial(_initialize, offers)
    if spoken != "auto":
        meet = initialize if spoken == "2025" else _discover
        return await _meet_in(spoken, meet, exchange, seconds)
    meetings: list[Callable[[Exchange, float], Awaitable[Peer]]] = [_discover, initialize]
    if remembered == "handshake":
        meetings.reverse()
    try:
        return await meetings[0](exchange, min(seconds, PROBE_SECONDS))
    except GatewayError as error:
        if error.code != "upstream_timeout" and not _is_refusal(error):
            raise
    try:
        return await meetings[1](exchange, seconds)
    except RpcFailed as error:
        if error.rpc_code != UNSUPPORTED_VERSION:
            raise
    # A modern upstream too slow for the first question has heard it by now.
    return await _discover(exchange, seconds)


async def _meet_in(
    spoken: Spoken,
    meet: Callable[[Exchange, float], Awaitable[Peer]],
    exchange: Exchange,
    seconds: float,
) -> Peer:
    try:
        return await meet(exchange, seconds)
    except GatewayError as error:
        if not _is_refusal(error):
            raise
        what = f"can't be spoken to in the protocol of {spoken}: {error.message}"
        hint = 'The connection\'s `protocol` asks for it; "auto" takes what the server speaks.'
        raise broken("The upstream", what, hint=hint) from error


def _is_refusal(error: GatewayError) -> bool:
    """Whether the upstream answered, and not that it wants other credentials."""
    return error.code == "upstream_error" and error.details.get("status") not in (401, 403)


async def _discover(exchange: Exchange, seconds: float) -> Peer:
    found = await exchange("server/discover", {}, PROBE, seconds)
    versions = found.get("supportedVersions")
    if not isinstance(versions, list) or MODERN_VERSION not in versions:
        raise broken("The upstream", f"does not speak {MODERN_VERSION}")
    info = _mapping(_mapping(found.get("_meta")).get(_META + "serverInfo"))
    return _peer("modern", MODERN_VERSION, found, info)


async def _initialize(offers: Mapping[str, Any], exchange: Exchange, seconds: float) -> Peer:
    params = {
        "protocolVersion": HANDSHAKE_VERSIONS[0],
        "capabilities": offers,
        "clientInfo": CLIENT_INFO,
    }
    found = await exchange("initialize", params, GREETING, seconds)
    version = found.get("protocolVersion")
    if version not in HANDSHAKE_VERSIONS:
        raise broken("The upstream", f"speaks protocol {str(version)[:40]!r}, which is not known")
    return _peer("handshake", version, found, _mapping(found.get("serverInfo")))


def _peer(era: Era, version: str, found: Mapping[str, Any], info: Mapping[str, Any]) -> Peer:
    instructions = found.get("instructions")
    text = instructions if isinstance(instructions, str) else None
    return Peer(era, version, _mapping(found.get("capabilities")), info, text)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


async def settle(
    messages: AsyncIterator[Message],
    upstream: str,
    hooks: Hooks,
    *,
    reply: Callable[[Message], Awaitable[None]],
    notice: Notice,
) -> dict[str, Any] | None:
    """The result that ends a run of messages; None when it ends without one."""
    async for message in messages:
        method = message.get("method")
        if not isinstance(method, str):
            return outcome(message, upstream)
        params = _mapping(message.get("params"))
        if "id" in message:
            await reply(await answer(message, hooks.ask))
        elif method == "notifications/progress":
            await _tell_progress(params, hooks.progress)
        elif method in OWN_NOTICES:
            if hooks.notice is not None:
                hooks.notice(method, params)
        else:
            notice(method, params)
    return None


def outcome(message: Message, upstream: str) -> dict[str, Any]:
    """The result that a response holds; its error is raised."""
    if "error" in message:
        raise RpcFailed(upstream, message["error"])
    result = message.get("result")
    if not isinstance(result, dict):
        raise broken(upstream, "sent an answer without a result")
    return result


def passed_on(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what belongs to this hop only."""
    if result.get("resultType") == "complete":
        del result["resultType"]
    meta = result.get("_meta")
    if isinstance(meta, dict) and meta.pop(_META + "serverInfo", None) and not meta:
        del result["_meta"]
    return result


def within(hooks: Hooks, limit: asyncio.Timeout, seconds: float, longest: float) -> Hooks:
    """The hooks of a request that has so many seconds, and more while something happens.

    While a person thinks, its time does not run out. Each word of progress gives it as many seconds
    again, up to the longest it may take.
    """
    ends = asyncio.get_running_loop().time() + longest
    progress = _prolonging(hooks.progress, limit, seconds, ends)
    return replace(hooks, ask=_pausing(hooks.ask, limit), progress=progress)


def _prolonging(
    progress: Progress | None, limit: asyncio.Timeout, seconds: float, ends: float
) -> Progress | None:
    if progress is None:
        return None

    async def prolonged(done: float, total: float | None, text: str | None) -> None:
        until, now = limit.when(), asyncio.get_running_loop().time()
        if until is not None:  # else a person thinks
            limit.reschedule(max(until, min(now + seconds, ends)))
        await progress(done, total, text)

    return prolonged


def _pausing(ask: Ask | None, limit: asyncio.Timeout) -> Ask | None:
    if ask is None:
        return None

    async def paused(questions: Mapping[str, Any]) -> Mapping[str, Any]:
        ends, started = limit.when(), asyncio.get_running_loop().time()
        limit.reschedule(None)
        try:
            return await ask(questions)
        finally:
            waited = asyncio.get_running_loop().time() - started
            limit.reschedule(None if ends is None else ends + waited)

    return paused


async def _tell_progress(params: Mapping[str, Any], progress: Progress | None) -> None:
    done, total, text = params.get("progress"), params.get("total"), params.get("message")
    if progress is None or not isinstance(done, int | float):
        return
    await progress(
        done,
        total if isinstance(total, int | float) else None,
        visible(text)[:MAX_MESSAGE_CHARS] if isinstance(text, str) else None,
    )


async def answer(message: Message, ask: Ask | None) -> Message:
    """Our response to a request of the upstream: a question, a ping, or what we don't offer."""
    head = {"jsonrpc": "2.0", "id": message["id"]}
    method = message["method"]
    if method == "ping":
        return {**head, "result": {}}
    try:
        if method not in QUESTIONS:
            raise broken("The upstream", NOT_OFFERED)
        question = {QUESTION: {"method": method, "params": _mapping(message.get("params"))}}
        return {**head, "result": (await _answers(question, ask, "The upstream"))[QUESTION]}
    except GatewayError as error:
        code = error.details.get("rpc_code", METHOD_NOT_FOUND)
        return {**head, "error": {"code": code, "message": error.message}}


async def completed(
    send: Send, params: Mapping[str, Any], ask: Ask | None, upstream: str
) -> dict[str, Any]:
    """Sends a request again with the answers it asks for, until its result is complete."""
    asked: dict[str, Any] = {}
    for turn in range(MAX_ROUNDS):
        result = await send({**params, **asked})
        if result.get("resultType") != "input_required":
            return result
        asked = {}
        questions = _mapping(result.get("inputRequests"))
        if questions:
            asked["inputResponses"] = await _answers(questions, ask, upstream)
        else:
            await asyncio.sleep(_ROUND_PAUSES[min(turn, len(_ROUND_PAUSES) - 1)])
        if isinstance(state := result.get("requestState"), str):
            asked["requestState"] = state
    raise broken(upstream, f"asked for more input {MAX_ROUNDS} times and never finished")


async def _answers(
    questions: Mapping[str, Any], ask: Ask | None, upstream: str
) -> Mapping[str, Any]:
    """The answers of whoever may be asked. Raises where there is none that the protocol knows."""
    if ask is None:
        return _said_no(questions, "decline", upstream)
    try:
        return await ask(questions)
    except GatewayError:
        raise
    except Exception as error:  # the client's side: whatever fails, the upstream gets an answer
        log.info("question_failed", error=type(error).__name__)
        return _said_no(questions, "cancel", upstream)


def _said_no(questions: Mapping[str, Any], action: str, upstream: str) -> Mapping[str, Any]:
    if any(_mapping(question).get("method") != ELICIT for question in questions.values()):
        raise broken(upstream, NOT_OFFERED)
    return dict.fromkeys(questions, {"action": action})


HeaderMarks = Mapping[tuple[str, ...], str]
NAMED_BY: Mapping[str, str] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
MARK = "x-mcp-header"

_PLAIN_TYPES = ("string", "integer", "boolean")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SAFE_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")
_ENCODED = re.compile(r"=\?base64\?.*\?=")


def routing_headers(method: str, params: Mapping[str, Any], marks: HeaderMarks) -> dict[str, str]:
    """The `Mcp-*` headers that repeat one request's body."""
    headers = {"Mcp-Method": method}
    named = params.get(NAMED_BY.get(method, ""))
    if isinstance(named, str):
        headers["Mcp-Name"] = _header_value(named)
    for path, token in marks.items():
        text = _plain_text(_at(params.get("arguments"), path))
        if text is not None:
            headers[f"Mcp-Param-{token}"] = _header_value(text)
    return headers


def header_marks(schema: Any) -> dict[tuple[str, ...], str]:
    """Where a tool's arguments are to be repeated as headers: property path → token."""
    return {path: mark for path, mark, _ in _marked(schema) if path and isinstance(mark, str)}


def invalid_header_mark(schema: Any) -> str | None:
    """Why the marks of this schema can't be followed, or None."""
    seen: set[str] = set()
    for path, mark, kind in _marked(schema):
        if not path:
            return f"`{MARK}` stands where no plain property is"
        if not isinstance(mark, str) or not _TOKEN.fullmatch(mark):
            return f"`{MARK}` of {'.'.join(path)!r} is not a header name"
        if kind not in _PLAIN_TYPES:
            return f"`{MARK}` of {'.'.join(path)!r} is not on a string, integer or boolean"
        if mark.lower() in seen:
            return f"`{MARK}` names the same header twice"
        seen.add(mark.lower())
    return None


_ONE = frozenset(
    (
        *("items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames"),
        *("unevaluatedProperties", "not", "if", "then", "else", "contentSchema"),
    )
)
_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_MAPS = frozenset(("patternProperties", "dependentSchemas", "$defs", "definitions"))


def _marked(schema: Any) -> Iterator[tuple[tuple[str, ...] | None, Any, Any]]:
    """(property path, mark, type) of every marked schema; the path is None off the plain chain."""
    stack: list[tuple[tuple[str, ...] | None, Any]] = [((), schema)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        if MARK in node:
            yield path, node[MARK], node.get("type")
        for key, value in node.items():
            stack.extend(_below(path, key, value))


def _below(
    path: tuple[str, ...] | None, key: str, value: Any
) -> Iterator[tuple[tuple[str, ...] | None, Any]]:
    if key == "properties" and isinstance(value, dict):
        yield from ((None if path is None else (*path, name), sub) for name, sub in value.items())
    elif key in _ONE:
        yield None, value
    elif key in _LISTS and isinstance(value, list):
        yield from ((None, sub) for sub in value)
    elif key in _MAPS and isinstance(value, dict):
        yield from ((None, sub) for sub in value.values())


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _plain_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _header_value(text: str) -> str:
    """The text itself where a header can carry it, else base64 in the protocol's brackets."""
    if _SAFE_VALUE.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode('ascii')}?="
