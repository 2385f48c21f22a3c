"""A tool's input schema as form fields, and the posted fields as arguments again. Pure.

Simple values get an input of their own, objects a group of them, to a depth; whatever is more
involved than that is written as JSON. Which fields there are is read off the schema both times, so
a post can't bring one that the form did not have. Arguments are checked later, where every call's
are: here a value only becomes what its field's type says, or stays the text it was.

A change of one operation as people read it: what it was, what it is. Pure.

What a page lists, also as JSON and as CSV: the same rows, behind the same filter.

A CSV cell that a spreadsheet would run as a formula is written as text.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import orjson
from starlette.responses import Response

from gateway.console.rendering import clip, clip_text
from gateway.console.visit import Visit, link
from gateway.errors import Fixable
from gateway.model import Tool
from gateway.store.tables import json_bytes

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


MAX_LINES = 160
MAX_VALUE = 600
CONTEXT_LINES = 2

_decode = msgspec.msgpack.Decoder(Tool).decode


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that differs."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Diff:
    """All that differs in one operation."""

    rows: tuple[Row, ...]
    lines: tuple[tuple[str, str], ...]  # sign and text of the input schema
    cut: bool = False


def diff_of(before: bytes | None, after: bytes | None) -> Diff:
    """The difference between two tools as the store keeps them."""
    old, new = _tool(before), _tool(after)
    rows = tuple(Row(name, was, now) for name, was, now in _pairs(old, new) if was != now)
    lines = list(_lines(_schema(old), _schema(new)))
    return Diff(rows, tuple(lines[:MAX_LINES]), len(lines) > MAX_LINES)


def _tool(data: bytes | None) -> Tool | None:
    if data is None:
        return None
    try:
        return _decode(data)
    except msgspec.MsgspecError:  # written by another version
        return None


def _pairs(old: Tool | None, new: Tool | None) -> Iterator[tuple[str, str, str]]:
    was, now = _facts(old), _facts(new)
    for name in was or now:
        yield name, _text(was.get(name, "")), _text(now.get(name, ""))


def _facts(tool: Tool | None) -> dict[str, str]:
    if tool is None:
        return {}
    return {
        "Name": tool.name,
        "Request": f"{tool.method} {tool.path}".strip(),
        "Host": tool.http.base_url if tool.http else "",
        "Access": tool.access,
        "Risk": tool.risk,
        "Credentials": tool.security,
        "Title": tool.title,
        "Description": tool.description,
    }


def _text(value: str) -> str:
    return clip_text(value, MAX_VALUE)


def _schema(tool: Tool | None) -> list[str]:
    if tool is None:
        return []
    value: Any = orjson.loads(tool.input_schema)
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()
    return text.splitlines()


def _lines(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    if old == new:
        return
    for line in difflib.unified_diff(old, new, lineterm="", n=CONTEXT_LINES):
        if line.startswith(("---", "+++")):
            continue
        sign = line[:1] if line[:1] in "+-@" else " "
        yield sign, clip_line(line if sign == "@" else line[1:])


def clip_line(line: str) -> str:
    """A line that keeps its indentation."""
    inner = line.lstrip(" ")
    return " " * min(len(line) - len(inner), 60) + clip(inner, 200)


FORMATS = ("json", "csv")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def download(
    visit: Visit, name: str, rows: Sequence[Mapping[str, Any]], **beside: Any
) -> Response | None:
    """The rows in the format the address asks for; None: as a page."""
    wanted = visit.query("format")
    if not wanted:
        return None
    if wanted not in FORMATS:
        raise Fixable("invalid_arguments", f"format must be one of {', '.join(FORMATS)}")
    file = {"content-disposition": f'attachment; filename="{name}.{wanted}"'}
    if wanted == "csv":
        return Response(as_csv(rows), 200, file, "text/csv; charset=utf-8")
    body = orjson.dumps({name: list(rows), **beside}, option=orjson.OPT_INDENT_2)
    return Response(body, 200, {"content-disposition": "inline"}, "application/json")


def file_links(path: str, **filter: str) -> dict[str, str]:
    """Where a page's rows are in each format, behind the page's filter."""
    return {name: link(path, **filter, format=name) for name in FORMATS}


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; the first row names the columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    names = list(rows[0]) if rows else []
    writer.writerow(cell(name) for name in names)
    for row in rows:
        writer.writerow(cell(row.get(name)) for name in names)
    return out.getvalue()


def cell(value: Any) -> str:
    """A value as text that no spreadsheet runs."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value)
    text = value if isinstance(value, str) else json_bytes(value).decode("utf-8", "replace")
    text = text.replace("\0", "\ufffd")
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) else text


def matching(rows: Iterable[Mapping[str, Any]], **wanted: str) -> list[Mapping[str, Any]]:
    """The rows that have these values; an empty one is no wish."""
    wishes = {key: value for key, value in wanted.items() if value}
    return [row for row in rows if all(str(row.get(k)) == v for k, v in wishes.items())]


def containing(
    rows: Iterable[Mapping[str, Any]], words: str, *keys: str
) -> list[Mapping[str, Any]]:
    """The rows that hold every word in one of these columns."""
    wanted = words.lower().split()
    return [
        row
        for row in rows
        if all(any(word in str(row.get(key, "")).lower() for key in keys) for word in wanted)
    ]
