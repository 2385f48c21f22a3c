from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, func, insert, select

from gateway.store import tables
from gateway.store.approvals import create_approval, decide_approval
from gateway.store.catalog import record_in, save_validation
from gateway.store.cluster import end_session
from gateway.store.database import Database
from gateway.store.ledger import Begun, begin, finish, get_execution
from gateway.store.results import DAY, PART, PART_BYTES, LargeResult, save_result, sweep
from tests.store.rows import add_execution, approval, change, execution, grant

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

    swept = await sweep(db, now=NOW, keep_days=30)

    left = {id for id in rows if await get_execution(db, id)}
    assert left == {"recent", "running", "waiting"}
    assert swept["executions"] == 2


async def test_token_goes_with_its_execution(db: Database) -> None:
    first = execution(created_at=OLD, idempotency_token="t1")
    await begin(db, first)
    await finish(db, execution(status="completed", idempotency_token="t1"))

    await sweep(db, now=NOW, keep_days=30)

    assert await begin(db, execution(id="e2", idempotency_token="t1")) == Begun("new")


async def test_more_than_one_part_is_swept(db: Database) -> None:
    rows = [{"id": f"s{n}", "expires_at": 1.0} for n in range(PART * 2 + 1)]
    await db.write(lambda tx: tx.execute(insert(tables.ended_sessions), rows))

    assert (await sweep(db, now=NOW, keep_days=30))["ended_sessions"] == PART * 2 + 1


async def test_few_large_answers_are_a_part(db: Database) -> None:
    for id in ("r1", "r2", "r3", "r4"):
        await save_result(db, LargeResult(id, "ann", PART_BYTES // 2, "a/b", b"x", 1.0))
    before = db.figures().units

    assert (await sweep(db, now=NOW, keep_days=30))["results"] == 4
    tables_swept = 12  # each until nothing is left
    assert db.figures().units - before == tables_swept + 2


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
        await db.write(partial(record_in, connection=id, changes=found))
        await save_result(db, LargeResult(id, "ann", 0, "a/b", b"", at))
        await end_session(db, id, at)
        await save_validation(db, id, (), at - 60 * DAY)
        await add(db, "buckets", {"key": id, "tokens": 0.0, "at": at, "allowed": 1})
        await add(db, "events", {"kind": "result", "data": {}, "at": at})

    swept = await sweep(db, now=NOW, keep_days=30)

    names = (
        "standing_grants",
        "changes",
        "results",
        "ended_sessions",
        "validations",
        "buckets",
        "events",
    )
    assert {name: swept[name] for name in names} == dict.fromkeys(names, 1)
    left = [await db.read(partial(count, name)) for name in names]
    assert left == [1, 3, 1, 1, 1, 1, 1]
