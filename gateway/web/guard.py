"""HTTP at the rim: what every request has to pass, who is asking, how answers are written.

Host and Origin are checked on every path: a web page that rebinds its own name to our address, or
simply posts to us, is refused before a token is looked at. Bodies have a size and a deadline,
because the server underneath has neither. A refusal here is an HTTPException; each edge words it in
its own shape (JSON-RPC for MCP, `{"error": …}` for REST).

`Identity.identify` is the one way from a request's headers to its principal: a bearer token we know
by its hash, a JWT we can verify, or nobody in particular. Only hashes of tokens are ever held. A
JWT is verified against the issuer's keys with asymmetric algorithms only, and remembered by its
hash until it expires, a minute at most. Other settings forget everything remembered: a removed
token ends with its next request or stream check.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import orjson
import structlog
from cachetools import TLRUCache
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as HttpScope

from gateway.config.settings import AuthMode, PrincipalSettings, Settings
from gateway.errors import Unauthenticated
from gateway.limits import (
    MAX_BODY_BYTES,
    MAX_REMEMBERED,
    MOMENT_SECONDS,
    PING_SECONDS,
    REQUEST_SECONDS,
    SEND_SECONDS,
    SIGNING_KEYS_KEPT_SECONDS,
    VERIFIED_SECONDS,
)
from gateway.model import Principal
from gateway.policy.access import configured_principal

Fields = Mapping[bytes, bytes]
HeaderLines = Iterable[tuple[bytes, bytes]]
Fetch = Callable[[str], Awaitable[bytes]]
Key = Any  # what PyJWT takes: a PyJWK, or a public key of `cryptography`
Verified = tuple[Principal, float]  # until when its token is good

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
METADATA_PATH = "/.well-known/oauth-protected-resource"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
JSON_TYPE = b"application/json"

log = structlog.get_logger(__name__)

# Two copies of one of these would be read differently by different readers.
_SINGLE = frozenset(
    (b"host", b"origin", b"authorization", b"content-type", b"content-length", b"mcp-session-id")
)


# --- Host and Origin ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostRules:
    """Which Host and Origin values are ours, beyond the loopback names with our own port."""

    hosts: frozenset[bytes]
    origins: frozenset[bytes]


def host_rules(
    public_url: str, allowed_hosts: Iterable[str] = (), allowed_origins: Iterable[str] = ()
) -> HostRules:
    """The rules for a server that the world knows by `public_url`."""
    url = urlsplit(public_url)
    hosts = {host.lower().encode() for host in allowed_hosts}
    origins = {origin.lower().rstrip("/").encode() for origin in allowed_origins}
    default_port = {"http": 80, "https": 443}.get(url.scheme)
    name = (url.hostname or "").lower()
    name = f"[{name}]" if ":" in name else name
    port = url.port or default_port
    hosts.add(f"{name}:{port}".encode())
    origins.add(f"{url.scheme}://{name}:{port}".encode())
    if port == default_port:
        hosts.add(name.encode())
        origins.add(f"{url.scheme}://{name}".encode())
    return HostRules(frozenset(hosts), frozenset(origins))


def check_host(rules: HostRules, scope: HttpScope, fields: Fields) -> None:
    """Refuses a Host or Origin that is not ours."""
    server = scope.get("server")
    port = server[1] if server else None
    if not _is_own_host(rules, port, fields.get(b"host", b"")):
        raise HTTPException(421, "Invalid Host header")
    origin = fields.get(b"origin")
    if origin is None:
        return
    scheme, _, host = origin.lower().partition(b"://")
    own_pages = _loopback_hosts(port) if scheme == b"http" else frozenset[bytes]()
    if host not in own_pages and not _is_allowed(origin.lower(), rules.origins):
        raise HTTPException(403, "Invalid Origin header")


@lru_cache(maxsize=64)
def _is_own_host(rules: HostRules, port: int | None, host: bytes) -> bool:
    return _is_allowed(host.lower(), rules.hosts, _loopback_hosts(port))


def _loopback_hosts(port: int | None) -> frozenset[bytes]:
    names = {f"{name}:{port}" for name in LOOPBACK_NAMES}
    if port == 80:
        names.update(LOOPBACK_NAMES)
    return frozenset(name.encode() for name in names)


def _is_allowed(value: bytes, *allowed: frozenset[bytes]) -> bool:
    """Whether the value is listed, or an entry `name:*` covers it."""
    name, _, port = value.rpartition(b":")
    any_port = name + b":*" if port.isdigit() else value
    return any(value in values or any_port in values for values in allowed)


# --- headers and bodies ---------------------------------------------------------------------------


def fold(lines: HeaderLines) -> dict[bytes, bytes]:
    """Header lines as a mapping; a copy too many of a header that must be single is refused.

    Blanks around a value are no part of it, and the parser underneath leaves those after it.
    """
    lines = lines if isinstance(lines, list) else list(lines)
    fields = {name: value.strip() for name, value in lines}
    if len(fields) == len(lines):
        return fields
    seen: dict[bytes, bytes] = {}
    for name, value in lines:
        if name in seen and name in _SINGLE:
            raise HTTPException(400, f"{name.decode('latin-1')} header appears more than once")
        seen[name] = seen[name] + b", " + value.strip() if name in seen else value.strip()
    return seen


def require_json(fields: Fields) -> None:
    """Refuses a body that does not say it is JSON."""
    content_type = fields.get(b"content-type", b"")
    if content_type != JSON_TYPE and content_type.split(b";")[0].strip().lower() != JSON_TYPE:
        raise HTTPException(415, "Unsupported Media Type: Content-Type must be application/json")


_CLOSE = {"connection": "close"}  # the rest of a body that was not read is still on its way


async def read_body(
    fields: Fields,
    receive: Receive,
    limit: int = MAX_BODY_BYTES,
    seconds: float = REQUEST_SECONDS,
) -> bytes:
    """The whole body, within its limit and its time. A client that left raises ConnectionError."""
    too_large = HTTPException(413, f"Request body too large: at most {limit} bytes", _CLOSE)
    declared = fields.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    chunks: list[bytes] = []  # joined once: adding to what is there would copy it every time
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError("the client left before its request was complete")
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > limit:
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise HTTPException(408, "The request was not complete in time", _CLOSE) from None


# --- who is asking --------------------------------------------------------------------------------


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
        self._fetch = fetch
        self._listeners: list[Callable[[], None]] = []
        self._known: tuple[object, ...] = ()
        self.follow(settings, public_url)

    def follow(self, settings: Settings, public_url: str) -> None:
        """Goes by these settings from now on, and forgets what was found out under others."""
        known, self._known = self._known, (settings.auth, settings.principals, public_url)
        if known == self._known:
            return
        self.auth, self._public_url = settings.auth, public_url
        tables = settings.principals
        self.principals = {name: configured_principal(name, each) for name, each in tables.items()}
        hashes = {name: _token_hash(each) for name, each in tables.items()}
        self.token_hashes = {name: digest for name, digest in hashes.items() if digest}
        self._owners = {bytes.fromhex(digest): name for name, digest in self.token_hashes.items()}
        self._keys = SigningKeys(settings.auth, self._fetch, self._clock)
        self._verified: TLRUCache[bytes, Verified] = TLRUCache(
            MAX_REMEMBERED,
            ttu=lambda digest, verified, now: min(verified[1], now + VERIFIED_SECONDS),
            timer=self._clock,
        )
        for listener in self._listeners:
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Has `listener` called when other settings hold."""
        self._listeners.append(listener)

    async def identify(self, fields: Fields) -> Principal:
        """The principal of a request with these headers. Raises Unauthenticated."""
        mode = self.auth.mode
        if mode == "none":
            return self.principals.get("local") or Principal("local", admin=True)
        token = bearer_token(fields.get(b"authorization"))
        digest = hashlib.sha256(token).digest()
        if mode == "tokens":
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
        return self.principals[owner]

    async def _verify(self, token: bytes) -> Verified:
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
        return _claimed(claims, self.auth, self.principals), float(claims["exp"])

    def challenge(self, presented: bool) -> bytes:
        """The WWW-Authenticate value for a request that was not let in."""
        parts = ['error="invalid_token"'] if presented else []
        if self.auth.mode == "jwt":
            parts.append(f'resource_metadata="{self._public_url}{METADATA_PATH}/mcp"')
        return ("Bearer " + ", ".join(parts)).strip().encode()

    def resource_metadata(self) -> dict[str, Any] | None:
        """The protected-resource metadata document, in jwt mode."""
        if self.auth.mode != "jwt":
            return None
        return {
            "resource": f"{self._public_url}/mcp",
            "authorization_servers": [self.auth.issuer],
            "bearer_methods_supported": ["header"],
        }


def _token_hash(principal: PrincipalSettings) -> str | None:
    if principal.token is not None:
        return hashlib.sha256(principal.token.get_secret_value().encode()).hexdigest()
    return principal.token_sha256


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


# --- answers --------------------------------------------------------------------------------------


async def respond(send: Send, status: int, body: bytes = b"", headers: HeaderLines = ()) -> None:
    """Sends one whole answer: JSON, or nothing."""
    lines = [(b"content-length", b"%d" % len(body)), *headers]
    if body:
        lines.append((b"content-type", JSON_TYPE))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


# --- server-sent events ---------------------------------------------------------------------------

PING = b": ping\n\n"
EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

Say = Callable[[bytes], Awaitable[None]]
Step = Callable[[Say], Awaitable[bool]]  # says what is new; False: there will be no more


def event_frame(data: bytes, kind: str = "message", id: str | int | None = None) -> bytes:
    """One server-sent event; without a kind one that has no name."""
    head = ("" if id is None else f"id: {id}\n") + (f"event: {kind}\n" if kind else "")
    lines = b"".join(b"data: %b\n" % line for line in data.splitlines() or (b"",))
    return b"%b%b\n" % (head.encode(), lines)


class EventStream(Response):
    """Server-sent events to one reader: a step, then sleep until woken, while both sides want.

    Nothing is queued here. A step looks at what there is and says what is new, at the reader's own
    pace; a reader that takes nothing for a while is let go, and comes back by itself. `leave` is
    called when the stream is over, whoever ended it.
    """

    def __init__(
        self,
        step: Step,
        woken: asyncio.Event,
        leave: Callable[[], None],
        rest: float = 0.0,  # between two steps: a burst of news is one step
    ) -> None:
        super().__init__()
        self._step = step
        self._woken = woken
        self._leave = leave
        self._rest = rest

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.create_task(self._write(send)), asyncio.create_task(_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        said = time.monotonic()

        async def say(body: bytes) -> None:
            nonlocal said
            if body:
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                said = time.monotonic()

        headers = [*EVENT_STREAM_HEADERS, (b"x-content-type-options", b"nosniff")]
        with suppress(TimeoutError, OSError):  # the reader takes nothing, or has gone
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await say(b"retry: 2000\n\n")
            while await self._step(say):
                if time.monotonic() - said > PING_SECONDS:
                    await say(PING)
                await asyncio.sleep(self._rest)
                await self._sleep()
            await send({"type": "http.response.body", "body": b""})

    async def _sleep(self) -> None:
        """Until there may be something new; at most so long, since a wake-up may be lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                await self._woken.wait()
        self._woken.clear()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
