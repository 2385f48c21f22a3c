"""The protocol's side of a conversation with an upstream, whatever carries it.

Messages are plain dicts. Two eras are spoken: up to 2025-11-25 a handshake opens a session, from
2026-07-28 each request carries its own envelope in `_meta` and a question comes back as a result
(`input_required`). Of the client nothing is passed on but arguments and the `_meta` that the caller
hands in. Lists come in pages, and their length is bounded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import orjson
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)

from gateway import __version__
from gateway.errors import (
    Fixable,
    GatewayError,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnreadable,
)
from gateway.limits import HELD_SECONDS, MAX_ANSWER_BYTES, MAX_CONTAINERS, MAX_QUOTE_CHARS
from gateway.model import digest
from gateway.naming import cut, visible

RpcMessage = dict[str, Any]
RawTool = dict[str, Any]
PeerEra = Literal["2025", "2026"]
EraChoice = Literal["auto", "2025", "2026"]  # the era that a connection is to speak
Progress = Callable[[float, float | None, str | None], Awaitable[None]]
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]  # questions → answers, by key
Notice = Callable[[str, Mapping[str, Any]], None]
Holds = Callable[[int], Awaitable[bool]]

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
ELICIT = "elicitation/create"  # the method that asks a client's user something
LOGGED = "notifications/message"
UPDATED = "notifications/resources/updated"
TOO_DEEP = "nested too deeply"


class RpcFailed(UpstreamRefused):
    """The upstream answered with a JSON-RPC error."""

    def __init__(self, upstream: str, error: Any) -> None:
        fields = mapping(error)
        code, text = fields.get("code"), fields.get("message")
        self.rpc_code = code if isinstance(code, int) else 0
        self.rpc_message = text if isinstance(text, str) else ""
        self.rpc_data = fields.get("data")
        reason = cut(visible(self.rpc_message).strip(), MAX_QUOTE_CHARS) or "no reason given"
        super().__init__(
            "upstream_error",
            f"{upstream} refused the request: {reason}",
            "The message is the upstream server's own; change the arguments or ask its operator.",
            rpc_code=self.rpc_code,
        )


class SessionGone(Exception):
    """The upstream no longer knows this session; nothing was done, a new one may try again."""


class NotOffered(Exception):
    """The upstream has no stream of notices."""


class Hooks(NamedTuple):
    """The functions that take what an upstream says before its answer."""

    progress: Progress | None = None
    ask: Ask | None = None  # None: an upstream's questions are declined
    notice: Notice | None = None  # of what belongs to this request: its log messages
    capabilities: Mapping[str, Any] | None = None  # of the caller, where they differ from ours
    holds: Holds | None = None  # whether so many bytes of an answer may be held


NO_HOOKS = Hooks()


@dataclass(frozen=True, slots=True)
class Peer:
    """The facts that an upstream gave of itself in the handshake."""

    era: PeerEra
    version: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    instructions: str | None = None
    keeps_state: bool = False  # what one request does may be seen by the next one of the session


PROBE = Peer("2026", MODERN_VERSION)
GREETING = Peer("2025", "")
SendProbe = Callable[[str, Mapping[str, Any], Peer, float], Awaitable[dict[str, Any]]]


def unreachable_error(upstream: str, problem: str, *, sent: bool) -> UpstreamFailed:
    """The upstream can't be spoken to; `sent` says whether the request may have arrived."""
    hint = "Try again later; the operator sees the cause in the connection's problems."
    return UpstreamFailed("upstream_unreachable", f"{upstream} {problem}", hint, sent=sent)


def timeout_error(upstream: str, seconds: float, *, sent: bool) -> UpstreamFailed:
    """The upstream did not answer in time."""
    hint = "Try again, or raise the connection's timeout_seconds; limits.max_call_seconds is for "
    hint += "calls that tell of their progress."
    words = f"{upstream} did not answer within {seconds:.3g} s"
    return UpstreamFailed("upstream_timeout", words, hint, sent=sent)


def answer_error(
    upstream: str, problem: str, *, status: int | None = None, hint: str = ""
) -> UpstreamFailed:
    """The upstream answered, but not with what the protocol asks for."""
    details: dict[str, Any] = {} if status is None else {"status": status}
    hint = hint or "The upstream server is at fault; its operator can mend it."
    return UpstreamFailed("upstream_error", f"{upstream} {problem}", hint, **details)


def unreadable_error(upstream: str, problem: str) -> UpstreamUnreadable:
    """The upstream answered, but nobody can tell what."""
    hint = "The upstream server is at fault; its operator can mend it."
    return UpstreamUnreadable("upstream_error", f"{upstream} {problem}", hint)


def too_large_error(upstream: str, limit: int, unit: str = "bytes") -> UpstreamUnreadable:
    """The answer outgrew its bound."""
    return unreadable_error(upstream, f"sent an answer of more than {limit} {unit}")


def request_message(
    request_id: int, method: str, params: Mapping[str, Any], peer: Peer, hooks: Hooks = NO_HOOKS
) -> RpcMessage:
    """One request as it goes out, with the envelope its era asks for."""
    meta = {k: v for k, v in (params.get("_meta") or {}).items() if _may_pass(k)}
    if hooks.progress is not None:
        meta["progressToken"] = request_id
    if peer.era == "2026":
        meta[PROTOCOL_VERSION_META_KEY] = peer.version
        meta[CLIENT_INFO_META_KEY] = CLIENT_INFO
        offers = CLIENT_CAPABILITIES if hooks.capabilities is None else hooks.capabilities
        meta[CLIENT_CAPABILITIES_META_KEY] = offers
    body = {**params, "_meta": meta} if meta else {k: v for k, v in params.items() if k != "_meta"}
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": body}


def _may_pass(key: str) -> bool:
    """Progress tokens and envelopes belong to one hop; a log level is the caller's own wish."""
    if key == LOG_LEVEL_META_KEY:
        return True
    return key != "progressToken" and not key.startswith("io.modelcontextprotocol/")


def encode_message(message: Mapping[str, Any]) -> bytes:
    """A message as JSON on one line."""
    try:
        return orjson.dumps(message)
    except TypeError as error:
        hint = "Use fewer levels, and integers of at most 64 bits."
        raise Fixable(
            "invalid_arguments", "The arguments can't be written as JSON", hint
        ) from error


def read_message(data: bytes, upstream: str) -> RpcMessage:
    """The JSON-RPC message that some bytes hold; one that would hold up all callers is refused.

    The number of its lists and objects is a count that takes no time.
    """
    if len(data) > MAX_CONTAINERS and data.count(b"{") + data.count(b"[") > MAX_CONTAINERS:
        raise too_large_error(upstream, MAX_CONTAINERS, "lists and objects")
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        message = None
    if not isinstance(message, dict):
        raise unreadable_error(upstream, "sent something that is not a JSON-RPC message")
    return message


def outcome(message: RpcMessage, upstream: str) -> dict[str, Any]:
    """The result that a response holds; its error is raised."""
    result, error = message.get("result"), message.get("error")
    if isinstance(error, dict):
        raise RpcFailed(upstream, error)
    if error is not None or not isinstance(result, dict):
        raise unreadable_error(upstream, "sent an answer without a result")
    return result


def without_envelope(result: dict[str, Any], era: PeerEra) -> dict[str, Any]:
    """A result without what belongs to this hop only; up to 2025-11-25 all results are complete."""
    if result.get("resultType") == "complete" or era == "2025":
        result.pop("resultType", None)
    meta = result.get("_meta")
    if isinstance(meta, dict) and meta.pop(SERVER_INFO_META_KEY, None) and not meta:
        del result["_meta"]
    return result


async def negotiate(
    exchange: SendProbe,
    last_era: PeerEra | None,
    seconds: float,
    choice: EraChoice = "auto",
    offers: Mapping[str, Any] = SESSION_CAPABILITIES,  # for an upstream that is told once a session
) -> Peer:
    """Meets an upstream in the newest era it speaks, or in the one that worked before or is chosen.

    Any refusal of the first attempt means "not this era"; an outage says nothing about eras and is
    raised as it is.
    """
    initialize = partial(_initialize, offers)
    if choice != "auto":
        try:
            return await (initialize if choice == "2025" else _discover)(exchange, seconds)
        except GatewayError as error:
            if not _is_refusal(error):
                raise
            problem = f"can't be spoken to in the protocol of {choice}: {error.message}"
            hint = 'The connection\'s `protocol` asks for it; "auto" takes what the server speaks.'
            raise answer_error("The upstream", problem, hint=hint) from error
    meetings: list[Callable[[SendProbe, float], Awaitable[Peer]]] = [_discover, initialize]
    first, second = reversed(meetings) if last_era == "2025" else meetings
    try:
        return await first(exchange, min(seconds, HELD_SECONDS))
    except GatewayError as error:
        if error.code != "upstream_timeout" and not _is_refusal(error):
            raise
    try:
        return await second(exchange, seconds)
    except RpcFailed as error:
        if error.rpc_code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
    # An upstream of 2026 too slow for the first question has heard it by now.
    return await _discover(exchange, seconds)


def _is_refusal(error: GatewayError) -> bool:
    """Whether the upstream answered with an error other than one about credentials."""
    return error.code == "upstream_error" and error.details.get("status") not in (401, 403)


async def _discover(exchange: SendProbe, seconds: float) -> Peer:
    answer = await exchange("server/discover", {}, PROBE, seconds)
    versions = answer.get("supportedVersions")
    if not isinstance(versions, list) or MODERN_VERSION not in versions:
        raise answer_error("The upstream", f"does not speak {MODERN_VERSION}")
    return _peer("2026", MODERN_VERSION, answer)


async def _initialize(offers: Mapping[str, Any], exchange: SendProbe, seconds: float) -> Peer:
    version = HANDSHAKE_VERSIONS[0]
    params = {"protocolVersion": version, "capabilities": offers, "clientInfo": CLIENT_INFO}
    answer = await exchange("initialize", params, GREETING, seconds)
    version = answer.get("protocolVersion", "")
    if version not in HANDSHAKE_VERSIONS:
        raise answer_error(
            "The upstream", f"speaks protocol {str(version)[:40]!r}, which is not known"
        )
    return _peer("2025", version, answer)


def _peer(era: PeerEra, version: str, answer: Mapping[str, Any]) -> Peer:
    instructions = answer.get("instructions")
    text = instructions if isinstance(instructions, str) else None
    return Peer(era, version, mapping(answer.get("capabilities")), text)


def mapping(value: Any) -> Mapping[str, Any]:
    """The value, or an empty mapping for a value that is none."""
    return value if isinstance(value, dict) else {}


async def every_page(
    page: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]],
    upstream: str,
    key: str = "tools",
) -> list[RawTool]:
    """The items of all pages; a list that does not end within its bounds is a failure."""
    items: list[RawTool] = []
    params: dict[str, Any] = {}
    cursors: set[str] = set()
    size = 0
    while True:
        answer = await page(params)
        entries, cursor = answer.get(key), answer.get("nextCursor")
        if not isinstance(entries, list):
            raise answer_error(upstream, f"sent a list of {key} that is no list")
        for item in filter(mapping, entries):
            entry, length = _measure_item(item)
            items.append(entry)
            size += length
        if size > MAX_ANSWER_BYTES or cursor in cursors:
            raise answer_error(upstream, f"has a list of {key} that does not end within its bounds")
        if not isinstance(cursor, str):
            return items
        cursors.add(cursor)
        params = {"cursor": cursor}


def _measure_item(item: RawTool) -> tuple[RawTool, int]:
    """An item and its size; an item too deep to be written again is left for the build to skip."""
    try:
        return item, len(orjson.dumps(item))
    except TypeError:
        return {"name": str(item.get("name"))[:128], "inputSchema": TOO_DEEP}, 0


def listing_digest(items: list[RawTool]) -> str:
    """Changes when the list does, whatever order it comes in."""
    return digest(b"\0".join(sorted(orjson.dumps(i, option=orjson.OPT_SORT_KEYS) for i in items)))
