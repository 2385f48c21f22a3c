"""Rows for tests: every field has a value, and a test names the ones it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from gateway.model import Tool
from gateway.store.database import Database
from gateway.store.ledger import insert_in
from gateway.store.tables import Approval, Change, Execution, StandingGrant

_CALL: Any = {"principal": "ann", "tool": "demo_add_book", "connection": "demo", "session": "s1"}
_MADE: Any = {**_CALL, "client": "tests/1", "risk": "medium", "created_at": 1000.0}
_EXECUTION = Execution(
    id="e1",
    **_MADE,
    status="executing",
    access="write",
    arguments={"title": "Emma"},
    args_digest="d1",
    revision=7,
    bundle_ids=("one", "two"),
    reason="allowed by level",
    era="2025",
    replica="r1",
)
_APPROVAL = Approval(
    id="a1",
    **_MADE,
    execution_id="e1",
    fingerprint="f1",
    args_digest="d1",
    arguments={"title": "Emma"},
    sealed_arguments=b"sealed",
    expires_at=1120.0,
    method="POST",
    url="http://127.0.0.1/books",
    warnings=("first write",),
)
_GRANT = StandingGrant(
    id="g1",
    **_CALL,
    fingerprint="f1",
    client="tests",
    request="POST http://127.0.0.1/books",
    granted_by="eve",
    created_at=1010.0,
    expires_at=4610.0,
)
TOOL = Tool(
    name="demo_add_book",
    local_name="add_book",
    connection="demo",
    operation="addBook",
    method="POST",
    path="/books",
    access="write",
    risk="medium",
    trust="trusted",
    title="Add a book",
    description="Adds a book.",
)
_CHANGE = Change(
    id="c1",
    connection="demo",
    operation="addBook",
    tool="demo_add_book",
    kind="changed",
    change_class="risky",
    reason="the host changed",
    status="held",
    at=1000.0,
    before=TOOL,
    after=replace(TOOL, path="/titles"),
)


def execution(**changed: Any) -> Execution:
    return structs.replace(_EXECUTION, **changed)


def approval(**changed: Any) -> Approval:
    return replace(_APPROVAL, **changed)


def grant(**changed: Any) -> StandingGrant:
    return replace(_GRANT, **changed)


def change(**changed: Any) -> Change:
    return replace(_CHANGE, **changed)


async def add_execution(db: Database, row: Execution) -> None:
    """Puts a row on disk as it is."""
    await db.write(lambda tx: insert_in(tx, row))
