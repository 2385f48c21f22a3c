"""How each request that is not about tools is answered by the servers of a view.

Where one server is all there is, the request goes to it as it came. Where there are several, lists
are put together, prompts carry their server's prefix, and a name or URI leads to its owner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_types.jsonrpc import INVALID_PARAMS

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.catalog.sources import prefix_of
from gateway.edge.mcp_messages import RpcError
from gateway.edge.owners import KEY_OF, METHOD_OF, Item, Kind, Owners
from gateway.edge.surface import CallContext
from gateway.edge.upstream_requests import UpstreamRequests
from gateway.edge.wishes import Wishes
from gateway.policy.offering import Offering

RESOURCE_NOT_FOUND = -32002  # up to 2025-11-25; later it is a wrong parameter like any other
MAX_NAME_ECHO = 256

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and what it takes to answer it."""

    snapshot: Snapshot
    offering: Offering
    servers: tuple[ConnectionState, ...]  # those that offer what is asked for
    context: CallContext
    requests: UpstreamRequests
    owners: Owners
    wishes: Wishes

    @property
    def names(self) -> list[str]:
        return [server.name for server in self.servers]

    def server(self, name: str) -> ConnectionState:
        return next(server for server in self.servers if server.name == name)

    def prefix(self, name: str) -> str:
        return prefix_of(name, self.server(name).settings)

    async def ask(self, server: ConnectionState, method: str, params: Params) -> dict[str, Any]:
        return await self.requests.ask(self.snapshot, server, method, params, self.context)

    async def page(self, name: str, method: str, params: Params) -> dict[str, Any]:
        return await self.ask(self.server(name), method, params)

    def whose(self, name: str) -> str:
        return self.context.principal.name if self.requests.are_apart(name) else ""


Handler = Callable[[Asked, Params], Awaitable[dict[str, Any]]]


def _lists(kind: Kind) -> Handler:
    async def listed(asked: Asked, params: Params) -> dict[str, Any]:
        sole = asked.offering.sole
        if sole is not None:
            return await asked.ask(sole, METHOD_OF[kind], params)
        if params.get("cursor") is not None:
            raise RpcError(INVALID_PARAMS, "Invalid cursor")  # we never give one
        found: dict[str, Item] = {}
        for name, items in await asked.owners.listed(asked.names, kind, asked.page, asked.whose):
            for item in items:
                shown = _prefixed(item, asked.prefix(name)) if kind == "prompts" else item
                found.setdefault(shown[KEY_OF[kind]], shown)
        return {kind: [*found.values()]}

    return listed


def _prefixed(prompt: Item, prefix: str) -> Item:
    return {**prompt, "name": prefix + prompt["name"]}


async def _get_prompt(asked: Asked, params: Params) -> dict[str, Any]:
    server, name = await _prompt(asked, params["name"])
    return await asked.ask(server, "prompts/get", {**params, "name": name})


async def _read_resource(asked: Asked, params: Params) -> dict[str, Any]:
    server = await _resource(asked, params["uri"])
    return await asked.ask(server, "resources/read", params)


async def _subscribe(asked: Asked, params: Params) -> dict[str, Any]:
    server = await _resource(asked, params["uri"])
    session, uri, who = asked.context.session, params["uri"], asked.context.principal.name
    if session is not None:
        await asked.wishes.watch(session, who, server.name, uri)
        if asked.context.era == "2025":  # a stream of 2026 is here and nowhere else
            wish = {"session": session, "server": server.name, "uri": uri}
            asked.wishes.share(**wish, principal=who, on=True)
    return {}


async def _unsubscribe(asked: Asked, params: Params) -> dict[str, Any]:
    session, uri = asked.context.session, params["uri"]
    for name in asked.names:
        if session is not None and asked.wishes.unwatch(session, name, uri):
            asked.wishes.share(session=session, server=name, uri=uri, on=False)
    return {}


async def _complete(asked: Asked, params: Params) -> dict[str, Any]:
    ref = params["ref"]
    if ref["type"] == "ref/prompt":
        server, name = await _prompt(asked, ref["name"])
        return await asked.ask(
            server, "completion/complete", {**params, "ref": {**ref, "name": name}}
        )
    server = await _template(asked, ref["uri"])
    return await asked.ask(server, "completion/complete", params)


async def _set_level(asked: Asked, params: Params) -> dict[str, Any]:
    session, level, who = asked.context.session, params["level"], asked.context.principal.name
    if session is not None:
        asked.wishes.set_level(session, who, level, asked.names)
        asked.wishes.share(session=session, principal=who, level=level, servers=asked.names)
    return {}


HANDLERS: Mapping[str, Handler] = {
    "prompts/list": _lists("prompts"),
    "prompts/get": _get_prompt,
    "resources/list": _lists("resources"),
    "resources/templates/list": _lists("resourceTemplates"),
    "resources/read": _read_resource,
    "resources/subscribe": _subscribe,
    "resources/unsubscribe": _unsubscribe,
    "completion/complete": _complete,
    "logging/setLevel": _set_level,
}
CAPABILITY_OF: Mapping[str, str] = {
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "resources/read": "resources",
    "resources/subscribe": "resources.subscribe",
    "resources/unsubscribe": "resources.subscribe",
    "completion/complete": "completions",
    "logging/setLevel": "logging",
}


async def _prompt(asked: Asked, name: str) -> tuple[ConnectionState, str]:
    """The server of a prompt, and what it calls it."""
    if asked.offering.sole is not None:
        return asked.offering.sole, name
    prefixes = {server: asked.prefix(server) for server in asked.names}
    local = {s: name.removeprefix(p) for s, p in prefixes.items() if name.startswith(p)}
    owner = await asked.owners.owner(asked.names, "prompts", local, asked.page, asked.whose)
    if owner is None:
        raise RpcError(INVALID_PARAMS, f"Unknown prompt: {name[:MAX_NAME_ECHO]}")
    return asked.server(owner), local[owner]


async def _resource(asked: Asked, uri: str) -> ConnectionState:
    """The server of a resource; one that is alone knows best itself."""
    if len(asked.servers) == 1:
        return asked.servers[0]
    everyone = dict.fromkeys(asked.names, uri)
    page, whose = asked.page, asked.whose
    owner = await asked.owners.owner(asked.names, "resources", everyone, page, whose)
    owner = owner or await asked.owners.template_owner(asked.names, uri, page, whose)
    if owner is None:
        raise _not_found(asked, uri)
    return asked.server(owner)


async def _template(asked: Asked, uri: str) -> ConnectionState:
    """The server of a template, or of a resource, whose arguments are to be completed."""
    if len(asked.servers) == 1:
        return asked.servers[0]
    everyone = dict.fromkeys(asked.names, uri)
    page, whose = asked.page, asked.whose
    owner = await asked.owners.owner(asked.names, "resourceTemplates", everyone, page, whose)
    return asked.server(owner) if owner is not None else await _resource(asked, uri)


def _not_found(asked: Asked, uri: str) -> RpcError:
    code = RESOURCE_NOT_FOUND if asked.context.era == "2025" else INVALID_PARAMS
    return RpcError(code, "Resource not found", {"uri": uri[:MAX_NAME_ECHO]})
