"""The ledger: no call twice, nothing lost, and read back by filters and pages."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Connection, update

from gateway.errors import Fixable, NotApproved
from gateway.model import json_bytes, json_value
from gateway.store import tables
from gateway.store.approvals import create_approval
from gateway.store.database import Database
from gateway.store.figures import Count, count_calls, recent_seconds, values_of
from gateway.store.housekeeping import beat
from gateway.store.ledger import (
    Claim,
    Filter,
    Page,
    begin_execution,
    finish_execution,
    get_execution,
    get_executions,
    insert_in,
    list_executions,
    mark_unknown,
    record_finished,
)
from gateway.store.tables import Execution, Replica
from tests.databases import eventually
from tests.peers import soon
from tests.raising import raises
from tests.store.rows import add_execution, approval, execution

DONE = execution(
    status="completed",
    result={"success": True, "output": {"id": 1}, "error": None, "duration_ms": 12},
    upstream_status=201,
    recorded={"booking_id": "b1"},
    finished_at=1001.0,
)
WITH_TOKEN = execution(idempotency_token="t1")


async def test_begun_and_finished_call_is_one_whole_row_and_ends_once(db: Database) -> None:
    assert await begin_execution(db, execution()) == Claim(True)
    assert await get_execution(db, "e1") == execution()

    assert await finish_execution(db, DONE)
    assert not await finish_execution(db, replace(DONE, status="failed"))
    assert await get_executions(db, ["e1", "e2"]) == {"e1": DONE}


@pytest.mark.parametrize("status", ["executing", "completed", "denied", "expired", "unknown"])
async def test_execution_that_is_past_waiting_is_not_begun_again(db: Database, status: str) -> None:
    before = execution(status=status)
    await add_execution(db, before)

    with pytest.raises(NotApproved):
        await begin_execution(db, WITH_TOKEN)

    assert await get_execution(db, "e1") == before
    assert await begin_execution(db, replace(WITH_TOKEN, id="e2")) == Claim(True)


async def test_recording_does_not_overwrite_a_call_that_was_begun(db: Database) -> None:
    await begin_execution(db, execution())
    record_finished(db, replace(DONE, status="failed"))
    await finish_execution(db, DONE)

    assert await get_execution(db, "e1") == DONE


async def test_of_many_claims_of_one_token_exactly_one_is_new(
    db: Database, other_db: Database
) -> None:
    calls = [replace(WITH_TOKEN, id=f"e{n}") for n in range(50)]

    begun = await asyncio.gather(*map(begin_execution, (db, other_db) * 25, calls))

    new = [each.is_new for each in begun]
    winner = f"e{new.index(True)}"
    assert [each.execution.id for each in begun if each.execution] == [winner] * 49
    assert sum(new) == 1


async def test_call_whose_caller_left_during_the_commit_ends_unsent(db: Database) -> None:
    committing = asyncio.Event()
    loop = asyncio.get_running_loop()
    other = asyncio.create_task(db.write(lambda tx: loop.call_soon_threadsafe(committing.set)))
    call = asyncio.create_task(begin_execution(db, WITH_TOKEN))
    await soon(committing.wait())
    call.cancel()
    await other

    await db.write(lambda tx: None)

    assert [each.status for each in [await get_execution(db, "e1")] if each] in ([], ["failed"])
    assert await begin_execution(db, replace(WITH_TOKEN, id="e2")) == Claim(True)


async def test_calls_of_silent_processes_become_unknown(db: Database) -> None:
    for name in ("gone", "silent", "alive"):
        await beat(db, Replica(name, "host", 1, 0.0))
        await begin_execution(db, execution(id=name, replica=name, idempotency_token=name))
    await add_execution(db, execution(id="waits", status="pending_confirmation", replica="x"))
    await add_execution(db, replace(DONE, id="done", replica="x"))
    await silence(db, "silent", 16.0)
    await silence(db, "alive", 14.0)
    await db.write(
        lambda tx: tx.execute(tables.replicas.delete().where(tables.replicas.c.id == "gone"))
    )

    marked = await mark_unknown(db, now=2000.0)

    unknown = [
        execution(
            id=name,
            replica=name,
            idempotency_token=name,
            status="unknown",
            error_code="outcome_unknown",
            finished_at=2000.0,
        )
        for name in ("gone", "silent")
    ]
    assert sorted(marked, key=lambda each: each.id) == unknown
    assert await statuses(db, "alive", "waits", "done") == [
        "executing",
        "pending_confirmation",
        "completed",
    ]
    again = await begin_execution(db, execution(id="e9", idempotency_token="gone"))
    assert again == Claim(False, unknown[0])


async def test_process_that_was_only_slow_still_tells_the_truth(db: Database) -> None:
    await begin_execution(db, execution())
    await mark_unknown(db, now=2000.0)

    assert await finish_execution(db, DONE)
    assert await get_execution(db, "e1") == DONE


async def silence(db: Database, replica: str, seconds: float) -> None:
    table = tables.replicas
    earlier = {"heartbeat_at": table.c.heartbeat_at - seconds}
    await db.write(
        lambda tx: tx.execute(update(table).where(table.c.id == replica).values(earlier))
    )


async def statuses(db: Database, *ids: str) -> list[str]:
    found = [await get_execution(db, id) for id in ids]
    return [each.status for each in found if isinstance(each, Execution)]


ROWS = [
    execution(id="e1", created_at=1.0, status="completed"),
    execution(id="e2", created_at=2.0, tool="demo_other"),
    execution(id="e3", created_at=2.0, connection="other"),
    execution(id="e4", created_at=3.0, principal="bob", idempotency_token="t1"),
    execution(id="e5", created_at=4.5, idempotency_token="t1"),
]


@pytest.fixture
async def ledger(db: Database) -> Database:
    def unit(tx: Connection) -> None:
        for row in ROWS:
            insert_in(tx, row)

    await db.write(unit)
    return db


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        (Filter(), ["e5", "e4", "e3", "e2", "e1"]),
        (Filter(status="completed"), ["e1"]),
        (Filter(tool="demo_other"), ["e2"]),
        (Filter(connection="other"), ["e3"]),
        (Filter(principal="bob"), ["e4"]),
        (Filter(idempotency_token="t1"), ["e5", "e4"]),
        (Filter(idempotency_token="t1", principal="bob"), ["e4"]),
        (Filter(idempotency_token="t2"), []),
        (Filter(since=3.0), ["e5", "e4"]),
        (Filter(principal="ann", since=2.0, status="executing"), ["e5", "e3", "e2"]),
        (Filter(status="denied"), []),
    ],
)
async def test_filters_pick_executions_newest_first(
    ledger: Database, filter: Filter, ids: list[str]
) -> None:
    page = await list_executions(ledger, filter)

    assert [each.id for each in page.executions] == ids
    assert page.next is None


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 1000])
async def test_pages_give_each_execution_once(ledger: Database, limit: int) -> None:
    seen, cursor = [], None
    for _ in range(10):
        page = await list_executions(ledger, Filter(), limit=limit, cursor=cursor)
        seen += page.executions
        cursor = page.next
        if cursor is None:
            break

    assert seen == ROWS[::-1]


async def test_page_stays_put_when_newer_executions_come_in(ledger: Database) -> None:
    first = await list_executions(ledger, Filter(), limit=2)
    await ledger.write(lambda tx: insert_in(tx, execution(id="e6", created_at=9.0)))

    rest = await list_executions(ledger, Filter(), limit=10, cursor=first.next)

    assert rest == Page(ROWS[2::-1], None)


@pytest.mark.parametrize("cursor", ["nonsense", "ä", "\0", "bm9uZQ==", "MS4w/w=="])
async def test_cursor_that_is_none_of_ours_is_refused(db: Database, cursor: str) -> None:
    with raises(Fixable, code="invalid_arguments"):
        await list_executions(db, Filter(), cursor=cursor)


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
    await eventually(lambda: values_of(db, "connection", Filter()), [("demo", 4)])


async def test_calls_are_counted_by_minute_kind_and_value(db: Database) -> None:
    await recorded(db)
    kind = ("demo", "tests/1")
    failed = Count(1, *kind, "failed", "write", 1)
    assert sorted(await count_calls(db, SINCE), key=lambda count: count.minute) == [
        Count(0, *kind, "completed", "write", 2),
        failed,
    ]
    assert await count_calls(db, SINCE, "bob") == [failed]
    assert await values_of(db, "principal", Filter(since=SINCE)) == [("ann", 2), ("bob", 1)]
    assert await values_of(db, "status", Filter(principal="ann", since=SINCE)) == [("completed", 2)]
    assert await values_of(db, "error_code", Filter(since=SINCE)) == []


async def test_the_time_a_person_took_is_not_counted_as_latency(db: Database) -> None:
    await recorded(db)
    waiting = execution(id="e9", created_at=SINCE + 5, status="pending_confirmation")
    await create_approval(db, approval(id="a9", execution_id="e9"), waiting)
    assert [round(value, 3) for value in await recent_seconds(db, SINCE)] == [0.5, 0.5, 0.5]


NASTY = "nul \0 surrogate \ud800 snow ☃ 𝔘"
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON | st.characters(categories=["Cs"]) | st.integers(min_value=2**64))
def test_any_json_value_comes_back_also_what_the_fast_codec_refuses(value: object) -> None:
    assert json_value(json_bytes({"key": value})) == {"key": value}


async def test_text_no_database_can_hold_is_kept_recognisable(db: Database) -> None:
    await add_execution(db, execution(client=NASTY, arguments={NASTY: NASTY}))

    found = await get_execution(db, execution().id)

    readable = "nul � surrogate ��� snow ☃ 𝔘"
    assert found == execution(client=readable, arguments={NASTY: NASTY})
