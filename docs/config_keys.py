"""The keys of config.toml in tables: what each takes by its model, what it means by its comment.

The shipped config.toml names every key, most of them in a comment, and says behind it what it
means. Tables of Markdown are made here, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import orjson
from pydantic import TypeAdapter

from gateway.config.connection import (
    ApiKeyAuth,
    ArmConnection,
    BasicAuth,
    BearerAuth,
    Connection,
    ManifestConnection,
    McpConnection,
    NangoAuth,
    NoAuth,
    OAuth2Auth,
    OpenApiConnection,
    OperationOverride,
    RateLimitTable,
    WrapRule,
)
from gateway.config.settings import RESTART_TABLES, Settings
from gateway.model import TlsFiles

Row = tuple[str, ...]
Schema = Mapping[str, Any]
KINDS = (OpenApiConnection, ManifestConnection, McpConnection, ArmConnection)
AUTHS = (NoAuth, BearerAuth, BasicAuth, ApiKeyAuth, OAuth2Auth, NangoAuth)
INSIDE = {  # the tables that stand in a connection's own
    "rate_limit": RateLimitTable,
    "operations.OPERATION": OperationOverride,
    "tls": TlsFiles,
    "wrap": WrapRule,
}
AUTH_TYPES = [get_args(auth.model_fields["type"].annotation)[0] for auth in AUTHS]
ConfigTable = tuple[str, str, list[Row]]


def config_tables(said: Mapping[Row, str]) -> Iterator[ConfigTable]:
    """Every table of the file: its path, words on the whole of it, and a row for each key."""
    for name, field in Settings.model_fields.items():
        if name == "connections":
            yield from _connection_tables(said)
            continue
        kind: Any = field.annotation
        schema: Schema = TypeAdapter(kind).json_schema()
        models = schema.get("$defs", {})
        schema = _without_none(schema, models)
        path, inner = name, _without_none(schema.get("additionalProperties") or {}, models)
        if "properties" in inner:
            path, schema = f"{name}.NAME", inner
        if "properties" in schema:
            restart = "*Restart: read once, at start.*" if name in RESTART_TABLES else ""
            yield from _tables_of(path, schema, models, said, restart)
        else:
            yield _table_of_names(name, said)


def _tables_of(
    path: str, schema: Schema, models: Schema, said: Mapping[Row, str], words: str = ""
) -> Iterator[ConfigTable]:
    """The table of a model, and those inside it."""
    yield path, words or said.get((path, ""), ""), rows_of(path, {**schema, "$defs": models}, said)
    for key, each in schema["properties"].items():
        found = _without_none(each, models)
        if "properties" in found:
            yield from _tables_of(f"{path}.{key}", found, models, said)


def _table_of_names(path: str, said: Mapping[Row, str]) -> ConfigTable:
    """A table whose keys are names of the user's own."""
    [(at, key)] = [place for place in said if place[0].startswith(path) and place[1]]
    name = {"capabilities": "CAPABILITY", "routes": "STEP"}[path]
    kind = "a list of texts" if path == "routes" else "text"
    return at, said.get((at, ""), ""), [(code(name), kind, "", said[at, key])]


def _connection_tables(said: Mapping[Row, str]) -> Iterator[ConfigTable]:
    path = "connections.NAME"
    whole = TypeAdapter(Connection).json_schema()
    yield path, "What every kind of connection has.", rows_of(path, whole, said)
    for kind in KINDS:
        schema = TypeAdapter(kind).json_schema()
        own = {k: v for k, v in schema["properties"].items() if k not in whole["properties"]}
        name = get_args(kind.model_fields["kind"].annotation)[0]
        words = f'What connections with `kind = "{name}"` have besides.'
        yield f"{path}, {name}", words, rows_of(path, {**schema, "properties": own}, said)
    for key, model in INSIDE.items():
        at = f"{path}.{key}"
        yield at, "", rows_of(at, TypeAdapter(model).json_schema(), said)
    at, rows = f"{path}.auth", dict[str, Row]()
    for auth in AUTHS:
        rows |= {row[0]: row for row in rows_of(at, TypeAdapter(auth).json_schema(), said)}
    rows["`type`"] = ("`type`", " or ".join(map(code, AUTH_TYPES)), "`none`", said[at, "type"])
    yield at, "`[azure]` has it, too. Each key says which type it goes with.", [*rows.values()]


def rows_of(path: str, schema: Schema, said: Mapping[Row, str]) -> list[Row]:
    """A row for each key of a table."""
    required, models = schema.get("required", ()), schema.get("$defs", {})
    rows: list[Row] = []
    for key, each in schema["properties"].items():
        kind, default = _described(each, models)
        default = "required" if key in required else default
        words = said.get((path, key), "")
        if (f"{path}.{key}", "") in said or "properties" in _without_none(each, models):
            words = f"{words.rstrip('.')}. `[{path}.{key}]` below.".removeprefix(". ")
        rows.append((code(key), kind, default, words))
    return rows


def _described(each: Schema, models: Mapping[str, Schema] | None = None) -> Row:
    """The type of a value in words, with its bounds; and its default."""
    found = _without_none(each, models or {})
    default = each.get("default", found.get("default"))
    secret = found.get("format") == "password"
    is_table = isinstance(default, dict)
    spelt = "" if default is None or secret or is_table else _toml(default)
    return type_words(found, models or {}), code(spelt)


def _without_none(each: Schema, models: Mapping[str, Schema]) -> Schema:
    """A schema without the alternative that the key is absent, and the model that it refers to."""
    for member in each.get("anyOf", ()):
        if member.get("type") != "null":
            return _without_none(member, models)
    if "$ref" in each:
        return models.get(each["$ref"].rpartition("/")[2], each)
    return each


def type_words(found: Schema, models: Mapping[str, Schema]) -> str:
    if "enum" in found or "const" in found:
        return " or ".join(code(_toml(value)) for value in found.get("enum", [found.get("const")]))
    words = _TYPES.get(str(found.get("type")), "a table")
    if found.get("format") == "password":
        words = "a secret"
    if found.get("type") == "array":
        inner = _without_none(found.get("items", {}), models)
        words = "a list of tables" if "properties" in inner else "a list of texts"
    bounds = [word.format(found[key]) for key, word in _BOUNDS.items() if key in found]
    return ", ".join([words, *bounds])


_TYPES = {"string": "text", "integer": "a whole number", "number": "a number"}
_TYPES |= {"boolean": "`true` or `false`", "array": "a list"}
_BOUNDS = {
    "minimum": "{} or more",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "minLength": "{} or more characters",
    "maxLength": "at most {} characters",
    "pattern": "`{}`",
}


def _toml(value: Any) -> str:
    return orjson.dumps(value).decode().replace('","', '", "')


HEADER = re.compile(r"\[\[?([\w.-]+)\]\]?(?:\s+#\s*(.*))?$")
ASSIGNED = re.compile(r"([\w-]+|\"[^\"]+\") = (.*)$")
COMMENT = re.compile(r"""^(?:"[^"]*"|[^"#])*# (.*)$""")
CHOICES = re.compile(r"^(?:[\w-]+ \| )+[\w-]+(?:: |$)")  # the column of types has them
# Names of examples in config.toml, for which users have their own.
EXAMPLES = ("principals", "clients", "connections", "bundles", "roles")


def sentences(text: str) -> dict[Row, str]:
    """What the comments of config.toml say of each key, by its table and name."""
    said: dict[Row, str] = {}
    path, last = "", ("", "")
    for raw in text.splitlines():
        line = raw.removeprefix("# ") if raw.startswith("# ") else raw
        if header := HEADER.match(line):
            path = _general(header[1])
            last = (path, "")
            said.setdefault(last, header[2] or "")
        elif assigned := ASSIGNED.match(line):
            last = (path, assigned[1].strip('"'))
            comment = COMMENT.match(assigned[2])
            if not said.get(last):
                said[last] = comment[1] if comment else ""
        elif more := re.match(r"(?:#\s+|\s{8,})# (.*)", raw):
            said[last] = f"{said.get(last, '')} {more[1]}".strip()
        else:
            last = ("", "")
    return {place: sentence_of(words) for place, words in said.items()}


def _general(path: str) -> str:
    """The path of a table, with NAME where the example has a name of its own."""
    first, *rest = path.split(".")
    if first in EXAMPLES and rest:
        rest[0] = "NAME"
    if rest[1:2] == ["operations"]:
        rest[2] = "OPERATION"
    return "routes.WORKFLOW.ROLE" if first == "routes" else ".".join([first, *rest])


def sentence_of(words: str) -> str:
    """A comment as it stands in a table: without the choices, and with a capital letter."""
    words = CHOICES.sub("", words.strip())
    return words[:1].upper() + words[1:] if re.match(r"[a-z'’-]+[ ,;]", words) else words


# --- Markdown -------------------------------------------------------------------------------------


def table(heads: str, rows: Iterable[Row]) -> str:
    """A table of Markdown."""
    names = heads.split(", ")
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def code(text: str) -> str:
    return f"`{text}`" if text else ""
