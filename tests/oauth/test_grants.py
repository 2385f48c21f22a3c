"""Codes whose time is over, in whichever store."""

from __future__ import annotations

import base64
import hashlib
import time

import pytest

from gateway.limits import CODE_SECONDS
from gateway.oauth.grants import AuthorizationRequest, Grants, Lifetimes, OAuthError
from gateway.store.database import Database
from gateway.store.oauth import list_grants_that_hold
from gateway.store.secrets import Seal
from tests.oauth.people import CALLBACK

VERIFIER = "v" * 50
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode()
ADDRESS = "http://127.0.0.1/mcp"
REQUEST = AuthorizationRequest(
    "c1", "By hand", CALLBACK, "s-1", CHALLENGE.rstrip("="), ADDRESS, "tools:read"
)


@pytest.mark.parametrize("late_verifier", [VERIFIER, "w" * 50])
async def test_a_used_code_that_comes_again_late_revokes_what_it_gave(
    store_url: str, late_verifier: str
) -> None:
    now = time.time()

    async with Database(store_url) as db:
        seal, life = Seal(["a key of this test"]), Lifetimes(3600.0, 86_400.0)
        grants = Grants(db, seal, lambda: life, lambda name, claims: name, lambda: now)
        used, unused = (grants.code(REQUEST, "ann", {}) for _ in range(2))
        tokens = await grants.exchange(used, "c1", CALLBACK, VERIFIER, None)
        now += CODE_SECONDS + 1
        with pytest.raises(OAuthError):
            await grants.exchange(unused, "c1", CALLBACK, VERIFIER, None)
        assert len(await list_grants_that_hold(db, now)) == 1
        with pytest.raises(OAuthError):
            await grants.exchange(used, "c1", CALLBACK, late_verifier, None)
        held = await list_grants_that_hold(db, now)
        assert len(held) == (late_verifier != VERIFIER)  # who can't prove it, revokes nothing
        await grants.load()
        assert (grants.open_access_token(tokens["access_token"]) is None) == (not held)
