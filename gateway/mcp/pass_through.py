"""Passes on prompts, resources and completion of the MCP servers behind the gateway, for each view.

A view has the prompts, resources, completion and logs of the servers in it that offer them. Where
one server is all there is, a request goes to it as it came. Where there are several, lists are put
together, prompts carry their server's prefix, and a name or URI leads to its owner: the first
server, in the order of connections, that lists it, or else has a template for it. A notice
that a server sends unasked is passed to the clients it concerns, without the connection's secrets.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import orjson
import structlog
from cachetools import LRUCache
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types.jsonrpc import INVALID_PARAMS
from msgspec.structs import replace

from gateway.calls.credentials import PreparedConnection, PreparedConnections
from gateway.calls.record import Caller
from gateway.calls.send import UpstreamRequests
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import GatewayError
from gateway.limits import MAX_INSTRUCTIONS_CHARS, MAX_REMEMBERED, MOMENT_SECONDS
from gateway.mcp.messages import RpcError, method_not_found
from gateway.mcp.streams import LOGGED, UPDATED, Streams, UpstreamNotice, Wishes
from gateway.model import Principal, Result, ViewAddress
from gateway.naming import cut, visible
from gateway.policy.view import Offering, View, servers_of_view, trusted_sources
from gateway.store.database import Database
from gateway.web.gateway import Gateway, allow_questions
from gateway.web.identity import Identity

INSTRUCTIONS = (
    "Tools of many APIs behind one address. list_dynamic_tools finds the one for a task, "
    "call_dynamic_tool calls it: tools may appear and change while you work."
)
TOOLS = {"tools": {"listChanged": True}}
FLAGS: Mapping[str, tuple[str, ...]] = {
    "prompts": ("listChanged",),
    "resources": ("subscribe", "listChanged"),
    "completions": (),
    "logging": (),
}
NOTICE_FIELDS = {UPDATED: ("uri",), LOGGED: ("level", "logger", "data")}
# A kind of list: the method that lists it, and the key that tells its items apart.
LISTS: Mapping[str, tuple[str, str]] = {
    "prompts": ("prompts/list", "name"),
    "resources": ("resources/list", "uri"),
    "resourceTemplates": ("resources/templates/list", "uriTemplate"),
}

log = structlog.get_logger(__name__)

Item = dict[str, Any]
Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hello:
    """The capabilities of a view, and its instructions."""

    capabilities: Mapping[str, Any]
    instructions: str


class PassThrough:
    """Prompts, resources, completion and logs of the servers in a view."""

    def __init__(
        self, gateway: Gateway, identity: Identity, requests: UpstreamRequests, db: Database
    ) -> None:
        self.wishes = Wishes(requests, db)
        self.streams = Streams(identity, self.wishes, self.list_ids, self._has_server)
        gateway.catalog.on_change(self.streams.look_again)
        self._gateway = gateway
        self.requests = requests
        self._upstreams = requests.upstreams
        self.prepared = PreparedConnections()
        # The keys each server last listed to a principal, by server, principal and kind.
        self._keys: LRUCache[tuple[str, str, str], frozenset[str]] = LRUCache(MAX_REMEMBERED)
        self._changes: Counter[tuple[str, str]] = Counter()  # by server and kind of list
        self._upstreams.on_notification = self._hear

    async def hello(self, principal: Principal, address: ViewAddress) -> Hello:
        """The capabilities a view offers; servers that were never met get a moment to answer."""
        snapshot, view, offer = self._look(principal, address)
        instructors = trusted_sources(offer, view, snapshot)
        states = {state.name: state for state in (*offer.servers, *instructors)}.values()
        servers = [state for state in states if state.settings.kind == "mcp"]
        eager = [s for s in servers if s is offer.sole or not s.settings.is_lazy]
        await self._meet(eager, offer)
        capabilities = _merge([self._capabilities(server) for server in offer.servers])
        instructions = self._instructions(snapshot, offer, instructors)
        return Hello({**TOOLS, **capabilities}, instructions or INSTRUCTIONS)

    async def answer(self, method: str, params: Params, caller: Caller) -> Result:
        """The result of a request that is not about tools. Raises RpcError and UpstreamRefused."""
        snapshot, _, offer = self._look(caller.principal, caller.view_address)
        await self._meet(offer.servers, offer)
        capability, handler = HANDLERS[method]
        servers = self._servers_with(capability, offer)
        if not servers:
            raise method_not_found(method)
        return await handler(Relay(self, snapshot, offer.sole, servers, caller), params)

    def list_ids(self, principal: Principal, address: ViewAddress, client: str) -> dict[str, str]:
        """The ids of a view's lists, by kind (tools, prompts, resources): see `ListIds`."""
        _, view, offer = self._look(principal, address, client)
        list_ids = {"tools": view.digest}
        for kind in ("prompts", "resources"):
            servers = self._servers_with(kind, offer)
            list_ids[kind] = " ".join(f"{s.name}.{self._changes[s.name, kind]}" for s in servers)
        return list_ids

    def _has_server(self, principal: Principal, address: ViewAddress, server: str) -> bool:
        *_, offer = self._look(principal, address)
        return any(state.name == server for state in offer.servers)

    async def listen(
        self, holder: str, principal: Principal, address: ViewAddress, filters: Params
    ) -> dict[str, Any]:
        """Notes what a stream wants to hear of; returns the part that it will hear of."""
        capabilities = (await self.hello(principal, address)).capabilities
        flags: dict[str, Any] = {}
        for kind in ("prompts", "resources"):
            flag = f"{kind}ListChanged"
            if filters.get(flag) is True and capabilities.get(kind, {}).get("listChanged"):
                flags[flag] = True
        uris = filters.get("resourceSubscriptions") or ()
        if uris and capabilities.get("resources", {}).get("subscribe"):
            caller = Caller(principal, address, "2026", session=holder)
            outcomes = await asyncio.gather(*(self._try_to_watch(uri, caller) for uri in uris))
            watched_uris = [uri for uri, ok in zip(uris, outcomes, strict=True) if ok]
            flags |= {"resourceSubscriptions": watched_uris} if watched_uris else {}
        return flags

    async def _try_to_watch(self, uri: str, caller: Caller) -> bool:
        try:
            await self.answer("resources/subscribe", {"uri": uri}, caller)
        except (GatewayError, RpcError):
            return False
        return True

    async def fetch_list(self, request: Relay, server: ConnectionState, kind: str) -> list[Item]:
        """All items that a server lists of a kind now; their keys are remembered."""
        method, key = LISTS[kind]
        entries = await self.requests.list_all(*request.terms(server), method, kind)
        items = [item for item in entries if key in item]
        names = frozenset(str(item[key]) for item in items)
        self._keys[server.name, request.caller.principal.name, kind] = names
        return items

    def keys(self, request: Relay, server: ConnectionState, kind: str) -> frozenset[str] | None:
        """The keys that a server last listed to this principal; None: it listed none yet."""
        return self._keys.get((server.name, request.caller.principal.name, kind))

    def _look(
        self, principal: Principal, address: ViewAddress, client: str = ""
    ) -> tuple[Snapshot, View, Offering]:
        snapshot, view, _ = self._gateway.look(principal, address, client)
        return snapshot, view, servers_of_view(snapshot, principal, view)

    async def _meet(self, servers: Iterable[ConnectionState], offer: Offering) -> None:
        """Gives servers that were never met a moment; one that failed before delays no request."""
        meet, sole = self._upstreams.meet, offer.sole
        await asyncio.gather(*(meet(s.name, MOMENT_SECONDS, failed_too=s is sole) for s in servers))

    def _capabilities(self, server: ConnectionState) -> Mapping[str, Any]:
        peer = self._upstreams.peer(server.name)
        return peer.capabilities if peer is not None else {}

    def _servers_with(self, capability: str, offer: Offering) -> tuple[ConnectionState, ...]:
        return tuple(s for s in offer.servers if _has_capability(self._capabilities(s), capability))

    def _instructions(
        self, snapshot: Snapshot, offer: Offering, servers: Sequence[ConnectionState]
    ) -> str:
        """The instructions of the servers; those of a sole server stand alone."""
        texts = {
            state.name: self.prepared.of(snapshot, state.name).redactor.clear_text(words)
            for state in servers
            if (words := self._instructions_of(state))
        }
        if offer.sole is not None:
            return cut("".join(texts.values()), MAX_INSTRUCTIONS_CHARS)
        prefixes = {name: snapshot.connections[name].prefix for name in texts}
        notes = {n: f" (its tools here begin with `{p}`)" if p else "" for n, p in prefixes.items()}
        sections = {f"## {name}{notes[name]}": words for name, words in texts.items()}
        return join_instructions(INSTRUCTIONS, sections)

    def _instructions_of(self, state: ConnectionState) -> str:
        """A server's instructions as of the last listing of its tools; before it, those of now."""
        if state.build is not None:
            return state.build.instructions
        peer = self._upstreams.peer(state.name)
        return visible(peer.instructions or "").strip() if peer else ""

    def _hear(self, server: str, principal: str | None, method: str, params: Params) -> None:
        kind = method.removeprefix("notifications/").removesuffix("/list_changed")
        if kind in ("prompts", "resources"):
            self._changes[server, kind] += 1
            for key in [key for key in self._keys if key[0] == server]:
                self._keys.pop(key, None)
            self.streams.look_again()
        elif method in NOTICE_FIELDS and server in self._gateway.snapshot.connections:
            clean = self._redact_notice(server, method, params)
            if clean is not None:
                self.streams.tell_notice(UpstreamNotice(server, method, clean, principal))

    def _redact_notice(self, server: str, method: str, params: Params) -> Params | None:
        """A notice's params without the connection's secrets; None: they are too large."""
        snapshot = self._gateway.snapshot
        fields = {name: params[name] for name in NOTICE_FIELDS[method] if name in params}
        clean: Params = self.prepared.of(snapshot, server).redactor.clear_json(fields)
        try:
            size = len(orjson.dumps(clean))
        except TypeError:
            return None
        return clean if size <= snapshot.settings.limits.max_output_bytes else None


@dataclass(frozen=True, slots=True)
class Relay:
    """A request that is passed on, and the servers that can answer it."""

    pass_through: PassThrough
    snapshot: Snapshot
    sole: ConnectionState | None  # the server, where the view has no other
    servers: tuple[ConnectionState, ...]
    caller: Caller

    @property
    def holder(self) -> str:
        """The holder of the client's wishes: a session, or the stream that a 2026 client opens."""
        assert self.caller.session is not None  # no other request can wish for anything
        return self.caller.session

    async def ask(self, server: ConnectionState, method: str, params: Params) -> Result:
        """One server's result of one request."""
        return await self.pass_through.requests.ask(*self.terms(server), method, params)

    def terms(self, server: ConnectionState) -> tuple[PreparedConnection, Caller, float]:
        """The terms of asking a server: its connection, the caller, the seconds for an answer."""
        prepared = self.pass_through.prepared.of(self.snapshot, server.name)
        caller = replace(self.caller)
        allow_questions(caller, server)
        return prepared, caller, self.snapshot.permissions.timeout_seconds

    async def list_all(
        self, servers: Sequence[ConnectionState], kind: str
    ) -> list[list[Item] | GatewayError]:
        """The list of each server, or the reason why it has none."""

        async def try_to_list(server: ConnectionState) -> list[Item] | GatewayError:
            try:
                return await self.pass_through.fetch_list(self, server, kind)
            except GatewayError as error:
                log.info("server_left_out", kind=kind, server=server.name, error=error.code)
                return error

        return await asyncio.gather(*map(try_to_list, servers))

    async def find_owner(
        self, kind: str, owns: Callable[[ConnectionState, frozenset[str]], bool]
    ) -> ConnectionState | None:
        """The first server that owns an item, by the keys it lists; read again if none does."""
        new_servers = [s for s in self.servers if self.pass_through.keys(self, s, kind) is None]
        known_servers = [server for server in self.servers if server not in new_servers]
        for stale in (new_servers, known_servers):
            await self.list_all(stale, kind)
            for server in self.servers:
                if owns(server, self.pass_through.keys(self, server, kind) or frozenset()):
                    return server
        return None

    async def owner_of_prompt(self, name: str) -> tuple[ConnectionState, str]:
        """The server of a prompt, and the name it has there."""
        if self.sole is not None:
            return self.sole, name

        def owns(server: ConnectionState, names: frozenset[str]) -> bool:
            return name.startswith(server.prefix) and name.removeprefix(server.prefix) in names

        owner = await self.find_owner("prompts", owns)
        if owner is None:
            raise RpcError(INVALID_PARAMS, f"Unknown prompt: {cut(name, 256)}")
        return owner, name.removeprefix(owner.prefix)

    async def owner_of_resource(self, uri: str) -> ConnectionState:
        """The server of a resource; a server that is alone knows best itself."""
        if len(self.servers) == 1:
            return self.servers[0]
        owner = await self.find_owner("resources", lambda _, uris: uri in uris)
        owner = owner or await self.find_owner(
            "resourceTemplates",
            lambda _, templates: any(_fits(template, uri) for template in templates),
        )
        if owner is None:
            code = -32002 if self.caller.era == "2025" else INVALID_PARAMS  # each era has its code
            raise RpcError(code, "Resource not found", {"uri": cut(uri, 256)})
        return owner

    async def owner_of_template(self, uri: str) -> ConnectionState:
        """The server of a template, or of a resource, whose arguments are to be completed."""
        if len(self.servers) == 1:
            return self.servers[0]
        owner = await self.find_owner("resourceTemplates", lambda _, templates: uri in templates)
        return owner or await self.owner_of_resource(uri)


PassMethod = Callable[[Relay, Params], Awaitable[Result]]


async def _list_items(kind: str, request: Relay, params: Params) -> Result:
    method, key = LISTS[kind]
    if request.sole is not None:
        return await request.ask(request.sole, method, params)
    if params.get("cursor") is not None:
        raise RpcError(INVALID_PARAMS, "Invalid cursor")  # the gateway never gives one
    answers = await request.list_all(request.servers, kind)
    errors = [answer for answer in answers if isinstance(answer, GatewayError)]
    if len(errors) == len(answers):
        raise errors[0]
    items: dict[str, Item] = {}
    for server, answer in zip(request.servers, answers, strict=True):
        for item in answer if isinstance(answer, list) else ():
            prefix = server.prefix if kind == "prompts" else ""
            items.setdefault(prefix + item[key], {**item, key: prefix + item[key]})
    return {kind: [*items.values()]}


async def _get_prompt(request: Relay, params: Params) -> Result:
    server, name = await request.owner_of_prompt(params["name"])
    return await request.ask(server, "prompts/get", {**params, "name": name})


async def _read_resource(request: Relay, params: Params) -> Result:
    server = await request.owner_of_resource(params["uri"])
    return await request.ask(server, "resources/read", params)


async def _subscribe(request: Relay, params: Params) -> Result:
    server = await request.owner_of_resource(params["uri"])
    uri, name, wishes = params["uri"], request.caller.principal.name, request.pass_through.wishes
    await wishes.watch(request.holder, name, server.name, uri)
    if request.caller.era == "2025":  # a stream of 2026 is here and nowhere else
        wishes.share(session=request.holder, server=server.name, uri=uri, principal=name, on=True)
    return {}


async def _unsubscribe(request: Relay, params: Params) -> Result:
    session, uri, wishes = request.holder, params["uri"], request.pass_through.wishes
    for server in request.servers:
        if wishes.unwatch(session, server.name, uri):
            wishes.share(session=session, server=server.name, uri=uri, on=False)
    return {}


async def _complete(request: Relay, params: Params) -> Result:
    ref = params["ref"]
    if ref["type"] == "ref/prompt":
        server, name = await request.owner_of_prompt(ref["name"])
        params = {**params, "ref": {**ref, "name": name}}
    else:
        server = await request.owner_of_template(ref["uri"])
    return await request.ask(server, "completion/complete", params)


async def _set_level(request: Relay, params: Params) -> Result:
    session, level, name = request.holder, params["level"], request.caller.principal.name
    servers = [server.name for server in request.servers]
    request.pass_through.wishes.set_level(session, name, level, servers)
    request.pass_through.wishes.share(session=session, principal=name, level=level, servers=servers)
    return {}


# By method: the capability that a server needs to answer it, and how it is answered.
HANDLERS: Mapping[str, tuple[str, PassMethod]] = {
    "prompts/list": ("prompts", partial(_list_items, "prompts")),
    "prompts/get": ("prompts", _get_prompt),
    "resources/list": ("resources", partial(_list_items, "resources")),
    "resources/templates/list": ("resources", partial(_list_items, "resourceTemplates")),
    "resources/read": ("resources", _read_resource),
    "resources/subscribe": ("resources.subscribe", _subscribe),
    "resources/unsubscribe": ("resources.subscribe", _unsubscribe),
    "completion/complete": ("completions", _complete),
    "logging/setLevel": ("logging", _set_level),
}


def join_instructions(own: str, sections: Mapping[str, str]) -> str:
    """The gateway's words, then each server's under its heading; long ones share the room."""
    room, parts = MAX_INSTRUCTIONS_CHARS - len(own), dict[str, str]()
    shortest_first = sorted(sections.items(), key=lambda section: len(section[1]))
    for number, (heading, words) in enumerate(shortest_first):
        parts[heading] = cut(f"\n\n{heading}\n{words}", room // (len(sections) - number))
        room -= len(parts[heading])
    return own + "".join(parts[heading] for heading in sections)


def _has_capability(capabilities: Mapping[str, Any], capability: str) -> bool:
    name, _, flag = capability.partition(".")
    found = capabilities.get(name)
    return isinstance(found, dict) and (not flag or found.get(flag) is True)


def _merge(peers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The offers of all servers in one; a flag is set if any of them sets it."""
    merged: dict[str, Any] = {}
    for name, flags in FLAGS.items():
        values = [peer[name] for peer in peers if _has_capability(peer, name)]
        if values:
            by_flag = {flag: [value[flag] for value in values if flag in value] for flag in flags}
            merged[name] = {flag: any(v is True for v in vs) for flag, vs in by_flag.items() if vs}
    return merged


@lru_cache(maxsize=256)
def _parse_template(template: str) -> UriTemplate | None:
    try:
        return UriTemplate.parse(template)
    except InvalidUriTemplate:
        return None  # a client that knows its server can still ask there


def _fits(template: str, uri: str) -> bool:
    parsed = _parse_template(template)
    return parsed is not None and parsed.match(uri) is not None
