"""From a look-up's rule and what is known of the tool's inputs to the arguments of its call. Pure.

Rules speak of the names in the definition; a tool's inputs may be called otherwise, be filled in by
the connection, or be fixed. Both sides are translated here, by how the tool's request is made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.errors import Fixable
from gateway.invoke.lookup_rules import MISSING, Literal, Reference, Selected, Step, steps, walk
from gateway.model import HttpOperation, Tool


@dataclass(frozen=True, slots=True)
class Known:
    """What the caller knows of a tool's inputs, by their names there, and what we fill in."""

    tool: Tool
    values: Mapping[str, Any]
    injected: Mapping[str, Any]
    node: Any = None  # the folder that was chosen


@dataclass(frozen=True, slots=True)
class Call:
    """A tool to be called, and what with."""

    tool: Tool
    arguments: Mapping[str, Any]


def call_of(step: Step, target: Tool, known: Known, wanted: str) -> Call:
    """The call that a step makes; raises Fixable for what must be known first."""
    assert target.http is not None
    schema = orjson.loads(target.input_schema)
    required = frozenset(schema.get("required", ()))
    arguments: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    missing: list[str] = []
    for name, argument in step.arguments.items():
        place = _place(target.http, tuple(part for part in name.split("/") if part))
        value = _value(argument, known)
        if value is MISSING:
            if place is not None and place.argument in required:
                missing.append(_needed(argument, known))
        elif place is not None and value is not None:
            _put(arguments, fixed, place, value)
    if missing:
        raise _unknown(known.tool, wanted, missing, known)
    for name, property_ in schema.get("properties", {}).items():
        if name in required and isinstance(property_, dict) and "default" in property_:
            arguments.setdefault(name, property_["default"])
    return Call(_with_fixed(target, fixed), arguments)


def _value(argument: Literal | Reference | Selected, known: Known) -> Any:
    if isinstance(argument, Literal):
        return argument.value
    if isinstance(argument, Reference):
        return _input(known, argument.path)
    if isinstance(known.node, dict):  # as we gave it out: the path is its key
        return known.node.get(argument.path, walk(known.node, argument.path))
    return MISSING if known.node is None else known.node


def _input(known: Known, path: Sequence[str]) -> Any:
    """The value of an input that a rule names, from wherever it is known."""
    assert known.tool.http is not None
    place = _place(known.tool.http, path)
    if place is None:
        return walk(known.values, path)
    if place.argument is None:
        return MISSING if place.constant is None else walk(place.constant, place.rest)
    for source in (known.values, known.injected):
        if place.argument in source:
            return walk(source[place.argument], place.rest)
    return MISSING if place.constant is None else walk(place.constant, place.rest)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value goes in a request: an argument, or a name whose value is fixed."""

    name: str
    argument: str | None
    constant: Any = None
    rest: tuple[str, ...] = ()


def _place(http: HttpOperation, path: Sequence[str]) -> _Place | None:
    """The place a rule's name means: a parameter, or a property of the body by whatever name."""
    if not path:
        return None
    name, *rest = path
    for parameter in http.parameters:
        if parameter.name == name:
            return _Place(name, parameter.argument, parameter.constant, tuple(rest))
    body = http.body
    if body is None:
        return None
    if body.whole is not None:
        return _Place("", body.whole, rest=tuple(rest))
    for wanted, inner in ((rest[:1], rest[1:]), ([name], rest)):
        for field in body.fields:
            if [field.name] == wanted:
                return _Place(field.name, field.argument, rest=tuple(inner))
    return None


def _put(arguments: dict[str, Any], fixed: dict[str, Any], place: _Place, value: Any) -> None:
    if place.argument is None:
        fixed[place.name] = value
        return
    if not place.rest:
        arguments[place.argument] = value
        return
    inside = arguments.setdefault(place.argument, {})
    for part in place.rest[:-1]:
        inside = inside.setdefault(part, {})
    inside[place.rest[-1]] = value


def _with_fixed(tool: Tool, fixed: Mapping[str, Any]) -> Tool:
    """The tool with other values for what its callers are not asked for."""
    if not fixed or tool.http is None:
        return tool
    parameters = tuple(
        replace(parameter, constant=fixed[parameter.name])
        if parameter.argument is None and parameter.name in fixed
        else parameter
        for parameter in tool.http.parameters
    )
    return replace(tool, http=replace(tool.http, parameters=parameters))


# --- what is not known ----------------------------------------------------------------------------


def _needed(argument: Literal | Reference | Selected, known: Known) -> str:
    """The tool's own name for the input that an argument comes from."""
    if not isinstance(argument, Reference):
        return "the folder to open"
    assert known.tool.http is not None
    place = _place(known.tool.http, argument.path)
    name = place.argument if place is not None and place.argument else argument.path[-1]
    return "/".join((name, *place.rest)) if place is not None and place.rest else name


def _unknown(tool: Tool, wanted: str, missing: Sequence[str], known: Known) -> Fixable:
    needed = list(dict.fromkeys(missing))
    rules = orjson.loads(tool.lookups)
    if circle := _circle(wanted, rules, known):
        return Fixable(
            "invalid_arguments",
            f"the look-ups of {' and '.join(circle)} wait for each other",
            f"Give the value of {circle[-1]} in `known` from another source.",
        )
    listed = [name for name in needed if name.partition("/")[0] in rules]
    hint = f"Look up {listed[0]} first." if listed else "Give them in `known`."
    words = f"to look up {wanted or 'the schema'}, `known` must hold {', '.join(needed)}"
    return Fixable("invalid_arguments", words, hint, needed=needed)


def _circle(wanted: str, rules: Mapping[str, Any], known: Known) -> list[str]:
    """The inputs, from the one that is wanted, that can only be looked up through each other."""
    trail, waiting = [wanted], wanted
    while waiting in rules and len(trail) <= len(rules):
        needed = [
            name
            for step in steps(rules[waiting])
            for argument in step.arguments.values()
            if isinstance(argument, Reference)
            for name in [_needed(argument, known).partition("/")[0]]
            if name in rules and name not in known.values and name != waiting
        ]
        if not needed:
            return []
        waiting = needed[0]
        if waiting == wanted:
            return trail
        trail.append(waiting)
    return []
