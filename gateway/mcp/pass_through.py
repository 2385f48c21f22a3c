"""What the MCP servers behind the gateway have beside tools, for each view of it.

A view has the prompts, resources, completion and logs of the servers in it that offer them. Where
one server is all there is, a request goes to it as it came. Where there are several, lists are put
together, prompts carry their server's prefix, and a name or URI leads to its owner: the first
server, in the order of connections, that lists it, or else has a template for it. What a server
tells unasked is passed to whom it concerns, without the connection's secrets.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson
import structlog
from cachetools import LRUCache
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types.jsonrpc import INVALID_PARAMS
from msgspec.structs import replace

from gateway.calls.credentials import Prepared, PreparedConnections
from gateway.calls.record import Caller
from gateway.calls.send import UpstreamRequests
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import GatewayError
from gateway.limits import MAX_INSTRUCTIONS_CHARS, MAX_REMEMBERED, MOMENT_SECONDS
from gateway.mcp.messages import RpcError, method_not_found
from gateway.mcp.streams import LOGGED, UPDATED, Notice, Streams, Wishes
from gateway.model import Principal, Scope
from gateway.naming import cut, visible
from gateway.policy.view import Offering, View, instructing, offering, withheld
from gateway.store.database import Database
from gateway.web.gateway import Gateway, askable_of
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
# A kind of list: the method that lists it, and what tells its items apart.
LISTS: Mapping[str, tuple[str, str]] = {
    "prompts": ("prompts/list", "name"),
    "resources": ("resources/list", "uri"),
    "resourceTemplates": ("resources/templates/list", "uriTemplate"),
}

log = structlog.get_logger(__name__)

Item = dict[str, Any]
Params = Mapping[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hello:
    """What a view has, and how it says it is to be used."""

    capabilities: Mapping[str, Any] = field(default_factory=lambda: TOOLS)
    instructions: str = INSTRUCTIONS


class PassThrough:
    """Prompts, resources, completion and logs of the servers in a view."""

    def __init__(
        self, gateway: Gateway, identity: Identity, requests: UpstreamRequests, db: Database
    ) -> None:
        self.wishes = Wishes(requests, db)
        self.streams = Streams(identity, self.wishes, self.lists, self._offers)
        gateway.catalog.on_change(self.streams.look_again)
        self._gateway = gateway
        self.requests = requests
        self._upstreams = requests.upstreams
        self.prepared = PreparedConnections()
        # What each server last listed to a principal, by server, principal and kind.
        self._listings: LRUCache[tuple[str, str, str], frozenset[str]] = LRUCache(MAX_REMEMBERED)
        self._changes: Counter[tuple[str, str]] = Counter()  # by server and kind of list
        self._upstreams.on_notification = self._hear

    async def hello(self, principal: Principal, scope: Scope) -> Hello:
        """What a view has; servers that were never met get a moment to answer."""
        snapshot, view, offered = self._look(principal, scope)
        instructors = instructing(offered, view, snapshot)
        everyone = {state.name: state for state in (*offered.servers, *instructors)}.values()
        servers = [state for state in everyone if state.settings.kind == "mcp"]
        awake = [s for s in servers if s is offered.sole or not s.settings.is_lazy]
        await self._meet(awake, offered)
        capabilities = _merge([self._capabilities(server) for server in offered.servers])
        instructions = self._instructions(snapshot, offered, instructors)
        return Hello({**TOOLS, **capabilities}, instructions or INSTRUCTIONS)

    async def answer(self, method: str, params: Params, caller: Caller) -> Result:
        """The result of a request that is not about tools. Raises RpcError and UpstreamRefused."""
        snapshot, _, offered = self._look(caller.principal, caller.scope)
        await self._meet(offered.servers, offered)
        capability, handler = HANDLERS[method]
        servers = self._servers_with(capability, offered)
        if not servers:
            raise method_not_found(method)
        return await handler(Asked(self, snapshot, offered.sole, servers, caller), params)

    def lists(self, principal: Principal, scope: Scope, client: str) -> dict[str, str]:
        """What tells a view's lists from others, by kind: of tools, of prompts, of resources."""
        _, view, offered = self._look(principal, scope, client)
        found = {"tools": view.digest}
        for kind in ("prompts", "resources"):
            servers = self._servers_with(kind, offered)
            found[kind] = " ".join(f"{s.name}.{self._changes[s.name, kind]}" for s in servers)
        return found

    def _offers(self, principal: Principal, scope: Scope, server: str) -> bool:
        *_, offered = self._look(principal, scope)
        return any(each.name == server for each in offered.servers)

    async def listen(
        self, holder: str, principal: Principal, scope: Scope, wanted: Params
    ) -> dict[str, Any]:
        """Takes note of what a stream wants to hear of; gives the part that it will hear."""
        capabilities = (await self.hello(principal, scope)).capabilities
        heard: dict[str, Any] = {}
        for kind in ("prompts", "resources"):
            flag = f"{kind}ListChanged"
            if wanted.get(flag) is True and capabilities.get(kind, {}).get("listChanged"):
                heard[flag] = True
        uris = wanted.get("resourceSubscriptions") or ()
        if uris and capabilities.get("resources", {}).get("subscribe"):
            caller = Caller(principal, scope, "2026", session=holder)
            watched = await asyncio.gather(*(self._watch(uri, caller) for uri in uris))
            honoured = [uri for uri, is_watched in zip(uris, watched, strict=True) if is_watched]
            heard |= {"resourceSubscriptions": honoured} if honoured else {}
        return heard

    async def _watch(self, uri: str, caller: Caller) -> bool:
        try:
            await self.answer("resources/subscribe", {"uri": uri}, caller)
        except (GatewayError, RpcError):
            return False
        return True

    async def list_of(self, asked: Asked, server: ConnectionState, kind: str) -> list[Item]:
        """All that a server lists of a kind now; what tells the items apart is remembered."""
        method, key = LISTS[kind]
        listed = await self.requests.list_all(*asked.terms(server), method, kind)
        items = [item for item in listed if key in item]
        names = frozenset(str(item[key]) for item in items)
        self._listings[server.name, asked.caller.principal.name, kind] = names
        return items

    def listing(self, asked: Asked, server: ConnectionState, kind: str) -> frozenset[str] | None:
        """What a server last listed to this principal; None: nothing is known of that."""
        return self._listings.get((server.name, asked.caller.principal.name, kind))

    def _look(
        self, principal: Principal, scope: Scope, client: str = ""
    ) -> tuple[Snapshot, View, Offering]:
        snapshot = self._gateway.snapshot
        form = self._gateway.serving(snapshot, client).form
        view = self._gateway.view_of(snapshot, principal, scope, form)
        return snapshot, view, offering(snapshot, principal, view)

    async def _meet(self, servers: Iterable[ConnectionState], offered: Offering) -> None:
        """Gives servers that were never met a moment; one that failed before delays nobody."""
        meet, sole = self._upstreams.meet, offered.sole
        await asyncio.gather(*(meet(s.name, MOMENT_SECONDS, failed_too=s is sole) for s in servers))

    def _capabilities(self, server: ConnectionState) -> Mapping[str, Any]:
        peer = self._upstreams.peer(server.name)
        return peer.capabilities if peer is not None else {}

    def _servers_with(self, capability: str, offered: Offering) -> tuple[ConnectionState, ...]:
        return tuple(s for s in offered.servers if _has(self._capabilities(s), capability))

    def _instructions(
        self, snapshot: Snapshot, offered: Offering, servers: Sequence[ConnectionState]
    ) -> str:
        """How the servers say they are to be used; where one is all there is, its words alone."""
        said = {
            state.name: self.prepared.of(snapshot, state.name).redactor.text(words)
            for state in servers
            if (words := self._words(state))
        }
        if offered.sole is not None:
            return cut("".join(said.values()), MAX_INSTRUCTIONS_CHARS)
        prefixes = {name: snapshot.connections[name].prefix for name in said}
        about = {n: f" (its tools here begin with `{p}`)" if p else "" for n, p in prefixes.items()}
        headed = {f"## {name}{about[name]}": words for name, words in said.items()}
        return join_instructions(INSTRUCTIONS, headed)

    def _words(self, state: ConnectionState) -> str:
        """As they were when its tools were listed last; before that, as the server says now."""
        if state.build is not None:
            return state.build.instructions
        peer = self._upstreams.peer(state.name)
        return visible(peer.instructions or "").strip() if peer else ""

    def _hear(self, server: str, principal: str | None, method: str, params: Params) -> None:
        kind = method.removeprefix("notifications/").removesuffix("/list_changed")
        if kind in ("prompts", "resources"):
            self._changes[server, kind] += 1
            for key in [key for key in self._listings if key[0] == server]:
                self._listings.pop(key, None)
            self.streams.look_again()
        elif method in NOTICE_FIELDS and server in self._gateway.snapshot.connections:
            cleared = self._clear(server, method, params)
            if cleared is not None:
                self.streams.tell_notice(Notice(server, method, cleared, principal))

    def _clear(self, server: str, method: str, params: Params) -> Params | None:
        """A notice's params without the connection's secrets; None: they are too large."""
        snapshot = self._gateway.snapshot
        kept = {name: params[name] for name in NOTICE_FIELDS[method] if name in params}
        cleared: Params = self.prepared.of(snapshot, server).redactor.json(kept)
        try:
            size = len(orjson.dumps(cleared))
        except TypeError:
            return None
        return cleared if size <= snapshot.settings.limits.max_output_bytes else None


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a client, and the servers that can answer it."""

    offers: PassThrough
    snapshot: Snapshot
    sole: ConnectionState | None  # the server that is all there is
    servers: tuple[ConnectionState, ...]
    caller: Caller

    @property
    def holder(self) -> str:
        """Whose wishes it tells: of a session, or of the stream that a client of 2026 opens."""
        assert self.caller.session is not None  # no other request can wish for anything
        return self.caller.session

    async def ask(self, server: ConnectionState, method: str, params: Params) -> Result:
        """One server's result of one request."""
        return await self.offers.requests.ask(*self.terms(server), method, params)

    def terms(self, server: ConnectionState) -> tuple[Prepared, Caller, float]:
        """On which a server is asked: as which connection, for whom, how long for an answer."""
        prepared = self.offers.prepared.of(self.snapshot, server.name)
        may, may_not = askable_of(self.caller, server), withheld(self.caller.capabilities, server)
        caller = replace(self.caller, askable=may, withheld=may_not)
        return prepared, caller, self.snapshot.permissions.timeout_seconds

    async def list_all(
        self, servers: Sequence[ConnectionState], kind: str
    ) -> list[list[Item] | GatewayError]:
        """What each of the servers lists, or why it does not."""

        async def try_to_list(server: ConnectionState) -> list[Item] | GatewayError:
            try:
                return await self.offers.list_of(self, server, kind)
            except GatewayError as error:
                log.info("server_left_out", kind=kind, server=server.name, error=error.code)
                return error

        return await asyncio.gather(*map(try_to_list, servers))

    async def owner(
        self, kind: str, owns: Callable[[ConnectionState, frozenset[str]], bool]
    ) -> ConnectionState | None:
        """The first server that owns something by what it lists; looked up again if none does."""
        unknown = [s for s in self.servers if self.offers.listing(self, s, kind) is None]
        remembered = [server for server in self.servers if server not in unknown]
        for stale in (unknown, remembered):
            await self.list_all(stale, kind)
            for server in self.servers:
                if owns(server, self.offers.listing(self, server, kind) or frozenset()):
                    return server
        return None

    async def owner_of_prompt(self, name: str) -> tuple[ConnectionState, str]:
        """The server of a prompt, and the name it has there."""
        if self.sole is not None:
            return self.sole, name

        def owns(server: ConnectionState, names: frozenset[str]) -> bool:
            return name.startswith(server.prefix) and name.removeprefix(server.prefix) in names

        owner = await self.owner("prompts", owns)
        if owner is None:
            raise RpcError(INVALID_PARAMS, f"Unknown prompt: {cut(name, 256)}")
        return owner, name.removeprefix(owner.prefix)

    async def owner_of_resource(self, uri: str) -> ConnectionState:
        """The server of a resource; one that is alone knows best itself."""
        if len(self.servers) == 1:
            return self.servers[0]
        owner = await self.owner("resources", lambda _, uris: uri in uris)
        owner = owner or await self.owner(
            "resourceTemplates",
            lambda _, templates: any(_fits(template, uri) for template in templates),
        )
        if owner is None:
            code = -32002 if self.caller.era == "2025" else INVALID_PARAMS  # as the era has it
            raise RpcError(code, "Resource not found", {"uri": cut(uri, 256)})
        return owner

    async def owner_of_template(self, uri: str) -> ConnectionState:
        """The server of a template, or of a resource, whose arguments are to be completed."""
        if len(self.servers) == 1:
            return self.servers[0]
        owner = await self.owner("resourceTemplates", lambda _, templates: uri in templates)
        return owner or await self.owner_of_resource(uri)


Handler = Callable[[Asked, Params], Awaitable[Result]]


def _lists(kind: str) -> Handler:
    method, key = LISTS[kind]

    async def list_items(asked: Asked, params: Params) -> Result:
        if asked.sole is not None:
            return await asked.ask(asked.sole, method, params)
        if params.get("cursor") is not None:
            raise RpcError(INVALID_PARAMS, "Invalid cursor")  # the gateway never gives one
        listed = await asked.list_all(asked.servers, kind)
        failed = [found for found in listed if isinstance(found, GatewayError)]
        if len(failed) == len(listed):
            raise failed[0]
        items: dict[str, Item] = {}
        for server, found in zip(asked.servers, listed, strict=True):
            for item in found if isinstance(found, list) else ():
                prefix = server.prefix if kind == "prompts" else ""
                items.setdefault(prefix + item[key], {**item, key: prefix + item[key]})
        return {kind: [*items.values()]}

    return list_items


async def _get_prompt(asked: Asked, params: Params) -> Result:
    server, name = await asked.owner_of_prompt(params["name"])
    return await asked.ask(server, "prompts/get", {**params, "name": name})


async def _read_resource(asked: Asked, params: Params) -> Result:
    server = await asked.owner_of_resource(params["uri"])
    return await asked.ask(server, "resources/read", params)


async def _subscribe(asked: Asked, params: Params) -> Result:
    server = await asked.owner_of_resource(params["uri"])
    uri, name, wishes = params["uri"], asked.caller.principal.name, asked.offers.wishes
    await wishes.watch(asked.holder, name, server.name, uri)
    if asked.caller.era == "2025":  # a stream of 2026 is here and nowhere else
        wishes.share(session=asked.holder, server=server.name, uri=uri, principal=name, on=True)
    return {}


async def _unsubscribe(asked: Asked, params: Params) -> Result:
    session, uri, wishes = asked.holder, params["uri"], asked.offers.wishes
    for server in asked.servers:
        if wishes.unwatch(session, server.name, uri):
            wishes.share(session=session, server=server.name, uri=uri, on=False)
    return {}


async def _complete(asked: Asked, params: Params) -> Result:
    ref = params["ref"]
    if ref["type"] == "ref/prompt":
        server, name = await asked.owner_of_prompt(ref["name"])
        params = {**params, "ref": {**ref, "name": name}}
    else:
        server = await asked.owner_of_template(ref["uri"])
    return await asked.ask(server, "completion/complete", params)


async def _set_level(asked: Asked, params: Params) -> Result:
    session, level, name = asked.holder, params["level"], asked.caller.principal.name
    servers = [server.name for server in asked.servers]
    asked.offers.wishes.set_level(session, name, level, servers)
    asked.offers.wishes.share(session=session, principal=name, level=level, servers=servers)
    return {}


# By method: the capability that a server needs to answer it, and how it is answered.
HANDLERS: Mapping[str, tuple[str, Handler]] = {
    "prompts/list": ("prompts", _lists("prompts")),
    "prompts/get": ("prompts", _get_prompt),
    "resources/list": ("resources", _lists("resources")),
    "resources/templates/list": ("resources", _lists("resourceTemplates")),
    "resources/read": ("resources", _read_resource),
    "resources/subscribe": ("resources.subscribe", _subscribe),
    "resources/unsubscribe": ("resources.subscribe", _unsubscribe),
    "completion/complete": ("completions", _complete),
    "logging/setLevel": ("logging", _set_level),
}


def join_instructions(own: str, said: Mapping[str, str]) -> str:
    """The gateway's words, then each server's under its heading; long ones share what room is."""
    room, parts = MAX_INSTRUCTIONS_CHARS - len(own), dict[str, str]()
    shortest_first = sorted(said.items(), key=lambda each: len(each[1]))
    for number, (heading, words) in enumerate(shortest_first):
        parts[heading] = cut(f"\n\n{heading}\n{words}", room // (len(said) - number))
        room -= len(parts[heading])
    return own + "".join(parts[heading] for heading in said)


def _has(capabilities: Mapping[str, Any], capability: str) -> bool:
    name, _, flag = capability.partition(".")
    found = capabilities.get(name)
    return isinstance(found, dict) and (not flag or found.get(flag) is True)


def _merge(offered: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What any of the servers offers; a flag is set if it is for one of them."""
    merged: dict[str, Any] = {}
    for name, flags in FLAGS.items():
        found = [capabilities[name] for capabilities in offered if _has(capabilities, name)]
        if found:
            said = {flag: [one[flag] for one in found if flag in one] for flag in flags}
            merged[name] = {flag: any(v is True for v in vs) for flag, vs in said.items() if vs}
    return merged


@lru_cache(maxsize=256)
def _parsed(template: str) -> UriTemplate | None:
    try:
        return UriTemplate.parse(template)
    except InvalidUriTemplate:
        return None  # its server can still be asked by whoever knows it


def _fits(template: str, uri: str) -> bool:
    parsed = _parsed(template)
    return parsed is not None and parsed.match(uri) is not None
