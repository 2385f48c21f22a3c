"""Arguments are checked strictly before anything is sent, and every problem is named at once.

The check itself is one call of a compiled validator, kept by the tool's schema; `oneOf` counts as
`anyOf`, since alternatives overlap. Only arguments that fail it are looked at again: missing values
that the schema has a default for are filled in, then each problem is put into words, with its place
and the nearest known name. A lenient connection sends values inside a body that are not what its
definition says, with a warning. Constants that an API wants and no caller is asked for are filled
in last, in the same way.

Schemas come from strangers: references are never fetched, formats are not asserted, patterns run in
linear time. A schema that refers to itself in several ways at one place multiplies the work of each
level below it. Fourteen levels of a small schema then take hours, in work that nothing can
interrupt. The validator remembers what it found where a schema goes in a circle, but not where
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

ArgumentProblems = list[dict[str, str]]  # each with its path and message
JsonSchema = Any
_MISSING = object()
_MASK = "\x00"  # in place of a value in the words for what is wrong with it


def check_arguments(schema: bytes, arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that do not fit the schema."""
    values, checker = _as_json(arguments), _checker(schema)
    if not checker.fits(values):
        errors, parsed_schema = checker.errors(values), checker.schema
        problems = (each for error in errors for each in _problems_of(error, parsed_schema))
        raise _refusal([*islice(problems, MAX_TOLD_ITEMS + 1)])


def fitting_arguments(
    tool: Tool, arguments: Mapping[str, Any], *, lenient: bool = False
) -> tuple[dict[str, Any], ArgumentProblems]:
    """A tool's arguments, filled in for the caller, and the problems to warn the caller of."""
    values, warnings = _as_json(arguments), ArgumentProblems()
    checker = _checker(tool.input_schema)
    if not checker.fits(values):
        if b'"default"' in tool.input_schema:
            values = checker.fill_in(values)
        if not checker.fits(values):
            warnings = _warnings(tool, checker, values, lenient)
    constants = _checker_of_constants(tool.whole_schema) if tool.whole_schema else None
    return constants.fill_in(values) if constants else values, warnings


def whole_numbers(arguments: dict[str, Any]) -> dict[str, Any]:
    """JSON has one kind of number: `2.0` fits an integer, but Python can't count with it."""
    return {
        name: int(min(value, 2.0**53)) if isinstance(value, float) and value.is_integer() else value
        for name, value in arguments.items()
    }


def problem(argument: str, message: str) -> Fixable:
    """The refusal of one argument that fits its schema and still can't be used."""
    return _refusal([{"path": _pointer([argument]), "message": message}])


def _as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses values that our parsers let in, but that JSON or our JSON writer does not have."""
    arguments = arguments if isinstance(arguments, dict) else dict(arguments)
    try:
        json_text = orjson.dumps(arguments)  # NaN and infinity become null: the slow writer tells
        if b"null" in json_text and orjson.loads(json_text) != arguments:
            json.dumps(arguments, allow_nan=False)
    except TypeError:
        words = "is nested too deeply, or holds half a character or a number of over 64 bits"
        raise _refusal([{"path": "", "message": words}]) from None
    except ValueError:
        raise _refusal([{"path": "", "message": "holds a number that JSON can't"}]) from None
    return arguments


Fix = tuple[Sequence[str | int], str | int, Any]  # the path to an object, a name in it, its value


class _Checker:
    """A schema, compiled: says what does not fit, and fills in what is missing."""

    def __init__(self, text: bytes) -> None:
        self.schema = _parse_schema(text)
        self._validator = _compile_schema(self.schema)
        self._multiplies = self._references_multiply()
        self._steps = 0

    def fits(self, arguments: dict[str, Any]) -> bool:
        """Whether the arguments fit."""
        if self._multiplies:
            self._count_work(arguments)
        return self._validator.is_valid(arguments)

    def errors(self, arguments: dict[str, Any]) -> Iterator[ValidationError]:
        """The problems of the arguments, up to a bound."""
        self._count_work(arguments)
        return islice(self._validator.iter_errors(arguments), CHECK_STEPS)

    # --- what is filled in: required values with a default, and constants -------------------------

    def fill_in(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the missing values that the schema knows.

        Among alternatives that all fail, the first that such values can mend counts. A value that
        the caller gave is never replaced, except by a constant.
        """
        values: dict[str, Any] = orjson.loads(orjson.dumps(arguments))
        self._steps = 0
        for _ in range(MAX_LEVELS):
            fixes = [fix for error in self.errors(values) for fix in self._fixes(error)]
            for path, name, value in sorted(fixes, key=lambda fix: -len(fix[0])):
                target: Any = values
                for step in path:
                    target = target[step]
                target[name] = deepcopy(value)
            if not fixes or self.fits(values):
                break
        return values

    def _fixes(self, error: ValidationError) -> list[Fix]:
        """The fixes that mend the error; empty where no fix does."""
        kind, path = error.kind, error.instance_path
        if isinstance(kind, _ALTERNATIVES):
            branches = ([self._fixes(each) for each in branch] for branch in kind.context)
            chosen = next((fixes for fixes in branches if all(fixes)), [])
            return [fix for fixes in chosen for fix in fixes]
        part = _failed_part(self.schema, error)
        if isinstance(kind, ValidationErrorKind.Constant) and CONSTANTS in part:
            return [(path[:-1], path[-1], part["const"])]
        if isinstance(kind, ValidationErrorKind.Required):
            value = self._default(mapping_in(part, "properties").get(kind.property))
            return [(path, kind.property, value)] if value is not _MISSING else []
        return []

    def _default(self, part: JsonSchema, level: int = 0) -> Any:
        """A value that the caller left out: its default, or an object made of defaults."""
        self._steps += 1
        if not isinstance(part, dict) or level > MAX_LEVELS or self._steps > CHECK_STEPS:
            return _MISSING
        if "default" in part:
            return part["default"]
        for schema in (*self._targets(part), *list_in(part, "allOf")):
            if (found := self._default(schema, level + 1)) is not _MISSING:
                return found
        defaults = {}
        for name in list_in(part, "required"):
            defaults[name] = self._default(mapping_in(part, "properties").get(name), level + 1)
            if defaults[name] is _MISSING:
                return _MISSING
        return defaults or _MISSING

    # --- how much work it is ----------------------------------------------------------------------

    def _targets(self, part: Mapping[str, Any]) -> Iterator[JsonSchema]:
        """The parts of this schema that the part refers to, mostly under `$defs`."""
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(reference := part.get(key), str):
                try:
                    yield reduce(step_into, unquote(reference).split("/")[1:], self.schema)
                except LookupError:
                    yield self.schema  # an unknown target may be the whole schema

    def _references_multiply(self) -> bool:
        """Whether the schema grows many times if each reference is written out once."""
        weights: dict[int, float] = {}

        def weight(part: JsonSchema) -> float:
            if not isinstance(part, (dict, list)):
                return 0
            if id(part) not in weights:
                weights[id(part)] = 0  # a circle: the validator remembers what it found
                inner = list(part.values() if isinstance(part, dict) else part)
                inner += self._targets(part) if isinstance(part, dict) else ()
                weights[id(part)] = 1 + sum(map(weight, inner))
            return weights[id(part)]

        try:
            return weight(self.schema) > CHECK_STEPS + 4 * len(weights)
        except RecursionError:
            return True

    def _count_work(self, arguments: dict[str, Any]) -> None:
        """Refuses arguments that would be looked at too often."""
        waiting: list[tuple[JsonSchema, Any]] = [(self.schema, arguments)]
        looks, values = 0, set[int]()
        while waiting:
            part, value = waiting.pop()
            looks += 1
            values.add(id(value))
            if looks > CHECK_STEPS * min(20, 1 + len(values) // 100):
                raise _refusal([{"path": "", "message": "is nested too deeply to be checked"}])
            if isinstance(part, dict):
                waiting += ((each, value) for each in self._parts_here(part))
                waiting += _parts_below(part, value)

    def _parts_here(self, part: Mapping[str, Any]) -> Iterator[JsonSchema]:
        """The schema parts that apply to the same value."""
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
    """The checker that fills in the constants of a packed schema, where it has any."""
    text = unpack(whole_schema)
    return _Checker(text) if CONSTANTS.encode() in text else None


def _parse_schema(text: bytes) -> JsonSchema:
    schema = orjson.loads(text)
    return _rewrite_schema(schema) if any(key in text for key in _REWRITTEN_KEYS) else schema


_REWRITTEN_KEYS = (b'"oneOf"', CONSTANTS.encode())


def _rewrite_schema(part: JsonSchema) -> JsonSchema:
    """The schema with `anyOf` for every `oneOf`, and constants as properties with one value."""
    if isinstance(part, list):
        return [_rewrite_schema(each) for each in part]
    if not isinstance(part, dict):
        return part
    schema = {key: _rewrite_schema(each) for key, each in part.items() if key != CONSTANTS}
    if isinstance(schema.get("oneOf"), list):  # else it is a property of this name
        schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": schema.pop("oneOf")}]
    if constants := part.get(CONSTANTS):
        props = {n: {"const": v, "default": v, CONSTANTS: True} for n, v in constants.items()}
        schema["properties"] = {**mapping_in(schema, "properties"), **props}
        schema["required"] = [*list_in(schema, "required"), *constants]
    return schema


def _compile_schema(schema: JsonSchema) -> Draft202012Validator:
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


def _refusal(problems: ArgumentProblems, hint: str = "") -> Fixable:
    first = problems[:MAX_TOLD_ITEMS]
    words = "; ".join(f"{p['path'] or 'arguments'}: {p['message']}" for p in first)
    rest = "; and more" if len(problems) > len(first) else ""
    return Fixable(
        "invalid_arguments",
        f"Invalid arguments: {words}{rest}",
        f"Correct the arguments named and call again.{hint}",
        problems=first,
    )


# --- the words ------------------------------------------------------------------------------------


def _warnings(
    tool: Tool, checker: _Checker, arguments: dict[str, Any], lenient: bool
) -> ArgumentProblems:
    """The problems that the caller is only warned of; raises where there are worse problems."""
    schema, problems, warnings = checker.schema, ArgumentProblems(), ArgumentProblems()
    body, hint = tool.http.body if tool.http else None, ""
    for error in checker.errors(arguments):
        if len(problems) > MAX_TOLD_ITEMS:
            break
        is_unknown = isinstance(error.kind, ValidationErrorKind.AdditionalProperties)
        if is_unknown and not error.instance_path and body is not None and body.all_but is not None:
            # Names that the body does not define; a misspelt name stands for another property.
            for name, near in _unknown_names(error, schema):
                misspelt = SequenceMatcher(None, name.lower(), (near or "").lower()).ratio() >= 0.8
                target = problems if misspelt and not lenient else warnings
                note = "" if target is problems else "; it was sent in the body as it is"
                target.append({"path": _pointer([name]), "message": f"{_unknown_text(near)}{note}"})
        else:
            may_pass = _is_value_in_body(tool, error)
            hint = _LENIENT_HINT if may_pass and not lenient else hint
            (warnings if lenient and may_pass else problems).extend(_problems_of(error, schema))
    if problems:
        raise _refusal(problems, hint)
    return warnings[:MAX_TOLD_ITEMS]


def _is_value_in_body(tool: Tool, error: ValidationError) -> bool:
    outside = {each.argument for each in tool.http.parameters} if tool.http else set[str | None]()
    in_body = bool(error.instance_path) and error.instance_path[0] not in outside
    return in_body and not isinstance(error.kind, _NEVER_FORGIVEN)


def _problems_of(error: ValidationError, schema: Any) -> Iterator[dict[str, str]]:
    kind, path = error.kind, error.instance_path
    if isinstance(kind, ValidationErrorKind.AdditionalProperties):
        for name, near in _unknown_names(error, schema):
            yield {"path": _pointer([*path, name]), "message": _unknown_text(near)}
    elif isinstance(kind, ValidationErrorKind.Required):
        yield {"path": _pointer([*path, str(kind.property)]), "message": "is required"}
    elif isinstance(kind, _ALTERNATIVES):
        yield from _closest_problems(error, kind.context, schema)
    elif isinstance(kind, ValidationErrorKind.UnevaluatedProperties):
        for name in kind.as_dict()["unexpected"]:
            yield {"path": _pointer([*path, name]), "message": _unknown_text(None)}
    elif (words := _plain_words(error, schema)) is not None:
        yield {"path": _pointer(path), "message": cut(words, MAX_QUOTE_CHARS)}
    else:
        words = error.message.replace(_MASK, _value_text(error), 1)
        yield {"path": _pointer(path), "message": cut(words, MAX_QUOTE_CHARS)}


def _plain_words(error: ValidationError, schema: Any) -> str | None:
    """The words for what to change, where the validator's words are about schemas; else None."""
    kind, part = error.kind, _failed_part(schema, error)
    if isinstance(kind, ValidationErrorKind.FalseSchema):
        return "is not allowed here: leave it out"
    if isinstance(kind, ValidationErrorKind.PropertyNames):
        return f"no property may have this name: {error.message.replace(_MASK, 'it', 1)}"
    if isinstance(kind, ValidationErrorKind.Contains):
        return f"lacks an item that must be there{_type_note(part.get('contains'))}"
    if not isinstance(kind, ValidationErrorKind.Not):
        return None
    excluded = part.get("not")
    if isinstance(excluded, dict) and (names := list_in(excluded, "required")):
        return f"can't have {' together with '.join(map(str, names))}"
    return f"{_value_text(error)} is ruled out{_type_note(excluded)}: it must be another value"


def _type_note(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return f" (of type {kind})" if isinstance(kind, str) else ""


def _closest_problems(
    error: ValidationError, branches: Sequence[Sequence[ValidationError]], schema: Any
) -> Iterator[dict[str, str]]:
    """The problems of the nearest alternative whose type fits; else the types that would fit."""
    depth = len(error.instance_path)
    fitting = [
        branch
        for branch in branches
        if not any(_is_mismatch(each) and len(each.instance_path) == depth for each in branch)
    ]
    if fitting:
        for each in min(fitting, key=len):
            yield from _problems_of(each, schema)
        return
    types = [t for b in branches for e in b if _is_mismatch(e) for t in e.kind.as_dict()["types"]]
    words = " or ".join(dict.fromkeys(types)) or "any of the forms allowed here"
    yield {"path": _pointer(error.instance_path), "message": f"{_value_text(error)} is not {words}"}


def _is_mismatch(error: ValidationError) -> bool:
    return isinstance(error.kind, ValidationErrorKind.Type)


def _value_text(error: ValidationError) -> str:
    """The value in question, shortened, unless its name says that it is a secret."""
    if any(isinstance(part, str) and names_a_secret(part) for part in error.instance_path):
        return "the value"
    return cut(json.dumps(error.instance, ensure_ascii=False), MAX_QUOTE_CHARS)


def _unknown_names(error: ValidationError, schema: Any) -> Iterator[tuple[str, str | None]]:
    """The unknown names in an object, each with the known name that was perhaps meant."""
    properties = mapping_in(_failed_part(schema, error), "properties")
    names = {each.lower(): each for each in reversed(properties)}
    for name in error.kind.as_dict()["unexpected"]:
        near = get_close_matches(name.lower(), names, n=1)
        yield name, names[near[0]] if near else None


def _unknown_text(near: str | None) -> str:
    return "is not known" + (f"; did you mean {near!r}?" if near else "")


def _failed_part(schema: JsonSchema, error: ValidationError) -> Mapping[str, Any]:
    """The part of the schema whose keyword the value did not fit."""
    try:
        for step in error.schema_path[:-1]:
            schema = step_into(schema, str(step))
    except LookupError:
        return {}
    return schema if isinstance(schema, dict) else {}


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _parts_below(part: Mapping[str, Any], value: Any) -> Iterator[tuple[JsonSchema, Any]]:
    """The schema parts that apply to the values inside, each with its value."""
    if isinstance(value, dict):
        props = mapping_in(part, "properties")
        patterns = list(mapping_in(part, "patternProperties").values())
        extras = [part[k] for k in ("additionalProperties", "unevaluatedProperties") if k in part]
        for name, inner in value.items():
            yield from ((each, inner) for each in patterns)
            yield from ((each, inner) for each in ([props[name]] if name in props else extras))
            if "propertyNames" in part:
                yield part["propertyNames"], name
    elif isinstance(value, list):
        first = list_in(part, "prefixItems")
        rest = [part[key] for key in ("items", "contains", "unevaluatedItems") if key in part]
        for index, inner in enumerate(value):
            yield from ((each, inner) for each in (*first[index : index + 1], *rest))


def mapping_in(schema: Any, key: str) -> dict[str, Any]:
    found = schema.get(key) if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def list_in(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def step_into(value: Any, step: str) -> Any:
    """The value that one step of a JSON pointer (RFC 6901) leads to; raises LookupError if none."""
    name = step.replace("~1", "/").replace("~0", "~")
    if isinstance(value, dict):
        return value[name]
    if isinstance(value, list) and name.isascii() and name.isdigit():
        return value[int(name[:18])]
    raise LookupError(name)
