"""Addresses beside the API: alive, ready, how it is, figures for Prometheus, Azure's sign-ins.

`/healthz` and `/readyz` say nothing but that, to anyone. What connections there are is told to
callers with a token, each as far as it may know; without one, `/health` and `/metrics` give sums.

People come back from signing a connection in to an address that holds a sealed note of which one it
is about and until when, so that nobody can make one up.
"""

from __future__ import annotations

import html
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from cryptography.fernet import InvalidToken
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway import __version__
from gateway.catalog.discover import problem_dict
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import GatewayError, Unauthenticated
from gateway.model import Principal, Problem, json_bytes
from gateway.policy.access import may_know
from gateway.policy.problems import configuration_problems
from gateway.store.approvals import count_waiting
from gateway.store.secrets import Seal
from gateway.telemetry import Metrics
from gateway.web.gateway import Gateway
from gateway.web.guard import Identity, fold
from gateway.web.shown import azure_resource

log = structlog.get_logger("gateway.configuration")

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Health:
    """Answers /healthz, /readyz, /health and /metrics."""

    def __init__(
        self, gateway: Gateway, identity: Identity, figures: Callable[[], dict[str, int]]
    ) -> None:
        self._gateway = gateway
        self._identity = identity
        self._figures = figures
        self._started = time.time()
        self.metrics = Metrics()
        self.draining = False
        self.config_problem: str | None = None
        self.problems: tuple[Problem, ...] = ()  # of the configuration, in the current snapshot
        self._told: set[tuple[str, Problem]] = set()
        gateway.on_change(self._follow)
        self._follow()
        self.routes = [
            Route("/healthz", self._alive),
            Route("/readyz", self._ready),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]

    async def _alive(self, request: Request) -> Response:
        return PlainTextResponse("ok")

    async def _ready(self, request: Request) -> Response:
        store = await self._store()
        if self.draining or store != "ok":
            return PlainTextResponse("draining" if self.draining else store, 503)
        return PlainTextResponse("ready")

    async def _health(self, request: Request) -> Response:
        report = await self.report(await self._principal(request))
        return Response(json_bytes(report), media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        try:
            waiting = float(await count_waiting(self._gateway.db, time.time()))
        except GatewayError:
            waiting = float("nan")  # the store does not answer: nobody knows
        snapshot, unknown = self._gateway.snapshot, self._gateway.unknown_calls
        figures: dict[str, float] = {
            "catalog_revision": snapshot.revision,
            "tools": len(snapshot.tools),
        }
        figures |= {"pending_approvals": waiting, **self._figures()}
        statuses = (state.status for state in snapshot.connections.values())
        principal = await self._principal(request)
        named = principal is not None and principal.admin
        shown = self.metrics.text(statuses, unknown, figures, named=named)
        return Response(shown, media_type=PROMETHEUS)

    async def _principal(self, request: Request) -> Principal | None:
        try:
            return await self._identity.identify(fold(request.scope["headers"]))
        except (Unauthenticated, GatewayError):
            return None

    def _follow(self) -> None:
        """Logs what operators wrote and what does not hold, each once for as long as it is so."""
        snapshot = self._gateway.snapshot
        self.metrics.forget_all_but(snapshot.connections)
        self.problems = configuration_problems(snapshot)
        problems = [("", each) for each in self.problems]
        for name, state in snapshot.connections.items():
            problems += [(name, each) for each in state.problems if each.configured]
        for connection, problem in problems:
            if (connection, problem) not in self._told:
                about = {"connection": connection} if connection else {}
                log.warning("configuration problem", **about, **problem_dict(problem))
        self._told = set(problems)

    async def report(self, principal: Principal | None) -> dict[str, Any]:
        """The whole state in one object, as far as the caller may know it."""
        snapshot = self._gateway.snapshot
        states = [s for s in snapshot.connections.values() if principal and may_know(principal, s)]
        store = await self._store()
        admin = principal is not None and principal.admin
        problems = (*snapshot.problems, *self.problems)
        return {
            "status": self._status(snapshot, store, problems),
            "version": __version__,
            "revision": snapshot.revision,
            "uptime_seconds": round(time.time() - self._started, 1),
            "tools": sum(len(state.tools) for state in states),
            "connections": [self._row(state) for state in states],
            "connections_by_status": Tally(state.status for state in states),
            "store": store,
            "draining": self.draining,
            "config": "ok" if self.config_problem is None else "problem",
            "config_problem": self.config_problem if admin else None,
            "problems": [problem_dict(each) for each in problems] if admin else [],
            **self._figures(),
        }

    def _status(self, snapshot: Snapshot, store: str, problems: Iterable[Problem]) -> str:
        if store != "ok":
            return "failing"
        failing = any(state.status == "failing" for state in snapshot.connections.values())
        wrong = any(problem.severity == "error" for problem in problems)
        return "degraded" if failing or wrong or self.config_problem is not None else "ok"

    def _row(self, state: ConnectionState) -> dict[str, Any]:
        return {
            "name": state.name,
            "status": state.status,
            "tools": len(state.tools),
            "last_refresh": self._gateway.catalog.refreshed_at.get(state.name),
            "problems": Tally(problem.severity for problem in state.problems),
        }

    async def _store(self) -> str:
        try:
            await self._gateway.db.ping()
        except GatewayError as error:
            return error.code
        return "ok"


# --- where people come back to after signing a connection in --------------------------------------

CONSENT = "/azure/consent/"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><h1>{title}</h1><p>{words}</p></html>"""
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def return_address(seal: Seal, public_url: str, id_: str) -> str:
    """Where Azure sends the person who signed in for this resource, within the hour."""
    note = {"azure_consent": id_, "until": time.time() + 3600}
    return f"{public_url}{CONSENT}{seal.encrypt_json(note).decode().rstrip('=')}"


def consent_route(gateway: Gateway, seal: Seal) -> Route:
    """Answers people who come back from signing in: the code they bring is handed to Azure."""

    async def come_back(request: Request) -> Response:
        id_, code = _noted(seal, request.path_params["note"]), request.query_params.get("code")
        title, words, status = await _confirm(gateway, id_, code)
        page = _PAGE.format(title=html.escape(title), words=html.escape(words))
        return Response(page, status, _PAGE_HEADERS, "text/html")

    return Route(CONSENT + "{note}", come_back)


async def _confirm(gateway: Gateway, id_: str | None, code: str | None) -> tuple[str, str, int]:
    if id_ is None:
        return "This link has expired", "Ask for a new one with get_connection.", 404
    if not code:
        return "Not signed in", "The sign-in was not completed. Try the link again.", 400
    try:
        await gateway.directory.confirm(id_, code)
    except GatewayError as error:
        log.warning("consent not confirmed", error=error.message)
        return "Not signed in", "Azure did not accept the sign-in. Try the link again.", 502
    states = gateway.snapshot.connections.values()
    about = [s.name for s in states if id_.lower() == (azure_resource(s) or "").lower()]
    await gateway.catalog.refresh(about, by="consent")
    return "Signed in", "The connection is ready. You can close this page.", 200


def _noted(seal: Seal, note: str) -> str | None:
    """The resource that a note is about, while it is valid."""
    padded = note + "=" * (-len(note) % 4)
    try:
        value: Any = seal.decrypt_json(padded.encode("ascii", "replace"))
        id_, until = value["azure_consent"], value["until"]
    except (InvalidToken, ValueError, KeyError, TypeError):
        return None  # not sealed by us, or for another use
    return str(id_) if until >= time.time() else None
