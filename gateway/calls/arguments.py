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
references only multiply, nor when it says what is wrong. So the work is counted first, up to a
bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache, reduce
from itertools import islice
from typing import Any
from urllib.parse import unquote

import orjson
from jsonschema_rs import (
    Draft202012Validator,
    FancyRegexOptions,
    RegexOptions,
    ValidationError,
    ValidationErrorKind,
)

from gateway.calls.redact import names_a_secret
from gateway.errors import Fixable
from gateway.limits import CHECK_STEPS, MAX_LEVELS, MAX_QUOTE_CHARS, MAX_REMEMBERED, MAX_TOLD_ITEMS
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
    """Refuses arguments that do not fit the schema."""
    given, checker = _as_json(arguments), _checker(schema)
    if not checker.fits(given):
        errors, parsed = checker.errors(given), checker.schema
        words = (each for error in errors for each in _worded(error, parsed))
        raise _refusal([*islice(words, MAX_TOLD_ITEMS + 1)])


def fitting_arguments(
    tool: Tool, arguments: Mapping[str, Any], *, lenient: bool = False
) -> tuple[dict[str, Any], Problems]:
    """A tool's arguments with what is filled in for the caller, and what to warn the caller of."""
    given, warnings = _as_json(arguments), Problems()
    checker = _checker(tool.input_schema)
    if not checker.fits(given):
        if b'"default"' in tool.input_schema:
            given = checker.filled(given)
        if not checker.fits(given):
            warnings = _forgiven(tool, checker, given, lenient)
    constants = _checker_of_constants(tool.whole_schema) if tool.whole_schema else None
    return constants.filled(given) if constants else given, warnings


def whole_numbers(arguments: dict[str, Any]) -> dict[str, Any]:
    """JSON has one kind of number: `2.0` fits an integer, but Python can't count with it."""
    return {
        name: int(min(value, 2.0**53)) if isinstance(value, float) and value.is_integer() else value
        for name, value in arguments.items()
    }


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


Fix = tuple[Sequence[str | int], str | int, Any]  # where a value goes, its name there, and itself


class _Checker:
    """A schema, compiled: says what does not fit, and fills in what is missing."""

    def __init__(self, text: bytes) -> None:
        self.schema = _parsed(text)
        self._validator = _compiled(self.schema)
        self._multiplies = self._is_large()
        self._steps = 0

    def fits(self, arguments: dict[str, Any]) -> bool:
        """Whether the arguments fit."""
        if self._multiplies:
            self._count(arguments)
        return self._validator.is_valid(arguments)

    def errors(self, arguments: dict[str, Any]) -> Iterator[ValidationError]:
        """The problems of the arguments, as many as anyone would read."""
        self._count(arguments)
        return islice(self._validator.iter_errors(arguments), CHECK_STEPS)

    # --- what is filled in: required values with a default, and constants -------------------------

    def filled(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with what is missing, as far as that can be known.

        Among alternatives that all fail, the first counts of which nothing else is missing. A value
        that the caller gave is never replaced but by a constant.
        """
        filled: dict[str, Any] = orjson.loads(orjson.dumps(arguments))
        self._steps = 0
        for _ in range(MAX_LEVELS):
            fixes = [fix for error in self.errors(filled) for fix in self._fixes(error)]
            for path, name, value in sorted(fixes, key=lambda fix: -len(fix[0])):
                inside: Any = filled
                for step in path:
                    inside = inside[step]
                inside[name] = deepcopy(value)
            if not fixes or self.fits(filled):
                break
        return filled

    def _fixes(self, error: ValidationError) -> list[Fix]:
        """What mends the error; empty where nothing does."""
        kind, path = error.kind, error.instance_path
        if isinstance(kind, _ALTERNATIVES):
            branches = ([self._fixes(each) for each in branch] for branch in kind.context)
            chosen = next((fixes for fixes in branches if all(fixes)), [])
            return [fix for fixes in chosen for fix in fixes]
        part = _around(self.schema, error)
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
        for same in (*self._targets(part), *list_in(part, "allOf")):
            if (found := self._default(same, level + 1)) is not _MISSING:
                return found
        made = {}
        for name in list_in(part, "required"):
            made[name] = self._default(mapping_in(part, "properties").get(name), level + 1)
            if made[name] is _MISSING:
                return _MISSING
        return made or _MISSING

    # --- how much work it is ----------------------------------------------------------------------

    def _targets(self, part: Mapping[str, Any]) -> Iterator[Schema]:
        """What the part refers to: parts of this schema, mostly under `$defs`."""
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(reference := part.get(key), str):
                try:
                    yield reduce(step_into, unquote(reference).split("/")[1:], self.schema)
                except LookupError:
                    yield self.schema  # what nobody knows may be all of it

    def _is_large(self) -> bool:
        """Whether it has many times as many parts with all references written out once."""
        weights: dict[int, float] = {}

        def weight(part: Schema) -> float:
            if not isinstance(part, (dict, list)):
                return 0
            if id(part) not in weights:
                weights[id(part)] = 0  # where it goes in a circle, the validator remembers
                inner = list(part.values() if isinstance(part, dict) else part)
                inner += self._targets(part) if isinstance(part, dict) else ()
                weights[id(part)] = 1 + sum(map(weight, inner))
            return weights[id(part)]

        try:
            return weight(self.schema) > CHECK_STEPS + 4 * len(weights)
        except RecursionError:
            return True

    def _count(self, arguments: dict[str, Any]) -> None:
        """Refuses arguments that would be looked at too often."""
        waiting: list[tuple[Schema, Any]] = [(self.schema, arguments)]
        looks, values = 0, set[int]()
        while waiting:
            part, value = waiting.pop()
            looks += 1
            values.add(id(value))
            if looks > CHECK_STEPS * min(20, 1 + len(values) // 100):
                raise _refusal([{"path": "", "message": "is nested too deeply to be checked"}])
            if isinstance(part, dict):
                waiting += ((each, value) for each in self._here(part))
                waiting += _below(part, value)

    def _here(self, part: Mapping[str, Any]) -> Iterator[Schema]:
        """What is applied to the same value."""
        yield from self._targets(part)
        for key in ("allOf", "anyOf", "oneOf"):
            yield from list_in(part, key)
        yield from (part[key] for key in ("not", "if", "then", "else") if key in part)
        yield from mapping_in(part, "dependentSchemas").values()


@lru_cache(maxsize=MAX_REMEMBERED)
def _checker(schema: bytes) -> _Checker:
    return _Checker(schema)


@lru_cache(maxsize=MAX_REMEMBERED)
def _checker_of_constants(whole_schema: bytes) -> _Checker | None:
    """What fills in the constants of a packed schema, where it has any."""
    text = unpack(whole_schema)
    return _Checker(text) if CONSTANTS.encode() in text else None


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


# --- the words ------------------------------------------------------------------------------------


def _forgiven(tool: Tool, checker: _Checker, arguments: dict[str, Any], lenient: bool) -> Problems:
    """What the caller is only warned of; raises where there is more."""
    schema, problems, warnings = checker.schema, Problems(), Problems()
    body = tool.http.body if tool.http else None
    for error in checker.errors(arguments):
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
    elif isinstance(kind, ValidationErrorKind.UnevaluatedProperties):
        for name in kind.as_dict()["unexpected"]:
            yield {"path": _pointer([*path, name]), "message": _unknown(None)}
    elif (said := _in_words(error, schema)) is not None:
        yield {"path": _pointer(path), "message": cut(said, MAX_QUOTE_CHARS)}
    else:
        words = error.message.replace(_MASK, _value(error), 1)
        yield {"path": _pointer(path), "message": cut(words, MAX_QUOTE_CHARS)}


def _in_words(error: ValidationError, schema: Any) -> str | None:
    """What to change, where the check itself can only tell of schemas; None where it tells more."""
    kind, around = error.kind, _around(schema, error)
    if isinstance(kind, ValidationErrorKind.FalseSchema):
        return "is not allowed here: leave it out"
    if isinstance(kind, ValidationErrorKind.PropertyNames):
        return f"no property may have this name: {error.message.replace(_MASK, 'it', 1)}"
    if isinstance(kind, ValidationErrorKind.Contains):
        return f"lacks an item that must be there{_of_type(around.get('contains'))}"
    if not isinstance(kind, ValidationErrorKind.Not):
        return None
    ruled_out = around.get("not")
    if isinstance(ruled_out, dict) and (names := list_in(ruled_out, "required")):
        return f"can't have {' together with '.join(map(str, names))}"
    return f"{_value(error)} is ruled out{_of_type(ruled_out)}: it must be another value"


def _of_type(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return f" (of type {kind})" if isinstance(kind, str) else ""


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
