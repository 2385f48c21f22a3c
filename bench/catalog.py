"""What the catalog costs: listing many tools, taking in a giant, starting with what is cached."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from bench.load import Connection, Era, Load, Target, connected, http, load
from bench.processes import Measured, api, configure, gateway, token_of
from bench.rows import Row

LISTED = 1_000
PRINCIPALS = 200
LISTINGS = 300
DEFINITIONS = 50
QUIET_SECONDS = 0.5  # without CPU: what was begun has ended
SETTLE_SECONDS = 20.0
LOOK_SECONDS = 0.005
LOOKING_SECONDS = 2.0
ANN = token_of("ann")


async def listing(peer: Measured, folder: Path) -> list[Row]:
    """CPU of listing 1,000 tools, by one principal and by many."""
    names = ["ann", *(f"p{n}" for n in range(1, PRINCIPALS))]
    configure(folder / "listing", {"shop": api(peer.port, LISTED)}, principals=names)
    rows = []
    async with gateway(folder / "listing") as server:
        await settled(server)
        eras: tuple[Era, ...] = ("2026", "2025")
        for era in eras:
            for who in (names[:1], names):
                cpu = await _list_cpu(server, era, who)
                words = f"tools/list, {LISTED:,} tools, {era} era, {len(who)} principals, CPU"
                rows.append(Row(words, cpu, "ms", 2.0))
    return rows


async def _list_cpu(server: Measured, era: Era, principals: list[str]) -> float:
    targets = [Target(server.port, "tools/list", {}, token_of(name)) for name in principals]
    crowd = max(8, len(targets))
    count = max(2, LISTINGS // crowd)
    done = await load(targets, era, crowd, count=count, cpu=server.cpu)
    if done.errors:
        raise RuntimeError(done.errors[0])
    return done.cpu_ms


async def giant(peer: Measured, folder: Path) -> list[Row]:
    """CPU and /healthz while a definition of 1,200 operations is put and refreshed."""
    configure(folder / "giant", {"shop": api(peer.port, 20)})
    settings = {**api(peer.port, 20), "spec": f"http://127.0.0.1:{peer.port}/giant"}
    rows = []
    async with gateway(folder / "giant") as server:
        await settled(server)
        path = "/api/v1/connections/giant"
        for words, request in (
            ("put of 1,200 operations", _rest("PUT", server, path, settings)),
            (
                "put of 1,200 operations again",
                _rest("PUT", server, path, {**settings, "prefix": "g_"}),
            ),
        ):
            cpu, _, health = await _beside_health(server, request)
            rows.append(Row(f"{words}, CPU", cpu, "s", 3.0))
            rows.append(Row(f"{words}, /healthz p99 meanwhile", health.quantile(0.99), "ms", 50.0))
        refresh = _rest("POST", server, f"{path}/refresh", None)
        cpu, seconds, health = await _beside_health(server, refresh)
        rows.append(
            Row(
                "refresh of it unchanged, CPU",
                1000 * cpu,
                "ms",
                50.0,
                note=f"{1000 * seconds:.0f} ms",
            )
        )
        rows.append(Row("refresh of it unchanged, /healthz p99", health.quantile(0.99), "ms", 50.0))
    return rows


def _rest(method: str, server: Measured, path: str, body: Any) -> bytes:
    written = b"" if body is None else orjson.dumps(body)
    return http(method, Target(server.port, token=ANN), path, {}, written)


async def _beside_health(server: Measured, request: bytes) -> tuple[float, float, Load]:
    """CPU and time of one request, and how /healthz does until everything has settled."""
    connection = await connected(server.port)
    a_look = await _look_cpu(server)
    looking = asyncio.create_task(
        _look(await connected(server.port), server.port, health := Load())
    )
    before, started = server.cpu(), time.perf_counter()
    status, body = await connection.ask(request)
    seconds = time.perf_counter() - started
    if status != 200 or b'"error"' in body[:9]:
        raise RuntimeError(f"{status} {body[:300].decode()}")
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    await settled(server)
    connection.transport.close()
    return max(0.0, server.cpu() - before - len(health.latencies) * a_look), seconds, health


async def _look_cpu(server: Measured) -> float:
    """What one look at /healthz costs, which is not what is being measured."""
    connection, before = await connected(server.port), server.cpu()
    looking = asyncio.create_task(_look(connection, server.port, health := Load()))
    await asyncio.sleep(LOOKING_SECONDS)
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    connection.transport.close()
    return (server.cpu() - before) / max(1, len(health.latencies))


async def _look(connection: Connection, port: int, health: Load) -> None:
    request = http("GET", Target(port), "/healthz", {})
    while True:
        started = time.perf_counter()
        await connection.ask(request)
        health.latencies.append(time.perf_counter() - started)
        await asyncio.sleep(LOOK_SECONDS)


async def settled(server: Measured, seconds: float = SETTLE_SECONDS) -> None:
    """Wait until the server has done nothing for a while."""
    deadline = time.monotonic() + seconds
    used = server.cpu()
    while time.monotonic() < deadline:
        await asyncio.sleep(QUIET_SECONDS)
        now = server.cpu()
        if now - used < 0.02:
            return
        used = now


async def start(peer: Measured, folder: Path) -> list[Row]:
    """Time until ready and memory, with 50 definitions that were read before."""
    place = folder / "start"
    configure(place, {f"shop{n}": api(peer.port, 20) for n in range(DEFINITIONS)})
    async with gateway(place) as server:
        await settled(server)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        async with gateway(place) as server:
            times.append((time.perf_counter() - began, server.cpu()))
            await settled(server)
            memory = server.memory()
    seconds, cpu = min(times)
    return [
        Row(
            f"start to ready, {DEFINITIONS} cached definitions",
            seconds,
            "s",
            2.0,
            note=f"{cpu:.2f} s CPU",
        ),
        Row(f"idle memory with {DEFINITIONS} definitions", memory, "MB", 200.0),
    ]
