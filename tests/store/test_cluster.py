"""What processes tell one another, who is alive, and what they count together."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection

from gateway.limits import STORE_LOOK_SECONDS
from gateway.store.approvals import create_approval, decide_approval
from gateway.store.catalog import choose_access
from gateway.store.cluster import (
    RECONNECTED,
    REVISION,
    Signals,
    current_revision,
    end_session,
    events_after,
    first_use,
    is_ended,
    living_replicas,
    newest_ids,
    signal_soon,
    take_of_window,
)
from gateway.store.database import Database, signal
from gateway.store.housekeeping import beat, bury_the_dead, leave, this_host
from gateway.store.tables import Replica
from tests.databases import PostgresServer
from tests.peers import soon
from tests.store.rows import approval, execution
from tests.store.test_ledger import silence

US = Replica("us", this_host(), os.getpid(), time.time())

Heard = tuple[str, str]
KINDS = ("cancel", "confirmation", "session_ended", "answered", RECONNECTED)


@asynccontextmanager
async def listening(db: Database) -> AsyncIterator[asyncio.Queue[Heard]]:
    heard: asyncio.Queue[Heard] = asyncio.Queue()
    signals = Signals()
    revisions = [""]

    def note_revision(revision: str) -> None:  # which is told again and again
        if revision not in revisions:
            revisions.append(revision)
            heard.put_nowait((REVISION, revision))

    def note(kind: str, payload: str) -> None:
        heard.put_nowait((kind, payload))

    signals.on(REVISION, note_revision)
    for kind in KINDS:
        signals.on(kind, partial(note, kind))
    await signals.start(db)
    try:
        yield heard
    finally:
        await signals.close()


async def next_heard(heard: asyncio.Queue[Heard], wanted: Heard) -> None:
    """Waits for that one; others may come before it."""
    async with asyncio.timeout(60):
        while await heard.get() != wanted:
            pass


async def tell(db: Database, kind: str, payload: str) -> None:
    await db.write(lambda tx: signal(tx, kind, payload))


async def make_a_choice(db: Database) -> Heard:
    return REVISION, str(await choose_access(db, "ann", "demo", "read-only"))


async def decide(db: Database) -> Heard:
    await create_approval(db, approval(), execution(status="pending_confirmation"))
    await decide_approval(db, "a1", "approved", by="eve", now=1001.0, usable_until=1300.0)
    return "confirmation", "a1"


async def end(db: Database) -> Heard:
    await end_session(db, "s1", 10.0)
    return "session_ended", "s1"


async def answer_at_length(db: Database) -> Heard:
    await tell(db, "answered", "ä" * 1_000_000)
    return "answered", "ä" * 1_000_000


@pytest.mark.parametrize("act", [make_a_choice, decide, end, answer_at_length])
async def test_what_happens_in_one_process_is_heard_in_all(
    db: Database, other_db: Database, act: Callable[[Database], Awaitable[Heard]]
) -> None:
    async with listening(db) as here, listening(other_db) as there:
        assert [here.get_nowait(), there.get_nowait()] == [(REVISION, "0")] * 2
        wanted = await act(db)
        await next_heard(here, wanted)
        await next_heard(there, wanted)


async def test_commits_of_any_process_wake_the_reader_of_signals_and_nothing_else_does(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/gateway.db"
    async with Database(url) as db, Database(url) as other, db.engine.wake_ups() as next_wake_up:
        await next_wake_up()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5 * STORE_LOOK_SECONDS):
                await next_wake_up()
        for each in (db, other):
            await choose_access(each, "ann", "demo", "read-only")
            await soon(next_wake_up())


async def test_listener_begins_with_the_revision_as_it_is(db: Database) -> None:
    await choose_access(db, "ann", "demo", "read-only")

    async with listening(db) as heard:
        assert await current_revision(db) == 1
        assert heard.get_nowait() == (REVISION, "1")


async def test_signals_arrive_in_order_and_neither_earlier_ones_nor_those_of_failed_units(
    db: Database, other_db: Database
) -> None:
    def fail(tx: Connection) -> None:
        signal(tx, "cancel", "failed")
        raise ValueError("after all")

    await tell(db, "cancel", "before")
    async with listening(other_db) as heard:
        assert heard.get_nowait() == (REVISION, "0")
        with pytest.raises(ValueError, match="after all"):
            await db.write(fail)
        for n in range(20):
            await tell(db, "cancel", f"session {n}")
        async with asyncio.timeout(60):
            signals = [await heard.get() for _ in range(20)]

    assert signals == [("cancel", f"session {n}") for n in range(20)]


async def test_mistake_of_a_listener_does_not_deafen_the_process(db: Database) -> None:
    heard = asyncio.Event()

    def listener(payload: str) -> None:
        if payload == "first":
            raise RuntimeError("a listener's mistake")
        heard.set()

    signals = Signals()
    signals.on("cancel", listener)
    await signals.start(db)
    await tell(db, "cancel", "first")
    await tell(db, "cancel", "second")
    await soon(heard.wait())
    await signals.close()


async def test_listener_comes_back_after_a_restart_of_postgres(
    own_postgres: PostgresServer,
) -> None:
    with own_postgres.database() as url:
        async with Database(url) as db, listening(db) as heard:
            heard.get_nowait()
            await asyncio.to_thread(own_postgres.stop)
            await asyncio.to_thread(own_postgres.start)
            await next_heard(heard, (RECONNECTED, ""))

            revision = await choose_access(db, "ann", "demo", "read-only")
            await next_heard(heard, (REVISION, str(revision)))


async def test_reader_of_the_feed_goes_on_where_it_stopped(db: Database) -> None:
    start, _ = await newest_ids(db)
    for kind, subject in (("result", "e1"), ("confirmation", "a1"), ("result", "e2")):
        signal_soon(db, kind, subject)
    await tell(db, "cancel", "x")  # no event; what was to be written soon rides along

    events = await events_after(db, start)

    assert [event.payload for event in events] == ["e1", "a1", "e2"]
    assert await events_after(db, events[0].id) == events[1:]
    assert (await newest_ids(db))[0] == events[-1].id


async def test_reader_of_the_feed_misses_nothing_while_two_processes_write(
    db: Database, other_db: Database
) -> None:
    seen, read = 0, list[str]()

    async def write(store: Database, first: int) -> None:
        for n in range(first, 80, 2):
            signal_soon(store, "result", str(n))
            await store.write(lambda tx: None)

    writing = asyncio.gather(write(db, 0), write(other_db, 1))
    async with asyncio.timeout(60):
        while not writing.done() or await events_after(db, seen):
            for event in await events_after(db, seen):
                read.append(event.payload)
                seen = event.id
        await writing

    assert sorted(read, key=int) == [str(n) for n in range(80)]


async def test_processes_live_while_they_are_heard(db: Database) -> None:
    await beat(db, US)
    await beat(db, Replica("other", "elsewhere", 7, 1.0))
    assert sorted(await living_replicas(db)) == ["other", "us"]

    await silence(db, "other", 16.0)
    assert await living_replicas(db) == ["us"]

    await beat(db, Replica("other", "elsewhere", 7, 1.0))
    await leave(db, "us")
    assert await living_replicas(db) == ["other"]


async def test_dead_processes_of_this_host_need_not_be_waited_for(db: Database) -> None:
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    for replica in (
        US,
        Replica("ended", this_host(), ended.pid, 0.0),
        Replica("had our number", this_host(), os.getpid(), 0.0),
        Replica("beside us", this_host(), os.getpid(), time.time()),
        Replica("runs", this_host(), os.getppid(), 0.0),
        Replica("elsewhere", "another host", ended.pid, 0.0),
    ):
        await beat(db, replica)

    assert sorted(await bury_the_dead(db, US)) == ["ended", "had our number"]
    assert sorted(await living_replicas(db)) == ["beside us", "elsewhere", "runs", "us"]


async def test_two_processes_together_take_no_more_than_is_allowed(
    db: Database, other_db: Database
) -> None:
    async def one(database: Database) -> float:
        return await take_of_window(database, "shop ann", requests=5, seconds=10, now=1003.0)

    waits = await asyncio.gather(*(one(each) for each in (db, other_db) * 6))
    assert sum(wait == 0 for wait in waits) == 5
    assert all(0 < wait <= 20 for wait in waits if wait)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 1, 2, 3], "yes yes yes no"),
        ([9.9, 9.9, 9.9, 10.1], "yes yes yes no"),  # the border of two windows is no way out
        ([0, 0, 0, 10.1, 14, 14.1, 18], "yes yes yes no yes no yes"),
        ([0, 0, 0, 30, 30, 30, 30], "yes yes yes yes yes yes no"),
    ],
    ids=str,
)
async def test_the_window_slides(db: Database, times: list[float], expected: str) -> None:
    taken = [
        await take_of_window(db, "k", requests=3, seconds=10, now=1000.0 + time) for time in times
    ]
    assert " ".join("yes" if wait == 0 else "no" for wait in taken) == expected


async def test_a_request_may_be_made_after_the_wait_that_was_told(db: Database) -> None:
    async def take(now: float) -> float:
        return await take_of_window(db, "k", requests=2, seconds=10, now=now)

    assert [await take(1000.0), await take(1001.0)] == [0, 0]
    assert (wait := await take(1002.0)) > 0
    assert await take(1002.0 + wait + 0.01) == 0


async def test_a_session_that_ends_twice_has_ended(db: Database) -> None:
    await end_session(db, "s1", 10.0)
    await end_session(db, "s1", 20.0)
    assert await is_ended(db, "s1")


async def test_what_works_once_is_used_up_for_everyone(db: Database, other_db: Database) -> None:
    tries = [first_use(each, "link", 20.0) for each in (db, other_db, db, other_db)]
    assert sorted(await asyncio.gather(*tries)) == [False, False, False, True]
    assert await is_ended(other_db, "link")
    assert not await is_ended(db, "another")
