"""The issuer's public keys, fetched when needed and kept for a while.

A token signed with a key we have not seen makes us look again, at most once a minute, so that
nobody can make us hammer the issuer by inventing key ids. When the issuer can't be reached the keys
we have stay good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import orjson
import structlog
from jwt.types import JWKDict

KEEP_SECONDS = 600.0
RETRY_SECONDS = 60.0
MAX_KEYS = 64
ASYMMETRIC = frozenset({"RSA", "EC", "OKP"})

Key = Any  # what PyJWT takes: a PyJWK, or a public key of `cryptography`

_log = structlog.get_logger(__name__)


class Keys:
    """The keys of one issuer, by key id."""

    def __init__(
        self,
        url: str | None,
        file: str | None,
        fetch: Callable[[str], Awaitable[bytes]] | None,
        clock: Callable[[], float],
    ) -> None:
        self._url = url
        self._file = file
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str | None, Key] = {}
        self._looked = float("-inf")
        self._loaded = float("-inf")
        self._lock = asyncio.Lock()

    async def key_of(self, token: bytes) -> Key:
        """The key a token says it was signed with. Raises jwt.PyJWTError if there is none."""
        kid = jwt.get_unverified_header(token).get("kid")
        key = self._find(kid)
        now = self._clock()
        stale = now - self._loaded > KEEP_SECONDS
        if (key is None or stale) and now - self._looked >= RETRY_SECONDS:
            await self._refresh()
            key = self._find(kid)
        if key is None:
            raise jwt.InvalidKeyError("no such key")
        return key

    def _find(self, kid: str | None) -> Key | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _refresh(self) -> None:
        async with self._lock:
            if self._clock() - self._looked < RETRY_SECONDS:
                return  # another request has just looked
            self._looked = self._clock()
            try:
                self._keys = _read_keys(await self._load())
                self._loaded = self._clock()
            except Exception as error:  # the issuer's answer is not ours to trust or to crash on
                _log.warning("jwks_not_loaded", error=type(error).__name__)

    async def _load(self) -> bytes:
        if self._file is not None:
            return await asyncio.to_thread(Path(self._file).read_bytes)
        if self._url is not None and self._fetch is not None:
            return await self._fetch(self._url)
        raise LookupError("neither jwks_file nor jwks_url is configured")


def _read_keys(document: bytes) -> dict[str | None, Key]:
    """The usable keys of a JWKS document: public ones, meant for signatures."""
    keys: dict[str | None, Key] = {}
    for entry in orjson.loads(document)["keys"][:MAX_KEYS]:
        if entry.get("kty") not in ASYMMETRIC or entry.get("use", "sig") != "sig":
            continue
        try:
            keys[entry.get("kid")] = _key(entry)
        except jwt.PyJWTError:
            continue  # one key we can't read must not cost the others
    if not keys:
        raise ValueError("no usable key")
    return keys


def _key(entry: JWKDict) -> Key:
    # A key that names its algorithm is good for that one only; one that doesn't is good for any
    # its kind allows, where PyJWT would settle on a default.
    key = jwt.PyJWK.from_dict(entry)
    return key if "alg" in entry else key.key
