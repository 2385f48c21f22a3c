"""A tool's input schema as form fields, and the posted fields as arguments again. Pure.

Simple values get an input of their own, objects a group of them, to a depth; whatever is more
involved than that is written as JSON. Which fields there are is read off the schema both times, so
a post can't bring one that the form did not have. Arguments are checked later, where every call's
are: here a value only becomes what its field's type says, or stays the text it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from gateway.edge.console.words import clip, clip_text
from gateway.errors import Fixable

MAX_DEPTH = 2
MAX_FIELDS = 80
MAX_CHOICES = 200
MAX_LABEL = 80
MAX_HELP = 400
TEXT_FORMATS = {"date": "date", "email": "email", "uri": "url", "password": "password"}
LONG_TEXT = 300

Control = Literal["text", "area", "number", "choice", "yes_no", "json"]


@dataclass(frozen=True, slots=True)
class Field:
    """One value to be filled in."""

    name: str  # of the form's field: the way to the value, as a JSON pointer
    path: tuple[str, ...]
    label: str
    help: str
    control: Control
    required: bool
    kind: str  # the input's type, or the schema's for a choice
    hint: str  # what goes there, in a word
    choices: tuple[tuple[str, str], ...] = ()  # JSON and label
    value: str = ""
    step: str = "any"

    @property
    def depth(self) -> int:
        return len(self.path) - 1


def fields_of(schema: Mapping[str, Any], values: Mapping[str, Any] | None = None) -> list[Field]:
    """The fields of a tool's form, filled with these arguments; the required ones first."""
    found: list[Field] = []
    for field in _fields(schema, schema, (), values or {}, frozenset()):
        if len(found) == MAX_FIELDS:
            break
        found.append(field)
    return found


def arguments_of(schema: Mapping[str, Any], form: Mapping[str, str]) -> dict[str, Any]:
    """The arguments a posted form means. What was left empty is not an argument."""
    written = form.get("json", "").strip()
    if written:
        return _object(written)
    arguments: dict[str, Any] = {}
    for field in fields_of(schema):
        text = form.get(field.name, "")
        if text.strip():
            _place(arguments, field.path, _value(field, text))
    return arguments


def _fields(
    schema: Mapping[str, Any],
    root: Mapping[str, Any],
    above: tuple[str, ...],
    values: Any,
    seen: frozenset[str],
) -> Iterator[Field]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    given = schema.get("required")
    required = given if isinstance(given, list) else []
    for name in sorted(properties, key=lambda key: key not in required):
        raw = properties[name]
        inner, ref = _resolved(raw, root)
        path = (*above, name)
        value = values.get(name) if isinstance(values, Mapping) else None
        needed = name in required
        if _is_group(inner, path, ref, seen):
            yield from _fields(inner, root, path, value, seen | ({ref} if ref else set()))
        else:
            yield _field(path, {**inner, **_own_words(raw)}, needed, value)


def _is_group(
    schema: Mapping[str, Any], path: tuple[str, ...], ref: str, seen: frozenset[str]
) -> bool:
    simple = _type(schema) == "object" and bool(schema.get("properties"))
    return simple and len(path) < MAX_DEPTH and ref not in seen


def _field(path: tuple[str, ...], schema: Mapping[str, Any], required: bool, value: Any) -> Field:
    kind = _type(schema)
    control, input_type, choices = _control(schema, kind)
    return Field(
        name="/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path),
        path=path,
        label=clip(" › ".join(path), MAX_LABEL),
        help=clip_text(schema.get("description", ""), MAX_HELP),
        control=control,
        required=required,
        kind=input_type,
        hint=_hint(schema, kind),
        choices=choices,
        value=_shown(value, control),
        step="1" if kind == "integer" else "any",
    )


def _control(
    schema: Mapping[str, Any], kind: str
) -> tuple[Control, str, tuple[tuple[str, str], ...]]:
    options = schema.get("enum")
    if isinstance(options, list) and 0 < len(options) <= MAX_CHOICES:
        return "choice", kind, tuple((_json(option), clip(option)) for option in options)
    match kind:
        case "boolean":
            return "yes_no", kind, (("true", "true"), ("false", "false"))
        case "integer" | "number":
            return "number", "number", ()
        case "string":
            longest = schema.get("maxLength")
            if isinstance(longest, int) and longest > LONG_TEXT or schema.get("format") == "byte":
                return "area", "text", ()
            return "text", TEXT_FORMATS.get(str(schema.get("format")), "text"), ()
    return "json", "text", ()


def _hint(schema: Mapping[str, Any], kind: str) -> str:
    if "default" in schema:
        return clip(f"default: {_json(schema['default'])}", MAX_LABEL)
    for key in ("example", "examples"):
        if key in schema:
            value = schema[key]
            first = value[0] if key == "examples" and isinstance(value, list) and value else value
            return clip(f"e.g. {_json(first)}", MAX_LABEL)
    return {"array": "a JSON list", "object": "a JSON object", "": "any JSON value"}.get(kind, kind)


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        named = [each for each in kind if each != "null"]
        return str(named[0]) if len(named) == 1 else ""
    return kind if isinstance(kind, str) else ""


def _resolved(schema: Any, root: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    ref = ""
    for _ in range(8):
        if not isinstance(schema, dict):
            return {}, ref
        target = schema.get("$ref")
        if not isinstance(target, str):
            return schema, ref
        ref = target
        named = root.get("$defs")
        schema = named.get(target.removeprefix("#/$defs/")) if isinstance(named, dict) else None
    return {}, ref


def _own_words(schema: Any) -> Mapping[str, Any]:
    words = schema.get("description") if isinstance(schema, dict) else None
    return {"description": words} if words else {}


def _shown(value: Any, control: Control) -> str:
    if value is None:
        return ""
    if control in ("text", "area") and isinstance(value, str):
        return value
    return _json(value)


def _value(field: Field, text: str) -> Any:
    if field.control in ("text", "area"):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if field.control == "json":
            message = f"{field.label} is not JSON. Put text into quotes, or write [ ] or {{ }}."
            raise Fixable("invalid_arguments", message) from None
        return text  # the check of the arguments says what is wrong with it


def _object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Fixable("invalid_arguments", f"The arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Fixable("invalid_arguments", "The arguments must be a JSON object: { … }")
    return value


def _place(arguments: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        arguments = arguments.setdefault(part, {})
    arguments[path[-1]] = value


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return clip(value)
