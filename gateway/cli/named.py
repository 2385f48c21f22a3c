"""APIs named on a command line, for `gateway serve SPEC…` and `gateway add SPEC`.

A definition's path, its URL, an MCP server's URL or a shipped manifest's name becomes a table as
config.toml has it, with credentials as `${VARIABLES}`: served at once, or written down. Its name
comes from the file or the host. What a person names at a terminal is theirs to reach: addresses of
this machine, which are refused otherwise, are allowed where they are named.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.catalog.discover import is_url
from gateway.cli.inspect import ANYWHERE, reading
from gateway.config.connection import HEADER_NAME, NAME_PATTERN, McpConnection
from gateway.config.reading import VARIABLE, settings_of
from gateway.config.settings import Settings
from gateway.connectors.manifest import BUILTIN, translate_manifest
from gateway.errors import ConfigInvalid, GatewayError
from gateway.limits import FETCH_SECONDS
from gateway.model import Source
from gateway.openapi.document import find_operations, open_document, read_definition
from gateway.openapi.operations import base_url_of, operation_base_url

# Words that say nothing of an API: of files, folders and hosts.
GENERIC = re.compile(
    r"(open)?api(s|-?docs?|definition)?|swagger|specs?|schemas?|definitions?|docs?|index|rest|mcp"
    r"|v?\d+|www|raw|main|master|src|tmp|home|root|users|downloads|desktop|documents|com|org|net|io"
    r"|localhost|json|yaml|yml|public|static|well-known|",
    re.IGNORECASE,
)
LOOPBACK = ("127.0.0.1/32", "::1/128")
_LOCAL = re.compile(rb"localhost|127\.|::1", re.IGNORECASE)
_DEFINITION = re.compile(rb"""\b(?:openapi|swagger)["']?\s*:""")


@dataclass(frozen=True, slots=True)
class NamedApi:
    """One API as it was named, and the table that config.toml has for it."""

    what: str
    name: str
    table: dict[str, Any]
    allow: tuple[str, ...]  # addresses that must be allowed for it


@dataclass(frozen=True, slots=True)
class Options:
    """What is said of all APIs that are named together."""

    bearer_env: str | None = None
    headers: Sequence[str] = ()
    base_url: str | None = None

    def table(self, what: str, kind: str, folder: Path) -> dict[str, Any]:
        """The table of one API; its paths count from `folder`."""
        keys = {"openapi": "spec", "manifest": "manifest", "mcp": "url"}
        is_file = not is_url(what) and what not in BUILTIN
        place = _seen_from(folder, Path(what).resolve()) if is_file else what
        table: dict[str, Any] = {"kind": kind, keys[kind]: place}
        if self.base_url and kind != "openapi":
            raise ConfigInvalid([f"--base-url: {what} says itself where it is"])
        table |= {"base_url": self.base_url} if self.base_url else {}
        table |= {"headers": dict(map(header_of, self.headers))} if self.headers else {}
        if self.bearer_env:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.bearer_env):
                raise ConfigInvalid(["--bearer-env: must be the name of a variable, not a token"])
            table["auth"] = {"type": "bearer", "token": f"${{{self.bearer_env}}}"}
        return table

    async def read(self, what: str, settings: Settings, folder: Path, name: str) -> NamedApi:
        """One API by the name it is given; an address is asked where it alone tells no kind."""
        refuse_missing(what)
        allow = tuple(dict.fromkeys(_local_addresses(what, self.base_url)))
        kind = kind_by_name(what)
        if kind is None:
            server = self.table(what, "mcp", folder)
            kind = await _ask_kind(what, connection_of(server), settings)
        return NamedApi(what, name, self.table(what, kind, folder), allow)


def connection_of(table: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Any:
    """The connection of a table, with what variables stand for."""
    return settings_of({"connections": {"it": table}}, "--", environment).connections["it"]


async def _ask_kind(url: str, server: McpConnection, settings: Settings) -> str:
    """Whether a definition or an MCP server is at an address, by what it answers."""
    rules = {**settings.network.rules, "allow": ANYWHERE}
    async with reading(settings, rules, Path(), Path()) as (discoverer, _):
        with suppress(GatewayError):
            most, seconds = settings.limits.max_spec_bytes, FETCH_SECONDS
            found = await discoverer.fetcher.fetch(url, None, max_bytes=most, seconds=seconds)
            if _DEFINITION.search(found.raw):
                return "openapi"
        with suppress(GatewayError):
            await discoverer.read_upstream("server", server)
            return "mcp"
    return "openapi"  # whose reader says best what is wrong


def _seen_from(folder: Path, path: Path) -> str:
    text = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
    if found := VARIABLE.search(text):
        why = f"{found[0]} is a variable in config.toml, which could not name this file"
        raise ConfigInvalid([f"{text}: {why}; give it another name"])
    return text


def header_of(text: str) -> tuple[str, str]:
    """The name and value of a header, as `NAME=VALUE` or `NAME: VALUE` says it."""
    name, value = (re.split(r"\s*[=:]\s*", text, maxsplit=1) + [""])[:2]
    if not HEADER_NAME.fullmatch(name) or not value:
        raise ConfigInvalid([f"--header: {name[:40]!r} is not NAME=VALUE"])
    return name, value


def refuse_missing(what: str) -> None:
    """Raises ConfigInvalid for a file that is not there, with the one that may be meant."""
    path = Path(what)
    if what.encode(errors="ignore").decode() != what:  # config.toml could not name it
        raise ConfigInvalid([f"{ascii(what)}: the name is not UTF-8; give the file another one"])
    if is_url(what) or what in BUILTIN or (path.is_file() and os.access(path, os.R_OK)):
        return
    if path.is_file():
        raise ConfigInvalid([f"{what}: can't be read: Permission denied"])
    if path.is_dir():
        raise ConfigInvalid([f"{what}: is a folder; name the definition in it"])
    others = os.listdir(path.parent) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, [*others, *BUILTIN], n=1)
    meant = f"; did you mean {path.with_name(close[0])}?" if close else ""
    raise ConfigInvalid([f"{what}: there is no such file{meant}"])


def without_secrets(what: str) -> str:
    """What was named, without what may prove who asks: what is said here ends up in logs."""
    return re.sub(r"//[^/?#]*@", "//", what.split("?")[0]) if is_url(what) else what


def kind_by_name(what: str) -> str | None:
    """The kind of what is named; None: only asking tells whether it is a definition or a server."""
    if not is_url(what):
        return "manifest" if what in BUILTIN or what.endswith(".toml") else "openapi"
    path = urlsplit(what).path.rstrip("/").lower()
    if path.endswith((".json", ".yaml", ".yml")):
        return "openapi"
    return "mcp" if path.endswith("/mcp") else None


def free_name(what: str, taken: Collection[str]) -> str:
    """A name for the connection: what the file or the host is called, and no other one has."""
    words = (_as_name(each) for each in _words_of(what) if not GENERIC.fullmatch(each))
    name = next((word for word in words if NAME_PATTERN.fullmatch(word)), "api")
    numbers = (f"{name[:29]}_{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(each for each in numbers if each not in taken)


def _words_of(what: str) -> Iterator[str]:
    """The words that may name an API, the best first."""
    if not is_url(what):
        path = Path(what).resolve()
        yield re.sub(r"(\.(openapi|swagger))?\.(json|ya?ml|toml)$", "", path.name)
        yield path.parent.name
        return
    parts = urlsplit(what)
    segments = [each.split(".")[0] for each in parts.path.split("/") if each]
    yield from segments[-1:]
    if _address_of(what) is None:
        yield from (parts.hostname or "").split(".")
    yield from reversed(segments[:-1])


def _as_name(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", word.lower()).lstrip("_0123456789")[:32].rstrip("_")


def _address_of(url: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(urlsplit(url).hostname or "")
    return None


def is_local(url: str) -> bool:
    """Whether an address is this machine's own."""
    address = _address_of(url)
    return address.is_loopback if address else urlsplit(url).hostname == "localhost"


def _local_addresses(what: str, base_url: str | None) -> Iterator[str]:
    """The networks to allow for the addresses that are named, or that a named file calls."""
    named = [*filter(is_url, (what, base_url or ""))]
    for url in named:
        if (address := _address_of(url)) and not address.is_global:
            yield f"{address}/{address.max_prefixlen}"
    if any(map(is_local, named or (() if what in BUILTIN else _servers_of(Path(what))))):
        yield from LOOPBACK


def _servers_of(file: Path) -> Iterator[str]:
    """Where calls go by what a definition or a manifest says; none where it names no local one."""
    raw, source = file.read_bytes(), Source("named", "openapi", "", "")
    if not _LOCAL.search(raw):  # most don't, and large ones take long to read
        return
    with suppress(GatewayError, RecursionError):  # serving it says what is wrong
        if file.suffix == ".toml":
            raw, source, _ = translate_manifest(raw, source)
        document = open_document(read_definition(raw))
        yield (default := base_url_of(document, source))
        for operation in find_operations(document):
            yield operation_base_url(document, operation, source, default)
