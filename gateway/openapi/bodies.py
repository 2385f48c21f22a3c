"""From a request body to arguments: an object's properties one by one, anything else whole.

Only the top level is taken apart; nested objects stay real schemas. A body's hidden properties
with a default become constants that are always sent. What the object says beside its properties is
said of the tool's input instead: which of them go together, and whether there may be others, which
then go into the body as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from gateway.limits import MAX_LEVELS, MAX_WIDTH, MAX_WIRE_NAME
from gateway.model import MEDIA_TYPE_PATTERN, Body, Field, Style
from gateway.openapi import inputs
from gateway.openapi.document import (
    JSON,
    MULTIPART,
    OCTETS,
    Document,
    Unusable,
    is_internal,
    mapping,
    media_kind,
    sendable,
    sequence,
    text_of,
)
from gateway.openapi.inputs import Content, Slot, Surroundings
from gateway.openapi.keywords import DYNAMIC_SCHEMAS, Shape, is_object, shape_of
from gateway.openapi.schema import Schema, default_of

_FORM_STYLES = ("form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject")
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+*-]+/[\w!#$&^.+*-]+(; *[\w-]+=[\w.-]+)*", re.ASCII)
_READING = ("GET", "HEAD", "DELETE")


@dataclass(frozen=True, slots=True)
class Taken:
    """How a body is put together, and what the caller gives for it."""

    body: Body | None
    slots: Sequence[Slot] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)  # for the tool's input as a whole


def taken_body(around: Surroundings, body: Content, beside: Sequence[Slot]) -> Taken:
    """How the body is put together, and the arguments the caller gives for it."""
    kind = media_kind(body.media_type)
    hidden = default_of(around.document, body.schema) if is_internal(body.raw) else None
    if isinstance(hidden, dict):
        media_type = sendable(body.media_type)
        return Taken(Body(media_type, required=bool(hidden), constants=hidden))
    if kind in ("text", "octets"):
        return _opaque(around, body)
    if kind == "multipart" and _is_file(around.document, body.schema):
        body = replace(body, schema={"properties": {"file": body.schema}})
    shape = shape_of(around.document, body.schema)
    for raw in shape.properties.values() if shape else ():
        inputs.refuse_callback(around.document.find(raw))
    asked_whole = body.raw.get("x-gateway-whole") is True
    if shape is None or asked_whole or (kind == "json" and not _is_sayable(around, shape, beside)):
        return _whole(around, body)
    return _taken_apart(around, body, shape, beside)


def chosen_content(document: Document, raw: Mapping[str, Any]) -> Content | None:
    """The body in the media type that is sent; bytes are JSON only if a definition insists."""

    def preference(each: Content) -> tuple[bool, tuple[int, bool]]:
        structured = media_kind(each.media_type) in ("json", "form", "multipart")
        return structured and _is_file(document, each.schema), _preference(each.media_type)

    chosen = min(inputs.contents_of(document, raw), key=preference, default=None)
    if chosen is None:
        return None
    if "*" in chosen.media_type and _is_file(document, chosen.schema):
        return replace(chosen, media_type=OCTETS)
    return chosen if chosen.schema is not None else replace(chosen, schema={})


def _preference(media_type: str) -> tuple[int, bool]:
    order = ("json", "form", "multipart", "text", "octets")
    plain = media_type.partition(";")[0].strip().lower()
    kind = media_kind(media_type)
    other = kind == "octets" and plain != OCTETS
    return order.index(kind) + other, plain not in (JSON, MULTIPART, "text/plain")


# --- objects --------------------------------------------------------------------------------------


def _is_sayable(around: Surroundings, shape: Shape, beside: Sequence[Slot]) -> bool:
    """Whether all that an object says can be said of arguments that others stand beside."""
    if any(inputs.injected_as(around.source, "body", name, name) for name in shape.properties):
        return True  # into an object that is given whole nothing is filled in
    uncounted = shape.not_empty and shape.more and not all(slot.required for slot in beside)
    return not shape.of_all and (bool(shape.required) or not uncounted)


def _taken_apart(
    around: Surroundings, body: Content, shape: Shape, beside: Sequence[Slot]
) -> Taken:
    visible, constants = around.schemas.visible(
        {"properties": shape.properties, "required": list(shape.required)}
    )
    left_out = {name for name in (*visible, *constants) if _is_detour(around, name)}
    visible = {name: raw for name, raw in visible.items() if name not in left_out}
    constants = {name: value for name, value in constants.items() if name not in left_out}
    fields = [
        _field(around, body, name, raw, around.names.take(name, "body"))
        for name, raw in visible.items()
    ]
    given = {f.name: inputs.injected_as(around.source, "body", f.name, f.argument) for f in fields}
    fields = [replace(f, argument=given[f.name] or f.argument) for f in fields]
    asked = {f.name: f for f in fields if given[f.name] is None}
    filled = (constants.keys() | visible.keys() | left_out) - asked.keys()
    needs = [f.argument for f in asked.values() if f.name in shape.required]
    keywords = _demands(shape, asked, filled, beside, needs)
    can_be_left_out = body.raw.get("required") is False and not filled and not keywords
    if can_be_left_out and len(needs) * len(asked) <= MAX_WIDTH:
        keywords = _together(needs, asked)
        needs = []
    form = media_kind(body.media_type) != "json"
    slots = [
        slot
        for f in asked.values()
        for slot in _field_slots(around, f, visible[f.name], f.argument in needs, form)
    ]
    taken = Body(
        sendable(body.media_type),
        tuple(fields),
        required=_is_required(body) or bool(constants),
        constants=constants,
        all_but=None if shape.more is None else _arguments(around, fields, beside),
    )
    keywords = {**keywords, "additionalProperties": _others(around, shape)}
    return Taken(taken, slots, keywords)


def _is_required(body: Content) -> bool:
    return body.raw.get("required") is True


def _is_detour(around: Surroundings, name: str) -> bool:
    """Whether a property would make the request another one that the connection did not ask for."""
    injected = inputs.injected_as(around.source, "body", name, name)
    return injected is None and inputs.leaves_out(around, name, "body")


def _demands(
    shape: Shape,
    asked: Mapping[str, Field],
    filled: Set[str],
    beside: Sequence[Slot],
    needs: Sequence[str],
) -> dict[str, Any]:
    """What is asked of several properties: one set or another of them, or any at all."""
    groups = []
    for group in shape.alternatives:
        left = [names - filled for names in group]
        if all(left):
            groups.append([_required(names, asked) for names in left if names <= asked.keys()])
    any_at_all = shape.not_empty and not filled and not needs
    if any_at_all and not shape.more:
        groups.append([_required({name}, asked) for name in asked])
    any_of = [{"anyOf": group} for group in groups if group]
    keywords: dict[str, Any] = any_of[0] if len(any_of) == 1 else {}
    if len(any_of) > 1:
        keywords = {"allOf": any_of}
    if any_at_all and shape.more:
        keywords["minProperties"] = 1 + sum(slot.required for slot in beside)
    return keywords


def _required(names: Set[str], asked: Mapping[str, Field]) -> dict[str, Any]:
    return {"required": [f.argument for f in asked.values() if f.name in names]}


def _together(needs: Sequence[str], asked: Mapping[str, Field]) -> dict[str, Any]:
    """Of a body that may be left out: whoever gives anything gives what it needs."""
    rules = {f.argument: [name for name in needs if name != f.argument] for f in asked.values()}
    return {"dependentRequired": rules} if needs and len(asked) > 1 else {}


def _others(around: Surroundings, shape: Shape) -> Schema:
    """What is listed of properties that the body does not name; where it is silent, none are."""
    parts = [around.schemas.translate(each) for each in shape.more or ()]
    return {"allOf": parts} if len(parts) > 1 else next(iter(parts), False)


def _arguments(
    around: Surroundings, fields: Sequence[Field], beside: Sequence[Slot]
) -> frozenset[str]:
    """The arguments that have a place of their own."""
    own = [(f.argument, f.file_name_argument, f.content_type_argument) for f in fields]
    others = [slot.argument for slot in beside]
    return frozenset(filter(None, chain(around.source.inject, others, *own)))


def _field(around: Surroundings, content: Content, name: str, raw: Any, argument: str) -> Field:
    kind = media_kind(content.media_type)
    if kind == "json":
        return Field(argument, name)
    encoding = mapping(content.encoding.get(name))
    named = encoding.get("style")
    style: Style = named if named in _FORM_STYLES else "form"
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
    own = mapping(around.document.resolve(content.schema).get("properties"))
    told = [f"{name}_{what}" for what in ("filename", "content_type")]
    file_name, content_type = (
        None if each in own else around.names.take(each, "body") for each in told
    )
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
    listed = (each.strip() for each in text_of(written)[:MAX_WIRE_NAME].split(","))
    return [each for each in listed if _MEDIA_TYPE.fullmatch(each)]


def _field_slots(
    around: Surroundings, field: Field, raw: Any, needed: bool, form: bool
) -> Iterator[Slot]:
    if not field.file:
        # In a form, an empty list is not there at all, nor is an object with a field for each key.
        split = [("array", field.media_type is None), ("object", field.style == "deepObject")]
        never_empty = [kind for kind, is_split in split if form and is_split]
        yield inputs.slot_of(around, raw, raw, field.argument, needed, never_empty)
        return
    several = _kind_of(_without_null(around.document, raw)) == "array"
    file = _each({"type": "string", "contentEncoding": "base64"}, several)
    if several and needed:
        file["minItems"] = 1
    shown, rank = inputs.described(file, mapping(raw), ""), inputs.rank_of(raw)
    yield Slot(field.argument, shown, needed, rank)
    kinds = f": {field.media_type}" if field.media_type else ", if not as the file name says"
    media_type = {"type": "string", "pattern": MEDIA_TYPE_PATTERN}
    for argument, said, about in (
        (field.file_name_argument, {"type": "string"}, f"File name of {field.argument}."),
        (field.content_type_argument, media_type, f"Media type of {field.argument}{kinds}."),
    ):
        if argument is not None:
            naming = {**_each(said, several), "description": about}
            yield Slot(argument, naming, False, rank)


def _each(schema: dict[str, Any], several: bool) -> dict[str, Any]:
    return {"type": "array", "items": schema} if several else schema


def _file_schema(document: Document, raw: Any, part_type: str) -> Mapping[str, Any] | None:
    """What is said of a file, or of each in a list; None where the part is no file."""
    found = _without_null(document, raw)
    if _kind_of(found) == "array":
        found = _without_null(document, found.get("items"))
    return found if _is_file(document, found, part_type) else None


def _without_null(document: Document, raw: Any) -> Mapping[str, Any]:
    """A schema; of one that says "this or null", or names its only part, that part."""
    found = document.find(raw)
    choices = next((found[word] for word in ("anyOf", "oneOf", "allOf") if word in found), ())
    parts = [each for each in map(document.find, sequence(choices)) if _kind_of(each) != "null"]
    return parts[0] if len(parts) == 1 and "type" not in found else found


def _kind_of(schema: Mapping[str, Any]) -> Any:
    """The type of what it describes, if it is not null."""
    kinds = [each for each in sequence(schema.get("type")) if each != "null"]
    return kinds[0] if len(kinds) == 1 else schema.get("type")


def _is_file(document: Document, raw: Any, part_type: str = "") -> bool:
    try:
        found = _without_null(document, document.resolve(raw))
    except Unusable:
        return False  # nobody knows
    if found.get("type") == "file" or found.get("format") == "binary":
        return True
    media, kind = text_of(found.get("contentMediaType")), _kind_of(found)
    if not media and kind in (None, "string") and "format" not in found:
        media = part_type  # as OpenAPI 3.1 writes it, which has no `binary`
    return bool(media) and "contentEncoding" not in found and media_kind(media) == "octets"


# --- everything else ------------------------------------------------------------------------------


def _whole(around: Surroundings, body: Content) -> Taken:
    media_type, required = sendable(body.media_type), _is_required(body)
    if _is_empty(around, body):
        needed = required and around.method not in _READING
        return Taken(Body(media_type, required=True) if needed else None)
    argument = around.names.take("body", "body")
    schema = around.schemas.translate(body.schema)
    if media_kind(body.media_type) != "json":
        schema = {**mapping(schema), "type": "object"}  # a form's fields are its properties
    schema = inputs.described(schema, body.raw, argument)
    injected = inputs.injected_as(around.source, "body", "body", argument)
    taken = Body(media_type, whole=injected or argument, required=required)
    if injected is not None:
        return Taken(taken)
    rank = inputs.rank_of(body.raw)
    return Taken(taken, [Slot(argument, schema, required, rank, body.schema)])


def _is_empty(around: Surroundings, body: Content) -> bool:
    """Some write an object without properties for "no body", Stripe on every GET."""
    try:
        found = around.document.resolve(body.schema)
    except Unusable:
        return False
    if not is_object(found) or set(found) & {"allOf", "oneOf", "anyOf", *DYNAMIC_SCHEMAS}:
        return False
    if mapping(found.get("properties")) or found.get("additionalProperties", False) is not False:
        return False
    if media_kind(body.media_type) != "json":
        return bool(found.keys() & {"type", "properties"})  # else it may be any form
    return around.method in _READING and not _is_required(body)


def _opaque(around: Surroundings, body: Content) -> Taken:
    """A body that is sent as it is given; an object in XML or YAML is written out as such."""
    argument = around.names.take("body", "body")
    binary, required = media_kind(body.media_type) == "octets", _is_required(body)
    plain = {} if binary else dict(mapping(around.schemas.translate(body.schema)))
    plain = plain or {"type": "string"}
    plain.pop("contentEncoding", None)
    if binary:
        plain["contentEncoding"] = "base64"
    words = f"The body, as {body.media_type}{' in base64' if binary else ''}."
    schema = inputs.described({"description": words, **plain}, body.raw, argument)
    taken = Body(
        sendable(body.media_type),
        whole=argument,
        binary=binary,
        required=required,
        xml=None if binary else _xml(around.document, body),
    )
    return Taken(taken, [Slot(argument, schema, required, inputs.rank_of(body.raw))])


def _xml(document: Document, content: Content) -> Mapping[str, Any] | None:
    """How an object is written as XML; None for other media types."""
    if not content.media_type.partition(";")[0].strip().lower().endswith(("/xml", "+xml")):
        return None
    named = text_of(mapping(content.schema).get("$ref")).rpartition("/")[2]
    return {"name": named or "root", **_xml_layout(document, content.schema, 0)}


def _xml_layout(document: Document, schema: Any, level: int) -> dict[str, Any]:
    """The names and forms of a schema's elements, where they are not those of its properties."""
    with suppress(Unusable):
        found = document.resolve(schema)
        said = mapping(found.get("xml"))
        layout: dict[str, Any] = {key: said.get(key) for key in ("attribute", "wrapped")}
        layout |= {key: text_of(said.get(key)) for key in ("name", "prefix", "namespace")}
        if level < MAX_LEVELS and (shape := shape_of(document, found)) is not None:
            inner = {
                name: _xml_layout(document, part, level + 1)
                for name, part in shape.properties.items()
            }
            layout["properties"] = {name: part for name, part in inner.items() if part}
        if level < MAX_LEVELS and "items" in found:
            layout["items"] = _xml_layout(document, found["items"], level + 1)
        return {key: value for key, value in layout.items() if value}
    return {}
