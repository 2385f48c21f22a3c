"""The caller's identity: by a token known by its hash, one we gave, or a JWT we can verify.

`Identity.identify` is the one way from a request's headers to its principal. Only hashes of tokens
are ever held. A JWT is verified against the issuer's keys with asymmetric algorithms only; a token
of the front door is opened with our own key, and is good for one address and until its grant is
revoked. Both are remembered by their hash until they expire, a minute at most. When the
settings change, everything remembered is forgotten: a removed token ends with its next request or
stream check.

A browser is known by a sealed cookie, checked against the present configuration. The cookie holds
the principal and a proof of the token it signed in with, so that a principal that was removed, or
has another token, is signed out by its next request. The link that is printed at start is sealed
too and used up in the store, so that it works once on whichever process it reaches.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import orjson
import structlog
from cachetools import LRUCache
from starlette.responses import Response

from gateway import limits
from gateway.config.settings import ADDRESSED, AuthMode, OAuthSettings, Settings
from gateway.errors import Unauthenticated
from gateway.model import Principal, ViewAddress
from gateway.policy.access import configured_principal
from gateway.store.cluster import first_use, is_ended
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.web.guard import Fields

Fetch = Callable[[str], Awaitable[bytes]]
SigningKey = Any  # what PyJWT takes: a PyJWK, or a public key of `cryptography`
Present = Callable[[str, str], None]  # a principal's name, and their token
OpenToken = Callable[[str], Mapping[str, Any] | None]  # the values inside one of our own tokens

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
METADATA_PATH = "/.well-known/oauth-protected-resource"
SCOPES = ("tools:read", "tools:write", "admin")  # each includes those before it

log = structlog.get_logger(__name__)


class VerifiedToken(NamedTuple):
    """A token that was checked: its principal, its end, and its address where it has only one."""

    principal: Principal
    until: float
    address: str | None = None
    grant: str = ""


@lru_cache(maxsize=256)
def view_address_of(path: str) -> ViewAddress | None:
    """The view address that a path is; None: there is no view at that path."""
    match path.removesuffix("/").split("/"):
        case ["", "mcp"]:
            return ViewAddress()
        case ["", "mcp", "bundles", names]:
            address = ViewAddress("bundles", tuple(names.split("+")))
        case ["", "mcp", "steps", workflow, step]:
            address = ViewAddress("step", (workflow, step))
        case _:
            return None
    return address if all(map(ADDRESSED.fullmatch, address.names)) else None


class Identity:
    """Finds the principal of a request."""

    def __init__(
        self,
        settings: Settings,
        public_url: str = "",
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self.fetch = fetch
        self.open_token: OpenToken = lambda token: None
        self.revoked_grants: Set[str] = frozenset()  # grants whose tokens are good no longer
        self.present: Present | None = None  # gets each caller's token, where tokens are exchanged
        self._listeners: list[Callable[[], None]] = []
        self._basis: tuple[object, ...] = ()  # the settings that the rest was made from
        self.follow(settings, public_url)

    def follow(self, settings: Settings, public_url: str) -> None:
        """Goes by these settings from now on, and forgets what was verified under older ones."""
        previous, self._basis = self._basis, (settings.auth, settings.principals, public_url)
        if previous == self._basis:
            return
        self.auth, self._public_url = settings.auth, public_url
        tables = settings.principals
        self.principals = {name: configured_principal(name, each) for name, each in tables.items()}
        hashes = {name: each.token_hash for name, each in tables.items()}
        self.token_hashes = {name: digest for name, digest in hashes.items() if digest}
        self._owners = {bytes.fromhex(digest): name for name, digest in self.token_hashes.items()}
        files = (settings.auth.jwks_file, settings.auth.jwks_url)
        self._keys = SigningKeys(*files, self.fetch, self._clock)
        self._verified_tokens: LRUCache[bytes, VerifiedToken] = LRUCache(limits.MAX_REMEMBERED)
        for listener in self._listeners:
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Has `listener` called when the settings change."""
        self._listeners.append(listener)

    async def identify(self, fields: Fields, address: str = "/mcp") -> Principal:
        """The principal of a request to this address. Raises Unauthenticated."""
        mode = self.auth.mode
        if mode == "none":
            return self.local
        token = bearer_token(fields.get(b"authorization"))
        digest = hashlib.sha256(token).digest()
        if mode == "tokens" or (mode == "oauth" and digest in self._owners):
            return self._find_owner(digest)
        verified, now = self._verified_tokens.get(digest), self._clock()
        if verified is None or verified.until <= now:
            found = self._verify_own(token) if mode == "oauth" else await self._verify_jwt(token)
            until = min(found.until, now + limits.KEEP_SECONDS)
            verified = self._verified_tokens[digest] = found._replace(until=until)
        if verified.address not in (None, address):
            raise Unauthenticated("The token is for another address")
        if verified.grant in self.revoked_grants:
            raise Unauthenticated("The token was revoked")
        if self.present is not None:
            text = token.decode("ascii", "replace")
            self.present(verified.principal.name, text)
            return replace(verified.principal, presented=text)
        return verified.principal

    def _verify_own(self, token: bytes) -> VerifiedToken:
        """One of our own tokens, opened with our own key."""
        body = self.open_token(token.decode("ascii", "replace"))
        if body is None:
            raise Unauthenticated("The token is not known, or has expired")
        principal, scopes = self.person(body["principal"], body["claimed"]), body["scope"].split()
        if principal is None:
            raise Unauthenticated("The principal of this token is no more")
        possible = {"tools:write"} | ({"admin"} if principal.admin else set())
        # Without tools:write the rest does not count: a scope includes those before it.
        withheld = frozenset(possible.difference(scopes if "tools:write" in scopes else ()))
        admin = principal.admin and "admin" not in withheld
        principal = replace(principal, admin=admin, withheld=withheld, grant=body["grant"])
        address = body["resource"].removeprefix(self._public_url)
        return VerifiedToken(principal, body["expires"], address, body["grant"])

    @property
    def local(self) -> Principal:
        """The principal of every request where no token is needed."""
        return self.principals.get("local") or Principal("local", admin=True)

    def person(self, name: str, claimed: Mapping[str, Any]) -> Principal | None:
        """The present principal of a person who signed in; None: that principal is gone.

        Claims are as they were at the sign-in; the configured rest is as it is now.
        """
        auth, configured = self.auth, self.principals.get(name)
        if auth.mode == "none":
            return self.local if name == "local" else None
        if auth.mode == "tokens" or (auth.mode == "oauth" and claimed["by"] == "token"):
            # A sign-in by token ends with that token; older grants don't name their token.
            return configured if claimed.get("proof") in (None, self.proof(name)) else None
        rules = auth.oauth or OAuthSettings() if auth.mode == "oauth" else auth
        claims = {field: claimed[field] for field in rules.by_field}
        return replace(configured or Principal(name), **claims)

    def proof(self, name: str) -> str:
        """A digest that stands for a principal's token in cookies and grants."""
        binding = f"{self.auth.mode} {self.token_hashes.get(name, '')}"
        return hashlib.sha256(f"console {name} {binding}".encode()).hexdigest()

    async def person_by_token(self, token: str) -> Principal:
        """The person whose own token this is; a token that we gave to a client does not count."""
        raw = token.encode("utf-8", "replace")
        if self.auth.mode == "oauth":
            return self._find_owner(hashlib.sha256(raw).digest())
        return await self.identify({b"authorization": b"Bearer " + raw})

    def _find_owner(self, digest: bytes) -> Principal:
        # The time of a hash's look-up tells nothing of the token that was hashed.
        owner = self._owners.get(digest)
        if owner is None:
            raise Unauthenticated("The token is not known")
        return self.principals[owner]

    async def _verify_jwt(self, token: bytes) -> VerifiedToken:
        try:
            claims = jwt.decode(
                token,
                await self._keys.key_of(token),
                algorithms=ALGORITHMS,
                issuer=self.auth.issuer,
                audience=self.auth.audience,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Unauthenticated("The token could not be verified") from error
        principal = claimed_principal(claims, self.auth, self.principals)
        return VerifiedToken(principal, float(claims["exp"]))

    def challenge(
        self, presented: bool, address: str = "/mcp", missing: Sequence[str] = ()
    ) -> bytes:
        """The WWW-Authenticate value for a request that was not let in, or lacks a scope."""
        error = "insufficient_scope" if missing else "invalid_token"
        parts = [f'error="{error}"'] if presented else []
        if self.auth.mode == "oauth":
            parts.append(f'scope="{" ".join(missing or SCOPES)}"')
        if self.auth.mode in ("jwt", "oauth"):
            where = f"{self._public_url}{METADATA_PATH}{address}"
            parts.append(f'resource_metadata="{where}"')
        return ("Bearer " + ", ".join(parts)).strip().encode()

    def resource_metadata(self, address: str) -> dict[str, Any] | None:
        """The document that names who gives tokens for an address; None: nobody does."""
        mode = self.auth.mode
        if mode not in ("jwt", "oauth"):
            return None
        document = {
            "resource": f"{self._public_url}{address}",
            "authorization_servers": [self.auth.issuer if mode == "jwt" else self._public_url],
            "bearer_methods_supported": ["header"],
        }
        return document if mode == "jwt" else {**document, "scopes_supported": list(SCOPES)}


def bearer_token(authorization: bytes | None) -> bytes:
    """The token of an Authorization header. Raises Unauthenticated."""
    scheme, _, token = (authorization or b"").partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        raise Unauthenticated("A bearer token is required")
    return token.strip()


def claimed_principal(
    claims: Mapping[str, Any], settings: AuthMode | OAuthSettings, by_name: Mapping[str, Principal]
) -> Principal:
    """The principal that a token names; its claims count over the configured values."""
    name = claims.get(settings.principal_claim)
    if not isinstance(name, str) or not name:
        raise Unauthenticated(f"The token has no usable claim {settings.principal_claim}")
    values: dict[str, Any] = {
        field: claims.get(claim) is True if field == "admin" else _text(claims.get(claim))
        for field, claim in settings.by_field.items()
    }
    return replace(by_name.get(name) or Principal(name), **values)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


@dataclass
class SigningKeys:
    """The public keys of one issuer, by key id: fetched when needed and kept for a while.

    A token signed with a key we have not seen makes us look again, at most once a minute, so that
    nobody can make us hammer the issuer by inventing key ids. When the issuer can't be reached the
    keys we have stay good.
    """

    file: str | None
    url: str | None
    fetch: Fetch | None
    clock: Callable[[], float]
    keys: dict[str | None, SigningKey] = field(default_factory=dict)
    fetched_at: float = -math.inf
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def key_of(self, token: bytes) -> SigningKey:
        """The key that a token names as its signing key. Raises jwt.PyJWTError if there is none."""
        kid = jwt.get_unverified_header(token).get("kid")
        async with self.lock:
            interval = (
                limits.KEEP_SECONDS if self._find(kid) is None else limits.SIGNING_KEYS_KEPT_SECONDS
            )
            if self.clock() - self.fetched_at >= interval:
                self.fetched_at = self.clock()
                await self._refresh()
        if (key := self._find(kid)) is None:
            raise jwt.InvalidKeyError("no such key")
        return key

    def _find(self, kid: str | None) -> SigningKey | None:
        if kid is None and len(self.keys) == 1:
            return next(iter(self.keys.values()))
        return self.keys.get(kid)

    async def _refresh(self) -> None:
        try:
            if self.file is not None:
                self.keys = read_keys(await asyncio.to_thread(Path(self.file).read_bytes))
            elif self.url is not None and self.fetch is not None:
                self.keys = read_keys(await self.fetch(self.url))
        except Exception as error:  # the issuer's answer is not ours to trust or to crash on
            log.warning("jwks_not_loaded", error=type(error).__name__)


def read_keys(document: bytes) -> dict[str | None, SigningKey]:
    """The usable keys of a JWKS document: public ones, meant for signatures."""
    keys: dict[str | None, SigningKey] = {}
    for entry in orjson.loads(document)["keys"]:
        is_public = isinstance(entry, dict) and entry.get("kty") in ("RSA", "EC", "OKP")
        if is_public and entry.get("use", "sig") == "sig":
            # One key that we can't read must not cost us the others.
            with suppress(jwt.PyJWTError, TypeError, ValueError):
                key = jwt.PyJWK.from_dict(entry)
                # A key that names its algorithm is good for that algorithm only; a key that doesn't
                # is good for all that its kind allows, where PyJWT would settle on a default.
                keys[entry.get("kid")] = key if "alg" in entry else key.key
    if not keys:
        raise ValueError("no usable key")
    return keys


# --- who is signed in at a browser ----------------------------------------------------------------

COOKIE = "gateway_console"
LINK, SESSION = "console link", "console session"  # what sealed values are for


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """One sign-in of a person at a browser."""

    id: str
    principal: Principal
    expires: float
    by: str  # what proved the person: "token", or "oidc" for an OpenID provider
    proof: str  # of the token that it was opened with

    @property
    def csrf(self) -> str:
        """The value that every form of this session carries; it says nothing about the cookie."""
        return hashlib.sha256(f"csrf {self.id}".encode()).hexdigest()

    def owns(self, presented: str) -> bool:
        """Whether a form came from a page of this session."""
        return hmac.compare_digest(self.csrf.encode(), presented.encode("utf-8", "replace"))


class ConsoleSessions:
    """Opens, checks and ends the sessions of browsers."""

    def __init__(self, identity: Identity, seal: Seal, db: Database) -> None:
        self._identity = identity
        self._seal = seal
        self._db = db

    def link(self) -> str | None:
        """The value for `?link=`, good once, for 15 minutes; None: there is no admin to sign in."""
        if first_admin(self._identity) is None:
            return None
        return self._seal.seal_values(
            LINK, secrets.token_hex(16), time.time() + limits.LINK_SECONDS
        )

    async def open_by_link(self, link: str) -> str:
        """The cookie for a link that was not used yet. Raises Unauthenticated, as all do here."""
        id, expires = self._open_values(link, LINK)
        principal = first_admin(self._identity)
        if not await first_use(self._db, id, expires) or principal is None:
            raise Unauthenticated("the link was used already")
        return self._cookie(principal)

    async def open_by_token(self, token: str) -> str:
        """The cookie for a token of the person's own, which MCP and REST would take too."""
        principal = await self._identity.person_by_token(token.strip())
        if self._identity.auth.mode != "jwt":
            return self._cookie(principal)
        claims = jwt.decode(token.strip(), options={"verify_signature": False})
        return self._cookie(principal, float(claims["exp"]))

    def open_for(self, person: Principal) -> str:
        """The cookie for a person whom the OpenID provider has signed in."""
        return self._cookie(person, by="oidc")

    async def current(self, cookie: str | None) -> ConsoleSession:
        """The session of a cookie, if it still holds."""
        id, expires, name, proof, claimed = self._open_values(cookie or "", SESSION)
        principal = self._identity.person(name, claimed)
        has_its_token = hmac.compare_digest(proof, self._identity.proof(name))
        if principal is None or not has_its_token or await is_ended(self._db, id):
            raise Unauthenticated("the session is over")
        return ConsoleSession(id, principal, expires, claimed["by"], proof)

    async def end(self, session: ConsoleSession) -> None:
        """Signs out, everywhere."""
        await first_use(self._db, session.id, session.expires)

    def _cookie(self, principal: Principal, until: float = math.inf, by: str = "token") -> str:
        expires = min(time.time() + limits.SIGNED_IN_SECONDS, until)
        claimed = {name: getattr(principal, name) for name in ("role", "organization", "admin")}
        claimed["by"] = by
        owner = (principal.name, self._identity.proof(principal.name), claimed)
        return self._seal.seal_values(SESSION, secrets.token_hex(16), expires, *owner)

    def _open_values(self, text: str, purpose: str) -> list[Any]:
        values = self._seal.open_values(purpose, text)
        if values is None or values[1] <= time.time():
            raise Unauthenticated(f"this is no {purpose}, or it is too old")
        return values


def first_admin(identity: Identity) -> Principal | None:
    """The admin that the printed link signs in: `local` without tokens, else the first one."""
    if identity.auth.mode == "none":
        return identity.local
    return next((each for each in identity.principals.values() if each.admin), None)


def set_session_cookie(response: Response, cookie: str, public_url: str) -> None:
    """Signs a browser in, for the console and for the front door.

    Lax, since a client sends the browser to the front door from elsewhere; only forms change
    anything, and each proves its page by a token of the session.
    """
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(limits.SIGNED_IN_SECONDS),
        path="/",
        secure=public_url.startswith("https://"),
        httponly=True,
        samesite="lax",
    )
