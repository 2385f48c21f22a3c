"""The shape of a manifest: a curated provider written down as TOML.

A manifest says what a person who knows the provider's API would say: where it is, how one signs in,
what may never be reached, and the operations worth giving to an agent, each with words to choose it
by. The models here are strict and frozen; `inconsistencies` finds what no single table can see,
such as a path variable that nobody declares.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from gateway.config.connection import RateLimitTable, Table
from gateway.limits import MANIFEST_DEPTH
from gateway.model import ACCESS_OF_METHOD, OWN_HEADERS, Access, Risk

ARGUMENT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
VARIABLE = re.compile(r"\{([^{}]*)\}")
_NOT_SET = OWN_HEADERS | {"authorization", "content-type"}  # headers

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
AuthType = Literal["none", "bearer", "basic", "api-key", "oauth2", "nango"]
Kind = Literal["string", "integer", "number", "boolean", "array", "object"]
Words = Annotated[str, Field(min_length=1)]
# Below 2**53, so that no JSON reader has to round.
Number = Annotated[float, Field(gt=-(2**53), lt=2**53, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]

PROVIDER = r"^[a-z][a-z0-9-]{0,31}$"
OPERATION_ID = r"^[A-Za-z][A-Za-z0-9_.-]{0,127}$"
CAPABILITY = r"^[a-z][a-z0-9_]{0,39}$"
PATH = r"^/[^?#\s]*$"
SCHEME = r"^[A-Za-z][A-Za-z0-9-]*$"


class Value(Table):
    """What may go into one argument, or into a part of one."""

    type: Kind = "string"
    required: bool = False
    description: str = ""
    enum: Annotated[tuple[Any, ...], Field(strict=False)] | None = None
    default: Any = None
    format: str | None = None
    minimum: Number | None = None
    maximum: Number | None = None
    min_length: Count | None = None
    max_length: Count | None = None
    min_items: Count | None = None
    max_items: Count | None = None
    items: Value | None = None
    properties: dict[str, Value] = Field(default_factory=dict)
    open: bool = False  # an object that may have properties beyond those named


class Param(Value):
    """A value outside the body."""

    name: Words
    place: Literal["path", "query", "header"] = Field(alias="in", default="query")
    argument: str | None = None  # what the agent sees, where the name on the wire does not suit
    explode: bool = False  # an array as name=a&name=b; else name=a,b


class EntryBody(Table):
    """An object whose properties are arguments; an open one is a single argument, `body`."""

    media_type: Literal[
        "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
    ] = "application/json"
    properties: dict[str, Value] = Field(default_factory=dict)
    open: bool = False
    required: bool = True


class Entry(Table):
    """One thing the provider can do."""

    id: Annotated[str, Field(pattern=OPERATION_ID)]
    method: Method
    path: Annotated[str, Field(pattern=PATH)]
    title: Words
    description: Words
    access: Access | None = None
    risk: Risk | None = None
    params: Annotated[tuple[Param, ...], Field(strict=False)] = ()
    body: EntryBody | None = None
    returns: str = ""
    paged: bool = False
    requires_on_behalf_of: bool = False
    wrap_in_data: bool = False
    capability: Annotated[str, Field(pattern=CAPABILITY)] | None = None

    @property
    def effective_access(self) -> Access:
        """What this operation does: as stated, else as its method says."""
        return self.access or ACCESS_OF_METHOD[self.method]


class Auth(Table):
    """How one signs in there."""

    types: Annotated[tuple[AuthType, ...], Field(strict=False)]
    scheme: Annotated[str, Field(pattern=SCHEME)] | None = None
    hint: str = ""


class Regions(Table):
    """Texts that take the place of `{region}` in the base URL."""

    default: str
    values: dict[str, Words]


class OnBehalfOf(Table):
    """Where the provider wants to be told which of its users a write is made for."""

    name: Words
    place: Literal["header", "query"] = Field(alias="in")


class Paging(Table):
    """What operations with `paged = true` share: arguments, and words on how to go on."""

    hint: str = ""
    params: Annotated[tuple[Param, ...], Field(strict=False)] = ()


class Manifest(Table):
    """One provider."""

    provider: Annotated[str, Field(pattern=PROVIDER)]
    display_name: Words
    category: Words
    base_url: Words
    api_version: Words
    documentation: str = ""
    auth: Auth
    regions: Regions | None = None
    on_behalf_of: OnBehalfOf | None = None
    rate_limit: RateLimitTable | None = None
    blocklist: Annotated[tuple[Annotated[str, Field(pattern=PATH)], ...], Field(strict=False)] = ()
    headers: dict[str, str] = Field(default_factory=dict)
    paging: Paging = Paging()
    operations: Annotated[tuple[Entry, ...], Field(strict=False)]

    @field_validator("headers")
    @classmethod
    def _headers_can_be_sent(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not re.fullmatch(r"[A-Za-z0-9-]+", name) or name.lower() in _NOT_SET:
                raise ValueError(f"{name!r} is not a header a manifest may set")
            if not value.isprintable():
                raise ValueError(f"the value of {name!r} holds a character that can't be sent")
        return headers


def base_url(manifest: Manifest, region: str | None) -> str:
    """The address for a region, or for the default one; KeyError where there is no such region."""
    if manifest.regions is None:
        if region is not None:
            raise KeyError(region)
        return manifest.base_url.rstrip("/")
    piece = manifest.regions.values[region or manifest.regions.default]
    return manifest.base_url.replace("{region}", piece).rstrip("/")


def params_of(manifest: Manifest, operation: Entry) -> tuple[Param, ...]:
    """An operation's parameters, those it shares with other paged ones included."""
    return (*operation.params, *(manifest.paging.params if operation.paged else ()))


def inconsistencies(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """What does not fit together, as (key path, what is wrong and what to do)."""
    yield from _address(manifest)
    if not manifest.auth.types:
        yield "auth.types", 'is empty; name what one signs in with, or "none"'
    if not manifest.operations:
        yield "operations", "is empty; a manifest has at least one [[operations]] table"
    for key in ("id", "capability"):
        yield from _twins(manifest, key)
    routes = Counter((o.method, VARIABLE.sub("{}", o.path)) for o in manifest.operations)
    for where, operation in _numbered(manifest):
        if routes[operation.method, VARIABLE.sub("{}", operation.path)] > 1:
            yield f"{where}.path", f"{operation.method} {operation.path} is here more than once"
        yield from _operation(manifest, where, operation)
    for index, param in enumerate(manifest.paging.params):
        yield from _value(f"paging.params.{index}", param)


def _numbered(manifest: Manifest) -> Iterator[tuple[str, Entry]]:
    for index, operation in enumerate(manifest.operations):
        yield f"operations.{index} ({operation.id})", operation


def _address(manifest: Manifest) -> Iterator[tuple[str, str]]:
    regions = manifest.regions
    if regions is None:
        if "{region}" in manifest.base_url:
            yield "base_url", "holds {region}, but there is no [regions] table"
        elif not _is_http(manifest.base_url):
            yield "base_url", f"{manifest.base_url!r} is not an http(s) address of a host"
        return
    if "{region}" not in manifest.base_url:
        yield "base_url", "has no {region} for the [regions] table to fill in"
    if regions.default not in regions.values:
        known = ", ".join(regions.values)
        yield "regions.default", f"{regions.default!r} is not a region; allowed: {known}"
    for name, piece in regions.values.items():
        address = manifest.base_url.replace("{region}", piece)
        if not _is_http(address):
            yield f"regions.values.{name}", f"makes {address!r}, not an http(s) address of a host"


def _is_http(address: str) -> bool:
    try:
        parts = urlsplit(address)
        clean = not (
            parts.query or parts.fragment or parts.username or re.search(r"[\s{}]", address)
        )
        return parts.scheme in ("http", "https") and bool(parts.hostname) and clean
    except ValueError:
        return False


def _twins(manifest: Manifest, key: Literal["id", "capability"]) -> Iterator[tuple[str, str]]:
    counted = Counter(getattr(o, key) for o in manifest.operations)
    for where, operation in _numbered(manifest):
        value = getattr(operation, key)
        if value is not None and counted[value] > 1:
            yield f"{where}.{key}", f"{value!r} is here more than once; each must be its own"


def _operation(manifest: Manifest, where: str, o: Entry) -> Iterator[tuple[str, str]]:
    if o.body is not None and o.method in ("GET", "HEAD"):
        yield f"{where}.body", f"{o.method} sends no body; remove it or use another method"
    if o.wrap_in_data and o.body is None:
        yield f"{where}.wrap_in_data", "there is no body to wrap; add [operations.body]"
    if o.wrap_in_data and o.body is not None and o.body.media_type != "application/json":
        yield f"{where}.wrap_in_data", f"only JSON can be wrapped, not {o.body.media_type}"
    if o.requires_on_behalf_of and manifest.on_behalf_of is None:
        yield f"{where}.requires_on_behalf_of", "needs an [on_behalf_of] table with name and in"
    yield from _path(where, o)
    yield from _arguments(where, params_of(manifest, o))
    for index, param in enumerate(o.params):
        yield from _value(f"{where}.params.{index} ({param.name})", param)
    if o.body is not None:
        yield from _body(f"{where}.body", o.body)


def _path(where: str, operation: Entry) -> Iterator[tuple[str, str]]:
    wanted = VARIABLE.findall(operation.path)
    declared = [p.name for p in operation.params if p.place == "path"]
    for name in dict.fromkeys(wanted):
        if name not in declared:
            yield f"{where}.path", f"{{{name}}} has no parameter; add one with in = 'path'"
    for name in declared:
        if name not in wanted:
            yield (
                f"{where}.params",
                f"{name!r} is in the path, but {operation.path} has no {{{name}}}",
            )


def _arguments(where: str, params: tuple[Param, ...]) -> Iterator[tuple[str, str]]:
    names = Counter((p.argument or p.name).lower() for p in params)
    for name, count in names.items():
        if count > 1:
            yield f"{where}.params", f"{name!r} is here more than once; give one an `argument`"
    for param in params:
        name = param.argument or param.name
        if not ARGUMENT.fullmatch(name):
            yield (
                f"{where}.params",
                f"{name!r} can't be an argument; give it an `argument` of letters, digits, _ . -",
            )
        if param.place == "header" and param.name.lower() in _NOT_SET:
            yield f"{where}.params", f"{param.name!r} is not a header a manifest may set"
        if param.place != "query" and param.type in ("array", "object"):
            kind = _article(param.type)
            yield f"{where}.params", f"{param.name!r}: only a query parameter may be {kind}"


def _body(where: str, body: EntryBody) -> Iterator[tuple[str, str]]:
    if not body.properties and not body.open:
        yield f"{where}.properties", "is empty; name the properties, or allow any with open = true"
    if body.open and body.media_type != "application/json":
        yield f"{where}.open", f"only a JSON body can be open, not {body.media_type}"
    for name, value in body.properties.items():
        if not body.open and not ARGUMENT.fullmatch(name):
            yield f"{where}.properties.{name}", "can't be an argument: only letters, digits, _ . -"
        yield from _value(f"{where}.properties.{name}", value)


def _value(where: str, value: Value, depth: int = 1) -> Iterator[tuple[str, str]]:
    if depth > MANIFEST_DEPTH:
        yield where, f"is nested deeper than {MANIFEST_DEPTH} levels"
        return
    if (value.type == "array") != (value.items is not None):
        yield f"{where}.items", "an array needs `items`, and nothing else may have them"
    if value.type != "object" and (value.properties or value.open):
        yield f"{where}.properties", f"only an object may have these, not a {value.type}"
    for key, given in (("enum", value.enum or ()), ("default", _given(value.default))):
        for item in given:
            if not _fits(item, value):
                yield f"{where}.{key}", f"{_shown(item)} is not {_article(value.type)}"
    if value.enum == ():
        yield f"{where}.enum", "is empty; name the values, or remove it"
    if value.enum and value.default is not None and value.default not in value.enum:
        yield f"{where}.default", f"{_shown(value.default)} is not in enum"
    if value.items is not None:
        yield from _value(f"{where}.items", value.items, depth + 1)
    for name, inner in value.properties.items():
        yield from _value(f"{where}.properties.{name}", inner, depth + 1)


def _shown(item: object) -> str:
    return repr(item) if isinstance(item, str) else str(item)


def _given(default: Any) -> tuple[Any, ...]:
    return () if default is None else (default,)


_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def _fits(item: object, value: Value) -> bool:
    if isinstance(item, bool):
        return value.type == "boolean"
    if isinstance(item, int | float) and not abs(item) < 2**53:  # NaN compares false
        return False
    return isinstance(item, _PYTHON_TYPES[value.type])


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aio' else 'a'} {kind}"
