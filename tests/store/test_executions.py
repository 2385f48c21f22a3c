from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from gateway.store import tables
from gateway.store.cluster import Replica, beat
from gateway.store.database import Database
from gateway.store.ledger import (
    Begun,
    Execution,
    begin,
    finish,
    get_execution,
    mark_unknown,
    record_finished,
)
from tests.databases import eventually
from tests.store.rows import add_execution, execution

DONE = execution(
    status="completed",
    result={"success": True, "output": {"id": 1}, "error": None, "duration_ms": 12},
    upstream_status=201,
    recorded={"booking_id": "b1"},
    finished_at=1001.0,
)
WITH_TOKEN = execution(idempotency_token="t1")


async def test_begun_and_finished_call_is_one_whole_row(db: Database) -> None:
    assert await begin(db, execution()) == Begun("new")
    assert await get_execution(db, "e1") == execution()

    assert await finish(db, DONE)
    assert await get_execution(db, "e1") == DONE


async def test_call_ends_once(db: Database) -> None:
    await begin(db, execution())
    await finish(db, DONE)

    assert not await finish(db, replace(DONE, status="failed"))
    assert await get_execution(db, "e1") == DONE


async def test_execution_that_waited_is_begun_in_place(db: Database) -> None:
    await add_execution(db, execution(status="pending_confirmation", replica="r0"))

    assert await begin(db, execution()) == Begun("new")
    assert await get_execution(db, "e1") == execution()


@pytest.mark.parametrize("status", ["executing", "completed", "denied", "expired", "unknown"])
async def test_execution_that_is_past_waiting_is_not_begun_again(db: Database, status: str) -> None:
    before = execution(status=status)
    await add_execution(db, before)

    assert await begin(db, WITH_TOKEN) == Begun("ended", before)

    assert await get_execution(db, "e1") == before
    assert await begin(db, replace(WITH_TOKEN, id="e2")) == Begun("new")


async def test_read_call_is_recorded_soon(db: Database) -> None:
    assert record_finished(db, DONE)

    await eventually(lambda: get_execution(db, "e1"), DONE)


async def test_recording_does_not_overwrite_a_call_that_was_begun(db: Database) -> None:
    await begin(db, execution())
    record_finished(db, replace(DONE, status="failed"))
    await finish(db, DONE)

    assert await get_execution(db, "e1") == DONE


async def test_same_call_with_its_token_finds_the_first_one(db: Database) -> None:
    again = replace(WITH_TOKEN, id="e2")
    done = replace(DONE, idempotency_token="t1")

    assert await begin(db, WITH_TOKEN) == Begun("new")
    assert await begin(db, again) == Begun("running", WITH_TOKEN)
    await finish(db, done)
    assert await begin(db, again) == Begun("finished", done)
    assert await get_execution(db, "e2") is None


@pytest.mark.parametrize("other", [{"args_digest": "d2"}, {"tool": "demo_other"}])
async def test_token_of_another_call_is_a_conflict(db: Database, other: dict[str, str]) -> None:
    await begin(db, WITH_TOKEN)

    assert await begin(db, execution(id="e2", idempotency_token="t1", **other)) == Begun(
        "conflict", WITH_TOKEN
    )


async def test_principals_do_not_share_tokens(db: Database) -> None:
    await begin(db, WITH_TOKEN)

    assert await begin(db, replace(WITH_TOKEN, id="e2", principal="bob")) == Begun("new")


async def test_call_that_was_never_sent_frees_its_token(db: Database) -> None:
    failed = replace(WITH_TOKEN, status="failed", error_code="upstream_unreachable")
    await begin(db, WITH_TOKEN)
    await finish(db, failed, sent=False)

    assert await begin(db, replace(WITH_TOKEN, id="e2")) == Begun("new")
    assert await get_execution(db, "e1") == failed


async def test_of_many_claims_of_one_token_exactly_one_is_new(
    db: Database, other_db: Database
) -> None:
    claims = [begin((db, other_db)[n % 2], replace(WITH_TOKEN, id=f"e{n}")) for n in range(50)]

    outcomes = [begun.outcome for begun in await asyncio.gather(*claims)]

    assert sorted(outcomes) == ["new"] + ["running"] * 49


async def test_call_whose_caller_left_during_the_commit_ends_unsent(db: Database) -> None:
    committing = asyncio.Event()
    loop = asyncio.get_running_loop()
    other = asyncio.create_task(db.write(lambda tx: loop.call_soon_threadsafe(committing.set)))
    call = asyncio.create_task(begin(db, WITH_TOKEN))
    async with asyncio.timeout(5):
        await committing.wait()
    call.cancel()
    await other

    await db.write(lambda tx: None)

    assert [each.status for each in [await get_execution(db, "e1")] if each] in ([], ["failed"])
    assert await begin(db, replace(WITH_TOKEN, id="e2")) == Begun("new")


async def test_calls_of_silent_processes_become_unknown(db: Database) -> None:
    for name in ("gone", "silent", "alive"):
        await beat(db, Replica(name, "host", 1, 0.0))
        await begin(db, execution(id=name, replica=name, idempotency_token=name))
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
    again = await begin(db, execution(id="e9", idempotency_token="gone"))
    assert again == Begun("finished", unknown[0])


async def test_process_that_was_only_slow_still_tells_the_truth(db: Database) -> None:
    await begin(db, execution())
    await mark_unknown(db, now=2000.0)

    assert await finish(db, DONE)
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
