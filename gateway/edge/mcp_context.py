"""How the client of one request can be reached while it waits.

Progress, questions and log messages go ahead of the answer on the request's own stream, if the
client takes one. Who can't be reached has None there, and whoever asks finds another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mcp_types import LOG_LEVEL_META_KEY

from gateway.connectors.upstream_rpc import LOGGED
from gateway.edge.mcp_core import Request
from gateway.edge.mcp_messages import notification, progress_token
from gateway.edge.mcp_streams import event
from gateway.edge.surface import CallContext, Notice, Progress
from gateway.edge.wishes import reaches
from gateway.invoke.caller import AskClient


def context_of(request: Request, params: Mapping[str, Any]) -> CallContext:
    """What a request knows of its client."""
    exchange = request.exchange
    meta = params.get("_meta") or {}
    return CallContext(
        principal=exchange.principal,
        scope=exchange.scope,
        era=request.era,
        protocol_version=request.version,
        session=request.session,
        client=request.client,
        capabilities=request.capabilities,
        meta=meta,
        progress=_progress(request, meta),
        ask=_ask(request),
        input_responses=params.get("inputResponses"),
        request_state=params.get("requestState"),
        gone=None if request.reply is None else request.reply.is_gone,
        notice=_notice(request, meta),
        log_level=_log_level(request, meta),
    )


def _notice(request: Request, meta: Mapping[str, Any]) -> Notice | None:
    """Says a server's log messages on the request's own stream; in 2026 only if asked to."""
    reply, offers = request.reply, request.core.offers
    if offers is None or reply is None or not reply.streaming:
        return None
    wanted = _log_level(request, meta)
    if wanted is None and request.era == "2026":
        return None

    def notice(method: str, params: Mapping[str, Any]) -> None:
        known = method == LOGGED or request.era == "2025"
        if known and reaches(params.get("level"), wanted):
            reply.say(event(notification(method, params)))

    return notice


def _log_level(request: Request, meta: Mapping[str, Any]) -> str | None:
    if request.era == "2026":
        level = meta.get(LOG_LEVEL_META_KEY)
        return level if isinstance(level, str) else None
    offers = request.core.offers
    return None if offers is None else offers.log_level(request.session)


def _progress(request: Request, meta: Mapping[str, Any]) -> Progress | None:
    token, reply = progress_token(meta), request.reply
    if token is None or reply is None or not reply.streaming:
        return None

    async def progress(done: float, total: float | None, message: str | None) -> None:
        params: dict[str, Any] = {"progressToken": token, "progress": done}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        reply.say(event(notification("notifications/progress", params)))

    return progress


def _ask(request: Request) -> AskClient | None:
    reply, session = request.reply, request.session
    if request.era != "2025" or reply is None or not reply.streaming or session is None:
        return None
    return None if not request.capabilities else partial(request.core.calls.ask, session, reply)
