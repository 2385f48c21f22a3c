"""What an operation takes and gives, in one plain form for Swagger 2.0, OpenAPI 3.0 and 3.1.

Everything version-specific about where things stand ends here: parameters come out merged,
resolved and as OpenAPI 3 writes them, form fields of 2.0 as an object schema.

A tool takes all inputs in one flat object, so names that clients can't spell are mended and names
that would meet are told apart: `name` stays where it is first needed (path, query, header, cookie,
body in this order), a later one says where it goes: `query_name`, `body_name`. Rules for look-ups
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
from gateway.model import OWN_HEADERS, Parameter, Place, Source, Style
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
from gateway.openapi.keywords import DYNAMIC_SCHEMAS, written
from gateway.openapi.schema import Report, Schema, Schemas, drop_echo

Raw = Mapping[str, Any]
_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})  # says OpenAPI 3
# What a request has anyway is spelled in one way, so that a parameter can take its place.
_SPELLED = {"accept": "Accept", "content-type": "Content-Type"}
_PLACES: tuple[Place, ...] = get_args(Place)
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
    raw: Raw  # what is written around it


def read_request(document: Document, operation: Operation) -> tuple[list[Raw], Raw]:
    """The parameters outside the body, and the body ({}: none), both as OpenAPI 3 writes them."""
    listed, body = _parameters(document, operation), operation.raw.get("requestBody")
    ignored = OWN_HEADERS if document.swagger else OWN_HEADERS | _IGNORED_HEADERS
    if document.swagger:
        listed, body = _from_swagger(document, operation, listed)
    found: list[Raw] = [
        {**raw, "name": _SPELLED.get(_header_name(raw), raw["name"])}
        for raw in listed
        if raw["in"] in _PLACES and _header_name(raw) not in ignored
    ]
    return found, {} if body is None else document.resolve(body)


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
    """What is written for each media type."""
    entries = mapping(raw.get("content")).items()
    return ((kind, media) for kind, media in entries if len(kind) <= limits.MAX_WIRE_NAME)


def contents_of(document: Document, raw: Raw) -> tuple[Content, ...]:
    """The body of a request or an answer in each media type it may have."""
    return tuple(
        Content(media_type, media.get("schema"), mapping(media.get("encoding")), raw)
        for media_type, written in media_entries(raw)
        for media in (document.find(written),)
    )


# --- Swagger 2.0 ----------------------------------------------------------------------------------


def _from_swagger(
    document: Document, operation: Operation, listed: Sequence[Raw]
) -> tuple[list[Raw], Raw | None]:
    """Parameters as OpenAPI 3 writes them, and the body that some of them are."""
    bodies = [raw for raw in listed if raw["in"] == "body"]
    fields = [_styled(raw) for raw in listed if raw["in"] == "formData"]
    if len(bodies) > 1 or (bodies and fields):
        raise Unusable("it has more than one body")
    announced = [raw for raw in listed if _header_name(raw) == "content-type"]
    types = [kind for raw in announced if (kind := text_of(raw.get("default")).strip())][:1]
    types = types or media_types(document, operation, "consumes")
    others = [_styled(raw) for raw in listed if not (fields and raw in announced)]
    if fields:
        return others, _form(fields, types)
    if not bodies:
        return others, None
    media = {"schema": bodies[0].get("schema", {})}
    return others, {**bodies[0], "content": dict.fromkeys(types or ["*/*"], media)}


def _styled(raw: Raw) -> Raw:
    """A 2.0 parameter describes its values beside its name (a few use `schema` all the same)."""
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
    listed = own if isinstance(own, list) else document.root.get(key)
    return [kind for kind in sequence(listed) if isinstance(kind, str)]


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
    rank: int = 1  # what matters most to people comes first
    raw: Any = None  # as the definition writes it


class ArgumentNames:
    """The names one tool's arguments have taken so far; case alone does not tell two apart."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wire_name: str, place: str) -> str:
        """A name for what the wire calls so, unlike any taken before."""
        if len(self._taken) > limits.MAX_WIDTH:
            raise Unusable(f"it has more than {limits.MAX_WIDTH:,} inputs")
        wanted = (
            _OUTSIDE.sub("_", _spelled_out(wire_name)).strip("_")[: limits.MAX_TOOL_NAME] or place
        )
        name, turn = wanted, 1
        if name.lower() in self._taken:
            name = wanted = f"{place}_{wanted}"[: limits.MAX_TOOL_NAME]
        while name.lower() in self._taken:
            turn += 1
            name = f"{wanted[: limits.MAX_TOOL_NAME - 5]}_{turn}"
        self._taken.add(name.lower())
        return name


def _spelled_out(wire_name: str) -> str:
    """`DateCreated<` and `DateCreated>` as words: the difference is all there is to them."""
    if "<" not in wire_name and ">" not in wire_name:
        return wire_name
    plain = _BRACKETED.sub(r" \1 ", wire_name)
    return _COMPARED.sub(lambda found: _COMPARISONS[found[0]], plain)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the arguments of one operation are made with."""

    document: Document
    schemas: Schemas
    source: Source
    report: Report
    method: str
    names: ArgumentNames = field(default_factory=ArgumentNames)


def parameter_slots(
    around: Surroundings, listed: Sequence[Raw]
) -> tuple[list[Parameter], list[Slot]]:
    """How each parameter is sent, and the arguments the caller gives for them."""
    sent: list[Parameter] = []
    slots: list[Slot] = []
    for raw in sorted(listed, key=lambda raw: _PLACES.index(raw["in"])):
        refuse_callback(raw)
        name, place = raw["name"], raw["in"]
        media_type, media = next(media_entries(raw), (None, raw))
        schema, required = mapping(media).get("schema", {}), is_required(raw)
        default = raw.get("default", around.document.find(schema).get("default"))
        # Nobody is asked for what is internal; a look-up may give it where there is no default.
        hidden = is_internal(raw) and (default is not None or not required)
        argument = (
            name if hidden else around.names.take(raw.get("x-gateway-argument") or name, place)
        )
        injected = injected_as(around.source, place, name, argument)
        if injected is None and leaves_out(around, name, place):
            continue
        if hidden:
            sent.append(_parameter(raw, media_type, None, default))
            continue
        sent.append(_parameter(raw, media_type, injected or argument))
        if injected is None:
            never_empty = () if media_type else _NEVER_EMPTY.get(place, ("array", "object"))
            slots.append(slot_of(around, raw, schema, argument, required, never_empty))
    return sent, slots


def is_required(raw: Raw) -> bool:
    """Whether a parameter must be given."""
    return raw["in"] == "path" or raw.get("required") is True


def _parameter(
    raw: Raw, media_type: str | None, argument: str | None, constant: Any = None
) -> Parameter:
    place: Place = raw["in"]
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


def leaves_out(around: Surroundings, name: str, place: str) -> bool:
    """Whether this could make the request another one, and so is not asked for; a word if so."""
    if not may_reroute(name, place):
        return False
    words = "it could make the request another one; `inject` it if the API needs it"
    around.report("warning", f"{name} ({place}) is left out: {words}")
    return True


def refuse_callback(raw: Raw) -> None:
    """Raise Unusable for an address that Microsoft's designer gives: nobody here can be called."""
    if raw.get("x-ms-notification-url") is True:
        raise Unusable("it needs a callback address (webhook)")


def folded(place: str, name: str) -> str:
    """The name as it is compared: headers know no case."""
    return name.lower() if place == "header" else name


def injected_as(source: Source, place: str, wire_name: str, argument: str) -> str | None:
    """The name under which the connection fills this in itself, so that nobody is asked for it."""
    if not source.inject:
        return None
    names = {folded(place, name) for name in (wire_name, argument)}
    return next((name for name in source.inject if folded(place, name) in names), None)


def rank_of(raw: Any) -> int:
    """Where an input stands among the others."""
    return _RANKS.get(text_of(mapping(raw).get("x-ms-visibility")).lower(), 1)


def slot_of(
    around: Surroundings,
    raw: Any,
    schema: Any,
    argument: str,
    required: bool,
    never_empty: Collection[str] = (),
) -> Slot:
    """The input for what is written so; a value of these types that is empty is not sent at all."""
    found = described(around.schemas.translate(schema), mapping(raw), argument)
    if required and isinstance(found, dict):
        said = around.document.find(schema)
        kind = str(said.get("type", "string"))
        is_listed = kind == "string" and "enum" in said
        if kind in never_empty and not is_listed and not said.get(_LEAST[kind]):
            found[_LEAST[kind]] = 1
    return Slot(argument, found, required, rank_of(raw), raw)


def described(schema: Schema, raw: Raw, argument: str) -> Schema:
    """The schema with what the parameter around it says in words."""
    if isinstance(schema, bool):
        return schema
    result = dict(schema)
    if title := phrase(raw.get("x-ms-summary"), limits.NAME_CHARS):
        result["title"] = title
    drop_echo(result, argument)
    if description := property_description(raw):
        result["description"] = description
    return result


# --- look-ups -------------------------------------------------------------------------------------

VALUES = ("x-ms-dynamic-values", "x-ms-dynamic-list", "x-ms-dynamic-tree")


def look_ups(document: Document, slots: Sequence[Slot], body: Any) -> bytes:
    """The rules by argument, "" for those of a body that was taken apart; b"" if there are none."""
    rules = {slot.argument: found for slot in slots if (found := _rules(document, slot.raw))}
    if body is not None and (found := _rules(document, body)):
        rules.setdefault("body" if any(slot.raw is body for slot in slots) else "", found)
    if not rules:
        return b""
    text = written(rules)
    return text if len(text) <= limits.MAX_SCHEMA_BYTES else b""


def with_hint(document: Document, slot: Slot) -> Slot:
    """The input, its description saying what can be looked up and what that depends on."""
    rules = _rules(document, slot.raw)
    if not rules or not isinstance(slot.schema, dict):
        return slot
    tool = "lookup_values" if any(key in rules for key in VALUES) else "lookup_schema"
    needed = sorted(set(_inputs(rules)))[:5]
    hint = f"({tool} knows more{', given ' + ', '.join(needed) if needed else ''}.)"
    words = f"{slot.schema.get('description', '')} {hint}".strip()
    return replace(slot, schema={**slot.schema, "description": words})


def operation_ids(rules: Any) -> Iterator[str]:
    """The operations that look-ups name, at whatever depth their form has them."""
    found = (part.get("operationId") for part in objects_in(rules))
    return (each for each in found if isinstance(each, str))


def _rules(document: Document, raw: Any) -> dict[str, Any]:
    try:
        found = {**mapping(raw), **document.resolve(raw)} if raw else {}
    except Unusable:
        return {}
    keys = (*VALUES, *DYNAMIC_SCHEMAS)
    rules = {key: found[key] for key in keys if isinstance(found.get(key), dict)}
    capability = text_of(mapping(rules.get("x-ms-dynamic-values")).get("capability"))
    picker = mapping(document.root.get("x-ms-capabilities")).get(capability)
    if capability and isinstance(picker, Mapping):
        rules["x-ms-capabilities"] = {capability: picker}
    return rules


def _inputs(rules: Raw) -> Iterator[str]:
    """The other inputs that a rule's parameters name, old form and new."""
    for rule in rules.values():
        for argument in mapping(mapping(rule).get("parameters")).values():
            reference = mapping(argument).get(
                "parameter", mapping(argument).get("parameterReference")
            )
            if isinstance(reference, str) and reference:
                yield reference.rsplit("/", 1)[-1][:64]
