"""Large answers, for their owner and for a while; and what the sweep takes out."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import structs
from sqlalchemy import Connection, func, insert, select

from gateway.limits import RESULTS_BYTES, STORE_ROWS
from gateway.store import ledger, tables
from gateway.store.approvals import create_approval, decide_approval
from gateway.store.catalog import record_changes, save_validation
from gateway.store.cluster import end_session
from gateway.store.database import Database
from gateway.store.housekeeping import sweep
from gateway.store.tables import LargeResult
from tests.store.rows import add_execution, approval, change, execution, grant

DAY = 86_400.0
NOW = 100 * DAY
OLD = NOW - 31 * DAY
RECENT = NOW - 29 * DAY


async def add(db: Database, table: str, row: dict[str, Any]) -> None:
    await db.write(lambda tx: tx.execute(insert(tables.metadata.tables[table]), row).rowcount)


def count(table: str, tx: Connection) -> int:
    counted = select(func.count()).select_from(tables.metadata.tables[table])
    return int(tx.execute(counted).scalar_one())


async def test_ledger_keeps_what_is_recent_or_unfinished(db: Database) -> None:
    rows = {
        "old": execution(id="old", created_at=OLD, status="completed"),
        "unknown": execution(id="unknown", created_at=OLD, status="unknown"),
        "recent": execution(id="recent", created_at=RECENT, status="completed"),
        "running": execution(id="running", created_at=OLD),
        "waiting": execution(id="waiting", created_at=OLD, status="pending_confirmation"),
    }
    for row in rows.values():
        await add_execution(db, row)
    with_token = execution(id="token", created_at=OLD, idempotency_token="t1")
    await ledger.begin_execution(db, with_token)
    await ledger.finish_execution(db, structs.replace(with_token, status="completed"))

    swept = await sweep(db, now=NOW, keep_days=30)

    left = {id for id in rows if await ledger.get_execution(db, id)}
    assert left == {"recent", "running", "waiting"}
    assert swept["executions"] == 3
    again = execution(id="again", idempotency_token="t1")
    claim = await ledger.begin_execution(db, again)
    assert claim == ledger.Claim(True)  # the token went with its execution


async def test_more_than_one_part_is_swept(db: Database) -> None:
    rows = [{"id": f"s{n}", "expires_at": 1.0} for n in range(STORE_ROWS * 2 + 1)]
    await db.write(lambda tx: tx.execute(insert(tables.ended_sessions), rows))

    assert (await sweep(db, now=NOW, keep_days=30))["ended_sessions"] == STORE_ROWS * 2 + 1


async def test_signals_go_after_a_minute_and_events_after_an_hour(db: Database) -> None:
    for kind, age in (("result", 3599), ("result", 3601), ("cancel", 59), ("cancel", 61)):
        await add(db, "signals", {"kind": kind, "payload": str(age), "at": NOW - age})

    await sweep(db, now=NOW, keep_days=30)

    left = select(tables.signals.c.payload).order_by(tables.signals.c.id)
    assert await db.read(lambda tx: list(tx.execute(left).scalars())) == ["3599", "59"]


async def test_everything_that_is_over_goes_and_the_rest_stays(db: Database) -> None:
    for id, at in (("old", OLD), ("recent", NOW + 5)):
        await create_approval(
            db,
            approval(id=id, execution_id=id, created_at=at, expires_at=at + 120),
            execution(id=id, status="pending_confirmation", created_at=at),
        )
        given = grant(id=id, tool=id, expires_at=at)
        await decide_approval(db, id, "approved", by="eve", now=at, usable_until=at, grant=given)
        await decide_approval(db, id, "denied", by="eve", now=at, usable_until=at)
        found = [change(id=id, at=at, status="applied"), change(id=f"h{id}", at=at)]
        await db.write(partial(record_changes, connection=id, changes=found))
        await ledger.save_result(db, LargeResult(id, "ann", 0, "a/b", b"", at))
        await end_session(db, id, at)
        await save_validation(db, id, (), at - 60 * DAY)
        await add(db, "windows", {"key": id, "start": at, "earlier": 0, "current": 1})

    swept = await sweep(db, now=NOW, keep_days=30)

    names = ("standing_grants", "changes", "results", "ended_sessions", "validations", "windows")
    assert {name: swept[name] for name in names} == dict.fromkeys(names, 1)
    left = [await db.read(partial(count, name)) for name in names]
    assert left == [1, 3, 1, 1, 1, 1]


BODY = "aé\0😀".encode() * 10_000
RESULT = LargeResult("r1", "ann", len(BODY), "text/plain", BODY, 100.0)


async def test_answer_comes_back_whole_for_its_owner_until_it_expires(db: Database) -> None:
    await ledger.save_result(db, RESULT)

    assert await ledger.read_result(db, "r1", "ann", 99.0) == RESULT
    for id, principal, now in (("r1", "bob", 99.0), ("r1", "ann", 100.0), ("r2", "ann", 99.0)):
        assert await ledger.read_result(db, id, principal, now) is None


async def test_of_one_principal_the_oldest_goes_when_there_are_too_many(db: Database) -> None:
    half, owners = RESULTS_BYTES // 2, ("ann", "bob", "ann", "ann")
    for n, owner in enumerate(owners):
        large_result = LargeResult(f"r{n}", owner, half, "text/plain", b"x", 100.0 + n)
        await ledger.save_result(db, large_result)

    read = [await ledger.read_result(db, f"r{n}", owner, 99.0) for n, owner in enumerate(owners)]
    assert [kept is not None for kept in read] == [False, True, True, True]
