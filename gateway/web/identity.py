"""Who is asking: a bearer token we know by its hash, a JWT we can verify, or nobody in particular.

`Identity.identify` is the one way from a request's headers to its principal. Only hashes of tokens
are ever held. A JWT is verified against the issuer's keys with asymmetric algorithms only, and
remembered by its hash until it expires, a minute at most. Settings are swapped whole
(`identity.settings = …`), which forgets everything remembered: a removed token ends with its next
request or stream check.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jwt
import orjson
import structlog
from cachetools import TLRUCache

from gateway.config.settings import AuthMode, PrincipalSettings, Settings
from gateway.errors import Unauthenticated
from gateway.limits import MAX_REMEMBERED, SIGNING_KEYS_KEPT_SECONDS, VERIFIED_SECONDS
from gateway.model import Principal
from gateway.policy.access import configured_principal
from gateway.web.guard import Fields

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
METADATA_PATH = "/.well-known/oauth-protected-resource"

Fetch = Callable[[str], Awaitable[bytes]]
Key = Any  # what PyJWT takes: a PyJWK, or a public key of `cryptography`
Verified = tuple[Principal, float]  # until when its token is good

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Everything identity needs to know; the principals carry what configuration says of them."""

    mode: Literal["tokens", "jwt", "none"] = "none"
    principals: Mapping[str, Principal] = field(default_factory=dict)
    token_hashes: Mapping[str, str] = field(default_factory=dict)  # principal → sha256, hex
    jwt: AuthMode | None = None  # how a JWT is verified, and which claims say who it is
    public_url: str = ""


def auth_settings(settings: Settings, public_url: str) -> AuthSettings:
    """What configuration says about identity, as this module wants it."""
    auth, tables = settings.auth, settings.principals
    hashes = {name: _token_hash(table) for name, table in tables.items()}
    return AuthSettings(
        auth.mode,
        {name: configured_principal(name, table) for name, table in tables.items()},
        {name: digest for name, digest in hashes.items() if digest},
        auth if auth.mode == "jwt" else None,
        public_url,
    )


def _token_hash(principal: PrincipalSettings) -> str | None:
    if principal.token is not None:
        return hashlib.sha256(principal.token.get_secret_value().encode()).hexdigest()
    return principal.token_sha256


class Identity:
    """Finds the principal of a request."""

    def __init__(
        self,
        settings: AuthSettings,
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._fetch = fetch
        self._listeners: list[Callable[[], None]] = []
        self._apply(settings)

    @property
    def settings(self) -> AuthSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: AuthSettings) -> None:
        if settings != self._settings:
            self._apply(settings)
            for listener in self._listeners:
                listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Has `listener` called when other settings hold."""
        self._listeners.append(listener)

    def _apply(self, settings: AuthSettings) -> None:
        self._settings = settings
        self._owners = {bytes.fromhex(hex): name for name, hex in settings.token_hashes.items()}
        self._keys = SigningKeys(settings.jwt, self._fetch, self._clock) if settings.jwt else None
        self._verified: TLRUCache[bytes, Verified] = TLRUCache(
            MAX_REMEMBERED,
            ttu=lambda digest, verified, now: min(verified[1], now + VERIFIED_SECONDS),
            timer=self._clock,
        )

    async def identify(self, fields: Fields) -> Principal:
        """The principal of a request with these headers. Raises Unauthenticated."""
        settings = self._settings
        if settings.mode == "none":
            return settings.principals.get("local") or Principal("local", admin=True)
        token = bearer_token(fields.get(b"authorization"))
        digest = hashlib.sha256(token).digest()
        if settings.mode == "tokens":
            return self._owner_of(digest)
        verified = self._verified.get(digest)
        if verified is None:
            verified = self._verified[digest] = await self._verify(token)
        return verified[0]

    def _owner_of(self, digest: bytes) -> Principal:
        # How long looking a hash up takes says nothing of the token that it is the hash of.
        owner = self._owners.get(digest)
        if owner is None:
            raise Unauthenticated("The token is not known")
        return self._settings.principals.get(owner) or Principal(owner)

    async def _verify(self, token: bytes) -> Verified:
        settings, keys = self._settings.jwt, self._keys
        if settings is None or keys is None:
            raise Unauthenticated("No issuer is configured")
        try:
            claims = jwt.decode(
                token,
                await keys.key_of(token),
                algorithms=ALGORITHMS,
                issuer=settings.issuer,
                audience=settings.audience,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated("The token could not be verified") from error
        return _claimed(claims, settings, self._settings.principals), float(claims["exp"])

    def challenge(self, presented: bool) -> bytes:
        """The WWW-Authenticate value for a request that was not let in."""
        parts = ['error="invalid_token"'] if presented else []
        if self._settings.mode == "jwt":
            parts.append(f'resource_metadata="{self._settings.public_url}{METADATA_PATH}/mcp"')
        return ("Bearer " + ", ".join(parts)).strip().encode()

    def resource_metadata(self) -> dict[str, Any] | None:
        """The protected-resource metadata document, in jwt mode."""
        settings = self._settings
        if settings.jwt is None:
            return None
        return {
            "resource": f"{settings.public_url}/mcp",
            "authorization_servers": [settings.jwt.issuer],
            "bearer_methods_supported": ["header"],
        }


def bearer_token(authorization: bytes | None) -> bytes:
    """The token of an Authorization header. Raises Unauthenticated."""
    scheme, _, token = (authorization or b"").partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        raise Unauthenticated("A bearer token is required")
    return token.strip()


def _claimed(
    claims: Mapping[str, Any], settings: AuthMode, known: Mapping[str, Principal]
) -> Principal:
    """The principal that a token names, with what its claims say over what is configured."""
    name = claims.get(settings.principal_claim)
    if not isinstance(name, str) or not name:
        raise Unauthenticated(f"The token has no usable claim {settings.principal_claim}")
    changes: dict[str, Any] = {}
    if settings.role_claim:
        changes["role"] = _text(claims.get(settings.role_claim))
    if settings.organization_claim:
        changes["organization"] = _text(claims.get(settings.organization_claim))
    if settings.admin_claim:
        changes["admin"] = claims.get(settings.admin_claim) is True
    return replace(known.get(name) or Principal(name), **changes)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


class SigningKeys:
    """The public keys of one issuer, by key id: fetched when needed and kept for a while.

    A token signed with a key we have not seen makes us look again, at most once a minute, so that
    nobody can make us hammer the issuer by inventing key ids. When the issuer can't be reached the
    keys we have stay good.
    """

    def __init__(self, settings: AuthMode, fetch: Fetch | None, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str | None, Key] = {}
        self._looked = float("-inf")
        self._lock = asyncio.Lock()

    async def key_of(self, token: bytes) -> Key:
        """The key a token says it was signed with. Raises jwt.PyJWTError if there is none."""
        kid = jwt.get_unverified_header(token).get("kid")
        async with self._lock:
            enough = VERIFIED_SECONDS if self._find(kid) is None else SIGNING_KEYS_KEPT_SECONDS
            if self._clock() - self._looked >= enough:
                self._looked = self._clock()
                await self._refresh()
        if (key := self._find(kid)) is None:
            raise jwt.InvalidKeyError("no such key")
        return key

    def _find(self, kid: str | None) -> Key | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _refresh(self) -> None:
        file, url = self._settings.jwks_file, self._settings.jwks_url
        try:
            if file is not None:
                self._keys = _read_keys(await asyncio.to_thread(Path(file).read_bytes))
            elif url is not None and self._fetch is not None:
                self._keys = _read_keys(await self._fetch(url))
        except Exception as error:  # the issuer's answer is not ours to trust or to crash on
            log.warning("jwks_not_loaded", error=type(error).__name__)


def _read_keys(document: bytes) -> dict[str | None, Key]:
    """The usable keys of a JWKS document: public ones, meant for signatures."""
    keys: dict[str | None, Key] = {}
    for entry in orjson.loads(document)["keys"]:
        if entry.get("kty") in ("RSA", "EC", "OKP") and entry.get("use", "sig") == "sig":
            with suppress(jwt.PyJWTError):  # one key we can't read must not cost the others
                key = jwt.PyJWK.from_dict(entry)
                # A key that names its algorithm is good for that one only; one that doesn't is good
                # for any its kind allows, where PyJWT would settle on a default.
                keys[entry.get("kid")] = key if "alg" in entry else key.key
    if not keys:
        raise ValueError("no usable key")
    return keys
