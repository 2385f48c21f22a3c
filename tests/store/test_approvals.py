from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.errors import Refused
from gateway.store.approvals import (
    create_approval,
    decide_approval,
    expire_approvals,
    find_grant,
    get_approval,
    get_grant,
    list_ended,
    list_grants,
    list_open,
    revoke_grant,
    use_approval,
    void_approval,
)
from gateway.store.cluster import end_session
from gateway.store.database import Database
from gateway.store.ledger import Claim, begin_execution, get_execution
from gateway.store.tables import Approval, Execution, StandingGrant
from tests.store.rows import approval, execution, grant

WAITING = execution(status="pending_confirmation")
APPROVED = approval(status="approved", decided_by="eve", decided_at=1010.0, expires_at=1300.0)
GRANT = grant(expires_at=5000.0)
ASKED: dict[str, Any] = {
    "principal": "ann",
    "tools": ("demo_add_book",),
    "fingerprint": "f1",
    "client": "tests",
}


async def approve(
    db: Database, id: str = "a1", grant: StandingGrant | None = None
) -> Approval | None:
    return await decide_approval(
        db, id, "approved", by="eve", now=1010.0, usable_until=1300.0, grant=grant
    )


async def deny(db: Database) -> Approval | None:
    return await decide_approval(
        db, "a1", "denied", by="bob", now=1011.0, usable_until=1300.0, grant=GRANT
    )


@pytest.fixture
async def asked(db: Database) -> Database:
    """A store in which a call waits for its approval."""
    await create_approval(db, approval(), WAITING)
    return db


@pytest.fixture
async def approved(asked: Database) -> Database:
    """A store in which a call is approved."""
    await approve(asked)
    return asked


@pytest.fixture
async def granted(asked: Database) -> Database:
    """A store in which a call is approved, and those after it."""
    await approve(asked, grant=GRANT)
    return asked


async def test_asking_makes_approval_and_execution_together(asked: Database) -> None:
    assert await list_open(asked, 1001.0) == [approval()]
    assert await list_open(asked, 1120.0) == []
    assert await get_execution(asked, "e1") == WAITING


async def test_approved_call_is_begun_once(approved: Database) -> None:
    assert await get_approval(approved, "a1") == APPROVED
    assert await use_approval(approved, APPROVED, execution(), 1020.0) == Claim(True)
    assert await get_execution(approved, "e1") == execution()
    assert await get_approval(approved, "a1") == replace(APPROVED, status="used")
    with pytest.raises(Refused):
        await use_approval(approved, APPROVED, execution(id="e2"), 1020.0)
    assert await get_execution(approved, "e2") is None


async def test_denied_call_ends_its_execution_and_grants_nothing(asked: Database) -> None:
    denied = await deny(asked)

    assert denied == approval(status="denied", decided_by="bob", decided_at=1011.0)
    assert await get_execution(asked, "e1") == ended("denied", "approval_denied", 1011.0)
    assert await list_grants(asked, 2000.0) == []
    with pytest.raises(Refused):
        await use_approval(asked, approval(), execution(id="e2"), 1020.0)


async def test_what_has_ended_is_told_for_a_while_however_it_ended(asked: Database) -> None:
    other = {"args_digest": "d2", "created_at": 1000.0}
    for id in ("a2", "a3"):
        call = execution(id=f"e-{id}", status="pending_confirmation")
        await create_approval(asked, approval(id=id, execution_id=call.id, **other), call)
    assert await list_ended(asked, 1000.0, 1005.0) == []
    await approve(asked)
    await void_approval(asked, "a3", 1012.0)

    def told(found: list[Approval]) -> list[tuple[str, str, str | None]]:
        return [(each.id, each.status, each.decided_by) for each in found]

    gone = [("a1", "approved", "eve"), ("a3", "void", None)]
    assert told(await list_ended(asked, 1008.0, 1014.0)) == gone
    assert told(await list_ended(asked, 1013.0, 1019.0)) == []
    await use_approval(asked, APPROVED, execution(), 1100.0)
    assert told(await list_ended(asked, 1115.0, 1121.0)) == [("a2", "pending", None)]
    await expire_approvals(asked, 1121.0)
    assert told(await list_ended(asked, 1116.0, 1122.0)) == [("a2", "expired", None)]
    assert told(await list_ended(asked, 1295.0, 1301.0)) == []  # what was used in time


async def test_first_decision_stays(asked: Database, other_db: Database) -> None:
    outcomes = await asyncio.gather(
        *(decide(s) for s in (asked, other_db) for decide in (approve, deny))
    )

    winners = [outcome for outcome in outcomes if outcome is not None]
    assert [await get_approval(asked, "a1")] == winners


async def test_of_fifty_uses_in_two_processes_one_wins(
    approved: Database, other_db: Database
) -> None:
    uses = [
        use_approval((approved, other_db)[n % 2], APPROVED, execution(id=f"x{n}"), 1020.0)
        for n in range(50)
    ]
    outcomes = await asyncio.gather(*uses, return_exceptions=True)

    winners = [n for n, outcome in enumerate(outcomes) if outcome == Claim(True)]
    begun = [n for n in range(50) if await get_execution(approved, f"x{n}")]
    assert begun == winners and len(winners) == 1
    assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 49


@pytest.mark.parametrize(
    ("other", "now"),
    [
        ({"principal": "bob"}, 1020.0),
        ({"tool": "demo_delete_book"}, 1020.0),
        ({"fingerprint": "f2"}, 1020.0),
        ({"args_digest": "d2"}, 1020.0),
        ({"id": "a2"}, 1020.0),
        ({}, 1300.0),
    ],
    ids=str,
)
async def test_approval_is_bound_to_its_call_and_time(
    approved: Database, other: dict[str, str], now: float
) -> None:
    with pytest.raises(Refused):
        await use_approval(approved, approval(**other), execution(), now)
    assert await get_execution(approved, "e1") == WAITING
    assert await get_approval(approved, "a1") == APPROVED


async def test_replayed_call_does_not_use_the_approval_up(approved: Database) -> None:
    first = execution(id="e0", idempotency_token="t1")
    await begin_execution(approved, first)

    begun = await use_approval(approved, APPROVED, execution(idempotency_token="t1"), 1020.0)

    assert begun == Claim(False, first)
    assert await get_approval(approved, "a1") == APPROVED


async def test_refused_use_leaves_the_token_free(asked: Database) -> None:
    with pytest.raises(Refused):
        await use_approval(asked, approval(), execution(idempotency_token="t1"), 1020.0)

    assert await begin_execution(asked, execution(id="e2", idempotency_token="t1")) == Claim(True)


async def test_undecided_and_unused_approvals_expire_with_their_executions(
    approved: Database,
) -> None:
    other = execution(id="e2", status="pending_confirmation")
    await create_approval(approved, approval(id="a2", execution_id="e2"), other)

    expired = await expire_approvals(approved, 1120.0)
    late = await expire_approvals(approved, 1300.0)

    assert [each.id for each in expired] == ["a2"]
    assert late == [replace(APPROVED, status="expired")]
    assert await get_execution(approved, "e1") == ended("expired", "approval_expired", 1300.0)


async def test_voided_approval_cannot_be_used(approved: Database) -> None:
    assert await void_approval(approved, "a9", 1012.0) == []
    assert await void_approval(approved, "a1", 1012.0) == [replace(APPROVED, status="void")]

    for used_for in (execution(), execution(id="e2")):
        with pytest.raises(Refused):
            await use_approval(approved, APPROVED, used_for, 1020.0)
    assert await get_execution(approved, "e1") == ended("denied", "approval_expired", 1012.0)


def ended(status: str, code: str, at: float) -> Execution:
    return structs.replace(WAITING, status=status, error_code=code, finished_at=at)


async def test_always_allow_holds_for_principal_tool_and_session(granted: Database) -> None:
    rows: list[tuple[dict[str, Any], float]] = [
        ({}, 4999.0),
        ({}, 5000.0),
        ({"session": "s2"}, 2000.0),
        ({"principal": "bob"}, 2000.0),
        ({"tools": ("demo_delete_book",)}, 2000.0),
        ({"fingerprint": "f2"}, 2000.0),
        ({"session": ""}, 2000.0),
        ({"client": "other"}, 2000.0),  # what a session's client calls itself does not matter
    ]
    asked = {**ASKED, "session": "s1"}
    found = [await find_grant(granted, **{**asked, **other}, now=now) for other, now in rows]

    assert [each == GRANT for each in found] == [True, *[False] * 6, True]


async def test_a_standing_grant_is_listed_until_it_is_revoked_or_over(
    granted: Database, other_db: Database
) -> None:
    assert await list_grants(other_db, 4999.0) == [GRANT]
    assert await list_grants(granted, 5000.0) == []
    assert await get_grant(granted, "g1") == GRANT
    assert (await revoke_grant(granted, "g1"), await revoke_grant(granted, "g1")) == (True, False)
    assert await find_grant(other_db, **ASKED, session="s1", now=2000.0) is None
    assert await list_grants(other_db, 2000.0) == []


async def test_a_session_takes_its_grants_along_when_it_ends(granted: Database) -> None:
    await end_session(granted, "s1", 9000.0)

    assert await list_grants(granted, 2000.0) == []
