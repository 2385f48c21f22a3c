"""`gateway inspect`: what a definition would become, with nothing stored and nothing started.

`gateway discover`: what upstream MCP servers offer now, and what has drifted from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.cli.remote import JsonOption, fail, quiet, show_json, show_table
from gateway.cli.serve import ConfigOption
from gateway.config.connection import NAME_PATTERN, Connection, McpConnection
from gateway.config.reading import read_settings
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from gateway.model import Problem

ANYWHERE = ("0.0.0.0/0", "::/0")
KindOption = Literal["openapi", "arm", "manifest"]
AccessOption = Literal["read-write", "read-only"]


def inspect(
    what: Annotated[str, typer.Argument(help="A definition (URL, path) or a connection's name.")],
    kind: Annotated[KindOption | None, typer.Option(help="What it is, if not obvious.")] = None,
    access: Annotated[AccessOption, typer.Option(help="As someone with this access.")] = (
        "read-write"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    config: ConfigOption = Path("config.toml"),
) -> None:
    """Preview the tools of a definition or a connection.

    Shows the tools, the operations that are skipped with the reason, problems, and what it costs in
    tokens. Nothing is stored.

    Examples: `gateway inspect openapi.yaml`, `gateway inspect greenhouse --kind manifest --json`
    """
    import orjson

    quiet()
    settings = _settings(config)
    try:
        preview = asyncio.run(_preview(what, kind, settings, config.resolve().parent))
    except GatewayError as error:
        if as_json:
            print(orjson.dumps({"error": error.as_dict()}).decode())
            raise typer.Exit(1) from error
        raise
    if access == "read-only":
        preview["tools"] = [tool for tool in preview["tools"] if tool["access"] == "read"]
        preview["tokens"] = sum(tool["tokens"] for tool in preview["tools"])
    if as_json:
        print(orjson.dumps(preview, option=orjson.OPT_INDENT_2).decode())
    else:
        _show(preview)


def _settings(config: Path) -> Settings:
    """The configuration where there is one: it says where we may go and names connections."""
    if config.exists():
        from gateway.config.reading import read_settings

        return read_settings(config)
    return Settings()


async def _preview(
    what: str, kind: KindOption | None, settings: Settings, folder: Path
) -> dict[str, Any]:
    from gateway.azure.directory import AzureDirectory
    from gateway.calls.credentials import Credentials, ask_azure, prove
    from gateway.catalog.definitions import Fetcher, kind_of
    from gateway.catalog.discover import Discoverer, previewed
    from gateway.catalog.snapshot import ConnectionState, Snapshot, owner_in
    from gateway.config.reading import parse_connection
    from gateway.outbound.client import Egress
    from gateway.workers import Workers

    connection = _configured(what, settings)
    in_azure = kind == "arm" and settings.azure is not None and bool(NAME_PATTERN.fullmatch(what))
    name = what if connection or in_azure else "preview"
    # What a person names at a terminal is theirs to reach; what is configured keeps to its rules.
    rules = settings.network.rules if connection else {**settings.network.rules, "allow": ANYWHERE}
    files = folder  # of [network]: these count from config.toml whatever is inspected
    if connection is None:
        folder = Path()
        values = {"kind": "arm"} if in_azure else _values(what, kind)
        connection = parse_connection(name, values)
    async with (
        Egress(**rules, folder=files) as egress,
        Workers(count=1) as workers,
        upstreams_over(egress) as upstreams,
    ):
        credentials = Credentials(egress)
        discoverer = Discoverer(
            Fetcher(egress, folder),
            workers,
            upstreams.read,
            egress.check,
            AzureDirectory(partial(ask_azure, egress, credentials), lambda: settings.azure),
            partial(prove, credentials),
        )
        found = await discoverer.discover(name, connection, settings.limits, None)
        advice: tuple[Problem, ...] = ()
        if kind_of(connection) == "openapi":
            advice = await workers.advise(found.definition.packed)
    known = {key: ConnectionState(key, c, "config") for key, c in settings.connections.items()}
    owner = owner_in(Snapshot(0, settings, known), name, connection)
    return previewed(name, kind_of(connection), found, advice, owner=owner)


def _configured(what: str, settings: Settings) -> Connection | None:
    """The connection of this name: one of config.toml, or the demo."""
    if what == "demo" and settings.demo.enabled:
        from gateway.app import demo_connection

        server = settings.server
        return demo_connection(server.public_url or f"http://{server.host}:{server.port}")
    return settings.connections.get(what)


def _values(what: str, kind: KindOption | None) -> dict[str, Any]:
    from gateway.connectors.manifest import BUILTIN

    if kind == "manifest" or (kind is None and what in BUILTIN):
        return {"kind": "manifest", "manifest": what, "prefix": ""}
    return {"kind": "openapi", "spec": what, "prefix": ""}


def _show(preview: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    title = (
        f"{preview['connection']} · {preview['format']} · {preview['base_url'] or 'no base URL'}"
    )
    table = Table("Tool", "Access", "Risk", "Method", "Path", "≈ Tokens", title=Text(title))
    for tool in preview["tools"]:
        cells = (tool["name"], tool["access"], tool["risk"], tool["method"], tool["path"])
        table.add_row(*(Text(cell) for cell in cells), f"{tool['tokens']:,}")
    console.print(table)
    for skipped in preview["skipped"]:
        operation = skipped["operation"] or f"{skipped['method']} {skipped['path']}"
        console.print(Text(f"skipped  {operation}: {skipped['reason']}"))
    for problem in preview["problems"]:
        console.print(Text(f"{problem['severity']:8} {problem['where']}: {problem['message']}"))
    if "session" in preview:
        apart = preview["session"] == "principal"
        who = "each principal has its own" if apart else "all principals share one"
        console.print(Text(f"session  {who}"))
    console.print(
        Text(
            f"{len(preview['tools'])} tools, {len(preview['skipped'])} skipped, "
            f"{len(preview['problems'])} problems, ≈ {preview['tokens']:,} tokens"
        )
    )


if TYPE_CHECKING:
    from gateway.outbound.client import Egress
    from gateway.upstream.registry import Upstreams


def discover(
    connection: Annotated[
        str | None, typer.Argument(help="One connection; default: every MCP server.")
    ] = None,
    as_json: JsonOption = False,
    config: ConfigOption = Path("config.toml"),
) -> None:
    """Show what upstream MCP servers offer now, and every drift of the configuration from it.

    Exit 1 if a configured name no longer exists or a server can't be reached.

    Example: `gateway discover bookings`
    """
    quiet()
    settings = read_settings(config)
    chosen = {
        name: found
        for name, found in settings.connections.items()
        if isinstance(found, McpConnection) and connection in (None, name)
    }
    if connection and not chosen:
        known = [n for n, c in settings.connections.items() if isinstance(c, McpConnection)]
        fail(f"{connection} is not an MCP server here; known: {', '.join(known) or 'none'}", 2)
    reports = asyncio.run(_discovered(settings, config.parent, chosen))
    show_json(reports) if as_json else _show_drift(reports)
    if any(report["drift"] or report["error"] for report in reports):
        raise typer.Exit(1)


async def _discovered(
    settings: Settings, folder: Path, chosen: dict[str, McpConnection]
) -> list[dict[str, Any]]:
    from gateway.outbound.client import Egress

    async with (
        Egress(**settings.network.rules, folder=folder) as egress,
        upstreams_over(egress) as upstreams,
    ):
        looks = (_report(upstreams, name, c) for name, c in chosen.items())
        return list(await asyncio.gather(*looks))


@asynccontextmanager
async def upstreams_over(egress: Egress) -> AsyncIterator[Upstreams]:
    """Sessions with MCP servers for as long as a command runs, none before one is asked for."""
    from gateway.calls.credentials import Credentials, auth_of
    from gateway.upstream.registry import Upstreams

    credentials = Credentials(egress)

    async def headers(
        name: str, connection: Connection, refused: bool
    ) -> tuple[tuple[str, str], ...]:
        return (await credentials.grant(name, auth_of(connection.auth))).headers

    async with Upstreams(egress, headers) as upstreams:
        yield upstreams


async def _report(upstreams: Upstreams, name: str, settings: McpConnection) -> dict[str, Any]:
    from gateway.catalog.definitions import source_of
    from gateway.catalog.discover import problem_dict, wraps_of
    from gateway.connectors.mcp import drift

    report: dict[str, Any] = {"connection": name, "tools": [], "drift": [], "error": None}
    report["session"] = settings.session
    try:
        said, session = await upstreams.read(name, settings)
        listing = said["tools"]
    except GatewayError as error:
        return report | {"error": error.message}
    report["session"] = session
    report["tools"] = [
        {"name": tool.get("name"), "description": tool.get("description", "")} for tool in listing
    ]
    source = source_of(name, settings, location="", max_description_chars=0)
    problems = drift(listing, source, wraps_of(settings), settings.tools, settings.exclude_tools)
    return report | {"drift": [problem_dict(problem) for problem in problems]}


def _show_drift(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        print(f"{report['connection']}: {report['error'] or str(len(report['tools'])) + ' tools'}")
        if report["tools"]:
            rows = [{**t, "description": t["description"][:80]} for t in report["tools"]]
            show_table(rows, {"name": "Tool", "description": "Description"})
        for problem in report["drift"]:
            print(f"drift: {problem['where']}: {problem['message']}")
