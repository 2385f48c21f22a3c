"""People's credentials: given out to their calls, renewed before they expire, forgotten.

However many calls want a token that is due, one call asks for the next: in this process the first
one, over all processes one in the process that puts its id into the row (`store/credentials.py`).
Other calls wait for it, or go on with the old token while that is good. New tokens are on disk
before they are used. If a provider fails for a moment, everything stays as it is; if it refuses,
the person has to sign in again.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import structlog
from cachetools import LRUCache
from msgspec import Struct

from gateway.config.connection import Auth, OAuth2Auth, is_per_user
from gateway.errors import Fixable, GatewayError, Overloaded, UpstreamFailed
from gateway.limits import (
    CLIENT_DOCUMENT_BYTES,
    MAX_REMEMBERED,
    MOMENT_SECONDS,
    SIGN_IN_SECONDS,
    TOKEN_SECONDS,
)
from gateway.model import Principal
from gateway.outbound.client import Egress
from gateway.sign_in.client import (
    AuthorizationServer,
    Secret,
    TokenRefused,
    misconfigured,
    refresh,
    revoke,
)
from gateway.store.cluster import RECONNECTED, Signals, living_replicas, wait_until_set
from gateway.store.credentials import (
    CREDENTIAL,
    SIGNED,
    change_credential,
    delete_credentials,
    get_credential,
    list_credentials,
    payload_of,
    save_credential,
)
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.store.tables import Credential

log = structlog.get_logger("gateway.sign_in")

SEALED = "credential"  # the purpose of a seal in the store, with owner and connection
LINK = "sign-in link"  # the purpose of the seal of the address that a person opens
CONNECT_PATH = "/oauth/connect/"
OURS_TO_MEND = ("invalid_client", "unauthorized_client", "unsupported_grant_type")


class SignInNeeded(Exception):
    """Nobody has signed in, or the credential is not accepted any more."""


@dataclass(frozen=True, slots=True)
class Account:
    """The owner and connection of a credential, and the settings that it is good for."""

    owner: str  # "": everybody's
    connection: str
    auth: Auth
    binding: str

    @property
    def key(self) -> tuple[str, str]:
        return self.owner, self.connection


def binding_of(auth: Auth, address: str) -> str:
    """Names all settings that decide where a credential comes from and goes to."""
    excluded = {"client_secret", "token", "password", "value", "scopes"}
    settings = auth.model_dump_json(exclude=excluded)
    return hashlib.sha256(f"{settings} {address}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class OpenCredential:
    """A credential of the store, opened and kept in memory."""

    row: Credential
    secret: Secret
    renew_at: float

    @property
    def version(self) -> int:
        return self.row.version

    def is_good_for(self, account: Account) -> bool:
        """Whether it was given under these settings, and need not be renewed now."""
        return self.row.binding == account.binding and time.time() < self.renew_at


class SignInLink(Struct, frozen=True, array_like=True):
    """The content of the address that a person opens to sign in."""

    id: str
    expires: float
    principal: str  # who has to open it
    owner: str  # whose credential it will be
    connection: str


class PeopleCredentials:
    """Holds the credentials that people have given, for all connections."""

    def __init__(
        self,
        db: Database,
        seal: Seal,
        signals: Signals,
        egress: Egress,
        replica: str,
        public_url: str,
    ) -> None:
        self._db = db
        self._seal = seal
        self._signals = signals
        self._egress = egress
        self._replica = replica
        self._public_url = public_url
        self._cached: LRUCache[tuple[str, str], OpenCredential] = LRUCache(MAX_REMEMBERED)
        # When a renewal that failed is tried again, by owner, connection and version.
        self._retries: LRUCache[tuple[str, str, int], float] = LRUCache(MAX_REMEMBERED)
        self._lookups: dict[tuple[str, str], asyncio.Task[OpenCredential]] = {}
        self._unsaved: dict[tuple[str, str], tuple[Credential, Credential]] = {}
        signals.on(CREDENTIAL, self._drop_cached)
        signals.on(RECONNECTED, self._drop_cached)

    async def get(self, account: Account, rejected: int = 0) -> OpenCredential:
        """The credential, fresh; another version than the one that was rejected."""
        cached = self._cached.get(account.key)
        while cached is None or cached.version == rejected or not cached.is_good_for(account):
            task = self._lookups.get(account.key)
            if task is None or task.done():  # a task that has ended knows nothing of this rejection
                task = asyncio.create_task(self._load_fresh(account, rejected))
                self._lookups[account.key] = task
                task.add_done_callback(partial(self._note_end, account.key))
            cached = await asyncio.shield(task)
        return cached

    async def save(self, account: Account, secret: Secret, organization: str | None) -> None:
        """Keeps a credential that a person of this organization has just given."""
        tokens, now = secret.tokens, time.time()
        expires = tokens.expires_at if tokens else None
        sealed = self._seal_secret(secret, account.key)
        row = Credential(*account.key, account.binding, sealed, 1, now, expires)
        await save_credential(self._db, replace(row, organization=organization))
        self._tell(row)
        log.info("signed in", connection=account.connection, owner=account.owner or "everybody")

    async def refuse(self, account: Account, version: int) -> None:
        """Notes that the API does not take a credential, fresh as it is."""
        row = await get_credential(self._db, *account.key)
        if row is not None and row.version == version:
            await change_credential(self._db, row, refused=1)
        self._cached.pop(account.key, None)

    async def forget(self, **columns: str) -> None:
        """Removes credentials, here and at the servers that gave them."""
        rows = await delete_credentials(self._db, **columns)
        await asyncio.gather(*(self._revoke(row) for row in rows))

    async def forget_others(self, owners: Collection[str]) -> None:
        """Removes the credentials of all owners but these; shared credentials stay."""
        stored_owners = {row.owner for row in await list_credentials(self._db)}
        for owner in stored_owners.difference(owners, ("",)):
            await self.forget(owner=owner)

    async def _revoke(self, row: Credential) -> None:
        self._tell(row)
        with suppress(SignInNeeded):  # under another key, it can't be read
            secret = self._open(row).secret
            if secret.tokens and secret.server:
                await revoke(self._egress, secret.server, secret.tokens)

    async def holders(self, connection: str) -> list[str]:
        """The owners who have signed in to a connection and were not refused, the latest first."""
        rows = await list_credentials(self._db, connection=connection)
        return [row.owner for row in rows if not row.refused]

    async def rows_of(self, owner: str) -> Mapping[str, Credential]:
        """The credentials of this owner, by connection."""
        return {row.connection: row for row in await list_credentials(self._db, owner=owner)}

    def link(self, principal: str, owner: str, connection: str) -> str:
        """The address that this person opens to sign in: for ten minutes, once."""
        expires = time.time() + SIGN_IN_SECONDS
        link = SignInLink(secrets.token_hex(16), expires, principal, owner, connection)
        sealed = self._seal.seal_values(LINK, *msgspec.to_builtins(link))
        return f"{self._public_url}{CONNECT_PATH}{sealed}"

    def open_link(self, sealed: str) -> SignInLink | None:
        """The content of an address; None: it is none of ours, or too old."""
        values = self._seal.open_values(LINK, sealed)
        link = msgspec.convert(values, SignInLink) if values is not None else None
        return link if link is not None and link.expires > time.time() else None

    async def close(self) -> None:
        """Waits for answers under way: tokens that a provider has given must be on disk."""
        tasks = [*self._lookups.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=TOKEN_SECONDS)

    def _tell(self, row: Credential) -> None:
        """Signals a change here at once; all other processes hear of it by the store."""
        for kind in (CREDENTIAL, SIGNED):
            self._signals.hear(kind, payload_of(row.connection, row.owner))

    def _drop_cached(self, payload: str) -> None:
        connection, _, owner = payload.partition(" ")
        if payload:
            self._cached.pop((owner, connection), None)
        else:
            self._cached.clear()

    def _note_end(self, key: tuple[str, str], task: asyncio.Task[OpenCredential]) -> None:
        if self._lookups.get(key) is task:
            del self._lookups[key]
        if task.cancelled() or task.exception():  # its callers get the error, unless all have gone
            self._cached.pop(key, None)

    async def _load_fresh(self, account: Account, rejected: int) -> OpenCredential:
        """The credential as it is on disk, renewed if it is due."""
        ends = time.time() + 2 * TOKEN_SECONDS
        renewal: OpenCredential | None = None
        with self._signals.event_for(CREDENTIAL, payload_of(*reversed(account.key))) as row_changed:
            while True:
                row_changed.clear()
                row = await get_credential(self._db, *account.key)
                if row is None or row.refused or row.binding != account.binding:
                    raise SignInNeeded
                stored, is_rejected = self._open(row), row.version == rejected
                current: OpenCredential | None = stored
                if renewal is not None and renewal.version == row.version:
                    current = renewal  # the signal was that of our own renewal
                elif is_rejected or time.time() >= stored.renew_at:
                    is_valid = not is_rejected and not _has_expired(row)
                    current = renewal = await self._renew(account, stored, is_valid=is_valid)
                if current is not None and not row_changed.is_set():  # else the row may differ
                    return self._remember(current)
                if time.time() >= ends:
                    raise Overloaded("busy", "The token is being renewed.", "Try again.")
                await wait_until_set(row_changed, MOMENT_SECONDS)  # another process renews it

    async def _renew(
        self, account: Account, stored: OpenCredential, *, is_valid: bool
    ) -> OpenCredential | None:
        """The next version; the stored one for a while, if still good; None: read the row again."""
        row, tokens = stored.row, stored.secret.tokens
        if tokens is None or not tokens.refresh_token:
            if is_valid:
                return _good_until(stored, row.expires_at)
            if tokens is not None:
                await change_credential(self._db, row, refused=1)
            raise SignInNeeded
        if row.renewer is not None:
            return await self._follow_renewer(stored, is_valid=is_valid)
        claim = replace(row, renewer=self._replica)
        if not await change_credential(self._db, row, renewer=self._replica):
            return None
        try:
            new_tokens = await refresh(self._egress, self._server(account, stored.secret), tokens)
        except (TokenRefused, GatewayError) as error:
            refused = isinstance(error, TokenRefused) and not _is_ours_to_mend(error)
            if not await change_credential(self._db, claim, renewer=None, refused=int(refused)):
                return None  # it was removed, or another credential given
            words = {"connection": row.connection, "owner": row.owner, "answer": str(error)}
            log.warning("token not renewed", **words)
            if refused:
                raise SignInNeeded from error
            if is_valid:
                self._retries[row.owner, row.connection, row.version] = time.time() + TOKEN_SECONDS
                return self._open(row)
            if isinstance(error, TokenRefused):
                raise misconfigured(error) from error
            raise
        secret = msgspec.structs.replace(stored.secret, tokens=new_tokens)
        return await self._save_renewal(claim, self._next_version(claim, secret))

    async def _save_renewal(self, old: Credential, new: Credential) -> OpenCredential | None:
        """Stores renewed tokens; while the store is away this process keeps them."""
        key = old.owner, old.connection
        self._unsaved[key] = old, new
        columns = {"sealed": new.sealed, "expires_at": new.expires_at, "version": new.version}
        is_saved = await change_credential(self._db, old, **columns, renewer=None)
        del self._unsaved[key]
        return self._open(new) if is_saved else None

    async def _follow_renewer(
        self, stored: OpenCredential, *, is_valid: bool
    ) -> OpenCredential | None:
        """The credential while another process renews it; None: read the row again."""
        row, key = stored.row, (stored.row.owner, stored.row.connection)
        if key in self._unsaved:
            return await self._save_renewal(*self._unsaved[key])
        if row.renewer == self._replica:  # an earlier attempt whose end could not be written
            await change_credential(self._db, row, renewer=None)
            return None
        if row.renewer in await living_replicas(self._db):
            return _good_until(stored, time.time() + MOMENT_SECONDS) if is_valid else None
        # The refresh token may be used up: a second use could revoke all tokens of the person.
        tokens = stored.secret.tokens
        assert tokens is not None
        bare = msgspec.structs.replace(tokens, refresh_token="")
        new = self._next_version(row, msgspec.structs.replace(stored.secret, tokens=bare))
        await self._save_renewal(row, new)
        return None

    def _next_version(self, row: Credential, secret: Secret) -> Credential:
        assert secret.tokens is not None
        sealed = self._seal_secret(secret, (row.owner, row.connection))
        expires_at, version = secret.tokens.expires_at, row.version + 1
        return replace(row, sealed=sealed, version=version, expires_at=expires_at, renewer=None)

    def _server(self, account: Account, secret: Secret) -> AuthorizationServer:
        """The server where tokens are renewed, with the secret that is configured now."""
        server, auth = secret.server or AuthorizationServer(), account.auth
        if isinstance(auth, OAuth2Auth) and auth.client_id and auth.client_secret is not None:
            client_secret = auth.client_secret.get_secret_value()
            return msgspec.structs.replace(server, client_secret=client_secret)
        return server

    def _remember(self, credential: OpenCredential) -> OpenCredential:
        self._cached[credential.row.owner, credential.row.connection] = credential
        return credential

    def _seal_secret(self, secret: Secret, key: tuple[str, str]) -> bytes:
        return self._seal.seal_values(SEALED, *key, msgspec.to_builtins(secret)).encode()

    def _open(self, row: Credential) -> OpenCredential:
        *key, value = self._seal.open_values(SEALED, row.sealed.decode()) or [None]
        if key != [row.owner, row.connection]:  # under another key, or moved from another row
            raise SignInNeeded
        secret = msgspec.convert(value, Secret)
        due = secret.tokens.renew_at if secret.tokens else None
        credential = OpenCredential(row, secret, math.inf if due is None else due)
        retry_at = self._retries.get((row.owner, row.connection, row.version), 0.0)
        return _good_until(credential, retry_at) if retry_at > credential.renew_at else credential


def _is_ours_to_mend(error: TokenRefused) -> bool:
    """Whether a refusal is not of the person's token: of our secret, or by a proxy in between."""
    return error.code in OURS_TO_MEND or (not error.code and error.status in (403, 404))


def _has_expired(row: Credential) -> bool:
    return row.expires_at is not None and time.time() >= row.expires_at


def _good_until(credential: OpenCredential, moment: float | None) -> OpenCredential:
    """The credential, to be looked at again at this moment, or sooner if it ends before."""
    ends = min(each for each in (moment, credential.row.expires_at, math.inf) if each is not None)
    return replace(credential, renew_at=ends)


def sign_in_required(
    people: PeopleCredentials | None, name: str, auth: Auth, principal: Principal
) -> UpstreamFailed:
    """The error for a call without a sign-in: it says who has to sign in, and where."""
    personal = is_per_user(auth)
    words = f"You are not signed in to {name}." if personal else f"{name} is not signed in."
    if people is None or not (personal or principal.admin):
        hint = "Have an admin of the gateway sign it in."
        return UpstreamFailed("sign_in_required", words, hint, sent=False)
    link = people.link(principal.name, principal.name if personal else "", name)
    hint = f"Open this link in a browser to sign in, then call again: {link}"
    return UpstreamFailed("sign_in_required", words, hint, sent=False, sign_in_url=link)


def key_of(auth: Auth, form: Mapping[str, object]) -> Secret:
    """A person's own key, as it was typed in. Raises Fixable where it can't be one."""
    fields = {"bearer": ("token",), "basic": ("username", "password"), "api-key": ("value",)}
    if auth.type not in fields:
        words = "this connection takes no key: people sign in there"
        raise Fixable("invalid_arguments", words, "Ask for its sign-in link.")
    texts: dict[str, str] = {}
    for name in fields[auth.type]:
        value = form.get(name, "" if name == "password" else None)
        if not isinstance(value, str) or not (value.strip() or name == "password"):
            raise Fixable("invalid_arguments", f"{name} is required, as a text")
        if len(value) > CLIENT_DOCUMENT_BYTES or not (value.isascii() and value.isprintable()):
            words = f"{name} has a character that can't be sent, or too many of them"
            raise Fixable("invalid_arguments", words)
        texts[name] = value.strip()
    return msgspec.convert(texts, Secret)
