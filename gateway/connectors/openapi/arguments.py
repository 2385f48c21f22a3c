"""From the parameters of an operation to arguments of a tool.

One flat object takes them all, so names that clients can't spell are mended and names that would
meet are told apart: `name` stays where it is first needed (path, query, header, cookie, body in
this order), a later one says where it goes: `query_name`, `body_name`. The wire keeps its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.blocklist import left_out, may_reroute
from gateway.connectors.openapi.document import (
    Document,
    Made,
    Unusable,
    is_internal,
    mapping,
    resolved,
    spend,
    text_of,
)
from gateway.connectors.openapi.inputs import MAX_INPUTS, Input
from gateway.connectors.openapi.schema import Schema, Schemas
from gateway.connectors.openapi.security import folded
from gateway.connectors.openapi.wording import MAX_TITLE, phrase, property_description
from gateway.model import Parameter, Source

MAX_ARGUMENT = 64
MAX_CONSTANT = 16 * 1024
_OUTSIDE = re.compile(r"[^A-Za-z0-9_.-]+")
_BRACKETED = re.compile(r"<([^<>]*)>")
_COMPARED = re.compile(r"[<>]=?")
_COMPARISONS = {"<": " lt ", ">": " gt ", "<=": " lte ", ">=": " gte "}
_PLACES = ("path", "query", "header", "cookie")
_NOTHING: Mapping[str, int] = {}
_LEAST = {"string": "minLength", "array": "minItems", "object": "minProperties"}
_RANKS = {"important": 0, "advanced": 2}


@dataclass(frozen=True, slots=True)
class Slot:
    """One property of the tool's input."""

    argument: str
    schema: Schema
    refs: tuple[str, ...]
    required: bool
    rank: int = 1  # what matters most to people comes first
    raw: Any = None  # as the definition writes it


class ArgumentNames:
    """The names one tool's arguments have taken so far; case alone does not tell two apart."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wire_name: str, place: str) -> str:
        """A name for what the wire calls so, unlike any taken before."""
        if len(self._taken) > MAX_INPUTS:
            raise Unusable(f"it has more than {MAX_INPUTS:,} inputs")
        wanted = _OUTSIDE.sub("_", _spelled_out(wire_name)).strip("_")[:MAX_ARGUMENT] or place
        name, turn = wanted, 1
        if name.lower() in self._taken:
            name = wanted = f"{place}_{wanted}"[:MAX_ARGUMENT]
        while name.lower() in self._taken:
            turn += 1
            name = f"{wanted[: MAX_ARGUMENT - 5]}_{turn}"
        self._taken.add(name.lower())
        return name


def _spelled_out(wire_name: str) -> str:
    """`DateCreated<` and `DateCreated>` as words: the difference is all there is to them."""
    if "<" not in wire_name and ">" not in wire_name:
        return wire_name
    plain = _BRACKETED.sub(r" \1 ", wire_name)
    return _COMPARED.sub(lambda found: _COMPARISONS[found[0]], plain)


def parameter_slots(
    document: Document,
    inputs: Sequence[Input],
    names: ArgumentNames,
    schemas: Schemas,
    source: Source,
) -> tuple[list[Parameter], list[Slot]]:
    """How each parameter is sent, and the arguments the caller gives for them."""
    sent: list[Parameter] = []
    slots: list[Slot] = []
    for given in sorted(inputs, key=lambda each: _PLACES.index(each.place)):
        default = _default_of(document, given)
        internal = is_internal(given.raw)
        if internal and default is not None:
            sent.append(_parameter(given, None, constant(document, default)))
            continue
        if internal and not given.required:
            sent.append(_parameter(given, None, None))  # nobody is asked; a look-up may give it
            continue
        argument = names.take(given.name, given.place)
        injected = injected_as(source, given.place, given.name, argument)
        sent.append(_parameter(given, injected or argument, None))
        if injected is None:
            least = _least(document, given) if given.required else {}
            slot = remembered_slot(
                schemas, given.raw, argument, given.required, given.schema, least
            )
            slots.append(slot)
    return sent, slots


def injected_as(source: Source, place: str, wire_name: str, argument: str) -> str | None:
    """The name under which the connection fills this in itself, so that nobody is asked for it."""
    names = {folded(place, name) for name in (wire_name, argument)}
    return next((name for name in source.inject if folded(place, name) in names), None)


def without_detours(
    source: Source,
    report: Callable[[str, str], None],
    sent: list[Parameter],
    slots: list[Slot],
) -> tuple[list[Parameter], list[Slot]]:
    """The same without what would make the request another one, unless the connection gives it."""
    injected = set(source.inject)
    out = [
        each
        for each in sent
        if may_reroute(each.name, each.place) and injected.isdisjoint((each.name, each.argument))
    ]
    for each in out:
        report("warning", left_out(each.name, each.place))
    arguments = {each.argument for each in out}
    kept = [each for each in sent if each not in out]
    return kept, [slot for slot in slots if slot.argument not in arguments]


def constant(document: Document, value: Any) -> Any:
    """A value that is sent without being asked for; one that is too large to keep is refused."""
    size = len(orjson.dumps(value)) if isinstance(value, (str, dict, list)) else 1
    if size > MAX_CONSTANT:
        raise Unusable("it has a default that is too large to be filled in")
    spend(document, size // 50)
    return value


def rank_of(raw: Any) -> int:
    """Where an input stands among the others."""
    return _RANKS.get(text_of(mapping(raw).get("x-ms-visibility")).lower(), 1)


def remembered_slot(
    schemas: Schemas,
    raw: Any,
    argument: str,
    required: bool,
    schema: Any = None,
    least: Mapping[str, int] = _NOTHING,
) -> Slot:
    """The input for what is written so; shared parameters and bodies are described once."""
    if isinstance(raw, Made):
        return _slot(schemas, raw, argument, required, schema, least)
    known = schemas.remembered.get(id(raw), {})
    if (argument, required) not in known:
        known[argument, required] = _slot(schemas, raw, argument, required, schema, least)
        schemas.remembered[id(raw)] = known
    found: Slot = known[argument, required]
    return found


def _slot(
    schemas: Schemas,
    raw: Any,
    argument: str,
    required: bool,
    schema: Any,
    least: Mapping[str, int],
) -> Slot:
    fragment = schemas.translate(raw) if schema is None else schemas.translated(schema)
    words = described(fragment.schema, mapping(raw), argument)
    if least and isinstance(words, dict):
        words = {**words, **least}
    return Slot(argument, words, fragment.refs, required, rank_of(raw), raw)


def described(schema: Schema, raw: Mapping[str, Any], argument: str) -> Schema:
    """The schema with what the parameter around it says in words."""
    if isinstance(schema, bool):
        return schema
    result = dict(schema)
    if title := phrase(raw.get("x-ms-summary"), MAX_TITLE):
        result["title"] = title
    if _letters(str(result.get("title", ""))) == _letters(argument):
        result.pop("title", None)
    if description := property_description(raw):
        result["description"] = description
    return result


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).lower()


def _parameter(given: Input, argument: str | None, constant: Any) -> Parameter:
    return Parameter(
        name=given.name,
        place=given.place,
        argument=argument,
        style=given.style,
        explode=given.explode,
        reserved=given.reserved,
        media_type=given.media_type,
        double_encoded=text_of(given.raw.get("x-ms-url-encoding")).lower() == "double",
        constant=constant,
    )


def _least(document: Document, given: Input) -> Mapping[str, int]:
    """Outside of a body, what is empty is not there at all; but for a text in a query or header."""
    try:
        schema = resolved(document, given.schema)
    except Unusable:
        return _NOTHING
    least = _LEAST.get(str(schema.get("type", "string")), "")
    may_be_empty = least == "minLength" and given.place != "path"
    if not least or may_be_empty or schema.get(least) or "enum" in schema or given.media_type:
        return _NOTHING
    return {least: 1}


def _default_of(document: Document, given: Input) -> Any:
    if "default" in given.raw:
        return given.raw["default"]
    try:
        return resolved(document, given.schema).get("default")
    except Unusable:
        return None
