"""People's credentials: given out to their calls, renewed before they expire, forgotten.

However many calls want a token that is due, one asks for the next: in this process the first, over
all processes the one that puts its name into the row (`store/credentials.py`). The others wait for
it, or go on with the old token while that is good. New tokens are on disk before they are used. A
provider that fails for a moment leaves everything as it is; one that says no makes the person sign
in again.
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

from gateway.config.connection import Auth, OAuth2Auth, per_user
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
from gateway.store.cluster import RECONNECTED, Signals, heard_within, living
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

SEALED = "credential"  # what is sealed in the store, with whose it is and for which connection
LINK = "sign-in link"  # what is sealed in the address that a person opens
CONNECT_PATH = "/oauth/connect/"
OURS_TO_MEND = ("invalid_client", "unauthorized_client", "unsupported_grant_type")


class SignInNeeded(Exception):
    """Nobody has signed in, or what they gave is not taken any more."""


@dataclass(frozen=True, slots=True)
class Account:
    """Whose credential for which connection is meant, and the settings that it is good for."""

    owner: str  # "": everybody's
    connection: str
    auth: Auth
    binding: str

    @property
    def key(self) -> tuple[str, str]:
        return self.owner, self.connection


def binding_of(auth: Auth, address: str) -> str:
    """Names all settings that decide where a credential comes from and goes to."""
    hidden = {"client_secret", "token", "password", "value", "scopes"}
    told = auth.model_dump_json(exclude=hidden)
    return hashlib.sha256(f"{told} {address}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Kept:
    """An opened credential."""

    row: Credential
    secret: Secret
    renew_at: float

    @property
    def version(self) -> int:
        return self.row.version

    def is_good_for(self, account: Account) -> bool:
        """Whether it was given under these settings, and need not be looked at now."""
        return self.row.binding == account.binding and time.time() < self.renew_at


class SignInLink(Struct, frozen=True, array_like=True):
    """What the address says that a person opens to sign in."""

    id: str
    expires: float
    principal: str  # who has to open it
    owner: str  # whose credential it will be
    connection: str


class Keeper:
    """Holds what people have given, for all connections."""

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
        self._kept: LRUCache[tuple[str, str], Kept] = LRUCache(MAX_REMEMBERED)
        self._looking: dict[tuple[str, str], asyncio.Task[Kept]] = {}
        self._unsaved: dict[tuple[str, str], tuple[Credential, Credential]] = {}
        signals.on(CREDENTIAL, self._hear)
        signals.on(RECONNECTED, self._hear)

    async def get(self, account: Account, rejected: int = 0) -> Kept:
        """The credential, fresh; another version than the one that was rejected."""
        kept = self._kept.get(account.key)
        while kept is None or kept.version == rejected or not kept.is_good_for(account):
            task = self._looking.get(account.key)
            if task is None or task.done():  # one that has ended is no word about this rejection
                task = asyncio.create_task(self._look(account, rejected))
                self._looking[account.key] = task
                task.add_done_callback(partial(self._note_end, account.key))
            kept = await asyncio.shield(task)
        return kept

    async def save(self, account: Account, secret: Secret) -> None:
        """Keeps what somebody has just given."""
        tokens, now = secret.tokens, time.time()
        expires = tokens.expires_at if tokens else None
        sealed = self._sealed(secret, account.key)
        row = Credential(*account.key, account.binding, sealed, 1, now, expires)
        await save_credential(self._db, row)
        self._tell(row)
        log.info("signed in", connection=account.connection, owner=account.owner or "everybody")

    async def refuse(self, account: Account, version: int) -> None:
        """Notes that the API does not take a credential, fresh as it is."""
        row = await get_credential(self._db, *account.key)
        if row is not None and row.version == version:
            await change_credential(self._db, row, refused=1)
        self._kept.pop(account.key, None)

    async def forget(self, **which: str) -> None:
        """Removes credentials, here and at the servers that gave them."""
        found = await delete_credentials(self._db, **which)
        await asyncio.gather(*(self._revoke(row) for row in found))

    async def forget_others(self, owners: Collection[str]) -> None:
        """Removes what belongs to nobody of these, and not to everybody."""
        found = {row.owner for row in await list_credentials(self._db)}
        for owner in found.difference(owners, ("",)):
            await self.forget(owner=owner)

    async def _revoke(self, row: Credential) -> None:
        self._tell(row)
        with suppress(SignInNeeded):  # under another key: nobody can tell what it was
            secret = self._open(row).secret
            if secret.tokens and secret.server:
                await revoke(self._egress, secret.server, secret.tokens)

    async def holders(self, connection: str) -> list[str]:
        """Who has signed in to a connection and is still known there, the latest first."""
        found = await list_credentials(self._db, connection=connection)
        return [row.owner for row in found if not row.refused]

    async def of(self, owner: str) -> Mapping[str, Credential]:
        """What this owner has, by connection."""
        return {row.connection: row for row in await list_credentials(self._db, owner=owner)}

    def link(self, principal: str, owner: str, connection: str) -> str:
        """The address that this person opens to sign in: for ten minutes, once."""
        expires = time.time() + SIGN_IN_SECONDS
        link = SignInLink(secrets.token_hex(16), expires, principal, owner, connection)
        sealed = self._seal.seal_values(LINK, *msgspec.to_builtins(link))
        return f"{self._public_url}{CONNECT_PATH}{sealed}"

    def open_link(self, sealed: str) -> SignInLink | None:
        """What an address says; None: it is none of ours, or too old."""
        values = self._seal.open_values(LINK, sealed)
        link = msgspec.convert(values, SignInLink) if values is not None else None
        return link if link is not None and link.expires > time.time() else None

    async def close(self) -> None:
        """Waits for answers under way: what a provider has given must be on disk."""
        tasks = [*self._looking.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=TOKEN_SECONDS)

    def _tell(self, row: Credential) -> None:
        """Has this process know at once what all others hear by the store."""
        for kind in (CREDENTIAL, SIGNED):
            self._signals.hear(kind, payload_of(row.connection, row.owner))

    def _hear(self, payload: str) -> None:
        connection, _, owner = payload.partition(" ")
        if payload:
            self._kept.pop((owner, connection), None)
        else:
            self._kept.clear()

    def _note_end(self, key: tuple[str, str], task: asyncio.Task[Kept]) -> None:
        if self._looking.get(key) is task:
            del self._looking[key]
        if task.cancelled() or task.exception():  # its callers have that, unless all have gone
            self._kept.pop(key, None)

    async def _look(self, account: Account, rejected: int) -> Kept:
        """The credential as it is on disk, renewed if it is due."""
        ends = time.time() + 2 * TOKEN_SECONDS
        tried: Kept | None = None
        with self._signals.awaiting(CREDENTIAL, payload_of(*reversed(account.key))) as heard:
            while True:
                heard.clear()
                row = await get_credential(self._db, *account.key)
                if row is None or row.refused or row.binding != account.binding:
                    raise SignInNeeded
                kept, is_rejected = self._open(row), row.version == rejected
                found: Kept | None = kept
                if tried is not None and tried.version == row.version:
                    found = tried  # what woke us was the word that we are done
                elif is_rejected or time.time() >= kept.renew_at:
                    lives = not is_rejected and not _has_expired(row)
                    found = tried = await self._renewed(account, kept, lives=lives)
                if found is not None and not heard.is_set():  # else it may be another one by now
                    return self._remember(found)
                if time.time() >= ends:
                    raise Overloaded("busy", "The token is being renewed.", "Try again.")
                await heard_within(heard, MOMENT_SECONDS)  # another process is at it

    async def _renewed(self, account: Account, kept: Kept, *, lives: bool) -> Kept | None:
        """The next version; the same for a while where it is still good; None: look again."""
        row, tokens = kept.row, kept.secret.tokens
        if tokens is None or not tokens.refresh_token:
            if lives:
                return _until(kept, row.expires_at)
            if tokens is not None:
                await change_credential(self._db, row, refused=1)
            raise SignInNeeded
        if row.renewer is not None:
            return await self._after_other(kept, lives=lives)
        claimed = replace(row, renewer=self._replica)
        if not await change_credential(self._db, row, renewer=self._replica):
            return None
        try:
            found = await refresh(self._egress, self._server(account, kept.secret), tokens)
        except (TokenRefused, GatewayError) as error:
            refused = isinstance(error, TokenRefused) and not _is_ours_to_mend(error)
            if not await change_credential(self._db, claimed, renewer=None, refused=int(refused)):
                return None  # it was taken back, or another one given
            words = {"connection": row.connection, "owner": row.owner, "answer": str(error)}
            log.warning("token not renewed", **words)
            if refused:
                raise SignInNeeded from error
            if lives:
                return _until(kept, time.time() + TOKEN_SECONDS)
            if isinstance(error, TokenRefused):
                raise misconfigured(error) from error
            raise
        secret = msgspec.structs.replace(kept.secret, tokens=found)
        return await self._saved(claimed, self._with(claimed, secret))

    async def _saved(self, seen: Credential, new: Credential) -> Kept | None:
        """Puts renewed tokens on disk; while the store is away they are kept here."""
        key = seen.owner, seen.connection
        self._unsaved[key] = seen, new
        to = {"sealed": new.sealed, "expires_at": new.expires_at, "version": new.version}
        changed = await change_credential(self._db, seen, **to, renewer=None)
        del self._unsaved[key]
        return self._open(new) if changed else None

    async def _after_other(self, kept: Kept, *, lives: bool) -> Kept | None:
        """What there is while some process renews the tokens, or after it has died over that."""
        row, key = kept.row, (kept.row.owner, kept.row.connection)
        if key in self._unsaved:
            return await self._saved(*self._unsaved[key])
        if row.renewer == self._replica:  # an earlier attempt that could not be written off
            await change_credential(self._db, row, renewer=None)
            return None
        if row.renewer in await living(self._db):
            return _until(kept, time.time() + MOMENT_SECONDS) if lives else None
        # Its refresh token may be used up: a second use would cost the person everything.
        tokens = kept.secret.tokens
        assert tokens is not None
        bare = msgspec.structs.replace(tokens, refresh_token="")
        new = self._with(row, msgspec.structs.replace(kept.secret, tokens=bare))
        await self._saved(row, new)
        return None

    def _with(self, row: Credential, secret: Secret) -> Credential:
        assert secret.tokens is not None
        return replace(
            row,
            sealed=self._sealed(secret, (row.owner, row.connection)),
            version=row.version + 1,
            expires_at=secret.tokens.expires_at,
            renewer=None,
        )

    def _server(self, account: Account, secret: Secret) -> AuthorizationServer:
        """Where tokens are renewed; what is configured since counts."""
        server, auth = secret.server or AuthorizationServer(), account.auth
        if isinstance(auth, OAuth2Auth) and auth.client_id and auth.client_secret is not None:
            hidden = auth.client_secret.get_secret_value()
            return msgspec.structs.replace(server, client_secret=hidden)
        return server

    def _remember(self, kept: Kept) -> Kept:
        self._kept[kept.row.owner, kept.row.connection] = kept
        return kept

    def _sealed(self, secret: Secret, key: tuple[str, str]) -> bytes:
        return self._seal.seal_values(SEALED, *key, msgspec.to_builtins(secret)).encode()

    def _open(self, row: Credential) -> Kept:
        *whose, value = self._seal.open_values(SEALED, row.sealed.decode()) or [None]
        if whose != [row.owner, row.connection]:  # under another key, or in another one's place
            raise SignInNeeded
        secret = msgspec.convert(value, Secret)
        due = secret.tokens.renew_at if secret.tokens else None
        return Kept(row, secret, math.inf if due is None else due)


def _is_ours_to_mend(error: TokenRefused) -> bool:
    """Whether a refusal is not of the person's token: of ours, or of whoever stands in between."""
    return error.code in OURS_TO_MEND or (not error.code and error.status in (403, 404))


def _has_expired(row: Credential) -> bool:
    return row.expires_at is not None and time.time() >= row.expires_at


def _until(kept: Kept, moment: float | None) -> Kept:
    """The same, to be looked at again then; never longer than it lives."""
    ends = min(each for each in (moment, kept.row.expires_at, math.inf) if each is not None)
    return replace(kept, renew_at=ends)


def sign_in_required(
    keeper: Keeper | None, name: str, auth: Auth, principal: Principal
) -> UpstreamFailed:
    """The error for a call before somebody has signed in: who has to, and where."""
    personal = per_user(auth)
    words = f"You are not signed in to {name}." if personal else f"{name} is not signed in."
    if keeper is None or not (personal or principal.admin):
        hint = "Have an admin of the gateway sign it in."
        return UpstreamFailed("sign_in_required", words, hint, sent=False)
    link = keeper.link(principal.name, principal.name if personal else "", name)
    hint = f"Open this link in a browser to sign in, then call again: {link}"
    return UpstreamFailed("sign_in_required", words, hint, sent=False, sign_in_url=link)


def key_of(auth: Auth, given: Mapping[str, object]) -> Secret:
    """A person's own key, as it was typed in. Raises Fixable where it can't be one."""
    wanted = {"bearer": ("token",), "basic": ("username", "password"), "api-key": ("value",)}
    if auth.type not in wanted:
        words = "this connection takes no key: people sign in there"
        raise Fixable("invalid_arguments", words, "Ask for its sign-in link.")
    found: dict[str, str] = {}
    for name in wanted[auth.type]:
        value = given.get(name, "" if name == "password" else None)
        if not isinstance(value, str) or not (value.strip() or name == "password"):
            raise Fixable("invalid_arguments", f"{name} is required, as a text")
        if len(value) > CLIENT_DOCUMENT_BYTES or not (value.isascii() and value.isprintable()):
            words = f"{name} has a character that can't be sent, or too many of them"
            raise Fixable("invalid_arguments", words)
        found[name] = value.strip()
    return msgspec.convert(found, Secret)
