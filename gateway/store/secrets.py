"""The key that seals credentials, sessions and consents, and the proof that it is the right one.

The key file is made on first start: written whole beside its place, then linked into it, so that of
two processes starting together one makes the key and both read it. A file (or GATEWAY_SECRET_KEY)
may hold several keys, one a line: the first seals, the others still open what they sealed.
The store keeps a value sealed with the key, so that another key is refused at the start and not
when the first credential can't be read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from sqlalchemy import Column, Connection, Update, select, update

from gateway.errors import ConfigInvalid
from gateway.limits import PASSPHRASE_CHARS
from gateway.model import json_bytes, json_value
from gateway.store import tables
from gateway.store.database import Database, insert_new
from gateway.system import ON_WINDOWS

SEALED = re.compile(rb"[A-Za-z0-9_-]+={0,2}")
CHECK_NAME = "secret_key_check"
CHECK_VALUE = b"gateway"


class Seal:
    """Encrypts and decrypts bytes; raises `cryptography`'s InvalidToken for bytes it can't open."""

    def __init__(self, keys: Sequence[str]) -> None:
        fernets = [Fernet(_fernet_key(key)) for key in keys]
        self._fernet, self._first = MultiFernet(fernets), fernets[0]
        self.has_several = len(fernets) > 1
        self._digest_key = hashlib.sha256(f"digest {keys[0]}".encode()).digest()

    def encrypt(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def decrypt(self, token: bytes) -> bytes:
        if not SEALED.fullmatch(token):  # Fernet overlooks characters behind its padding
            raise InvalidToken
        return self._fernet.decrypt(token)

    def renew(self, token: bytes) -> bytes | None:
        """The token sealed with the first key; None if it already is, or if no key opens it."""
        try:
            self._first.decrypt(token)
        except InvalidToken:
            try:
                return self.encrypt(self.decrypt(token))
            except InvalidToken:
                return None
        return None

    def digest(self, value: object) -> str:
        """Names a value that may hold secrets; nobody can try values out without the key."""
        return hmac.new(self._digest_key, json_bytes(value), "sha256").hexdigest()

    def encrypt_json(self, value: object) -> bytes:
        return self.encrypt(json_bytes(value))

    def decrypt_json(self, token: bytes) -> object:
        return json_value(self.decrypt(token))

    def seal_values(self, purpose: str, *values: object) -> str:
        """Values for a client to hand back; a text sealed for one purpose opens for no other."""
        return self.encrypt_json([purpose, *values]).decode("ascii")

    def open_values(self, purpose: str, text: str | None) -> list[Any] | None:
        """The values that were sealed for this purpose; None: the text holds none."""
        try:
            value = self.decrypt_json((text or "").encode("utf-8", "replace"))
        except (InvalidToken, ValueError):
            return None
        return value[1:] if isinstance(value, list) and value[:1] == [purpose] else None


def load_seal(key_file: Path, environment_key: str | None = None) -> Seal:
    """The seal from GATEWAY_SECRET_KEY if it is set, else from the key file, made if missing."""
    if environment_key is not None:
        return _seal_of("GATEWAY_SECRET_KEY", environment_key)
    place = f"store.secret_key_file ({key_file.name})"
    try:
        if not key_file.exists():
            _make_key_file(key_file)
        return _seal_of(place, key_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigInvalid([f"{place}: can't be made or read: {reason}"]) from error


async def check_seal(db: Database, seal: Seal) -> None:
    """Refuses a key other than the one this store was first opened with."""
    sealed = seal.encrypt(CHECK_VALUE)
    stored_check = await db.read(_read_check)
    if stored_check is None:
        stored_check = await db.write(lambda tx: _keep_check(tx, sealed))
    try:
        seal.decrypt(stored_check)
    except InvalidToken:
        raise ConfigInvalid(
            [
                "store.secret_key_file: this is not the key the store was sealed with. Give back"
                " the earlier key file (or GATEWAY_SECRET_KEY), one for all replicas. To change"
                " keys, put the new one in a line above it"
            ]
        ) from None


# Values that stay sealed for longer than a day: the column of each table.
_SEALED_COLUMNS = {
    tables.connections: "settings",
    tables.credentials: "sealed",
    tables.registrations: "sealed",
    tables.facts: "value",
}


async def reseal(db: Database, seal: Seal) -> int:
    """Seals values of earlier keys with the first key, so that those can go; gives their number.

    Row by row, and only a row that is still as it was read: a change of a row seals it anew.
    """
    count = 0
    for table, name in _SEALED_COLUMNS.items() if seal.has_several else ():
        column = table.c[name]
        for old in await db.read(partial(_sealed_values, column)):
            if (new := seal.renew(old)) is not None:  # a sealed value is in one row alone
                change = update(table).where(column == old).values({name: new})
                count += await db.write(partial(_changed_rows, change))
    return count


def _sealed_values(column: Column[Any], tx: Connection) -> list[bytes]:
    return [value for value in tx.execute(select(column)).scalars() if isinstance(value, bytes)]


def _changed_rows(change: Update, tx: Connection) -> int:
    return int(tx.execute(change).rowcount)


def _seal_of(place: str, text: str) -> Seal:
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise ConfigInvalid([f"{place}: holds no key; remove it and a new one is made"])
    if any(len(key) < PASSPHRASE_CHARS for key in keys):
        raise ConfigInvalid(
            [f"{place}: a key must be a Fernet key or at least {PASSPHRASE_CHARS} characters"]
        )
    return Seal(keys)


def _fernet_key(key: str) -> bytes:
    try:
        Fernet(key)
    except ValueError:
        # One salt for all: replicas must come to the same key, and a key is no user's password.
        derived = hashlib.scrypt(key.encode(), salt=b"gateway", n=2**14, r=8, p=1, dklen=32)
        return base64.urlsafe_b64encode(derived)
    return key.encode()


def _make_key_file(key_file: Path) -> None:
    key_file.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp makes the file with mode 0600 and O_EXCL.
    descriptor, name = tempfile.mkstemp(dir=key_file.parent, prefix=f".{key_file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(Fernet.generate_key() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(name, key_file)
        _sync_folder(key_file.parent)
    except FileExistsError:
        pass  # another process was first: its key is the key
    finally:
        os.unlink(name)


def _sync_folder(folder: Path) -> None:
    if ON_WINDOWS:  # folders can't be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_check(tx: Connection) -> Any:
    return tx.execute(select(tables.facts.c.value).filter_by(name=CHECK_NAME)).scalar()


def _keep_check(tx: Connection, sealed: bytes) -> Any:
    insert_new(tx, tables.facts, {"name": CHECK_NAME, "value": sealed})
    return _read_check(tx)
