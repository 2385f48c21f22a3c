"""All upstream MCP servers of the gateway, by connection name, as the configuration wants them.

Each has its own links with their own bounds, so that an upstream which is slow, dead or talkative
costs callers of the others nothing. Callers name a connection and a method; sessions, eras,
transports and reconnection stay in here. One session of each upstream lists what there is.
Where the upstream keeps state between requests (a child process, a session id), requests of
principals go over sessions of their own: else one principal would see what another has opened. The
number of these sessions is bounded; the one that was idle longest makes room, and ends by itself
after a while. A server of the 2025 era learns once a session whether it may ask for what a model
says (sampling), and may do something else if not: clients of one principal that offer it have
another session than those that don't.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from mcp_types import HEADER_MISMATCH

from gateway.config.connection import Connection, McpConnection, is_personal
from gateway.config.settings import Limits
from gateway.errors import GatewayError, Overloaded, Refused
from gateway.limits import STEP_BYTES
from gateway.outbound.client import Egress
from gateway.upstream import protocol
from gateway.upstream.http import Headers, HttpSession
from gateway.upstream.link import Link, LinkCallbacks, Pace
from gateway.upstream.listing import ListingLink, OwnLink
from gateway.upstream.protocol import LOGGED, NO_HOOKS, UPDATED, Hooks, Notice, Peer, RawTool
from gateway.upstream.session import Listing, Session, Upstream, ask_until_complete, end_tasks
from gateway.upstream.stdio import StdioSession

# By name, settings and principal (None: for listing); given the headers that were refused, and
# whether those were fresh.
AuthorizeFor = Callable[[str, Connection, str | None, Headers | None, bool], Awaitable[Headers]]
# An upstream's name, the principal whom a notice concerns (None: all), its method and params.
OnNotification = Callable[[str, str | None, str, Mapping[str, Any]], None]

_SAME_NAMES = {"transport", "url", "headers", "command", "args", "env", "lazy", "session"}

log = structlog.get_logger(__name__)


class Upstreams:
    """The upstreams of all connections; `async with` closes every one of them."""

    def __init__(self, egress: Egress, authorize: AuthorizeFor, pace: Pace | None = None) -> None:
        self._egress = egress
        self._authorize = authorize
        self._pace = pace or Pace()
        self._max_sessions = Limits().upstream_sessions
        self._settings: dict[str, McpConnection] = {}
        self._probes = itertools.count()
        self._listing: dict[str, ListingLink] = {}
        self._own: dict[tuple[str, str, str], OwnLink] = {}  # by name, principal, sampling
        self._retirements: dict[asyncio.Task[None], Link] = {}
        self._level_tasks: set[asyncio.Task[None]] = set()
        # What the gateway does when an upstream's tools should be listed again, when it can't be
        # listed or called, when it is met anew or for the first time, and with every notice but
        # progress and changed tools.
        self.on_tools_changed: Callable[[str], None] = _ignore
        self.on_trouble: Callable[[str, GatewayError], None] = _ignore
        self.on_replaced: Callable[[str], None] = _ignore
        self.on_notification: OnNotification = _ignore
        # From which level on an upstream logs for a principal, or for all of them.
        self.log_level: Callable[[str | None], str | None] = _ignore

    async def __aenter__(self) -> Upstreams:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends every session, child and task; returns when nothing is left."""
        links = [*self._listing.values(), *self._own.values(), *self._retirements.values()]
        for link in self._listing.values():
            link.stop()
        self._listing.clear()
        self._own.clear()
        await end_tasks(*self._retirements, *self._level_tasks)
        await asyncio.gather(*(link.close() for link in links), return_exceptions=True)

    def follow(self, connections: Mapping[str, McpConnection], limits: Limits) -> None:
        """Opens, replaces and closes sessions until they are those of these connections."""
        self.resize(limits.upstream_sessions)
        for name in self._settings.keys() - connections.keys():
            if "?" not in name:  # else it is being read for the first time
                self._drop(name)
        for name, settings in connections.items():
            self._settings[name] = settings
            self.replace(name, upstream_of(name, settings, limits, self._egress.folder))

    async def read(self, name: str, settings: McpConnection) -> Listing:
        """Asks the server for its tools and its instructions now.

        A connection that is being put is listed under a name of its own first: if that fails, the
        session that serves calls was never touched.
        """
        if self._settings.get(name) == settings:
            return await self._read(name)
        probe = f"{name}?{next(self._probes)}"
        self._settings[probe] = settings
        self.replace(probe, upstream_of(name, settings, Limits(), self._egress.folder))
        try:
            return await self._read(probe)
        finally:
            self._drop(probe)

    async def _read(self, name: str) -> Listing:
        tools, link = await self.list_tools(name), self.listing_link(name)
        instructions = ((link.peer.instructions if link.peer else None) or "")[:STEP_BYTES]
        return Listing({"tools": tools, "instructions": instructions}, link.sharing)

    def _drop(self, name: str) -> None:
        self._settings.pop(name, None)
        self.replace(name, None)

    def replace(self, name: str, upstream: Upstream | None) -> None:
        """Puts an upstream in, changes it or takes it out; calls on the old one finish."""
        old = self._listing.get(name)
        if old is not None and old.upstream == upstream:
            return
        if old is not None:
            del self._listing[name]
            old.stop()
            self._retire(old)
            for key in [key for key in self._own if key[0] == name]:
                self._retire(self._own.pop(key))
        if upstream is not None:
            self._listing[name] = self._make_listing_link(name, upstream)
            if old is not None:
                self._listing[name].report_due = True  # its known tools may be old
            self._tell(self.on_replaced, name)

    def resize(self, max_sessions: int) -> None:
        """Takes over how many sessions principals may have; idle ones give way at once."""
        self._max_sessions = max_sessions
        with suppress(Overloaded):
            while len(self._own) > max_sessions:
                self._make_room()

    def listing_link(self, name: str) -> ListingLink:
        """The link of an upstream that lists its tools: its state, what it said last, its error."""
        if name not in self._listing:
            raise Refused("not_connected", f"{name} is not connected")
        return self._listing[name]

    def peer(self, name: str) -> Peer | None:
        """What an upstream said of itself last; None if it was never met, or is being taken out."""
        return self._listing[name].peer if name in self._listing else None

    async def meet(self, name: str, seconds: float, *, failed_too: bool) -> None:
        """Gives an upstream that was never met so many seconds to say something of itself."""
        link = self._listing.get(name)
        if link is not None and link.peer is None and (failed_too or link.error is None):
            with suppress(GatewayError):
                await link.ready(asyncio.get_running_loop().time() + seconds)

    async def list_tools(self, name: str) -> list[RawTool]:
        """The tools of an upstream now, as it lists them; an error if they can't be called."""
        link = self.listing_link(name)
        ends = asyncio.get_running_loop().time() + link.upstream.timeout_seconds
        tools = await link.list_tools(ends)
        for own in [own for own in self._own.values() if own.lister is link and own.is_troubled]:
            await own.check(ends)
        return tools

    async def request(
        self,
        name: str,
        method: str,
        params: Mapping[str, Any],
        *,
        principal: str | None = None,
        deadline: float | None = None,
        hooks: Hooks = NO_HOOKS,
        relay_input: bool = False,
    ) -> dict[str, Any]:
        """The raw result of any request: prompts, resources, completion, logging.

        It goes over the principal's own session where it has one, without a principal over the
        one that lists. With `relay_input` a 2026 upstream's `input_required` result is given back
        as it is, for a client that answers by asking again.
        """
        lister = self.listing_link(name)
        seconds = deadline or lister.upstream.timeout_seconds
        sampling = (hooks.capabilities or {}).get("sampling")
        link = await self._link(name, principal, seconds, sampling)

        async def send(params: Mapping[str, Any]) -> dict[str, Any]:
            try:
                return await link.request(method, params, seconds, hooks)
            except protocol.RpcFailed as error:
                if error.rpc_code != HEADER_MISMATCH or method != "tools/call":
                    raise
            await lister.read_tools(seconds)  # refused unread: learn the headers it wants
            return await link.request(method, params, seconds, hooks)

        with link:
            if relay_input:
                return await send(params)
            return await ask_until_complete(send, params, hooks.ask, name)

    async def subscribe(self, name: str, principal: str, uri: str, seconds: float) -> None:
        """Watches a resource for a principal; returns when the upstream knows of it."""
        own = self._links_of(name, principal)[1:]
        link = max(own, key=lambda link: link.last_used, default=None)
        link = link or await self._link(name, principal, seconds)
        await link.watches.subscribe(uri, principal, seconds)

    def unsubscribe(self, name: str, principal: str, uri: str) -> None:
        """Ends a principal's watch of a resource."""
        for link in self._links_of(name, principal):
            link.watches.unsubscribe(uri, principal)

    def forget(self, name: str, principal: str) -> None:
        """Ends the sessions of a principal that has another account at the upstream from now on."""
        for key in [key for key in self._own if key[:2] == (name, principal)]:
            self._retire(self._own.pop(key))

    def tell_log_level(self, name: str, principal: str) -> None:
        """Has an upstream log from another level on, where it has a session to be told in."""
        for link in self._links_of(name, principal):
            task = asyncio.create_task(link.tell_log_level())
            self._level_tasks.add(task)
            task.add_done_callback(self._level_tasks.discard)

    async def _link(
        self, name: str, principal: str | None, seconds: float, sampling: Any = None
    ) -> Link:
        lister = self.listing_link(name)
        if principal is not None and lister.sharing is None:
            await lister.ready(asyncio.get_running_loop().time() + seconds)
            lister = self.listing_link(name)  # it may have been replaced meanwhile
        if principal is None or lister.sharing != "principal":
            return lister
        if lister.peer is not None and lister.peer.era == "2026":
            sampling = None  # it is told with each request
        key = (name, principal, str(sampling))
        if key not in self._own:
            if len(self._own) >= self._max_sessions:
                self._make_room()
            self._own[key] = self._own_link(name, principal, sampling, lister)
        return self._own[key]

    def _links_of(self, name: str, principal: str) -> list[Link]:
        """The links that requests of a principal may have gone over; the one that lists first."""
        listing = [self._listing[name]] if name in self._listing else []
        return [*listing, *(o for key, o in self._own.items() if key[:2] == (name, principal))]

    def _make_room(self) -> None:
        idle = [key for key, own in self._own.items() if own.is_idle]
        if not idle:
            message = f"All {self._max_sessions} sessions with MCP servers are in use"
            hint = "Try again; an operator can raise limits.upstream_sessions."
            raise Overloaded("busy", message, hint)
        self._retire(self._own.pop(min(idle, key=lambda key: self._own[key].last_used)))

    def _retire(self, link: Link) -> None:
        task = asyncio.create_task(link.retire())
        self._retirements[task] = link
        task.add_done_callback(self._retirements.pop)

    def _make_listing_link(self, name: str, upstream: Upstream) -> ListingLink:
        def tell(method: str, params: Mapping[str, Any]) -> None:
            self._tell(self.on_notification, name, None, method, params)

        def notice(method: str, params: Mapping[str, Any]) -> None:
            if not link.take_note(method) and link.sharing == "shared":
                tell(method, params)

        callbacks = LinkCallbacks(
            lambda: self._session(
                name, None, link, notice, protocol.SESSION_CAPABILITIES["sampling"]
            ),
            tell,
            lambda: self.log_level(None) if link.sharing == "shared" else None,
            self._pace,
        )
        link = ListingLink(
            upstream,
            callbacks,
            on_change=lambda: self._tell(self.on_tools_changed, name),
            on_trouble=lambda error: self._tell(self.on_trouble, name, error),
        )
        return link

    def _own_link(self, name: str, principal: str, sampling: Any, lister: ListingLink) -> OwnLink:
        def tell(method: str, params: Mapping[str, Any]) -> None:
            self._tell(self.on_notification, name, principal, method, params)

        def notice(method: str, params: Mapping[str, Any]) -> None:
            if method in (UPDATED, LOGGED):  # of changed lists the session that lists hears too
                tell(method, params)

        callbacks = LinkCallbacks(
            lambda: self._session(name, principal, lister, notice, sampling),
            tell,
            lambda: self.log_level(principal),
            self._pace,
        )
        return OwnLink(lister, callbacks)

    def _session(
        self, name: str, principal: str | None, lister: ListingLink, notice: Notice, sampling: Any
    ) -> Session:
        offers = {k: v for k, v in protocol.SESSION_CAPABILITIES.items() if k != "sampling"}
        offers |= {} if sampling is None else {"sampling": sampling}
        if lister.upstream.transport == "stdio":
            return StdioSession(lister.upstream, notice, offers)

        async def authorize(refused_head: Headers | None, fresh: bool) -> Headers:
            settings = self._settings.get(name)
            if settings is None:
                return ()
            return await self._authorize(lister.name, settings, principal, refused_head, fresh)

        upstream = lister.upstream
        return HttpSession(upstream, notice, offers, self._egress, authorize, lister.param_headers)

    def _tell(self, listener: Callable[..., None], *values: Any) -> None:
        try:
            listener(*values)
        except Exception:  # a listener's fault is not the upstream's
            log.exception("upstream_listener_failed", upstream=values[0])


def _ignore(*values: Any) -> None:
    """The listener that ignores what it is told."""


def upstream_of(name: str, settings: McpConnection, limits: Limits, folder: Path) -> Upstream:
    """The terms on which a session reaches this server; children start in `folder`."""
    return Upstream(
        name,
        protocol=settings.protocol,
        tls=settings.tls,
        timeout_seconds=settings.timeout_seconds or limits.call_timeout_seconds,
        max_call_seconds=limits.max_call_seconds,
        cwd=str(folder / (settings.cwd or "")),
        **settings.model_dump(include=_SAME_NAMES)
        | ({"session": "principal"} if is_personal(settings.auth) else {}),
    )
