"""From a connection's settings to its tools: the slow part, with all the waiting in it.

One function a kind. Each gives a `Found`: the definition's bytes, and the tools that were built
from them, off the event loop. Where neither the bytes nor anything that shapes the tools has
changed, what was built before is used again.

What a discovery means for a connection: new tools, what changed, what is held. Pure.

A refresh that brings nothing usable is a failure, not an empty connection; only an MCP server that
answers and lists no tools has none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

import orjson

from gateway.azure.directory import AzureDirectory
from gateway.catalog.changes import (
    Difference,
    asks_other_credential,
    compare,
    held,
    served,
    with_credentials_of,
)
from gateway.catalog.definitions import (
    Asker,
    Definition,
    Exchange,
    Fetcher,
    build_key,
    is_built_in,
    is_url,
    location_of,
    same_bytes,
    source_of,
)
from gateway.catalog.snapshot import (
    ConnectionState,
    Owner,
    clash_problems,
    with_tools,
    without_clashes,
)
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
from gateway.errors import DefinitionUnreadable, Fixable, GatewayError
from gateway.limits import DEFINITION_SECONDS
from gateway.model import NO_TLS_FILES, Build, Problem, Source, digest
from gateway.outbound.addresses import locate
from gateway.outbound.client import Answer, Request
from gateway.text import visible
from gateway.upstream.registry import Listed
from gateway.upstream.session import Sharing

BUILD_SECONDS = 20.0
# A reader is held to its CPU, and a busy machine may take its time: this is for one that hangs.
SOON_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Found:
    """A definition and the tools that were made of it."""

    definition: Definition
    build: Build
    build_key: str
    at: float = 0.0  # when it was stored: tells a newer one that another process found
    session: Sharing | None = None  # of an MCP server that was asked just now


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


class Builder(Protocol):
    """The worker processes, as far as discovery needs them."""

    async def build(self, packed: bytes, source: Source, *, deadline: float) -> Build: ...


@dataclass(frozen=True, slots=True)
class Discoverer:
    """What discovery needs from outside: the ways to read, to build and to ask an MCP server."""

    fetcher: Fetcher
    workers: Builder
    read_upstream: Callable[[str, McpConnection], Awaitable[Listed]]
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
        *,
        soon: bool = False,
        since: float | None = None,
    ) -> Found:
        """What this connection offers now; the very object `known` where nothing changed.

        With `planned`, what one would offer that Azure does not have yet; `soon`, for somebody
        who waits for it; `since`, how old may be what was fetched for several connections.
        """
        if isinstance(settings, McpConnection):
            return await self._discover_upstream(name, settings, limits, known)
        seconds = SOON_SECONDS if soon else BUILD_SECONDS
        if isinstance(settings, OpenApiConnection):
            who = PREVIEWED if planned else name
            return await self._discover_openapi(name, settings, limits, known, who, seconds)
        definition = await self._read(name, settings, limits, known, planned, since)
        return await self.rebuild(name, settings, limits, definition, known, seconds)

    async def _discover_openapi(
        self,
        name: str,
        settings: OpenApiConnection,
        limits: Limits,
        known: Found | None,
        who: str,
        seconds: float,
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
            found = await self.rebuild(name, settings, limits, definition, known, seconds)
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
        held = known.definition if known else None
        definition = _as_definition(location_of(settings), said, held)
        found = await self.rebuild(name, settings, limits, definition, known)
        return found if found.session == session else replace(found, session=session)

    async def rebuild(
        self,
        name: str,
        settings: Connection,
        limits: Limits,
        definition: Definition,
        known: Found | None,
        seconds: float = BUILD_SECONDS,
    ) -> Found:
        """The tools of a definition that is at hand: no network."""
        source = _source(name, settings, limits, definition)
        key = _key(definition, source, settings)
        if known is not None and known.build_key == key:
            return (
                known if known.definition == definition else replace(known, definition=definition)
            )
        if isinstance(settings, McpConnection):
            build = _build_listing(definition.raw, source, settings)
        else:
            build = await self.workers.build(definition.packed, source, deadline=seconds)
        return Found(definition, build, key)

    def key_of(
        self, name: str, settings: Connection, limits: Limits, definition: Definition
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

    async def _read(
        self,
        name: str,
        settings: Connection,
        limits: Limits,
        known: Found | None,
        planned: bool,
        since: float | None,
    ) -> Definition:
        held = known.definition if known else None
        if isinstance(settings, ManifestConnection):
            return await self._read_manifest(settings, limits, held)
        assert isinstance(settings, ArmConnection)
        raw = await self.azure.definition(
            name, settings, max_bytes=limits.max_spec_bytes, planned=planned, since=since
        )
        definition = Definition.of(settings.resource_id or "", raw)
        return held if held and same_bytes(held, definition) else definition

    async def _read_manifest(
        self, settings: ManifestConnection, limits: Limits, held: Definition | None
    ) -> Definition:
        location = settings.manifest
        if is_built_in(location):
            return Definition.of(location, load_builtin(location))
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
    tools = [
        {
            "name": tool.name,
            "operation": tool.operation,
            "method": tool.method,
            "path": tool.path,
            "access": tool.access,
            "risk": tool.risk,
            "title": tool.title,
            "description": tool.description,
            "input_schema": orjson.loads(tool.input_schema),
            "tokens": tool.tokens,
        }
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
            {
                "operation": skipped.operation,
                "method": skipped.method,
                "path": skipped.path,
                "reason": skipped.reason,
            }
            for skipped in (*build.skipped, *clashes)
        ],
        "problems": [
            problem_dict(each) for each in (*build.problems, *clash_problems(clashes), *problems)
        ],
        "tokens": sum(tool.tokens for tool in exposed),
    }


def problem_dict(problem: Problem) -> dict[str, str]:
    """A problem as every edge shows it."""
    return {"severity": problem.severity, "where": problem.where, "message": problem.message}


def _key(definition: Definition, source: Source, settings: Connection) -> str:
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


def _source(name: str, settings: Connection, limits: Limits, definition: Definition) -> Source:
    return source_of(
        name,
        settings,
        location=definition.location,
        max_description_chars=limits.max_description_chars,
    )


def _as_definition(location: str, said: dict[str, Any], held: Definition | None) -> Definition:
    raw = orjson.dumps(said)
    same = held is not None and held.sha256 == digest(raw)
    return held if held and same else Definition.of(location, raw)


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


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one connection in a put or a refresh."""

    name: str
    status: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    error: str | None = None
    revision: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The entry of `refresh_tools`' answer."""
        entry: dict[str, Any] = {
            "name": self.name,
            "status": self.status,
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": list(self.changed),
            "held": list(self.held),
        }
        return entry | ({"error": self.error} if self.error else {})


@dataclass(frozen=True, slots=True)
class Adoption:
    """A connection after a discovery, and how it got there."""

    state: ConnectionState
    found: Found  # with the tools that are served, held ones as they were
    changes: tuple[Difference, ...]
    waiting: tuple[Difference, ...]
    first: bool  # there was nothing to compare with
    at: float


def adopt(state: ConnectionState, found: Found, now: float) -> Adoption:
    """The connection with what was found; changes its settings hold back are left out."""
    if state.tools and not found.build.tools and found.build.format != "mcp":
        raise DefinitionUnreadable(
            "the definition has no usable operation left",
            "The tools served so far are kept; `gateway inspect` says why each was skipped.",
        )
    first = state.build is None
    changes = compare(state.build.tools if state.build else (), found.build.tools)
    waiting = [] if first else held(changes, state.settings.held)
    build = replace(found.build, tools=tuple(served(found.build.tools, waiting)))
    if state.build is not None and any(asks_other_credential(change) for change in waiting):
        build = with_credentials_of(build, state.build)
    after = replace(state, build=build, status=build.status, problems=build.problems)
    if not state.settings.enabled or state.settings.access == "disabled":
        after = replace(after, status="disabled")
    return Adoption(
        with_tools(after, build.tools),
        replace(found, build=build, at=now),
        tuple(changes),
        tuple(waiting),
        first,
        now,
    )


def with_last_good(base: ConnectionState, old: ConnectionState | None) -> ConnectionState:
    """The new settings with the tools served so far, until theirs are known."""
    if old is None or base.status == "disabled" or old.build is None:
        return base
    return with_tools(replace(base, build=old.build), old.tools)


def failed(state: ConnectionState, error: GatewayError) -> ConnectionState:
    """The connection after a failed refresh: as it was, with a problem that says so."""
    kept = state.build.problems if state.build else ()
    problem = Problem("error", "definition", error.message)
    return replace(state, status="failing", problems=(*kept, problem))


def light(found: Found) -> Found:
    """The same without the definition's bytes: they are in the store."""
    return replace(found, definition=replace(found.definition, packed=b""))


def report_of(adoption: Adoption, revision: int, exposed: Collection[str] | None = None) -> Report:
    """What to tell the one who asked; of what is new, only what is exposed."""
    waiting = {change.operation for change in adoption.waiting}
    names: dict[str, list[str]] = {"added": [], "removed": [], "changed": [], "held": []}
    for change in adoption.changes:
        kind = "held" if change.operation in waiting else change.kind
        if exposed is None or kind not in ("added", "changed") or change.tool in exposed:
            names[kind].append(change.tool)
    state = adoption.state
    return Report(
        state.name,
        state.status,
        tuple(names["added"]),
        tuple(names["removed"]),
        tuple(names["changed"]),
        tuple(names["held"]),
        revision=revision,
    )
