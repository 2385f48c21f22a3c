from __future__ import annotations

import asyncio

from gateway.store.approvals import create_approval
from gateway.store.cluster import first_use, is_ended
from gateway.store.database import Database
from gateway.store.ledger import Count, count_calls, recent_seconds, record_finished, values_of
from tests.databases import eventually
from tests.store.rows import approval, execution

SINCE = 10_000.0


async def recorded(db: Database) -> None:
    """Four calls: two in the first minute, one in the last second of the second, one before."""
    for id, at, status, principal in (
        ("e1", SINCE + 0.4, "completed", "ann"),
        ("e2", SINCE + 59.9, "completed", "ann"),
        ("e3", SINCE + 119.9, "failed", "bob"),
        ("e0", SINCE - 1, "completed", "ann"),
    ):
        record_finished(
            db,
            execution(
                id=id, created_at=at, finished_at=at + 0.5, status=status, principal=principal
            ),
        )
    await eventually(lambda: values_of(db, "connection", 0.0), [("demo", 4)])


async def test_calls_are_counted_by_minute_and_kind(db: Database) -> None:
    await recorded(db)
    kind = ("demo", "tests/1")
    assert sorted(await count_calls(db, SINCE), key=lambda count: count.minute) == [
        Count(0, *kind, "completed", "write", 2),
        Count(1, *kind, "failed", "write", 1),
    ]
    assert await count_calls(db, SINCE, "bob") == [Count(1, *kind, "failed", "write", 1)]


async def test_the_time_a_person_took_is_not_counted_as_latency(db: Database) -> None:
    await recorded(db)
    waiting = execution(id="e9", created_at=SINCE + 5, status="pending_confirmation")
    await create_approval(db, approval(id="a9", execution_id="e9"), waiting)
    assert [round(value, 3) for value in await recent_seconds(db, SINCE)] == [0.5, 0.5, 0.5]


async def test_values_come_with_how_often_they_were_seen(db: Database) -> None:
    await recorded(db)
    assert await values_of(db, "principal", SINCE) == [("ann", 2), ("bob", 1)]
    assert await values_of(db, "status", SINCE, "ann") == [("completed", 2)]
    assert await values_of(db, "error_code", SINCE) == []


async def test_what_works_once_is_used_up_for_everyone(db: Database, other_db: Database) -> None:
    tries = [first_use(each, "link", 20.0) for each in (db, other_db, db, other_db)]
    assert sorted(await asyncio.gather(*tries)) == [False, False, False, True]
    assert await is_ended(other_db, "link")
    assert not await is_ended(db, "another")
