from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from gateway.errors import ConfigInvalid
from gateway.store.approvals import create_approval, get_approval
from gateway.store.database import VERSION, Database, is_current
from gateway.store.ledger import begin_execution, get_execution
from tests.databases import PostgresServer
from tests.processes import START_SECONDS
from tests.store.rows import approval, execution

OPEN_AND_CLOSE = """
import asyncio, sys
from gateway.store.database import Database
async def main():
    async with Database(sys.argv[1]) as db:
        await db.ping()
asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/deep/er/gateway.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.new_database())


async def test_processes_that_start_together_make_the_tables_once(empty_url: str) -> None:
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPEN_AND_CLOSE, empty_url, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    async with asyncio.timeout(START_SECONDS):
        errors = [(await child.communicate())[1] for child in children]

    assert [child.returncode for child in children] == [0, 0], b"".join(errors).decode()
    async with Database(empty_url) as db:
        versions = await db.read(lambda tx: tx.execute(text("SELECT * FROM alembic_version")).all())
        revisions = await db.read(lambda tx: tx.execute(text("SELECT * FROM revision")).all())
    assert [tuple(row) for row in versions] == [(VERSION,)]
    assert [tuple(row) for row in revisions] == [(1, 0)]


async def test_store_from_before_a_column_came_goes_on(db: Database, store_url: str) -> None:
    waiting = execution(status="pending_confirmation")
    await create_approval(db, approval(), waiting)
    came = [("executions", "granted"), ("approvals", "waits_at"), ("approvals", "grant_id")]
    came += [(table, "organization") for table in ("executions", "approvals", "standing_grants")]
    for table, column in came:
        await db.write(partial(_drop_column, table, column))
    assert not await db.read(is_current)  # commands that only look do not read it
    async with Database(store_url) as later, Database(store_url):
        assert await later.read(is_current)
        assert await get_approval(later, "a1") == approval()
        assert await get_execution(later, "e1") == waiting
        allowed = execution(id="e2", granted={"id": "g1", "by": "eve"}, organization="acme")
        await begin_execution(later, allowed)
        assert await get_execution(later, "e2") == allowed


def _drop_column(table: str, column: str, tx: Connection) -> None:
    tx.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))


@pytest.mark.parametrize("version", ["0005", "release_9"])
async def test_store_of_another_version_is_refused_with_what_to_do(
    db: Database, store_url: str, version: str
) -> None:
    await db.write(
        lambda tx: tx.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))
    )

    with pytest.raises(ConfigInvalid, match=version) as caught:
        await Database(store_url).open()
    assert "begin a new store" in str(caught.value)
