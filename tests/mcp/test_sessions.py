"""A session id opens for its owner, everywhere and until its end, and for nobody else."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from cryptography.fernet import Fernet

from gateway.mcp.sessions import (
    MAX_ID_BYTES,
    MAX_OPENED,
    SESSION_SECONDS,
    EndedHere,
    Session,
    Sessions,
    bounded_capabilities,
)

KEY = Fernet.generate_key()


class Clock:
    """Time that a test turns."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def sessions(clock: Clock | None = None, key: bytes = KEY) -> Sessions:
    return Sessions(Fernet(key), clock=clock or Clock())


def new(where: Sessions) -> bytes:
    return where.create("ann", "2025-11-25", "client/1", {"elicitation": {}})


def test_another_process_with_the_key_opens_what_this_one_made() -> None:
    header = new(sessions())
    opened = sessions().open(header, "ann")
    assert opened is not None
    assert opened == Session(
        opened.id,
        "ann",
        "2025-11-25",
        "client/1",
        {"elicitation": {}},
        1_000_000 + SESSION_SECONDS,
    )


def test_session_id_is_visible_ascii() -> None:
    assert all(0x21 <= byte <= 0x7E for byte in new(sessions()))


def test_session_of_another_principal_does_not_open_even_when_known() -> None:
    here = sessions()
    header = new(here)
    assert here.open(header, "ann") is not None
    assert here.open(header, "bob") is None


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"abc",
        "ä".encode(),
        b"x" * (MAX_ID_BYTES + 1),
        Fernet(Fernet.generate_key()).encrypt(b"{}"),
        Fernet(KEY).encrypt(b"not json"),
        Fernet(KEY).encrypt(orjson.dumps(["another-purpose", "i", "ann", "v", "c", {}, 9e9])),
        Fernet(KEY).encrypt(orjson.dumps(["mcp-session/1", "i"])),
    ],
)
def test_what_we_did_not_make_as_a_session_does_not_open(header: bytes) -> None:
    assert sessions().open(header, "ann") is None


def test_session_runs_out() -> None:
    clock = Clock()
    here = sessions(clock)
    header = new(here)
    clock.now += SESSION_SECONDS - 1
    assert here.open(header, "ann") is not None
    clock.now += 1
    assert here.open(header, "ann") is None


async def test_ended_session_is_over_on_every_replica_that_shares_the_knowledge() -> None:
    ended = EndedHere()
    one, other = (Sessions(Fernet(KEY), ended) for _ in range(2))
    header = new(one)
    session = one.open(header, "ann")
    assert session is not None and other.open(header, "ann") is not None
    await one.end(header, session)
    assert one.open(header, "ann") is None
    assert other.open(header, "ann") is None


class PlainSeal:
    """A seal that hides nothing and counts how often it is opened."""

    opened = 0

    def encrypt(self, data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data)

    def decrypt(self, token: bytes) -> bytes:
        self.opened += 1
        return base64.urlsafe_b64decode(token)


def test_opened_ids_are_remembered_up_to_a_bound() -> None:
    seal = PlainSeal()
    here = Sessions(seal, clock=Clock())
    headers = [new(here) for _ in range(MAX_OPENED + 1)]
    for header in headers:
        assert here.open(header, "ann") is not None
    assert seal.opened == len(headers)
    assert here.open(headers[-1], "ann") is not None  # remembered
    assert seal.opened == len(headers)
    assert here.open(headers[0], "ann") is not None  # had to make room
    assert seal.opened == len(headers) + 1


@pytest.mark.parametrize(
    ("capabilities", "kept"),
    [
        ({}, {}),
        ({"roots": {"listChanged": True}}, {"roots": {"listChanged": True}}),
        ({"experimental": {"x": "y" * 2000}}, {}),
        ({"experimental": {"x": "y" * 2000}, "elicitation": {}}, {"elicitation": {}}),
        (
            {"x": "y" * 2000, "elicitation": {"form": {}, "url": {}, "z": 1}},
            {"elicitation": {"form": {}, "url": {}}},
        ),
    ],
)
def test_capabilities_fit_into_a_header(capabilities: dict[str, Any], kept: dict[str, Any]) -> None:
    assert bounded_capabilities(capabilities) == kept
