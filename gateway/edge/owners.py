"""Whose a prompt or a resource is, where several servers are behind one address.

Prompts carry their server's prefix; URIs stay as they are, so what each server lists is remembered:
for a while, and until it says that its list changed; apart for each principal who has a session of
its own with the server, since what is listed may be the session's. The first server, in the order
of connections, that lists a name or URI owns it; a URI that nobody lists belongs to the first
server with a template for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import structlog
from cachetools import LRUCache

from gateway.edge.sdk import uri_template
from gateway.errors import GatewayError, UpstreamFailed

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
