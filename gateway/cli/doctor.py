"""`gateway doctor`: looks at all that a gateway stands on, and says what to fix, a line each.

Each look has a deadline and gives findings: ok, warn or fail, with what to do. Nothing is changed,
and only what the gateway itself would read is read: definitions, lists of tools, the store. MCP
servers that are commands are started for a moment, as `gateway inspect` does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import aiohttp
from sqlalchemy import func, select

from gateway import __version__
from gateway.cli.inspect import check_files, find_problems, preview
from gateway.config.connection import McpConnection, OpenApiConnection
from gateway.config.file import read_settings
from gateway.config.settings import LOOPBACK_HOSTS, Settings
from gateway.errors import ConfigInvalid, GatewayError
from gateway.limits import (
    CERTIFICATE_DAYS,
    CHECK_SECONDS,
    EXPECTED_CLIENTS,
    FETCH_SECONDS,
    FREE_BYTES,
    HEARTBEAT_SECONDS,
    STEP_BYTES,
    STORE_ROWS,
)
from gateway.model import Problem
from gateway.outbound.certificates import ask_end, ending_soon, read_ends
from gateway.outbound.client import Egress, Request
from gateway.server import bind
from gateway.store.database import Database, is_current
from gateway.store.ledger import Filter, list_executions
from gateway.store.secrets import check_seal, load_seal
from gateway.system import most_open_files
from gateway.web.todo import STEPS, credential_tasks, host_tasks, problem_tasks, tls_tables


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a look."""

    status: Literal["ok", "warn", "fail"]
    about: str
    message: str
    fix: str = ""

    @property
    def line(self) -> str:
        return f"{self.status:4}  {self.about}: {self.message}" + (
            f" → {self.fix}" * bool(self.fix)
        )


Exam = Callable[[Settings, Path], Awaitable[list[Finding]]]


def examine(config: Path) -> tuple[list[Finding], int]:
    """All findings, and the exit code: 1 where something fails, 2 where the configuration does."""
    try:
        settings = read_settings(config)
        check_files(settings, config)
    except ConfigInvalid as error:
        fix = "mend config.toml; `gateway init` writes a first one"
        return [Finding("fail", "configuration", each, fix) for each in error.problems], 2
    findings = asyncio.run(_look_at_all(settings, config.resolve()))
    return findings, int(any(each.status == "fail" for each in findings))


async def _look_at_all(settings: Settings, config: Path) -> list[Finding]:
    looks: dict[str, Exam] = {
        "configuration": _check_configuration,
        "store": _check_store,
        "clients": _check_clients,
        "clock": _check_clock,
        "address": _check_address,
        "limits": _check_limits,
        "certificates": _check_certificates,
    }
    looks |= {f"connection {name}": partial(_check_upstream, name) for name in settings.connections}
    limiter = asyncio.Semaphore(len(looks) - len(settings.connections))  # looks start processes

    async def look_at(about: str) -> list[Finding]:
        async with limiter:
            return await _look_in_time(about, looks[about], settings, config)

    found = await asyncio.gather(*map(look_at, looks))
    return [each for findings in found for each in findings]


async def _look_in_time(about: str, look: Exam, settings: Settings, config: Path) -> list[Finding]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await look(settings, config)
    except TimeoutError:
        return [Finding("warn", about, f"not looked at to the end in {CHECK_SECONDS:g} s")]
    except (GatewayError, ConfigInvalid, OSError) as error:
        return [Finding("fail", about, str(error) or type(error).__name__)]


async def _check_configuration(settings: Settings, config: Path) -> list[Finding]:
    # A store or definition that can't be read has a look of its own.
    elsewhere = {"store.url", *(f"connections.{name}" for name in settings.connections)}
    problems = [each for each in await find_problems(settings, config) if each[0] not in elsewhere]
    warnings = [Finding("warn", "configuration", f"{where}: {what}") for where, what in problems]
    return warnings or [Finding("ok", "configuration", f"{config} is valid")]


# --- the store, and what it knows -----------------------------------------------------------------


async def _check_store(settings: Settings, config: Path) -> list[Finding]:
    file, key = (
        settings.store.file_in(config.parent),
        config.parent / settings.store.secret_key_file,
    )
    env_key, findings = os.environ.get("GATEWAY_SECRET_KEY"), [*_check_disk(file)] if file else []
    async with _open_store(settings, config) as db:
        if db is None:
            return [*findings, Finding("ok", "store", "the first start makes it")]
        if env_key is None and not key.exists():
            fix = "set GATEWAY_SECRET_KEY, or give the key file back from the store's backup"
            return [*findings, Finding("fail", "store", f"its key {key} is not there", fix)]
        if env_key is None and key.stat().st_mode & 0o077:
            findings.append(Finding("warn", "store", f"others can read {key}", f"chmod 600 {key}"))
        await check_seal(db, load_seal(key, env_key))
    where = f"{file} ({file.stat().st_size / 1e6:.1f} MB)" if file else "PostgreSQL"
    return [*findings, Finding("ok", "store", f"{where} can be read, and the key fits")]


def _check_disk(file: Path) -> Iterator[Finding]:
    folder = next(each for each in file.parents if each.exists())
    if not os.access(folder, os.W_OK):
        yield Finding("fail", "store", f"{folder} can't be written to", "give it to this user")
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES:
        fix = "make room, or lower ledger.keep_days"
        yield Finding("warn", "store", f"{free / 1e6:.0f} MB are free in {folder}", fix)


@asynccontextmanager
async def _open_store(settings: Settings, config: Path) -> AsyncIterator[Database | None]:
    """The store for reading; it is neither made nor migrated. None: there is no store yet."""
    file = settings.store.file_in(config.parent)
    if file is not None and not file.exists():
        yield None
        return
    db = Database(settings.store.url_in(config.parent))
    try:
        yield db if await db.read(is_current) else None
    finally:
        await db.engine.close()


async def _check_clients(settings: Settings, config: Path) -> list[Finding]:
    async with _open_store(settings, config) as db:
        page = await list_executions(db, Filter(), limit=STORE_ROWS) if db else None
    latest: dict[str, float] = {}
    for call in page.executions if page else ():  # newest first
        latest.setdefault(call.client or "REST", call.created_at)
    now = time.time()
    clients = [f"{name} {(now - at) / 60:,.0f} minutes ago" for name, at in [*latest.items()][:8]]
    nothing = "none has called yet; the README says how to connect one"
    return [Finding("ok", "clients", ", ".join(clients) or nothing)]


# --- this machine ---------------------------------------------------------------------------------


async def _check_clock(settings: Settings, config: Path) -> list[Finding]:
    """Compares this clock with the store's, which replicas share, or with a web server's."""
    gaps = dict[str, float]()
    if settings.store.url.startswith("postgresql"):
        async with _open_store(settings, config) as db:
            now = await db.read(lambda tx: tx.execute(select(func.now())).scalar()) if db else None
        if now is not None:
            gaps["the store"] = now.timestamp() - time.time()
    addresses = _https_addresses(settings)
    async with Egress(**settings.network.rules, folder=config.parent) as egress:
        for name, (url, _) in [] if gaps else addresses.items():
            try:
                request = Request("HEAD", url)
                answer = await egress.send(request, deadline=FETCH_SECONDS, max_bytes=STEP_BYTES)
                their_time = parsedate_to_datetime(answer.header("date") or "")
            except (GatewayError, ValueError):
                continue
            gaps[name] = their_time.timestamp() - time.time()
            break
    apart = {name: gap for name, gap in gaps.items() if abs(gap) > HEARTBEAT_SECONDS}
    fix = "let NTP set it: tokens and approvals expire by this clock"
    if apart:
        words = [f"{abs(gap):.0f} s apart from {name}'s" for name, gap in apart.items()]
        return [Finding("warn", "clock", ", ".join(words), fix)]
    message = f"in step with {', '.join(gaps)}" if gaps else "nobody was there to compare it with"
    return [Finding("ok", "clock", message)]


async def _check_address(settings: Settings, config: Path) -> list[Finding]:
    server, findings = settings.server, list[Finding]()
    here = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host
    own_url = f"http://[{here}]:{server.port}" if ":" in here else f"http://{here}:{server.port}"
    health, public = None, server.public_url or own_url
    try:
        bind(server.host, server.port).close()
        findings.append(Finding("ok", "address", f"{server.host}:{server.port} is free"))
    except ConfigInvalid as error:
        health = await _get_health(own_url)
        findings.append(_judge_listener(health, error))
    is_local = (urlsplit(public).hostname or "") in LOOPBACK_HOSTS | {"0.0.0.0"}
    if server.public_url is None and server.host not in LOOPBACK_HOSTS:
        fix = 'set server.public_url = "https://gateway.example.com"'
        findings.append(Finding("warn", "address", "clients by another name are refused", fix))
    if public.startswith("http:") and not is_local:
        fix = "put a proxy with TLS before it, and https:// into server.public_url"
        findings.append(Finding("warn", "address", "tokens travel unprotected over http", fix))
    if health is not None and not is_local:
        findings.append(await _check_public_url(public))
    return findings


def _judge_listener(health: Mapping[str, object] | None, error: ConfigInvalid) -> Finding:
    """Whether a gateway holds our port, as its health answer says, or another program."""
    if health is None:
        fix = "end what listens there, or set server.port"
        return Finding("fail", "address", f"no gateway answers there, and {error.problems[0]}", fix)
    version, status = health.get("version"), health.get("status")
    message = f"a gateway {version} runs there: {status}"
    if status != "ok":
        return Finding("warn", "address", message, "GET /health with an admin's token says why")
    if version != __version__:
        return Finding("warn", "address", message, f"this one is {__version__}: restart it")
    return Finding("ok", "address", message)


async def _check_public_url(public_url: str) -> Finding:
    if await _get_health(public_url) is None:
        fix = "look at DNS, the proxy and its certificate"
        return Finding("warn", "address", f"{public_url} does not lead to it from here", fix)
    return Finding("ok", "address", f"{public_url} leads to it")


async def _get_health(base: str) -> Mapping[str, object] | None:
    timeout = aiohttp.ClientTimeout(FETCH_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as http,
            http.get(f"{base.rstrip('/')}/health") as answer,
        ):
            health = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    return health if isinstance(health, dict) and "revision" in health else None


async def _check_limits(settings: Settings, config: Path) -> list[Finding]:
    limits, server = settings.limits, settings.server
    if (most := most_open_files()) is None:
        return []
    clients = most - 2 * limits.max_concurrent_calls - 3 * limits.upstream_sessions - 100
    text = f"{most:,} open files are enough for {max(0, clients):,} clients beside all calls"
    fix = "raise it to 65536: ulimit -n, LimitNOFILE, ulimits (docs/sizing.md)"
    low = clients < EXPECTED_CLIENTS
    findings = [Finding("warn", "limits", text, fix) if low else Finding("ok", "limits", text)]
    cores = os.cpu_count() or 1
    if server.workers > cores:
        words = f"server.workers = {server.workers}, and there are {cores} cores"
        findings.append(Finding("warn", "limits", words, "one process uses one core"))
    return findings


# --- what the gateway calls -----------------------------------------------------------------------


async def _check_upstream(name: str, settings: Settings, config: Path) -> list[Finding]:
    about, connection = f"connection {name}", settings.connections[name]
    if not connection.enabled or connection.is_lazy:
        message = "lazy: not looked at" if connection.enabled else "disabled"
        return [Finding("ok", about, message)]
    try:
        report = await preview(name, connection.kind, settings, config.parent)
    except GatewayError as error:
        is_signing_in = error.code in ("sign_in_required", "not_connected")
        status: Literal["warn", "fail"] = "warn" if is_signing_in else "fail"
        return [Finding(status, about, error.message, error.hint)]
    tools, skipped = len(report["tools"]), len(report["skipped"])
    message = f"{tools} tools, {skipped} skipped"
    problems = [
        Problem(**each)
        for each in report["problems"]
        if each["where"] in STEPS or each["severity"] == "error"
    ]
    todo = [
        *credential_tasks(name, connection),
        *host_tasks(name, connection, report["base_url"]),
        *problem_tasks(name, problems),
    ]
    warnings = [Finding("warn", about, f"{each.what}: {each.why}", each.fix) for each in todo]
    if not tools:
        return [*warnings, Finding("warn", about, message, f"`gateway inspect {name}` says why")]
    return [*warnings, Finding("ok", about, message)]


def _https_addresses(settings: Settings) -> dict[str, tuple[str, str | None]]:
    """The https addresses that the configuration names, with the name expected of each."""
    server = settings.server.public_url
    addresses: dict[str, tuple[str | None, str | None]] = {
        "server.public_url": (server, None),
        "auth.issuer": (settings.auth.issuer, None),
    }
    for name, connection in settings.connections.items():
        expected = connection.tls.server_name
        if isinstance(connection, McpConnection):
            addresses[f"connections.{name}.url"] = (connection.url, expected)
        if isinstance(connection, OpenApiConnection):
            addresses[f"connections.{name}"] = (connection.base_url or connection.spec, expected)
    return {
        where: (url, expected)
        for where, (url, expected) in addresses.items()
        if url and url.startswith("https://")
    }


async def _check_certificates(settings: Settings, config: Path) -> list[Finding]:
    """When the certificates end that the gateway presents, trusts or is presented."""
    tables = tls_tables(settings.network.ca_file, settings.connections)
    ends = dict(await asyncio.to_thread(read_ends, config.parent, tables))
    if settings.network.proxy is None:
        addresses = _https_addresses(settings)
        server_ends = await asyncio.gather(*(ask_end(*addresses[where]) for where in addresses))
        ends |= {where: end for where, end in zip(addresses, server_ends, strict=True) if end}
    findings = [
        Finding(
            "fail" if each.is_over else "warn",
            "certificates",
            f"{each.where}: {each.words}",
            "have it renewed",
        )
        for each in ending_soon(ends)
    ]
    message = f"{len(ends)} looked at, none ends within {CERTIFICATE_DAYS} days"
    return findings or [Finding("ok", "certificates", message)]


def as_json(findings: list[Finding]) -> dict[str, object]:
    """The findings as `--json` prints them."""
    is_fine = not any(each.status == "fail" for each in findings)
    return {"ok": is_fine, "findings": [asdict(each) for each in findings]}
