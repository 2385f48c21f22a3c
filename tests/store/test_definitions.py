from __future__ import annotations

from dataclasses import replace

from gateway.model import Problem
from gateway.store.catalog import (
    Definition,
    load_definition,
    load_packed,
    load_validation,
    save_definition,
    save_validation,
)
from gateway.store.database import Database

PROBLEMS = (Problem("warning", "paths./books", "no answer is described"),)
DEFINITION = Definition(
    connection="demo",
    location="http://127.0.0.1/openapi.json",
    sha256="abc",
    build_key="key 1",
    build=b"tools",
    fetched_at=5.0,
    etag='"1"',
    last_modified="yesterday",
    problems=PROBLEMS,
)
PACKED = b'{"openapi": "3.1.0"}' * 1000
PLACE = (DEFINITION.connection, DEFINITION.location)


async def test_definition_comes_back_with_its_build_and_document(db: Database) -> None:
    assert await save_definition(db, DEFINITION, PACKED) == 1

    assert await load_definition(db, *PLACE) == DEFINITION
    assert await load_packed(db, *PLACE) == PACKED


async def test_saving_again_replaces(db: Database) -> None:
    newer = replace(DEFINITION, sha256="def", build=b"other tools", problems=(), etag=None)
    await save_definition(db, DEFINITION, PACKED)

    assert await save_definition(db, newer, b"new") == 2

    assert await load_definition(db, *PLACE) == newer
    assert await load_packed(db, *PLACE) == b"new"


async def test_validation_is_remembered_by_content(db: Database) -> None:
    await save_validation(db, "abc", PROBLEMS, 5.0)
    await save_validation(db, "abc", (), 6.0)
    await save_validation(db, "fine", (), 5.0)

    assert await load_validation(db, "abc") == PROBLEMS
    assert await load_validation(db, "fine") == ()
    assert await load_validation(db, "other") is None
