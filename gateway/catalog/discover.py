"""Makes tools from a connection's settings: the slow part, with all the waiting in it.

Each kind of connection has its way to a definition, from which tools are built off the event loop.
Where neither the bytes nor anything that shapes the tools has changed, the build from before is
used again.

A URL is asked with the validators of the copy we have, so that an unchanged definition costs one
small exchange. A fetched definition stays in memory for a while (preview, then put, downloads
once), bounded in bytes and in number; the store keeps the copy that survives a restart. A caller
may hold a copy without its bytes: such a copy is never given to another connection.

A connection asks with its own headers and credentials. They are for the address it names and end at
a redirect; and since a server may show each caller another definition under one validator, a copy's
validators are sent only with the credentials that it was fetched with.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import orjson
from cachetools import TTLCache

from gateway import __version__
from gateway.azure.directory import AzureDirectory
from gateway.catalog.connections import CheckAddress, origin, refusals, without_refused
from gateway.catalog.snapshot import prefix_of
from gateway.config.connection import (
    ArmConnection,
    Connection,
    ManifestConnection,
    McpConnection,
    NangoAuth,
    OAuth2Auth,
    OpenApiConnection,
    without_secrets,
)
from gateway.config.settings import Cache, Limits
from gateway.connectors.manifest import load_builtin
from gateway.connectors.mcp import build_upstream
from gateway.errors import DefinitionUnreadable, Fixable, GatewayError, Refused, UpstreamFailed
from gateway.limits import DEFINITION_CACHE_BYTES, DEFINITION_REDIRECTS, DEFINITION_SECONDS
from gateway.model import (
    BUILD_CODEC_VERSION,
    NO_TLS_FILES,
    Build,
    BuiltDefinition,
    Override,
    Problem,
    RawDefinition,
    Source,
    TlsFiles,
    Wrap,
    digest,
    pack,
)
from gateway.naming import visible
from gateway.outbound.client import Answer, Egress, Request, locate
from gateway.upstream.session import Listing
from gateway.workers import Workers

ACCEPT = "application/json, application/yaml;q=0.9, text/yaml;q=0.9, */*;q=0.5"
REDIRECTS = frozenset((301, 302, 303, 307, 308))
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
SendRequest = Callable[[Request], Awaitable[Answer]]
# A connection's credentials, and the function that sends a request with them.
Prove = Callable[
    [str, Connection, Build | None],
    tuple[object, Callable[[Request, SendRequest], Awaitable[Answer]]],
]
PREVIEWED = "[preview]"  # the name that a preview's tokens belong to: no connection can have it
REDIRECTED = Problem(
    "warning",
    "definition",
    "the definition's address redirects, so it was fetched without the connection's credentials; "
    "give the address it leads to",
)
UNKNOWN_YET = {"tools": [], "instructions": "", "unauthenticated": True}
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a connection: its settings, its limits, and what was found before."""

    name: str
    settings: Connection
    limits: Limits
    previous: BuiltDefinition | None = None
    is_preview: bool = False  # Azure may not have the connection yet
    served: Build | None = None  # its tools by now: those with short names keep them
    since: float | None = None  # how old an answer fetched for several connections may be

    @property
    def previous_definition(self) -> RawDefinition | None:
        return self.previous.definition if self.previous else None

    @property
    def short_names(self) -> dict[str, str]:
        """The short names that its tools have by now, by method and path."""
        tools = self.served.tools if self.served and self.served.names == "short" else ()
        return {f"{tool.method} {tool.path}": tool.local_name for tool in tools}

    def key(self, definition: RawDefinition) -> str:
        """A digest of all that shapes a build beside the network: the same on every replica."""
        version = f"{__version__}/{BUILD_CODEC_VERSION}".encode()
        source = _encode(source_of(self.name, self.settings, self.limits, definition.location))
        return digest(b"\0".join((version, definition.sha256.encode(), source)))


@dataclass(frozen=True, slots=True)
class Discoverer:
    """Discovers what connections offer, with ways to read, to build and to ask an MCP server."""

    fetcher: Fetcher
    workers: Workers
    read_upstream: Callable[[str, McpConnection], Awaitable[Listing]]
    check_address: CheckAddress
    azure: AzureDirectory
    prove: Prove

    async def discover(self, look: Look) -> BuiltDefinition:
        """The definition built as it is now; the very object `look.previous` if nothing changed."""
        refused = look.previous.build.refused if look.previous else ()
        if len(await refusals(self.check_address, refused)) < len(refused):
            look = replace(look, previous=None)  # an operation can be called that could not be
        settings, previous, session = look.settings, look.previous_definition, None
        if isinstance(settings, OpenApiConnection):
            return await self._discover_openapi(look, settings)
        if isinstance(settings, McpConnection):
            try:
                listing, session = await self.read_upstream(look.name, settings)
            except UpstreamFailed as error:
                if error.code != "sign_in_required":
                    raise
                if look.previous is not None:
                    return look.previous  # the next sign-in may list other tools
                listing, session = UNKNOWN_YET, "principal"
            raw = without_secrets(orjson.dumps(listing).decode(), settings).encode()
            definition = RawDefinition.of(location_of(settings), raw)
        elif isinstance(settings, ManifestConnection):
            definition = await self._read_manifest(settings.manifest, look)
        else:
            assert isinstance(settings, ArmConnection)
            bounds = look.limits.max_spec_bytes, look.is_preview, look.since
            raw = await self.azure.definition(look.name, settings, *bounds)
            definition = RawDefinition.of(location_of(settings), raw)
        is_same = previous is not None and previous.is_same(definition)
        found = await self.rebuild(look, previous if previous and is_same else definition)
        return found if found.session == session else replace(found, session=session)

    async def _discover_openapi(self, look: Look, settings: OpenApiConnection) -> BuiltDefinition:
        asker = self._asker(look, settings, look.previous)
        found = await self._read_openapi(look, settings, asker)
        second = self._asker(look, settings, found)
        if asker is None or second is None or second.proof == asker.proof:
            return found
        # The definition says where it wants the key, which the first request could not know.
        return await self._read_openapi(replace(look, previous=found), settings, second)

    async def _read_openapi(
        self, look: Look, settings: OpenApiConnection, asker: Asker | None
    ) -> BuiltDefinition:
        previous = look.previous_definition
        definition = await self.fetcher.fetch(
            settings.spec,
            previous if previous and previous.location == location_of(settings) else None,
            max_bytes=look.limits.max_spec_bytes,
            seconds=settings.timeout_seconds or DEFINITION_SECONDS,
            asker=asker,
            tls=settings.tls if _is_on_api_host(settings) else NO_TLS_FILES,
        )
        found = await self.rebuild(look, definition)
        return _mark_redirect(found, warn=asker is not None and definition.asked_with is None)

    def _asker(
        self, look: Look, settings: OpenApiConnection, found: BuiltDefinition | None
    ) -> Asker | None:
        """The connection itself, where the definition lies on the API's own host; else None."""
        if not _is_on_api_host(settings) or (settings.auth.type == "none" and not settings.headers):
            return None
        name = PREVIEWED if look.is_preview else look.name
        return Asker(*self.prove(name, settings, found.build if found else None))

    async def _read_manifest(self, manifest: str, look: Look) -> RawDefinition:
        if is_built_in(manifest):
            return RawDefinition.of(manifest, load_builtin(manifest))
        max_bytes = look.limits.max_spec_bytes
        return await self.fetcher.fetch(manifest, look.previous_definition, max_bytes=max_bytes)

    async def rebuild(self, look: Look, definition: RawDefinition) -> BuiltDefinition:
        """The tools of a definition that is at hand: only their servers' names are looked up."""
        key, previous = look.key(definition), look.previous
        if previous is not None and previous.build_key == key:
            is_same = previous.definition == definition
            return previous if is_same else replace(previous, definition=definition)
        source = source_of(look.name, look.settings, look.limits, definition.location)
        if source.kind == "mcp":
            build = await asyncio.to_thread(_build_listing, definition.raw, source)
        else:
            source = replace(source, given=look.short_names)
            build = await self.workers.build(definition.packed, source)
        return BuiltDefinition(await without_refused(self.check_address, build), definition, key)

    async def check_addresses(self, settings: Connection, build: Build) -> None:
        """Refuses a connection whose own calls or tokens would go to a forbidden address."""
        configured = _configured_addresses(settings)
        targets = {origin(build.base_url), *configured} - {""}
        for target, error in (await refusals(self.check_address, sorted(targets))).items():
            if isinstance(error, Refused) or target in configured:
                raise Fixable("connection_invalid", error.message, error.hint) from error


def _is_on_api_host(settings: OpenApiConnection) -> bool:
    """Whether the definition lies on the API's own host, which may see the credentials."""
    base_url, spec = settings.base_url, settings.spec
    return is_url(spec) and (not base_url or locate(base_url).origin() == locate(spec).origin())


def _mark_redirect(found: BuiltDefinition, *, warn: bool) -> BuiltDefinition:
    """With the warning where the definition was fetched without credentials, else without it."""
    build = found.build
    if (REDIRECTED in build.problems) == warn:
        return found
    rest = tuple(problem for problem in build.problems if problem != REDIRECTED)
    return replace(found, build=replace(build, problems=(REDIRECTED, *rest) if warn else rest))


# Settings that a connector gets as they are written, if the kind of connection has them.
_AS_WRITTEN = (
    *("kind", "include", "exclude", "blocklist", "trust", "base_url", "idempotency_header"),
    *("region", "on_behalf_of", "tools", "exclude_tools"),
)


def source_of(name: str, settings: Connection, limits: Limits, location: str) -> Source:
    """The settings of a connection that its connector gets, none of them secret."""
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
        names=settings.names or "short",
        max_description_chars=limits.max_description_chars,
        carries_secrets=bool(
            auth.type != "none" or settings.headers or settings.inject or settings.tls.cert_file
        ),
        wraps=tuple(Wrap(**{**dict(rule), "inject": tuple(sorted(rule.inject))}) for rule in rules),
        **{key: getattr(settings, key) for key in _AS_WRITTEN if hasattr(settings, key)},
    )


def _build_listing(raw: bytes, source: Source) -> Build:
    listing = orjson.loads(raw)
    build = build_upstream(listing["tools"], source)
    if listing.get("unauthenticated"):
        words = "its tools are learned when somebody signs in for the first time"
        problems = (Problem("warning", "auth", words),)
        return replace(build, status="unauthenticated", problems=problems)
    return replace(build, instructions=visible(listing.get("instructions", "")).strip())


def _configured_addresses(settings: Connection) -> set[str]:
    """The addresses that the settings themselves name, as they are spelled there."""
    addresses = {settings.base_url or ""} if isinstance(settings, OpenApiConnection) else set()
    if isinstance(settings.auth, OAuth2Auth):
        addresses |= {settings.auth.token_url or "", settings.auth.authorize_url or ""}
    if isinstance(settings.auth, NangoAuth):
        addresses.add(settings.auth.url)
    return addresses


# --- fetching ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asker:
    """A connection that asks for its definition with its own headers and credentials."""

    proof: object = field(repr=False)  # the credentials it sends
    send: Callable[[Request, SendRequest], Awaitable[Answer]]


class Fetcher:
    """Reads definitions, and remembers them for a while."""

    def __init__(self, egress: Egress, folder: Path, cache: Cache | None = None) -> None:
        self._egress = egress
        self._folder = folder
        self.reset_cache(cache or Cache())

    def reset_cache(self, cache: Cache) -> None:
        """Starts an empty memory of definitions, with the bounds that the settings give."""
        self._max_entries = cache.max_entries
        self._memory: TTLCache[str, RawDefinition] = TTLCache(
            DEFINITION_CACHE_BYTES,
            cache.schema_ttl_seconds,
            getsizeof=lambda definition: len(definition.packed),
        )

    async def fetch(
        self,
        location: str,
        previous: RawDefinition | None,
        *,
        max_bytes: int,
        seconds: float = DEFINITION_SECONDS,
        asker: Asker | None = None,
        tls: TlsFiles = NO_TLS_FILES,
    ) -> RawDefinition:
        """The definition as it is now; the very object `previous` where nothing changed."""
        if is_inline(location):
            return await _definition(location, location.encode(), max_bytes, previous)
        if not is_url(location):
            raw = await asyncio.to_thread(_read, self._folder, location, max_bytes)
            return await _definition(location, raw, max_bytes, previous)
        copy = previous or self._memory.get(public_location(location))
        send = partial(self._egress.send, deadline=seconds, max_bytes=max_bytes, tls=tls)
        try:
            answer, proof = await _ask(location, copy, asker, send)
        except GatewayError as error:
            raise DefinitionUnreadable(
                f"the definition can't be fetched: {error.message}", error.hint
            ) from error
        if answer.status != 304 or copy is None:
            copy = await _read_answer(answer, location, copy, max_bytes, _hint(asker, proof))
            copy = replace(copy, asked_with=proof)
        self._add_to_memory(copy)
        return copy

    def _add_to_memory(self, definition: RawDefinition) -> None:
        if not 0 < len(definition.packed) <= DEFINITION_CACHE_BYTES:
            return
        self._memory[definition.location] = definition
        while len(self._memory) > self._max_entries:
            self._memory.popitem()


async def _read_answer(
    answer: Answer, location: str, previous: RawDefinition | None, max_bytes: int, hint: str
) -> RawDefinition:
    """The definition in an answer; `hint`: what to do where the server refuses us."""
    if answer.status != 200:
        public = "Open the address in a browser: it must answer 200 with the definition itself."
        raise DefinitionUnreadable(
            f"the definition can't be fetched: the server answered {answer.status}",
            hint if answer.status in (401, 403) else public,
        )
    if answer.truncated:
        raise _too_large(max_bytes)
    definition = await _definition(location, answer.body, max_bytes, previous)
    etag, last_modified = answer.header("etag"), answer.header("last-modified")
    return replace(definition, etag=etag, last_modified=last_modified)


async def _ask(
    location: str,
    previous: RawDefinition | None,
    asker: Asker | None,
    send: Callable[..., Awaitable[Answer]],
) -> tuple[Answer, object]:
    """The answer, and the credentials sent for it: None after a redirect."""
    if asker is not None:
        answer = await asker.send(_request(location, previous, asker.proof), send)
        if answer.status not in REDIRECTS:
            return answer, asker.proof
    # From the start: a redirect's address may hold the credentials that were sent.
    request = _request(location, previous, None)
    return await send(request, same_host_redirects=DEFINITION_REDIRECTS), None


def _request(location: str, previous: RawDefinition | None, proof: object) -> Request:
    """The request for a definition, with the validators of a copy that has the same proof."""
    headers = [("Accept", ACCEPT)]
    if previous is not None and previous.asked_with == proof:
        pairs = [("If-None-Match", previous.etag), ("If-Modified-Since", previous.last_modified)]
        headers += [(name, value) for name, value in pairs if value]
    return Request("GET", location, tuple(headers))


def _hint(asker: Asker | None, proof: object) -> str:
    if asker is None:
        return "Give the connection auth; it is sent there unless base_url is on another host."
    if proof is None:
        return "Credentials are not sent across a redirect: give the address it leads to."
    return "The server does not accept the connection's auth and headers."


def public_location(location: str) -> str:
    """A location as it is stored and shown: a query or a user may be a secret."""
    if is_inline(location):
        return f"inline:{digest(location.encode())}"
    parts = urlsplit(location) if is_url(location) else None
    if parts is None or not (parts.query or "@" in parts.netloc):
        return location
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}?{digest(location.encode())}"


def is_inline(location: str) -> bool:
    """Whether this is a definition's own text rather than its location."""
    return "\n" in location or location.lstrip()[:1] == "{"


def is_url(location: str) -> bool:
    """Whether this is an address rather than a path."""
    return _URL.match(location) is not None


def _read(folder: Path, location: str, max_bytes: int) -> bytes:
    path = folder / location
    try:
        if not path.is_file():
            raise OSError(None, "there is no such file")
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except OSError as error:
        raise DefinitionUnreadable(
            f"the file {location} can't be read: {error.strerror or error}",
            "Relative paths count from the folder of config.toml.",
        ) from error


async def _definition(
    location: str, raw: bytes, max_bytes: int, previous: RawDefinition | None
) -> RawDefinition:
    """The definition in these bytes; an equal one is reused, since packing costs the most."""
    if len(raw) > max_bytes:
        raise _too_large(max_bytes)
    place, sha256 = public_location(location), await asyncio.to_thread(digest, raw)
    if previous is not None and (previous.location, previous.sha256) == (place, sha256):
        return previous
    return RawDefinition(place, await asyncio.to_thread(pack, raw), sha256)


def _too_large(max_bytes: int) -> DefinitionUnreadable:
    return DefinitionUnreadable(
        f"the definition is larger than {max_bytes} bytes", "Raise limits.max_spec_bytes."
    )


def location_of(settings: Connection) -> str:
    """The place a definition comes from; at another place, a cached copy is useless."""
    if isinstance(settings, OpenApiConnection):
        return public_location(settings.spec)
    if isinstance(settings, ManifestConnection):
        return public_location(settings.manifest)
    if isinstance(settings, McpConnection):
        args = digest("\0".join(settings.args).encode())
        return public_location(settings.url) if settings.url else f"{settings.command} {args}"
    return settings.resource_id or "" if isinstance(settings, ArmConnection) else ""


def file_of(settings: Connection) -> str | None:
    """The path of the file that a connection's definition is read from, where there is one."""
    if isinstance(settings, OpenApiConnection):
        path = settings.spec
    elif isinstance(settings, ManifestConnection) and not is_built_in(settings.manifest):
        path = settings.manifest
    else:
        return None
    return None if is_inline(path) or is_url(path) else path


def is_built_in(manifest: str) -> bool:
    """Whether this names a manifest that comes with the gateway, rather than a file."""
    return "/" not in manifest and not manifest.endswith(".toml")


def is_local(settings: Connection) -> bool:
    """Whether a connection's definition is read without a network."""
    return settings.kind in ("openapi", "manifest") and not is_url(location_of(settings))
