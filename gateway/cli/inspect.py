"""What definitions, servers and the configuration give, with nothing stored and nothing served.

`gateway inspect`: what a definition would become. `gateway discover`: what upstream MCP servers
offer now, and what in the configuration has drifted from it. `gateway check`: what is wrong with a
configuration. Manifests and TLS files are read. The snapshot that the configuration would give is
made from the store: it shows names that match nothing (for that, definitions that names are
compared with and that are not in the store are read), and each recorded call can be looked up and
decided in it as if it came in now.
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
from gateway.catalog.discover import Discoverer, Fetcher, Look, is_inline, is_url, source_of
from gateway.catalog.snapshot import ConnectionState, Snapshot, owner_in, previewed
from gateway.cli.terminal import show_table
from gateway.config.connection import (
    NAME_PATTERN,
    ArmConnection,
    Connection,
    ManifestConnection,
    McpConnection,
    OpenApiConnection,
)
from gateway.config.reading import parse_connection
from gateway.config.settings import Limits, Settings
from gateway.connectors.manifest import BUILTIN, load_builtin, parse_manifest, region_problem
from gateway.connectors.mcp import drift
from gateway.demo.bookshop import demo_connection
from gateway.errors import ConfigInvalid, DefinitionUnreadable, GatewayError
from gateway.limits import CHECK_SECONDS
from gateway.model import Principal, Scope, TlsFiles
from gateway.outbound.addresses import tls_problem
from gateway.outbound.client import Egress
from gateway.policy.access import configuration_problems, decide, principal_now
from gateway.policy.view import view
from gateway.store.catalog import StoredCatalog
from gateway.store.database import Database, is_current
from gateway.store.ledger import Filter, list_executions
from gateway.store.secrets import Seal, check_seal, load_seal
from gateway.store.tables import Execution
from gateway.upstream.registry import Upstreams
from gateway.web.own_tools import OWN_TOOLS
from gateway.workers import Workers

ANYWHERE = ("0.0.0.0/0", "::/0")


async def preview(what: str, kind: str | None, settings: Settings, folder: Path) -> dict[str, Any]:
    """The tools of a definition or a connection, what is skipped, problems and cost."""
    connection = _configured(what, settings)
    in_azure = kind == "arm" and settings.azure is not None and bool(NAME_PATTERN.fullmatch(what))
    name = what if connection or in_azure else "preview"
    allow = settings.network.allow if connection else ANYWHERE
    files = folder  # of [network]: these count from config.toml whatever is inspected
    if connection is None:
        folder = Path()
        values = {"kind": "arm"} if in_azure else _values(what, kind)
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
    """What a connection gives; what a person names at a terminal is theirs to reach."""
    rules = {**settings.network.rules, "allow": allow}
    async with reading(settings, rules, files or folder, folder) as (discoverer, workers):
        found = await discoverer.discover(Look(name, connection, settings.limits))
        is_openapi = connection.kind == "openapi"
        advice = await workers.advise(found.definition.packed) if is_openapi else ()
    known = {key: ConnectionState(key, c, "config") for key, c in settings.connections.items()}
    owner = owner_in(Snapshot(0, settings, known), name, connection)
    return previewed(name, connection.kind, found, advice, owner=owner)


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
async def reading(
    settings: Settings, rules: Mapping[str, Any], files: Path, folder: Path
) -> AsyncIterator[tuple[Discoverer, Workers]]:
    """What reads definitions and servers as the gateway would, for as long as a command runs."""
    async with (
        Egress(**rules, folder=files) as egress,
        Workers(count=1) as workers,
        _upstreams(egress) as upstreams,
    ):
        credentials = Credentials(egress)
        ways = (Fetcher(egress, folder), workers, upstreams.read, egress.check)
        azure = AzureDirectory(partial(ask_azure, egress, credentials), lambda: settings.azure)
        yield Discoverer(*ways, azure, partial(prove, credentials)), workers


def _upstreams(egress: Egress) -> Upstreams:
    """Sessions with MCP servers, none before one is asked for."""
    return Upstreams(egress, Credentials(egress).upstream_headers)


async def look_at_servers(
    settings: Settings, folder: Path, servers: Mapping[str, McpConnection]
) -> list[dict[str, Any]]:
    """What each server offers, and what has drifted from it."""
    async with (
        Egress(**settings.network.rules, folder=folder) as egress,
        _upstreams(egress) as upstreams,
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
    problems = drift(listing, source_of(name, settings, Limits(), ""))
    return report | {"drift": [problem.shown() for problem in problems]}


def print_drift(reports: list[dict[str, Any]]) -> None:
    """The same in words."""
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
        where, given = f"{config}: connections.{name}", connection.manifest
        try:
            is_file = "/" in given or given.endswith(".toml")
            raw = (config.parent / given).read_bytes() if is_file else load_builtin(given)
            if problem := region_problem(parse_manifest(raw, given), connection.region):
                yield f"{where}.region: {problem}"
        except DefinitionUnreadable as error:
            yield f"{where}.{error.message} {error.hint}"
        except OSError as error:
            yield f"{where}.manifest: {given} can't be read: {error.strerror}"
        except ConfigInvalid as error:
            yield from error.problems


def _missing_files(settings: Settings, folder: Path) -> Iterator[tuple[str, str]]:
    """Files that are named and not there (yet): the gateway starts without them."""
    named = {"auth.jwks_file": settings.auth.jwks_file}
    for name, connection in settings.connections.items():
        if isinstance(connection, OpenApiConnection):
            is_path = not is_inline(connection.spec) and not is_url(connection.spec)
            named[f"connections.{name}.spec"] = connection.spec if is_path else None
        elif isinstance(connection, McpConnection) and connection.command:
            named[f"connections.{name}.cwd"] = connection.cwd
            here, command = folder / (connection.cwd or ""), connection.command
            path = connection.env.get("PATH")
            if not shutil.which(command, path=path) and not (here / command).exists():
                yield f"connections.{name}.command", f"there is no command {command}"
    for where, file in named.items():
        if file and not (folder / file).exists():
            yield where, f"there is no {folder / file}"


def count(settings: Settings) -> dict[str, int]:
    """How much of what a configuration has."""
    return {
        "connections": len(settings.connections) + settings.demo.enabled,
        "principals": len(settings.principals),
        "bundles": len(settings.bundles),
    }


# --- names that match nothing ---------------------------------------------------------------------


async def find_problems(settings: Settings, config: Path) -> list[tuple[str, str]]:
    """What this configuration says and what would not hold, as (key path, what is wrong)."""
    folder = config.parent
    found = list(_missing_files(settings, folder))
    missing = {where.split(".")[1] for where, _ in found}
    async with (
        reading(settings, settings.network.rules, folder, folder) as (discoverer, _),
        _stored(settings, folder, found) as stored,
    ):
        catalog = await _load(settings, discoverer, stored)
        states = catalog.current.connections.values()
        worth = [state.name for state in states if _is_worthreading(catalog.current, state)]
        names = [name for name in worth if name not in missing]
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                reports = await catalog.refresh(names, by="check")
                found += [(f"connections.{r.name}", r.error) for r in reports if r.error]
        snapshot = catalog.current
    found += [(problem.where, problem.message) for problem in configuration_problems(snapshot)]
    found += [each for each in _overridden(snapshot) if each[0] not in dict(found)]
    return found + [
        (f"connections.{name}.{problem.where}", problem.message)
        for name, state in snapshot.connections.items()
        for problem in state.problems
        if problem.configured
    ]


def _overridden(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """What config.toml says and the store has otherwise, so that the store's counts."""
    settings, put = snapshot.settings, snapshot.stored_permissions
    for key, written in settings.permissions:
        if put is not None and getattr(put, key) != written:
            said = f"{getattr(put, key)}, " if isinstance(written, str | float | int) else ""
            yield (
                f"permissions.{key}",
                f"the store overrides it: {said}put at run time, counts until DELETE "
                "/api/v1/permissions",
            )
    for (name, connection), level in snapshot.choices.items():
        principal = settings.principals.get(name)
        if principal and principal.connections.get(connection, level) != level:
            where = f"principals.{name}.connections.{connection}"
            yield where, f"the store overrides it: {name} chose {level}"


class Unkept(StoredCatalog):
    """What is stored; what is found beside it is not kept."""

    async def save(self, *what: Any, **put: Any) -> int:
        return 0


@asynccontextmanager
async def _stored(
    settings: Settings, folder: Path, problems: list[tuple[str, str]]
) -> AsyncIterator[StoredCatalog]:
    """The store as it is, neither made nor brought up to date; an empty one where there is none."""
    async with AsyncExitStack() as stack:
        if _has_store(settings, folder):
            db, seal = Database(settings.store.url_in(folder)), _seal(settings, folder)
            stack.push_async_callback(db.engine.close)
            if problem := await _unreadable(db, seal):
                problems.append(("store.url", f"what was put is not known: {problem}"))
            else:
                yield Unkept(db, seal)
                return
        empty = Path(stack.enter_context(TemporaryDirectory()))
        db = await stack.enter_async_context(Database(f"sqlite:///{empty / 'store.db'}"))
        yield Unkept(db, load_seal(empty / "secret.key", None))


def _has_store(settings: Settings, folder: Path) -> bool:
    file, key = settings.store.file_in(folder), folder / settings.store.secret_key_file
    is_there = file is None or file.exists()
    return is_there and (key.exists() or "GATEWAY_SECRET_KEY" in os.environ)


async def _unreadable(db: Database, seal: Seal) -> str | None:
    try:
        if not await db.read(is_current):
            return "the store is of an older version"
        await check_seal(db, seal)
    except (GatewayError, ConfigInvalid) as error:
        return str(error)
    return None


def _seal(settings: Settings, folder: Path) -> Seal:
    return load_seal(folder / settings.store.secret_key_file, os.environ.get("GATEWAY_SECRET_KEY"))


async def _load(settings: Settings, discoverer: Discoverer, stored: StoredCatalog) -> Catalog:
    demo = {"demo": demo_connection(f"http://{settings.server.host}")}
    catalog = Catalog(settings, discoverer, stored, demo)
    await catalog.apply(settings)
    return catalog


def _is_worthreading(snapshot: Snapshot, state: ConnectionState) -> bool:
    """Whether names are compared with its operations, which can be had without starting anything.

    A command is not run for this, nor is one woken that waits until somebody needs it.
    """
    settings, permissions = state.settings, snapshot.permissions
    if state.build is not None or state.status == "disabled" or settings.is_lazy:
        return False
    is_command = isinstance(settings, McpConnection) and settings.transport == "stdio"
    if is_command or isinstance(settings, ArmConnection):
        return False
    named = {"include", "exclude", "operations", "tools", "exclude_tools", "wrap"}
    ruled = (*permissions.tools, *permissions.auto_approve.tools)
    has_rule = any(name.startswith(state.prefix) for name in ruled)
    return has_rule or not named.isdisjoint(settings.model_fields_set)


# --- recorded calls, again ------------------------------------------------------------------------


async def rehearse_recorded(settings: Settings, config: Path, calls: int) -> list[dict[str, str]]:
    """What this configuration would have refused or asked about, of the last so many calls."""
    folder = config.parent
    seal = _seal(settings, folder)
    async with (
        Database(settings.store.url_in(folder)) as db,
        reading(settings, settings.network.rules, folder, folder) as (discoverer, _),
    ):
        await check_seal(db, seal)
        catalog = await _load(settings, discoverer, Unkept(db, seal))
        return rehearse(catalog.current, await _last(db, calls))


async def _last(db: Database, calls: int) -> list[Execution]:
    found: list[Execution] = []
    cursor = None
    while len(found) < calls:
        page = await list_executions(db, Filter(), limit=calls - len(found), cursor=cursor)
        found += page.executions
        if (cursor := page.next) is None:
            break
    return found


def rehearse(snapshot: Snapshot, executions: Sequence[Execution]) -> list[dict[str, str]]:
    """The calls that would be refused or asked about in this snapshot. Pure."""
    found = []
    for each in executions:
        if verdict := _judge(snapshot, each):
            call = {name: getattr(each, name) for name in ("tool", "principal", "status")}
            found.append(call | verdict | {"execution": each.id})
    return found


def _judge(snapshot: Snapshot, execution: Execution) -> dict[str, str] | None:
    known = Principal(execution.principal, admin=snapshot.settings.auth.mode == "none")
    principal = principal_now(snapshot.settings, known)
    if principal is None:
        return {"outcome": "refused", "reason": f"there is no principal {execution.principal}"}
    scope = Scope("bundles", execution.bundle_ids) if execution.bundle_ids else Scope()
    tool = view(snapshot, principal, scope, OWN_TOOLS).tools.get(execution.tool)
    if tool is None:
        return {"outcome": "refused", "reason": "the tool is not in the principal's view"}
    decision = decide(tool, snapshot.permissions)
    if decision.outcome == "allow":
        return None
    outcome = "asked" if decision.outcome == "confirm" else "refused"
    return {"outcome": outcome, "reason": decision.reason}
