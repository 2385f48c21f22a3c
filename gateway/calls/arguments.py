"""Arguments are checked strictly before anything is sent, and every problem is named at once.

The check itself is one call of a compiled validator, kept by the tool's fingerprint; `oneOf` counts
as `anyOf`, since alternatives overlap. Only arguments that fail it are looked at again: first what
has a default is filled in, then each problem is put into words, with its place and the nearest
known name. A lenient connection sends values inside a body that are not what its definition says,
with a warning. Schemas are somebody else's text: references are never fetched, formats are not
asserted, patterns run in linear time, and work that might never end is counted first.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
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

from gateway.calls.filling import (
    REFERENCES,
    Filler,
    References,
    constants_filler,
    is_too_much,
    mapping_in,
    multiplies,
    step_into,
)
from gateway.calls.redact import names_a_secret
from gateway.errors import Fixable
from gateway.limits import CHECK_STEPS, MAX_QUOTE_CHARS, MAX_REMEMBERED, MAX_TOLD_ITEMS
from gateway.model import Tool
from gateway.naming import cut

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
            given = Filler(_parsed(tool.input_schema)).filled(given)
        if not _fit(tool.input_schema, given):
            warnings = _forgiven(tool, given, lenient)
    constants = constants_filler(tool.whole_schema) if tool.whole_schema else None
    return constants.filled(given) if constants else given, warnings


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
    validator, is_counted = _validator(schema)
    if is_counted and is_too_much(_parsed(schema), arguments):
        raise _refusal([{"path": "", "message": "is nested too deeply to be checked"}])
    return validator.is_valid(arguments)


@lru_cache(maxsize=MAX_REMEMBERED)
def _validator(schema: bytes) -> tuple[Draft202012Validator, bool]:
    """What checks the schema, and whether its work must be counted first."""
    parsed = _parsed(schema)
    return _compiled(parsed), multiplies(parsed)


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
        is_unknown = isinstance(error.kind, ValidationErrorKind.AdditionalProperties)
        if is_unknown and not error.instance_path and body is not None and body.all_but is not None:
            # Properties that the body does not name; one that looks misspelt is meant otherwise.
            for name, near in _unknown_names(error, schema):
                misspelt = near is not None and _is_like(name, near)
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
    elif isinstance(kind, (ValidationErrorKind.AnyOf, ValidationErrorKind.OneOfNotValid)):
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
    known = {each.lower(): each for each in reversed(_properties(schema, error.schema_path))}
    for name in error.kind.as_dict()["unexpected"]:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        yield name, known[near[0]] if near else None


def _is_like(name: str, other: str) -> bool:
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio() >= 0.8


def _unknown(near: str | None) -> str:
    return "is not known" + (f"; did you mean {near!r}?" if near else "")


def _properties(schema: Any, schema_path: Sequence[str | int]) -> list[str]:
    """The property names that stand beside the keyword at this path."""
    node, references = schema, References(schema)
    for step in schema_path[:-1]:
        if step in REFERENCES and isinstance(node, dict):
            node = next(references.targets(node), {})
        else:
            try:
                node = step_into(node, str(step))
            except LookupError:
                return []
    return list(mapping_in(node, "properties"))


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
