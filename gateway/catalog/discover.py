"""From a connection's settings to its tools: the slow part, with all the waiting in it.

One function a kind. Each gives a `Found`: the definition's bytes, and the tools that were built
from them, off the event loop. Where neither the bytes nor anything that shapes the tools has
changed, what was built before is used again.

A look that has not begun is shared: those who ask for the same connection meanwhile wait for that
one. A look that has begun may have seen what was there before they asked, so those who come later
share the next.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import orjson

from gateway.azure.directory import AzureDirectory
from gateway.catalog.definitions import (
    Asker,
    Exchange,
    Fetcher,
    Found,
    RawDefinition,
    build_key,
    is_built_in,
    is_url,
    location_of,
    same_bytes,
    source_of,
)
from gateway.catalog.snapshot import Owner, clash_problems, without_clashes
from gateway.config.connection import (
    ArmConnection,
    Connection,
    ManifestConnection,
    McpConnection,
    NangoAuth,
    OAuth2Auth,
    OpenApiConnection,
)
from gateway.config.settings import Limits
from gateway.connectors.manifest import load_builtin
from gateway.connectors.mcp import Wrap, build_upstream
from gateway.errors import Fixable, GatewayError
from gateway.limits import (
    BUILD_SECONDS,
    DEFINITION_SECONDS,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
)
from gateway.model import NO_TLS_FILES, Build, Problem, Source, digest
from gateway.naming import visible
from gateway.outbound.client import Answer, Request, locate
from gateway.upstream.session import Listing
from gateway.workers import Workers

# What a connection proves itself with, and the way to send a request of its own with that.
Prove = Callable[
    [str, Connection, Build | None],
    tuple[object, Callable[[Request, Exchange], Awaitable[Answer]]],
]
PREVIEWED = "[preview]"  # whose tokens those of a preview are: no connection can have this name
LED_ON = Problem(
    "warning",
    "definition",
    "the definition's address redirects, so it was fetched without the connection's credentials; "
    "give the address it leads to",
)


@dataclass(frozen=True, slots=True)
class Discoverer:
    """What discovery needs from outside: the ways to read, to build and to ask an MCP server."""

    fetcher: Fetcher
    workers: Workers
    read_upstream: Callable[[str, McpConnection], Awaitable[Listing]]
    check_address: Callable[[str], Awaitable[None]]
    azure: AzureDirectory
    prove: Prove

    async def discover(
        self,
        name: str,
        settings: Connection,
        limits: Limits,
        known: Found | None,
        planned: bool = False,
        since: float | None = None,
    ) -> Found:
        """What this connection offers now; the very object `known` where nothing changed.

        With `planned`, what one would offer that Azure does not have yet; `since`, how old may be
        what was fetched for several connections.
        """
        if isinstance(settings, McpConnection):
            return await self._discover_upstream(name, settings, limits, known)
        if isinstance(settings, OpenApiConnection):
            who = PREVIEWED if planned else name
            return await self._discover_openapi(name, settings, limits, known, who)
        held = known.definition if known else None
        if isinstance(settings, ManifestConnection):
            definition = await self._read_manifest(settings, limits, held)
        else:
            assert isinstance(settings, ArmConnection)
            raw = await self.azure.definition(
                name, settings, max_bytes=limits.max_spec_bytes, planned=planned, since=since
            )
            definition = _held_or(held, RawDefinition.of(settings.resource_id or "", raw))
        return await self.rebuild(name, settings, limits, definition, known)

    async def _discover_openapi(
        self,
        name: str,
        settings: OpenApiConnection,
        limits: Limits,
        known: Found | None,
        who: str,
    ) -> Found:
        """What a definition says to the connection; `who`: under which name its tokens are kept."""

        async def read(asker: Asker | None, known: Found | None) -> Found:
            held = known.definition if known else None
            definition = await self.fetcher.fetch(
                settings.spec,
                held if held and held.location == location_of(settings) else None,
                max_bytes=limits.max_spec_bytes,
                seconds=settings.timeout_seconds or DEFINITION_SECONDS,
                asker=asker,
                tls=settings.tls_files if _at_home(settings) else NO_TLS_FILES,
            )
            found = await self.rebuild(name, settings, limits, definition, known)
            return _noted(found, led_on=asker is not None and definition.asked_with is None)

        asker = self._asker(who, settings, known)
        found = await read(asker, known)
        better = self._asker(who, settings, found)
        if asker is None or better is None or better.proof == asker.proof:
            return found
        return await read(better, found)  # only now the definition has said where it wants a key

    def _asker(self, who: str, settings: OpenApiConnection, known: Found | None) -> Asker | None:
        """The connection itself, where the definition lies on the API's own host; else nobody."""
        if not _at_home(settings) or (settings.auth.type == "none" and not settings.headers):
            return None
        return Asker(*self.prove(who, settings, known.build if known else None))

    async def _discover_upstream(
        self, name: str, settings: McpConnection, limits: Limits, known: Found | None
    ) -> Found:
        said, session = await self.read_upstream(name, settings)
        said_now = RawDefinition.of(location_of(settings), orjson.dumps(said))
        definition = _held_or(known.definition if known else None, said_now)
        found = await self.rebuild(name, settings, limits, definition, known)
        return found if found.session == session else replace(found, session=session)

    async def rebuild(
        self,
        name: str,
        settings: Connection,
        limits: Limits,
        definition: RawDefinition,
        known: Found | None,
    ) -> Found:
        """The tools of a definition that is at hand: no network."""
        source = _source(name, settings, limits, definition)
        key = _key(definition, source, settings)
        if known is not None and known.build_key == key:
            same = known.definition == definition
            return known if same else replace(known, definition=definition)
        if isinstance(settings, McpConnection):
            build = _build_listing(definition.raw, source, settings)
        else:
            build = await self.workers.build(definition.packed, source, deadline=BUILD_SECONDS)
        return Found(definition, build, key)

    def key_of(
        self, name: str, settings: Connection, limits: Limits, definition: RawDefinition
    ) -> str:
        """The key a build of this definition would have; its bytes are not needed."""
        return _key(definition, _source(name, settings, limits, definition), settings)

    async def check_addresses(self, settings: Connection, build: Build) -> None:
        """Refuses a connection whose calls or tokens would go where we may not go."""
        tools = (*build.tools, *build.hidden)
        targets = {tool.http.base_url for tool in tools if tool.http} | {build.base_url}
        configured = _configured_addresses(settings)
        for target in sorted({*map(_origin, targets), *configured} - {""}):
            try:
                await self.check_address(target)
            except GatewayError as error:
                # Names that can't be looked up now may be later; what can't be read never will.
                unreadable = isinstance(error, Fixable) and target in configured
                if error.code == "access_denied" or unreadable:
                    raise Fixable("connection_invalid", error.message, error.hint) from error

    async def _read_manifest(
        self, settings: ManifestConnection, limits: Limits, held: RawDefinition | None
    ) -> RawDefinition:
        location = settings.manifest
        if is_built_in(location):
            return RawDefinition.of(location, load_builtin(location))
        return await self.fetcher.fetch(location, held, max_bytes=limits.max_spec_bytes)


def _at_home(settings: OpenApiConnection) -> bool:
    """Whether the definition lies on the API's own host, which may see what calls prove."""
    base_url, spec = settings.base_url, settings.spec
    return is_url(spec) and (not base_url or locate(base_url).origin() == locate(spec).origin())


def _noted(found: Found, *, led_on: bool) -> Found:
    """With a warning where the definition may be what strangers are shown, else without."""
    build = found.build
    if (LED_ON in build.problems) == led_on:
        return found
    others = tuple(problem for problem in build.problems if problem != LED_ON)
    return replace(found, build=replace(build, problems=(LED_ON, *others) if led_on else others))


def previewed(
    name: str,
    kind: str,
    found: Found,
    problems: Sequence[Problem] = (),
    *,
    owner: Owner,
) -> dict[str, Any]:
    """What `gateway inspect` and a dry run show: tools, what was skipped and why, problems."""
    build = found.build
    exposed, clashes = without_clashes(build.tools, owner)
    shown = ("name", "operation", "method", "path", "access", "risk", "title", "description")
    tools = [
        {name: getattr(tool, name) for name in shown}
        | {"input_schema": orjson.loads(tool.input_schema), "tokens": tool.tokens}
        for tool in sorted(exposed, key=lambda tool: tool.name)
    ]
    return {
        "connection": name,
        "kind": kind,
        "format": build.format,
        "base_url": build.base_url,
        **({"session": found.session} if found.session else {}),
        "tools": tools,
        "skipped": [
            {name: getattr(each, name) for name in ("operation", "method", "path", "reason")}
            for each in (*build.skipped, *clashes)
        ],
        "problems": [
            problem_dict(each) for each in (*build.problems, *clash_problems(clashes), *problems)
        ],
        "tokens": sum(tool.tokens for tool in exposed),
    }


def problem_dict(problem: Problem) -> dict[str, str]:
    """A problem as every edge shows it."""
    return {"severity": problem.severity, "where": problem.where, "message": problem.message}


def _key(definition: RawDefinition, source: Source, settings: Connection) -> str:
    key = build_key(definition.sha256, source)
    if not isinstance(settings, McpConnection):
        return key
    shaping = settings.model_dump(
        mode="json", include={"wrap": {"__all__": {"tool", "as_", "idempotency_field", "record"}}}
    )
    shaping |= {
        "inject": [sorted(rule.inject) for rule in settings.wrap],
        "tools": settings.tools,
        "exclude_tools": settings.exclude_tools,
    }
    return digest(key.encode() + orjson.dumps(shaping, option=orjson.OPT_SORT_KEYS))


def _source(name: str, settings: Connection, limits: Limits, definition: RawDefinition) -> Source:
    return source_of(
        name,
        settings,
        location=definition.location,
        max_description_chars=limits.max_description_chars,
    )


def _held_or(held: RawDefinition | None, new: RawDefinition) -> RawDefinition:
    return held if held is not None and same_bytes(held, new) else new


def _build_listing(raw: bytes, source: Source, settings: McpConnection) -> Build:
    said = orjson.loads(raw)
    if isinstance(said, list):  # stored before instructions were
        said = {"tools": said}
    wraps, hidden = wraps_of(settings), settings.exclude_tools
    build = build_upstream(said["tools"], source, wraps, settings.tools, hidden)
    return replace(build, instructions=visible(said.get("instructions", "")).strip())


def wraps_of(settings: McpConnection) -> list[Wrap]:
    """The `wrap` rules of a connection, without the values they inject."""
    return [
        Wrap(
            tool=rule.tool,
            as_=rule.as_,
            idempotency_field=rule.idempotency_field,
            inject=tuple(sorted(rule.inject)),
            record=rule.record,
        )
        for rule in settings.wrap
    ]


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if url else ""


def _configured_addresses(settings: Connection) -> set[str]:
    """The addresses that the settings themselves name, as they are spelled there."""
    found = {settings.base_url or ""} if isinstance(settings, OpenApiConnection) else set()
    if isinstance(settings.auth, OAuth2Auth):
        found.add(settings.auth.token_url)
    if isinstance(settings.auth, NangoAuth):
        found.add(settings.auth.url)
    return found


T = TypeVar("T")


class Looks(Generic[T]):
    """Looks by name, one after another for each name, shared by those who ask together."""

    def __init__(self) -> None:
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: dict[str, tuple[asyncio.Task[T], float]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    async def share(
        self,
        name: str,
        look: Callable[[float], Awaitable[T]],
        *,
        since: float | None = None,
        wait: float = 0.0,
    ) -> T:
        """What the next look finds; it goes on to its end for others if this caller leaves.

        `look` is told how new what it finds must be: the latest `since` (by the monotonic clock,
        default: now) of all who share it. It begins `wait` seconds from now, in its turn.
        """
        since = time.monotonic() if since is None else since
        if name in self._waiting:
            task, others = self._waiting[name]
            since = max(since, others)
        else:
            task = asyncio.create_task(self._begin(name, look, wait))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        self._waiting[name] = task, since
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Ends every look."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _begin(self, name: str, look: Callable[[float], Awaitable[T]], wait: float) -> T:
        await asyncio.sleep(wait)
        async with self.locks[name]:
            _, since = self._waiting.pop(name)
            return await look(since)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: those who asked may all have left


class Pauses:
    """Growing pauses between the tries of what keeps failing."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}  # how long, and until when

    def is_over(self, name: str, now: float) -> bool:
        """Whether it is time for the next try of what is failing."""
        pause, until = self._pauses.get(name, (FIRST_PAUSE_SECONDS / 2, 0.0))
        if now < until:
            return False
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        self._pauses[name] = (pause, now + pause * random.uniform(0.8, 1.2))
        return until > 0  # the failure itself was the first try

    def end(self, name: str) -> None:
        """The next failure is a first one again."""
        self._pauses.pop(name, None)
