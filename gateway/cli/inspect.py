"""Previews of definitions, servers and configurations, with nothing stored and nothing served.

`gateway inspect`: what a definition would become. `gateway discover`: what upstream MCP servers
offer now, and what in the configuration has drifted from it. `gateway check`: what is wrong with a
configuration. Manifests and TLS files are read. The snapshot that the configuration would give is
made from the store. It shows names that match nothing; definitions that are needed for this and
are not in the store are read. Each recorded call can be looked up and decided in the snapshot as
if it came in now.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.azure.directory import AzureDirectory
from gateway.calls.credentials import Credentials, prove
from gateway.calls.send import ask_azure
from gateway.catalog.catalog import Catalog
from gateway.catalog.discover import Discoverer, Fetcher, Look, file_of, is_built_in, source_of
from gateway.catalog.snapshot import ConnectionState, Snapshot, holder_finder, prefix_of, preview_of
from gateway.cli.terminal import show_table
from gateway.config.connection import NAME_PATTERN, Connection, ManifestConnection, McpConnection
from gateway.config.file import parse_connection
from gateway.config.settings import Limits, Settings
from gateway.connectors.manifest import BUILTIN, load_builtin, parse_manifest, region_problem
from gateway.connectors.mcp import drift
from gateway.demo.bookshop import demo_connection
from gateway.errors import ConfigInvalid, DefinitionUnreadable, GatewayError
from gateway.limits import CHECK_SECONDS
from gateway.model import Principal, Problem, TlsFiles, ViewAddress
from gateway.outbound.addresses import tls_problem
from gateway.outbound.client import Egress
from gateway.policy.access import configuration_problems, decide, principal_now
from gateway.policy.view import make_view
from gateway.store.catalog import StoredCatalog
from gateway.store.database import Database, is_current
from gateway.store.ledger import Filter, list_executions
from gateway.store.secrets import Seal, check_seal, load_seal
from gateway.store.tables import Execution
from gateway.upstream.registry import Upstreams
from gateway.web.own_tools import OWN_TOOLS
from gateway.workers import Workers

ANYWHERE = ("0.0.0.0/0", "::/0")


async def preview(spec: str, kind: str | None, settings: Settings, folder: Path) -> dict[str, Any]:
    """The tools of a definition or a connection, skipped operations, problems and cost."""
    connection = _named_connection(spec, settings)
    in_azure = kind == "arm" and settings.azure is not None and bool(NAME_PATTERN.fullmatch(spec))
    name = spec if connection or in_azure else "preview"
    allow = settings.network.allow if connection else ANYWHERE
    files = folder  # [network]'s files are found from config.toml's folder in any case
    if connection is None:
        folder = Path()
        values = {"kind": "arm"} if in_azure else _preview_values(spec, kind)
        connection = parse_connection(name, values)
    return await preview_connection(name, connection, settings, folder, files=files, allow=allow)


async def preview_connection(
    name: str,
    connection: Connection,
    settings: Settings,
    folder: Path,
    *,
    files: Path | None = None,
    allow: Sequence[str] = ANYWHERE,
) -> dict[str, Any]:
    """The preview of a connection; an address that a person names at a terminal is allowed."""
    rules = {**settings.network.rules, "allow": allow}
    async with open_discoverer(settings, rules, files or folder, folder) as (discoverer, workers):
        found = await discoverer.discover(Look(name, connection, settings.limits))
        is_openapi = connection.kind == "openapi"
        advice = await workers.advise(found.definition.packed) if is_openapi else ()
    states = {key: ConnectionState(key, c, "config") for key, c in settings.connections.items()}
    find_holder = holder_finder(Snapshot(0, settings, states), name, connection)
    prefixes = find_prefix_problems(settings, {name: connection})
    shared = [Problem("warning", "prefix", words) for *pair, words in prefixes if name in pair]
    return preview_of(name, connection.kind, found, find_holder, *advice, *shared)


def _named_connection(spec: str, settings: Settings) -> Connection | None:
    """The connection of this name: one of config.toml, or the demo."""
    if spec == "demo" and settings.demo.enabled:
        server = settings.server
        return demo_connection(server.public_url or f"http://{server.host}:{server.port}")
    return settings.connections.get(spec)


def _preview_values(spec: str, kind: str | None) -> dict[str, Any]:
    if kind == "manifest" or (kind is None and spec in BUILTIN):
        return {"kind": "manifest", "manifest": spec, "prefix": ""}
    return {"kind": "openapi", "spec": spec, "prefix": ""}


def print_preview(report: dict[str, Any], most: int | None = None) -> None:
    """The preview in words, with at most so many skipped operations and problems."""
    print(f"{report['connection']} · {report['format']} · {report['base_url'] or 'no base URL'}")
    why = "what is skipped, and why:" if report["skipped"] else "there is nothing in it to call."
    nothing = f"No tool comes of it; {why}"
    show_table(report["tools"], "name access risk method path tokens", nothing, name="Tool")
    for skipped in report["skipped"][:most]:
        operation = skipped["operation"] or f"{skipped['method']} {skipped['path']}"
        print(f"skipped  {operation}: {skipped['reason']}")
    for problem in report["problems"][:most]:
        print(f"{problem['severity']:8} {problem['where']}: {problem['message']}")
    if most is not None and most < max(len(report["skipped"]), len(report["problems"])):
        print("…        --json has all of them")
    if "session" in report:
        is_own = report["session"] == "principal"
        print(f"session  {'each principal has its own' if is_own else 'all principals share one'}")
    counts = [f"{len(report[noun])} {noun}" for noun in ("tools", "skipped", "problems")]
    print(f"{', '.join(counts)}, ≈ {report['tokens']:,} tokens")


@asynccontextmanager
async def open_discoverer(
    settings: Settings, rules: Mapping[str, Any], files: Path, folder: Path
) -> AsyncIterator[tuple[Discoverer, Workers]]:
    """A discoverer that reads definitions and servers as the gateway does, until a command ends.

    Other servers that a definition names are judged by the configuration's own rules.
    """
    async with Egress(**rules, folder=files) as egress, Workers(count=1) as workers:
        credentials = Credentials(egress)
        azure = AzureDirectory(partial(ask_azure, egress, credentials), lambda: settings.azure)
        own_egress = Egress(**settings.network.rules, folder=files)
        async with own_egress, Upstreams(egress, credentials.upstream_headers) as upstreams:
            readers = (Fetcher(egress, folder), workers, upstreams.read, own_egress.check)
            yield Discoverer(*readers, azure, partial(prove, credentials)), workers


async def look_at_servers(
    settings: Settings, folder: Path, servers: Mapping[str, McpConnection]
) -> list[dict[str, Any]]:
    """What each server offers, and the drift of the configuration from it."""
    async with open_discoverer(settings, settings.network.rules, folder, folder) as (discoverer, _):
        looks = (_ask_server(discoverer, name, each) for name, each in servers.items())
        return list(await asyncio.gather(*looks))


async def _ask_server(discoverer: Discoverer, name: str, settings: McpConnection) -> dict[str, Any]:
    report: dict[str, Any] = {"connection": name, "tools": [], "drift": [], "error": None}
    report["session"] = settings.session
    try:
        answer, session = await discoverer.read_upstream(name, settings)
        listing = answer["tools"]
    except GatewayError as error:
        return report | {"error": error.message}
    report["session"] = session
    report["tools"] = [
        {"name": tool.get("name"), "description": tool.get("description", "")} for tool in listing
    ]
    problems = drift(listing, source_of(name, settings, Limits(), ""))
    return report | {"drift": [problem.as_dict() for problem in problems]}


def print_drift(reports: list[dict[str, Any]]) -> None:
    """The reports in words."""
    for report in reports:
        print(f"{report['connection']}: {report['error'] or str(len(report['tools'])) + ' tools'}")
        if report["tools"]:
            rows = [{**t, "description": t["description"][:80]} for t in report["tools"]]
            show_table(rows, "name description", name="Tool")
        for problem in report["drift"]:
            print(f"drift: {problem['where']}: {problem['message']}")


# --- `gateway check`: files ----------------------------------------------------------------------


def check_files(settings: Settings, config: Path) -> None:
    """Raises ConfigInvalid for manifests, certificates and keys that can't be used."""
    if problems := [*_manifest_problems(settings, config), *_tls_problems(settings, config)]:
        raise ConfigInvalid(problems)


def _tls_problems(settings: Settings, config: Path) -> Iterator[str]:
    tables = {"network": TlsFiles(ca_file=settings.network.ca_file)}
    for name, connection in settings.connections.items():
        tables[f"connections.{name}.tls"] = connection.tls
    for where, files in tables.items():
        if problem := tls_problem(config.parent, files):
            yield f"{config}: {where}.{problem}"


def _manifest_problems(settings: Settings, config: Path) -> Iterator[str]:
    for name, connection in settings.connections.items():
        if not isinstance(connection, ManifestConnection):
            continue
        where, manifest = f"{config}: connections.{name}", connection.manifest
        try:
            is_file = not is_built_in(manifest)
            raw = (config.parent / manifest).read_bytes() if is_file else load_builtin(manifest)
            if problem := region_problem(parse_manifest(raw, manifest), connection.region):
                yield f"{where}.region: {problem}"
        except DefinitionUnreadable as error:
            yield f"{where}.{error.message} {error.hint}"
        except OSError as error:
            yield f"{where}.manifest: {manifest} can't be read: {error.strerror}"
        except ConfigInvalid as error:
            yield from error.problems


def _missing_files(settings: Settings, folder: Path) -> Iterator[tuple[str, str]]:
    """Files that the configuration names and that are missing: the gateway starts without them."""
    paths = {"auth.jwks_file": settings.auth.jwks_file}
    for name, connection in settings.connections.items():
        if connection.kind == "openapi":
            paths[f"connections.{name}.spec"] = file_of(connection)
        elif isinstance(connection, McpConnection) and connection.command:
            paths[f"connections.{name}.cwd"] = connection.cwd
            here, command = folder / (connection.cwd or ""), connection.command
            path = connection.env.get("PATH")
            if not shutil.which(command, path=path) and not (here / command).exists():
                yield f"connections.{name}.command", f"there is no command {command}"
    for where, path_text in paths.items():
        if path_text and not (folder / path_text).exists():
            yield where, f"there is no {folder / path_text}"


def count_all(settings: Settings) -> dict[str, int]:
    """How many connections, principals and bundles a configuration has."""
    return {
        "connections": len(settings.connections) + settings.demo.enabled,
        "principals": len(settings.principals),
        "bundles": len(settings.bundles),
    }


# --- names that match nothing ---------------------------------------------------------------------


async def find_problems(settings: Settings, config: Path) -> list[tuple[str, str]]:
    """The parts of a configuration that would not hold, as (key path, problem)."""
    folder = config.parent
    problems = list(_missing_files(settings, folder))
    missing = {where.split(".")[1] for where, _ in problems}
    async with (
        open_discoverer(settings, settings.network.rules, folder, folder) as (discoverer, _),
        _open_stored(settings, folder, problems) as stored,
    ):
        catalog = await _catalog_of(settings, discoverer, stored)
        states = catalog.current.connections.values()
        readable = [state.name for state in states if _is_worth_reading(catalog.current, state)]
        names = [name for name in readable if name not in missing]
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                reports = await catalog.refresh(names, by="check")
                problems += [(f"connections.{r.name}", r.error) for r in reports if r.error]
        snapshot = catalog.current
    problems += [(problem.where, problem.message) for problem in configuration_problems(snapshot)]
    problems += [each for each in _find_overridden(snapshot) if each[0] not in dict(problems)]
    prefixes = find_prefix_problems(settings, {})
    problems += [(f"connections.{name}.prefix", words) for name, _, words in prefixes]
    return problems + [
        (f"connections.{name}.{problem.where}", problem.message)
        for name, state in snapshot.connections.items()
        for problem in state.problems
        if problem.configured
    ]


def find_prefix_problems(
    settings: Settings, more: Mapping[str, Connection]
) -> Iterator[tuple[str, str, str]]:
    """Two connections, and whose a tool's name is that begins with the prefixes of both."""
    demo = {"demo": demo_connection("http://localhost")} if settings.demo.enabled else {}
    connections = demo | dict(sorted({**settings.connections, **more}.items()))  # by precedence
    prefixes = {name: prefix_of(name, each) for name, each in connections.items() if each.enabled}
    holders: dict[str, str] = {}
    for name, prefix in prefixes.items():
        first = holders.setdefault(prefix, name)
        if prefix and first != name:
            words = f"a tool's name that both want is {first}'s; set another prefix"
            yield name, first, f"{first} and {name} have the prefix {prefix!r}: {words}"
    for prefix, name in holders.items():
        for shorter in (prefix[:length] for length in range(1, len(prefix))):
            if other := holders.get(shorter):
                words = f"names that begin with {prefix!r} are {name}'s alone"
                yield name, other, f"{name}'s prefix extends {shorter!r} of {other}: {words}"


def _find_overridden(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """The values of config.toml that the store overrides, with what counts instead."""
    settings, stored = snapshot.settings, snapshot.stored_permissions
    for key, written in settings.permissions:
        if stored is not None and getattr(stored, key) != written:
            value = f"{getattr(stored, key)}, " if isinstance(written, str | float | int) else ""
            yield (
                f"permissions.{key}",
                f"the store overrides it: {value}put at run time, counts until DELETE "
                "/api/v1/permissions",
            )
    for (name, connection), level in snapshot.choices.items():
        principal = settings.principals.get(name)
        if principal and principal.connections.get(connection, level) != level:
            where = f"principals.{name}.connections.{connection}"
            yield where, f"the store overrides it: {name} chose {level}"


class ReadOnlyCatalog(StoredCatalog):
    """The stored catalog, to which nothing is saved."""

    async def save(self, *changes: Any, **values: Any) -> int:
        return 0


@asynccontextmanager
async def _open_stored(
    settings: Settings, folder: Path, problems: list[tuple[str, str]]
) -> AsyncIterator[StoredCatalog]:
    """The stored catalog, and the store is neither made nor migrated; empty without a store."""
    async with AsyncExitStack() as stack:
        if _has_store(settings, folder):
            db, seal = Database(settings.store.url_in(folder)), _read_seal(settings, folder)
            stack.push_async_callback(db.engine.close)
            if problem := await _find_store_problem(db, seal):
                problems.append(("store.url", f"what was put is not known: {problem}"))
            else:
                yield ReadOnlyCatalog(db, seal)
                return
        empty = Path(stack.enter_context(TemporaryDirectory()))
        db = await stack.enter_async_context(Database(f"sqlite:///{empty / 'store.db'}"))
        yield ReadOnlyCatalog(db, load_seal(empty / "secret.key", None))


def _has_store(settings: Settings, folder: Path) -> bool:
    file, key = settings.store.file_in(folder), folder / settings.store.secret_key_file
    is_there = file is None or file.exists()
    return is_there and (key.exists() or "GATEWAY_SECRET_KEY" in os.environ)


async def _find_store_problem(db: Database, seal: Seal) -> str | None:
    try:
        if not await db.read(is_current):
            return "the store is of an older version"
        await check_seal(db, seal)
    except (GatewayError, ConfigInvalid) as error:
        return str(error)
    return None


def _read_seal(settings: Settings, folder: Path) -> Seal:
    return load_seal(folder / settings.store.secret_key_file, os.environ.get("GATEWAY_SECRET_KEY"))


async def _catalog_of(settings: Settings, discoverer: Discoverer, stored: StoredCatalog) -> Catalog:
    demo = {"demo": demo_connection(f"http://{settings.server.host}")}
    catalog = Catalog(settings, discoverer, stored, demo)
    await catalog.apply(settings)
    return catalog


def _is_worth_reading(snapshot: Snapshot, state: ConnectionState) -> bool:
    """Whether names are compared with a connection's operations, and reading starts no process.

    A command is not run for this, nor is a lazy connection read before a caller needs it.
    """
    settings, permissions = state.settings, snapshot.permissions
    if state.build is not None or state.status == "disabled" or settings.is_lazy:
        return False
    is_command = isinstance(settings, McpConnection) and settings.transport == "stdio"
    if is_command or settings.kind == "arm":
        return False
    name_keys = {"include", "exclude", "operations", "tools", "exclude_tools", "wrap"}
    rule_names = (*permissions.tools, *permissions.auto_approve.tools)
    has_rule = any(name.startswith(state.prefix) for name in rule_names)
    return has_rule or not name_keys.isdisjoint(settings.model_fields_set)


# --- recorded calls, again ------------------------------------------------------------------------


async def rehearse_recorded(settings: Settings, config: Path, calls: int) -> list[dict[str, str]]:
    """Those of the last recorded calls that this configuration would refuse or ask about."""
    folder = config.parent
    seal = _read_seal(settings, folder)
    async with (
        Database(settings.store.url_in(folder)) as db,
        open_discoverer(settings, settings.network.rules, folder, folder) as (discoverer, _),
    ):
        await check_seal(db, seal)
        catalog = await _catalog_of(settings, discoverer, ReadOnlyCatalog(db, seal))
        return rehearse(catalog.current, await _last_executions(db, calls))


async def _last_executions(db: Database, calls: int) -> list[Execution]:
    executions: list[Execution] = []
    cursor = None
    while len(executions) < calls:
        page = await list_executions(db, Filter(), limit=calls - len(executions), cursor=cursor)
        executions += page.executions
        if (cursor := page.next) is None:
            break
    return executions


def rehearse(snapshot: Snapshot, executions: Sequence[Execution]) -> list[dict[str, str]]:
    """The calls that would be refused or asked about in this snapshot. Pure."""
    rows = []
    for execution in executions:
        if verdict := _judge(snapshot, execution):
            call = {name: getattr(execution, name) for name in ("tool", "principal", "status")}
            rows.append(call | verdict | {"execution": execution.id})
    return rows


def _judge(snapshot: Snapshot, execution: Execution) -> dict[str, str] | None:
    caller = Principal(execution.principal, admin=snapshot.settings.auth.mode == "none")
    principal = principal_now(snapshot.settings, caller)
    if principal is None:
        return {"outcome": "refused", "reason": f"there is no principal {execution.principal}"}
    address = ViewAddress("bundles" if execution.bundle_ids else "own", execution.bundle_ids)
    tool = make_view(snapshot, principal, address, OWN_TOOLS).tools.get(execution.tool)
    if tool is None:
        return {"outcome": "refused", "reason": "the tool is not in the principal's view"}
    decision = decide(tool, snapshot.permissions)
    if decision.outcome == "allow":
        return None
    outcome = "asked" if decision.outcome == "confirm" else "refused"
    return {"outcome": outcome, "reason": decision.reason}
