"""Keeps sessions with every connected MCP server, as the current snapshot wants them.

A connection that is being put is listed under a name of its own first: if that fails, the session
that serves calls was never touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from gateway.catalog.snapshot import Snapshot
from gateway.config.connection import Connection, McpConnection
from gateway.config.settings import Limits
from gateway.connectors.upstream_answers import Streamed
from gateway.connectors.upstream_link import Sharing, Upstream
from gateway.connectors.upstream_sessions import Upstreams
from gateway.model import NO_TLS_FILES, TlsFiles
from gateway.outbound.client import Egress, Request

MAX_KEPT_CHARS = 65_536  # of a server's instructions: more than a client is told of all servers

Authorize = Callable[[str, Connection, bool], Awaitable[Sequence[tuple[str, str]]]]


class Listed(NamedTuple):
    """What a server says of itself, and whether all principals share one session with it."""

    said: dict[str, Any]  # its tools and its instructions
    session: Sharing | None


class LiveUpstreams:
    """The sessions behind connections of kind mcp."""

    def __init__(self, egress: Egress, authorize: Authorize) -> None:
        self._egress = egress
        self._authorize = authorize
        self._settings: dict[str, McpConnection] = {}
        self._probes = itertools.count()
        self.sessions = Upstreams(self._open, authorize=self._headers)

    def follow(self, snapshot: Snapshot) -> None:
        """Opens, replaces and closes sessions until they are those of the snapshot."""
        wanted = {
            name: state.settings
            for name, state in snapshot.connections.items()
            if isinstance(state.settings, McpConnection) and state.status != "disabled"
        }
        limits = snapshot.settings.limits
        self.sessions.resize(limits.upstream_sessions)
        for name in self._settings.keys() - wanted.keys():
            if "?" not in name:
                self._drop(name)
        for name, settings in wanted.items():
            self._settings[name] = settings
            self.sessions.replace(name, upstream_of(name, settings, limits))

    async def read(self, name: str, settings: McpConnection) -> Listed:
        """What the server says of itself now: its tools and its instructions.

        Over the connection's own session, or one made for this.
        """
        if self._settings.get(name) == settings:
            return await self._read(name)
        probe = f"{name}?{next(self._probes)}"
        self._settings[probe] = settings
        self.sessions.replace(probe, upstream_of(name, settings, Limits()))
        try:
            return await self._read(probe)
        finally:
            self._drop(probe)

    async def _read(self, name: str) -> Listed:
        tools = await self.sessions.list_tools(name)
        peer = self.sessions.status(name).peer
        instructions = (peer.instructions if peer else None) or ""
        said = {"tools": tools, "instructions": instructions[:MAX_KEPT_CHARS]}
        return Listed(said, self.sessions.sharing(name))

    def _drop(self, name: str) -> None:
        self._settings.pop(name, None)
        self.sessions.replace(name, None)

    def _open(
        self,
        method: str,
        url: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | None,
        deadline: float,
        tls: TlsFiles = NO_TLS_FILES,
    ) -> AbstractAsyncContextManager[Streamed]:
        request = Request(method, url, tuple(headers), body)
        return self._egress.open(request, deadline=deadline, tls=tls)

    async def _headers(self, name: str, refused: bool) -> Sequence[tuple[str, str]]:
        settings = self._settings.get(name)
        return () if settings is None else await self._authorize(name, settings, refused)


def upstream_of(name: str, settings: McpConnection, limits: Limits) -> Upstream:
    """How this server is reached, in its session's own terms."""
    return Upstream(
        name=name,
        transport=settings.transport,
        url=settings.url or "",
        headers=settings.headers,
        command=settings.command or "",
        args=settings.args,
        env=settings.env,
        cwd=settings.cwd,
        lazy=settings.lazy,
        tls=settings.tls_files,
        timeout_seconds=settings.timeout_seconds or limits.call_timeout_seconds,
        max_call_seconds=limits.max_call_seconds,
        session=settings.session,
        protocol=settings.protocol,
    )
