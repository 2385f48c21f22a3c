"""From a request body to arguments: an object's properties one by one, anything else whole.

Only the top level is taken apart; nested objects stay real schemas. A body's hidden properties
with a default become constants that are always sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from gateway.connectors.openapi.arguments import (
    ArgumentNames,
    Slot,
    constant,
    described,
    injected_as,
    rank_of,
    remembered_slot,
)
from gateway.connectors.openapi.document import (
    Document,
    Unusable,
    is_internal,
    mapping,
    resolved,
    sequence,
    spend,
    spend_on,
    text_of,
)
from gateway.connectors.openapi.inputs import MAX_INPUTS, Content, RequestBody
from gateway.connectors.openapi.schema import Schemas
from gateway.model import Body, Field, Source, Style

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
OCTETS = "application/octet-stream"
_MAX_PARTS = 200  # of one allOf, parts of parts included
_LOOKED_AT = 20  # schemas, for one unit of work
_MAX_LEVELS = 8  # of defaults that make up a hidden body
_FORM_STYLES: Mapping[str, Style] = {
    "form": "form",
    "spaceDelimited": "spaceDelimited",
    "pipeDelimited": "pipeDelimited",
    "tabDelimited": "tabDelimited",
    "deepObject": "deepObject",
}
MAX_PART_TYPES = 10
MAX_PART_TYPE = 100  # characters
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+*-]+/[\w!#$&^.+*-]+(; *[\w-]+=[\w.-]+)*", re.ASCII)
_TEXT_ENDINGS = ("+xml", "/xml", "yaml", "graphql", "ndjson", "jsonl")
_ANYTHING: Mapping[str, Any] = {}
_DYNAMIC = ("x-ms-dynamic-schema", "x-ms-dynamic-properties")


@dataclass(frozen=True, slots=True)
class Shape:
    """What an object body is made of, allOf included."""

    properties: Mapping[str, Any]
    required: frozenset[str]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every step here needs to know."""

    document: Document
    schemas: Schemas
    source: Source
    method: str


def body_slots(
    around: Surroundings, body: RequestBody, names: ArgumentNames
) -> tuple[Body | None, list[Slot]]:
    """How the body is put together, and the arguments the caller gives for it."""
    content = chosen_content(around.document, body)
    kind = media_kind(content.media_type)
    if is_internal(body.raw) and isinstance(
        hidden := _defaults(around.document, content.schema, 0), Mapping
    ):
        media_type = sendable(content.media_type)
        constants = constant(around.document, dict(hidden))
        return Body(media_type, required=bool(hidden), constants=constants), []
    if kind in ("text", "octets"):
        return _opaque(around, content, body, names, kind)
    shape = shape_of(around.document, content.schema)
    if shape is None:
        return _whole(around, content, body, names, kind)
    return _taken_apart(around, content, body, names, shape)


def chosen_content(document: Document, body: RequestBody) -> Content:
    """The body in the media type that is sent; bytes are JSON only if a definition insists."""

    def preference(each: Content) -> tuple[bool, tuple[int, bool]]:
        json = media_kind(each.media_type) == "json"
        return json and _is_file(document, each.schema), _preference(each.media_type)

    chosen = min(body.contents, key=preference)
    anything = "*" in chosen.media_type and _is_file(document, chosen.schema)
    return replace(chosen, media_type=OCTETS) if anything else chosen


@lru_cache(maxsize=256)
def media_kind(media_type: str) -> str:
    """json, form, multipart, text or octets."""
    plain = media_type.partition(";")[0].strip().lower()
    if plain in (JSON, "text/json", "*/*", "application/*") or plain.endswith("+json"):
        return "json"
    if plain == FORM:
        return "form"
    if plain.startswith("multipart/"):
        return "multipart"
    text = plain.startswith("text/") or plain.endswith(_TEXT_ENDINGS)
    return "text" if text else "octets"


def sendable(media_type: str) -> str:
    """The media type to announce: ranges are narrowed to one."""
    if "*" not in media_type:
        return media_type
    return JSON if media_kind(media_type) == "json" else OCTETS


def _preference(media_type: str) -> tuple[int, bool]:
    order = ("json", "form", "multipart", "text", "octets")
    plain = media_type.partition(";")[0].strip().lower()
    kind = media_kind(media_type)
    other = kind == "octets" and plain != OCTETS
    return order.index(kind) + other, plain not in (JSON, MULTIPART, "text/plain")


# --- objects --------------------------------------------------------------------------------------


def shape_of(document: Document, schema: Any) -> Shape | None:
    """The properties of an object; None for what is not one, or is more than its properties."""
    properties: dict[str, Any] = {}
    required: set[str] = set()
    try:
        for part in _parts(document, schema):
            properties.update(mapping(part.get("properties")))
            spend(document, len(properties) // 10)
            required.update(name for name in sequence(part.get("required")) if type(name) is str)
            if any(key in part for key in _DYNAMIC):
                properties.pop("dynamicProperties", None)  # the designer's placeholder
        for name, raw in _of_kinds(document, resolved(document, schema)).items():
            properties.setdefault(name, raw)
    except Unusable:
        return None
    if not properties or len(properties) > MAX_INPUTS:
        return None
    spend_on(document, len(properties))
    return Shape(properties, frozenset(required))


def _parts(document: Document, schema: Any) -> list[Mapping[str, Any]]:
    """The schema and what its allOf adds, base first."""
    waiting, total, seen = [schema], 0, set[int]()
    found: list[Mapping[str, Any]] = []
    while waiting:
        part = resolved(document, waiting.pop())
        total += 1
        spend(document, 1)
        if total > _MAX_PARTS or not _is_object(part):
            raise Unusable("not a plain object")
        if id(part) not in seen:
            seen.add(id(part))
            found.append(part)
            waiting.extend(sequence(part.get("allOf")))
    return found[::-1]


def _of_kinds(document: Document, base: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an object may have besides, if it says its kind: the properties of what extends it."""
    if "discriminator" not in base:
        return {}
    if id(base) not in document.kinds:
        found: dict[str, Any] = {}
        for part in _extending(document, base):
            for name, raw in mapping(part.get("properties")).items():
                found[name] = raw if found.get(name, raw) == raw else _ANYTHING
        document.kinds[id(base)] = (base, found)
    return document.kinds[id(base)][1]


def _extending(document: Document, base: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    home = document.root if document.swagger else mapping(document.root.get("components"))
    named = mapping(home.get("definitions" if document.swagger else "schemas"))
    spend(document, len(named) // _LOOKED_AT)
    for schema in named.values():
        extended = sequence(mapping(schema).get("allOf"))
        spend(document, len(extended) // _LOOKED_AT)
        try:
            if any(
                "$ref" in mapping(part) and resolved(document, part) is base for part in extended
            ):
                yield from _parts(document, schema)
        except Unusable:
            continue


def _is_object(part: Mapping[str, Any]) -> bool:
    kind = part.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return False
    alternatives = [*sequence(part.get("oneOf")), *sequence(part.get("anyOf"))]
    return all(isinstance(each, Mapping) and set(each) <= {"required"} for each in alternatives)


def _taken_apart(
    around: Surroundings, content: Content, body: RequestBody, names: ArgumentNames, shape: Shape
) -> tuple[Body, list[Slot]]:
    fields: list[Field] = []
    slots: list[Slot] = []
    constants: dict[str, Any] = {}
    for name, raw in shape.properties.items():
        if around.schemas.is_hidden(raw):
            continue
        needed = name in shape.required and body.required is not False
        if isinstance(raw, dict) and is_internal(raw):
            default = _defaults(around.document, raw, 0)
            if default is not None:
                constants[name] = constant(around.document, default)
                continue
            if not needed:
                continue
        field = _field(around, content, name, raw, names.take(name, "body"), names)
        if name in shape.required and body.required is False:
            field = replace(field, needed=True)
        if injected := injected_as(around.source, "body", name, field.argument):
            field = replace(field, argument=injected)
        else:
            slots.extend(_field_slots(around, field, raw, needed))
        fields.append(field)
    required = bool(body.required) or bool(constants)
    media_type = sendable(content.media_type)
    return Body(media_type, tuple(fields), required=required, constants=constants), slots


def _field(
    around: Surroundings,
    content: Content,
    name: str,
    raw: Any,
    argument: str,
    names: ArgumentNames,
) -> Field:
    kind = media_kind(content.media_type)
    if kind == "json":
        return Field(argument, name)
    encoding = mapping(content.encoding.get(name))
    style = _FORM_STYLES.get(text_of(encoding.get("style")), "form")
    explode = encoding["explode"] if isinstance(encoding.get("explode"), bool) else style == "form"
    part_types = _media_types(encoding.get("contentType"))
    media_type = next((each for each in part_types[:1] if "*" not in each), None)
    if kind == "form":
        # A style that is asked for wins over the media type.
        media_type = None if {"style", "explode"} & encoding.keys() else media_type
        return Field(argument, name, media_type=media_type, style=style, explode=explode)
    file = _file_schema(around.document, raw, "".join(part_types[:1]))
    if file is None:
        return Field(argument, name, media_type=media_type, style=style, explode=explode)
    own = mapping(resolved(around.document, content.schema).get("properties"))
    told = [f"{name}_{what}" for what in ("filename", "content_type")]
    file_name, content_type = (None if t in own else names.take(t, "body") for t in told)
    return Field(
        argument,
        name,
        file=True,
        file_name_argument=file_name,
        content_type_argument=content_type,
        media_type=", ".join(part_types or _media_types(file.get("contentMediaType"))) or None,
        style=style,
        explode=explode,
    )


def _media_types(written: Any) -> list[str]:
    """The media types, or ranges of them, that a definition lists for a part."""
    listed = (each.strip() for each in text_of(written).split(",", MAX_PART_TYPES)[:MAX_PART_TYPES])
    return [each for each in listed if len(each) <= MAX_PART_TYPE and _MEDIA_TYPE.fullmatch(each)]


def _field_slots(around: Surroundings, field: Field, raw: Any, needed: bool) -> Iterator[Slot]:
    words = mapping(raw)
    if field.file:
        several = resolved(around.document, raw).get("type") == "array"
        file = _each({"type": "string", "contentEncoding": "base64"}, several)
        yield Slot(field.argument, described(file, words, ""), (), needed, rank_of(raw))
        kinds = f": {field.media_type}" if field.media_type else ", if not as the file name says"
        for argument, about in (
            (field.file_name_argument, f"File name of {field.argument}."),
            (field.content_type_argument, f"Media type of {field.argument}{kinds}."),
        ):
            if argument is not None:
                naming = {**_each({"type": "string"}, several), "description": about}
                yield Slot(argument, naming, (), False, rank_of(raw))
        return
    yield remembered_slot(around.schemas, raw, field.argument, needed)


def _each(schema: dict[str, Any], several: bool) -> dict[str, Any]:
    return {"type": "array", "items": schema} if several else schema


def _file_schema(document: Document, raw: Any, part_type: str) -> Mapping[str, Any] | None:
    """What is said of a file, or of each in a list; None where the part is no file."""
    try:
        found = resolved(document, raw)
        if found.get("type") == "array":
            found = resolved(document, found.get("items"))
    except Unusable:
        return None
    return found if _is_file(document, found, part_type) else None


def _is_file(document: Document, raw: Any, part_type: str = "") -> bool:
    try:
        found = resolved(document, raw)
    except Unusable:
        return False
    if found.get("type") == "file" or found.get("format") == "binary":
        return True
    media = text_of(found.get("contentMediaType"))
    if not media and found.get("type", "string") == "string" and "format" not in found:
        media = part_type  # as OpenAPI 3.1 writes it, which has no `binary`
    return bool(media) and "contentEncoding" not in found and media_kind(media) == "octets"


# --- everything else ------------------------------------------------------------------------------


def _whole(
    around: Surroundings, content: Content, body: RequestBody, names: ArgumentNames, kind: str
) -> tuple[Body | None, list[Slot]]:
    if _is_empty(around, content, body, kind):
        return None, []
    argument = names.take("body", "body")
    fragment = around.schemas.translate(content.schema)
    schema = described(fragment.schema, body.raw, argument)
    required = body.required is True
    injected = injected_as(around.source, "body", "body", argument)
    taken = Body(sendable(content.media_type), whole=injected or argument, required=required)
    if injected is not None:
        return taken, []
    rank = rank_of(body.raw)
    return taken, [Slot(argument, schema, fragment.refs, required, rank, content.schema)]


def _is_empty(around: Surroundings, content: Content, body: RequestBody, kind: str) -> bool:
    """Some write an object without properties for "no body", Stripe on every GET."""
    try:
        found = resolved(around.document, content.schema)
    except Unusable:
        return False
    if not _is_object(found) or set(found) & {"allOf", "oneOf", "anyOf", *_DYNAMIC}:
        return False
    if mapping(found.get("properties")) or isinstance(found.get("additionalProperties"), dict):
        return False
    if kind in ("form", "multipart"):
        return True
    return around.method in ("GET", "HEAD", "DELETE") and body.required is not True


def _opaque(
    around: Surroundings, content: Content, body: RequestBody, names: ArgumentNames, kind: str
) -> tuple[Body, list[Slot]]:
    argument = names.take("body", "body")
    binary = kind == "octets"
    plain: dict[str, Any] = {"type": "string"}
    if binary:
        plain["contentEncoding"] = "base64"
    plain["description"] = f"The body, as {content.media_type}{' in base64' if binary else ''}."
    schema = described(plain, body.raw, argument)
    required = body.required is True
    media_type = sendable(content.media_type)
    taken = Body(media_type, whole=argument, binary=binary, required=required)
    return taken, [Slot(argument, schema, (), required, rank_of(body.raw))]


def _defaults(document: Document, schema: Any, level: int) -> Any:
    """What a schema's defaults come to: its own, else those of its properties together."""
    try:
        found = resolved(document, schema)
    except Unusable:
        return None
    if "default" in found:
        return found["default"]
    if level >= _MAX_LEVELS:
        return None
    properties = mapping(found.get("properties"))
    spend(document, len(properties))
    parts = {
        name: value
        for name, raw in properties.items()
        if (value := _defaults(document, raw, level + 1)) is not None
    }
    return parts or None
