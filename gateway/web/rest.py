"""The HTTP API: the same functions as the tools, with paths and status codes.

Each request is answered by a small function of `Asked` and the request; what it returns is the JSON
body. One table turns our errors into statuses, and one shape carries them all.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from gateway.calls.record import Caller
from gateway.errors import (
    Broken,
    Fixable,
    GatewayError,
    NotFound,
    Refused,
    Unauthenticated,
    UnknownTool,
)
from gateway.limits import MAX_BODY_BYTES
from gateway.policy.view import Scope as ViewScope
from gateway.web.gateway import Gateway
from gateway.web.guard import (
    NotJson,
    Refusal,
    fold,
    read_body,
    read_json,
    require_json,
    write_json,
)
from gateway.web.identity import Identity
from gateway.web.meta_tools import Asked

log = structlog.get_logger("gateway.rest")

PREFIX = "/api/v1"

STATUS_OF_CODE: Mapping[str, int] = {
    "invalid_arguments": 422,
    "connection_invalid": 422,
    "idempotency_conflict": 409,
    "precondition": 412,
    "read_only": 403,
    "access_denied": 403,
    "blocked_path": 403,
    "not_connected": 409,
    "sign_in_required": 409,
    "unsupported_provider": 404,
    "approval_denied": 403,
    "approval_expired": 403,
    "rate_limited": 429,
    "busy": 503,
    "circuit_open": 503,
    "upstream_error": 502,
    "upstream_timeout": 504,
    "upstream_unreachable": 502,
    "outcome_unknown": 502,
    "store_unavailable": 503,
    "internal": 500,
}


@dataclass(frozen=True, slots=True)
class Answered:
    """A body with a status and headers of its own."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] | None = None


Handler = Callable[[Asked, Request, Any], Awaitable[Any]]


class RestApi:
    """The ASGI application under /api/v1."""

    def __init__(
        self, gateway: Gateway, identity: Identity, routes: list[tuple[str, str, Handler]]
    ) -> None:
        self._gateway = gateway
        self._identity = identity
        self._routes = [
            (Route(PREFIX + path, lambda request: Response(), methods=[method]), handler)
            for method, path, handler in routes
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._respond(scope, receive)
        except GatewayError as error:
            response = error_response(error)
        except Unauthenticated as error:
            response = self._challenge(str(error))
        except Refusal as refusal:
            response = refusal_response(refusal)
        except ConnectionError:
            return
        except Exception:  # the boundary: a stack must never reach a client
            log.exception("request failed", path=scope["path"])
            response = error_response(Broken("internal", "the gateway failed on this request"))
        await response(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        fields = fold(scope["headers"])
        principal = await self._identity.identify(fields)
        handler, params = self._route(scope)
        request = Request({**scope, "path_params": params}, receive)
        body: Any = None
        if scope["method"] in ("POST", "PUT", "PATCH"):
            seconds = self._gateway.snapshot.settings.limits.request_seconds
            raw = await read_body(fields, receive, MAX_BODY_BYTES, seconds)
            if raw:
                require_json(fields)
                body = _parsed(raw)
        context = Caller(
            principal=principal,
            scope=ViewScope("own"),
            era="2026",
            client=request.headers.get("user-agent", "")[:128],
        )
        gateway = self._gateway
        snapshot = gateway.catalog.current
        asked = Asked(
            gateway, context, snapshot, gateway.view_of(snapshot, principal, context.scope)
        )
        try:
            return _response(await handler(asked, request, body))
        except UnknownTool as error:
            raise NotFound(
                "invalid_arguments", str(error), "GET /api/v1/tools lists yours."
            ) from None

    def _route(self, scope: Scope) -> tuple[Handler, dict[str, Any]]:
        allowed: set[str] = set()
        for route, handler in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                return handler, child["path_params"]
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        if allowed:
            methods = ", ".join(sorted(allowed))
            raise Refusal(405, f"use {methods} here", ((b"allow", methods.encode()),))
        raise NotFound("invalid_arguments", "there is nothing at this address")

    def _challenge(self, why: str) -> Response:
        failure = Refused("access_denied", why, "Send a valid token as `Authorization: Bearer …`.")
        response = error_response(failure, 401)
        response.headers["www-authenticate"] = self._identity.challenge(False).decode()
        return response


def error_response(error: GatewayError, status: int | None = None) -> Response:
    """Any of our errors, in the one shape of this API."""
    if status is None:
        status = 404 if isinstance(error, NotFound) else STATUS_OF_CODE.get(error.code, 500)
    return _json({"error": error.as_dict()}, status, retry_header(error.details))


def refusal_response(refusal: Refusal) -> Response:
    """A request that is not even understood, in the one shape of this API."""
    response = error_response(Fixable("invalid_arguments", refusal.message), refusal.status)
    response.raw_headers.extend(refusal.headers)
    return response


def retry_header(error: Mapping[str, Any]) -> dict[str, str] | None:
    """What tells a client when to come again, where the error knows it."""
    seconds = error.get("retry_after")
    if not isinstance(seconds, int | float):
        return None
    return {"retry-after": str(max(1, math.ceil(seconds)))}


def need_admin(asked: Asked) -> None:
    """Refuses whoever is not an admin."""
    if not asked.context.principal.admin:
        raise Refused("access_denied", "only an admin may do this", "Ask an admin of the gateway.")


def object_body(body: Any, *keys: str) -> dict[str, Any]:
    """The body as an object that holds these keys."""
    if not isinstance(body, dict):
        raise Fixable("invalid_arguments", "the body must be a JSON object")
    if missing := [key for key in keys if key not in body]:
        raise Fixable("invalid_arguments", f"missing: {', '.join(missing)}")
    return body


def whole_number(request: Request, name: str, default: int, highest: int) -> int:
    """A query parameter that is a number."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise Fixable("invalid_arguments", f"{name} must be a whole number")
    return min(int(text), highest)


def _response(value: Any) -> Response:
    if isinstance(value, Response):
        return value
    if isinstance(value, Answered):
        return _json(value.body, value.status, value.headers)
    return _json(value, 200)


def _json(value: Any, status: int, headers: Mapping[str, str] | None = None) -> Response:
    body = b"" if value is None else write_json(value)
    media_type = None if value is None else "application/json"
    return Response(body, status, headers, media_type)


def _parsed(raw: bytes) -> Any:
    try:
        return read_json(raw)  # as strict as MCP is: a call means the same through both doors
    except NotJson as refused:
        raise Fixable("invalid_arguments", f"the body can't be read: {refused}") from None
