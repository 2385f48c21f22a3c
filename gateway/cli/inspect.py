"""What definitions and servers give, with nothing stored and nothing started.

`gateway inspect`: what a definition would become. `gateway discover`: what upstream MCP servers
offer now, and what in the configuration has drifted from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gateway.app import demo_connection
from gateway.azure.directory import AzureDirectory
from gateway.calls.credentials import Credentials, ask_azure, proof_of, prove
from gateway.catalog.definitions import Fetcher, kind_of, source_of
from gateway.catalog.discover import Discoverer, previewed, problem_dict, wraps_of
from gateway.catalog.snapshot import ConnectionState, Snapshot, owner_in
from gateway.cli.remote import show_table
from gateway.config.connection import NAME_PATTERN, Connection, McpConnection
from gateway.config.reading import parse_connection
from gateway.config.settings import Settings
from gateway.connectors.manifest import BUILTIN
from gateway.connectors.mcp import drift
from gateway.errors import GatewayError
from gateway.outbound.client import Egress
from gateway.upstream.registry import Upstreams
from gateway.workers import Workers

ANYWHERE = ("0.0.0.0/0", "::/0")


async def preview(what: str, kind: str | None, settings: Settings, folder: Path) -> dict[str, Any]:
    """The tools of a definition or a connection, what is skipped, problems and cost."""
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
        is_openapi = kind_of(connection) == "openapi"
        advice = await workers.advise(found.definition.packed) if is_openapi else ()
    known = {key: ConnectionState(key, c, "config") for key, c in settings.connections.items()}
    owner = owner_in(Snapshot(0, settings, known), name, connection)
    return previewed(name, kind_of(connection), found, advice, owner=owner)


def _configured(what: str, settings: Settings) -> Connection | None:
    """The connection of this name: one of config.toml, or the demo."""
    if what == "demo" and settings.demo.enabled:
        server = settings.server
        return demo_connection(server.public_url or f"http://{server.host}:{server.port}")
    return settings.connections.get(what)


def _values(what: str, kind: str | None) -> dict[str, Any]:
    if kind == "manifest" or (kind is None and what in BUILTIN):
        return {"kind": "manifest", "manifest": what, "prefix": ""}
    return {"kind": "openapi", "spec": what, "prefix": ""}


def print_preview(found: dict[str, Any]) -> None:
    """The preview in words."""
    print(f"{found['connection']} · {found['format']} · {found['base_url'] or 'no base URL'}")
    show_table(found["tools"], "name access risk method path tokens", name="Tool")
    for skipped in found["skipped"]:
        operation = skipped["operation"] or f"{skipped['method']} {skipped['path']}"
        print(f"skipped  {operation}: {skipped['reason']}")
    for problem in found["problems"]:
        print(f"{problem['severity']:8} {problem['where']}: {problem['message']}")
    if "session" in found:
        apart = found["session"] == "principal"
        print(f"session  {'each principal has its own' if apart else 'all principals share one'}")
    counts = [f"{len(found[noun])} {noun}" for noun in ("tools", "skipped", "problems")]
    print(f"{', '.join(counts)}, ≈ {found['tokens']:,} tokens")


@asynccontextmanager
async def upstreams_over(egress: Egress) -> AsyncIterator[Upstreams]:
    """Sessions with MCP servers for as long as a command runs, none before one is asked for."""
    credentials = Credentials(egress)

    async def headers(
        name: str, connection: Connection, refused: bool
    ) -> tuple[tuple[str, str], ...]:
        return (await credentials.grant(name, proof_of(connection.auth))).headers

    async with Upstreams(egress, headers) as upstreams:
        yield upstreams


async def look_at_servers(
    settings: Settings, folder: Path, servers: Mapping[str, McpConnection]
) -> list[dict[str, Any]]:
    """What each server offers, and what has drifted from it."""
    async with (
        Egress(**settings.network.rules, folder=folder) as egress,
        upstreams_over(egress) as upstreams,
    ):
        looks = (_report(upstreams, name, each) for name, each in servers.items())
        return list(await asyncio.gather(*looks))


async def _report(upstreams: Upstreams, name: str, settings: McpConnection) -> dict[str, Any]:
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


def print_drift(reports: list[dict[str, Any]]) -> None:
    """The same in words."""
    for report in reports:
        print(f"{report['connection']}: {report['error'] or str(len(report['tools'])) + ' tools'}")
        if report["tools"]:
            rows = [{**t, "description": t["description"][:80]} for t in report["tools"]]
            show_table(rows, "name description", name="Tool")
        for problem in report["drift"]:
            print(f"drift: {problem['where']}: {problem['message']}")
