"""What an operation takes and gives, in one plain form for Swagger 2.0, OpenAPI 3.0 and 3.1.

Everything version-specific about where things stand ends here: parameters come out merged and
resolved as `Input`, bodies as `Content` by media type, form fields of 2.0 as an object schema.
Schemas stay as they are written; `schema` translates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gateway.connectors.openapi.document import (
    Document,
    Made,
    Operation,
    Unusable,
    mapping,
    resolved,
    sequence,
    spend,
    spend_on,
    text_of,
)
from gateway.model import OWN_HEADERS, Place, Style

MAX_INPUTS = 1_000  # parameters of one operation
MAX_NAME = 500  # of a parameter on the wire
_MAX_MEDIA_TYPES = 30
_MAX_MEDIA_TYPE = 200  # characters

_EMPTY: Mapping[str, Any] = {}
_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})  # says OpenAPI 3
# What a request has anyway is spelled in one way, so that a parameter can take its place.
_SPELLED = {"accept": "Accept", "content-type": "Content-Type"}
_PLACES: Mapping[str, Place] = {
    "path": "path",
    "query": "query",
    "header": "header",
    "cookie": "cookie",
}
_STYLES: Mapping[str, Style] = {
    "form": "form",
    "simple": "simple",
    "label": "label",
    "matrix": "matrix",
    "spaceDelimited": "spaceDelimited",
    "pipeDelimited": "pipeDelimited",
    "deepObject": "deepObject",
}
_COLLECTION_STYLES: Mapping[str, Style] = {
    "ssv": "spaceDelimited",
    "tsv": "tabDelimited",
    "pipes": "pipeDelimited",
}
# What a 2.0 parameter says of itself rather than of its values.
_NOT_SCHEMA = frozenset({"name", "in", "required", "collectionFormat", "allowEmptyValue", "schema"})


@dataclass(frozen=True, slots=True)
class Input:
    """A parameter outside the body."""

    name: str
    place: Place
    required: bool
    schema: Any
    raw: Mapping[str, Any]
    style: Style
    explode: bool
    reserved: bool = False
    media_type: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """A body in one media type."""

    media_type: str
    schema: Any
    encoding: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The body an operation takes, in each media type it may have."""

    contents: tuple[Content, ...]
    required: bool | None  # None: the definition does not say
    raw: Mapping[str, Any]


def parameters(document: Document, operation: Operation) -> tuple[Mapping[str, Any], ...]:
    """The operation's parameters over its path's, each resolved, bodies and forms included."""
    merged: dict[tuple[str, str], Mapping[str, Any]] = {}
    for written in (operation.item.get("parameters"), operation.raw.get("parameters")):
        for entry in sequence(written):
            parameter = resolved(document, entry)
            name, place = parameter.get("name"), parameter.get("in")
            if not isinstance(name, str) or not isinstance(place, str) or len(name) > MAX_NAME:
                raise Unusable("a parameter has no name or no place")
            merged[name, place] = parameter
            if len(merged) > MAX_INPUTS:
                raise Unusable(f"it has more than {MAX_INPUTS:,} parameters")
    spend_on(document, len(merged))
    return tuple(merged.values())


def inputs(document: Document, listed: Sequence[Mapping[str, Any]]) -> tuple[Input, ...]:
    """The parameters that are not part of the body."""
    return tuple(
        _input(document, raw, _PLACES[raw["in"]])
        for raw in listed
        if raw["in"] in _PLACES and not (raw["in"] == "header" and _is_ours(document, raw, listed))
    )


def _is_ours(
    document: Document, raw: Mapping[str, Any], listed: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the request has this header anyway, and nobody else's would be sent."""
    name = raw["name"].strip().lower()
    if name in OWN_HEADERS or not document.swagger:
        return name in OWN_HEADERS or name in _IGNORED_HEADERS
    return name == "content-type" and any(each["in"] == "formData" for each in listed)


def _input(document: Document, raw: Mapping[str, Any], place: Place) -> Input:
    required = place == "path" or raw.get("required") is True
    name = (
        _SPELLED.get(raw["name"].strip().lower(), raw["name"]) if place == "header" else raw["name"]
    )
    if document.swagger:
        style, explode = _collection_style(raw, place)
        return Input(name, place, required, _own_schema(raw), raw, style, explode)
    media_type, schema = _parameter_schema(raw)
    style = _STYLES.get(str(raw.get("style")), "form" if place in ("query", "cookie") else "simple")
    explode = raw["explode"] if isinstance(raw.get("explode"), bool) else style == "form"
    return Input(
        name,
        place,
        required,
        schema,
        raw,
        style,
        explode,
        reserved=place == "query" and raw.get("allowReserved") is True,
        media_type=media_type,
    )


def _parameter_schema(raw: Mapping[str, Any]) -> tuple[str | None, Any]:
    for media_type, content in _media_entries(raw):
        return media_type, mapping(content).get("schema", {})
    return None, raw.get("schema", {})


def _own_schema(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A 2.0 parameter describes its values beside its name (a few use `schema` all the same)."""
    own = {key: value for key, value in raw.items() if key not in _NOT_SCHEMA}
    return Made({**mapping(raw.get("schema")), **own} if "schema" in raw else own)


def _collection_style(raw: Mapping[str, Any], place: str) -> tuple[Style, bool]:
    collection = str(raw.get("collectionFormat", "csv"))
    plain: Style = "form" if place in ("query", "formData", "cookie") else "simple"
    return _COLLECTION_STYLES.get(collection, plain), collection == "multi"


# --- bodies ---------------------------------------------------------------------------------------


def request_body(
    document: Document, operation: Operation, listed: Sequence[Mapping[str, Any]]
) -> RequestBody | None:
    """The body the operation takes, if any."""
    if document.swagger:
        return _swagger_body(document, operation, listed)
    if "requestBody" not in operation.raw:
        return None
    raw = resolved(document, operation.raw["requestBody"])
    contents = tuple(
        Content(media_type, _media(document, media).get("schema", {}), _encoding(document, media))
        for media_type, media in _media_entries(raw)
    )
    return RequestBody(contents, _said(raw.get("required")), raw) if contents else None


def _media_entries(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    entries = mapping(raw.get("content")).items()
    short = ((kind, media) for kind, media in entries if len(kind) <= _MAX_MEDIA_TYPE)
    return islice(short, _MAX_MEDIA_TYPES)


def _media(document: Document, media: Any) -> Mapping[str, Any]:
    return resolved(document, media) if isinstance(media, Mapping) else _EMPTY


def _encoding(document: Document, media: Any) -> Mapping[str, Any]:
    return mapping(_media(document, media).get("encoding"))


def _swagger_body(
    document: Document, operation: Operation, listed: Sequence[Mapping[str, Any]]
) -> RequestBody | None:
    bodies = [raw for raw in listed if raw["in"] == "body"]
    fields = [raw for raw in listed if raw["in"] == "formData"]
    if len(bodies) > 1 or (bodies and fields):
        raise Unusable("it has more than one body")
    consumes = _media_type_header(listed) or _media_types(document, operation, "consumes")
    if bodies:
        raw = bodies[0]
        contents = tuple(Content(kind, raw.get("schema", {})) for kind in consumes or ("*/*",))
        return RequestBody(contents, _said(raw.get("required")), raw)
    return _form(fields, consumes) if fields else None


def _form(fields: Sequence[Mapping[str, Any]], consumes: Sequence[str]) -> RequestBody:
    has_file = any(raw.get("type") == "file" for raw in fields)
    multipart = has_file or "multipart/form-data" in consumes[:1]
    required = [raw["name"] for raw in fields if raw.get("required") is True]
    properties = {raw["name"]: _own_schema(raw) for raw in fields}
    schema = Made(type="object", properties=properties, required=required)
    styles = {raw["name"]: _collection_style(raw, "formData") for raw in fields}
    encoding = {name: {"style": s, "explode": e} for name, (s, e) in styles.items()}
    media_type = "multipart/form-data" if multipart else "application/x-www-form-urlencoded"
    return RequestBody((Content(media_type, schema, encoding),), bool(required), _EMPTY)


def _media_type_header(listed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The media type that a definition of 2.0 wants to be announced, where it says so itself."""
    headers = (raw for raw in listed if raw["in"] == "header")
    found = (raw for raw in headers if raw["name"].strip().lower() == "content-type")
    return tuple(kind for raw in found if (kind := text_of(raw.get("default")).strip()))[:1]


def _media_types(document: Document, operation: Operation, key: str) -> tuple[str, ...]:
    own = operation.raw.get(key)
    listed = own if isinstance(own, list) else document.root.get(key)
    texts = (kind for kind in sequence(listed) if isinstance(kind, str))
    return tuple(kind for kind in islice(texts, _MAX_MEDIA_TYPES) if len(kind) <= _MAX_MEDIA_TYPE)


# --- answers --------------------------------------------------------------------------------------


def answers(document: Document, operation: Operation) -> tuple[Content, ...]:
    """What a successful answer may be: the contents of the first 2xx response that has any."""
    responses = mapping(operation.raw.get("responses"))
    spend(document, len(responses) // 10)
    for status in sorted(key for key in responses if str(key).startswith("2")):
        try:
            response = resolved(document, responses[status])
        except Unusable:
            continue
        if contents := _answer_contents(document, operation, response):
            return contents
    return ()


def _answer_contents(
    document: Document, operation: Operation, response: Mapping[str, Any]
) -> tuple[Content, ...]:
    if not document.swagger:
        return tuple(
            Content(media_type, mapping(media).get("schema"))
            for media_type, media in _media_entries(response)
        )
    if "schema" not in response:
        return ()
    types = _media_types(document, operation, "produces") or ("application/json",)
    return tuple(Content(kind, response["schema"]) for kind in types)


def _said(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
