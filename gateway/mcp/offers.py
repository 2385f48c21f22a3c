"""What the MCP servers behind the gateway have beside tools, for each view of it.

A view has the prompts, resources, completion and logs of the servers in it that offer them; which
these are is asked of the current snapshot and of the servers themselves. Every request of a client
goes to one server, or to all that list the same kind of thing, under the same limits as calls and
cleared of the connection's secrets. What a server tells unasked is passed to whom it concerns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.calls.admission import Admission
from gateway.calls.credentials import PreparedConnections
from gateway.calls.record import Caller
from gateway.catalog.definitions import prefix_of
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import McpConnection
from gateway.errors import GatewayError
from gateway.mcp.messages import RpcError, method_not_found
from gateway.mcp.pass_through import CAPABILITY_OF, HANDLERS, Asked, Owners, UpstreamRequests
from gateway.mcp.surface import Hello, Told
from gateway.mcp.wishes import Wishes, reaches
from gateway.model import Principal
from gateway.policy.view import Offering, Scope, View, instructing, offering
from gateway.text import cut, visible
from gateway.upstream.link import CHANGED, UPDATED
from gateway.upstream.protocol import LOGGED, Peer
from gateway.upstream.registry import LiveUpstreams
from gateway.web.gateway import Gateway

MEET_SECONDS = 2.0
MAX_INSTRUCTIONS_CHARS = 8192  # of all servers together
MAX_NOTICE_BYTES = 65_536
GATHER_SECONDS = 0.02
MAX_GATHERED = 256
FLAGS: Mapping[str, tuple[str, ...]] = {
    "prompts": ("listChanged",),
    "resources": ("subscribe", "listChanged"),
    "completions": (),
    "logging": (),
}


@dataclass(frozen=True, slots=True)
class _Seen:
    snapshot: Snapshot
    view: View
    offering: Offering


class UpstreamOffers:
    """See `surface.Offers`."""

    def __init__(
        self, gateway: Gateway, live: LiveUpstreams, limits: Admission, instructions: str
    ) -> None:
        self._gateway = gateway
        self._own_instructions = instructions
        self._upstreams = live.sessions
        self._prepared = PreparedConnections()
        self._requests = UpstreamRequests(live.sessions, limits, self._prepared)
        self._owners = Owners()
        self._wishes = Wishes(live.sessions)
        self._on_change: list[Callable[[], None]] = []
        self._on_notice: list[Callable[[Told], None]] = []
        self._to_tell: dict[object, Told] = {}
        live.sessions.on_notification(self._heard)

    async def hello(self, principal: Principal, scope: Scope) -> Hello:
        """What a view has beside tools; servers that were never met get a moment to answer."""
        seen = self._seen(principal, scope)
        servers, sole = seen.offering.servers, seen.offering.sole
        instructing_ones = instructing(seen.offering, seen.view, seen.snapshot)
        everyone = {state.name: state for state in (*servers, *instructing_ones)}
        await self._meet([s for s in everyone.values() if s is sole or not _lazy(s)], sole)
        offered = _merged([*self._peers(servers).values()])
        return Hello(offered, self._instructions(seen, instructing_ones))

    async def answer(
        self, method: str, params: Mapping[str, Any], context: Caller
    ) -> dict[str, Any]:
        """See `surface.Offers`."""
        seen = self._seen(context.principal, context.scope)
        await self._meet(seen.offering.servers, seen.offering.sole)
        servers = self._with(seen, CAPABILITY_OF[method])
        if not servers:
            raise method_not_found(method)
        requests, owners, wishes = self._requests, self._owners, self._wishes
        asked = Asked(seen.snapshot, seen.offering, servers, context, requests, owners, wishes)
        return await HANDLERS[method](asked, params)

    def marks(self, principal: Principal, scope: Scope) -> tuple[str, str]:
        """See `surface.Offers`."""
        seen = self._seen(principal, scope)
        return self._mark(seen, "prompts"), self._mark(seen, "resources")

    async def listen(
        self, holder: str, principal: Principal, scope: Scope, wanted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `surface.Offers`."""
        capabilities = (await self.hello(principal, scope)).capabilities
        heard: dict[str, Any] = {}
        for kind in ("prompts", "resources"):
            flag = f"{kind}ListChanged"
            if wanted.get(flag) is True and capabilities.get(kind, {}).get("listChanged"):
                heard[flag] = True
        uris = wanted.get("resourceSubscriptions") or ()
        if uris and capabilities.get("resources", {}).get("subscribe"):
            context = Caller(principal, scope, "2026", session=holder)
            watched = await asyncio.gather(*(self._watched(uri, context) for uri in uris))
            honoured = [uri for uri, is_watched in zip(uris, watched, strict=True) if is_watched]
            heard |= {"resourceSubscriptions": honoured} if honoured else {}
        return heard

    def attend(self, holder: str) -> None:
        """See `surface.Offers`."""
        self._wishes.attend(holder)

    def leave(self, holder: str) -> None:
        """See `surface.Offers`."""
        self._wishes.leave(holder)

    def forget(self, holder: str) -> None:
        """See `surface.Offers`."""
        self._wishes.forget(holder)

    def share(self, tell: Callable[[dict[str, Any]], None]) -> None:
        """Has other processes told what a session wants: its stream may be open there."""
        self._wishes.tell = tell

    def take(self, wish: dict[str, Any]) -> None:
        """Takes over what a session said to another process, now or before this one began."""
        self._wishes.take(wish)

    def concerns(self, told: Told, principal: Principal, scope: Scope, holder: str) -> bool:
        """See `surface.Offers`."""
        if told.principal not in (None, principal.name):
            return False
        if told.method == UPDATED:
            wanted = self._wishes.watches(holder, told.server, str(told.params.get("uri")))
        else:  # outside any call it is only for who said from which level on
            level = self._wishes.level(holder)
            wanted = level is not None and reaches(told.params.get("level"), level)
        seen = self._seen(principal, scope) if wanted else None
        return seen is not None and any(s.name == told.server for s in seen.offering.servers)

    def log_level(self, session: str | None) -> str | None:
        """See `surface.Offers`."""
        return self._wishes.level(session)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """See `surface.Offers`."""
        self._on_change.append(listener)
        return lambda: self._on_change.remove(listener)

    def on_notice(self, listener: Callable[[Told], None]) -> Callable[[], None]:
        """See `surface.Offers`."""
        self._on_notice.append(listener)
        return lambda: self._on_notice.remove(listener)

    def _seen(self, principal: Principal, scope: Scope) -> _Seen:
        snapshot = self._gateway.snapshot
        view = self._gateway.view_of(snapshot, principal, scope)
        return _Seen(snapshot, view, offering(snapshot, principal, view))

    async def _meet(self, servers: Iterable[ConnectionState], sole: ConnectionState | None) -> None:
        """Gives servers that were never met a moment; who failed before keeps nobody waiting."""
        for_first_time = [
            state.name
            for state in servers
            if self._peer(state.name) is None and (state is sole or not self._failed(state.name))
        ]
        if for_first_time:
            await asyncio.gather(*(self._met(name) for name in for_first_time))

    async def _met(self, name: str) -> None:
        with suppress(GatewayError):  # being taken out just now
            await self._upstreams.meet(name, MEET_SECONDS)

    def _failed(self, name: str) -> bool:
        try:
            return self._upstreams.status(name).error is not None
        except GatewayError:
            return True

    def _peers(self, servers: Iterable[ConnectionState]) -> dict[str, Peer]:
        peers = {state.name: self._peer(state.name) for state in servers}
        return {name: peer for name, peer in peers.items() if peer is not None}

    def _peer(self, name: str) -> Peer | None:
        try:
            return self._upstreams.status(name).peer
        except GatewayError:
            return None  # being taken out just now

    def _with(self, seen: _Seen, capability: str) -> tuple[ConnectionState, ...]:
        peers = self._peers(seen.offering.servers)
        return tuple(
            state
            for state in seen.offering.servers
            if state.name in peers and _has(peers[state.name], capability)
        )

    def _instructions(self, seen: _Seen, servers: Sequence[ConnectionState]) -> str | None:
        """How the servers say they are to be used; where one is all there is, its words alone."""
        said = {
            state.name: self._prepared.of(seen.snapshot, state.name).redactor.text(words)
            for state in servers
            if (words := self._words(state))
        }
        if seen.offering.sole is not None:
            return cut("".join(said.values()), MAX_INSTRUCTIONS_CHARS) or None
        named = {
            _heading(name, prefix_of(name, seen.snapshot.connections[name].settings)): words
            for name, words in said.items()
        }
        return joined_instructions(self._own_instructions, named) if named else None

    def _words(self, state: ConnectionState) -> str:
        """As they were when its tools were listed last; before that, as the server says now."""
        if state.build is not None:
            return state.build.instructions
        peer = self._peer(state.name)
        return visible(peer.instructions or "").strip() if peer else ""

    def _mark(self, seen: _Seen, kind: str) -> str:
        servers = self._with(seen, kind)
        return " ".join(f"{s.name}.{self._owners.generation(s.name, kind)}" for s in servers)

    async def _watched(self, uri: str, context: Caller) -> bool:
        try:
            await self.answer("resources/subscribe", {"uri": uri}, context)
        except (GatewayError, RpcError):
            return False
        return True

    def _heard(
        self, server: str, principal: str | None, method: str, params: Mapping[str, Any]
    ) -> None:
        if method in CHANGED:
            self._owners.changed(server, CHANGED[method])
            for listener in tuple(self._on_change):
                listener()
        elif method in (UPDATED, LOGGED) and (told := self._cleared(server, method, params)):
            self._tell_soon(replace(told, principal=principal))

    def _tell_soon(self, told: Told) -> None:
        """Tells in a moment, and of what changed several times once: a flood costs us little."""
        if not self._to_tell:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell_now)
        what = (told.server, told.principal, told.params.get("uri"))
        key = what if told.method == UPDATED else object()
        if key in self._to_tell or len(self._to_tell) < MAX_GATHERED:
            self._to_tell[key] = told

    def _tell_now(self) -> None:
        gathered, self._to_tell = self._to_tell, {}
        for told in gathered.values():
            for listener in tuple(self._on_notice):
                listener(told)

    def _cleared(self, server: str, method: str, params: Mapping[str, Any]) -> Told | None:
        """The notice without the connection's secrets; None: it is too large, or nobody's."""
        snapshot = self._gateway.snapshot
        if server not in snapshot.connections:
            return None
        fields = ("uri",) if method == UPDATED else ("level", "logger", "data")
        kept = {field: params[field] for field in fields if field in params}
        cleared = self._prepared.of(snapshot, server).redactor.json(kept)
        try:
            size = len(orjson.dumps(cleared))
        except TypeError:
            return None
        return Told(server, method, cleared) if size <= MAX_NOTICE_BYTES else None


def joined_instructions(own: str, said: Mapping[str, str]) -> str:
    """The gateway's words, then each server's under its heading; long ones share what room is."""
    room, parts = MAX_INSTRUCTIONS_CHARS - len(own), dict[str, str]()
    shortest_first = sorted(said.items(), key=lambda each: len(each[1]))
    for number, (heading, words) in enumerate(shortest_first):
        parts[heading] = cut(f"\n\n{heading}\n{words}", room // (len(said) - number))
        room -= len(parts[heading])
    return own + "".join(parts[heading] for heading in said)


def _heading(name: str, prefix: str) -> str:
    return f"## {name} (its tools here begin with `{prefix}`)" if prefix else f"## {name}"


def _lazy(state: ConnectionState) -> bool:
    return isinstance(state.settings, McpConnection) and state.settings.lazy


def _has(peer: Peer, capability: str) -> bool:
    name, _, flag = capability.partition(".")
    found = peer.capabilities.get(name)
    return isinstance(found, dict) and (not flag or found.get(flag) is True)


def _merged(peers: Sequence[Peer]) -> dict[str, Any]:
    """What any of the servers offers; a flag is set if it is for one of them."""
    merged: dict[str, Any] = {}
    for name, flags in FLAGS.items():
        found = [peer.capabilities[name] for peer in peers if _has(peer, name)]
        if found:
            said = {flag: [one[flag] for one in found if flag in one] for flag in flags}
            merged[name] = {flag: any(v is True for v in vs) for flag, vs in said.items() if vs}
    return merged
