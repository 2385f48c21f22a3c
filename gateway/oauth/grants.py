"""Codes, access tokens and refresh tokens: what proves that a person let a client in.

All three are sealed, so that none can be made or changed outside, and each names its kind. A code
carries everything its grant will hold, and works once, for a minute. An access token carries the
caller, its address and its end: a request costs one look into a dictionary and no read of the
store. A revoked token is refused by every process as soon as the signal reaches it.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cryptography.fernet import InvalidToken

from gateway.limits import CODE_SECONDS, REFRESH_GRACE_SECONDS
from gateway.model import digest, new_id
from gateway.sign_in.client import challenge_of
from gateway.store.database import Database
from gateway.store.oauth import (
    Rotation,
    get_client_grant,
    list_revoked,
    open_grant,
    revoke_client_grants,
    rotate,
)
from gateway.store.secrets import Seal
from gateway.store.tables import ClientGrant

TokenAnswer = Mapping[str, Any]


class OAuthError(Exception):
    """An error in OAuth's own words: a code of RFC 6749 and its kin, and a sentence."""

    def __init__(self, code: str, description: str, status: int = 400) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.status = status


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """A client's request to a person, once its client id and redirect are known to be good."""

    client_id: str
    client_name: str
    redirect_uri: str
    state: str
    challenge: str
    resource: str
    scope: str


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The lifetimes of tokens."""

    access_seconds: float
    refresh_seconds: float


class Grants:
    """Gives, exchanges, checks and revokes the codes and tokens of clients."""

    def __init__(
        self,
        db: Database,
        seal: Seal,
        lifetimes: Callable[[], Lifetimes],
        person: Callable[[str, Mapping[str, Any]], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._db, self._seal, self._lifetimes = db, seal, lifetimes
        self._person, self._clock = person, clock
        self.revoked_ids: set[str] = set()

    async def load(self) -> None:
        """Reads which grants were revoked while their access tokens may live."""
        since = self._clock() - self._lifetimes().access_seconds
        self.revoked_ids |= set(await list_revoked(self._db, since))

    def refuse_tokens(self, id: str) -> None:
        """Refuses the tokens of a grant from now on; "": signals of some may have been missed."""
        if id:
            self.revoked_ids.add(id)
        else:
            self._reloading = asyncio.ensure_future(self.load())

    # --- codes ------------------------------------------------------------------------------------

    def code(
        self, request: AuthorizationRequest, principal: str, claimed: Mapping[str, Any]
    ) -> str:
        """A code for what the person allowed."""
        return self._seal_token(
            "code",
            self._clock() + CODE_SECONDS,
            id=secrets.token_hex(16),
            request=asdict(request),
            principal=principal,
            claimed=dict(claimed),
        )

    async def exchange(
        self, code: str, client_id: str, redirect_uri: str, verifier: str, resource: str | None
    ) -> TokenAnswer:
        """The tokens for a code, its first time; a second time revokes them. Raises OAuthError."""
        body = self._open_sealed("code", code)
        if body is None or body["request"]["client_id"] != client_id:
            raise OAuthError("invalid_grant", "the code is unknown")
        request = AuthorizationRequest(**body["request"])
        if redirect_uri and redirect_uri != request.redirect_uri:  # OAuth 2.1 asks for it no more
            raise OAuthError("invalid_grant", "redirect_uri is another than the code was sent to")
        if not hmac.compare_digest(challenge_of(verifier).encode(), request.challenge.encode()):
            raise OAuthError("invalid_grant", "code_verifier does not fit code_challenge")
        if resource not in (None, request.resource):
            raise OAuthError("invalid_target", "the code is for another resource")
        if body["expires"] <= self._clock():  # who has it now may have had it in time, too
            await revoke_client_grants(self._db, self._clock(), code_id=body["id"])
            raise OAuthError("invalid_grant", "the code is too old")
        return await self.open(request, body["principal"], body["claimed"], body["id"])

    async def open(
        self,
        request: AuthorizationRequest,
        principal: str,
        claimed: Mapping[str, Any],
        code_id: str,
        *,
        renewable: bool = True,
    ) -> TokenAnswer:
        """The first tokens of a new grant; one without renewal lives as long as its token."""
        now, life = self._clock(), self._lifetimes()
        id, refresh = new_id(now), secrets.token_urlsafe(32)
        grant = ClientGrant(
            id,
            code_id,
            request.client_id,
            request.client_name,
            principal,
            dict(claimed),
            request.resource,
            request.scope,
            digest(refresh.encode()),
            created_at=now,
            last_used_at=now,
            expires_at=now + (life.refresh_seconds if renewable else life.access_seconds),
        )
        if not await open_grant(self._db, grant):
            raise OAuthError("invalid_grant", "the code was used before; what it gave is revoked")
        answer = self._answer(grant, refresh)
        return answer if renewable else {k: v for k, v in answer.items() if k != "refresh_token"}

    # --- refresh ----------------------------------------------------------------------------------

    async def refresh(self, token: str, client_id: str, resource: str | None) -> TokenAnswer:
        """New tokens for a refresh token; the same ones again if it comes twice at once."""
        body = self._open_token("refresh", token)
        grant = await get_client_grant(self._db, body["grant"]) if body else None
        if body is None or grant is None or grant.client_id != client_id:
            raise OAuthError("invalid_grant", "the refresh token is unknown")
        if self._person(grant.principal, grant.claimed) is None:
            raise OAuthError("invalid_grant", "its person is no more, or has another token now")
        if resource is not None and resource != grant.resource:
            raise OAuthError("invalid_target", "the grant is for another resource")
        now, successor = self._clock(), secrets.token_urlsafe(32)
        answer = self._answer(grant, successor)
        use = Rotation(
            grant.id,
            digest(body["secret"].encode()),
            digest(successor.encode()),
            self._seal.encrypt_json(answer),
            now,
            now + self._lifetimes().refresh_seconds,
            REFRESH_GRACE_SECONDS,
        )
        outcome = await rotate(self._db, use)
        if outcome == "revoked":
            raise OAuthError("invalid_grant", "the refresh token was used before, or is revoked")
        if isinstance(outcome, bytes):
            earlier: Any = self._seal.decrypt_json(outcome)
            return {**answer, **earlier}
        return answer

    def _answer(self, grant: ClientGrant, refresh: str) -> TokenAnswer:
        life = self._lifetimes()
        expires = self._clock() + life.refresh_seconds
        return {
            "access_token": self.access_token(grant, life.access_seconds),
            "token_type": "Bearer",
            "expires_in": int(life.access_seconds),
            "refresh_token": self._seal_token("refresh", expires, grant=grant.id, secret=refresh),
            "scope": grant.scope,
        }

    def access_token(self, grant: ClientGrant, seconds: float) -> str:
        """A token that opens the grant's address for a while."""
        return self._seal_token(
            "access",
            self._clock() + seconds,
            grant=grant.id,
            principal=grant.principal,
            claimed=dict(grant.claimed),
            resource=grant.resource,
            scope=grant.scope,
        )

    # --- tokens of clients ------------------------------------------------------------------------

    def open_access_token(self, token: str) -> dict[str, Any] | None:
        """The content of an access token, if it is one of ours and holds."""
        body = self._open_token("access", token)
        return None if body is None or body["grant"] in self.revoked_ids else body

    async def revoke_token(self, token: str, client_id: str) -> None:
        """Revokes the grant of a token of this client; any other token stays."""
        body = self._open_token("access", token) or self._open_token("refresh", token)
        if body is not None:
            now = self._clock()
            await revoke_client_grants(self._db, now, id=body["grant"], client_id=client_id)

    def _seal_token(self, kind: str, expires: float, **values: Any) -> str:
        value = {"kind": kind, "expires": expires, **values}
        return self._seal.encrypt_json(value).decode().rstrip("=")

    def _open_token(self, kind: str, token: str) -> dict[str, Any] | None:
        body = self._open_sealed(kind, token)
        return None if body is None or body["expires"] <= self._clock() else body

    def _open_sealed(self, kind: str, token: str) -> dict[str, Any] | None:
        """The content of what we sealed for this, even if its time is over."""
        padded = token + "=" * (-len(token) % 4)
        try:
            body: Any = self._seal.decrypt_json(padded.encode("ascii", "replace"))
        except (InvalidToken, ValueError):
            return None
        return body if isinstance(body, dict) and body.get("kind") == kind else None
