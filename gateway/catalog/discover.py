"""From a connection's settings to its tools: the slow part, with all the waiting in it.

One function a kind. Each gives a `Found`: the definition's bytes, and the tools that were built
from them, off the event loop. Where neither the bytes nor anything that shapes the tools has
changed, what was built before is used again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import orjson

from gateway import __version__
from gateway.azure.directory import AzureDirectory
from gateway.catalog.definitions import (
    Asker,
    Exchange,
    Fetcher,
    is_built_in,
    is_url,
    location_of,
)
from gateway.catalog.snapshot import (
    Found,
    Owner,
    RawDefinition,
    clash_problems,
    prefix_of,
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
from gateway.connectors.mcp import build_upstream
from gateway.errors import Fixable, GatewayError
from gateway.limits import BUILD_SECONDS, DEFINITION_SECONDS
from gateway.model import (
    BUILD_CODEC_VERSION,
    NO_TLS_FILES,
    Build,
    Override,
    Problem,
    Source,
    Wrap,
    digest,
)
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
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a connection: what it is, what it may take, what was found before."""

    name: str
    settings: Connection
    limits: Limits
    known: Found | None = None
    planned: bool = False  # it is only previewed: Azure may not have it yet
    since: float | None = None  # how old may be what was fetched for several connections

    @property
    def held(self) -> RawDefinition | None:
        return self.known.definition if self.known else None

    def key(self, definition: RawDefinition) -> str:
        """Names what a build is made from: the same key, the same tools, on every replica."""
        version = f"{__version__}/{BUILD_CODEC_VERSION}".encode()
        source = _encode(source_of(self.name, self.settings, self.limits, definition.location))
        return digest(b"\0".join((version, definition.sha256.encode(), source)))


@dataclass(frozen=True, slots=True)
class Discoverer:
    """What discovery needs from outside: the ways to read, to build and to ask an MCP server."""

    fetcher: Fetcher
    workers: Workers
    read_upstream: Callable[[str, McpConnection], Awaitable[Listing]]
    check_address: Callable[[str], Awaitable[None]]
    azure: AzureDirectory
    prove: Prove

    async def discover(self, look: Look) -> Found:
        """What a connection offers now; the very object `known` where nothing changed."""
        settings, held, session = look.settings, look.held, None
        if isinstance(settings, OpenApiConnection):
            return await self._discover_openapi(look, settings)
        if isinstance(settings, McpConnection):
            said, session = await self.read_upstream(look.name, settings)
            definition = RawDefinition.of(location_of(settings), orjson.dumps(said))
        elif isinstance(settings, ManifestConnection):
            definition = await self._read_manifest(settings.manifest, look)
        else:
            assert isinstance(settings, ArmConnection)
            bounds = look.limits.max_spec_bytes, look.planned, look.since
            raw = await self.azure.definition(look.name, settings, *bounds)
            definition = RawDefinition.of(location_of(settings), raw)
        is_known = held is not None and held.is_same(definition)
        found = await self.rebuild(look, held if held and is_known else definition)
        return found if found.session == session else replace(found, session=session)

    async def _discover_openapi(self, look: Look, settings: OpenApiConnection) -> Found:
        asker = self._asker(look, settings, look.known)
        found = await self._read_openapi(look, settings, asker)
        better = self._asker(look, settings, found)
        if asker is None or better is None or better.proof == asker.proof:
            return found
        # Only now the definition has said where it wants a key.
        return await self._read_openapi(replace(look, known=found), settings, better)

    async def _read_openapi(
        self, look: Look, settings: OpenApiConnection, asker: Asker | None
    ) -> Found:
        held = look.held
        definition = await self.fetcher.fetch(
            settings.spec,
            held if held and held.location == location_of(settings) else None,
            max_bytes=look.limits.max_spec_bytes,
            seconds=settings.timeout_seconds or DEFINITION_SECONDS,
            asker=asker,
            tls=settings.tls_files if _at_home(settings) else NO_TLS_FILES,
        )
        found = await self.rebuild(look, definition)
        return _noted(found, led_on=asker is not None and definition.asked_with is None)

    def _asker(self, look: Look, settings: OpenApiConnection, known: Found | None) -> Asker | None:
        """The connection itself, where the definition lies on the API's own host; else nobody."""
        if not _at_home(settings) or (settings.auth.type == "none" and not settings.headers):
            return None
        who = PREVIEWED if look.planned else look.name
        return Asker(*self.prove(who, settings, known.build if known else None))

    async def _read_manifest(self, manifest: str, look: Look) -> RawDefinition:
        if is_built_in(manifest):
            return RawDefinition.of(manifest, load_builtin(manifest))
        most = look.limits.max_spec_bytes
        return await self.fetcher.fetch(manifest, look.held, max_bytes=most)

    async def rebuild(self, look: Look, definition: RawDefinition) -> Found:
        """The tools of a definition that is at hand: no network."""
        key, known = look.key(definition), look.known
        if known is not None and known.build_key == key:
            same = known.definition == definition
            return known if same else replace(known, definition=definition)
        source = source_of(look.name, look.settings, look.limits, definition.location)
        if source.kind == "mcp":
            build = _build_listing(definition.raw, source)
        else:
            build = await self.workers.build(definition.packed, source, deadline=BUILD_SECONDS)
        return Found(build, definition, key)

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
            each.shown() for each in (*build.problems, *clash_problems(clashes), *problems)
        ],
        "tokens": sum(tool.tokens for tool in exposed),
    }


# What a connector is told as it is written, of those kinds of connection that have it.
_AS_WRITTEN = (
    *("kind", "include", "exclude", "blocklist", "trust", "base_url", "idempotency_header"),
    *("region", "on_behalf_of", "tools", "exclude_tools"),
)


def source_of(name: str, settings: Connection, limits: Limits, location: str) -> Source:
    """What a connector is told of a connection, none of it secret."""
    auth, rules = settings.auth, settings.wrap if isinstance(settings, McpConnection) else ()
    operations = settings.operations.items()
    return Source(
        connection=name,
        display_name=settings.display_name or "",
        prefix=prefix_of(name, settings),
        location=location,
        inject=tuple(sorted(settings.inject)),
        operations={key: Override(**override.model_dump()) for key, override in operations},
        auth_type=auth.type,
        auth_name=getattr(auth, "name", None),
        auth_in=getattr(auth, "place", None),
        headers=tuple(sorted(settings.headers)),
        max_description_chars=limits.max_description_chars,
        carries_secrets=bool(
            auth.type != "none" or settings.headers or settings.inject or settings.tls.cert_file
        ),
        wraps=tuple(Wrap(**{**dict(rule), "inject": tuple(sorted(rule.inject))}) for rule in rules),
        **{key: getattr(settings, key) for key in _AS_WRITTEN if hasattr(settings, key)},
    )


def _build_listing(raw: bytes, source: Source) -> Build:
    said = orjson.loads(raw)
    build = build_upstream(said["tools"], source)
    return replace(build, instructions=visible(said.get("instructions", "")).strip())


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
