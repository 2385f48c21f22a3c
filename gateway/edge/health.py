"""For those who operate the gateway: alive, ready, how it is, and figures for Prometheus."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, generate_latest
from starlette.types import Receive, Scope, Send

from gateway import __version__
from gateway.edge.gateway import Gateway
from gateway.edge.http_guard import respond
from gateway.errors import GatewayError

TEXT = b"text/plain; charset=utf-8"


class Health:
    """Answers /healthz, /readyz, /health and /metrics."""

    def __init__(
        self,
        gateway: Gateway,
        registry: CollectorRegistry,
        figures: Callable[[], dict[str, int]],
    ) -> None:
        self._gateway = gateway
        self._registry = registry
        self._figures = figures
        self._started = time.time()
        self.draining = False
        self.config_problem: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await respond(send, 405, b"", [(b"allow", b"GET, HEAD")])
            return
        match scope["path"]:
            case "/healthz":
                await respond(send, 200, b"ok", content_type=TEXT)
            case "/readyz":
                await self._ready(send)
            case "/health":
                await respond(send, 200, orjson.dumps(await self.report()))
            case _:
                await respond(send, 200, generate_latest(self._registry), content_type=TEXT)

    async def _ready(self, send: Send) -> None:
        store = await self._store()
        ready = store == "ok" and not self.draining
        reason = b"ready" if ready else b"draining" if self.draining else store.encode()
        await respond(send, 200 if ready else 503, reason, content_type=TEXT)

    async def report(self) -> dict[str, Any]:
        """The whole state in one object: no secrets, no addresses."""
        snapshot = self._gateway.snapshot
        refreshed = self._gateway.catalog.refreshed_at
        connections = [
            {
                "name": state.name,
                "status": state.status,
                "tools": len(state.tools),
                "last_refresh": refreshed.get(state.name),
                "problems": Counter(problem.severity for problem in state.problems),
            }
            for state in snapshot.connections.values()
        ]
        store = await self._store()
        failing = [c["name"] for c in connections if c["status"] == "failing"]
        azure_problem = self._gateway.azure.problem
        degraded = bool(failing) or bool(self.config_problem or azure_problem)
        return {
            "status": "failing" if store != "ok" else "degraded" if degraded else "ok",
            "version": __version__,
            "revision": snapshot.revision,
            "uptime_seconds": round(time.time() - self._started, 1),
            "tools": len(snapshot.tools),
            "connections": connections,
            "store": store,
            "draining": self.draining,
            "config_problem": self.config_problem,
            "azure_problem": "the resource group can't be listed" if azure_problem else None,
            **self._figures(),
        }

    async def _store(self) -> str:
        try:
            await self._gateway.db.ping()
        except GatewayError as error:
            return error.code
        return "ok"
