"""`/mcp` for clients of both protocol eras, as one raw ASGI endpoint.

The straight line of a POST: guard (host, origin) → who → what it takes and sends → body → era →
answer. The SDK's server would cost more than the rest of a call together, so only its pure parts
are used: the schemas, the ladder of checks and the table of statuses. The era is told by the
`MCP-Protocol-Version` header, as the SDK does it, and by the envelope where the header is missing,
so that a client of 2026 which forgot it is told just that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog
from mcp_types import PROTOCOL_VERSION_META_KEY
from mcp_types.jsonrpc import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, KNOWN_PROTOCOL_VERSIONS
from starlette.types import Receive, Send
from starlette.types import Scope as HttpScope

from gateway.config.settings import ADDRESSED
from gateway.errors import GatewayError, Unauthenticated
from gateway.mcp import era_2025 as mcp_legacy
from gateway.mcp import era_2026 as mcp_modern
from gateway.mcp.core import Core, EdgeSettings, Exchange
from gateway.mcp.in_flight import Relay
from gateway.mcp.messages import RequestId, RpcError, dump, error_body, internal_error, read_json
from gateway.mcp.methods import failure
from gateway.mcp.sessions import Ended, Seal, Sessions
from gateway.mcp.surface import ListedView, Offers, Surface
from gateway.policy.view import Scope
from gateway.web.guard import (
    Fields,
    Refusal,
    accepted_types,
    answer_preflight,
    check_host,
    fold,
    for_browser,
    is_preflight,
    read_body,
    require_json,
    respond,
)
from gateway.web.identity import METADATA_PATH, Identity

__all__ = [
    "EdgeSettings",
    "ListedView",
    "McpEndpoint",
    "Scope",
    "Surface",
    "resource_metadata",
]

MAX_BUNDLES = 32
STREAMS_CLOSE_SECONDS = 1.0

Heard = Callable[[str, bytes], None]

_log = structlog.get_logger(__name__)
_OWN = Scope("own")
_HANDSHAKE = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_KNOWN = frozenset(version.encode() for version in KNOWN_PROTOCOL_VERSIONS)


class McpEndpoint:
    """The ASGI application under `/mcp`."""

    def __init__(
        self,
        surface: Surface,
        identity: Identity,
        seal: Seal,
        settings: EdgeSettings,
        *,
        ended: Ended | None = None,
        relay: Relay | None = None,
        offers: Offers | None = None,
    ) -> None:
        self._core = Core(surface, identity, Sessions(seal, ended), settings, relay, offers)
        self._heard: Heard = lambda principal, agent: None

    def on_heard(self, heard: Heard) -> None:
        """Has `heard` called with the principal and the user agent of every request."""
        self._heard = heard

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._serve(scope, receive, send)
        except Refusal as refusal:
            error = RpcError(INVALID_REQUEST, refusal.message)
            await respond(send, refusal.status, error_body(None, error), refusal.headers)
        except RpcError as error:  # a body that can't be answered as the request it wants to be
            await respond(send, 400, error_body(None, error))
        except ConnectionError:
            return  # the client left in the middle of its own request
        except Exception as error:
            _log.error("request_failed", **failure(error))
            await respond(send, 500, error_body(None, internal_error()))

    async def _serve(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        core = self._core
        view_scope = scope_of(scope["path"])
        if view_scope is None:
            raise Refusal(404, "Not Found")
        lines: list[tuple[bytes, bytes]] = scope["headers"]
        fields = fold(lines)
        check_host(core.rules, scope, fields)
        if b"origin" in fields:
            send = for_browser(send, fields[b"origin"])
            if is_preflight(scope, fields):
                await answer_preflight(send)
                return
        try:
            principal = await core.identity.identify(fields)
        except Unauthenticated as error:
            await self._challenge(send, fields, str(error))
            return
        self._heard(principal.name, fields.get(b"user-agent", b""))
        takes_json, takes_stream = accepted_types(fields.get(b"accept", b""))
        exchange = Exchange(principal, view_scope, fields, lines, receive, send, takes_stream)
        if scope["method"] == "POST":
            if not takes_json:
                raise Refusal(406, "Not Acceptable: Client must accept application/json")
            await self._post(exchange)
        else:
            await self._other(scope["method"], exchange)

    async def _post(self, exchange: Exchange) -> None:
        core, fields = self._core, exchange.fields
        require_json(fields)
        settings = core.settings
        body = await read_body(
            fields, exchange.receive, settings.max_body_bytes, settings.request_seconds
        )
        value = read_json(body)
        serve = mcp_modern.serve_post if is_modern(fields, value) else mcp_legacy.serve_post
        await serve(core, exchange, value)

    async def _other(self, method: str, exchange: Exchange) -> None:
        version = exchange.fields.get(b"mcp-protocol-version")
        modern = version is not None and version not in _HANDSHAKE
        if modern and version not in _KNOWN:
            raise Refusal(400, "Bad Request: Unsupported protocol version")
        try:
            if method == "GET" and not modern:
                await mcp_legacy.serve_get(self._core, exchange)
            elif method == "DELETE" and not modern:
                await mcp_legacy.serve_delete(self._core, exchange)
            else:
                allow = b"POST" if modern else b"GET, POST, DELETE"
                raise Refusal(405, "Method Not Allowed", ((b"allow", allow),))
        except GatewayError as error:
            raise Refusal(404, error.message) from error

    async def _challenge(self, send: Send, fields: Fields, why: str) -> None:
        presented = b"authorization" in fields
        challenge = self._core.identity.challenge(presented)
        body = dump({"error": "invalid_token", "error_description": why})
        await respond(send, 401, body, [(b"www-authenticate", challenge)])

    def figures(self) -> dict[str, int]:
        """What goes on here now, for operators."""
        return {
            "sessions": len(self._core.sessions),
            "streams": self.open_streams,
            "calls_in_flight": self.running_calls,
        }

    @property
    def open_streams(self) -> int:
        """How many streams are open here."""
        return len(self._core.streams)

    @property
    def running_calls(self) -> int:
        """How many tool calls are running here."""
        return self._core.calls.running

    def cancel(self, session: str, request_id: RequestId) -> bool:
        """Cancel a call of a session, on behalf of another replica; False: it is not here."""
        return self._core.calls.cancel(session, request_id)

    def take_answer(self, session: str, request_id: RequestId, body: Mapping[str, Any]) -> bool:
        """Hand on a client's answer that reached another replica; False: nobody here asked."""
        return self._core.calls.answer(session, request_id, body)

    async def drain(self, grace: float) -> bool:
        """Let calls finish, then close the streams; False when the grace was over first."""
        finished = await self.finish_calls(grace)
        await self.close_streams()
        return finished

    async def finish_calls(self, grace: float) -> bool:
        """Let the calls that requests wait for finish, and take no new streams."""
        self._core.streams.accept_no_more()
        return await self._core.calls.finished(grace)

    async def close_streams(self) -> None:
        """End all streams."""
        await self._core.streams.close(STREAMS_CLOSE_SECONDS)


def scope_of(path: str) -> Scope | None:
    """The view an address asks for; None: there is nothing at that address."""
    if path == "/mcp" or path == "/mcp/":
        return _OWN
    parts = path.removesuffix("/").split("/")
    match parts:
        case ["", "mcp", "bundles", names]:
            bundles = tuple(names.split("+"))
            return Scope("bundles", bundles) if _are_names(bundles) else None
        case ["", "mcp", "steps", workflow, step]:
            names_of_step = (workflow, step)
            return Scope("step", names_of_step) if _are_names(names_of_step) else None
    return None


def _are_names(names: tuple[str, ...]) -> bool:
    return len(names) <= MAX_BUNDLES and all(ADDRESSED.fullmatch(name) for name in names)


def is_modern(fields: Fields, value: object) -> bool:
    """Whether a POST speaks the 2026 era."""
    version = fields.get(b"mcp-protocol-version")
    if version is not None:
        return version not in _HANDSHAKE
    if not isinstance(value, dict) or value.get("method") == "initialize":
        return False
    params = value.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta


def resource_metadata(identity: Identity, path: str) -> bytes | None:
    """The document for `path` under `/.well-known`; None: nothing is there."""
    if path not in (METADATA_PATH, f"{METADATA_PATH}/mcp"):
        return None
    document = identity.resource_metadata()
    return None if document is None else dump(document)
