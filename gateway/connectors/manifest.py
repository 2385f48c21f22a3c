"""Curated providers: the TOML of a manifest becomes an OpenAPI document, and that becomes tools.

A manifest says what a person who knows the provider's API would say: where it is, how to sign in,
what may never be reached, and the operations worth giving to an agent, each with words to choose it
by. Reading is strict: every problem is told at once, with file, key path, what is wrong and what is
allowed. An operation that a manifest calls dangerous is listed, and never exposed.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, ValidationError
from pydantic.alias_generators import to_camel

from gateway.config.connection import RateLimitTable, Table
from gateway.config.file import describe, keys_of
from gateway.errors import ConfigInvalid, DefinitionUnreadable
from gateway.model import (
    ACCESS_OF_METHOD,
    OWN_HEADERS,
    Access,
    Build,
    Override,
    Problem,
    RateLimit,
    Risk,
    Skipped,
    Source,
    Tool,
)
from gateway.naming import VARIABLE, did_you_mean, override_for, unmatched_patterns
from gateway.plain import fits

BUILTIN = ("greenhouse", "lever", "zoho-recruit")
SchemaObject = dict[str, Any]

_ADDRESS = re.compile(r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?(/[^\s{}?#]*)?", re.ASCII)
_RESERVED_HEADERS = OWN_HEADERS | {"authorization", "content-type"}

HttpMethod = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
AuthType = Literal["none", "bearer", "basic", "api-key", "oauth2", "nango"]
SchemaKind = Literal["string", "integer", "number", "boolean", "array", "object"]
Sentence = Annotated[str, Field(min_length=1)]
# Below 2**53, so that no JSON reader has to round.
Number = Annotated[int | float, Field(gt=-(2**53), lt=2**53, allow_inf_nan=False)]
WholeNumber = Annotated[int, Field(ge=0, lt=2**53)]
Path = Annotated[str, Field(pattern=r"^/[^?#\s]*$")]
Problems = Iterator[tuple[str, str]]  # key, and the reason


class Value(Table):
    """The rules for the value of an argument, or of a part of an argument."""

    type: SchemaKind = "string"
    required: bool = False
    description: str = ""
    enum: Annotated[tuple[Any, ...], Field(strict=False)] | None = None
    default: Any = None
    format: str | None = None
    minimum: Number | None = None
    maximum: Number | None = None
    min_length: WholeNumber | None = None
    max_length: WholeNumber | None = None
    min_items: WholeNumber | None = None
    max_items: WholeNumber | None = None
    items: Value | None = None
    properties: dict[str, Value] = Field(default_factory=dict)
    open: bool = False  # an object that may have properties beyond those named

    def problems(self) -> Problems:
        """The keys that do not fit together, each with the reason."""
        if (self.type == "array") != (self.items is not None):
            yield "items", "an array needs `items`, and nothing else may have them"
        if self.type != "object" and (self.properties or self.open):
            yield "properties", f"only an object may have these, not one of type {self.type}"
        if self.enum == ():
            yield "enum", "is empty; name the values, or remove it"
        if self.enum and self.default not in (None, *self.enum):
            yield "default", f"{self.default!r} is not in enum"
        for key, items in (("enum", self.enum or ()), ("default", (self.default,))):
            for item in items:
                if item is not None and not _is_of_type(item, self.type):
                    yield key, f"{item!s} is not of type {self.type}"


def _is_of_type(item: Any, kind: str) -> bool:
    is_exact = not isinstance(item, int | float) or abs(item) < 2**53  # NaN compares false
    return is_exact and fits(item, kind)


class Param(Value):
    """A value outside the body."""

    name: Sentence
    place: Literal["path", "query", "header"] = Field(alias="in", default="query")
    argument: str | None = None  # the name that the agent sees, if not the one on the wire
    explode: bool = False  # an array as name=a&name=b; else name=a,b

    @property
    def agent_name(self) -> str:
        """The name that the agent sees."""
        return self.argument or self.name

    def problems(self) -> Problems:
        yield from super().problems()
        if self.place == "header" and self.name.lower() in _RESERVED_HEADERS:
            yield "name", f"{self.name!r} is not a header a manifest may set"
        if self.place != "query" and self.type in ("array", "object"):
            yield "type", f"only a query parameter may be of type {self.type}"


class EntryBody(Table):
    """An object whose properties are arguments; an open one is a single argument, `body`."""

    media_type: Literal[
        "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
    ] = "application/json"
    properties: dict[str, Value] = Field(default_factory=dict)
    open: bool = False
    required: bool = True

    def problems(self) -> Problems:
        if not self.properties and not self.open:
            yield "properties", "is empty; name the properties, or allow any with open = true"
        if self.open and self.media_type != "application/json":
            yield "open", f"only a JSON body can be open, not {self.media_type}"


class Entry(Table):
    """One operation of the provider."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,127}$")]
    method: HttpMethod
    path: Path
    title: Sentence
    description: Sentence
    access: Access | None = None
    risk: Risk | None = None
    params: Annotated[tuple[Param, ...], Field(strict=False)] = ()
    body: EntryBody | None = None
    returns: str = ""
    paged: bool = False
    requires_on_behalf_of: bool = False
    wrap_in_data: bool = False
    capability: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")] | None = None

    @property
    def effective_access(self) -> Access:
        """The access of this operation: as stated, else as its method says."""
        return self.access or ACCESS_OF_METHOD[self.method]

    @property
    def route(self) -> str:
        """The method and path, which tell the operation apart from the others on the wire."""
        return f"{self.method} {VARIABLE.sub('{}', self.path)}"

    def problems(self) -> Problems:
        if self.body is not None and self.method in ("GET", "HEAD"):
            yield "body", f"{self.method} sends no body; remove it or use another method"
        if self.wrap_in_data and (not self.body or self.body.media_type != "application/json"):
            yield "wrap_in_data", "only a JSON body can be wrapped; add one in [operations.body]"
        variables = VARIABLE.findall(self.path)
        declared = [param.name for param in self.params if param.place == "path"]
        for name in dict.fromkeys(variables):
            if name not in declared:
                yield "path", f"{{{name}}} has no parameter; add one with in = 'path'"
        for name in declared:
            if name not in variables:
                yield "params", f"{name!r} is in the path, but {self.path} has no {{{name}}}"


class ManifestAuth(Table):
    """How a caller signs in to the provider."""

    types: Annotated[tuple[AuthType, ...], Field(strict=False)]
    scheme: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]*$")] | None = None
    hint: str = ""
    sign_in: dict[str, list[str]] = Field(default_factory=dict)  # by region or `default`: two URLs


class Regions(Table):
    """Texts that take the place of `{region}` in the base URL."""

    default: str
    values: dict[str, Sentence]


class OnBehalfOf(Table):
    """Where the provider wants to be told which of its users a write is made for."""

    name: Sentence
    place: Literal["header", "query"] = Field(alias="in")


class Paging(Table):
    """What operations with `paged = true` share: arguments, and a hint on how to go on."""

    hint: str = ""
    params: Annotated[tuple[Param, ...], Field(strict=False)] = ()


class Manifest(Table):
    """One provider."""

    provider: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
    display_name: Sentence
    category: Sentence
    base_url: Sentence
    api_version: Sentence
    documentation: str = ""
    auth: ManifestAuth
    regions: Regions | None = None
    on_behalf_of: OnBehalfOf | None = None
    rate_limit: RateLimitTable | None = None
    blocklist: Annotated[tuple[Path, ...], Field(strict=False)] = ()
    headers: dict[str, str] = Field(default_factory=dict)
    paging: Paging = Paging()
    operations: Annotated[tuple[Entry, ...], Field(strict=False)]

    def address(self, region: str | None) -> str:
        """The base URL for a region, or for the default one."""
        if self.regions is None:
            return self.base_url.rstrip("/")
        piece = self.regions.values.get(region or self.regions.default, "")
        return self.base_url.replace("{region}", piece).rstrip("/")

    def params_of(self, entry: Entry) -> tuple[Param, ...]:
        """An operation's parameters, those it shares with other paged ones included."""
        return (*entry.params, *(self.paging.params if entry.paged else ()))

    def problems(self) -> Problems:
        if self.regions and "{region}" not in self.base_url:
            yield "base_url", "has no {region} for the [regions] table to fill in"
        if self.regions and self.regions.default not in self.regions.values:
            names = ", ".join(self.regions.values)
            yield "regions.default", f"{self.regions.default!r} is not a region; allowed: {names}"
        for region in self.regions.values if self.regions else (None,):
            if not _ADDRESS.fullmatch(address := self.address(region)):
                yield "base_url", f"{address!r} is not an http(s) address of a host"
        if not self.auth.types:
            yield "auth.types", 'is empty; name what one signs in with, or "none"'
        if not self.operations:
            yield "operations", "is empty; a manifest has at least one [[operations]] table"
        for name, value in self.headers.items():
            if not re.fullmatch(r"[A-Za-z0-9-]+", name) or name.lower() in _RESERVED_HEADERS:
                yield "headers", f"{name!r} is not a header a manifest may set"
            if not value.isprintable():
                yield "headers", f"the value of {name!r} holds a character that can't be sent"
        for key in ("id", "capability", "route"):
            for name in _find_repeated(getattr(entry, key) for entry in self.operations):
                yield "operations", f"{name!r} is here more than once; each must be its own"
        for index, entry in enumerate(self.operations):
            where = f"operations.{index}"
            if entry.requires_on_behalf_of and self.on_behalf_of is None:
                words = "needs an [on_behalf_of] table with name and in"
                yield f"{where}.requires_on_behalf_of", words
            for name in _find_repeated(param.agent_name.lower() for param in self.params_of(entry)):
                words = f"{name!r} is here more than once; give one an `argument`"
                yield f"{where}.params", words


def _find_repeated(names: Iterator[str | None]) -> list[str]:
    return [name for name, count in Counter(names).items() if name and count > 1]


def _problems_in(value: Any, where: str = "") -> Iterator[str]:
    """Each problem in a table or below it, with its key path."""
    below: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Table):
        for key, words in getattr(value, "problems", tuple)():
            yield f"{where}{key}: {words}"
        below = value
    elif isinstance(value, dict):
        below = value.items()
    elif isinstance(value, tuple):
        below = enumerate(value)
    for key, inner in below:
        yield from _problems_in(inner, f"{where}{key}.")


# --- reading --------------------------------------------------------------------------------------


def load_builtin(name: str) -> bytes:
    """The text of a manifest that comes with the gateway; raises DefinitionUnreadable."""
    if name not in BUILTIN:
        raise DefinitionUnreadable(
            f"manifest: {name!r} does not come with the gateway{did_you_mean(name, BUILTIN)}",
            f"Use one of {', '.join(BUILTIN)}, or the path of a file.",
        )
    return (files("gateway.connectors") / "manifests" / f"{name}.toml").read_bytes()


def parse_manifest(raw: bytes, name: str) -> Manifest:
    """The manifest in this text; raises ConfigInvalid with every problem, `name` before each."""
    try:
        document = tomllib.loads(raw.decode("utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigInvalid([f"{name}: not valid TOML: {error}"]) from error
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        lines = describe(error, lambda: keys_of(Manifest.model_json_schema()))
        raise ConfigInvalid([f"{name}: {line}" for line in lines]) from error
    if problems := [f"{name}: {problem}" for problem in _problems_in(manifest)]:
        raise ConfigInvalid(problems)
    return manifest


def region_problem(manifest: Manifest, region: str | None) -> str | None:
    """What is wrong with choosing this region, if anything."""
    if region is None or (manifest.regions and region in manifest.regions.values):
        return None
    if manifest.regions is None:
        return f"region: {manifest.display_name} has no regions; remove the key"
    names = tuple(manifest.regions.values)
    suggestion = did_you_mean(region, names)
    return f"region: {region!r} is not allowed{suggestion}; allowed: {', '.join(names)}"


def translate_manifest(
    raw: bytes, source: Source
) -> tuple[bytes, Source, Callable[[Build], Build]]:
    """The OpenAPI document of a provider for one connection; raises DefinitionUnreadable."""
    try:
        manifest = parse_manifest(raw, source.location or source.connection)
    except ConfigInvalid as error:
        raise DefinitionUnreadable(
            "; ".join(error.problems[:5]), "Correct the manifest.", problems=error.problems[:20]
        ) from error
    if problem := region_problem(manifest, source.region):
        raise DefinitionUnreadable(problem, "Correct the connection's region.")
    entries = [entry for entry in manifest.operations if _has_required_user(entry, source)]
    api_source = replace(
        source,
        display_name=source.display_name or manifest.display_name,
        base_url=source.base_url or manifest.address(source.region),
        blocklist=(*manifest.blocklist, *source.blocklist),
        operations={entry.id: _override(source, entry) for entry in entries},
    )
    document = orjson.dumps(_document(manifest, source, entries))
    return document, api_source, partial(_complete_build, manifest, source)


def _complete_build(manifest: Manifest, source: Source, build: Build) -> Build:
    operations = {entry.id: entry for entry in manifest.operations}
    tools = (_curate_tool(manifest, operations[str(tool.operation)], tool) for tool in build.tools)
    without_user = (
        _skip_without_user(manifest, entry, build)
        for entry in manifest.operations
        if not _has_required_user(entry, source)
    )
    limit = manifest.rate_limit
    return replace(
        build,
        format="manifest",
        title=manifest.display_name,
        tools=tuple(tools),
        skipped=(*build.skipped, *without_user),
        problems=tuple(dict.fromkeys((*_problems(manifest, source), *build.problems))),
        blocklist=manifest.blocklist,
        rate_limit=RateLimit(limit.requests, limit.window_seconds) if limit else None,
        auth_scheme=manifest.auth.scheme,
        sign_in_urls=tuple(manifest.auth.sign_in.get(source.region or "default", ())),
    )


def _has_required_user(entry: Entry, source: Source) -> bool:
    return bool(source.on_behalf_of) or not entry.requires_on_behalf_of


def _skip_without_user(manifest: Manifest, entry: Entry, build: Build) -> Skipped:
    reason = f"{manifest.display_name} needs to know for which user: set on_behalf_of"
    place = (entry.id, entry.method, entry.path)
    return Skipped(*place, reason, entry.effective_access, base_url=build.base_url)


def _override(source: Source, entry: Entry) -> Override:
    """The access and risk of an operation: the connection's, else the manifest's."""
    configured = override_for(source.operations, entry.id)
    if entry.effective_access == "dangerous":
        return replace(configured, access="dangerous")
    if configured.access is not None:
        return configured
    return replace(configured, access=entry.effective_access, risk=configured.risk or entry.risk)


def _curate_tool(manifest: Manifest, entry: Entry, tool: Tool) -> Tool:
    """The tool with the details that only a manifest gives."""
    http = tool.http
    if entry.wrap_in_data and http is not None and http.body is not None:
        http = replace(http, body=replace(http.body, wrap="data"))
    security = " ".join((*manifest.auth.types, manifest.auth.scheme or "")).strip()
    return replace(tool, http=http, capability=entry.capability, security=security)


def _problems(manifest: Manifest, source: Source) -> Iterator[Problem]:
    if source.auth_type not in manifest.auth.types:
        allowed = ", ".join(manifest.auth.types)
        hint = f" ({manifest.auth.hint})" if manifest.auth.hint else ""
        words = f"{manifest.display_name} takes {allowed}{hint}, not {source.auth_type}"
        yield Problem("warning", "auth.type", words, configured=True)
    yield from unmatched_patterns(source, [entry.id for entry in manifest.operations])


# --- the OpenAPI document -------------------------------------------------------------------------


def _document(manifest: Manifest, source: Source, entries: Sequence[Entry]) -> SchemaObject:
    paths: dict[str, SchemaObject] = {}
    for entry in entries:
        paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(manifest, source, entry)
    info = {"title": manifest.display_name, "version": manifest.api_version}
    return {"openapi": "3.0.3", "info": info, "paths": paths}


def _operation(manifest: Manifest, source: Source, entry: Entry) -> SchemaObject:
    operation: SchemaObject = {
        "operationId": entry.id,
        "summary": entry.title,
        "description": _operation_text(manifest, entry),
        "tags": [manifest.provider, manifest.category],
        "parameters": [
            *(_parameter(param) for param in manifest.params_of(entry)),
            *_constants(manifest, entry, source),
        ],
        "responses": {},
    }
    if (body := entry.body) is not None:
        operation["requestBody"] = {
            "required": body.required,
            "content": {body.media_type: {"schema": _object(body)}},
            "x-gateway-whole": body.open,
        }
    return operation


def _operation_text(manifest: Manifest, entry: Entry) -> str:
    """The description, then what the operation returns, then how to get the next page."""
    returns = f"Returns {entry.returns.rstrip('.')}." if entry.returns else ""
    paging = manifest.paging.hint if entry.paged else ""
    return " ".join(part for part in (entry.description, returns, paging) if part)


def _parameter(param: Param) -> SchemaObject:
    return {
        "name": param.name,
        "in": param.place,
        "required": param.required or param.place == "path",
        "explode": param.explode,
        "schema": _schema(param),
        "x-gateway-argument": param.agent_name,
    }


def _constants(manifest: Manifest, entry: Entry, source: Source) -> Iterator[SchemaObject]:
    """The values that the agent doesn't see: fixed headers, and the user a write is made for."""
    fixed = [(name, "header", value) for name, value in manifest.headers.items()]
    if entry.requires_on_behalf_of and (behalf := manifest.on_behalf_of) is not None:
        fixed.append((behalf.name, behalf.place, source.on_behalf_of or ""))
    for name, place, value in fixed:
        schema = {"type": "string", "default": value}
        yield {"name": name, "in": place, "schema": schema, "x-ms-visibility": "internal"}


_KEYS = "description enum default format minimum maximum min_length max_length min_items max_items"
_KEYWORDS = {key: to_camel(key) for key in _KEYS.split()}


def _schema(value: Value) -> SchemaObject:
    pairs = ((keyword, getattr(value, key)) for key, keyword in _KEYWORDS.items())
    schema = {keyword: setting for keyword, setting in pairs if setting not in (None, "")}
    if value.items is not None:
        schema["items"] = _schema(value.items)
    return {"type": value.type, **schema, **(_object(value) if value.type == "object" else {})}


def _object(value: Value | EntryBody) -> SchemaObject:
    properties = value.properties
    return {
        "type": "object",
        "properties": {name: _schema(inner) for name, inner in properties.items()},
        "required": [name for name, inner in properties.items() if inner.required],
        "additionalProperties": value.open or not properties,
    }
