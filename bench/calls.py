"""What a call costs: against the floor, by connections, by how much there is, by processes.

Runs take turns, so that what else goes on in the machine meets all of them; a ratio is the median
over the rounds. Each server is warm before it is measured.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.load import Era, Load, Target, load
from bench.processes import Measured, api, configure, gateway, running, token_of, upstream
from bench.rows import Row

ROUNDS = 9  # a shared machine is restless: medians of fewer vary by a tenth
SECONDS = 2.0  # longer than the records of reads wait to be written together
WARM_CALLS = 600
BUSY = 32
ARGUMENTS = {"id": "42", "q": "blue pots", "limit": 5}


@dataclass(frozen=True, slots=True)
class Course:
    """One thing that is measured: whom it asks, and in which era."""

    server: Measured
    tool: str
    era: Era = "2026"
    arguments: Mapping[str, object] | None = None
    connections: int = BUSY

    @property
    def target(self) -> Target:
        params = {"name": self.tool, "arguments": self.arguments or ARGUMENTS}
        return Target(self.server.port, params=params, token=token_of("ann"))


async def measure(course: Course, seconds: float = SECONDS) -> Load:
    """One round of a course."""
    done = await load(
        [course.target], course.era, course.connections, seconds=seconds, cpu=course.server.cpu
    )
    if done.errors:
        raise RuntimeError(f"{course.tool}, {course.era}: {done.errors[0]}")
    return done


async def rounds(
    courses: Mapping[str, Course], times: int = ROUNDS, seconds: float = SECONDS
) -> dict[str, list[Load]]:
    """So many rounds of all courses, by turns."""
    for course in courses.values():
        count = max(1, WARM_CALLS // course.connections)
        await load([course.target], course.era, course.connections, count=count)
    runs: dict[str, list[Load]] = {name: [] for name in courses}
    for _ in range(times):
        for name, course in courses.items():
            runs[name].append(await measure(course, seconds))
    return runs


def ratio(runs: Mapping[str, list[Load]], one: str, other: str) -> float:
    """How much more CPU one course takes than the other, as the median of the rounds."""
    pairs = zip(runs[one], runs[other], strict=True)
    return statistics.median(a.cpu_ms / b.cpu_ms for a, b in pairs)


def cpu(runs: list[Load]) -> str:
    return f"{statistics.median(run.cpu_ms for run in runs):.3f} ms"


async def against_the_floor(peer: Measured, folder: Path) -> list[Row]:
    """CPU of calls as multiples of the floor's, and how throughput goes with connections."""
    connections = {"shop": api(peer.port, 20), "far": upstream(peer.port)}
    configure(folder / "calls", connections)
    async with AsyncExitStack() as stack:
        floor = await stack.enter_async_context(running("-m", "bench.floor", str(peer.port)))
        ours = await stack.enter_async_context(gateway(folder / "calls"))
        courses = {
            "floor": Course(floor, "get0"),
            "2026": Course(ours, "shop_get0"),
            "2025": Course(ours, "shop_get0", "2025"),
            "proxied": Course(ours, "far_look"),
            "proxied 2025": Course(ours, "far_look", "2025"),
            "proxied write": Course(ours, "far_change"),
        }
        runs = await rounds(courses)
        rows = [Row("floor, CPU a call", statistics.median(r.cpu_ms for r in runs["floor"]), "ms")]
        goals: dict[str, tuple[str, float | None]] = {
            "2026": ("OpenAPI call, 2026 era", 2.3),
            "2025": ("OpenAPI call, 2025 era session", 2.3),
            "proxied": ("proxied MCP call, read, 2026 era", 2.6),
            "proxied 2025": ("proxied MCP call, read, 2025 era", 2.6),
            "proxied write": ("proxied MCP call, write: on disk before and after", None),
        }
        rows += [
            Row(f"{words}, CPU", ratio(runs, name, "floor"), "× floor", most, note=cpu(runs[name]))
            for name, (words, most) in goals.items()
        ]
        return rows + await _by_connections(courses["2026"], floor)


async def _by_connections(course: Course, floor: Measured) -> list[Row]:
    crowds = (1, BUSY, 256)
    courses = {f"{n}": Course(course.server, course.tool, connections=n) for n in crowds}
    courses |= {f"floor {n}": Course(floor, "get0", connections=n) for n in crowds}
    runs = await rounds(courses, times=3, seconds=1.0)
    rates = {name: statistics.median(run.rate for run in runs[name]) for name in runs}
    rows = [Row(f"throughput at {n} connections", rates[f"{n}"], "calls/s") for n in crowds]
    # Level is good, and a fall no deeper than the floor's: the client shares the machine with both.
    for few, many in ((1, BUSY), (BUSY, 256)):
        ours, bare = (rates[f"{who}{many}"] / rates[f"{who}{few}"] for who in ("", "floor "))
        words = f"throughput, from {few} to {many} connections, to a level floor"
        note = f"{ours:.2f}, the floor {bare:.2f}"
        rows.append(Row(words, ours / min(bare, 1.0), "×", least=0.9, note=note))
    for name, most in ((f"{BUSY}", 4.0), (f"floor {BUSY}", None)):
        spread = statistics.median(r.quantile(0.99) / r.quantile(0.5) for r in runs[name])
        words = "floor, p99 / p50 at 32 connections" if most is None else "p99 / p50 at 32"
        rows.append(Row(words, spread, "×", most))
    return rows


async def by_size(peer: Measured, folder: Path) -> list[Row]:
    """CPU of the same call with few and with many tools and connected APIs."""
    sizes = {(10, 1): 10, (1_000, 1): 1_000, (1_000, 100): 10, (10_000, 100): 100}
    async with AsyncExitStack() as stack:
        courses = {}
        for (tools, apis), each in sizes.items():
            place = folder / f"size-{tools}-{apis}"
            configure(place, {f"shop{n}": api(peer.port, each) for n in range(apis)})
            server = await stack.enter_async_context(gateway(place))
            courses[f"{tools:,} tools of {apis}"] = Course(server, f"shop{apis - 1}_get0")
        runs = await rounds(courses)
    first, *others = runs
    return [
        Row(f"the same call, {name} APIs to {first}, CPU", ratio(runs, name, first), "×", 1.15)
        for name in others
    ]


async def by_processes(peer: Measured, folder: Path) -> list[Row]:
    """Throughput of two worker processes against one."""
    async with AsyncExitStack() as stack:
        courses = {}
        for workers in (1, 2):
            place = folder / f"workers-{workers}"
            configure(place, {"shop": api(peer.port, 20)}, workers=workers)
            server = await stack.enter_async_context(gateway(place))
            courses[str(workers)] = Course(server, "shop_get0", connections=64)
        runs = await rounds(courses, times=3)
    rates = {name: statistics.median(run.rate for run in runs[name]) for name in runs}
    return [
        Row("two workers to one, throughput", rates["2"] / rates["1"], "×"),
        Row("two workers to one, CPU a call", ratio(runs, "2", "1"), "×"),
    ]


async def writes(peer: Measured, folder: Path) -> list[Row]:
    """Calls that are on disk before they are sent, and reads beside them."""
    configure(folder / "writes", {"shop": api(peer.port, 20)})
    arguments = {"name": "teapot"}
    async with gateway(folder / "writes") as server:
        reads = Course(server, "shop_get0", connections=4)
        alone = (await rounds({"reads": reads}, times=2))["reads"]
        rows = []
        for crowd, least in ((BUSY, 500.0), (256, None)):
            course = Course(server, "shop_add1", "2026", arguments, crowd)
            runs = (await rounds({"writes": course}, times=3))["writes"]
            rate = statistics.median(run.rate for run in runs)
            words = f"write calls on disk first, SQLite, {crowd} connections"
            rows.append(Row(words, rate, "calls/s", least=least, note=cpu(runs)))
        return [*rows, *await _reads_beside(reads, alone)]


async def _reads_beside(reads: Course, alone: list[Load]) -> list[Row]:
    """Reads while others write: they share the process, but must not wait for the disk."""
    writing = Course(reads.server, "shop_add1", "2026", {"name": "teapot"}, 8)
    other = asyncio.create_task(measure(writing, 2 * SECONDS))
    beside = await measure(reads, SECONDS)
    writes = await other
    quiet = statistics.median(run.quantile(0.5) for run in alone)
    return [
        Row(
            "a read's p50 beside 8 writers",
            beside.quantile(0.5),
            "ms",
            note=f"{quiet:.2f} ms alone",
        ),
        Row(
            "a read's p50 to a write's p50, side by side",
            beside.quantile(0.5) / writes.quantile(0.5),
            "×",
            1.0,
        ),
    ]
