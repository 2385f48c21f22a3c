"""One request to an upstream MCP server that is not a call: limits around it, secrets kept here.

Nothing of the client travels along but what it asks for: its `_meta` stays here, but for the level
from which on it reads logs. A server's question goes to a client that can answer: on the request's
own stream, or, from 2026-07-28, as the answer itself, if the client said that it can be asked for
such a thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.calls.admission import Admission
from gateway.calls.credentials import Prepared
from gateway.calls.questions import asker, check_offered
from gateway.calls.record import Caller
from gateway.calls.send import LOG_LEVEL, clear_result, cleared_refusal
from gateway.errors import UpstreamFailed, UpstreamRefused
from gateway.upstream.protocol import INTERACTIVE, Hooks
from gateway.upstream.registry import Upstreams

OF_A_HOP = ("inputResponses", "requestState", "_meta")


class UpstreamRequests:
    """Asks servers on behalf of clients."""

    def __init__(self, upstreams: Upstreams, limits: Admission) -> None:
        self.upstreams = upstreams
        self._limits = limits

    async def ask(
        self,
        prepared: Prepared,
        method: str,
        params: Mapping[str, Any],
        caller: Caller,
        ask_seconds: float,
    ) -> dict[str, Any]:
        """The server's result, cleared of secrets. Raises UpstreamRefused with its own words."""
        await self._limits.admit(prepared.name, caller.principal.name, prepared.rate_limit)
        async with self._limits.call(prepared.name) as passage:
            try:
                result = await self._send(prepared, method, params, caller, ask_seconds)
            except UpstreamRefused as error:
                passage.note_answer(200)
                raise cleared_refusal(error, prepared.redactor) from error
            except UpstreamFailed as error:
                if error.code != "upstream_error":
                    passage.note_failure()
                raise
            passage.note_answer(200)
        return (await clear_result(result, prepared.redactor))[1]

    async def _send(
        self,
        prepared: Prepared,
        method: str,
        params: Mapping[str, Any],
        caller: Caller,
        ask_seconds: float,
    ) -> dict[str, Any]:
        peer = self.upstreams.status(prepared.name).peer
        relays = caller.era == "2026" and bool(caller.askable) and method in INTERACTIVE
        sent = dict(params)
        if not relays or peer is None or peer.era == "handshake":
            sent = {key: value for key, value in sent.items() if key not in OF_A_HOP}
        sent["_meta"] = {LOG_LEVEL: caller.log_level} if caller.log_level else {}
        asks = asker(caller, prepared.redactor, ask_seconds)
        result = await self.upstreams.request(
            prepared.name,
            method,
            sent,
            principal=caller.principal.name,
            hooks=Hooks(caller.progress, asks, caller.notice, caller.askable or None),
            relay_input=relays,
        )
        if relays and result.get("resultType") == "input_required":
            check_offered(result.get("inputRequests") or {}, caller.askable)
        return result
