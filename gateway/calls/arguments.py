"""Arguments are checked strictly before anything is sent, and every problem is named at once.

The check itself is one call of a compiled validator, kept by the tool's fingerprint; `oneOf` counts
as `anyOf`, since alternatives overlap. Only arguments that fail it are looked at again: what has a
default is filled in; then for the words, each problem with its place, the value shortened, an
unknown name with the nearest known one. A lenient connection sends values inside a body that are
not what its definition says, with a warning. References are never fetched, formats are not asserted
and patterns run in linear time, since schemas are somebody else's text; those that multiply with
every level are counted before (see `intricacy`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson
from jsonschema_rs import (
    Draft202012Validator,
    FancyRegexOptions,
    RegexOptions,
    ValidationError,
    ValidationErrorKind,
)

from gateway.calls.filling import Filler, is_too_much, multiplies, with_constants
from gateway.calls.redact import names_a_secret
from gateway.errors import Fixable
from gateway.model import Tool

MAX_PROBLEMS = 20
MAX_QUOTED = 80
MAX_WORDS = 300
MAX_VALIDATORS = 4096
MAX_BACKTRACKS = 10_000
_MISSPELT = 0.8  # of its letters are those of a name that is known
_NEVER_FORGIVEN = (
    ValidationErrorKind.Required,
    ValidationErrorKind.AdditionalProperties,
    ValidationErrorKind.UnevaluatedProperties,
)
_LENIENT_HINT = (
    " If the API takes such a body all the same, an operator may set"
    ' validation = "lenient" for the connection.'
)

# By the schema's key, in the order they were made, with whether the work must be counted first.
_validators: dict[str, tuple[Draft202012Validator, bool]] = {}


Problems = list[dict[str, str]]


def check_arguments(schema_key: str, schema: bytes, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that do not fit the schema; another schema has another `schema_key`."""
    given = _as_json(arguments)
    if not _fit(schema_key, schema, given):
        raise _refusal(list(islice(_problems(_parsed(schema), given), MAX_PROBLEMS + 1)))


def fitting_arguments(
    tool: Tool, arguments: Mapping[str, Any], *, lenient: bool = False
) -> tuple[dict[str, Any], Problems]:
    """A tool's arguments with what is filled in for the caller, and what to warn the caller of."""
    given, warnings = _as_json(arguments), Problems()
    if not _fit(tool.fingerprint, tool.input_schema, given):
        given = _with_defaults(tool.input_schema, given)
        if not _fit(tool.fingerprint, tool.input_schema, given):
            warnings = _forgiven(tool, given, lenient)
    if tool.whole_schema:
        given = with_constants(tool.whole_schema, given)
    return given, warnings


def problem(argument: str, message: str) -> Fixable:
    """The refusal for one argument that fits its schema and still can't be used."""
    return _refusal([{"path": _pointer([argument]), "message": message}])


def _as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse what our parsers may let in and JSON, or what we write it with, does not have."""
    arguments = arguments if isinstance(arguments, dict) else dict(arguments)
    try:
        written = orjson.dumps(arguments)  # not: half characters, endless nesting, over 64 bits
        if orjson.loads(written) != arguments:  # NaN and infinity become null: the slow one tells
            json.dumps(arguments, allow_nan=False)
    except TypeError as error:
        raise _refusal([{"path": "", "message": _unwritable(str(error))}]) from None
    except ValueError:
        raise _refusal([{"path": "", "message": "holds a number that JSON can't"}]) from None
    return arguments


def _unwritable(said: str) -> str:
    if "Recursion" in said:
        return "is nested too deeply"
    if "UTF-8" in said:
        return "holds text that is not valid Unicode"
    return "holds a number of more than 64 bits" if "64-bit" in said else "is not JSON"


def _fit(key: str, schema: bytes, arguments: dict[str, Any]) -> bool:
    validator, counted = _validator(key, schema)
    if counted and is_too_much(_parsed(schema), arguments):
        raise _refusal([{"path": "", "message": "is nested too deeply to be checked"}])
    return validator.is_valid(arguments)


def _validator(key: str, schema: bytes) -> tuple[Draft202012Validator, bool]:
    known = _validators.get(key)
    if known is None:
        if len(_validators) >= MAX_VALIDATORS:
            del _validators[next(iter(_validators))]
        parsed = _parsed(schema)
        known = _validators[key] = (_compiled(parsed), multiplies(parsed))
    return known


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


def _with_defaults(schema: bytes, arguments: dict[str, Any]) -> dict[str, Any]:
    if b'"default"' not in schema:
        return arguments
    return Filler(_parsed(schema)).filled(arguments)


def _compiled(schema: Any, mask: str | None = None) -> Draft202012Validator:
    # Most patterns fit the linear engine; the few that look around get a bound instead.
    for engine in (RegexOptions(), FancyRegexOptions(backtrack_limit=MAX_BACKTRACKS)):
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
    shown = problems[:MAX_PROBLEMS]
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


def _problems(schema: Any, arguments: dict[str, Any]) -> Iterator[dict[str, str]]:
    for error in _compiled(schema, _MASK).iter_errors(arguments):
        yield from _worded(error, schema)


def _forgiven(tool: Tool, arguments: dict[str, Any], lenient: bool) -> Problems:
    """What the caller is only warned of; raises where there is more."""
    schema, problems, warnings = _parsed(tool.input_schema), Problems(), Problems()
    body = tool.http.body if tool.http else None
    for error in _compiled(schema, _MASK).iter_errors(arguments):
        if len(problems) > MAX_PROBLEMS:
            break
        if body is not None and body.all_but is not None and _is_unknown_argument(error):
            # Properties that the body does not name; one that looks misspelt is meant otherwise.
            for name, near in _unknown_names(error, schema):
                misspelt = near is not None and _likeness(name, near) >= _MISSPELT
                listed = problems if misspelt and not lenient else warnings
                sent = "" if listed is problems else "; it was sent in the body as it is"
                listed.append({"path": _pointer([name]), "message": f"{_unknown(near)}{sent}"})
        else:
            forgiven = lenient and _is_value_in_body(tool, error)
            (warnings if forgiven else problems).extend(_worded(error, schema))
    if problems:
        raise _refusal(problems, "" if lenient else _LENIENT_HINT)
    return warnings[:MAX_PROBLEMS]


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
    words = error.message.replace(_MASK, _value(error), 1)
    return words if len(words) <= MAX_WORDS else words[: MAX_WORDS - 1] + "…"


def _value(error: ValidationError) -> str:
    """The value in question, shortened, unless its name says that it is nobody's business."""
    if any(isinstance(part, str) and names_a_secret(part) for part in error.instance_path):
        return "the value"
    text = json.dumps(error.instance, ensure_ascii=False)
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + "…"


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
    node = schema
    for step in schema_path[:-1]:
        if step == "$ref":
            node = _resolved(schema, str(node.get("$ref", "")))
        elif isinstance(node, list) and isinstance(step, int):
            node = node[step] if step < len(node) else {}
        else:
            node = node.get(str(step), {}) if isinstance(node, dict) else {}
    return list(node.get("properties", ())) if isinstance(node, dict) else []


def _resolved(schema: Any, reference: str) -> Any:
    node = schema
    for step in reference.removeprefix("#").strip("/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        node = node.get(name, {}) if isinstance(node, dict) else {}
    return node


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
