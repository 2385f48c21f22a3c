from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.errors import ConfigInvalid
from gateway.store.database import Database
from gateway.store.tables import VERSION
from tests.databases import PostgresServer
from tests.processes import START_SECONDS

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
