"""Arguments are checked strictly before anything is sent, and every problem is named at once.

The check itself is one call of a compiled validator, kept by the tool's schema; `oneOf` counts as
`anyOf`, since alternatives overlap. Only arguments that fail it are looked at again: what the check
misses and the schema has a default for is filled in, then each problem is put into words, with its
place and the nearest known name. A lenient connection sends values inside a body that are not what
its definition says, with a warning. Constants that an API wants and nobody is asked for are filled
in last, in the same way.

Schemas are somebody else's text: references are never fetched, formats are not asserted, patterns
run in linear time. A schema that refers to itself in several ways at one place asks several times
as much of each level below it. Fourteen levels of a small one then take hours, in work that nothing
can interrupt. The validator remembers what it found where a schema goes in a circle, but not where
references only multiply, nor when it says what is wrong. So the work is counted first: what is
asked of the same value by the same part counts once, however often it would be done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from difflib import SequenceMatcher, get_close_matches
from functools import cache, lru_cache
from itertools import islice
from math import inf
from typing import Any

import orjson
from jsonschema_rs import (
    Draft202012Validator,
    FancyRegexOptions,
    RegexOptions,
    ValidationError,
    ValidationErrorKind,
)
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from gateway.calls.redact import names_a_secret
from gateway.errors import Fixable
from gateway.limits import (
    CHECK_STEPS,
    MAX_LEVELS,
    MAX_QUOTE_CHARS,
    MAX_REMEMBERED,
    MAX_TOLD_ITEMS,
)
from gateway.model import CONSTANTS, Tool, unpack
from gateway.naming import cut

_NEVER_FORGIVEN = (
    ValidationErrorKind.Required,
    ValidationErrorKind.AdditionalProperties,
    ValidationErrorKind.UnevaluatedProperties,
)
_ALTERNATIVES = (ValidationErrorKind.AnyOf, ValidationErrorKind.OneOfNotValid)
_LENIENT_HINT = (
    " If the API takes such a body all the same, an operator may set"
    ' validation = "lenient" for the connection.'
)

Problems = list[dict[str, str]]  # each with its path and message
Schema = Any
_MISSING = object()
_MASK = "\x00"  # in place of a value in the words for what is wrong with it


def check_arguments(schema: bytes, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that do not fit the schema."""
    given, checker = _as_json(arguments), _checker(schema)
    if not checker.fits(given):
        parsed = _parsed(schema)
        words = (each for error in checker.errors(given) for each in _worded(error, parsed))
        raise _refusal([*islice(words, MAX_TOLD_ITEMS + 1)])


def fitting_arguments(
    tool: Tool, arguments: Mapping[str, Any], *, lenient: bool = False
) -> tuple[dict[str, Any], Problems]:
    """A tool's arguments with what is filled in for the caller, and what to warn the caller of."""
    given, warnings = _as_json(arguments), Problems()
    checker = _checker(tool.input_schema)
    if not checker.fits(given):
        if b'"default"' in tool.input_schema:
            given = _default_filler(tool.input_schema).filled(given)
        if not checker.fits(given):
            warnings = _forgiven(tool, checker.errors(given), lenient)
    constants = _constants_filler(tool.whole_schema) if tool.whole_schema else None
    return constants.filled(given) if constants else given, warnings


def problem(argument: str, message: str) -> Fixable:
    """The refusal for one argument that fits its schema and still can't be used."""
    return _refusal([{"path": _pointer([argument]), "message": message}])


def _as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse what our parsers may let in and JSON, or what we write it with, does not have."""
    arguments = arguments if isinstance(arguments, dict) else dict(arguments)
    try:
        written = orjson.dumps(arguments)  # NaN and infinity become null: the slow one tells
        if b"null" in written and orjson.loads(written) != arguments:
            json.dumps(arguments, allow_nan=False)
    except TypeError:
        words = "is nested too deeply, or holds half a character or a number of over 64 bits"
        raise _refusal([{"path": "", "message": words}]) from None
    except ValueError:
        raise _refusal([{"path": "", "message": "holds a number that JSON can't"}]) from None
    return arguments


class _Checker:
    """A schema, compiled; and what counts the work, where that might never end."""

    def __init__(self, schema: Schema) -> None:
        self._validator = _compiled(schema)
        references = _References(schema)
        is_large = _is_large(schema, references, circle=inf)
        self._toll = _Toll(schema, references) if is_large else None
        self._counts_always = is_large and _is_large(schema, references, circle=0)

    def fits(self, arguments: dict[str, Any]) -> bool:
        """Whether the arguments fit."""
        if self._counts_always:
            self._count(arguments)
        return self._validator.is_valid(arguments)

    def errors(self, arguments: dict[str, Any]) -> Iterator[ValidationError]:
        """What does not fit, as far as anyone would read."""
        self._count(arguments)
        return islice(self._validator.iter_errors(arguments), CHECK_STEPS)

    def _count(self, arguments: dict[str, Any]) -> None:
        if self._toll is not None and self._toll.is_too_much(arguments):
            raise _refusal([{"path": "", "message": "is nested too deeply to be checked"}])


@lru_cache(maxsize=MAX_REMEMBERED)
def _checker(schema: bytes) -> _Checker:
    return _Checker(_parsed(schema))


def _parsed(text: bytes) -> Schema:
    schema = orjson.loads(text)
    return _readied(schema) if any(mark in text for mark in _MARKS) else schema


_MARKS = (b'"oneOf"', CONSTANTS.encode())


def _readied(part: Schema) -> Schema:
    """The schema with `anyOf` for every `oneOf`, and constants as properties with one value."""
    if isinstance(part, list):
        return [_readied(each) for each in part]
    if not isinstance(part, dict):
        return part
    ready = {key: _readied(each) for key, each in part.items() if key != CONSTANTS}
    if isinstance(ready.get("oneOf"), list):  # else it is a property of this name
        ready["allOf"] = [*ready.get("allOf", ()), {"anyOf": ready.pop("oneOf")}]
    if constants := part.get(CONSTANTS):
        fixed = {n: {"const": v, "default": v, CONSTANTS: True} for n, v in constants.items()}
        ready["properties"] = {**mapping_in(ready, "properties"), **fixed}
        ready["required"] = [*list_in(ready, "required"), *constants]
    return ready


def _compiled(schema: Schema) -> Draft202012Validator:
    # Most patterns fit the linear engine; the few that look around get a bound instead.
    for engine in (RegexOptions(), FancyRegexOptions(backtrack_limit=CHECK_STEPS)):
        try:
            return Draft202012Validator(
                schema, validate_formats=False, offline=True, pattern_options=engine, mask=_MASK
            )
        except (ValidationError, ValueError) as error:
            unusable = error
    raise Fixable(
        "connection_invalid",
        "The input schema of this tool can't be used.",
        "Refresh the connection, or report it to an operator.",
    ) from unusable


def _refusal(problems: Problems, hint: str = "") -> Fixable:
    shown = problems[:MAX_TOLD_ITEMS]
    words = "; ".join(f"{p['path'] or 'arguments'}: {p['message']}" for p in shown)
    more = "; and more" if len(problems) > len(shown) else ""
    return Fixable(
        "invalid_arguments",
        f"Invalid arguments: {words}{more}",
        f"Correct the arguments named and call again.{hint}",
        problems=shown,
    )


# --- what is filled in ----------------------------------------------------------------------------

Fix = tuple[Sequence[str | int], str | int, Any]  # where a value goes, its name there, and itself


class _Filler:
    """Fills in what the check misses: required values with a default, and constants.

    Among alternatives that all fail, the first counts of which nothing else is missing. A value
    that the caller gave is never replaced but by a constant.
    """

    def __init__(self, schema: Schema, checker: _Checker) -> None:
        self._schema = schema
        self._checker = checker
        self._references = _References(schema)
        self._steps = 0

    def filled(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with what is missing, as far as that can be known."""
        filled: dict[str, Any] = orjson.loads(orjson.dumps(arguments))
        self._steps = 0
        for _ in range(MAX_LEVELS):
            fixes = [fix for error in self._checker.errors(filled) for fix in self._fixes(error)]
            for path, name, value in sorted(fixes, key=lambda fix: -len(fix[0])):
                inside: Any = filled
                for step in path:
                    inside = inside[step]
                inside[name] = deepcopy(value)
            if not fixes or self._checker.fits(filled):
                break
        return filled

    def _fixes(self, error: ValidationError) -> list[Fix]:
        """What mends the error; empty where nothing does."""
        kind, path = error.kind, error.instance_path
        if isinstance(kind, _ALTERNATIVES):
            branches = ([self._fixes(each) for each in branch] for branch in kind.context)
            chosen = next((fixes for fixes in branches if all(fixes)), [])
            return [fix for fixes in chosen for fix in fixes]
        part = _around(self._schema, error)
        if isinstance(kind, ValidationErrorKind.Constant) and CONSTANTS in part:
            return [(path[:-1], path[-1], part["const"])]
        if isinstance(kind, ValidationErrorKind.Required):
            value = self._default(mapping_in(part, "properties").get(kind.property))
            return [(path, kind.property, value)] if value is not _MISSING else []
        return []

    def _default(self, part: Schema, level: int = 0) -> Any:
        """What a value is if nobody gives it: its default, or an object all of defaults."""
        self._steps += 1
        if not isinstance(part, dict) or level > MAX_LEVELS or self._steps > CHECK_STEPS:
            return _MISSING
        if "default" in part:
            return part["default"]
        for same in (*self._references.targets(part), *list_in(part, "allOf")):
            if (found := self._default(same, level + 1)) is not _MISSING:
                return found
        made = {}
        for name in list_in(part, "required"):
            made[name] = self._default(mapping_in(part, "properties").get(name), level + 1)
            if made[name] is _MISSING:
                return _MISSING
        return made or _MISSING


@lru_cache(maxsize=MAX_REMEMBERED)
def _default_filler(schema: bytes) -> _Filler:
    return _Filler(_parsed(schema), _checker(schema))


@lru_cache(maxsize=MAX_REMEMBERED)
def _constants_filler(whole_schema: bytes) -> _Filler | None:
    """What fills in the constants of a packed schema, where it has any."""
    text = unpack(whole_schema)
    if CONSTANTS.encode() not in text:
        return None
    schema = _parsed(text)
    return _Filler(schema, _Checker(schema))


# --- the words ------------------------------------------------------------------------------------


def _forgiven(tool: Tool, errors: Iterator[ValidationError], lenient: bool) -> Problems:
    """What the caller is only warned of; raises where there is more."""
    schema, problems, warnings = _parsed(tool.input_schema), Problems(), Problems()
    body = tool.http.body if tool.http else None
    for error in errors:
        if len(problems) > MAX_TOLD_ITEMS:
            break
        is_unknown = isinstance(error.kind, ValidationErrorKind.AdditionalProperties)
        if is_unknown and not error.instance_path and body is not None and body.all_but is not None:
            # Properties that the body does not name; one that looks misspelt is meant otherwise.
            for name, near in _unknown_names(error, schema):
                misspelt = SequenceMatcher(None, name.lower(), (near or "").lower()).ratio() >= 0.8
                listed = problems if misspelt and not lenient else warnings
                sent = "" if listed is problems else "; it was sent in the body as it is"
                listed.append({"path": _pointer([name]), "message": f"{_unknown(near)}{sent}"})
        else:
            forgiven = lenient and _is_value_in_body(tool, error)
            (warnings if forgiven else problems).extend(_worded(error, schema))
    if problems:
        raise _refusal(problems, "" if lenient else _LENIENT_HINT)
    return warnings[:MAX_TOLD_ITEMS]


def _is_value_in_body(tool: Tool, error: ValidationError) -> bool:
    beside = {each.argument for each in tool.http.parameters} if tool.http else set[str | None]()
    in_body = bool(error.instance_path) and error.instance_path[0] not in beside
    return in_body and not isinstance(error.kind, _NEVER_FORGIVEN)


def _worded(error: ValidationError, schema: Any) -> Iterator[dict[str, str]]:
    kind, path = error.kind, error.instance_path
    if isinstance(kind, ValidationErrorKind.AdditionalProperties):
        for name, near in _unknown_names(error, schema):
            yield {"path": _pointer([*path, name]), "message": _unknown(near)}
    elif isinstance(kind, ValidationErrorKind.Required):
        yield {"path": _pointer([*path, str(kind.property)]), "message": "is required"}
    elif isinstance(kind, _ALTERNATIVES):
        yield from _closest(error, kind.context, schema)
    else:
        words = error.message.replace(_MASK, _value(error), 1)
        yield {"path": _pointer(path), "message": cut(words, MAX_QUOTE_CHARS)}


def _closest(
    error: ValidationError, branches: Sequence[Sequence[ValidationError]], schema: Any
) -> Iterator[dict[str, str]]:
    """The problems of the alternative that comes nearest: one whose own type at least fits."""
    depth = len(error.instance_path)
    fitting = [
        branch
        for branch in branches
        if not any(_is_mismatch(each) and len(each.instance_path) == depth for each in branch)
    ]
    if fitting:
        for each in min(fitting, key=len):
            yield from _worded(each, schema)
        return
    types = [t for b in branches for e in b if _is_mismatch(e) for t in e.kind.as_dict()["types"]]
    words = " or ".join(dict.fromkeys(types)) or "any of the forms allowed here"
    yield {"path": _pointer(error.instance_path), "message": f"{_value(error)} is not {words}"}


def _is_mismatch(error: ValidationError) -> bool:
    return isinstance(error.kind, ValidationErrorKind.Type)


def _value(error: ValidationError) -> str:
    """The value in question, shortened, unless its name says that it is nobody's business."""
    if any(isinstance(part, str) and names_a_secret(part) for part in error.instance_path):
        return "the value"
    return cut(json.dumps(error.instance, ensure_ascii=False), MAX_QUOTE_CHARS)


def _unknown_names(error: ValidationError, schema: Any) -> Iterator[tuple[str, str | None]]:
    """The names that an object does not have, each with the one that was perhaps meant."""
    properties = mapping_in(_around(schema, error), "properties")
    known = {each.lower(): each for each in reversed(properties)}
    for name in error.kind.as_dict()["unexpected"]:
        near = get_close_matches(name.lower(), known, n=1)
        yield name, known[near[0]] if near else None


def _unknown(near: str | None) -> str:
    return "is not known" + (f"; did you mean {near!r}?" if near else "")


def _around(schema: Schema, error: ValidationError) -> Mapping[str, Any]:
    """The part of the schema that has the keyword which did not hold."""
    try:
        for step in error.schema_path[:-1]:
            schema = step_into(schema, str(step))
    except LookupError:
        return {}
    return schema if isinstance(schema, dict) else {}


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


# --- counting -------------------------------------------------------------------------------------


class _References:
    """Where the references of one schema lead."""

    def __init__(self, root: Schema) -> None:
        resource = DRAFT202012.create_resource(root)
        self._root = root
        self._lookup = cache(Registry().with_resource("", resource).resolver().lookup)

    def targets(self, part: Mapping[str, Any]) -> Iterator[Schema]:
        """What the part refers to."""
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(reference := part.get(key), str):
                try:
                    yield self._lookup(reference).contents
                except Unresolvable:
                    yield self._root  # what nobody knows may be all of it


def _is_large(schema: Schema, references: _References, circle: float) -> bool:
    """Whether it has many times as many parts with all references written out."""
    weights: dict[int, float] = {}

    def weight(part: Schema) -> float:
        if not isinstance(part, (dict, list)):
            return 0
        if id(part) not in weights:
            weights[id(part)] = circle  # until it is known: who comes here again goes in one
            inner = list(part.values() if isinstance(part, dict) else part)
            inner += references.targets(part) if isinstance(part, dict) else ()
            weights[id(part)] = 1 + sum(map(weight, inner))
        return weights[id(part)]

    try:
        return weight(schema) > CHECK_STEPS + 4 * len(weights)
    except RecursionError:
        return True


class _Toll:
    """How often parts are applied, by the ids of part and value: both stay while it is counted."""

    def __init__(self, schema: Schema, references: _References) -> None:
        self._schema = schema
        self._references = references

    def is_too_much(self, arguments: Mapping[str, Any]) -> bool:
        """Whether checking these arguments would take too long."""
        known: dict[tuple[int, int], float] = {}
        try:
            applied = self._applied(self._schema, arguments, known)
        except (RecursionError, OverflowError):
            return True
        return applied > CHECK_STEPS + 100 * len({value for _, value in known})

    def _applied(self, part: Schema, value: Any, known: dict[tuple[int, int], float]) -> float:
        if not isinstance(part, dict):
            return 1
        key = (id(part), id(value))
        if key not in known:
            if len(known) >= 20 * CHECK_STEPS:
                raise OverflowError
            known[key] = inf
            here = sum(self._applied(each, value, known) for each in self._here(part))
            below = sum(self._applied(each, inner, known) for each, inner in _below(part, value))
            known[key] = 1 + here + below
        return known[key]

    def _here(self, part: Mapping[str, Any]) -> Iterator[Schema]:
        """What is applied to the same value."""
        yield from self._references.targets(part)
        for key in ("allOf", "anyOf", "oneOf"):
            yield from list_in(part, key)
        yield from (part[key] for key in ("not", "if", "then", "else") if key in part)
        yield from mapping_in(part, "dependentSchemas").values()


def _below(part: Mapping[str, Any], value: Any) -> Iterator[tuple[Schema, Any]]:
    """What is applied to the values inside."""
    if isinstance(value, dict):
        named = mapping_in(part, "properties")
        patterns = list(mapping_in(part, "patternProperties").values())
        others = [part[k] for k in ("additionalProperties", "unevaluatedProperties") if k in part]
        for name, inner in value.items():
            yield from ((each, inner) for each in patterns)
            yield from ((each, inner) for each in ([named[name]] if name in named else others))
            if "propertyNames" in part:
                yield part["propertyNames"], name
    elif isinstance(value, list):
        first = list_in(part, "prefixItems")
        every = [part[key] for key in ("items", "contains", "unevaluatedItems") if key in part]
        for index, inner in enumerate(value):
            yield from ((each, inner) for each in (*first[index : index + 1], *every))


def mapping_in(schema: Any, key: str) -> dict[str, Any]:
    found = schema.get(key) if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def list_in(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def step_into(value: Any, step: str) -> Any:
    """What one step of a JSON pointer (RFC 6901) leads to; raises LookupError where to nothing."""
    name = step.replace("~1", "/").replace("~0", "~")
    if isinstance(value, dict):
        return value[name]
    if isinstance(value, list) and name.isascii() and name.isdigit():
        return value[int(name[:18])]
    raise LookupError(name)
