"""The command `gateway`: all commands put together, and our errors turned into exit codes.

0 fine, 1 failed, 2 wrong usage or configuration. The commands here need no running gateway; the
code of a command is imported when it runs, since most of it is heavy.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from gateway import __version__
from gateway.cli import manage, rights, tools
from gateway.cli.bench import bench
from gateway.cli.connect import connect
from gateway.cli.first_commands import CONFIG, ConfigFile, add, init, serve
from gateway.cli.remote import JsonOption, stdio
from gateway.cli.terminal import fail, note, show_json, show_spinner, show_table
from gateway.errors import ConfigInvalid, GatewayError


class Commands(TyperGroup):
    """All commands; what is wrong with a value is said in plain words."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            words = re.sub("^Value error, |, unable to parse.*", "", error.message)
            words = re.sub("^Input should", "it must", words)
            error.message = words.replace("a valid integer", "a whole number")
            raise


app = typer.Typer(
    name="gateway",
    cls=Commands,
    help="Point any MCP client at one URL; every API you connect becomes tools there.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

for command in (serve, init, add):  # they are listed first
    app.command()(command)


def _load(config: Path, level: int) -> Any:
    """The settings in a file; events are logged from this level on."""
    from gateway.config.file import read_settings
    from gateway.telemetry import set_up

    set_up(level)
    return read_settings(config)


@app.command()
def check(
    config: ConfigFile = CONFIG,
    replay: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Rehearse it on the last N recorded calls."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Validate the configuration, its manifests and its certificates without starting.

    Exit 0, or 2 with file, key, what is wrong and what is allowed. Names that match nothing, and
    permissions that were put over stricter ones, are warnings. With `--replay N` it also says which
    of the last N recorded calls this configuration would have refused or asked about.

    Examples: `gateway check --config config.toml`, `gateway check --replay 1000`
    """
    from gateway.cli.inspect import check_files, count_all, find_problems, rehearse_recorded

    try:
        settings = _load(config, logging.ERROR)
        check_files(settings, config)
    except ConfigInvalid as error:
        if as_json:
            show_json({"valid": False, "problems": list(error.problems)})
            raise typer.Exit(2) from error
        raise
    if replay is not None:
        rows = asyncio.run(rehearse_recorded(settings, config.resolve(), replay))
        if as_json:
            show_json({"valid": True, "replayed": rows})
            return
        columns = "tool outcome reason principal status execution"
        words = f"{len(rows)} of the last {replay} recorded calls would not have gone through"
        show_table(rows, columns, words, status="Was", outcome="Would be", reason="Why")
        print(words)
        return
    with show_spinner("Reading what the configuration names"):
        warnings = asyncio.run(find_problems(settings, config.resolve()))
    if as_json:
        rows = [{"where": where, "message": message} for where, message in warnings]
        show_json({"valid": True, **count_all(settings), "warnings": rows})
        return
    for problem in with_lines([f"{config}: {where}: {what}" for where, what in warnings]):
        print(problem.replace(": ", ": warning: ", 1))
    print(f"{config}: fine ({', '.join(f'{n} {noun}' for noun, n in count_all(settings).items())})")


def with_lines(problems: Iterable[str]) -> Iterator[str]:
    """Problems of a file (`FILE: KEY: what`), each with the line of the file that it is about."""
    for problem in problems:
        file, _, rest = problem.partition(": ")
        key, path = rest.partition(": ")[0], Path(file)
        line = line_of(path.read_text("utf-8-sig", "replace"), key) if path.is_file() else None
        yield f"{problem} (line {line})" if line else problem


HEADER = re.compile(r"\s*(\[\[?)([^\[\]=]+)\]")
BARE = re.compile(r"[\"'\s]")  # the characters that problems leave out of a path
KEY = re.compile(r"""\s*([\w."' -]+?)\s*=""")


def line_of(text: str, key: str) -> int | None:
    """The line of a TOML file that has the most of a key's path; None: no line has any of it."""
    table, best, length, tables = "", None, 0, Counter[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            path = table = BARE.sub("", header[2])
            if header[1] == "[[":
                tables[path] += 1
                path = table = f"{path}.{tables[path] - 1}"
        elif assigned := KEY.match(line):
            path = f"{table}.{BARE.sub('', assigned[1])}".lstrip(".")
        else:
            continue
        if f"{key}.".startswith(f"{path}.") and len(path) > length:
            best, length = number, len(path)
    return best


@app.command()
def inspect(
    what: Annotated[str, typer.Argument(help="A definition (URL, path) or a connection's name.")],
    kind: Annotated[
        Literal["openapi", "arm", "manifest"] | None,
        typer.Option(help="What it is, if not obvious."),
    ] = None,
    access: Annotated[
        Literal["read-write", "read-only"], typer.Option(help="As someone with this access.")
    ] = "read-write",
    as_json: JsonOption = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Preview the tools of a definition or a connection.

    Shows the tools, the operations that are skipped with the reason, problems, and what it costs in
    tokens. Nothing is stored.

    Examples: `gateway inspect openapi.yaml`, `gateway inspect greenhouse --kind manifest --json`
    """
    from gateway.cli.inspect import preview, print_preview
    from gateway.config.settings import Settings

    # The configuration, where there is one, says where we may go and names connections.
    settings = _load(config, logging.WARNING) if config.exists() else Settings()
    try:
        with show_spinner(f"Reading {what}"):
            report = asyncio.run(preview(what, kind, settings, config.resolve().parent))
    except GatewayError as error:
        if as_json:
            show_json({"error": error.as_dict()})
            raise typer.Exit(1) from error
        raise
    if access == "read-only":
        report["tools"] = [tool for tool in report["tools"] if tool["access"] == "read"]
        report["tokens"] = sum(tool["tokens"] for tool in report["tools"])
    show_json(report) if as_json else print_preview(report)


@app.command()
def discover(
    connection: Annotated[
        str | None, typer.Argument(help="One connection; default: every MCP server.")
    ] = None,
    as_json: JsonOption = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Show what upstream MCP servers offer now, and every drift of the configuration from it.

    Exit 1 if a configured name no longer exists or a server can't be reached.

    Example: `gateway discover bookings`
    """
    from gateway.cli.inspect import look_at_servers, print_drift
    from gateway.config.connection import McpConnection

    settings = _load(config, logging.WARNING)
    servers = {n: c for n, c in settings.connections.items() if isinstance(c, McpConnection)}
    if connection and connection not in servers:
        fail(f"{connection} is not an MCP server here; known: {', '.join(servers) or 'none'}", 2)
    chosen = {connection: servers[connection]} if connection else servers
    with show_spinner(f"Asking {', '.join(chosen)}"):
        reports = asyncio.run(look_at_servers(settings, config.parent, chosen))
    if not reports:
        note("There is no MCP server in the configuration, so there is nothing to discover.")
    show_json(reports) if as_json else print_drift(reports)
    if any(report["drift"] or report["error"] for report in reports):
        raise typer.Exit(1)


@app.command()
def doctor(config: ConfigFile = CONFIG, as_json: JsonOption = False) -> None:
    """Look at all that the gateway stands on, and say what to fix.

    Configuration, store, clients, clock, address, limits, upstreams and certificates: a line each
    with ok, warn or fail. Exit 1 if something fails, 2 if the configuration is wrong.

    Example: `gateway doctor --config config.toml`
    """
    from gateway.cli.doctor import as_json as report
    from gateway.cli.doctor import examine
    from gateway.telemetry import set_up

    set_up(logging.CRITICAL)
    with show_spinner("Looking at what the gateway stands on"):
        findings, code = examine(config)
    show_json(report(findings)) if as_json else print(*(each.line for each in findings), sep="\n")
    raise typer.Exit(code)


@app.command()
def token(as_json: JsonOption = False) -> None:
    """Make a token: shown once, with the line for the configuration.

    Example: `gateway token`
    """
    from gateway.config.settings import new_token

    value, digest = new_token()
    if as_json:
        show_json({"token": value, "token_sha256": digest})
        return
    print(f"token: {value}")
    print(f'token_sha256 = "{digest}"')
    typer.echo("The token is not kept anywhere; give it to the client now.", err=True)


app.command()(stdio)
app.command()(connect)
app.command()(bench)
app.add_typer(tools.top)
app.add_typer(manage.connections, name="connections")
app.add_typer(manage.approvals, name="approvals")
app.add_typer(manage.credentials, name="credentials")
app.add_typer(manage.grants, name="grants")
app.add_typer(manage.changes, name="changes")
app.add_typer(manage.executions, name="executions")
for kind, commands in rights.groups.items():
    app.add_typer(commands, name=kind)


def _show_version(is_given: bool) -> None:
    if is_given:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """Runs the command that was typed; our errors become words and an exit code."""
    try:
        app(prog_name="gateway")
    except ConfigInvalid as error:
        note("\n".join(with_lines(error.problems)))
        sys.exit(2)
    except GatewayError as error:
        note(f"{error.message}\n{error.hint}".strip())
        sys.exit(1)
    except BrokenPipeError:
        raise
    except OSError as error:  # what the system refuses: a file, a process, a socket
        note(f"That could not be done: {error}")
        sys.exit(1)
