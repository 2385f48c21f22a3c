from __future__ import annotations

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.fernet import Fernet, InvalidToken

from gateway.errors import ConfigInvalid
from gateway.store.database import Database
from gateway.store.secrets import Seal, check_seal, load_seal

PASSPHRASE = "correct horse battery staple"


def test_key_file_is_made_once_and_for_the_owner_only(tmp_path: Path) -> None:
    key_file = tmp_path / "state" / "secret.key"

    token = load_seal(key_file).encrypt(b"hello")

    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert load_seal(key_file).decrypt(token) == b"hello"
    assert [path.name for path in key_file.parent.iterdir()] == ["secret.key"]


def test_starts_at_the_same_moment_agree_on_one_key(tmp_path: Path) -> None:
    gate = threading.Barrier(8)

    def start(_: int) -> Seal:
        gate.wait(5)
        return load_seal(tmp_path / "secret.key")

    with ThreadPoolExecutor(8) as threads:
        seals = list(threads.map(start, range(8)))

    token = seals[0].encrypt(b"hello")
    assert [seal.decrypt(token) for seal in seals] == [b"hello"] * 8


@pytest.mark.parametrize("key", [Fernet.generate_key().decode(), PASSPHRASE], ids=["key", "words"])
def test_key_from_the_environment_makes_no_file(key: str, tmp_path: Path) -> None:
    seal = load_seal(tmp_path / "secret.key", key)

    assert Seal([key]).decrypt(seal.encrypt(b"hello")) == b"hello"
    assert list(tmp_path.iterdir()) == []


def test_first_key_seals_and_later_ones_still_open(tmp_path: Path) -> None:
    old = Seal([PASSPHRASE])
    both = load_seal(tmp_path / "unused", f"another passphrase\n{PASSPHRASE}\n")

    assert both.decrypt(old.encrypt(b"hello")) == b"hello"
    with pytest.raises(InvalidToken):
        old.decrypt(both.encrypt(b"hello"))


@pytest.mark.parametrize("key", ["", "  \n", "too short", f"{PASSPHRASE}\nshort"])
def test_keys_that_are_too_weak_are_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="GATEWAY_SECRET_KEY") as caught:
        load_seal(tmp_path / "secret.key", key)
    assert "short" not in str(caught.value)


def test_key_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigInvalid, match=r"store\.secret_key_file \(secret\.key\)"):
        load_seal(tmp_path / "file" / "secret.key")


async def test_another_key_than_the_first_is_refused(db: Database, other_db: Database) -> None:
    await check_seal(db, Seal([PASSPHRASE]))
    await check_seal(other_db, Seal([PASSPHRASE]))

    with pytest.raises(ConfigInvalid, match="not the key the store was sealed with"):
        await check_seal(other_db, Seal(["some other passphrase"]))

    await check_seal(db, Seal(["some other passphrase", PASSPHRASE]))


def test_json_comes_back_as_it_was() -> None:
    seal = Seal([PASSPHRASE])
    value = {"token": "s3cret", "numbers": [1, 2.5, None], "huge": 2**80 + 1}

    sealed = seal.encrypt_json(value)

    assert b"s3cret" not in sealed
    assert seal.decrypt_json(sealed) == value
