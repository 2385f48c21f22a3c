"""Arguments are checked strictly before anything is sent, and every problem is named at once.

The check itself is one call of a compiled validator, kept by the tool's fingerprint; `oneOf` counts
as `anyOf`, since alternatives overlap. Only arguments that fail it are looked at again: first what
has a default is filled in, then each problem is put into words, with its place and the nearest
known name. A lenient connection sends values inside a body that are not what its definition says,
with a warning. Schemas are somebody else's text: references are never fetched, formats are not
asserted, patterns run in linear time, and where a schema can ask several times as much of each
level as of the one above, so that no check would ever end, the work is counted first.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
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
from gateway.limits import CHECK_STEPS, MAX_QUOTE_CHARS, MAX_REMEMBERED, MAX_TOLD_ITEMS
from gateway.model import CONSTANTS, Tool, unpack
from gateway.text import cut

_NEVER_FORGIVEN = (
    ValidationErrorKind.Required,
    ValidationErrorKind.AdditionalProperties,
    ValidationErrorKind.UnevaluatedProperties,
)
_LENIENT_HINT = (
    " If the API takes such a body all the same, an operator may set"
    ' validation = "lenient" for the connection.'
)

Problems = list[dict[str, str]]  # each with its path and message
Schema = Any


def check_arguments(schema: bytes, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that do not fit the schema."""
    given = _as_json(arguments)
    if not _fit(schema, given):
        parsed = _parsed(schema)
        errors = _compiled(parsed, _MASK).iter_errors(given)
        words = (each for error in errors for each in _worded(error, parsed))
        raise _refusal([*islice(words, MAX_TOLD_ITEMS + 1)])


def fitting_arguments(
    tool: Tool, arguments: Mapping[str, Any], *, lenient: bool = False
) -> tuple[dict[str, Any], Problems]:
    """A tool's arguments with what is filled in for the caller, and what to warn the caller of."""
    given, warnings = _as_json(arguments), Problems()
    if not _fit(tool.input_schema, given):
        if b'"default"' in tool.input_schema:
            given = _Filler(_parsed(tool.input_schema)).filled(given)
        if not _fit(tool.input_schema, given):
            warnings = _forgiven(tool, given, lenient)
    if tool.whole_schema:
        given = _with_constants(tool.whole_schema, given)
    return given, warnings


def problem(argument: str, message: str) -> Fixable:
    """The refusal for one argument that fits its schema and still can't be used."""
    return _refusal([{"path": _pointer([argument]), "message": message}])


def _as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse what our parsers may let in and JSON, or what we write it with, does not have."""
    arguments = arguments if isinstance(arguments, dict) else dict(arguments)
    try:
        written = orjson.dumps(arguments)
        if orjson.loads(written) != arguments:  # NaN and infinity become null: the slow one tells
            json.dumps(arguments, allow_nan=False)
    except TypeError:
        words = "is nested too deeply, or holds half a character or a number of over 64 bits"
        raise _refusal([{"path": "", "message": words}]) from None
    except ValueError:
        raise _refusal([{"path": "", "message": "holds a number that JSON can't"}]) from None
    return arguments


def _fit(schema: bytes, arguments: dict[str, Any]) -> bool:
    validator, multiplies = _validator(schema)
    if multiplies and _is_too_much(_parsed(schema), arguments):
        raise _refusal([{"path": "", "message": "is nested too deeply to be checked"}])
    return validator.is_valid(arguments)


@lru_cache(maxsize=MAX_REMEMBERED)
def _validator(schema: bytes) -> tuple[Draft202012Validator, bool]:
    """What checks the schema, and whether its work must be counted first."""
    parsed = _parsed(schema)
    return _compiled(parsed), _multiplies(parsed)


def _parsed(schema: bytes) -> Any:
    parsed = orjson.loads(schema)
    return _loosened(parsed) if b'"oneOf"' in schema else parsed


def _loosened(schema: Any) -> Any:
    """The schema with `anyOf` for every `oneOf`."""
    if isinstance(schema, list):
        return [_loosened(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    loose = {key: _loosened(part) for key, part in schema.items()}
    if isinstance(loose.get("oneOf"), list):  # else it is a property of this name
        alternatives = {"anyOf": loose.pop("oneOf")}
        loose["allOf"] = [*loose.get("allOf", ()), alternatives]
    return loose


def _compiled(schema: Any, mask: str | None = None) -> Draft202012Validator:
    # Most patterns fit the linear engine; the few that look around get a bound instead.
    for engine in (RegexOptions(), FancyRegexOptions(backtrack_limit=CHECK_STEPS)):
        try:
            return Draft202012Validator(
                schema, validate_formats=False, offline=True, pattern_options=engine, mask=mask
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

_MASK = "\x00"


def _forgiven(tool: Tool, arguments: dict[str, Any], lenient: bool) -> Problems:
    """What the caller is only warned of; raises where there is more."""
    schema, problems, warnings = _parsed(tool.input_schema), Problems(), Problems()
    body = tool.http.body if tool.http else None
    for error in _compiled(schema, _MASK).iter_errors(arguments):
        if len(problems) > MAX_TOLD_ITEMS:
            break
        if body is not None and body.all_but is not None and _is_unknown_argument(error):
            # Properties that the body does not name; one that looks misspelt is meant otherwise.
            for name, near in _unknown_names(error, schema):
                misspelt = near is not None and _likeness(name, near) >= 0.8
                listed = problems if misspelt and not lenient else warnings
                sent = "" if listed is problems else "; it was sent in the body as it is"
                listed.append({"path": _pointer([name]), "message": f"{_unknown(near)}{sent}"})
        else:
            forgiven = lenient and _is_value_in_body(tool, error)
            (warnings if forgiven else problems).extend(_worded(error, schema))
    if problems:
        raise _refusal(problems, "" if lenient else _LENIENT_HINT)
    return warnings[:MAX_TOLD_ITEMS]


def _is_unknown_argument(error: ValidationError) -> bool:
    unknown = isinstance(error.kind, ValidationErrorKind.AdditionalProperties)
    return unknown and not error.instance_path


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
    elif isinstance(kind, (ValidationErrorKind.AnyOf, ValidationErrorKind.OneOfNotValid)):
        yield from _closest(error, kind.context, schema)
    else:
        yield {"path": _pointer(path), "message": _quoted(error)}


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


def _quoted(error: ValidationError) -> str:
    return cut(error.message.replace(_MASK, _value(error), 1), MAX_QUOTE_CHARS)


def _value(error: ValidationError) -> str:
    """The value in question, shortened, unless its name says that it is nobody's business."""
    if any(isinstance(part, str) and names_a_secret(part) for part in error.instance_path):
        return "the value"
    return cut(json.dumps(error.instance, ensure_ascii=False), MAX_QUOTE_CHARS)


def _unknown_names(error: ValidationError, schema: Any) -> Iterator[tuple[str, str | None]]:
    """The names that an object does not have, each with the one that was perhaps meant."""
    known = {each.lower(): each for each in reversed(_properties(schema, error.schema_path))}
    for name in error.kind.as_dict()["unexpected"]:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        yield name, known[near[0]] if near else None


def _likeness(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()


def _unknown(near: str | None) -> str:
    return "is not known" + (f"; did you mean {near!r}?" if near else "")


def _properties(schema: Any, schema_path: Sequence[str | int]) -> list[str]:
    """The property names that stand beside the keyword at this path."""
    node, references = schema, _References(schema)
    for step in schema_path[:-1]:
        if step in _REFERENCES and isinstance(node, dict):
            node = next(references.targets(node), {})
        else:
            try:
                node = step_into(node, str(step))
            except LookupError:
                return []
    return list(_mapping(node, "properties"))


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def step_into(value: Any, step: str) -> Any:
    """What one step of a JSON pointer (RFC 6901) leads to; raises LookupError where to nothing."""
    name = step.replace("~1", "/").replace("~0", "~")
    if isinstance(value, dict):
        return value[name]
    if isinstance(value, list) and name.isascii() and name.isdigit():
        return value[int(name[:18])]
    raise LookupError(name)


# --- filling in -----------------------------------------------------------------------------------

_MISSING = object()


def _with_constants(whole_schema: bytes, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a tool with what its packed schema says is always there."""
    filler = _filler(whole_schema)
    return filler.filled(arguments) if filler is not None else arguments


@lru_cache(maxsize=MAX_REMEMBERED)
def _filler(whole_schema: bytes) -> _Filler | None:
    schema = unpack(whole_schema)
    return _Filler(orjson.loads(schema)) if CONSTANTS.encode() in schema else None


class _Filler:
    """Fills in what a caller need not give: required values with a default, and constants.

    The schema is walked along with the arguments. Among alternatives the first that fits as it is
    counts, else the first that fits once it is filled in. A value that the caller gave is never
    replaced but by a constant. What would take too many steps is left as it is: the check then
    says what is missing.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._references = _References(schema)
        self._multiplies = _multiplies(schema)
        self._validators: dict[int, Draft202012Validator | None] = {}
        self._steps = 0
        self._making: set[int] = set()  # a schema may ask for itself

    def filled(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with what is missing; the very same where nothing is."""
        self._steps = 0
        self._making.clear()
        try:
            filled: dict[str, Any] = self._value(self._schema, arguments)
        except (RecursionError, OverflowError):
            return arguments
        return filled

    def _value(self, schema: Schema, value: Any) -> Any:
        if not isinstance(schema, dict) or not isinstance(value, (dict, list)):
            return value
        self._steps += 1
        if self._steps > CHECK_STEPS:
            raise OverflowError
        for same in (*self._references.targets(schema), *_list(schema, "allOf")):
            value = self._value(same, value)
        for key in ("anyOf", "oneOf"):
            value = self._alternative(_list(schema, key), value)
        fill = self._object if isinstance(value, dict) else self._items
        return fill(schema, value)

    def _object(self, schema: Mapping[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        properties = _mapping(schema, "properties")
        more = dict(_mapping(schema, CONSTANTS))
        for name in _needed(schema, value):
            part = properties.get(name)
            default = self._default(part)
            default = self._made(part) if default is _MISSING else default
            if default is not _MISSING:
                more[name] = default
        for name, inner in value.items():
            part = properties.get(name, schema.get("additionalProperties"))
            if name not in more and (filled := self._value(part, inner)) is not inner:
                more[name] = filled
        return {**value, **more} if more else value

    def _items(self, schema: Mapping[str, Any], value: list[Any]) -> list[Any]:
        first = _list(schema, "prefixItems")
        parts = [*first, *[schema.get("items")] * (len(value) - len(first))]
        filled = [self._value(part, inner) for part, inner in zip(parts, value, strict=False)]
        same = all(new is old for new, old in zip(filled, value, strict=True))
        return value if same else filled

    def _alternative(self, branches: Sequence[Schema], value: Any) -> Any:
        tried = [(branch, self._value(branch, value)) for branch in branches]
        if all(filled is value for _, filled in tried):
            return value
        for branch, filled in sorted(tried, key=lambda each: each[1] is not value):
            if self._fits(branch, filled):
                return filled
        return value

    def _fits(self, branch: Schema, value: Any) -> bool:
        shared = {key: self._schema[key] for key in ("$defs", "definitions") if key in self._schema}
        schema = {**shared, "allOf": [branch]}
        if id(branch) not in self._validators:
            try:
                validator = Draft202012Validator(schema, validate_formats=False, offline=True)
            except (ValidationError, ValueError):
                validator = None
            self._validators[id(branch)] = validator
        validator = self._validators[id(branch)]
        if validator is None or (self._multiplies and _is_too_much(schema, value)):
            return False
        return validator.is_valid(value)

    def _made(self, schema: Schema) -> Any:
        """An object of which nothing is left to ask for, once it is filled in."""
        if id(schema) in self._making:
            return _MISSING
        self._making.add(id(schema))
        made = self._value(schema, {})
        self._making.discard(id(schema))
        return made if made and self._fits(schema, made) else _MISSING

    def _default(self, schema: Schema, hops: int = 20) -> Any:
        if not isinstance(schema, dict) or not hops:
            return _MISSING
        if "default" in schema:
            return schema["default"]
        for same in (*self._references.targets(schema), *_list(schema, "allOf")):
            if (found := self._default(same, hops - 1)) is not _MISSING:
                return found
        return _MISSING


def _needed(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[str]:
    """The names that must be there and are not."""
    yield from (name for name in _list(schema, "required") if name not in value)
    for given, names in _mapping(schema, "dependentRequired").items():
        if given in value:
            yield from (name for name in names if name not in value)


# --- counting -------------------------------------------------------------------------------------

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ENDLESS = 1 << 62


def _multiplies(schema: Schema) -> bool:
    """Whether it is many times as large with its references written out, or without end."""
    references, weights = _References(schema), dict[int, int]()
    try:
        return _weight(schema, references, weights) > CHECK_STEPS + 4 * len(weights)
    except RecursionError:
        return True


def _is_too_much(schema: Schema, arguments: Mapping[str, Any]) -> bool:
    """Whether checking these arguments would take too long."""
    count = _Count(_References(schema))
    try:
        applied = count.of(schema, arguments)
    except (RecursionError, OverflowError):
        return True
    return applied > CHECK_STEPS + 100 * len({value for _, value in count.known})


class _References:
    """Where the references of one schema lead."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._named: dict[str, Schema] = {}
        waiting = [root]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                for key in ("$anchor", "$dynamicAnchor", "$id"):
                    if isinstance(name := part.get(key), str):
                        self._named[name.rstrip("#") if key == "$id" else f"#{name}"] = part
                waiting.extend(part.values())
            elif isinstance(part, list):
                waiting.extend(part)

    def targets(self, part: Mapping[str, Any]) -> Iterator[Schema]:
        for key in _REFERENCES:
            if isinstance(reference := part.get(key), str):
                yield self._target(reference)

    def _target(self, reference: str) -> Schema:
        if reference in self._named:
            return self._named[reference]
        place, _, fragment = reference.partition("#")
        found = self._named.get(place, self._root)  # what nobody knows may be all of it
        if f"#{fragment}" in self._named:
            return self._named[f"#{fragment}"]
        for step in unquote(fragment).split("/")[1:]:
            try:
                found = step_into(found, step)
            except LookupError:
                return self._root
        return found


def _weight(part: Schema, references: _References, known: dict[int, int]) -> int:
    """How many parts it has with all references written out."""
    if not isinstance(part, (dict, list)):
        return 0
    if id(part) not in known:
        known[id(part)] = _ENDLESS  # until it is known: who comes here again goes in a circle
        inner = list(part.values() if isinstance(part, dict) else part)
        inner += references.targets(part) if isinstance(part, dict) else ()
        known[id(part)] = min(1 + sum(_weight(i, references, known) for i in inner), _ENDLESS)
    return known[id(part)]


class _Count:
    """How often parts are applied, by the ids of part and value: both stay while it is counted."""

    def __init__(self, references: _References) -> None:
        self._references = references
        self.known: dict[tuple[int, int], int] = {}

    def of(self, part: Schema, value: Any) -> int:
        if not isinstance(part, dict):
            return 1
        key = (id(part), id(value))
        if key not in self.known:
            if len(self.known) >= 20 * CHECK_STEPS:
                raise OverflowError
            self.known[key] = _ENDLESS
            here = sum(self.of(each, value) for each in self._here(part))
            below = sum(self.of(each, inner) for each, inner in _below(part, value))
            self.known[key] = min(1 + here + below, _ENDLESS)
        return self.known[key]

    def _here(self, part: Mapping[str, Any]) -> Iterator[Schema]:
        """What is applied to the same value."""
        yield from self._references.targets(part)
        for key in ("allOf", "anyOf", "oneOf"):
            yield from _list(part, key)
        yield from (part[key] for key in ("not", "if", "then", "else") if key in part)
        yield from _mapping(part, "dependentSchemas").values()


def _below(part: Mapping[str, Any], value: Any) -> Iterator[tuple[Schema, Any]]:
    """What is applied to the values inside."""
    if isinstance(value, dict):
        named = _mapping(part, "properties")
        patterns = list(_mapping(part, "patternProperties").values())
        others = [part[k] for k in ("additionalProperties", "unevaluatedProperties") if k in part]
        for name, inner in value.items():
            yield from ((each, inner) for each in patterns)
            yield from ((each, inner) for each in ([named[name]] if name in named else others))
            if "propertyNames" in part:
                yield part["propertyNames"], name
    elif isinstance(value, list):
        first = _list(part, "prefixItems")
        every = [part[key] for key in ("items", "contains", "unevaluatedItems") if key in part]
        for index, inner in enumerate(value):
            yield from ((each, inner) for each in (*first[index : index + 1], *every))


def _mapping(schema: Any, key: str) -> dict[str, Any]:
    found = schema.get(key) if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []
