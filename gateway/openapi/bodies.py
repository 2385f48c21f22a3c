"""Makes arguments of a request body: an object's properties one by one, anything else whole.

Only the top level is taken apart; nested objects stay real schemas. A body's hidden properties
with a default become constants that are always sent. The object's other keywords become keywords of
the tool's input: which properties go together, and whether there may be further properties, which
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
from gateway.openapi.inputs import Content, OperationContext, Slot
from gateway.openapi.keywords import DYNAMIC_SCHEMAS, Shape, is_object, shape_of
from gateway.openapi.schema import Schema, default_of

_FORM_STYLES = ("form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject")
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+*-]+/[\w!#$&^.+*-]+(; *[\w-]+=[\w.-]+)*", re.ASCII)
_READING = ("GET", "HEAD", "DELETE")
_STRUCTURED, JSON_PATCH = ("json", "form", "multipart"), "json-patch+json"


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """The plan of a body, and the arguments the caller gives for it."""

    body: Body | None
    slots: Sequence[Slot] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)  # for the tool's input as a whole


def plan_body(context: OperationContext, body: Content, others: Sequence[Slot]) -> BodyPlan:
    """Plans how the body is put together, and the arguments the caller gives for it."""
    kind = media_kind(body.media_type)
    hidden = default_of(context.document, body.schema) if is_internal(body.raw) else None
    if isinstance(hidden, dict):
        media_type = sendable(body.media_type)
        return BodyPlan(Body(media_type, required=bool(hidden), constants=hidden))
    if kind in ("text", "octets"):
        return _plan_opaque(context, body)
    if kind == "multipart" and _is_file(context.document, body.schema):
        body = replace(body, schema={"properties": {"file": body.schema}})
    shape = shape_of(context.document, body.schema)
    for raw in shape.properties.values() if shape else ():
        inputs.refuse_callback(context.document.find(raw))
    whole = body.raw.get("x-gateway-whole") is True
    if shape is None or whole or (kind == "json" and not _may_split(context, shape, others)):
        return _plan_whole(context, body)
    return _plan_fields(context, body, shape, others)


def choose_content(document: Document, raw: Mapping[str, Any]) -> Content | None:
    """The body in the media type that is sent; a file is JSON only if nothing else is offered."""

    def preference(content: Content) -> tuple[bool, tuple[int, bool], bool]:
        kind, preferred = media_kind(content.media_type), _preference(content.media_type)
        is_structured_file = kind in _STRUCTURED and _is_file(document, content.schema)
        # A JSON Patch is a list: what is described as an object goes by another kind of patch.
        is_list = _kind_of(_without_null(document, content.schema)) == "array"
        return is_structured_file, preferred, JSON_PATCH in content.media_type and not is_list

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
    is_special = kind == "octets" and plain != OCTETS
    return order.index(kind) + is_special, plain not in (JSON, MULTIPART, "text/plain")


# --- objects --------------------------------------------------------------------------------------


def _may_split(context: OperationContext, shape: Shape, others: Sequence[Slot]) -> bool:
    """Whether all rules of an object can be written for single arguments beside the other slots."""
    if any(inputs.injected_name(context.source, "body", name, name) for name in shape.properties):
        return True  # the gateway can't fill anything into an object that is given whole
    uncounted = shape.not_empty and shape.others and not all(slot.required for slot in others)
    return not shape.of_all and (bool(shape.required) or not uncounted)


def _plan_fields(
    context: OperationContext, body: Content, shape: Shape, others: Sequence[Slot]
) -> BodyPlan:
    visible, constants = context.schemas.split_properties(
        {"properties": shape.properties, "required": list(shape.required)}
    )
    left_out = {name for name in (*visible, *constants) if _is_detour(context, name)}
    visible = {name: raw for name, raw in visible.items() if name not in left_out}
    constants = {name: value for name, value in constants.items() if name not in left_out}
    ordered = sorted(visible, key=inputs.has_no_ascii)
    arguments = {name: context.names.take(name, "body") for name in ordered}
    fields = [_field(context, body, n, raw, arguments[n]) for n, raw in visible.items()]
    source = context.source
    injected = {f.name: inputs.injected_name(source, "body", f.name, f.argument) for f in fields}
    fields = [replace(f, argument=injected[f.name] or f.argument) for f in fields]
    from_caller = {f.name: f for f in fields if injected[f.name] is None}
    filled = (constants.keys() | visible.keys() | left_out) - from_caller.keys()
    needs = [f.argument for f in from_caller.values() if f.name in shape.required]
    keywords = _group_keywords(shape, from_caller, filled, others, needs)
    can_be_left_out = body.raw.get("required") is False and not filled and not keywords
    if can_be_left_out and len(needs) * len(from_caller) <= MAX_WIDTH:
        keywords = _dependent_required(needs, from_caller)
        needs = []
    is_form = media_kind(body.media_type) != "json"
    slots = [
        slot
        for f in from_caller.values()
        for slot in _field_slots(context, f, visible[f.name], f.argument in needs, is_form)
    ]
    plan = Body(
        sendable(body.media_type),
        tuple(fields),
        required=_is_required(body) or bool(constants),
        constants=constants,
        all_but=None if shape.others is None else _arguments(context, fields, others),
    )
    keywords = {**keywords, "additionalProperties": _other_properties(context, shape)}
    return BodyPlan(plan, slots, keywords)


def _is_required(body: Content) -> bool:
    return body.raw.get("required") is True


def _is_detour(context: OperationContext, name: str) -> bool:
    """Whether a property could make it another request, and the connection does not inject it."""
    injected = inputs.injected_name(context.source, "body", name, name)
    return injected is None and inputs.is_left_out(context, name, "body")


def _group_keywords(
    shape: Shape,
    fields: Mapping[str, Field],
    filled: Set[str],
    others: Sequence[Slot],
    needs: Sequence[str],
) -> dict[str, Any]:
    """The keywords for several properties: one of some sets of them is needed, or any one."""
    groups = []
    for group in shape.alternatives:
        rest = [names - filled for names in group]
        if all(rest):
            groups.append([_required(names, fields) for names in rest if names <= fields.keys()])
    needs_any = shape.not_empty and not filled and not needs
    if needs_any and not shape.others:
        groups.append([_required({name}, fields) for name in fields])
    any_of = [{"anyOf": group} for group in groups if group]
    keywords: dict[str, Any] = any_of[0] if len(any_of) == 1 else {}
    if len(any_of) > 1:
        keywords = {"allOf": any_of}
    if needs_any and shape.others:
        keywords["minProperties"] = 1 + sum(slot.required for slot in others)
    return keywords


def _required(names: Set[str], fields: Mapping[str, Field]) -> dict[str, Any]:
    return {"required": [f.argument for f in fields.values() if f.name in names]}


def _dependent_required(needs: Sequence[str], fields: Mapping[str, Field]) -> dict[str, Any]:
    """For a body that may be left out: a caller that gives a part of it gives what it needs."""
    rules = {f.argument: [name for name in needs if name != f.argument] for f in fields.values()}
    return {"dependentRequired": rules} if needs and len(fields) > 1 else {}


def _other_properties(context: OperationContext, shape: Shape) -> Schema:
    """The schema of properties that the body does not name; False where it says nothing of them."""
    parts = [context.schemas.translate(each) for each in shape.others or ()]
    return {"allOf": parts} if len(parts) > 1 else next(iter(parts), False)


def _arguments(
    context: OperationContext, fields: Sequence[Field], others: Sequence[Slot]
) -> frozenset[str]:
    """The arguments that have a place of their own."""
    own = [(f.argument, f.file_name_argument, f.content_type_argument) for f in fields]
    outside = [slot.argument for slot in others]
    return frozenset(filter(None, chain(context.source.inject, outside, *own)))


def _field(
    context: OperationContext, content: Content, name: str, raw: Any, argument: str
) -> Field:
    kind = media_kind(content.media_type)
    if kind == "json":
        return Field(argument, name)
    encoding = mapping(content.encoding.get(name))
    declared = encoding.get("style")
    style: Style = declared if declared in _FORM_STYLES else "form"
    explode = encoding["explode"] if isinstance(encoding.get("explode"), bool) else style == "form"
    part_types = _media_types(encoding.get("contentType"))
    media_type = next((each for each in part_types[:1] if "*" not in each), None)
    if kind == "form":
        # A style that the definition declares wins over the media type.
        media_type = None if {"style", "explode"} & encoding.keys() else media_type
        return Field(argument, name, media_type=media_type, style=style, explode=explode)
    file = _file_schema(context.document, raw, "".join(part_types[:1]))
    if file is None:
        return Field(argument, name, media_type=media_type, style=style, explode=explode)
    own = mapping(context.document.resolve(content.schema).get("properties"))
    extra = [f"{name}_{suffix}" for suffix in ("filename", "content_type")]
    file_name, content_type = (
        None if each in own else context.names.take(each, "body") for each in extra
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


def _media_types(text: Any) -> list[str]:
    """The media types, or ranges of them, that a definition lists for a part."""
    parts = (part.strip() for part in text_of(text)[:MAX_WIRE_NAME].split(","))
    return [part for part in parts if _MEDIA_TYPE.fullmatch(part)]


def _field_slots(
    context: OperationContext, field: Field, raw: Any, needed: bool, is_form: bool
) -> Iterator[Slot]:
    if not field.file:
        # A form has no empty list, and no empty object that takes a field for each key.
        split = [("array", field.media_type is None), ("object", field.style == "deepObject")]
        never_empty = [kind for kind, is_split in split if is_form and is_split]
        yield inputs.slot_of(context, raw, raw, field.argument, needed, never_empty, field.name)
        return
    is_list = _kind_of(_without_null(context.document, raw)) == "array"
    file = _list_if({"type": "string", "contentEncoding": "base64"}, is_list)
    if is_list and needed:
        file["minItems"] = 1
    schema = inputs.describe_schema(file, mapping(raw), "", field.name)
    rank = inputs.rank_of(raw)
    yield Slot(field.argument, schema, needed, rank)
    kinds = f": {field.media_type}" if field.media_type else ", if not as the file name says"
    media_type = {"type": "string", "pattern": MEDIA_TYPE_PATTERN}
    for argument, item, words in (
        (field.file_name_argument, {"type": "string"}, f"File name of {field.argument}."),
        (field.content_type_argument, media_type, f"Media type of {field.argument}{kinds}."),
    ):
        if argument is not None:
            yield Slot(argument, {**_list_if(item, is_list), "description": words}, False, rank)


def _list_if(schema: dict[str, Any], is_list: bool) -> dict[str, Any]:
    return {"type": "array", "items": schema} if is_list else schema


def _file_schema(document: Document, raw: Any, part_type: str) -> Mapping[str, Any] | None:
    """The schema of a file, or of each file in a list; None where the part is no file."""
    schema = _without_null(document, raw)
    if _kind_of(schema) == "array":
        schema = _without_null(document, schema.get("items"))
    return schema if _is_file(document, schema, part_type) else None


def _without_null(document: Document, raw: Any) -> Mapping[str, Any]:
    """The schema; if it says "this or null", or has one part only, that part."""
    schema = document.find(raw)
    choices = next((schema[key] for key in ("anyOf", "oneOf", "allOf") if key in schema), ())
    parts = [each for each in map(document.find, sequence(choices)) if _kind_of(each) != "null"]
    return parts[0] if len(parts) == 1 and "type" not in schema else schema


def _kind_of(schema: Mapping[str, Any]) -> Any:
    """The type that a schema has beside null."""
    kinds = [kind for kind in sequence(schema.get("type")) if kind != "null"]
    return kinds[0] if len(kinds) == 1 else schema.get("type")


def _is_file(document: Document, raw: Any, part_type: str = "") -> bool:
    try:
        schema = _without_null(document, document.resolve(raw))
    except Unusable:
        return False  # its reference leads nowhere
    if schema.get("type") == "file" or schema.get("format") == "binary":
        return True
    media, kind = text_of(schema.get("contentMediaType")), _kind_of(schema)
    if not media and kind in (None, "string") and "format" not in schema:
        media = part_type  # OpenAPI 3.1 has no `binary`: the part's media type tells
    return bool(media) and "contentEncoding" not in schema and media_kind(media) == "octets"


# --- everything else ------------------------------------------------------------------------------


def _plan_whole(context: OperationContext, body: Content) -> BodyPlan:
    media_type, required = sendable(body.media_type), _is_required(body)
    if _is_empty(context, body):
        needed = required and context.method not in _READING
        return BodyPlan(Body(media_type, required=True) if needed else None)
    argument = context.names.take("body", "body")
    schema = context.schemas.translate(body.schema)
    if media_kind(body.media_type) != "json":
        schema = {**mapping(schema), "type": "object"}  # a form's fields are its properties
    schema = inputs.describe_schema(schema, body.raw, argument)
    injected = inputs.injected_name(context.source, "body", "body", argument)
    plan = Body(media_type, whole=injected or argument, required=required)
    if injected is not None:
        return BodyPlan(plan)
    rank = inputs.rank_of(body.raw)
    return BodyPlan(plan, [Slot(argument, schema, required, rank, body.schema)])


def _is_empty(context: OperationContext, body: Content) -> bool:
    """Whether an object without properties means "no body", as on every GET of Stripe."""
    try:
        schema = context.document.resolve(body.schema)
    except Unusable:
        return False
    if not is_object(schema) or set(schema) & {"allOf", "oneOf", "anyOf", *DYNAMIC_SCHEMAS}:
        return False
    if mapping(schema.get("properties")) or schema.get("additionalProperties", False) is not False:
        return False
    if media_kind(body.media_type) != "json":
        return bool(schema.keys() & {"type", "properties"})  # else it may be any form
    return context.method in _READING and not _is_required(body)


def _plan_opaque(context: OperationContext, body: Content) -> BodyPlan:
    """A body that is sent as it is given; an object in XML or YAML is written out as such."""
    argument = context.names.take("body", "body")
    binary, required = media_kind(body.media_type) == "octets", _is_required(body)
    plain = {} if binary else dict(mapping(context.schemas.translate(body.schema)))
    plain = plain or {"type": "string"}
    plain.pop("contentEncoding", None)
    if binary:
        plain["contentEncoding"] = "base64"
    words = f"The body, as {body.media_type}{' in base64' if binary else ''}."
    schema = inputs.describe_schema({"description": words, **plain}, body.raw, argument)
    plan = Body(
        sendable(body.media_type),
        whole=argument,
        binary=binary,
        required=required,
        xml=None if binary else _xml(context.document, body),
    )
    return BodyPlan(plan, [Slot(argument, schema, required, inputs.rank_of(body.raw))])


def _xml(document: Document, content: Content) -> Mapping[str, Any] | None:
    """The XML layout of an object; None for other media types."""
    if not content.media_type.partition(";")[0].strip().lower().endswith(("/xml", "+xml")):
        return None
    name = text_of(mapping(content.schema).get("$ref")).rpartition("/")[2]
    return {"name": name or "root", **_xml_layout(document, content.schema, 0)}


def _xml_layout(document: Document, schema: Any, level: int) -> dict[str, Any]:
    """The names and forms of a schema's elements, where they are not those of its properties."""
    with suppress(Unusable):
        target = document.resolve(schema)
        xml = mapping(target.get("xml"))
        layout: dict[str, Any] = {key: xml.get(key) for key in ("attribute", "wrapped")}
        layout |= {key: text_of(xml.get(key)) for key in ("name", "prefix", "namespace")}
        if level < MAX_LEVELS and (shape := shape_of(document, target)) is not None:
            inner = {
                name: _xml_layout(document, part, level + 1)
                for name, part in shape.properties.items()
            }
            layout["properties"] = {name: part for name, part in inner.items() if part}
        if level < MAX_LEVELS and "items" in target:
            layout["items"] = _xml_layout(document, target["items"], level + 1)
        return {key: value for key, value in layout.items() if value}
    return {}
