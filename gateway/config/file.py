"""Reads config.toml into `Settings`, with errors a person can act on, and watches the file.

Each problem is one line: file, key path, what is wrong, what is allowed. `${NAME}` and
`${NAME:-default}` are expanded in every string before anything is checked; a variable that is not
set is a problem like any other. The settings of `put_connection` go through the same models but are
never expanded: a caller must not be able to read our environment.

The file is watched: a good edit is applied live, a bad edit is reported once. It is read by its
path several times a second, since notices of changes get lost: where links are swapped, as mounts
do, or on file systems that tell nothing. The parsed value counts: the same settings in another
spelling are no change, the same mistake is not reported twice, and a file that no longer sets
anything is a mistake. Keys that need a restart are named instead of applied.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import re
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.connection import NAME_PATTERN, NAME_RULE, AnyConnection, Connection
from gateway.config.settings import RESTART_TABLES, Permissions, Settings, check_whole
from gateway.errors import ConfigInvalid, Fixable, GatewayError
from gateway.limits import REST_SECONDS, SETTLE_SECONDS

log = structlog.get_logger("gateway.reload")

Apply = Callable[[Settings], Awaitable[None]]
ReportProblem = Callable[[str | None], None]
RESTART = "needs a restart: "  # begins the report of keys that are read at start only
Adjust = Callable[[Settings], Settings]  # puts the values of a command line over those of a file
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_connection = TypeAdapter[Connection](AnyConnection)


def read_settings(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings in this file; raises ConfigInvalid with every problem found."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigInvalid([f"{path}: can't be read: {error.strerror}"]) from error
    return parse_settings(text, str(path), environment)


def parse_settings(
    text: bytes, name: str = "config.toml", environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings in this text; `name` stands before each problem."""
    try:
        return settings_of(tomllib.loads(text.decode("utf-8-sig")), name, environment)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigInvalid([f"{name}: not valid TOML: {error}"]) from error


def settings_of(
    document: Mapping[str, Any], name: str, environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings in a document that was read; `name` stands before each problem."""
    problems: list[str] = []
    environment = os.environ if environment is None else environment
    expanded = _expand(document, environment, "", problems)
    unset = {problem.partition(": ")[0] for problem in problems}
    try:
        settings = Settings.model_validate(expanded)
    except ValidationError as error:
        problems += [line for line in describe(error) if line.partition(": ")[0] not in unset]
    if problems:
        raise ConfigInvalid([f"{name}: {problem}" for problem in problems])
    refuse_parts(settings, name)
    return settings


def refuse_parts(settings: Settings, name: str) -> None:
    """Raises ConfigInvalid where parts of the settings don't go together."""
    if problems := check_whole(settings):
        raise ConfigInvalid([f"{name}: {key}: {problem}" for key, problem in problems])


def parse_connection(name: str, values: Mapping[str, Any]) -> Connection:
    """One connection as `put_connection` and the REST API bring it; raises Fixable."""
    if not NAME_PATTERN.fullmatch(name):
        words = f"{name!r} is not a connection's name"
        raise Fixable("connection_invalid", words, f"Use {NAME_RULE}.")
    for pattern, why in _NO_VALUES.items():
        if where := _first_match(pattern, values, ""):
            hint = "Send the value itself; it is stored sealed."
            raise Fixable("connection_invalid", f"{where}: {why}", hint)
    try:
        return _connection.validate_python(values)
    except ValidationError as error:
        raise _refusal("connection_invalid", error) from error


def parse_permissions(base: Permissions, values: Mapping[str, Any]) -> Permissions:
    """Permissions as the REST API brings them; keys they don't name stay as in config.toml."""
    try:
        return Permissions.model_validate({**base.model_dump(), **values})
    except ValidationError as error:
        raise _refusal("invalid_arguments", error) from error


def _refusal(code: str, error: ValidationError) -> Fixable:
    lines = list(describe(error))
    return Fixable(code, "; ".join(lines[:5]), "Correct these keys.", problems=lines[:20])


def describe(error: ValidationError, keys: Callable[[], set[str]] | None = None) -> Iterator[str]:
    """One line a problem: key path, what is wrong, what is allowed. Secrets never show."""
    for detail in error.errors(include_url=False):
        yield f"{_key_path(detail)}: {_mistake(detail, keys or _known_keys)}"


_TAGS = {"openapi", "manifest", "mcp", "arm"}
_AUTH_TAGS = {"none", "bearer", "basic", "api-key", "oauth2", "nango"}


def _key_path(detail: ErrorDetails) -> str:
    """The key path as the file spells it, without the union members that pydantic puts in."""
    path: list[str] = []
    for part in detail["loc"]:
        union_member = (part in _TAGS and len(path) in (0, 2)) or (
            part in _AUTH_TAGS and path[-1:] == ["auth"]
        )
        if not union_member:
            path.append(str(part))
    if detail["type"] == "union_tag_invalid":
        path.append(str(detail["ctx"]["discriminator"]).strip("'"))
    return ".".join(path) or "the table"


def _mistake(detail: ErrorDetails, keys: Callable[[], set[str]]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    value = detail.get("input")
    match kind:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"unknown key{_did_you_mean(str(detail['loc'][-1]), keys())}"
        case "missing":
            return "is required"
        case "literal_error":
            return f"{_quote(value)} is not allowed; allowed: {context.get('expected')}"
        case "union_tag_invalid":
            tag, tags = _quote(context.get("tag")), context.get("expected_tags")
            return f"{tag} is not allowed; allowed: {tags}"
        case "union_tag_not_found":
            return f"{context.get('discriminator')} is required"
        case "value_error":
            return str(context.get("error", detail["msg"]))
        case _ if expected := _KINDS.get(kind):
            return f"must be {expected}, not {_kind_of(value)}"
        case "string_pattern_mismatch":
            return f"must match {context.get('pattern')}"
        case _:
            return re.sub(r"^(input|string) should", "must", detail["msg"], flags=re.IGNORECASE)


_WORD = re.compile(r"[A-Za-z][A-Za-z_-]{0,19}[0-9]?")


def _quote(value: object) -> str:
    """The value, if it is a short plain word or a number; else it may be a misplaced secret."""
    if isinstance(value, str):
        return repr(value) if _WORD.fullmatch(value) else "this value"
    return repr(value)[:80] if isinstance(value, int | float) else _kind_of(value)


_KINDS = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dataclass_type": "a table",
}


def _kind_of(value: object) -> str:
    names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(type(value), "a table" if isinstance(value, dict) else "a list")


def _did_you_mean(key: str, keys: set[str]) -> str:
    if key in keys:
        return " here: it belongs to another table, or another kind of connection"
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.75)
    return f"; did you mean {close[0]!r}?" if close else ""


def _known_keys() -> set[str]:
    return keys_of(Settings.model_json_schema(), _connection.json_schema())


def keys_of(*schemas: Any) -> set[str]:
    """Every key of every table in these schemas, for suggestions."""
    keys: set[str] = set()
    nodes: list[Any] = [*schemas]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            keys.update(node.get("properties", {}))
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)
    return keys


def _expand(value: Any, environment: Mapping[str, str], where: str, problems: list[str]) -> Any:
    if isinstance(value, str):
        return _expand_text(value, environment, where, problems)
    if isinstance(value, dict):
        inside = f"{where}." if where else ""
        return {k: _expand(v, environment, inside + k, problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(item, environment, where, problems) for item in value]
    return value


def _expand_text(text: str, environment: Mapping[str, str], where: str, problems: list[str]) -> str:
    def value_of(match: re.Match[str]) -> str:
        name, default = match.groups()
        value = environment.get(name, default)
        if value is None:
            problems.append(f"{where}: the environment variable {name} is not set")
            return ""
        return value

    return VARIABLE.sub(value_of, text)


_NO_VALUES = {  # what people send in place of one
    VARIABLE: "environment references are read from config.toml only",
    re.compile(r"(^|=)\*{10}(&|$)"): "the stars only show that there is a secret",
}


def _first_match(pattern: re.Pattern[str], value: Any, where: str) -> str | None:
    if isinstance(value, str):
        return where or "value" if len(value) < 4096 and pattern.search(value) else None
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if found := _first_match(pattern, item, f"{where}.{key}" if where else str(key)):
            return found
    return None


# --- config.toml, watched ------------------------------------------------------------------------


UNREAD = b"\0"  # the text of no configuration


@dataclass
class ConfigWatch:
    """The configuration in force, and the text that the file had at the last look.

    There need not be a file yet. `adjust` has been applied to the first settings.
    """

    config: Path
    current: Settings
    adjust: Adjust
    apply: Apply
    report: ReportProblem

    def __post_init__(self) -> None:
        self.at_start = self.current
        # None: there is no file, which is no problem where there was none at the start.
        text = UNREAD if self.config.exists() else None
        self.last_text = self.judged_text = self.tried_text = text

    async def run(self) -> None:
        """Applies each good edit of the file, for ever; `report` gets the problem, or None."""
        while True:
            rest = await self.read_edit()
            await asyncio.sleep(rest)

    async def read_edit(self) -> float:
        """Reads the file; applies or reports a new text that two looks in a row have found.

        One that was found once may be half of a file that is still being written. Returns the
        seconds until the next look.
        """
        before, self.last_text = self.last_text, await asyncio.to_thread(self._read_text)
        if self.last_text != before or self.last_text == self.judged_text:
            return SETTLE_SECONDS
        is_new = self.last_text != self.tried_text
        self.judged_text = self.tried_text = self.last_text
        try:
            await self._apply_edit(self._parse(self.last_text))
        except ConfigInvalid as error:
            log.error("configuration not applied", problems=list(error.problems))
            self.report(str(error))
        except GatewayError as error:
            if is_new:
                log.error("configuration not applied", error=error.message)
                self.report(error.message)
            self.judged_text = UNREAD  # it is tried again, and told of no more
            return REST_SECONDS
        return SETTLE_SECONDS

    def _read_text(self) -> bytes | None:
        """The text of the file; None: there is none, as for a moment when an editor renames it."""
        try:
            return self.config.read_bytes()
        except OSError:
            return None

    def _parse(self, text: bytes | None) -> Settings:
        """The settings in this text; raises ConfigInvalid, also where all settings are gone."""
        written = parse_settings(text or b"", str(self.config))
        settings, nothing = self.adjust(written), self.adjust(Settings())
        # Nobody means to lose everything. Defaults that are written out are something.
        is_empty = _is_empty(written.model_dump(exclude_unset=True))
        if text is None or (is_empty and settings == nothing != self.current):
            words = "is not there, or is empty: the settings read last stay in force"
            raise ConfigInvalid([f"{self.config.name} {words}"])
        refuse_parts(settings, str(self.config))
        return settings

    async def _apply_edit(self, settings: Settings) -> None:
        keys = restart_keys(self.at_start, settings)
        kept = {table: getattr(self.current, table) for table in RESTART_TABLES}
        live = settings.model_copy(update=kept)
        if live != self.current:
            await self.apply(live)
            self.current = live
            log.info("configuration applied")
        self.report(RESTART + ", ".join(keys) if keys else None)
        if keys:
            log.warning("configuration needs a restart", keys=list(keys))


def _is_empty(table: Mapping[str, Any]) -> bool:
    """Whether neither a table nor those in it set a key."""
    return all(isinstance(value, dict) and _is_empty(value) for value in table.values())


def restart_keys(old: Settings, new: Settings) -> tuple[str, ...]:
    """The keys that differ and are read at start only."""
    return tuple(
        f"{table}.{key}"
        for table in RESTART_TABLES
        for key, value in getattr(new, table)
        if getattr(getattr(old, table), key) != value
    )
