"""Clients that ask to be let in: known by configuration, by a document, or by registration.

A client id that is an https address names a document in which the client describes itself (a
Client ID Metadata Document); it is fetched through the gateway's one way out, without redirects,
and kept for a while. Other ids are those of `[clients]` in config.toml, and those that we gave out
to clients that registered themselves (RFC 7591); those never look like an address.

A redirect must be one the client named, exactly; only the port of a loopback address is free, since
programs on a person's machine take any free port (RFC 8252).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import jwt
import orjson
from cachetools import TLRUCache

from gateway.config.settings import LOOPBACK_HOSTS, ClientSettings
from gateway.errors import GatewayError
from gateway.limits import (
    CLIENT_DOCUMENT_BYTES,
    CLIENT_KEPT_SECONDS,
    CLIENT_LONGEST_KEPT_SECONDS,
    FETCH_SECONDS,
    MAX_OAUTH_CLIENTS,
    MAX_REMEMBERED,
    NAME_CHARS,
)
from gateway.model import json_bytes, new_id
from gateway.naming import cut, visible
from gateway.oauth.grants import OAuthError
from gateway.outbound.client import Answer, Egress, Request
from gateway.store.cluster import first_use
from gateway.store.database import Database
from gateway.store.oauth import add_client, get_client
from gateway.web.identity import ALGORITHMS, read_keys

ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_FORBIDDEN_SCHEMES = frozenset(
    "http javascript data file blob vbscript about view-source filesystem ws wss ftp".split()
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_PLAIN = re.compile(r"[\x21-\x7e]{1,2000}")
_SECRET_METHODS = ("client_secret_basic", "client_secret_post")


@dataclass(frozen=True, slots=True)
class Client:
    """A client, known in one of the three ways."""

    id: str
    name: str
    redirect_uris: tuple[str, ...]
    method: str = "none"  # how it proves itself at the token endpoint
    secret_sha256: str | None = None
    jwks: Mapping[str, Any] | None = None
    jwks_uri: str | None = None
    principal: str | None = None  # whose rights it has by itself (client credentials)

    @property
    def host(self) -> str:
        """The host that vouches for the client; "" where nobody does."""
        return (urlsplit(self.id).netloc or "") if self.id.startswith("https://") else ""

    @property
    def digest(self) -> str:
        """Changes when the client describes itself otherwise than before."""
        description = [self.name, sorted(self.redirect_uris), self.method, self.jwks, self.jwks_uri]
        return hashlib.sha256(json_bytes(description)).hexdigest()

    @property
    def is_only_local(self) -> bool:
        """Whether any program on a person's machine could pose as this client."""
        return not any(uri.startswith("https://") for uri in self.redirect_uris)

    def redirect(self, redirect_uri: str | None) -> str | None:
        """The redirect to use, if it is one of the client's own."""
        if redirect_uri is None:
            return self.redirect_uris[0] if len(self.redirect_uris) == 1 else None
        if not is_usable_redirect(redirect_uri):
            return None
        portless = _without_port(redirect_uri)
        for uri in self.redirect_uris:
            if uri == redirect_uri or (portless is not None and portless == _without_port(uri)):
                return redirect_uri
        return None


def is_usable_redirect(uri: str) -> bool:
    """Whether a code may be sent there at all: https, this machine, or an app's own scheme."""
    if not _PLAIN.fullmatch(uri) or "#" in uri or "\\" in uri:
        return False
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if "@" in parts.netloc:
        return False
    if parts.scheme == "https":
        return bool(host)
    if parts.scheme == "http":
        return host in LOOPBACK_HOSTS
    return bool(_SCHEME.fullmatch(parts.scheme)) and parts.scheme not in _FORBIDDEN_SCHEMES


def _without_port(uri: str) -> str | None:
    """A redirect to this machine without its port; None for any other."""
    parts = urlsplit(uri)
    if parts.scheme != "http" or parts.hostname not in LOOPBACK_HOSTS:
        return None
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return urlunsplit(parts._replace(netloc=host))


class Clients:
    """Finds clients, takes their registrations, and checks that they are who they say."""

    def __init__(
        self,
        db: Database,
        egress: Egress,
        configured: Callable[[], Iterable[ClientSettings]],
        registration: Callable[[], Sequence[str]],
    ) -> None:
        self._db = db
        self._egress = egress
        self._configured = configured
        self._registration = registration
        self._documents: TLRUCache[str, tuple[Client, float]] = TLRUCache(
            MAX_REMEMBERED, ttu=lambda id, cached, now: cached[1], timer=time.monotonic
        )

    async def find(self, id: str) -> Client | None:
        """The client of this id, if there is one. Raises OAuthError where its document is bad."""
        for settings in self._configured():
            if settings.client_id == id:
                return _configured_client(settings)
        if id.startswith("https://"):
            return await self._find_by_document(id) if "metadata" in self._registration() else None
        metadata = await get_client(self._db, id)
        return None if metadata is None else _registered_client(id, metadata)

    # --- metadata documents -----------------------------------------------------------------------

    async def _find_by_document(self, id: str) -> Client:
        _check_document_address(id)
        if (cached := self._documents.get(id)) is not None:
            return cached[0]
        answer = await self._fetch(id)
        client = _client_of_document(id, answer)
        self._documents[id] = client, time.monotonic() + _cache_seconds(answer)
        return client

    async def _fetch(self, address: str) -> Answer:
        request = Request("GET", address, (("Accept", "application/json"),))
        seconds, most = FETCH_SECONDS, CLIENT_DOCUMENT_BYTES
        try:
            answer = await self._egress.send(request, deadline=seconds, max_bytes=most)
        except GatewayError as error:
            raise _bad_document(error.message) from error
        if answer.status != 200:
            raise _bad_document(f"its server answered {answer.status}")
        if answer.truncated:
            raise _bad_document(f"it is larger than {most} bytes")
        return answer

    # --- registration -----------------------------------------------------------------------------

    async def register(self, body: object) -> dict[str, Any]:
        """Keeps the metadata that a client gives; the answer of RFC 7591. Raises OAuthError."""
        if "dynamic" not in self._registration():
            raise OAuthError("access_denied", "clients can't register themselves here", 403)
        if not isinstance(body, dict):
            raise _bad_metadata("the body must be a JSON object")
        uris = body.get("redirect_uris")
        if not isinstance(uris, list) or not 1 <= len(uris) <= 20:
            raise OAuthError("invalid_redirect_uri", "give 1 to 20 redirect_uris")
        for uri in uris:
            if not isinstance(uri, str) or not is_usable_redirect(uri):
                words = "must be https, http on this machine, or an app's own scheme"
                raise OAuthError("invalid_redirect_uri", f"{cut(str(uri), 200)!r}: {words}")
        # Browsers' clients come without a method; a secret would be no secret there.
        method = body.get("token_endpoint_auth_method") or "none"
        if method not in ("none", *_SECRET_METHODS):
            raise _bad_metadata(f"token_endpoint_auth_method {cut(str(method), 50)!r} is not known")
        now, secret = time.time(), secrets.token_urlsafe(32)
        metadata = {
            "client_name": _name_of(body.get("client_name"), "A client without a name"),
            "redirect_uris": uris,
            "token_endpoint_auth_method": method,
        }
        with_secret = method in _SECRET_METHODS
        digest = {"secret_sha256": _sha256(secret)} if with_secret else {}
        id = f"dyn-{new_id(now)}"
        await add_client(self._db, id, {**metadata, **digest}, now, MAX_OAUTH_CLIENTS)
        answer = {
            "client_id": id,
            "client_id_issued_at": int(now),
            **metadata,
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
        }
        if with_secret:
            answer |= {"client_secret": secret, "client_secret_expires_at": 0}
        return answer

    # --- proof ------------------------------------------------------------------------------------

    async def authenticate(
        self, form: Mapping[str, str], basic: tuple[str, str] | None, audiences: Sequence[str]
    ) -> Client:
        """The client that makes a request of the token endpoint. Raises OAuthError."""
        assertion = form.get("client_assertion")
        id = basic[0] if basic else form.get("client_id") or (assertion and _subject(assertion))
        client = await self.find(id) if id else None
        if client is None:
            raise _wrong_client("the client is not known; it may register again")
        if "client_id" in form and form["client_id"] != client.id:
            raise _wrong_client("client_id is given twice, and differs")
        if client.method == "private_key_jwt":
            await self._check_assertion(client, form, audiences)
        elif client.method in _SECRET_METHODS:
            secret = basic[1] if basic else form.get("client_secret", "")
            if not hmac.compare_digest(_sha256(secret), client.secret_sha256 or ""):
                raise _wrong_client("the client's secret is wrong")
        return client

    async def _check_assertion(
        self, client: Client, form: Mapping[str, str], audiences: Sequence[str]
    ) -> None:
        if form.get("client_assertion_type") != ASSERTION:
            raise _wrong_client("a client_assertion is required")
        token = form.get("client_assertion", "")
        try:
            keys = read_keys(await self._keys_of(client))
            kid = jwt.get_unverified_header(token).get("kid")
            key = keys[kid] if kid in keys or len(keys) > 1 else next(iter(keys.values()))
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=list(audiences),
                issuer=client.id,
                subject=client.id,
                options={"require": ["exp", "iss", "sub", "aud", "jti"]},
            )
            expires = float(claims["exp"])
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise _wrong_client("the client's assertion could not be verified") from error
        assertion_id = _sha256(f"assertion {client.id} {claims['jti']}")
        if not await first_use(self._db, assertion_id, expires):
            raise _wrong_client("the client's assertion was used before")

    async def _keys_of(self, client: Client) -> bytes:
        if client.jwks is not None:
            return json_bytes(client.jwks)
        return (await self._fetch(client.jwks_uri or "")).body


def _configured_client(settings: ClientSettings) -> Client:
    secret = settings.client_secret.get_secret_value() if settings.client_secret else None
    return Client(
        settings.client_id or "",
        settings.display_name or settings.client_id or "",
        tuple(settings.redirect_uris),
        "client_secret_basic" if secret else "none",
        _sha256(secret) if secret else None,
        principal=settings.principal,
    )


def _registered_client(id: str, metadata: Mapping[str, Any]) -> Client:
    return Client(
        id,
        metadata["client_name"],
        tuple(metadata["redirect_uris"]),
        metadata["token_endpoint_auth_method"],
        metadata.get("secret_sha256"),
    )


def _check_document_address(id: str) -> None:
    try:
        parts = urlsplit(id)
        is_good = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    segments = parts.path.split("/") if is_good else []
    if (
        not is_good
        or not _PLAIN.fullmatch(id)
        or "@" in parts.netloc
        or "#" in id
        or not parts.path.strip("/")
        or {".", ".."} & set(segments)
    ):
        raise _bad_document("its address must be https with a path, and nothing that hides either")


def _client_of_document(id: str, answer: Answer) -> Client:
    try:
        fields = orjson.loads(answer.body)
    except ValueError:
        raise _bad_document("it is not JSON") from None
    if not isinstance(fields, dict) or fields.get("client_id") != id:
        raise _bad_document("its client_id is another than its address")
    uris, method = fields.get("redirect_uris"), fields.get("token_endpoint_auth_method") or "none"
    if not isinstance(uris, list) or not 1 <= len(uris) <= 50 or not all(map(_is_text, uris)):
        raise _bad_document("it names no redirect_uris")
    has_secret = any(name.startswith("client_secret") for name in fields)
    if has_secret or method not in ("none", "private_key_jwt"):
        raise _bad_document("a client with a document can have no secret")
    if not _is_text(fields.get("client_name")):
        raise _bad_document("it has no client_name")
    jwks, jwks_uri = fields.get("jwks"), fields.get("jwks_uri")
    keys = [] if jwks is None else jwks.get("keys") if isinstance(jwks, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise _bad_document("its jwks is no set of keys")
    if any("d" in key for key in keys):
        raise _bad_document("it holds a private key")
    if jwks_uri is not None and not str(jwks_uri).startswith("https://"):
        raise _bad_document("its jwks_uri is not https")
    usable = tuple(uri for uri in uris if is_usable_redirect(uri))
    name = _name_of(fields["client_name"], id)
    return Client(id, name, usable, method, None, jwks, jwks_uri)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _name_of(name: object, default: str) -> str:
    """A name that can't hide what it is: no control characters, no change of direction, short."""
    return cut(visible(name), NAME_CHARS) if isinstance(name, str) and name.strip() else default


_MAX_AGE = re.compile(r"max-age=(\d{1,9})")


def _cache_seconds(answer: Answer) -> float:
    """How long a document is believed: what its server says, within bounds of our own."""
    max_age = _MAX_AGE.search(answer.header("cache-control") or "")
    seconds = float(max_age[1]) if max_age else 0.0
    return min(max(seconds, CLIENT_KEPT_SECONDS), CLIENT_LONGEST_KEPT_SECONDS)


def _subject(assertion: str) -> str | None:
    """The subject that an assertion names, before it is checked."""
    try:
        subject = jwt.decode(assertion, options={"verify_signature": False}).get("sub")
    except jwt.PyJWTError:
        return None
    return subject if isinstance(subject, str) else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _bad_document(reason: str) -> OAuthError:
    return OAuthError("invalid_client", f"the client's document can't be used: {reason}")


def _bad_metadata(reason: str) -> OAuthError:
    return OAuthError("invalid_client_metadata", reason)


def _wrong_client(reason: str) -> OAuthError:
    return OAuthError("invalid_client", reason, 401)
