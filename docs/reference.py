"""The reference, made from the code whenever the site is built: nothing of it can be out of date.

What a key of config.toml means stands in the comments of config.toml; what a tool, an address or a
command does, in the code that does it; what an error or a figure means, in words.toml beside this
file, for want of room there. tests/docs sees to it that nothing goes without words.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import orjson
import typer
from prometheus_client.parser import text_string_to_metric_families

from docs.config_keys import (
    Row,
    Schema,
    code,
    config_tables,
    sentence_of,
    sentences,
    table,
    type_words,
)
from gateway.cli.main import app as gateway_command
from gateway.errors import STATUS_OF_CODE
from gateway.store.tables import Approval, Execution
from gateway.telemetry import Metrics
from gateway.web import display
from gateway.web.own_tools import OWN_TOOLS
from gateway.web.rest import ADDRESSES, PREFIX

HERE = Path(__file__).parent
CONFIG = HERE.parent / "config.toml"
WORDS: dict[str, dict[str, str]] = tomllib.loads((HERE / "words.toml").read_text(encoding="utf-8"))


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of the reference to those of the site; MkDocs calls this."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def pages() -> dict[str, str]:
    """Every page of the reference, by its name."""
    made: dict[str, Callable[[], str]] = {
        "configuration": configuration_page,
        "tools": tools_page,
        "rest": rest_page,
        "commands": commands_page,
        "errors": errors_page,
        "metrics": metrics_page,
        "records": records_page,
    }
    return {name: make() for name, make in made.items()}


def configuration_page() -> str:
    said = sentences(CONFIG.read_text(encoding="utf-8"))
    parts = [CONFIGURATION_HEAD]
    for path, words, rows in config_tables(said):
        name, _, kind = path.partition(", ")
        heading = f'[{name}] with kind = "{kind}"' if kind else f"[{name}]"
        parts += [f"## {heading}", words, table("key, type, default, what it means", rows)]
    return "\n\n".join(part for part in parts if part)


CONFIGURATION_HEAD = """# config.toml

Every key, in the order of the file. `config.toml` in the root of the repository shows them all with
an example. Unknown keys and wrong types are errors; `gateway check` names them with their line.
`${NAME}` and `${NAME:-default}` in a string are taken from the environment, relative paths count
from the folder of the file, and edits apply live, but for the tables that say *restart*."""


# --- tools, addresses, commands -------------------------------------------------------------------

AUDIENCES = {
    "all": "everybody, at `/mcp`",
    "admin": "admins, at `/mcp`",
    "azure": "everybody, at `/mcp`, where `[azure]` is configured",
    "meta": "views with a meta bundle",
    "everywhere": "everybody, at every address",
}


def tools_page() -> str:
    parts = [TOOLS_HEAD]
    for tool in OWN_TOOLS:
        entry = orjson.loads(tool.entry)
        schema = entry["inputSchema"]
        rows = [
            (code(name), type_words(each, {}), _is_required(name, schema), _said(each))
            for name, each in schema["properties"].items()
        ]
        hints = entry["annotations"]
        does = "reads" if hints["readOnlyHint"] else "changes something"
        does = "removes something" if hints["destructiveHint"] else does
        parts += [
            f"## {tool.name}",
            entry["description"],
            f"Listed for {AUDIENCES[tool.audience]}; it {does}.",
            table("argument, type, , what it means", rows) if rows else "It takes no arguments.",
        ]
    return "\n\n".join(parts)


def _said(each: Schema) -> str:
    return str(each.get("description", ""))


def _is_required(name: str, schema: Schema) -> str:
    return "required" if name in schema.get("required", ()) else ""


TOOLS_HEAD = """# The gateway's own tools

Beside the tools of your APIs a client finds these. Results are objects (`structuredContent`, and
the same as text). `put_connection` takes every key of a
[connection](configuration.md#connectionsname); those below are what its schema lists."""


def rest_page() -> str:
    rows = []
    for address, run in {**ADDRESSES, "GET /events": None}.items():
        method, path = address.split()
        said = WORDS["addresses"].get(address) or (first_paragraph(run) if run else "")
        given = ", ".join(code(name) for name in _inputs(run) if f"{{{name}}}" not in path)
        rows.append((f"`{method} {PREFIX}{path}`", said, given))
    return f"{REST_HEAD}\n\n{table('address, what it does, query or body', rows)}\n\n{REST_TAIL}"


def _inputs(run: Callable[..., Any] | None) -> list[str]:
    """What a function takes, besides who asks and the request as a whole."""
    names = [*inspect.signature(run).parameters][1:] if run else []
    return [name for name in names if name not in ("request", "posted")]


def first_paragraph(run: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(run) or "").partition("\n\n")[0].split())


REST_HEAD = """# REST

The same functions as the [tools](tools.md), with paths and status codes, and the same bearer token.
Bodies are JSON objects. A list comes under its own name, one thing comes bare."""
REST_TAIL = """An error is `{"error": {"code", "message", "hint"}}` with the status of
[its code](errors.md). A call that needs a person's word is answered with 202, the execution's id
and its address in `Location`, and runs by itself once it is approved. A connection has an `ETag`: a
PUT or DELETE with `If-Match` is refused with 412 when somebody else was faster, and
`If-None-Match: *` only adds. The header `Idempotency-Key` is a call's token, too.

Four addresses are for probes and need no token: `/healthz`, `/readyz`, `/health` and `/metrics`.
See [monitor](../how-to/monitor.md)."""


def commands_page() -> str:
    parts = [COMMANDS_HEAD]
    for words, command in command_tree():
        parts.append(f"## {' '.join(words)}")
        parts.append(inspect.cleandoc(command.help or "").replace("\f", ""))
        rows = [
            _parameter_row(each) for each in command.params if not getattr(each, "hidden", False)
        ]
        rows = [row for row in rows if row[0] != "`--help`"]
        if rows:
            parts.append(table("argument or option, type, default, what it means", rows))
    return "\n\n".join(parts)


def command_tree() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that it is called by."""
    return _walk(typer.main.get_command(gateway_command), ("gateway",))


def _walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not getattr(command, "commands", None):
        yield words, command
        return
    for name, inner in sorted(command.commands.items()):
        yield from _walk(inner, (*words, name))


def _parameter_row(parameter: Any) -> Row:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        names = [parameter.name.upper()]
    words = "" if getattr(parameter, "is_flag", False) else _annotated(parameter)
    default = parameter.default
    is_plain = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
    spelt = "required" if parameter.required else code(str(default)) if is_plain else ""
    said = getattr(parameter, "help", "") or ""
    if variable := getattr(parameter, "envvar", None):
        said = f"{said} Environment: `{variable}`."
    return ", ".join(map(code, names)), words, spelt, said


def _annotated(parameter: Any) -> str:
    """What an argument or option takes."""
    kind = parameter.type_descriptor.annotation
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    if choices := get_args(kind) or (kind if is_enum else ()):
        return " or ".join(code(str(getattr(each, "value", each))) for each in choices)
    bounds = [f"{parameter.min} or more"] * (parameter.min is not None)
    bounds += [f"at most {parameter.max}"] * (parameter.max is not None)
    words = {"str": "text", "int": "a whole number", "float": "a number", "Path": "a path"}
    return ", ".join([words.get(getattr(kind, "__name__", ""), "text"), *bounds])


COMMANDS_HEAD = """# Commands

Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration. Commands that talk to a running
gateway take `--url` (or `GATEWAY_URL`) and `--token` (or `GATEWAY_TOKEN`); without them, the
address in config.toml of the working directory. `--json` prints what the REST API answers.
Wherever an id is wanted, a start of it that no other has will do. `gateway
--install-completion` has the Tab key complete commands, tools, connections and ids."""


# --- errors, figures, records ---------------------------------------------------------------------


def errors_page() -> str:
    words = WORDS["errors"]
    rows = [(code(each), str(STATUS_OF_CODE[each]), words[each]) for each in words]
    shown = table("code, HTTP, what it means and what to do", rows)
    return f"{ERRORS_HEAD}\n\n{shown}\n\n{ERRORS_TAIL}"


ERRORS_HEAD = """# Errors

A tool that fails answers with `isError` and `structuredContent.error`; REST answers
`{"error": {…}}`. Both have `code`, `message` and `hint`, some more: `retry_after`, `sign_in_url`,
`problems`, `status`. No error holds a secret."""
ERRORS_TAIL = """A tool that is not there and one that the caller may not see are the same JSON-RPC
error, -32602 `Unknown tool: NAME`. A missing or wrong token is 401; a wrong Host is 421 and a wrong
Origin 403, and each says which key of config.toml to change. Over REST, what does not exist for the
caller is 404, and a decision for which somebody else was faster is 409."""


def metrics_page() -> str:
    async def exposed() -> bytes:  # some are counted in the loop
        return Metrics().text([], 0, dict.fromkeys(WORDS["figures"], 0.0), by_name=True)

    rows = []
    for family in text_string_to_metric_families(asyncio.run(exposed()).decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        told = WORDS["figures"].get(name.removeprefix("gateway_"), family.documentation)
        rows.append((code(name), family.type, told))
    return f"{METRICS_HEAD}\n\n{table('name, type, what it says', rows)}"


METRICS_HEAD = """# Metrics

What `/metrics` gives to Prometheus: sums for everybody; with an admin's token by `connection`. Each
process tells its own figures. `deploy/grafana.json` is a dashboard of them."""


def records_page() -> str:
    call = Execution(
        id="", tool="", connection="", principal="", status="completed", arguments={},
        created_at=0.0, revision=0,
    )  # fmt: skip
    asked = Approval(
        id="", execution_id="", principal="", tool="", connection="", fingerprint="",
        args_digest="", arguments={}, sealed_arguments=b"", risk="", created_at=0.0, expires_at=0.0,
    )  # fmt: skip
    nothing: Any = SimpleNamespace(connections={})
    executions = display.execution_record(call, None)
    approvals = display.decided_row(nothing, asked)
    parts = [
        RECORDS_HEAD,
        "## An execution",
        table("field, what it says", field_rows(executions, Execution)),
        "## An approval",
        table("field, what it says", field_rows(approvals, Approval)),
    ]
    return "\n\n".join(parts)


RECORDS_HEAD = """# Records

What `list_executions`, `GET /api/v1/executions` and `gateway executions list` tell of a call, and
what `GET /api/v1/approvals` tells of one that waits. Times are seconds since 1970, UTC; ids sort by
age. Executions are kept for `ledger.keep_days`."""


def field_rows(fields: Iterable[str], kind: type) -> list[Row]:
    """Each field with the comment that stands beside it where it is declared."""
    said = field_comments(kind)
    more = WORDS["fields"]
    return [(code(name), more.get(name) or said.get(name, "")) for name in fields]


def field_comments(kind: type) -> dict[str, str]:
    """The comments beside the fields of a class."""
    source = inspect.getsource(kind)
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    lines = {
        token.start[0]: token.string.removeprefix("# ")
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    return {
        node.target.id: sentence_of(lines.get(node.lineno, ""))
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
