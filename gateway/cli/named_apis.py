"""APIs named on a command line, for `gateway serve SPEC…` and `gateway add SPEC`.

A definition's path, its URL, an MCP server's URL or a shipped manifest's name becomes a table as
config.toml has it, with credentials as `${VARIABLES}`: served at once, or written down. Its name
comes from the file or the host. A person may reach what they name at a terminal: addresses of this
machine, which are refused otherwise, are allowed where they are named.
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
from gateway.cli.inspect import ANYWHERE, open_discoverer
from gateway.config.connection import HEADER_NAME, NAME_PATTERN, McpConnection
from gateway.config.file import VARIABLE, settings_of
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
    """An API as the command line names it, and its table in config.toml."""

    name: str
    table: dict[str, Any]
    allow: tuple[str, ...]  # addresses that must be allowed for it


@dataclass(frozen=True, slots=True)
class Options:
    """The options for all APIs that one command line names."""

    bearer_env: str | None = None
    headers: Sequence[str] = ()
    base_url: str | None = None

    def table(self, spec: str, kind: str, folder: Path) -> dict[str, Any]:
        """The table of one API; its paths count from `folder`."""
        keys = {"openapi": "spec", "manifest": "manifest", "mcp": "url"}
        is_file = not is_url(spec) and spec not in BUILTIN
        place = _path_from(folder, Path(spec).resolve()) if is_file else spec
        table: dict[str, Any] = {"kind": kind, keys[kind]: place}
        if self.base_url and kind != "openapi":
            raise ConfigInvalid([f"--base-url: {spec} says itself where it is"])
        table |= {"base_url": self.base_url} if self.base_url else {}
        table |= {"headers": dict(map(header_of, self.headers))} if self.headers else {}
        if self.bearer_env:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.bearer_env):
                raise ConfigInvalid(["--bearer-env: must be the name of a variable, not a token"])
            table["auth"] = {"type": "bearer", "token": f"${{{self.bearer_env}}}"}
        return table

    async def read(self, spec: str, settings: Settings, folder: Path, name: str) -> NamedApi:
        """The API of a spec; its address is asked where the text tells no kind."""
        refuse_missing(spec)
        allow = tuple(dict.fromkeys(_local_addresses(spec, self.base_url)))
        kind = kind_by_name(spec)
        if kind is None:
            server = self.table(spec, "mcp", folder)
            kind = await _ask_kind(spec, connection_of(server), settings)
        return NamedApi(name, self.table(spec, kind, folder), allow)


def connection_of(table: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Any:
    """The connection of a table, with its variables replaced."""
    return settings_of({"connections": {"it": table}}, "--", environment).connections["it"]


async def _ask_kind(url: str, server: McpConnection, settings: Settings) -> str:
    """Whether a definition or an MCP server is at an address, by what it answers."""
    rules = {**settings.network.rules, "allow": ANYWHERE}
    async with open_discoverer(settings, rules, Path(), Path()) as (discoverer, _):
        with suppress(GatewayError):
            most, seconds = settings.limits.max_spec_bytes, FETCH_SECONDS
            found = await discoverer.fetcher.fetch(url, None, max_bytes=most, seconds=seconds)
            if _DEFINITION.search(found.raw):
                return "openapi"
        with suppress(GatewayError):
            await discoverer.read_upstream("server", server)
            return "mcp"
    return "openapi"  # the reader of definitions explains problems best


def _path_from(folder: Path, path: Path) -> str:
    text = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)
    if variable := VARIABLE.search(text):
        why = f"{variable[0]} is a variable in config.toml, which could not name this file"
        raise ConfigInvalid([f"{text}: {why}; give it another name"])
    return text


def header_of(text: str) -> tuple[str, str]:
    """The name and value of a header, as `NAME=VALUE` or `NAME: VALUE` says it."""
    name, value = (re.split(r"\s*[=:]\s*", text, maxsplit=1) + [""])[:2]
    if not HEADER_NAME.fullmatch(name) or not value:
        raise ConfigInvalid([f"--header: {name[:40]!r} is not NAME=VALUE"])
    return name, value


def refuse_missing(spec: str) -> None:
    """Raises ConfigInvalid for a file that is not there, with a name that may be meant."""
    path = Path(spec)
    if spec.encode(errors="ignore").decode() != spec:  # config.toml could not name it
        raise ConfigInvalid([f"{ascii(spec)}: the name is not UTF-8; give the file another one"])
    if is_url(spec) or spec in BUILTIN or (path.is_file() and os.access(path, os.R_OK)):
        return
    if path.is_file():
        raise ConfigInvalid([f"{spec}: can't be read: Permission denied"])
    if path.is_dir():
        raise ConfigInvalid([f"{spec}: is a folder; name the definition in it"])
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, [*names, *BUILTIN], n=1)
    suggestion = f"; did you mean {path.with_name(close[0])}?" if close else ""
    raise ConfigInvalid([f"{spec}: there is no such file{suggestion}"])


def without_secrets(spec: str) -> str:
    """The spec without the credentials in its address, since messages end up in logs."""
    return re.sub(r"//[^/?#]*@", "//", spec.split("?")[0]) if is_url(spec) else spec


def kind_by_name(spec: str) -> str | None:
    """The kind of a spec; None: only asking tells whether it is a definition or a server."""
    if not is_url(spec):
        return "manifest" if spec in BUILTIN or spec.endswith(".toml") else "openapi"
    path = urlsplit(spec).path.rstrip("/").lower()
    if path.endswith((".json", ".yaml", ".yml")):
        return "openapi"
    return "mcp" if path.endswith("/mcp") else None


def free_name(spec: str, used: Collection[str]) -> str:
    """A name for the connection: after the file or the host, and not in use yet."""
    words = (_as_name(each) for each in _words_of(spec) if not GENERIC.fullmatch(each))
    name = next((word for word in words if NAME_PATTERN.fullmatch(word)), "api")
    numbers = (f"{name[:29]}_{number}" for number in range(2, len(used) + 3))
    return name if name not in used else next(each for each in numbers if each not in used)


def _words_of(spec: str) -> Iterator[str]:
    """The words that may name an API, the best first."""
    if not is_url(spec):
        path = Path(spec).resolve()
        yield re.sub(r"(\.(openapi|swagger))?\.(json|ya?ml|toml)$", "", path.name)
        yield path.parent.name
        return
    parts = urlsplit(spec)
    segments = [each.split(".")[0] for each in parts.path.split("/") if each]
    yield from segments[-1:]
    if _address_of(spec) is None:
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


def _local_addresses(spec: str, base_url: str | None) -> Iterator[str]:
    """The networks to allow for the addresses that are named, or that a named file calls."""
    urls = [*filter(is_url, (spec, base_url or ""))]
    for url in urls:
        if (address := _address_of(url)) and not address.is_global:
            yield f"{address}/{address.max_prefixlen}"
    if any(map(is_local, urls or (() if spec in BUILTIN else _servers_of(Path(spec))))):
        yield from LOOPBACK


def _servers_of(file: Path) -> Iterator[str]:
    """The addresses that a definition or a manifest calls; none, if the file names no local one."""
    raw, source = file.read_bytes(), Source("named", "openapi", "", "")
    if not _LOCAL.search(raw):  # most don't, and large ones take long to read
        return
    with suppress(GatewayError, RecursionError):  # serving it says what is wrong
        if file.suffix == ".toml":
            raw, source, _ = translate_manifest(raw, source)
        document = open_document(read_definition(raw))
        yield (default := base_url_of(document, source))
        for operation in find_operations(document):
            yield operation_base_url(operation, source, default)
