"""How each request that is not about tools is answered by the servers of a view.

Where one server is all there is, the request goes to it as it came. Where there are several, lists
are put together, prompts carry their server's prefix, and a name or URI leads to its owner.

Whose a prompt or a resource is, where several servers are behind one address.

Prompts carry their server's prefix; URIs stay as they are, so what each server lists is remembered:
for a while, and until it says that its list changed; apart for each principal who has a session of
its own with the server, since what is listed may be the session's. The first server, in the order
of connections, that lists a name or URI owns it; a URI that nobody lists belongs to the first
server with a template for it.

One request of a client, made to the server it concerns: limits around it, secrets kept here.

Nothing of the client travels along but what it asks for: its `_meta` stays here, but for the level
from which on it reads logs. A server's question goes to a client that can answer: on the request's
own stream, or, from 2026-07-28, as the answer itself, if the client said that it can be asked for
such a thing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import structlog
from cachetools import LRUCache
from mcp_types.jsonrpc import INVALID_PARAMS

from gateway.calls.admission import Admission
from gateway.calls.credentials import Prepared, PreparedConnections
from gateway.calls.questions import asker, check_offered
from gateway.calls.record import Caller
from gateway.calls.send import LOG_LEVEL, clear_result, cleared_refusal
from gateway.catalog.definitions import prefix_of
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused
from gateway.mcp.messages import RpcError, uri_template
from gateway.mcp.wishes import Wishes
from gateway.policy.view import Offering
from gateway.upstream.protocol import INTERACTIVE, Hooks
from gateway.upstream.registry import Upstreams
from gateway.web.gateway import askable_of

Kind = Literal["prompts", "resources", "resourceTemplates"]
Item = dict[str, Any]
Page = Callable[[str, str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
Whose = Callable[[str], str]  # the principal whose own session lists a server's things, or ""

METHOD_OF: Mapping[Kind, str] = {
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
KEY_OF: Mapping[Kind, str] = {
    "prompts": "name",
    "resources": "uri",
    "resourceTemplates": "uriTemplate",
}
GENERATION_OF: Mapping[Kind, str] = {
    "prompts": "prompts",
    "resources": "resources",
    "resourceTemplates": "resources",
}
MAX_PAGES = 50
MAX_ITEMS = 5000  # of one server and kind
MAX_URI_CHARS = 8192
MAX_LISTINGS = 1024
REMEMBERED_SECONDS = 60.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Listing:
    at: float
    generation: int
    keys: frozenset[str]
    templates: tuple[uri_template.UriTemplate, ...] = ()


def everyones(server: str) -> str:
    """What a server lists is the same for all."""
    return ""


class Owners:
    """What each server lists, as far as it is known here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listings: LRUCache[tuple[str, str, Kind], _Listing] = LRUCache(MAX_LISTINGS)
        self._generations: Counter[tuple[str, str]] = Counter()

    def changed(self, server: str, of: str) -> None:
        """The server's list of `prompts` or `resources` is another now."""
        self._generations[server, of] += 1

    def generation(self, server: str, of: str) -> int:
        """Grows with each change that the server tells of."""
        return self._generations[server, of]

    async def listed(
        self, servers: Sequence[str], kind: Kind, page: Page, whose: Whose = everyones
    ) -> list[tuple[str, list[Item]]]:
        """What the servers list now; who fails is left out, unless all do."""
        found = await asyncio.gather(
            *(self._listed(server, kind, page, whose(server)) for server in servers),
            return_exceptions=True,
        )
        failed = [one for one in found if isinstance(one, BaseException)]
        for error in failed:
            if not isinstance(error, GatewayError):
                raise error
            log.info("server_left_out", kind=kind, error=error.code)
        if failed and len(failed) == len(found):
            raise failed[0]
        return [
            (server, items)
            for server, items in zip(servers, found, strict=True)
            if not isinstance(items, BaseException)
        ]

    async def owner(
        self,
        servers: Sequence[str],
        kind: Kind,
        keys: Mapping[str, str],
        page: Page,
        whose: Whose = everyones,
    ) -> str | None:
        """The server that lists the key it would have there (`keys`, by server)."""
        candidates = [server for server in servers if server in keys]
        await self._freshen(candidates, kind, page, whose)
        for server in candidates:
            listing = self._listings.get((server, whose(server), kind))
            if listing is not None and keys[server] in listing.keys:
                return server
        return None

    async def template_owner(
        self, servers: Sequence[str], uri: str, page: Page, whose: Whose = everyones
    ) -> str | None:
        """The first server with a template that this URI fits."""
        if len(uri) > MAX_URI_CHARS:
            return None
        await self._freshen(servers, "resourceTemplates", page, whose)
        for server in servers:
            listing = self._listings.get((server, whose(server), "resourceTemplates"))
            if listing is not None and any(t.match(uri) is not None for t in listing.templates):
                return server
        return None

    async def _freshen(self, servers: Sequence[str], kind: Kind, page: Page, whose: Whose) -> None:
        stale = [server for server in servers if self._is_stale(server, kind, whose(server))]
        if stale:
            try:
                await self.listed(stale, kind, page, whose)
            except GatewayError:
                return  # what is remembered, if anything, has to do

    def _is_stale(self, server: str, kind: Kind, who: str) -> bool:
        known = self._listings.get((server, who, kind))
        if known is None or known.generation != self._generations[server, GENERATION_OF[kind]]:
            return True
        return self._clock() - known.at > REMEMBERED_SECONDS

    async def _listed(self, server: str, kind: Kind, page: Page, who: str) -> list[Item]:
        generation = self._generations[server, GENERATION_OF[kind]]
        items = await _every_page(server, kind, page)
        keys = frozenset(item[KEY_OF[kind]] for item in items)
        templates = _parsed(keys) if kind == "resourceTemplates" else ()
        self._listings[server, who, kind] = _Listing(self._clock(), generation, keys, templates)
        return items


async def _every_page(server: str, kind: Kind, page: Page) -> list[Item]:
    items: list[Item] = []
    params: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        answer = await page(server, METHOD_OF[kind], params)
        found, cursor = answer.get(kind), answer.get("nextCursor")
        if not isinstance(found, list):
            raise UpstreamFailed("upstream_error", f"{server} sent a list of {kind} that is none")
        items += [one for one in found if _has_key(one, kind)]
        if not isinstance(cursor, str) or len(items) >= MAX_ITEMS:
            break
        params = {"cursor": cursor}
    return items[:MAX_ITEMS]


def _has_key(item: object, kind: Kind) -> bool:
    return isinstance(item, dict) and isinstance(item.get(KEY_OF[kind]), str)


def _parsed(texts: Iterable[str]) -> tuple[uri_template.UriTemplate, ...]:
    parsed = []
    for text in sorted(texts):
        try:
            parsed.append(uri_template.UriTemplate.parse(text))
        except uri_template.InvalidUriTemplate:
            continue  # its server can still be asked by whoever knows it
    return tuple(parsed)


OF_A_HOP = ("inputResponses", "requestState", "_meta")


class UpstreamRequests:
    """Asks servers on behalf of clients."""

    def __init__(
        self, upstreams: Upstreams, limits: Admission, prepared: PreparedConnections
    ) -> None:
        self._upstreams = upstreams
        self._limits = limits
        self._prepared = prepared

    def are_apart(self, name: str) -> bool:
        """Whether each principal has a session of its own with this server."""
        try:
            return self._upstreams.sharing(name) == "principal"
        except GatewayError:
            return False  # being taken out just now

    async def ask(
        self,
        snapshot: Snapshot,
        server: ConnectionState,
        method: str,
        params: Mapping[str, Any],
        context: Caller,
    ) -> dict[str, Any]:
        """The server's result, cleared of secrets. Raises UpstreamRefused with its own words."""
        prepared, seconds = (
            self._prepared.of(snapshot, server.name),
            snapshot.permissions.timeout_seconds,
        )
        context = replace(context, askable=askable_of(context, server))
        await self._limits.admit(server.name, context.principal.name, prepared.rate_limit)
        async with self._limits.call(server.name) as passage:
            try:
                result = await self._send(prepared, method, params, context, seconds)
            except UpstreamRefused as error:
                passage.note_answer(200)
                raise cleared_refusal(error, prepared.redactor) from error
            except UpstreamFailed as error:
                if error.code != "upstream_error":
                    passage.note_failure()
                raise
            passage.note_answer(200)
        return (await clear_result(result, prepared.redactor))[1]

    async def _send(
        self,
        prepared: Prepared,
        method: str,
        params: Mapping[str, Any],
        context: Caller,
        seconds: float,
    ) -> dict[str, Any]:
        peer = self._upstreams.status(prepared.name).peer
        relays = context.era == "2026" and bool(context.askable) and method in INTERACTIVE
        sent = dict(params)
        if not relays or peer is None or peer.era == "handshake":
            sent = {key: value for key, value in sent.items() if key not in OF_A_HOP}
        sent["_meta"] = {LOG_LEVEL: context.log_level} if context.log_level else {}
        asks = asker(context, prepared.redactor, seconds)
        hooks = Hooks(context.progress, asks, context.notice, context.askable or None)
        result = await self._upstreams.request(
            prepared.name,
            method,
            sent,
            principal=context.principal.name,
            hooks=hooks,
            relay_input=relays,
        )
        if relays and result.get("resultType") == "input_required":
            check_offered(result.get("inputRequests") or {}, context.askable)
        return result


RESOURCE_NOT_FOUND = -32002  # up to 2025-11-25; later it is a wrong parameter like any other
MAX_NAME_ECHO = 256

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and what it takes to answer it."""

    snapshot: Snapshot
    offering: Offering
    servers: tuple[ConnectionState, ...]  # those that offer what is asked for
    context: Caller
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
