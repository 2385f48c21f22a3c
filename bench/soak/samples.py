"""Looks at the gateway from outside: its process, its figures, its store."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection, func, select, text

from bench.processes import token_of
from bench.soak.world import World
from gateway.store.database import Database, is_postgres
from gateway.store.tables import metadata

LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """How things are at one moment."""

    at: float
    memory: float  # MB resident, of the gateway's own process
    files: int
    threads: int
    children: int
    tasks: int
    streams: int
    in_flight: int
    sessions: int
    calls: int
    internal: int  # calls that failed by a fault of ours
    store: float  # MB
    rows: Mapping[str, int]


@dataclass(slots=True)
class Watch:
    """Takes samples."""

    world: World
    db: Database
    http: aiohttp.ClientSession

    async def sample(self) -> Sample:
        """One look. The metrics come first: what they cost is not what is measured."""
        figures = await self._figures()
        rows, size = await self.db.read(_counted)
        process = self.world.gateway.process
        return Sample(
            at=time.monotonic(),
            memory=process.memory_info().rss / 2**20,
            files=process.num_fds(),
            threads=process.num_threads(),
            children=len(_living(process)),
            tasks=int(figures["gateway_tasks"]),
            streams=int(figures["gateway_streams"]),
            in_flight=int(figures["gateway_calls_in_flight"]),
            sessions=int(figures["gateway_sessions"]),
            calls=int(figures.get("gateway_calls_total", 0)),
            internal=int(figures.get("internal", 0)),
            store=size / 2**20,
            rows=rows,
        )

    async def until(self, over: asyncio.Event, every: float) -> list[Sample]:
        """Samples every few seconds until it is over."""
        found: list[Sample] = []
        while not over.is_set():
            found.append(await self.sample())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await over.wait()
        return found

    async def settled(self, enough: Callable[[Sample], bool], seconds: float) -> Sample:
        """A sample once it is as it should be, or the last one when the time is up."""
        end = time.monotonic() + seconds
        while True:
            found = await self.sample()
            if enough(found) or found.at > end:
                return found
            await asyncio.sleep(LOOK_SECONDS)

    async def _figures(self) -> dict[str, float]:
        """The sums of the figures, by name."""
        async with self.http.get(f"{self.world.url}/metrics") as answer:
            page = await answer.text()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(page):
            for line in family.samples:
                found[line.name] = found.get(line.name, 0.0) + line.value
                if line.labels.get("code") == "internal":
                    found["internal"] = found.get("internal", 0.0) + line.value
        return found


@asynccontextmanager
async def watch(world: World) -> AsyncIterator[Watch]:
    """A watch with its own way into the store."""
    relative = world.store.startswith("sqlite") and not world.store.startswith("sqlite:////")
    path = world.folder / world.store.removeprefix("sqlite:///")
    headers = {"authorization": f"Bearer {token_of('ann')}"}
    async with (
        Database(f"sqlite:///{path}" if relative else world.store) as db,
        aiohttp.ClientSession(headers=headers) as http,
    ):
        yield Watch(world, db, http)


def _counted(tx: Connection) -> tuple[dict[str, int], int]:
    rows = {
        str(table.name): tx.execute(select(func.count()).select_from(table)).scalar_one()
        for table in metadata.sorted_tables
    }
    size = (
        "SELECT pg_database_size(current_database())"
        if is_postgres(tx)
        else "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    )
    return rows, int(tx.execute(text(size)).scalar_one())


def _living(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if child.status() != psutil.STATUS_ZOMBIE]
