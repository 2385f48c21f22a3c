from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.errors import Broken
from gateway.store.database import Database
from gateway.store.engines import FAILURES, Postgres, Sqlite
from tests.databases import PostgresServer, empty_store, eventually
from tests.peers import soon
from tests.raising import raises
from tests.store.test_database import add_fact, fact_names


async def add(db: Database, name: str) -> None:
    await db.write(lambda tx: add_fact(tx, name))


@pytest.fixture
async def postgres_db(own_postgres: PostgresServer) -> AsyncIterator[Database]:
    with own_postgres.database() as url:
        async with Database(url) as database:
            yield database


async def test_idle_gateway_does_not_notice_a_restart_of_postgres(
    own_postgres: PostgresServer, postgres_db: Database
) -> None:
    await add(postgres_db, "before")
    await asyncio.gather(*(postgres_db.read(fact_names) for _ in range(4)))

    await asyncio.to_thread(own_postgres.stop)
    await asyncio.to_thread(own_postgres.start)

    reads = [await postgres_db.read(fact_names) for _ in range(4)]
    assert reads == [["before"]] * 4
    await add(postgres_db, "after")


async def test_gateway_says_so_while_postgres_is_down_and_recovers(
    own_postgres: PostgresServer, postgres_db: Database
) -> None:
    await asyncio.to_thread(own_postgres.stop)
    try:
        for attempt in (postgres_db.read(fact_names), add(postgres_db, "lost")):
            with raises(Broken, code="store_unavailable"):
                await attempt
        assert postgres_db.write_soon(lambda tx: add_fact(tx, "soon"))
    finally:
        await asyncio.to_thread(own_postgres.start)

    await add(postgres_db, "after")
    await eventually(lambda: postgres_db.read(fact_names), ["after", "soon"])
    assert postgres_db.dropped == 0


async def test_backend_that_is_killed_costs_at_most_its_own_units(postgres_db: Database) -> None:
    await add(postgres_db, "before")
    kill = text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    assert await postgres_db.read(lambda tx: tx.execute(kill).scalar_one()) >= 1

    await add(postgres_db, "after")
    assert await postgres_db.read(fact_names) == ["after", "before"]


async def test_endless_statements_end_at_their_deadline(db: Database, store_url: str) -> None:
    endless = text(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    )
    path = Path(store_url.removeprefix("sqlite:///"))
    file = isinstance(db.engine, Sqlite)
    engine = Sqlite(path, 0.2) if file else Postgres(store_url, 0.2)

    for act in (engine.read, engine.transact):
        with pytest.raises(FAILURES):
            await act(lambda tx: tx.execute(endless).scalar())
        assert await engine.read(fact_names) == []
    await engine.close()


async def test_file_held_by_another_program_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    async with Database(f"sqlite:///{path}") as db:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(add(db, "a"))
        assert await db.read(fact_names) == []
        other.execute("COMMIT")
        other.close()
        await soon(waiting)
        assert await db.read(fact_names) == ["a"]


async def test_write_that_waited_too_long_for_the_file_does_not_happen(tmp_path: Path) -> None:
    path = Path(shutil.copy(empty_store(), tmp_path / "gateway.db"))
    engine = Sqlite(path, 0.2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(TimeoutError):
        await engine.transact(lambda tx: add_fact(tx, "late"))
    other.execute("COMMIT")
    other.close()

    # The thread that writes does one thing after the other: the late one is over by then.
    await engine.transact(lambda tx: add_fact(tx, "next"))
    assert await engine.read(fact_names) == ["next"]
    await engine.close()
