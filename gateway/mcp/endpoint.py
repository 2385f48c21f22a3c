"""`/mcp` for clients of both protocol eras, as one raw ASGI endpoint.

The straight line of a POST: guard (host, origin) → principal → what the client takes and sends →
body → era → answer. The SDK's server would cost more than the rest of a call together, so only its
pure parts are used: the schemas, the ladder of checks and the table of statuses. The era is told by
the `MCP-Protocol-Version` header, as the SDK does it, and by the envelope where the header is
missing, so that a client of 2026 which forgot it is told just that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from mcp_types import PROTOCOL_VERSION_META_KEY
from mcp_types.jsonrpc import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, KNOWN_PROTOCOL_VERSIONS
from starlette.types import Message, Receive, Send
from starlette.types import Scope as HttpScope

from gateway.config.settings import ADDRESSED
from gateway.errors import GatewayError, Unauthenticated
from gateway.limits import MAX_STREAMS_PER_PRINCIPAL
from gateway.mcp.era_2025 import SAID, Era2025
from gateway.mcp.era_2026 import Era2026
from gateway.mcp.messages import RpcError, error_body, parse
from gateway.mcp.methods import Core, Exchange, rpc_error
from gateway.mcp.pass_through import PassThrough
from gateway.mcp.streams import Streams
from gateway.mcp.wishes import WISHED
from gateway.model import Scope, json_bytes
from gateway.store.cluster import SESSION_ENDED, Signals
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.web.gateway import Gateway
from gateway.web.guard import (
    JSON_TYPE,
    METADATA_PATH,
    Fields,
    HostRules,
    Identity,
    RefusedRequest,
    check_host,
    fold,
    read_body,
    require_json,
    respond,
)

Heard = Callable[[str, bytes], None]

_HANDSHAKE = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_KNOWN = frozenset(version.encode() for version in KNOWN_PROTOCOL_VERSIONS)
# What a page of another origin may do; its request itself is checked when it comes.
_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"*, authorization"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED = b"mcp-session-id, www-authenticate, retry-after"


class McpEndpoint:
    """The ASGI application under `/mcp`."""

    def __init__(
        self,
        gateway: Gateway,
        identity: Identity,
        pass_through: PassThrough,
        seal: Seal,
        db: Database,
        rules: HostRules,
        max_streams: int = MAX_STREAMS_PER_PRINCIPAL,
    ) -> None:
        self._gateway = gateway
        self._identity = identity
        self._rules = rules
        self._pass_through = pass_through
        wishes, marks = pass_through.wishes, pass_through.marks
        self._streams = Streams(gateway, identity, wishes, marks, max_streams)
        pass_through.report_to(self._streams.look_again, self._streams.tell_notice)
        core = Core(gateway, pass_through, self._streams)
        self._calls = core.calls
        self._era_2025, self._era_2026 = Era2025(core, seal, db), Era2026(core)
        self._heard: Heard = lambda principal, agent: None

    def on_heard(self, heard: Heard) -> None:
        """Has `heard` called with the principal and the user agent of every request."""
        self._heard = heard

    def listen_to(self, signals: Signals) -> None:
        """Hears what clients said to other processes."""
        signals.on(SESSION_ENDED, self._era_2025.hear_ended)
        signals.on(SAID, self._era_2025.hear_said)
        signals.on(WISHED, self._pass_through.wishes.hear)

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            exchange = await self._admit(scope, receive, send)
            if exchange is None:
                return
            if scope["method"] != "POST":
                await self._serve_other(scope["method"], exchange)
                return
            seconds = self._gateway.snapshot.settings.limits.request_seconds
            body = await read_body(exchange.fields, receive, seconds=seconds)
            value = parse(body)
            era = self._era_2026 if is_modern(exchange.fields, value) else self._era_2025
            await era.post(exchange, value)
        except RefusedRequest as refusal:
            error = RpcError(INVALID_REQUEST, refusal.message)
            await respond(send, refusal.status, error_body(None, error), refusal.headers)
        except RpcError as error:  # a body that can't be answered as the request it wants to be
            await respond(send, 400, error_body(None, error))
        except ConnectionError:
            return  # the client left in the middle of its own request
        except Exception as error:
            await respond(send, 500, error_body(None, rpc_error(error)))

    async def _admit(self, scope: HttpScope, receive: Receive, send: Send) -> Exchange | None:
        """The request with its principal; None: it has been answered. Raises RefusedRequest."""
        view_scope = scope_of(scope["path"])
        if view_scope is None:
            raise RefusedRequest(404, "Not Found")
        lines: list[tuple[bytes, bytes]] = scope["headers"]
        fields = fold(lines)
        check_host(self._rules, scope, fields)
        if b"origin" in fields:
            send = for_browser(send, fields[b"origin"])
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in fields:
                await respond(send, 204, headers=_PREFLIGHT)
                return None
        try:
            principal = await self._identity.identify(fields)
        except Unauthenticated as error:
            challenge = self._identity.challenge(b"authorization" in fields)
            body = json_bytes({"error": "invalid_token", "error_description": str(error)})
            await respond(send, 401, body, [(b"www-authenticate", challenge)])
            return None
        self._heard(principal.name, fields.get(b"user-agent", b""))
        takes_json, takes_stream = accepted_types(fields.get(b"accept", b""))
        if scope["method"] == "POST":
            if not takes_json:
                raise RefusedRequest(406, "Not Acceptable: Client must accept application/json")
            require_json(fields)
        return Exchange(principal, view_scope, fields, lines, receive, send, takes_stream)

    async def _serve_other(self, method: str, exchange: Exchange) -> None:
        version = exchange.fields.get(b"mcp-protocol-version")
        modern = version is not None and version not in _HANDSHAKE
        if modern and version not in _KNOWN:
            raise RefusedRequest(400, "Bad Request: Unsupported protocol version")
        try:
            if method == "GET" and not modern:
                await self._era_2025.get(exchange)
            elif method == "DELETE" and not modern:
                await self._era_2025.delete(exchange)
            else:
                allow = b"POST" if modern else b"GET, POST, DELETE"
                raise RefusedRequest(405, "Method Not Allowed", ((b"allow", allow),))
        except GatewayError as error:
            raise RefusedRequest(404, error.message) from error

    def figures(self) -> dict[str, int]:
        """What goes on here now, for operators."""
        return {
            "sessions": len(self._era_2025.sessions),
            "streams": len(self._streams),
            "calls_in_flight": self._calls.running,
        }

    async def finish_calls(self, grace: float) -> bool:
        """Lets the calls that requests wait for finish, and takes no new streams."""
        self._streams.accept_no_more()
        return await self._calls.finish(grace)

    async def close_streams(self) -> None:
        """Ends all streams."""
        await self._streams.close()


def scope_of(path: str) -> Scope | None:
    """The view an address asks for; None: there is nothing at that address."""
    match path.removesuffix("/").split("/"):
        case ["", "mcp"]:
            return Scope()
        case ["", "mcp", "bundles", names]:
            scope = Scope("bundles", tuple(names.split("+")))
        case ["", "mcp", "steps", workflow, step]:
            scope = Scope("step", (workflow, step))
        case _:
            return None
    return scope if all(map(ADDRESSED.fullmatch, scope.names)) else None


@lru_cache(maxsize=256)
def accepted_types(accept: bytes) -> tuple[bool, bool]:
    """Whether an Accept header takes JSON, and whether it takes an event stream."""
    types = {part.split(b";")[0].strip().lower() for part in accept.split(b",")}
    return (
        not types.isdisjoint((b"*/*", b"application/*", JSON_TYPE)),
        not types.isdisjoint((b"*/*", b"text/*", b"text/event-stream")),
    )


def for_browser(send: Send, origin: bytes) -> Send:
    """A `send` that lets a page of this origin, which was checked, read the answer."""
    lines = [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"origin"),
    ]

    async def send_readable(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *lines]}
        await send(message)

    return send_readable


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
    return None if document is None else json_bytes(document)
