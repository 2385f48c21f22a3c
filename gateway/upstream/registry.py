"""All upstream MCP servers of the gateway, by connection name.

Each has its own links with their own bounds, so that one which is slow, dead or talkative costs
nobody else anything. Callers name a connection and a method; sessions, eras, transports and
reconnection stay behind this door. What leaves here towards an upstream is what its settings and
the caller's arguments say, nothing of the client's headers or tokens.

One session of each upstream lists what there is. Where the upstream keeps state between requests
(a child process, a session id), requests of principals go over sessions of their own: else one
would see what another has opened. There are so many of these at a time; the one that was idle
longest makes room, and ends by itself after a while. A server of the 2025 era learns once a session
whether it may ask for what a model says (sampling), and may do something else if not: clients of
one principal that offer it have another session than those that don't.

Keeps sessions with every connected MCP server, as the current snapshot wants them.

A connection that is being put is listed under a name of its own first: if that fails, the session
that serves calls was never touched.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import structlog

from gateway.catalog.snapshot import Snapshot
from gateway.config.connection import Connection, McpConnection
from gateway.config.settings import Limits
from gateway.connectors.mcp import RawTool
from gateway.errors import GatewayError, Overloaded, Refused, UpstreamFailed
from gateway.model import NO_TLS_FILES, TlsFiles
from gateway.outbound.client import Egress, Request
from gateway.upstream.http import Headers, HttpSession, Open, Streamed
from gateway.upstream.link import (
    UPDATED,
    Link,
    Lists,
    Pace,
    Session,
    Sharing,
    Standing,
    State,
    Upstream,
)
from gateway.upstream.protocol import (
    HEADER_MISMATCH,
    LOGGED,
    NO_HOOKS,
    SESSION_CAPABILITIES,
    Ask,
    Holds,
    Hooks,
    Notice,
    Peer,
    Progress,
    RpcFailed,
    completed,
)
from gateway.upstream.stdio import StdioSession

MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_SESSIONS = 64

ToolsChanged = Callable[[str], None]
Troubled = Callable[[str, GatewayError], None]
Notified = Callable[[str, str | None, str, Mapping[str, Any]], None]
Authorize = Callable[[str, bool], Awaitable[Headers]]
_Key = tuple[str, str, str]  # connection, principal, how its client offers sampling

log = structlog.get_logger(__name__)


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
        self._max_sessions = MAX_SESSIONS
        self._lists: dict[str, tuple[Upstream, Lists]] = {}
        self._own: dict[_Key, _Own] = {}
        self._standing: dict[Link, Standing] = {}
        self._retiring: dict[asyncio.Task[None], Link] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._on_changed: list[ToolsChanged] = []
        self._on_trouble: list[Troubled] = []
        self._on_notice: list[Notified] = []
        self._on_replaced: list[Callable[[str], None]] = []
        # From which level on an upstream logs for a principal, or for all of them.
        self.log_level: Callable[[str | None], str | None] = lambda principal: None

    async def __aenter__(self) -> Upstreams:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends every session, child and task; returns when nothing is left."""
        for _, lists in self._lists.values():
            lists.stop()
        links = [lists.link for _, lists in self._lists.values()]
        links += [*(own.link for own in self._own.values()), *self._retiring.values()]
        self._lists.clear()
        self._own.clear()
        tasks = (*self._retiring, *self._telling)
        for task in tasks:
            task.cancel()
        standing = [one.close() for one in self._standing.values()]
        await asyncio.gather(*standing, *tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in links), return_exceptions=True)

    def replace(self, name: str, settings: Upstream | None) -> None:
        """Puts an upstream in, changes it or takes it out; calls on the old one finish."""
        known = self._lists.get(name)
        if known is not None and known[0] == settings:
            return
        if known is not None:
            self._drop(name)
        if settings is not None:
            lists = self._listed(name, settings)
            self._lists[name] = settings, lists
            if known is not None:
                lists.owe()
            self._tell(self._on_replaced, name)

    def resize(self, max_sessions: int) -> None:
        """Takes over how many sessions principals may have; idle ones give way at once."""
        self._max_sessions = max_sessions
        with suppress(Overloaded):
            while len(self._own) > max_sessions:
                self._make_room()

    def status(self, name: str) -> UpstreamStatus:
        """How an upstream is doing now."""
        link = self._known(name)[1].link
        return UpstreamStatus(link.state, link.peer, link.error)

    def sharing(self, name: str) -> Sharing | None:
        """Whether principals share a session; None: nobody knows before the upstream is met."""
        settings, lists = self._known(name)
        return _sharing(settings, lists.link.peer)

    async def meet(self, name: str, seconds: float) -> Peer | None:
        """What an upstream says of itself, if it can be met in so many seconds."""
        link = self._known(name)[1].link
        if link.peer is None:
            with suppress(GatewayError):
                await link.ready(asyncio.get_running_loop().time() + seconds)
        return link.peer

    async def list_tools(self, name: str, *, deadline: float | None = None) -> list[RawTool]:
        """The tools of an upstream now, as it lists them; an error if they can't be called."""
        settings, lists = self._known(name)
        seconds = deadline or settings.timeout_seconds
        ends = asyncio.get_running_loop().time() + seconds
        tools = await lists.list_tools(seconds)
        for own in [own for own in self._own.values() if own.lists is lists and own.is_troubled]:
            await own.check(ends)
        return tools

    async def call(
        self,
        name: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        principal: str | None = None,
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
        return await self.request(
            name, "tools/call", params, principal=principal, deadline=deadline, hooks=hooks
        )

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

        It goes over the principal's own session where there are such, without a principal over the
        one that lists. With `relay_input` a modern upstream's `input_required` result is given back
        as it is, for a client that answers by asking again.
        """
        settings, lists = self._known(name)
        seconds = deadline or settings.timeout_seconds
        sampling = (hooks.capabilities or {}).get("sampling")
        link = await self._link(name, principal, seconds, sampling)

        async def send(params: Mapping[str, Any]) -> dict[str, Any]:
            try:
                return await link.request(method, params, seconds, hooks)
            except RpcFailed as error:
                if error.rpc_code != HEADER_MISMATCH or method != "tools/call":
                    raise
            await lists.read_tools(seconds)  # refused unread: learn what it wants repeated
            return await link.request(method, params, seconds, hooks)

        link.holders += 1  # also while somebody answers a question
        try:
            if relay_input:
                return await send(params)
            return await completed(send, params, hooks.ask, name)
        finally:
            link.holders -= 1

    async def subscribe(self, name: str, principal: str, uri: str, seconds: float) -> None:
        """Has updates of a resource told; returns when the upstream knows of it."""
        own = self._links_of(name, principal)[1:]
        link = max(own, key=lambda link: link.used, default=None)
        link = link or await self._link(name, principal, seconds)
        if link not in self._standing:
            whose = None if link is self._known(name)[1].link else principal
            notice = partial(self._tell, self._on_notice, name, whose)
            self._standing[link] = Standing(link, notice)
        await self._standing[link].subscribe(uri, principal, seconds)

    def unsubscribe(self, name: str, principal: str, uri: str) -> None:
        """The principal wants to hear no more of a resource."""
        for link in self._links_of(name, principal):
            if link in self._standing:
                self._standing[link].unsubscribe(uri, principal)

    def tell_log_level(self, name: str, principal: str) -> None:
        """Has an upstream log from another level on, where it has a session to be told in."""
        for link in self._links_of(name, principal):
            task = asyncio.create_task(link.tell_log_level())
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    def on_tools_changed(self, callback: ToolsChanged) -> Callable[[], None]:
        """Calls back with a name when that upstream's tools should be listed again."""
        self._on_changed.append(callback)
        return lambda: self._on_changed.remove(callback)

    def on_trouble(self, callback: Troubled) -> None:
        """Calls back with a name and the reason why that upstream can't be listed or called."""
        self._on_trouble.append(callback)

    def on_replaced(self, callback: Callable[[str], None]) -> None:
        """Calls back with the name of an upstream that is met anew, or for the first time."""
        self._on_replaced.append(callback)

    def on_notification(self, callback: Notified) -> Callable[[], None]:
        """Calls back with every notice but progress and changed tools.

        With the upstream's name, the principal whom it concerns (None: all), method and params.
        """
        self._on_notice.append(callback)
        return lambda: self._on_notice.remove(callback)

    def _known(self, name: str) -> tuple[Upstream, Lists]:
        try:
            return self._lists[name]
        except KeyError:
            raise Refused("not_connected", f"{name} is not connected") from None

    async def _link(
        self, name: str, principal: str | None, seconds: float, sampling: Any = None
    ) -> Link:
        settings, lists = self._known(name)
        if principal is None:
            return lists.link
        sharing = self.sharing(name)
        if sharing is None:
            await lists.link.ready(asyncio.get_running_loop().time() + seconds)
            settings, lists = self._known(name)  # it may have been replaced meanwhile
            sharing = self.sharing(name)
        if sharing != "principal":
            return lists.link
        if (met := lists.link.peer) is not None and met.era == "modern":
            sampling = None  # it is told with each request
        own = self._own.get((name, principal, str(sampling)))
        return (own or self._open_own(name, principal, sampling, settings, lists)).link

    def _links_of(self, name: str, principal: str) -> list[Link]:
        """The links that requests of a principal may have gone over."""
        listed = [self._lists[name][1].link] if name in self._lists else []
        return listed + [o.link for key, o in self._own.items() if key[:2] == (name, principal)]

    def _open_own(
        self, name: str, principal: str, sampling: Any, settings: Upstream, lists: Lists
    ) -> _Own:
        if len(self._own) + len(self._retiring_own(idle=False)) >= self._max_sessions:
            self._make_room()
        ending = self._retiring_own(idle=True)
        busy = len(self._own) + len(self._retiring_own(idle=False))
        full = busy + len(ending) >= self._max_sessions

        def notice(method: str, params: Mapping[str, Any]) -> None:
            if method in (UPDATED, LOGGED):  # of changed lists the session that lists hears too
                self._tell(self._on_notice, name, principal, method, params)

        own = _Own(
            lists,
            partial(self._tell, self._on_trouble, name),
            lambda: self.log_level(principal),
        )
        own.link = Link(
            settings,
            lambda: self._session(name, settings, lists, notice, sampling),
            own,
            self._pace,
            lazy=True,
            met=lists.link.peer,
            ends_idle=True,
            after=ending if full else (),
        )
        self._own[name, principal, str(sampling)] = own
        return own

    def _retiring_own(self, *, idle: bool) -> list[asyncio.Task[None]]:
        """The ends of principals' sessions: those that are being closed, or still in use."""
        own = ((task, link) for task, link in self._retiring.items() if link.ends_idle)
        return [task for task, link in own if link.is_idle is idle]

    def _make_room(self) -> None:
        idle = [key for key, own in self._own.items() if own.link.is_idle]
        if not idle:
            message = f"All {self._max_sessions} sessions with MCP servers are in use"
            hint = "Try again; an operator can raise limits.upstream_sessions."
            raise Overloaded("busy", message, hint)
        oldest = min(idle, key=lambda key: self._own[key].link.used)
        self._retire(self._own.pop(oldest).link)

    def _drop(self, name: str) -> None:
        _, lists = self._lists.pop(name)
        lists.stop()
        self._retire(lists.link)
        for key in [key for key in self._own if key[0] == name]:
            self._retire(self._own.pop(key).link)

    def _retire(self, link: Link) -> None:
        task = asyncio.create_task(self._retired(link))
        self._retiring[task] = link
        task.add_done_callback(self._retiring.pop)

    async def _retired(self, link: Link) -> None:
        if (standing := self._standing.pop(link, None)) is not None:
            await standing.close()
        await link.retire()

    def _listed(self, name: str, settings: Upstream) -> Lists:
        def session(lists: Lists) -> Session:
            def notice(method: str, params: Mapping[str, Any]) -> None:
                if not lists.take_note(method) and is_shared(lists):
                    self._tell(self._on_notice, name, None, method, params)

            return self._session(name, settings, lists, notice)

        def is_shared(lists: Lists) -> bool:
            return _sharing(settings, lists.link.peer) == "shared"

        return Lists(
            settings,
            session,
            self._pace,
            changed=partial(self._tell, self._on_changed, name),
            troubled=partial(self._tell, self._on_trouble, name),
            notice=partial(self._tell, self._on_notice, name, None),
            log_level=lambda lists: self.log_level(None) if is_shared(lists) else None,
        )

    def _session(
        self,
        name: str,
        settings: Upstream,
        lists: Lists,
        notice: Notice,
        sampling: Any = SESSION_CAPABILITIES["sampling"],
    ) -> Session:
        offers = {key: value for key, value in SESSION_CAPABILITIES.items() if key != "sampling"}
        offers |= {} if sampling is None else {"sampling": sampling}
        if settings.transport == "stdio":
            return StdioSession(
                settings.name,
                settings.command,
                settings.args,
                settings.env,
                settings.cwd,
                notice=notice,
                max_bytes=self._max_bytes,
                longest=settings.max_call_seconds,
                offers=offers,
            )
        return HttpSession(
            settings.name,
            settings.url,
            tuple(settings.headers.items()),
            open_=partial(self._open, tls=settings.tls),
            authorize=self._credentials(name),
            notice=notice,
            marks=lists.marks,
            max_bytes=self._max_bytes,
            longest=settings.max_call_seconds,
            offers=offers,
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


class _Own:
    """The life of a principal's own session. See `Life`."""

    link: Link

    def __init__(
        self,
        lists: Lists,
        troubled: Callable[[GatewayError], None],
        log_level: Callable[[], str | None],
    ) -> None:
        self.lists = lists
        self.is_troubled = False
        self.doubt = lists.doubt
        self.log_level = log_level
        self._troubled = troubled

    async def check(self, ends: float) -> None:
        """Raises why the principal has no session."""
        try:
            await self.link.ready(ends)
        except UpstreamFailed as error:
            raise _explained(error) from error

    def failed(self, error: GatewayError) -> None:
        self.is_troubled = True
        if not self.lists.is_over:
            self._troubled(error if self.lists.link.error else _explained(error))

    def work(self, session: Session) -> Iterable[Coroutine[Any, Any, None]]:
        if self.is_troubled:
            self.is_troubled = False
            self.lists.changed()
        if self.lists.link.error is not None:
            self.lists.doubt()
        if session.peer.era == "modern":  # which is asked for each kind of notice that is wanted
            self.link.hearing.set()
            return ()
        return (self.link.listen(session),)


def _explained(error: GatewayError) -> GatewayError:
    """An upstream that lists its tools can't be used: more is known than the error says."""
    what = f"A principal's session can't be opened beside the one that lists: {error.message}"
    remedy = 'For a server that can only run once, set session = "shared".'
    return UpstreamFailed(error.code, f"{what.rstrip('.')}. {remedy}")


def _sharing(settings: Upstream, peer: Peer | None) -> Sharing | None:
    if settings.session is not None:
        return settings.session
    if settings.transport == "stdio":
        return "principal"
    return None if peer is None else "principal" if peer.keeps_state else "shared"


MAX_KEPT_CHARS = 65_536  # of a server's instructions: more than a client is told of all servers

ConnectionHeaders = Callable[[str, Connection, bool], Awaitable[Sequence[tuple[str, str]]]]


class Listed(NamedTuple):
    """What a server says of itself, and whether all principals share one session with it."""

    said: dict[str, Any]  # its tools and its instructions
    session: Sharing | None


class LiveUpstreams:
    """The sessions behind connections of kind mcp."""

    def __init__(self, egress: Egress, authorize: ConnectionHeaders) -> None:
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
