"""Figures for charts: counted by time and by name, and of how long calls took enough to tell."""

from __future__ import annotations

from collections import Counter

from gateway.limits import STORE_MANY_ROWS
from gateway.model import new_id
from gateway.store.approvals import create_approval
from gateway.store.database import Database
from gateway.store.figures import count_by_time, sample_seconds, values_of
from gateway.store.ledger import Filter
from tests.store.rows import add_execution, approval, execution

SINCE = 1000.0


async def test_calls_are_counted_by_time_and_name(db: Database) -> None:
    calls = [
        ("list", 1000.0, "completed"),
        ("list", 1059.9, "failed"),
        ("list", 1060.0, "completed"),
        ("add", 1119.9, "unknown"),
        ("add", 1120.0, "denied"),
        ("add", 999.9, "completed"),
    ]
    for number, (tool, at, status) in enumerate(calls):
        row = execution(id=f"e{number}", tool=tool, created_at=at, status=status)
        await add_execution(db, row)
    wanted = Filter(since=SINCE, until=1120.0)
    assert await count_by_time(db, wanted, 60) == Counter({("", 0): 2, ("", 1): 2})
    assert await count_by_time(db, wanted, 60, failed=True) == Counter({("", 0): 1, ("", 1): 1})
    by_tool = await count_by_time(db, wanted, 60, "tool", ["list", "gone"])
    assert by_tool == Counter({("list", 0): 2, ("list", 1): 1})
    assert await values_of(db, "tool", Filter(since=SINCE)) == [("list", 3), ("add", 2)]
    assert await values_of(db, "tool", wanted) == [("list", 3), ("add", 1)]


async def test_of_many_calls_some_say_how_long_they_took(db: Database) -> None:
    await create_approval(
        db, approval(execution_id="asked"), execution(id="asked", status="pending_confirmation")
    )
    for number in range(64):
        at = SINCE + number
        row = execution(
            id=new_id(at), status="completed", created_at=at, finished_at=at + number / 1000
        )
        await add_execution(db, row)
    wanted = Filter(since=SINCE)
    every = await sample_seconds(db, wanted, 32, "connection", 64)
    assert Counter((name, place) for name, place, _ in every) == {("demo", 0): 32, ("demo", 1): 32}
    assert [round(seconds * 1000) for _, _, seconds in sorted(every)] == list(range(64))
    some = await sample_seconds(db, wanted, 32, "connection", STORE_MANY_ROWS + 1)
    assert len(some) < 24
    assert {seconds for _, _, seconds in some} <= {seconds for _, _, seconds in every}
