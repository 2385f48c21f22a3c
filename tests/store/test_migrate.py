from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from gateway.errors import ConfigInvalid
from gateway.store.database import Database
from gateway.store.results import LargeResult, read_result, save_result
from gateway.store.sqlite import Sqlite
from gateway.store.statements import HEAD, SCRIPTS
from gateway.store.tables import metadata
from tests.databases import PostgresServer

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


def test_head_is_the_newest_script() -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")

    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


async def test_migrations_make_the_tables_that_are_declared(empty_url: str) -> None:
    def differences(tx: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(tx), metadata))

    async with Database(empty_url) as db:
        assert await db.read(differences) == []


async def test_processes_that_start_together_migrate_once(empty_url: str) -> None:
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPEN_AND_CLOSE, empty_url, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    async with asyncio.timeout(20):
        errors = [(await child.communicate())[1] for child in children]

    assert [child.returncode for child in children] == [0, 0], b"".join(errors).decode()
    async with Database(empty_url) as db:
        versions = await db.read(lambda tx: tx.execute(text("SELECT * FROM alembic_version")).all())
        revisions = await db.read(lambda tx: tx.execute(text("SELECT * FROM revision")).all())
    assert [tuple(row) for row in versions] == [(HEAD,)]
    assert [tuple(row) for row in revisions] == [(1, 0)]


async def test_answers_kept_by_an_older_gateway_are_dropped(empty_url: str) -> None:
    def first_version(tx: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(SCRIPTS))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = tx
        command.upgrade(config, "0001")
        tx.execute(text("INSERT INTO results VALUES ('r1', 'ann', 'text/plain', 'x', 9e9)"))

    old = Database(empty_url)
    if isinstance(old.engine, Sqlite):
        old.engine.path.parent.mkdir(parents=True)
    await old.engine.transact(first_version)
    await old.engine.close()

    async with Database(empty_url) as db:
        kept = LargeResult("r1", "ann", 1, "text/plain", b"y", 9e9)
        await save_result(db, kept)
        assert await read_result(db, "r1", "ann", 0.0) == kept


async def test_store_of_a_newer_gateway_is_refused(db: Database, store_url: str) -> None:
    await db.write(lambda tx: tx.execute(text("UPDATE alembic_version SET version_num = '9999'")))

    with pytest.raises(ConfigInvalid, match="9999"):
        await Database(store_url).open()
