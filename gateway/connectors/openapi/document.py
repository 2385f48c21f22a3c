"""One plain form for Swagger 2.0, OpenAPI 3.0 and 3.1.

Everything version-specific about where things stand ends here: parameters come out merged and
resolved as `Input`, bodies as `Content` by media type, form fields of 2.0 as an object schema.
Schemas stay as they are written; `schema.py` translates them. References are looked up in this
document only: nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from gateway.connectors.openapi.reading import MAX_OPERATIONS, METHODS
from gateway.errors import DefinitionUnreadable
from gateway.model import Place, Style

MAX_HOPS = 50  # references that lead to references
MAX_INPUTS = 1_000  # parameters of one operation

_EMPTY: Mapping[str, Any] = {}
_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
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


class Unusable(Exception):
    """This operation, or this reference, can't be understood; the message says why."""


@dataclass(frozen=True, slots=True)
class Document:
    """A definition whose version is known."""

    root: Mapping[str, Any]
    format: str
    swagger: bool
    found: dict[str, Any] = field(default_factory=dict)  # references resolved so far


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, as written."""

    id: str | None
    method: str
    path: str
    raw: Mapping[str, Any]
    item: Mapping[str, Any]


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


def open_document(definition: Mapping[str, Any]) -> Document:
    """The definition with its version made out."""
    swagger, openapi = (_version(definition.get(key)) for key in ("swagger", "openapi"))
    if swagger == "2.0":
        return Document(definition, "swagger-2.0", swagger=True)
    if openapi.startswith("3.0"):
        return Document(definition, "openapi-3.0", swagger=False)
    if openapi.startswith("3."):
        return Document(definition, "openapi-3.1", swagger=False)
    found = f"version {swagger or openapi} " if swagger or openapi else "no version "
    raise DefinitionUnreadable(
        f'Not an OpenAPI definition we know: {found}at "swagger" or "openapi".',
        'Swagger 2.0 ("swagger": "2.0") and OpenAPI 3.0 and 3.1 ("openapi": "3.…") are read.',
    )


def _version(value: Any) -> str:
    text = str(value).strip() if isinstance(value, (str, int, float)) else ""
    return "2.0" if text == "2" else text


def operations(document: Document) -> Iterator[Operation | tuple[str, str, str]]:
    """Every operation in document order; (method, path, reason) for what is not one."""
    total = 0
    for path, written in mapping(document.root.get("paths")).items():
        if path.startswith("x-"):
            continue
        try:
            item = _path_item(document, written)
        except Unusable as error:
            yield "", path, str(error)
            continue
        for method, raw in item.items():
            if method.lower() not in METHODS:
                continue
            total += 1
            if total > MAX_OPERATIONS:
                raise DefinitionUnreadable(
                    f"The definition has more than {MAX_OPERATIONS:,} operations.",
                    "Split the definition, or serve only the part that is needed.",
                )
            yield _operation(method.upper(), path, raw, item)


def _operation(
    method: str, path: str, raw: Any, item: Mapping[str, Any]
) -> Operation | tuple[str, str, str]:
    if not isinstance(raw, Mapping):
        return method, path, "the operation is not an object"
    identity = raw.get("operationId")
    known = identity if isinstance(identity, str) and identity.strip() else None
    return Operation(known, method, path, raw, item)


def _path_item(document: Document, written: Any) -> Mapping[str, Any]:
    if not isinstance(written, Mapping):
        raise Unusable("the path item is not an object")
    if "$ref" not in written:
        return written
    target = resolved(document, written)
    return {**target, **{key: value for key, value in written.items() if key != "$ref"}}


# --- references -----------------------------------------------------------------------------------


def resolved(document: Document, value: Any) -> Mapping[str, Any]:
    """The object that a value is or, through references, stands for."""
    for _ in range(MAX_HOPS):
        if not isinstance(value, Mapping):
            raise Unusable("a reference leads to something that is not an object")
        reference = value.get("$ref")
        if not isinstance(reference, str):
            return value
        value = target_of(document, reference)
    raise Unusable("references lead to each other in a circle")


def target_of(document: Document, reference: str) -> Any:
    """What a local reference points at."""
    if reference in document.found:
        return document.found[reference]
    if not reference.startswith("#"):
        raise Unusable(f"reference to another document is not followed: {reference[:200]}")
    if not reference.startswith("#/"):
        raise Unusable(f"reference leads nowhere: {reference[:200]}")
    value: Any = document.root
    for segment in reference[2:].split("/"):
        value = _step(value, segment, reference)
    document.found[reference] = value
    return value


def _step(value: Any, segment: str, reference: str) -> Any:
    for name in (unquote(segment), segment):
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and key in value:
            return value[key]
        if isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            return value[int(key)]
    raise Unusable(f"reference leads nowhere: {reference[:200]}")


# --- parameters -----------------------------------------------------------------------------------


def parameters(document: Document, operation: Operation) -> tuple[Mapping[str, Any], ...]:
    """The operation's parameters over its path's, each resolved, bodies and forms included."""
    merged: dict[tuple[str, str], Mapping[str, Any]] = {}
    for written in (operation.item.get("parameters"), operation.raw.get("parameters")):
        for entry in sequence(written):
            parameter = resolved(document, entry)
            name, place = parameter.get("name"), parameter.get("in")
            if not isinstance(name, str) or not isinstance(place, str):
                raise Unusable("a parameter has no name or no place")
            merged[name, place] = parameter
            if len(merged) > MAX_INPUTS:
                raise Unusable(f"it has more than {MAX_INPUTS:,} parameters")
    return tuple(merged.values())


def inputs(document: Document, listed: Sequence[Mapping[str, Any]]) -> tuple[Input, ...]:
    """The parameters that are not part of the body."""
    return tuple(
        _input(document, raw, _PLACES[raw["in"]])
        for raw in listed
        if raw["in"] in _PLACES and not _is_ignored(raw)
    )


def _is_ignored(raw: Mapping[str, Any]) -> bool:
    return raw["in"] == "header" and raw["name"].lower() in _IGNORED_HEADERS


def _input(document: Document, raw: Mapping[str, Any], place: Place) -> Input:
    required = place == "path" or raw.get("required") is True
    if document.swagger:
        style, explode = _collection_style(raw, place)
        return Input(raw["name"], place, required, _own_schema(raw), raw, style, explode)
    media_type, schema = _parameter_schema(raw)
    style = _STYLES.get(str(raw.get("style")), "form" if place in ("query", "cookie") else "simple")
    explode = raw["explode"] if isinstance(raw.get("explode"), bool) else style == "form"
    return Input(
        raw["name"],
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
    for media_type, content in mapping(raw.get("content")).items():
        return media_type, mapping(content).get("schema", {})
    return None, raw.get("schema", {})


def _own_schema(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A 2.0 parameter describes its values beside its name (a few use `schema` all the same)."""
    own = {key: value for key, value in raw.items() if key not in _NOT_SCHEMA}
    return {**mapping(raw.get("schema")), **own} if "schema" in raw else own


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
        for media_type, media in mapping(raw.get("content")).items()
    )
    return RequestBody(contents, _said(raw.get("required")), raw) if contents else None


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
    consumes = _media_types(document, operation, "consumes")
    if bodies:
        raw = bodies[0]
        types = consumes or ("application/json",)
        contents = tuple(Content(kind, raw.get("schema", {})) for kind in types)
        return RequestBody(contents, _said(raw.get("required")), raw)
    return _form(fields, consumes) if fields else None


def _form(fields: Sequence[Mapping[str, Any]], consumes: Sequence[str]) -> RequestBody:
    has_file = any(raw.get("type") == "file" for raw in fields)
    multipart = has_file or "multipart/form-data" in consumes[:1]
    required = [raw["name"] for raw in fields if raw.get("required") is True]
    schema = {
        "type": "object",
        "properties": {raw["name"]: _own_schema(raw) for raw in fields},
        "required": required,
    }
    styles = {raw["name"]: _collection_style(raw, "formData") for raw in fields}
    encoding = {name: {"style": s, "explode": e} for name, (s, e) in styles.items()}
    media_type = "multipart/form-data" if multipart else "application/x-www-form-urlencoded"
    return RequestBody((Content(media_type, schema, encoding),), bool(required), _EMPTY)


def _media_types(document: Document, operation: Operation, key: str) -> tuple[str, ...]:
    own = operation.raw.get(key)
    listed = own if isinstance(own, list) else document.root.get(key)
    return tuple(kind for kind in sequence(listed) if isinstance(kind, str))


# --- answers --------------------------------------------------------------------------------------


def answers(document: Document, operation: Operation) -> tuple[Content, ...]:
    """What a successful answer may be: the contents of the first 2xx response that has any."""
    responses = mapping(operation.raw.get("responses"))
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
            for media_type, media in mapping(response.get("content")).items()
        )
    if "schema" not in response:
        return ()
    types = _media_types(document, operation, "produces") or ("application/json",)
    return tuple(Content(kind, response["schema"]) for kind in types)


# --- what may be anything -------------------------------------------------------------------------


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else _EMPTY


def sequence(value: Any) -> Sequence[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


def text_of(value: Any) -> str:
    """The value if it is text, else none."""
    return value if isinstance(value, str) else ""


def is_internal(raw: Mapping[str, Any]) -> bool:
    """Microsoft's word for "not for people"; both spellings occur."""
    return text_of(raw.get("x-ms-visibility")).lower() == "internal"


def _said(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
