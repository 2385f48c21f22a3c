from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Connection

from gateway.store.approvals import create_approval, decide_approval
from gateway.store.catalog import choose_access
from gateway.store.cluster import (
    MAX_NOTIFY_BYTES,
    RECONNECTED,
    Notifier,
    current_revision,
    end_session,
    signal,
)
from gateway.store.database import Database
from tests.databases import PostgresServer
from tests.store.rows import approval, execution

Heard = tuple[str, str] | int


@asynccontextmanager
async def listening(db: Database) -> AsyncIterator[asyncio.Queue[Heard]]:
    heard: asyncio.Queue[Heard] = asyncio.Queue()
    notifier = Notifier(db)
    await notifier.start(heard.put_nowait, lambda kind, payload: heard.put_nowait((kind, payload)))
    try:
        yield heard
    finally:
        await notifier.close()


async def next_heard(heard: asyncio.Queue[Heard], wanted: Heard) -> None:
    """Waits for that one; others may come before it."""
    async with asyncio.timeout(5):
        while await heard.get() != wanted:
            pass


async def tell(db: Database, kind: str, payload: str) -> None:
    await db.write(lambda tx: signal(tx, kind, payload))


async def test_change_in_one_process_is_heard_in_all(db: Database, other_db: Database) -> None:
    async with listening(db) as here, listening(other_db) as there:
        assert [here.get_nowait(), there.get_nowait()] == [0, 0]

        revision = await choose_access(db, "ann", "demo", "read-only")

        await next_heard(here, revision)
        await next_heard(there, revision)


async def test_listener_begins_with_the_revision_as_it_is(db: Database) -> None:
    await choose_access(db, "ann", "demo", "read-only")

    async with listening(db) as heard:
        assert heard.get_nowait() == await current_revision(db) == 1


async def test_signals_arrive_in_order(db: Database, other_db: Database) -> None:
    async with listening(other_db) as heard:
        heard.get_nowait()
        for n in range(20):
            await tell(db, "cancel", f"session {n}")

        async with asyncio.timeout(5):
            signals = [await heard.get() for _ in range(20)]

    assert signals == [("cancel", f"session {n}") for n in range(20)]


async def test_signals_from_before_are_not_heard(db: Database) -> None:
    await tell(db, "cancel", "before")

    async with listening(db) as heard:
        await tell(db, "cancel", "after")
        assert heard.get_nowait() == 0
        async with asyncio.timeout(5):
            assert await heard.get() == ("cancel", "after")


async def test_decision_made_elsewhere_is_heard(db: Database, other_db: Database) -> None:
    await create_approval(db, approval(), execution(status="pending_confirmation"))

    async with listening(db) as heard:
        await decide_approval(other_db, "a1", "approved", by="eve", now=1001.0, usable_until=1300.0)
        await next_heard(heard, ("approval", "a1"))


async def test_session_ended_elsewhere_is_heard(db: Database, other_db: Database) -> None:
    async with listening(db) as heard:
        await end_session(other_db, "s1", 10.0)
        await next_heard(heard, ("session_ended", "s1"))


async def test_failed_unit_tells_nobody(db: Database) -> None:
    async with listening(db) as heard:

        def fail(tx: Connection) -> None:
            signal(tx, "cancel", "x")
            raise ValueError("after all")

        with pytest.raises(ValueError, match="after all"):
            await db.write(fail)
        await tell(db, "cancel", "y")

        assert heard.get_nowait() == 0
        async with asyncio.timeout(5):
            assert await heard.get() == ("cancel", "y")


async def test_signals_of_any_size_are_heard_in_all_processes(
    db: Database, other_db: Database
) -> None:
    told = ["ä" * size for size in (1, MAX_NOTIFY_BYTES // 2, MAX_NOTIFY_BYTES, 1_000_000)]
    async with listening(db) as here, listening(other_db) as there:
        for payload in told:
            await tell(db, "answered", payload)
        for payload in told:
            await next_heard(here, ("answered", payload))
            await next_heard(there, ("answered", payload))


async def test_mistake_of_a_listener_does_not_deafen_the_process(db: Database) -> None:
    heard = asyncio.Event()

    def on_signal(kind: str, payload: str) -> None:
        if payload == "first":
            raise RuntimeError("a listener's mistake")
        heard.set()

    notifier = Notifier(db)
    await notifier.start(lambda revision: None, on_signal)
    await tell(db, "cancel", "first")
    await tell(db, "cancel", "second")
    async with asyncio.timeout(5):
        await heard.wait()
    await notifier.close()


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
            await next_heard(heard, revision)
