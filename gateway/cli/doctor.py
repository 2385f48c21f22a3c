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
from gateway.config.reading import read_settings
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
from gateway.web.todo import STEPS, of_credentials, of_host, of_problems, tls_tables


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found."""

    status: Literal["ok", "warn", "fail"]
    about: str
    message: str
    fix: str = ""

    @property
    def line(self) -> str:
        return f"{self.status:4}  {self.about}: {self.message}" + (
            f" → {self.fix}" * bool(self.fix)
        )


Look = Callable[[Settings, Path], Awaitable[list[Finding]]]


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
    looks: dict[str, Look] = {
        "configuration": _configuration,
        "store": _store,
        "clients": _clients,
        "clock": _clock,
        "address": _address,
        "limits": _limits,
        "certificates": _certificates,
    }
    looks |= {f"connection {name}": partial(_upstream, name) for name in settings.connections}
    few = asyncio.Semaphore(len(looks) - len(settings.connections))  # they read in processes

    async def look_at(about: str) -> list[Finding]:
        async with few:
            return await _in_time(about, looks[about], settings, config)

    found = await asyncio.gather(*map(look_at, looks))
    return [each for findings in found for each in findings]


async def _in_time(about: str, look: Look, settings: Settings, config: Path) -> list[Finding]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await look(settings, config)
    except TimeoutError:
        return [Finding("warn", about, f"not looked at to the end in {CHECK_SECONDS:g} s")]
    except (GatewayError, ConfigInvalid, OSError) as error:
        return [Finding("fail", about, str(error) or type(error).__name__)]


async def _configuration(settings: Settings, config: Path) -> list[Finding]:
    # What can't be read or reached has looks of its own.
    elsewhere = {"store.url", *(f"connections.{name}" for name in settings.connections)}
    problems = [each for each in await find_problems(settings, config) if each[0] not in elsewhere]
    warned = [Finding("warn", "configuration", f"{where}: {what}") for where, what in problems]
    return warned or [Finding("ok", "configuration", f"{config} is valid")]


# --- the store, and what it knows -----------------------------------------------------------------


async def _store(settings: Settings, config: Path) -> list[Finding]:
    file, key = (
        settings.store.file_in(config.parent),
        config.parent / settings.store.secret_key_file,
    )
    given, found = os.environ.get("GATEWAY_SECRET_KEY"), [*_disk(file)] if file else []
    async with _opened(settings, config) as db:
        if db is None:
            return [*found, Finding("ok", "store", "the first start makes it")]
        if given is None and not key.exists():
            fix = "set GATEWAY_SECRET_KEY, or give the key file back from the store's backup"
            return [*found, Finding("fail", "store", f"its key {key} is not there", fix)]
        if given is None and key.stat().st_mode & 0o077:
            found.append(Finding("warn", "store", f"others can read {key}", f"chmod 600 {key}"))
        await check_seal(db, load_seal(key, given))
    where = f"{file} ({file.stat().st_size / 1e6:.1f} MB)" if file else "PostgreSQL"
    return [*found, Finding("ok", "store", f"{where} can be read, and the key fits")]


def _disk(file: Path) -> Iterator[Finding]:
    folder = next(each for each in file.parents if each.exists())
    if not os.access(folder, os.W_OK):
        yield Finding("fail", "store", f"{folder} can't be written to", "give it to this user")
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES:
        fix = "make room, or lower ledger.keep_days"
        yield Finding("warn", "store", f"{free / 1e6:.0f} MB are free in {folder}", fix)


@asynccontextmanager
async def _opened(settings: Settings, config: Path) -> AsyncIterator[Database | None]:
    """The store for reading, neither made nor brought up to date; None: there is none yet."""
    file = settings.store.file_in(config.parent)
    if file is not None and not file.exists():
        yield None
        return
    db = Database(settings.store.url_in(config.parent))
    try:
        yield db if await db.read(is_current) else None
    finally:
        await db.engine.close()


async def _clients(settings: Settings, config: Path) -> list[Finding]:
    async with _opened(settings, config) as db:
        page = await list_executions(db, Filter(), limit=STORE_ROWS) if db else None
    last: dict[str, float] = {}
    for each in page.executions if page else ():  # newest first
        last.setdefault(each.client or "REST", each.created_at)
    now = time.time()
    seen = [f"{name} {(now - at) / 60:,.0f} minutes ago" for name, at in [*last.items()][:8]]
    nobody = "none has called yet; the README says how to connect one"
    return [Finding("ok", "clients", ", ".join(seen) or nobody)]


# --- this machine ---------------------------------------------------------------------------------


async def _clock(settings: Settings, config: Path) -> list[Finding]:
    """By the store's clock, which replicas share, and by what the nearest web server says."""
    found = dict[str, float]()
    if settings.store.url.startswith("postgresql"):
        async with _opened(settings, config) as db:
            now = await db.read(lambda tx: tx.execute(select(func.now())).scalar()) if db else None
        if now is not None:
            found["the store"] = now.timestamp() - time.time()
    addresses = _addresses(settings)
    async with Egress(**settings.network.rules, folder=config.parent) as egress:
        for name, (url, _) in [] if found else addresses.items():
            try:
                sent = Request("HEAD", url)
                answer = await egress.send(sent, deadline=FETCH_SECONDS, max_bytes=STEP_BYTES)
                said = parsedate_to_datetime(answer.header("date") or "")
            except (GatewayError, ValueError):
                continue
            found[name] = said.timestamp() - time.time()
            break
    wrong = {name: off for name, off in found.items() if abs(off) > HEARTBEAT_SECONDS}
    fix = "let NTP set it: tokens and approvals expire by this clock"
    if wrong:
        words = [f"{abs(off):.0f} s apart from {name}'s" for name, off in wrong.items()]
        return [Finding("warn", "clock", ", ".join(words), fix)]
    by = f"in step with {', '.join(found)}" if found else "nobody was there to compare it with"
    return [Finding("ok", "clock", by)]


async def _address(settings: Settings, config: Path) -> list[Finding]:
    server, found = settings.server, list[Finding]()
    here = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host
    own = f"http://[{here}]:{server.port}" if ":" in here else f"http://{here}:{server.port}"
    health, public = None, server.public_url or own
    try:
        bind(server.host, server.port).close()
        found.append(Finding("ok", "address", f"{server.host}:{server.port} is free"))
    except ConfigInvalid as error:
        health = await _get_health(own)
        found.append(_listening(health, error))
    is_local = (urlsplit(public).hostname or "") in LOOPBACK_HOSTS | {"0.0.0.0"}
    if server.public_url is None and server.host not in LOOPBACK_HOSTS:
        fix = 'set server.public_url = "https://gateway.example.com"'
        found.append(Finding("warn", "address", "clients by another name are refused", fix))
    if public.startswith("http:") and not is_local:
        fix = "put a proxy with TLS before it, and https:// into server.public_url"
        found.append(Finding("warn", "address", "tokens travel unprotected over http", fix))
    if health is not None and not is_local:
        found.append(await _reached(public))
    return found


def _listening(health: Mapping[str, object] | None, taken: ConfigInvalid) -> Finding:
    """What holds our port: a gateway, by its own word on its health, or something else."""
    if health is None:
        fix = "end what listens there, or set server.port"
        return Finding("fail", "address", f"no gateway answers there, and {taken.problems[0]}", fix)
    version, status = health.get("version"), health.get("status")
    said = f"a gateway {version} runs there: {status}"
    if status != "ok":
        return Finding("warn", "address", said, "GET /health with an admin's token says why")
    if version != __version__:
        return Finding("warn", "address", said, f"this one is {__version__}: restart it")
    return Finding("ok", "address", said)


async def _reached(public_url: str) -> Finding:
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
            found = await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    return found if isinstance(found, dict) and "revision" in found else None


async def _limits(settings: Settings, config: Path) -> list[Finding]:
    limits, server = settings.limits, settings.server
    if (most := most_open_files()) is None:
        return []
    clients = most - 2 * limits.max_concurrent_calls - 3 * limits.upstream_sessions - 100
    said = f"{most:,} open files are enough for {max(0, clients):,} clients beside all calls"
    fix = "raise it to 65536: ulimit -n, LimitNOFILE, ulimits (docs/sizing.md)"
    few = clients < EXPECTED_CLIENTS
    found = [Finding("warn", "limits", said, fix) if few else Finding("ok", "limits", said)]
    cores = os.cpu_count() or 1
    if server.workers > cores:
        words = f"server.workers = {server.workers}, and there are {cores} cores"
        found.append(Finding("warn", "limits", words, "one process uses one core"))
    return found


# --- what the gateway calls -----------------------------------------------------------------------


async def _upstream(name: str, settings: Settings, config: Path) -> list[Finding]:
    about, connection = f"connection {name}", settings.connections[name]
    if not connection.enabled or connection.is_lazy:
        said = "lazy: not looked at" if connection.enabled else "disabled"
        return [Finding("ok", about, said)]
    try:
        found = await preview(name, connection.kind, settings, config.parent)
    except GatewayError as error:
        is_signing_in = error.code in ("sign_in_required", "not_connected")
        status: Literal["warn", "fail"] = "warn" if is_signing_in else "fail"
        return [Finding(status, about, error.message, error.hint)]
    tools, skipped = len(found["tools"]), len(found["skipped"])
    said = f"{tools} tools, {skipped} skipped"
    problems = [Problem(**each) for each in found["problems"] if each["where"] in STEPS]
    todo = [
        *of_credentials(name, connection),
        *of_host(name, connection, found["base_url"]),
        *of_problems(name, problems),
    ]
    if not tools:
        return [Finding("warn", about, said, f"`gateway inspect {name}` says why")]
    wrong = [Finding("warn", about, f"{each.what}: {each.why}", each.fix) for each in todo]
    return [*wrong, Finding("ok", about, said)]


def _addresses(settings: Settings) -> dict[str, tuple[str, str | None]]:
    """The https addresses that the configuration names, with the name expected of each."""
    server = settings.server.public_url
    named: dict[str, tuple[str | None, str | None]] = {
        "server.public_url": (server, None),
        "auth.issuer": (settings.auth.issuer, None),
    }
    for name, connection in settings.connections.items():
        expected = connection.tls.server_name
        if isinstance(connection, McpConnection):
            named[f"connections.{name}.url"] = (connection.url, expected)
        if isinstance(connection, OpenApiConnection):
            named[f"connections.{name}"] = (connection.base_url or connection.spec, expected)
    return {
        where: (url, expected)
        for where, (url, expected) in named.items()
        if url and url.startswith("https://")
    }


async def _certificates(settings: Settings, config: Path) -> list[Finding]:
    """When the certificates end that the gateway shows, trusts, or is shown."""
    tables = tls_tables(settings.network.ca_file, settings.connections)
    ends = dict(await asyncio.to_thread(read_ends, config.parent, tables))
    if settings.network.proxy is None:
        addresses = _addresses(settings)
        shown = await asyncio.gather(*(ask_end(*addresses[where]) for where in addresses))
        ends |= {where: end for where, end in zip(addresses, shown, strict=True) if end}
    found = [
        Finding(
            "fail" if each.is_over else "warn",
            "certificates",
            f"{each.where}: {each.words}",
            "have it renewed",
        )
        for each in ending_soon(ends)
    ]
    known = f"{len(ends)} looked at, none ends within {CERTIFICATE_DAYS} days"
    return found or [Finding("ok", "certificates", known)]


def as_json(findings: list[Finding]) -> dict[str, object]:
    """The findings as `--json` prints them."""
    is_fine = not any(each.status == "fail" for each in findings)
    return {"ok": is_fine, "findings": [asdict(each) for each in findings]}
