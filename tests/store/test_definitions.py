from __future__ import annotations

from dataclasses import replace

from gateway.model import Problem
from gateway.store.database import Database
from gateway.store.definitions import (
    Definition,
    forget_definitions,
    load_definitions,
    load_raw,
    load_validation,
    save_build,
    save_definition,
    save_validation,
    touch_definition,
)
from gateway.store.signals import current_revision

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
RAW = b'{"openapi": "3.1.0"}' * 1000
PLACE = (DEFINITION.connection, DEFINITION.location)


async def test_definition_comes_back_with_its_build_and_document(db: Database) -> None:
    assert await save_definition(db, DEFINITION, RAW) == 1

    assert await load_definitions(db) == [DEFINITION]
    assert await load_raw(db, *PLACE) == RAW


async def test_saving_again_replaces(db: Database) -> None:
    newer = replace(DEFINITION, sha256="def", build=b"other tools", problems=(), etag=None)
    await save_definition(db, DEFINITION, RAW)

    assert await save_definition(db, newer, b"new") == 2

    assert await load_definitions(db) == [newer]
    assert await load_raw(db, *PLACE) == b"new"


async def test_build_is_replaced_on_its_own(db: Database) -> None:
    await save_definition(db, DEFINITION, RAW)

    assert await save_build(db, *PLACE, build_key="key 2", build=b"better") == 2

    assert await load_definitions(db) == [replace(DEFINITION, build_key="key 2", build=b"better")]
    assert await load_raw(db, *PLACE) == RAW


async def test_build_without_document_is_not_kept(db: Database) -> None:
    assert await save_build(db, "demo", "nowhere", build_key="key", build=b"") is None
    assert await current_revision(db) == 0


async def test_unchanged_document_is_noted_without_telling_anyone(db: Database) -> None:
    await save_definition(db, DEFINITION, RAW)

    await touch_definition(db, *PLACE, fetched_at=9.0, etag='"2"', last_modified=None)

    touched = replace(DEFINITION, fetched_at=9.0, etag='"2"', last_modified=None)
    assert await load_definitions(db) == [touched]
    assert await current_revision(db) == 1


async def test_forgotten_definitions_are_gone(db: Database) -> None:
    await save_definition(db, DEFINITION, RAW)
    await save_definition(db, replace(DEFINITION, connection="other"), RAW)

    assert await forget_definitions(db, "demo") == 1

    assert [each.connection for each in await load_definitions(db)] == ["other"]
    assert await load_raw(db, *PLACE) is None


async def test_validation_is_remembered_by_content(db: Database) -> None:
    await save_validation(db, "abc", PROBLEMS, 5.0)
    await save_validation(db, "abc", (), 6.0)
    await save_validation(db, "fine", (), 5.0)

    assert await load_validation(db, "abc") == PROBLEMS
    assert await load_validation(db, "fine") == ()
    assert await load_validation(db, "other") is None
