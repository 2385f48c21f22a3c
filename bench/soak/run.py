"""One soak: fifty clients of both eras and those who run the gateway, for minutes, with faults.

First each client runs its errand once, so that pools and caches are there: what is open then, with
nobody connected, is what must be left at the end.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from random import Random

from bench.soak import admins, errands
from bench.soak.clients import Client, Errand, Tally, client, once, repeat
from bench.soak.samples import Sample, Watch, watch
from bench.soak.verdict import Course
from bench.soak.world import CALLERS, World, world
from gateway.limits import MAX_REMEMBERED
from tests.mcp.speakers import Era

SAMPLES = 120
SETTLE_SECONDS = 30.0
SEED = 20261116
AT_ONCE = 16
ERAS: tuple[Era, Era] = ("2025", "2026")
# Who does what, how many of them, and the mean pause between two times, in seconds.
CLIENTS: tuple[tuple[Errand, int, float], ...] = (
    (errands.reads, 14, 0.5),
    (errands.writes, 6, 0.5),
    (errands.wrapped, 2, 0.5),
    (errands.child, 2, 0.7),
    (errands.seeks, 4, 0.4),
    (errands.large, 2, 1.0),
    (errands.asks_a_person, 3, 0.5),
    (errands.provokes, 3, 0.3),
    (errands.listens, 4, 0.3),
    (errands.cancels, 2, 0.4),
    (errands.hangs_up, 2, 0.4),
    (errands.by_the_sdk, 2, 2.0),
    (errands.looks_at_the_console, 2, 0.5),
    (errands.follows_events, 2, 0.5),
)
ADMINS: tuple[tuple[Errand, int, float], ...] = (
    (admins.decides, 1, 0.7),
    (admins.refreshes, 1, 3.0),
    (admins.puts_and_deletes, 1, 3.0),
    (admins.edits, 1, 7.0),
    (admins.restarts_a_server, 1, 15.0),
)


async def soak(folder: Path, store: str, seconds: float) -> Course:
    """One run: what was there before, during and after it."""
    tally = Tally()
    async with world(folder, store) as around, watch(around) as looking:
        await _rehearse(around, tally)
        before = await looking.settled(_quiet, SETTLE_SECONDS)
        during = await _under_load(around, looking, tally, seconds)
        after = await looking.settled(lambda s: _quiet(s) and _as(before, s), SETTLE_SECONDS)
    log = await asyncio.to_thread(around.log.read_text, encoding="utf-8", errors="replace")
    return Course(before, tuple(during), after, tally, tuple(_faults(log)))


async def _rehearse(around: World, tally: Tally) -> None:
    """Every client's errand once, at the same time; and as many sessions as are remembered.

    Every client's: a server over standard streams has a process for each principal who used it.
    """
    async with AsyncExitStack() as stack:
        crowd = await _crowd(stack, around, tally)
        await asyncio.gather(*(once(one, errand) for one, errand, _ in crowd))
        one, _, _ = crowd[0]
        for _ in range(MAX_REMEMBERED // AT_ONCE + 1):
            await asyncio.gather(*(_open_a_session(one) for _ in range(AT_ONCE)))


async def _open_a_session(one: Client) -> None:
    speaker = await replace(one, era="2025").speaker().meet()
    await speaker.request("ping")


async def _under_load(around: World, looking: Watch, tally: Tally, seconds: float) -> list[Sample]:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    async with AsyncExitStack() as stack:
        crowd = await _crowd(stack, around, tally)
        work = [
            asyncio.create_task(repeat(one, errand, pause, over)) for one, errand, pause in crowd
        ]
        samples = await looking.until(over, seconds / SAMPLES)
        await asyncio.gather(*work)
    return samples


async def _crowd(
    stack: AsyncExitStack, around: World, tally: Tally
) -> list[tuple[Client, Errand, float]]:
    """The clients of both eras and the admins, each with its own errand."""
    found, eras, callers = [], cycle(ERAS), cycle(CALLERS)
    for number, (errand, count, pause) in enumerate((*CLIENTS, *ADMINS)):
        for place in range(count):
            who = "ann" if number >= len(CLIENTS) else next(callers)
            who = "seeker" if errand is errands.seeks else who
            who = "ann" if errand is errands.looks_at_the_console else who
            chance = Random(f"{SEED} {number} {place}")
            one = await stack.enter_async_context(client(around, who, next(eras), tally, chance))
            found.append((one, errand, pause))
    return found


def _quiet(sample: Sample) -> bool:
    return sample.streams == 0 and sample.in_flight == 0


def _as(before: Sample, now: Sample) -> bool:
    return now.files <= before.files and now.tasks <= before.tasks


def _faults(log: str) -> list[str]:
    signs = ("never retrieved", "never awaited", "Traceback", '"level":"error"', "request_failed")
    return [line[:1000] for line in log.splitlines() if any(sign in line for sign in signs)]
