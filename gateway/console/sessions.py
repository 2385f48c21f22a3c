"""Who is signed in to the console: a sealed cookie, checked against what is configured now.

The cookie holds the principal and a proof of the token it signed in with. A principal that was
removed, or has another token, is signed out by its next request. The link that is printed at start
is sealed too and used up in the store, so that it works once on whichever process it reaches.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
from dataclasses import dataclass
from typing import Any

import jwt
from starlette.responses import Response

from gateway.errors import Unauthenticated
from gateway.limits import LINK_SECONDS, SIGNED_IN_SECONDS
from gateway.model import Principal
from gateway.store.cluster import first_use, is_ended
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.web.identity import Identity

COOKIE = "gateway_console"
LINK, SESSION = "console link", "console session"  # what is sealed; each ends at its second value


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """One sign-in."""

    id: str
    principal: Principal
    expires: float
    by: str = "token"  # what proved the person: a token, or an OpenID provider

    @property
    def csrf(self) -> str:
        """What every form of this session carries; it says nothing about the cookie."""
        return hashlib.sha256(f"csrf {self.id}".encode()).hexdigest()

    def owns(self, presented: str) -> bool:
        """Whether a form came from a page of this session."""
        return hmac.compare_digest(self.csrf.encode(), presented.encode("utf-8", "replace"))


class ConsoleSessions:
    """Opens, checks and ends sessions."""

    def __init__(self, identity: Identity, seal: Seal, db: Database) -> None:
        self._identity = identity
        self._seal = seal
        self._db = db

    def link(self) -> str | None:
        """What goes behind `?link=`: once, for 15 minutes; None: there is no admin to be."""
        if first_admin(self._identity) is None:
            return None
        return self._seal.seal_values(LINK, secrets.token_hex(16), time.time() + LINK_SECONDS)

    async def open_by_link(self, link: str) -> str:
        """The cookie for a link that was not used yet. Raises Unauthenticated, as all do here."""
        id, expires = self._opened(link, LINK)
        principal = first_admin(self._identity)
        used_now = await first_use(self._db, id, expires)
        if principal is None or not used_now:
            raise Unauthenticated("the link was used already")
        return self._cookie(principal)

    async def open_by_token(self, token: str) -> str:
        """The cookie for a token that MCP and REST would take too."""
        fields = {b"authorization": b"Bearer " + token.strip().encode("utf-8", "replace")}
        principal = await self._identity.identify(fields)
        until = _expiry(token) if self._identity.auth.mode == "jwt" else math.inf
        return self._cookie(principal, until)

    def open_for(self, person: Principal) -> str:
        """The cookie for a person whom the OpenID provider has signed in."""
        return self._cookie(person, by="oidc")

    async def current(self, cookie: str | None) -> ConsoleSession:
        """The session of a cookie, if it still holds."""
        id, expires, name, proof, claimed = self._opened(cookie or "", SESSION)
        principal = self._identity.person(name, claimed)
        same = hmac.compare_digest(proof, self._proof(name))
        if principal is None or not same or await is_ended(self._db, id):
            raise Unauthenticated("the session is over")
        return ConsoleSession(id, principal, expires, claimed["by"])

    async def end(self, session: ConsoleSession) -> None:
        """Signs out, everywhere."""
        await first_use(self._db, session.id, session.expires)

    def _cookie(self, principal: Principal, until: float = math.inf, by: str = "token") -> str:
        expires = min(time.time() + SIGNED_IN_SECONDS, until)
        claimed = {name: getattr(principal, name) for name in ("role", "organization", "admin")}
        claimed["by"] = by
        whose = (principal.name, self._proof(principal.name), claimed)
        return self._seal.seal_values(SESSION, secrets.token_hex(16), expires, *whose)

    def _proof(self, name: str) -> str:
        identity = self._identity
        bound = f"{identity.auth.mode} {identity.token_hashes.get(name, '')}"
        return hashlib.sha256(f"console {name} {bound}".encode()).hexdigest()

    def _opened(self, text: str, purpose: str) -> list[Any]:
        values = self._seal.open_values(purpose, text)
        if values is None or values[1] <= time.time():
            raise Unauthenticated(f"this is no {purpose}, or it is too old")
        return values


def first_admin(identity: Identity) -> Principal | None:
    """Whom the printed link signs in: `local` without tokens, else the first configured admin."""
    if identity.auth.mode == "none":
        return identity.local
    return next((each for each in identity.principals.values() if each.admin), None)


def set_session_cookie(response: Response, cookie: str, public_url: str) -> None:
    """Signs a browser in, for the console and for the front door.

    Lax, since a client sends the browser to the front door from elsewhere; what changes anything is
    a form, which proves its page by a token of the session.
    """
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(SIGNED_IN_SECONDS),
        path="/",
        secure=public_url.startswith("https://"),
        httponly=True,
        samesite="lax",
    )


def _expiry(token: str) -> float:
    """When a token that was verified expires."""
    return float(jwt.decode(token.strip(), options={"verify_signature": False})["exp"])
