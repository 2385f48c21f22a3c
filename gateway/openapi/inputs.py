"""The inputs and answers of an operation, in one form for Swagger 2.0, OpenAPI 3.0 and 3.1.

All differences between the versions end here: parameters come out merged, resolved and as OpenAPI 3
writes them, form fields of 2.0 as an object schema.

A tool takes all inputs in one flat object, so names that clients can't spell are mended and equal
names become different: the first input called `name` (in the order path, query, header, cookie,
body) keeps it, a later one says where it goes: `query_name`, `body_name`. Rules for look-ups
(Microsoft's dynamic values and schemas) go along with the tool, word for word; the model only reads
that there is a look-up and which other inputs it needs first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from gateway import limits
from gateway.blocklist import may_reroute
from gateway.model import OWN_HEADERS, Parameter, ParameterPlace, Source, Style, json_text
from gateway.naming import phrase, property_description
from gateway.openapi.document import (
    FORM,
    MULTIPART,
    Document,
    Operation,
    Unusable,
    is_internal,
    mapping,
    objects_in,
    sequence,
    text_of,
)
from gateway.openapi.keywords import DYNAMIC_SCHEMAS
from gateway.openapi.schema import ReportIssue, Schema, Schemas, drop_echo

Raw = Mapping[str, Any]
_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})  # says OpenAPI 3
# The headers that every request has: spelled in one way, so that a parameter can replace them.
_SPELLED = {"accept": "Accept", "content-type": "Content-Type"}
_PLACES: tuple[ParameterPlace, ...] = get_args(ParameterPlace)
_COLLECTION_STYLES: Mapping[str, Style] = {
    "ssv": "spaceDelimited",
    "tsv": "tabDelimited",
    "pipes": "pipeDelimited",
}
# What a 2.0 parameter says of itself rather than of its values.
_NOT_SCHEMA = frozenset({"name", "in", "required", "collectionFormat", "allowEmptyValue", "schema"})


@dataclass(frozen=True, slots=True)
class Content:
    """A body in one media type."""

    media_type: str
    schema: Any
    encoding: Raw
    raw: Raw  # the request body or the answer that this content belongs to


def read_request(document: Document, operation: Operation) -> tuple[list[Raw], Raw]:
    """The parameters outside the body, and the body ({}: none), both as OpenAPI 3 writes them."""
    parameters, body = _parameters(document, operation), operation.raw.get("requestBody")
    ignored = OWN_HEADERS if document.swagger else OWN_HEADERS | _IGNORED_HEADERS
    if document.swagger:
        parameters, body = _from_swagger(document, operation, parameters)
    outside: list[Raw] = [
        {**raw, "name": _SPELLED.get(_header_name(raw), raw["name"])}
        for raw in parameters
        if raw["in"] in _PLACES and _header_name(raw) not in ignored
    ]
    return outside, {} if body is None else document.resolve(body)


def _parameters(document: Document, operation: Operation) -> list[Raw]:
    """The operation's parameters over its path's, each resolved, bodies and forms included."""
    merged: dict[tuple[str, str], Raw] = {}
    for entries in (operation.item.get("parameters"), operation.raw.get("parameters")):
        for entry in sequence(entries):
            parameter = document.resolve(entry)
            name, place = parameter.get("name"), parameter.get("in")
            if (
                not isinstance(name, str)
                or not isinstance(place, str)
                or len(name) > limits.MAX_WIRE_NAME
            ):
                raise Unusable("a parameter has no name or no place")
            merged[name, place] = parameter
            if len(merged) > limits.MAX_WIDTH:
                raise Unusable(f"it has more than {limits.MAX_WIDTH:,} parameters")
    return list(merged.values())


def _header_name(raw: Raw) -> str:
    name: str = raw["name"].strip().lower()
    return name if raw["in"] == "header" else ""


def media_entries(raw: Raw) -> Iterator[tuple[str, Any]]:
    """The media types that a definition lists, each with its content."""
    entries = mapping(raw.get("content")).items()
    return ((kind, media) for kind, media in entries if len(kind) <= limits.MAX_WIRE_NAME)


def contents_of(document: Document, raw: Raw) -> tuple[Content, ...]:
    """The body of a request or an answer in each media type it may have."""
    return tuple(
        Content(media_type, media.get("schema"), mapping(media.get("encoding")), raw)
        for media_type, entry in media_entries(raw)
        for media in (document.find(entry),)
    )


# --- Swagger 2.0 ----------------------------------------------------------------------------------


def _from_swagger(
    document: Document, operation: Operation, parameters: Sequence[Raw]
) -> tuple[list[Raw], Raw | None]:
    """Parameters as OpenAPI 3 writes them, and the body that some of them make up."""
    bodies = [raw for raw in parameters if raw["in"] == "body"]
    fields = [_restyle(raw) for raw in parameters if raw["in"] == "formData"]
    if len(bodies) > 1 or (bodies and fields):
        raise Unusable("it has more than one body")
    type_headers = [raw for raw in parameters if _header_name(raw) == "content-type"]
    types = [kind for raw in type_headers if (kind := text_of(raw.get("default")).strip())][:1]
    types = types or media_types(document, operation, "consumes")
    others = [_restyle(raw) for raw in parameters if not (fields and raw in type_headers)]
    if fields:
        return others, _form(fields, types)
    if not bodies:
        return others, None
    media = {"schema": bodies[0].get("schema", {})}
    return others, {**bodies[0], "content": dict.fromkeys(types or ["*/*"], media)}


def _restyle(raw: Raw) -> Raw:
    """A parameter of 2.0, which describes its values beside its name, as one of OpenAPI 3."""
    own = {key: value for key, value in raw.items() if key not in _NOT_SCHEMA}
    collection = str(raw.get("collectionFormat"))
    plain = "simple" if raw["in"] in ("path", "header") else "form"
    return {
        **raw,
        "schema": {**mapping(raw.get("schema")), **own},
        "style": _COLLECTION_STYLES.get(collection, plain),
        "explode": collection == "multi",
    }


def _form(fields: Sequence[Raw], types: Sequence[str]) -> Raw:
    has_file = any(raw.get("type") == "file" for raw in fields)
    required = [raw["name"] for raw in fields if raw.get("required") is True]
    properties = {raw["name"]: raw["schema"] for raw in fields}
    schema = {"type": "object", "properties": properties, "required": required}
    encoding = {raw["name"]: {key: raw[key] for key in ("style", "explode")} for raw in fields}
    media_type = MULTIPART if has_file or MULTIPART in types[:1] else FORM
    media = {"schema": schema, "encoding": encoding}
    return {"required": bool(required), "content": {media_type: media}}


def media_types(document: Document, operation: Operation, key: str) -> list[str]:
    """The media types of 2.0, the operation's own over the document's."""
    own = operation.raw.get(key)
    types = own if isinstance(own, list) else document.root.get(key)
    return [kind for kind in sequence(types) if isinstance(kind, str)]


# --- arguments ------------------------------------------------------------------------------------

_OUTSIDE = re.compile(r"[^A-Za-z0-9_.-]+")
_BRACKETED = re.compile(r"<([^<>]*)>")
_COMPARED = re.compile(r"[<>]=?")
_COMPARISONS = {"<": " lt ", ">": " gt ", "<=": " lte ", ">=": " gte "}
_NEVER_EMPTY = {"path": ("string", "array", "object")}  # a text may be empty elsewhere
_LEAST = {"string": "minLength", "array": "minItems", "object": "minProperties"}
_RANKS = {"important": 0, "advanced": 2}


@dataclass(frozen=True, slots=True)
class Slot:
    """One property of the tool's input."""

    argument: str
    schema: Schema
    required: bool
    rank: int = 1  # inputs are listed in this order: what matters most to people first
    raw: Any = None  # the parameter or schema as the definition writes it


class ArgumentNames:
    """The names that one tool's arguments have by now; two must differ in more than case."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wire_name: str, place: str) -> str:
        """An argument name for this name on the wire, different from all taken before."""
        if len(self._taken) > limits.MAX_WIDTH:
            raise Unusable(f"it has more than {limits.MAX_WIDTH:,} inputs")
        base = _OUTSIDE.sub("_", _spell_out(wire_name)).strip("_")[: limits.MAX_TOOL_NAME] or place
        name, turn = base, 1
        if name.lower() in self._taken:
            name = base = f"{place}_{base}"[: limits.MAX_TOOL_NAME]
        while name.lower() in self._taken:
            turn += 1
            name = f"{base[: limits.MAX_TOOL_NAME - 5]}_{turn}"
        self._taken.add(name.lower())
        return name


def has_no_ascii(name: str) -> bool:
    """Whether nothing of a name fits an argument's: names that fit are taken first."""
    return not _OUTSIDE.sub("", name)


def _spell_out(wire_name: str) -> str:
    """`DateCreated<` and `DateCreated>` with words: without them both would get the same name."""
    if "<" not in wire_name and ">" not in wire_name:
        return wire_name
    plain = _BRACKETED.sub(r" \1 ", wire_name)
    return _COMPARED.sub(lambda match: _COMPARISONS[match[0]], plain)


@dataclass(frozen=True, slots=True)
class OperationContext:
    """The context in which the arguments of one operation are made."""

    document: Document
    schemas: Schemas
    source: Source
    report: ReportIssue
    method: str
    names: ArgumentNames = field(default_factory=ArgumentNames)


def parameter_slots(
    context: OperationContext, parameters: Sequence[Raw]
) -> tuple[list[Parameter], list[Slot]]:
    """The way each parameter is sent, and the arguments the caller gives for them."""
    sent: list[Parameter] = []
    slots: list[Slot] = []
    for raw in sorted(
        parameters, key=lambda raw: (_PLACES.index(raw["in"]), has_no_ascii(raw["name"]))
    ):
        refuse_callback(raw)
        name, place = raw["name"], raw["in"]
        media_type, media = next(media_entries(raw), (None, raw))
        schema, required = mapping(media).get("schema", {}), is_required(raw)
        default = raw.get("default", context.document.find(schema).get("default"))
        # Callers are not asked for what is internal; without a default, a look-up may give it.
        hidden = is_internal(raw) and (default is not None or not required)
        argument = (
            name if hidden else context.names.take(raw.get("x-gateway-argument") or name, place)
        )
        injected = injected_name(context.source, place, name, argument)
        if injected is None and is_left_out(context, name, place):
            continue
        if hidden:
            sent.append(_parameter(raw, media_type, None, default))
            continue
        sent.append(_parameter(raw, media_type, injected or argument))
        if injected is None:
            may_be_absent = place == "query" and sent[-1].explode and sent[-1].style == "form"
            kinds = ("array",) if may_be_absent else ("array", "object")
            never_empty = () if media_type else _NEVER_EMPTY.get(place, kinds)
            slots.append(slot_of(context, raw, schema, argument, required, never_empty, name))
    return sent, slots


def is_required(raw: Raw) -> bool:
    """Whether a parameter must be given."""
    return raw["in"] == "path" or raw.get("required") is True


def _parameter(
    raw: Raw, media_type: str | None, argument: str | None, constant: Any = None
) -> Parameter:
    place: ParameterPlace = raw["in"]
    plain: Style = "form" if place in ("query", "cookie") else "simple"
    style = raw["style"] if raw.get("style") in get_args(Style) else plain
    return Parameter(
        raw["name"],
        place,
        argument,
        style,
        explode=raw["explode"] if isinstance(raw.get("explode"), bool) else style == "form",
        reserved=place == "query" and raw.get("allowReserved") is True,
        media_type=media_type,
        double_encoded=text_of(raw.get("x-ms-url-encoding")).lower() == "double",
        constant=constant,
    )


def is_left_out(context: OperationContext, name: str, place: str) -> bool:
    """Whether an input is left out, with a warning: it could make the request another one."""
    if not may_reroute(name, place):
        return False
    words = "it could make the request another one; `inject` it if the API needs it"
    context.report("warning", f"{name} ({place}) is left out: {words}")
    return True


def refuse_callback(raw: Raw) -> None:
    """Raises Unusable for a callback address, which Microsoft's designer gives and we can't."""
    if raw.get("x-ms-notification-url") is True:
        raise Unusable("it needs a callback address (webhook)")


def fold_name(place: str, name: str) -> str:
    """The name as it is compared: the case of a header does not matter."""
    return name.lower() if place == "header" else name


def injected_name(source: Source, place: str, wire_name: str, argument: str) -> str | None:
    """The name under which the connection fills an input in itself; None: callers give it."""
    if not source.inject:
        return None
    names = {fold_name(place, name) for name in (wire_name, argument)}
    return next((name for name in source.inject if fold_name(place, name) in names), None)


def rank_of(raw: Any) -> int:
    """Where an input stands among the others."""
    return _RANKS.get(text_of(mapping(raw).get("x-ms-visibility")).lower(), 1)


def slot_of(
    context: OperationContext,
    raw: Any,
    schema: Any,
    argument: str,
    required: bool,
    never_empty: Collection[str] = (),
    wire_name: str = "",
) -> Slot:
    """The input for a parameter or property; a type in `never_empty` is not sent when empty."""
    schema_here = context.schemas.translate(schema)
    described = describe_schema(schema_here, mapping(raw), argument, wire_name)
    if required and isinstance(described, dict):
        target = context.document.find(schema)
        kind = str(target.get("type", "string"))
        is_choice = kind == "string" and "enum" in target
        if kind in never_empty and not is_choice and not target.get(_LEAST[kind]):
            described[_LEAST[kind]] = 1
    return Slot(argument, described, required, rank_of(raw), raw)


def describe_schema(schema: Schema, raw: Raw, argument: str, wire_name: str = "") -> Schema:
    """The schema with the title and the description of the parameter around it."""
    if isinstance(schema, bool):
        return schema
    result = dict(schema)
    if title := phrase(raw.get("x-ms-summary"), limits.NAME_CHARS):
        result["title"] = title
    drop_echo(result, argument)
    if not wire_name.isascii():  # an argument's name is ASCII: the title has the real one
        result.setdefault("title", phrase(wire_name, limits.NAME_CHARS))
    if description := property_description(raw):
        result["description"] = description
    return result


# --- look-ups -------------------------------------------------------------------------------------

VALUES = ("x-ms-dynamic-values", "x-ms-dynamic-list", "x-ms-dynamic-tree")


def look_ups(document: Document, slots: Sequence[Slot], body: Any) -> bytes:
    """The rules by argument, "" for those of a body whose properties are arguments; b"": none."""
    rules = {slot.argument: found for slot in slots if (found := _rules(document, slot.raw))}
    if body is not None and (found := _rules(document, body)):
        rules.setdefault("body" if any(slot.raw is body for slot in slots) else "", found)
    if not rules:
        return b""
    text = json_text(rules)
    return text if len(text) <= limits.MAX_SCHEMA_BYTES else b""


def with_hint(document: Document, slot: Slot) -> Slot:
    """The input with a hint in its description: what can be looked up, and by which inputs."""
    rules = _rules(document, slot.raw)
    if not rules or not isinstance(slot.schema, dict):
        return slot
    tool = "lookup_values" if any(key in rules for key in VALUES) else "lookup_schema"
    needed = sorted(set(_rule_inputs(rules)))[:5]
    hint = f"({tool} knows more{', given ' + ', '.join(needed) if needed else ''}.)"
    words = f"{slot.schema.get('description', '')} {hint}".strip()
    return replace(slot, schema={**slot.schema, "description": words})


def operation_ids(rules: Any) -> Iterator[str]:
    """The ids of the operations that look-ups name, at any depth."""
    ids = (part.get("operationId") for part in objects_in(rules))
    return (each for each in ids if isinstance(each, str))


def _rules(document: Document, raw: Any) -> dict[str, Any]:
    try:
        whole = {**mapping(raw), **document.resolve(raw)} if raw else {}
    except Unusable:
        return {}
    keys = (*VALUES, *DYNAMIC_SCHEMAS)
    rules = {key: whole[key] for key in keys if isinstance(whole.get(key), dict)}
    capability = text_of(mapping(rules.get("x-ms-dynamic-values")).get("capability"))
    picker = mapping(document.root.get("x-ms-capabilities")).get(capability)
    if capability and isinstance(picker, Mapping):
        rules["x-ms-capabilities"] = {capability: picker}
    return rules


def _rule_inputs(rules: Raw) -> Iterator[str]:
    """The other inputs that a rule's parameters name, old form and new."""
    for rule in rules.values():
        for argument in mapping(mapping(rule).get("parameters")).values():
            reference = mapping(argument).get(
                "parameter", mapping(argument).get("parameterReference")
            )
            if isinstance(reference, str) and reference:
                yield reference.rsplit("/", 1)[-1][:64]
