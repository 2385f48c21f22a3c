"""Where a definition comes from: a URL, a file, or the text itself.

A URL is asked with the validators of the copy we have, so that an unchanged definition costs one
small exchange. What was fetched is remembered in memory for a while (preview, then put, downloads
once), bounded in bytes and in number; the store keeps the copy that survives a restart. One who
asks again may have let go of the bytes: such a copy is never what another connection is given.

A connection asks with its own headers and credentials. They are for the address it names and end at
a redirect; and since a server may show each caller another definition under one validator, a copy
counts as known only to the credentials it was fetched with.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from cachetools import TTLCache

from gateway.catalog.snapshot import RawDefinition
from gateway.config.connection import (
    ArmConnection,
    Connection,
    ManifestConnection,
    McpConnection,
    OpenApiConnection,
)
from gateway.config.settings import Cache
from gateway.errors import DefinitionUnreadable, GatewayError
from gateway.limits import DEFINITION_CACHE_BYTES, DEFINITION_REDIRECTS, DEFINITION_SECONDS
from gateway.model import NO_TLS_FILES, TlsFiles, digest, pack
from gateway.outbound.client import Answer, Egress, Request

ACCEPT = "application/json, application/yaml;q=0.9, text/yaml;q=0.9, */*;q=0.5"
REDIRECTS = frozenset((301, 302, 303, 307, 308))
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

Exchange = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Asker:
    """A connection that asks for its definition with its own headers and credentials."""

    proof: object = field(repr=False)  # what it proves itself with
    send: Callable[[Request, Exchange], Awaitable[Answer]]


class Fetcher:
    """Reads definitions, and remembers for a while what it read."""

    def __init__(self, egress: Egress, folder: Path, cache: Cache | None = None) -> None:
        self._egress = egress
        self._folder = folder
        self.remember(cache or Cache())

    def remember(self, cache: Cache) -> None:
        """Remembers definitions as the settings say, from now on."""
        self._max_entries = cache.max_entries
        self._memory: TTLCache[str, RawDefinition] = TTLCache(
            DEFINITION_CACHE_BYTES,
            cache.schema_ttl_seconds,
            getsizeof=lambda definition: len(definition.packed),
        )

    async def fetch(
        self,
        location: str,
        known: RawDefinition | None,
        *,
        max_bytes: int,
        seconds: float = DEFINITION_SECONDS,
        asker: Asker | None = None,
        tls: TlsFiles = NO_TLS_FILES,
    ) -> RawDefinition:
        """The definition as it is now; the very object `known` where nothing changed."""
        if is_inline(location):
            return await _definition(location, location.encode(), max_bytes, known)
        if not is_url(location):
            raw = await asyncio.to_thread(_read, self._folder, location, max_bytes)
            return await _definition(location, raw, max_bytes, known)
        known = known or self._memory.get(place_of(location))
        send = partial(self._egress.send, deadline=seconds, max_bytes=max_bytes, tls=tls)
        try:
            answer, proof = await _ask(location, known, asker, send)
        except GatewayError as error:
            raise DefinitionUnreadable(
                f"the definition can't be fetched: {error.message}", error.hint
            ) from error
        if answer.status != 304 or known is None:
            known = await _answered(answer, location, known, max_bytes, _hint(asker, proof))
            known = replace(known, asked_with=proof)
        self._remember(known)
        return known

    def _remember(self, definition: RawDefinition) -> None:
        if not 0 < len(definition.packed) <= DEFINITION_CACHE_BYTES:
            return
        self._memory[definition.location] = definition
        while len(self._memory) > self._max_entries:
            self._memory.popitem()


async def _answered(
    answer: Answer, location: str, known: RawDefinition | None, max_bytes: int, hint: str
) -> RawDefinition:
    """The definition in an answer; `hint`: what to do where we are not let in."""
    if answer.status != 200:
        public = "Open the address in a browser: it must answer 200 with the definition itself."
        raise DefinitionUnreadable(
            f"the definition can't be fetched: the server answered {answer.status}",
            hint if answer.status in (401, 403) else public,
        )
    if answer.truncated:
        raise _too_large(max_bytes)
    definition = await _definition(location, answer.body, max_bytes, known)
    etag, last_modified = answer.header("etag"), answer.header("last-modified")
    return replace(definition, etag=etag, last_modified=last_modified)


async def _ask(
    location: str,
    known: RawDefinition | None,
    asker: Asker | None,
    send: Callable[..., Awaitable[Answer]],
) -> tuple[Answer, object]:
    """The answer, and the proof it was given to: none after a redirect, which nobody is led by."""
    if asker is not None:
        answer = await asker.send(_request(location, known, asker.proof), send)
        if answer.status not in REDIRECTS:
            return answer, asker.proof
    # From the start: a redirect's address may hold what was sent.
    request = _request(location, known, None)
    return await send(request, same_host_redirects=DEFINITION_REDIRECTS), None


def _request(location: str, known: RawDefinition | None, proof: object) -> Request:
    """The question for a definition, with the validators of a copy that has the same proof."""
    headers = [("Accept", ACCEPT)]
    if known is not None and known.asked_with == proof:
        pairs = [("If-None-Match", known.etag), ("If-Modified-Since", known.last_modified)]
        headers += [(name, value) for name, value in pairs if value]
    return Request("GET", location, tuple(headers))


def _hint(asker: Asker | None, proof: object) -> str:
    if asker is None:
        return "Give the connection auth; it is sent there unless base_url is on another host."
    if proof is None:
        return "Credentials are not sent across a redirect: give the address it leads to."
    return "The server does not accept the connection's auth and headers."


def place_of(location: str) -> str:
    """What a location is known by and stored as: a query or a user may be a secret."""
    if is_inline(location):
        return f"inline:{digest(location.encode())}"
    parts = urlsplit(location) if is_url(location) else None
    if parts is None or not (parts.query or "@" in parts.netloc):
        return location
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}?{digest(location.encode())}"


def is_inline(location: str) -> bool:
    """Whether this is a definition's own text rather than the place where it is."""
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
    location: str, raw: bytes, max_bytes: int, known: RawDefinition | None
) -> RawDefinition:
    """The definition that these bytes are; packing one again would cost more than all the rest."""
    if len(raw) > max_bytes:
        raise _too_large(max_bytes)
    place, sha256 = place_of(location), await asyncio.to_thread(digest, raw)
    if known is not None and (known.location, known.sha256) == (place, sha256):
        return known
    return RawDefinition(place, await asyncio.to_thread(pack, raw), sha256)


def _too_large(max_bytes: int) -> DefinitionUnreadable:
    return DefinitionUnreadable(
        f"the definition is larger than {max_bytes} bytes", "Raise limits.max_spec_bytes."
    )


def location_of(settings: Connection) -> str:
    """Names where a connection's definition comes from: another one makes a cached copy useless."""
    if isinstance(settings, OpenApiConnection):
        return place_of(settings.spec)
    if isinstance(settings, ManifestConnection):
        return place_of(settings.manifest)
    if isinstance(settings, McpConnection):
        args = digest("\0".join(settings.args).encode())
        return place_of(settings.url) if settings.url else f"{settings.command} {args}"
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
