"""One request of a client, made to the server it concerns: limits around it, secrets kept here.

Nothing of the client travels along but what it asks for: its `_meta` stays here, but for the level
from which on it reads logs. A server's question goes to a client that can answer: on the request's
own stream, or, from 2026-07-28, as the answer itself, if the client said that it can be asked for
such a thing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.connectors.upstream_rpc import INTERACTIVE, Hooks
from gateway.connectors.upstream_sessions import Upstreams
from gateway.edge.surface import CallContext, askable_of
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused
from gateway.invoke.limits import Limits
from gateway.invoke.media import HEAVY_BYTES
from gateway.invoke.prepared import Prepared, PreparedConnections
from gateway.invoke.questions import asker, check_offered
from gateway.invoke.redact import Redactor
from gateway.invoke.upstream import LOG_LEVEL, cleared_refusal

OF_A_HOP = ("inputResponses", "requestState", "_meta")


class UpstreamRequests:
    """Asks servers on behalf of clients."""

    def __init__(self, upstreams: Upstreams, limits: Limits, prepared: PreparedConnections) -> None:
        self._upstreams = upstreams
        self._limits = limits
        self._prepared = prepared

    def are_apart(self, name: str) -> bool:
        """Whether each principal has a session of its own with this server."""
        try:
            return self._upstreams.sharing(name) == "principal"
        except GatewayError:
            return False  # being taken out just now

    async def ask(
        self,
        snapshot: Snapshot,
        server: ConnectionState,
        method: str,
        params: Mapping[str, Any],
        context: CallContext,
    ) -> dict[str, Any]:
        """The server's result, cleared of secrets. Raises UpstreamRefused with its own words."""
        prepared, seconds = (
            self._prepared.of(snapshot, server.name),
            snapshot.permissions.timeout_seconds,
        )
        context = replace(context, askable=askable_of(context, server))
        await self._limits.admit(server.name, context.principal.name, prepared.rate_limit)
        async with self._limits.call(server.name) as outcome:
            try:
                result = await self._send(prepared, method, params, context, seconds)
            except UpstreamRefused as error:
                outcome.answered(200)
                raise cleared_refusal(error, prepared.redactor) from error
            except UpstreamFailed as error:
                if error.code != "upstream_error":
                    outcome.failed()
                raise
            outcome.answered(200)
        return await _cleared(result, prepared.redactor)

    async def _send(
        self,
        prepared: Prepared,
        method: str,
        params: Mapping[str, Any],
        context: CallContext,
        seconds: float,
    ) -> dict[str, Any]:
        peer = self._upstreams.status(prepared.name).peer
        relays = context.era == "2026" and bool(context.askable) and method in INTERACTIVE
        sent = dict(params)
        if not relays or peer is None or peer.era == "handshake":
            sent = {key: value for key, value in sent.items() if key not in OF_A_HOP}
        sent["_meta"] = {LOG_LEVEL: context.log_level} if context.log_level else {}
        asks = asker(context, prepared.redactor, seconds)
        hooks = Hooks(context.progress, asks, context.notice, context.askable or None)
        result = await self._upstreams.request(
            prepared.name,
            method,
            sent,
            principal=context.principal.name,
            hooks=hooks,
            relay_input=relays,
        )
        if relays and result.get("resultType") == "input_required":
            check_offered(result.get("inputRequests") or {}, context.askable)
        return result


async def _cleared(result: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    if not redactor:
        return result
    try:
        raw = orjson.dumps(result)
    except TypeError as error:
        message = "The server's answer is nested too deeply"
        raise UpstreamFailed("upstream_error", message) from error
    heavy = len(raw) > HEAVY_BYTES
    cleared = await asyncio.to_thread(redactor.bytes, raw) if heavy else redactor.bytes(raw)
    taken: dict[str, Any] = result if cleared is raw else orjson.loads(cleared)
    return taken
