"""The store's writer against one commit a write, as ratios in one run.

    python bench/store.py [postgresql://…]

A write here is what a write call needs before it is sent: one ledger row, on disk. Reads are taken
while writers are at it, and alone. SQLite unless an address is given.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

from msgspec import structs

from gateway.model import new_id
from gateway.store.database import Database
from gateway.store.ledger import begin_execution, begin_execution_in, get_execution, record_finished
from gateway.store.tables import Execution

SECONDS = 2.0
ROW = Execution(
    id="",
    tool="demo_add_book",
    connection="demo",
    principal="ann",
    status="executing",
    access="write",
    risk="medium",
    arguments={"title": "Emma", "author": "Jane Austen", "price": 7.5},
    args_digest="0" * 64,
    created_at=0.0,
    revision=1,
)


def row() -> Execution:
    now = time.time()
    return structs.replace(ROW, id=new_id(now), created_at=now)


async def rate(work: Callable[[], Awaitable[object]], at_once: int) -> tuple[float, float]:
    """How often a second `at_once` tasks get it done together, and the CPU of one, in µs."""
    done = 0
    end = time.perf_counter() + SECONDS

    async def repeat() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await work()
            done += 1

    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(repeat() for _ in range(at_once)))
    spent = time.process_time() - cpu
    return done / (time.perf_counter() - started), spent / done * 1e6


async def read_times(db: Database, id: str, count: int = 300) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await get_execution(db, id)
        times.append(time.perf_counter() - started)
    return times


async def reads_during_writes(db: Database) -> tuple[float, float]:
    """The median of a read alone and while eight tasks write, in ms."""
    first = row()
    await begin_execution(db, first)
    alone = await read_times(db, first.id)
    writing = asyncio.create_task(rate(lambda: begin_execution(db, row()), 8))
    beside = await read_times(db, first.id)
    await writing
    return statistics.median(alone) * 1e3, statistics.median(beside) * 1e3


async def soon_cost(db: Database, count: int = 5000) -> float:
    """The CPU of a row that is written soon, in µs, its way to the disk included."""
    cpu = time.process_time()
    for _ in range(count):
        record_finished(db, row())
    await db.write(lambda tx: None)
    return (time.process_time() - cpu) / count * 1e6


async def bench(url: str) -> None:
    async with Database(url) as db:
        # As if there were no group commit: each unit its own transaction.
        alone, cpu = await rate(
            lambda: db.engine.transact(lambda tx: begin_execution_in(tx, row())), 32
        )
        show("writes on disk, one commit each", f"{alone:.0f}/s", 1.0, cpu)
        for at_once in (1, 32, 256):
            grouped, cpu = await rate(lambda: begin_execution(db, row()), at_once)
            show(f"group commit, {at_once} at once", f"{grouped:.0f}/s", grouped / alone, cpu)
        quiet, beside = await reads_during_writes(db)
        show("a read beside writers, against alone", f"{beside:.2f} ms", beside / quiet)
        show("a row written soon", "", None, await soon_cost(db))


def show(name: str, figure: str, ratio: float | None, cpu: float | None = None) -> None:
    shown = "" if ratio is None else f"{ratio:.1f} ×"
    print(f"{name:40} {figure:>10} {shown:>8}", "" if cpu is None else f"{cpu:7.0f} µs CPU")


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(bench(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(bench(f"sqlite:///{folder}/gateway.db"))


if __name__ == "__main__":
    main()
