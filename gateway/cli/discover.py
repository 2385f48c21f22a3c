"""`gateway discover`: what upstream MCP servers offer now, and what has drifted from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.remote import JsonOption, fail, quiet, show_json, show_table
from gateway.cli.serve import ConfigOption
from gateway.config.connection import Connection, McpConnection
from gateway.config.reading import read_settings
from gateway.config.settings import Settings
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.catalog.upstreams import LiveUpstreams
    from gateway.outbound.client import Egress


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
    show_json(reports) if as_json else _show(reports)
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
async def upstreams_over(egress: Egress) -> AsyncIterator[LiveUpstreams]:
    """Sessions with MCP servers for as long as a command runs, none before one is asked for."""
    from gateway.catalog.upstreams import LiveUpstreams
    from gateway.invoke.credentials import Credentials
    from gateway.invoke.prepared import auth_of

    credentials = Credentials(egress)

    async def headers(
        name: str, connection: Connection, refused: bool
    ) -> tuple[tuple[str, str], ...]:
        return (await credentials.grant(name, auth_of(connection.auth))).headers

    upstreams = LiveUpstreams(egress, headers)
    async with upstreams.sessions:
        yield upstreams


async def _report(upstreams: LiveUpstreams, name: str, settings: McpConnection) -> dict[str, Any]:
    from gateway.catalog.discover import problem_dict, wraps_of
    from gateway.catalog.sources import source_of
    from gateway.connectors.upstream import drift

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


def _show(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        print(f"{report['connection']}: {report['error'] or str(len(report['tools'])) + ' tools'}")
        if report["tools"]:
            rows = [{**t, "description": t["description"][:80]} for t in report["tools"]]
            show_table(rows, {"name": "Tool", "description": "Description"})
        for problem in report["drift"]:
            print(f"drift: {problem['where']}: {problem['message']}")
