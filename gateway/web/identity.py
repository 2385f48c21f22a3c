"""Who is asking: a bearer token we know by its hash, a JWT we can verify, or nobody in particular.

Only hashes of tokens are ever held. A presented token is hashed and compared with every known hash
in constant time; what was found out is remembered by the hash, so that the next request costs one
lookup. A JWT is verified against the issuer's keys with asymmetric algorithms only, and remembered
until it expires, a minute at most. Settings are swapped whole (`identity.settings = …`), which
forgets everything remembered: a removed token ends with its next request or stream check.

The issuer's public keys, fetched when needed and kept for a while.

A token signed with a key we have not seen makes us look again, at most once a minute, so that
nobody can make us hammer the issuer by inventing key ids. When the issuer can't be reached the keys
we have stay good.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jwt
import orjson
import structlog
from jwt.types import JWKDict

from gateway.config.settings import PrincipalSettings, Settings
from gateway.errors import Unauthenticated
from gateway.limits import MAX_REMEMBERED
from gateway.model import Principal
from gateway.policy.access import configured_principal
from gateway.web.guard import Fields

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


ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
MAX_TOKEN_BYTES = 16 * 1024
REMEMBER_SECONDS = 60.0
MAX_NAME_CHARS = 256
METADATA_PATH = "/.well-known/oauth-protected-resource"

Fetch = Callable[[str], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """How a JWT is verified and which of its claims say who it is."""

    issuer: str
    audience: str
    jwks_url: str | None = None
    jwks_file: str | None = None
    principal_claim: str = "sub"
    role_claim: str | None = None
    organization_claim: str | None = None
    admin_claim: str | None = None


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Everything identity needs to know; the principals carry what configuration says of them."""

    mode: Literal["tokens", "jwt", "none"] = "none"
    principals: Mapping[str, Principal] = field(default_factory=dict)
    token_hashes: Mapping[str, str] = field(default_factory=dict)  # principal → sha256, hex
    jwt: JwtSettings | None = None
    public_url: str = ""


@dataclass(frozen=True, slots=True)
class _Remembered:
    principal: Principal
    until: float


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
            for listener in list(self._listeners):
                listener()

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called when other settings hold; returns how to stop it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _apply(self, settings: AuthSettings) -> None:
        self._settings = settings
        self._remembered: dict[bytes, _Remembered] = {}
        self._hashes = tuple(
            (bytes.fromhex(digest), name) for name, digest in settings.token_hashes.items()
        )
        self._keys = (
            Keys(settings.jwt.jwks_url, settings.jwt.jwks_file, self._fetch, self._clock)
            if (settings.jwt)
            else None
        )

    async def identify(self, fields: Fields) -> Principal:
        """The principal of a request with these headers. Raises Unauthenticated."""
        if self._settings.mode == "none":
            return self._settings.principals.get("local") or Principal("local", admin=True)
        token = bearer_token(fields.get(b"authorization"))
        digest = hashlib.sha256(token).digest()
        remembered = self._remembered.get(digest)
        if remembered is not None and self._clock() < remembered.until:
            return remembered.principal
        found = (
            self._known(digest) if self._settings.mode == "tokens" else await self._verify(token)
        )
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.pop(next(iter(self._remembered)))
        self._remembered[digest] = found
        return found.principal

    def _known(self, digest: bytes) -> _Remembered:
        owner = None
        for known, name in self._hashes:  # to the end: the time taken says nothing
            if hmac.compare_digest(known, digest):
                owner = name
        if owner is None:
            raise Unauthenticated("The token is not known")
        principal = self._settings.principals.get(owner) or Principal(owner)
        return _Remembered(principal, float("inf"))

    async def _verify(self, token: bytes) -> _Remembered:
        settings = self._settings.jwt
        if settings is None or self._keys is None:
            raise Unauthenticated("No issuer is configured")
        try:
            key = await self._keys.key_of(token)
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                issuer=settings.issuer,
                audience=settings.audience,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated("The token could not be verified") from error
        until = min(float(claims["exp"]), self._clock() + REMEMBER_SECONDS)
        return _Remembered(_principal_of(claims, settings, self._settings.principals), until)

    def challenge(self, presented: bool) -> bytes:
        """The WWW-Authenticate value for a request that was not let in."""
        parts = ['error="invalid_token"'] if presented else []
        if self._settings.mode == "jwt":
            parts.append(f'resource_metadata="{self._settings.public_url}{METADATA_PATH}/mcp"')
        return ("Bearer " + ", ".join(parts)).strip().encode()

    def resource_metadata(self) -> dict[str, Any] | None:
        """The protected-resource metadata document, in jwt mode."""
        settings = self._settings
        if settings.mode != "jwt" or settings.jwt is None:
            return None
        return {
            "resource": f"{settings.public_url}/mcp",
            "authorization_servers": [settings.jwt.issuer],
            "bearer_methods_supported": ["header"],
        }


def auth_settings(settings: Settings, public_url: str) -> AuthSettings:
    """What configuration says about identity, as this module wants it."""
    auth = settings.auth
    hashes = {
        name: _token_hash(principal)
        for name, principal in settings.principals.items()
        if principal.token_sha256 or principal.token
    }
    verified = None
    if auth.mode == "jwt" and auth.issuer and auth.audience:
        verified = JwtSettings(
            **{key: getattr(auth, key) for key in JwtSettings.__dataclass_fields__}
        )
    principals = {
        name: configured_principal(name, one) for name, one in settings.principals.items()
    }
    return AuthSettings(auth.mode, principals, hashes, verified, public_url)


def _token_hash(principal: PrincipalSettings) -> str:
    if principal.token is not None:
        return hashlib.sha256(principal.token.get_secret_value().encode()).hexdigest()
    return principal.token_sha256 or ""


def bearer_token(authorization: bytes | None) -> bytes:
    """The token of an Authorization header. Raises Unauthenticated."""
    if authorization is None:
        raise Unauthenticated("A bearer token is required")
    scheme, _, token = authorization.partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token or len(token) > MAX_TOKEN_BYTES:
        raise Unauthenticated("A bearer token is required")
    return token


def _principal_of(
    claims: Mapping[str, Any], settings: JwtSettings, known: Mapping[str, Principal]
) -> Principal:
    name = claims.get(settings.principal_claim)
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_CHARS:
        raise Unauthenticated(f"The token has no usable claim {settings.principal_claim}")
    principal = known.get(name) or Principal(name)
    changes: dict[str, Any] = {}
    if settings.role_claim:
        changes["role"] = _text(claims.get(settings.role_claim))
    if settings.organization_claim:
        changes["organization"] = _text(claims.get(settings.organization_claim))
    if settings.admin_claim:
        changes["admin"] = claims.get(settings.admin_claim) is True
    return replace(principal, **changes)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
