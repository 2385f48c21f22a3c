from __future__ import annotations

import asyncio

from gateway.store.cluster import Event, append_event, events_after, last_event_id
from gateway.store.database import Database
from tests.databases import eventually


async def test_reader_goes_on_where_it_stopped(db: Database) -> None:
    start = await last_event_id(db)
    for n in range(3):
        assert append_event(db, "result", {"n": n}, float(n))
    await db.write(lambda tx: None)  # what was to be written soon rides along

    events = await events_after(db, start)

    numbers = [event.id for event in events]
    assert events == [Event(id, "result", {"n": n}, float(n)) for n, id in enumerate(numbers)]
    assert numbers == sorted(set(numbers))
    assert await events_after(db, numbers[0]) == events[1:]
    assert await events_after(db, start, limit=2) == events[:2]
    assert await last_event_id(db) == numbers[-1]


async def test_reader_misses_nothing_while_two_processes_write(
    db: Database, other_db: Database
) -> None:
    start = seen = await last_event_id(db)
    read: list[int] = []

    async def write(store: Database, first: int) -> None:
        for n in range(first, 80, 2):
            append_event(store, "result", {"n": n}, 0.0)
            await store.write(lambda tx: None)

    writing = asyncio.gather(write(db, 0), write(other_db, 1))
    async with asyncio.timeout(10):
        while len(read) < 80:
            if writing.done() and not await events_after(db, seen):
                break  # nothing more comes: what is missing was missed
            for event in await events_after(db, seen):
                read.append(event.data["n"])
                seen = event.id
        await writing

    assert sorted(read) == list(range(80))
    await eventually(lambda: count_after(db, start), 80)


async def count_after(db: Database, id: int) -> int:
    return len(await events_after(db, id))
