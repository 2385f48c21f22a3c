"""A session id opens for its owner, everywhere and until its end, and for nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from cryptography.fernet import Fernet

from gateway.limits import SESSION_SECONDS
from gateway.mcp.era_2025 import SealedSession, SealedSessions
from gateway.store.cluster import end_session
from gateway.store.database import Database
from gateway.store.secrets import Seal
from tests.clock import Clock

KEY = Fernet.generate_key().decode()
SEAL = Seal([KEY])


@pytest.fixture
async def db(tmp_path: Any) -> AsyncIterator[Database]:
    async with Database(f"sqlite:///{tmp_path}/sessions.db") as opened:
        yield opened


def new(where: SealedSessions, capabilities: dict[str, Any] | None = None) -> bytes:
    return where.create("ann", "2025-11-25", "client/1", capabilities or {"elicitation": {}})[1]


async def test_another_process_with_the_key_opens_what_this_one_made(db: Database) -> None:
    clock = Clock(1_000_000.0)
    header = new(SealedSessions(SEAL, db, clock))
    assert all(0x21 <= byte <= 0x7E for byte in header)
    opened = await SealedSessions(Seal([KEY]), db, clock).open(header, "ann")
    assert opened is not None
    expires = 1_000_000 + SESSION_SECONDS
    assert opened == SealedSession(
        opened.id, "ann", "2025-11-25", "client/1", {"elicitation": {}}, expires
    )


async def test_what_we_did_not_make_as_a_session_does_not_open(db: Database) -> None:
    for header in (
        b"",
        b"abc",
        "ä".encode(),
        b"x" * 100_000,
        Seal([Fernet.generate_key().decode()]).encrypt(b"{}"),
        SEAL.encrypt(b"not json"),
        SEAL.encrypt(orjson.dumps(["another-purpose", "i", "ann", "v", "c", {}, 9e9])),
    ):
        assert await SealedSessions(SEAL, db).open(header, "ann") is None


async def test_session_runs_out(db: Database) -> None:
    clock = Clock(1_000_000.0)
    here = SealedSessions(SEAL, db, clock)
    header = new(here)
    clock.now += SESSION_SECONDS - 1
    assert await here.open(header, "ann") is not None
    clock.now += 1
    assert await here.open(header, "ann") is None


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "a break: looked up again"])
async def test_ended_session_is_over_in_every_process(db: Database, heard: bool) -> None:
    one, other = (SealedSessions(SEAL, db) for _ in range(2))
    ended, living = new(one), new(one)
    session = await one.open(ended, "ann")
    assert session is not None and await other.open(ended, "ann") is not None
    await end_session(db, session.id, session.expires)
    one.forget(session.id)
    assert await one.open(ended, "ann") is None
    other.forget(session.id if heard else "")
    assert await other.open(ended, "ann") is None
    assert await other.open(living, "ann") is not None


@pytest.mark.parametrize(
    ("capabilities", "kept"),
    [
        ({"roots": {"listChanged": True}}, {"roots": {}}),
        ({"experimental": {"x": "y" * 2000}, "elicitation": {}}, {"elicitation": {}}),
        (
            {"elicitation": {"form": {}, "url": {}, "z": 1}},
            {"elicitation": {"form": {}, "url": {}}},
        ),
    ],
)
async def test_a_header_holds_the_capabilities_that_are_acted_on(
    db: Database, capabilities: dict[str, Any], kept: dict[str, Any]
) -> None:
    opened = await SealedSessions(SEAL, db).open(new(SealedSessions(SEAL, db), capabilities), "ann")
    assert opened is not None and opened.capabilities == kept
