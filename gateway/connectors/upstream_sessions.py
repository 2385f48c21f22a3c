"""All upstream MCP servers of the gateway, by connection name.

Each has its own link with its own bounds, so that one which is slow, dead or talkative costs nobody
else anything. Callers name a connection and a method; sessions, eras, transports and reconnection
stay behind this door. What leaves here towards an upstream is what its settings and the caller's
arguments say, nothing of the client's headers or tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import structlog

from gateway.connectors.upstream_answers import Headers, Open
from gateway.connectors.upstream_http import HttpSession
from gateway.connectors.upstream_link import CHANGED, Link, Pace, Session, State
from gateway.connectors.upstream_listing import RawTool
from gateway.connectors.upstream_lists import OtherLists
from gateway.connectors.upstream_rpc import (
    NO_HOOKS,
    Ask,
    Holds,
    Hooks,
    Notice,
    Peer,
    Progress,
    completed,
)
from gateway.connectors.upstream_standing import Standing
from gateway.connectors.upstream_stdio import StdioSession
from gateway.errors import GatewayError, Refused

MAX_ANSWER_BYTES = 8 * 1024 * 1024

ToolsChanged = Callable[[str], None]
Notified = Callable[[str, str, Mapping[str, Any]], None]
Authorize = Callable[[str, bool], Awaitable[Headers]]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Upstream:
    """How one upstream is reached."""

    name: str  # as messages and logs call it
    transport: Literal["http", "stdio"] = "http"
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    lazy: bool = False
    timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    """How an upstream is doing: what it said of itself last, and why it can't be reached."""

    state: State
    peer: Peer | None
    error: GatewayError | None


class Upstreams:
    """The upstreams of all connections; `async with` closes every one of them."""

    def __init__(
        self,
        open_: Open,
        *,
        authorize: Authorize | None = None,
        pace: Pace | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._open = open_
        self._authorize = authorize
        self._pace = pace or Pace()
        self._max_bytes = max_answer_bytes
        self._links: dict[str, tuple[Upstream, Link]] = {}
        self._standing: dict[str, Standing] = {}
        self._retiring: dict[asyncio.Task[None], Link] = {}
        self._on_changed: list[ToolsChanged] = []
        self._on_notice: list[Notified] = []

    async def __aenter__(self) -> Upstreams:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends every session, child and task; returns when nothing is left."""
        await asyncio.gather(*(standing.close() for standing in self._standing.values()))
        links = [*(link for _, link in self._links.values()), *self._retiring.values()]
        self._links.clear()
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(
            *(link.close() for link in links), *self._retiring, return_exceptions=True
        )

    def replace(self, name: str, settings: Upstream | None) -> None:
        """Puts an upstream in, changes it or takes it out; calls on the old one finish."""
        known = self._links.get(name)
        if known is not None and known[0] == settings:
            return
        self._links.pop(name, None)
        earlier = self._standing.pop(name, None)
        if known is not None:
            task = asyncio.create_task(_retired(known[1], earlier))
            self._retiring[task] = known[1]
            task.add_done_callback(self._retiring.pop)
        if settings is not None:
            self._links[name] = settings, self._link(name, settings)
            if earlier is not None:
                self.standing(name).take_over(earlier)

    def status(self, name: str) -> UpstreamStatus:
        """How an upstream is doing now."""
        link = self._known(name)[1]
        return UpstreamStatus(link.state, link.peer, link.error)

    async def meet(self, name: str, seconds: float) -> Peer | None:
        """What an upstream says of itself, if it can be met in so many seconds."""
        link = self._known(name)[1]
        if link.peer is None:
            with suppress(GatewayError):
                await link.ready(asyncio.get_running_loop().time() + seconds)
        return link.peer

    async def list_tools(self, name: str, *, deadline: float | None = None) -> list[RawTool]:
        """The tools of an upstream now, as it lists them."""
        settings, link = self._known(name)
        return await link.list_tools(deadline or settings.timeout_seconds)

    async def call(
        self,
        name: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        deadline: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        ask: Ask | None = None,
        notice: Notice | None = None,
        capabilities: Mapping[str, Any] | None = None,
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
        holds: Holds | None = None,
    ) -> dict[str, Any]:
        """The raw result of one tool call.

        Questions of the upstream go to `ask`, and are declined without one. `input_responses` and
        `request_state` are what the client says of its own accord. `holds` is asked about a large
        answer as it comes in.
        """
        params: dict[str, Any] = {"name": tool, "arguments": arguments, "_meta": meta or {}}
        if input_responses is not None:
            params["inputResponses"] = input_responses
        if request_state is not None:
            params["requestState"] = request_state
        hooks = Hooks(progress, ask, notice, capabilities, holds)
        return await self.request(name, "tools/call", params, deadline=deadline, hooks=hooks)

    async def request(
        self,
        name: str,
        method: str,
        params: Mapping[str, Any],
        *,
        deadline: float | None = None,
        hooks: Hooks = NO_HOOKS,
        relay_input: bool = False,
    ) -> dict[str, Any]:
        """The raw result of any request: prompts, resources, completion, logging.

        With `relay_input` a modern upstream's `input_required` result is given back as it is, for a
        client that answers by asking again.
        """
        settings, link = self._known(name)
        seconds = deadline or settings.timeout_seconds

        async def send(params: Mapping[str, Any]) -> dict[str, Any]:
            return await link.request(method, params, seconds, hooks)

        if relay_input:
            return await send(params)
        return await completed(send, params, hooks.ask, name)

    async def notify(self, name: str, method: str, params: Mapping[str, Any]) -> None:
        """Tells an upstream something that has no answer."""
        settings, link = self._known(name)
        await link.notify(method, params, settings.timeout_seconds)

    def standing(self, name: str) -> Standing:
        """What is wanted of an upstream for longer than a request."""
        link = self._known(name)[1]
        found = self._standing.get(name)
        if found is None:

            def notice(method: str, params: Mapping[str, Any]) -> None:
                self._tell(self._on_notice, name, method, params)

            found = self._standing[name] = Standing(link, notice)
        return found

    def on_tools_changed(self, callback: ToolsChanged) -> Callable[[], None]:
        """Calls back with a name when that upstream's tools should be listed again."""
        self._on_changed.append(callback)
        return lambda: self._on_changed.remove(callback)

    def on_notification(self, callback: Notified) -> Callable[[], None]:
        """Calls back with name, method and params of every notice but progress and tool changes."""
        self._on_notice.append(callback)
        return lambda: self._on_notice.remove(callback)

    def _known(self, name: str) -> tuple[Upstream, Link]:
        try:
            return self._links[name]
        except KeyError:
            raise Refused("not_connected", f"{name} is not connected") from None

    def _link(self, name: str, settings: Upstream) -> Link:
        http = settings.transport == "http"
        lists = OtherLists(
            settings.name, partial(self._tell, self._on_notice, name), self._pace.poll
        )
        link = Link(
            settings.name,
            lambda: self._session(name, settings, link, lists),
            lazy=settings.lazy,
            connect_seconds=settings.timeout_seconds if http else self._pace.start,
            retry_on_demand=http,
            changed=lambda: self._tell(self._on_changed, name),
            beside=lists,
            pace=self._pace,
        )
        return link

    def _session(self, name: str, settings: Upstream, link: Link, lists: OtherLists) -> Session:
        def notice(method: str, params: Mapping[str, Any]) -> None:
            if method == CHANGED:
                link.changed()
                return
            if lists.told(method):
                lists.again.set()  # to know it as it is now
            self._tell(self._on_notice, name, method, params)

        if settings.transport == "stdio":
            return StdioSession(
                settings.name,
                settings.command,
                settings.args,
                settings.env,
                settings.cwd,
                notice=notice,
                max_bytes=self._max_bytes,
            )
        return HttpSession(
            settings.name,
            settings.url,
            tuple(settings.headers.items()),
            open_=self._open,
            authorize=self._credentials(name),
            notice=notice,
            max_bytes=self._max_bytes,
        )

    def _credentials(self, name: str) -> Callable[[bool], Awaitable[Headers]] | None:
        authorize = self._authorize
        return None if authorize is None else lambda refused: authorize(name, refused)

    def _tell(self, listeners: list[Callable[..., None]], *what: Any) -> None:
        for listener in tuple(listeners):
            try:
                listener(*what)
            except Exception:  # one listener's fault is not the others', nor the upstream's
                log.exception("upstream_listener_failed", upstream=what[0])


async def _retired(link: Link, standing: Standing | None) -> None:
    if standing is not None:
        await standing.close()
    await link.retire()
