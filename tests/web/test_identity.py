"""Who is let in, as whom, and who is not."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from gateway.config.settings import Settings
from gateway.errors import Unauthenticated
from gateway.model import Principal
from gateway.web.identity import Identity
from tests.clock import Clock

ISSUER, AUDIENCE = "https://issuer.example", "gateway"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def bearer(token: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {token}".encode()}


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def settings_with(principals: dict[str, Any], **auth: Any) -> Settings:
    return Settings.model_validate({"auth": auth, "principals": principals})


def tokens(**known: str) -> Settings:
    principals = {name: {"role": "r", "token_sha256": sha256(t)} for name, t in known.items()}
    return settings_with(principals, mode="tokens")


async def test_each_token_is_its_principal() -> None:
    identity = Identity(tokens(ann="token-of-ann", bob="token-of-bob"))
    for _ in range(2):  # found out, then remembered
        assert await identity.identify(bearer("token-of-bob")) == Principal("bob", role="r")
        assert await identity.identify(bearer("token-of-ann")) == Principal("ann", role="r")


NOT_LET_IN = [
    *(b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Basic token-of-ann", b"token-of-ann"),
    *(b"Bearer " + sha256("token-of-ann").encode(), b"Bearer " + b"x" * 20_000),
]


async def test_anything_else_is_not_let_in() -> None:
    identity = Identity(tokens(ann="token-of-ann"))
    for fields in ({}, *({b"authorization": header} for header in NOT_LET_IN)):
        with pytest.raises(Unauthenticated):
            await identity.identify(fields)


async def test_without_authentication_everyone_is_local_and_admin_unless_said_otherwise() -> None:
    everyone = Identity(settings_with({}, mode="none"))
    assert await everyone.identify({}) == Principal("local", admin=True)
    guests = Identity(settings_with({"local": {"role": "guest"}}, mode="none"))
    assert await guests.identify({}) == Principal("local", role="guest")


def jwk(key: Any, kid: str | None = "k1", **more: Any) -> dict[str, Any]:
    algorithm: Any = {
        rsa.RSAPublicKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePublicKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PublicKey: jwt.algorithms.OKPAlgorithm,
    }
    kind = next(one for base, one in algorithm.items() if isinstance(key.public_key(), base))
    entry = json.loads(kind.to_jwk(key.public_key()))
    return {**entry, **({} if kid is None else {"kid": kid}), **more}


class Issuer:
    """Serves a key set and counts how often it is asked."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.asked = 0
        self.down = False

    async def fetch(self, url: str) -> bytes:
        self.asked += 1
        if self.down:
            raise OSError("no route")
        return json.dumps({"keys": self.keys}).encode()


def now() -> Clock:
    return Clock(time.time())


def by_jwt(issuer: Issuer, clock: Clock | None = None, **settings: Any) -> Identity:
    chosen = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://issuer.example/keys"}
    principals = {"ann": {"access": "read-only"}}
    configured = settings_with(principals, mode="jwt", **{**chosen, **settings})
    return Identity(configured, "https://gateway.example", issuer.fetch, clock or now())


def signed(
    key: Any = RSA_KEY, algorithm: str = "RS256", kid: str | None = "k1", **claims: Any
) -> str:
    usual = {"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 300}
    payload = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return jwt.encode(payload, key, algorithm, headers={"kid": kid} if kid else None)


async def test_verified_jwt_is_the_principal_of_its_claim() -> None:
    identity = by_jwt(Issuer(jwk(RSA_KEY)))
    ann = await identity.identify(bearer(signed()))
    assert ann == Principal("ann", access="read-only")
    assert await identity.identify(bearer(signed(sub="new"))) == Principal("new")


async def test_claims_say_role_organization_and_admin() -> None:
    claims = {"principal": "email", "role": "role", "organization": "org", "admin": "boss"}
    named: dict[str, Any] = {f"{what}_claim": claim for what, claim in claims.items()}
    identity = by_jwt(Issuer(jwk(RSA_KEY)), **named)
    token = signed(email="a@b", role="recruiter", org="acme", boss=True)
    assert await identity.identify(bearer(token)) == Principal(
        "a@b", admin=True, organization="acme", role="recruiter"
    )
    token = signed(email="a@b", role=["x"], boss="true")
    assert await identity.identify(bearer(token)) == Principal("a@b")


EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        *((RSA_KEY, name) for name in ("RS256", "RS512", "PS256")),
        (EC_KEY, "ES256"),
        (ED_KEY, "EdDSA"),
    ],
)
async def test_asymmetric_algorithms_are_verified(key: Any, algorithm: str) -> None:
    identity = by_jwt(Issuer(jwk(key)))
    assert (await identity.identify(bearer(signed(key, algorithm)))).name == "ann"


UNTRUSTED = {
    "another key": signed(OTHER_KEY),
    "unknown key id": signed(kid="k2"),
    "issuer": signed(iss="https://evil.example"),
    "audience": signed(aud="another"),
    "expired": signed(exp=time.time() - 1),
    "no expiry": signed(exp=None),
    "no audience": signed(aud=None),
    "no principal": signed(sub=None),
    "empty principal": signed(sub=""),
    "not yet": signed(nbf=time.time() + 10_000),
    "algorithm none": signed("", "none"),
    "shared secret": signed("s" * 64, "HS256"),
    "broken signature": signed() + "x",
    "no jwt": "not.a.jwt",
    "no ascii": "ä",
}


@pytest.mark.parametrize("why", UNTRUSTED)
async def test_jwt_that_can_not_be_trusted_is_not_let_in(why: str) -> None:
    identity = by_jwt(Issuer(jwk(RSA_KEY)))
    with pytest.raises(Unauthenticated):
        await identity.identify(bearer(UNTRUSTED[why]))


async def test_public_key_used_as_a_shared_secret_is_not_let_in() -> None:
    entry = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ", "kid": "k1"}
    identity = by_jwt(Issuer(entry, jwk(RSA_KEY, "k2")))
    with pytest.raises(Unauthenticated):
        await identity.identify(bearer(signed("secret-secret-secret-secret-1234", "HS256")))


async def test_unknown_key_id_makes_us_look_again_once_a_minute_at_most() -> None:
    issuer, clock = Issuer(jwk(RSA_KEY)), now()
    identity = by_jwt(issuer, clock)
    await identity.identify(bearer(signed()))
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await identity.identify(bearer(signed(OTHER_KEY, kid="k2")))
    assert issuer.asked == 1
    issuer.keys.append(jwk(OTHER_KEY, "k2"))
    clock.now += 61
    assert await identity.identify(bearer(signed(OTHER_KEY, kid="k2")))
    assert issuer.asked == 2


async def test_keys_stay_good_while_the_issuer_is_away_and_go_when_it_takes_them_back() -> None:
    issuer, clock = Issuer(jwk(RSA_KEY)), now()
    identity = by_jwt(issuer, clock)
    token = signed(exp=clock.now + 5000)
    await identity.identify(bearer(token))
    issuer.down = True
    clock.now += 700
    assert await identity.identify(bearer(token))
    issuer.down, issuer.keys = False, [jwk(OTHER_KEY, "k2")]
    clock.now += 700
    with pytest.raises(Unauthenticated):
        await identity.identify(bearer(token))


async def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [jwk(RSA_KEY, kid=None)]}), "utf-8")
    identity = by_jwt(Issuer(), jwks_url=None, jwks_file=str(file))
    assert (await identity.identify(bearer(signed(kid=None)))).name == "ann"


def test_the_challenge_leads_to_the_issuer() -> None:
    identity = by_jwt(Issuer())
    where = "https://gateway.example/.well-known/oauth-protected-resource/mcp"
    assert identity.challenge(False) == f'Bearer resource_metadata="{where}"'.encode()
    assert identity.challenge(True) == (
        f'Bearer error="invalid_token", resource_metadata="{where}"'.encode()
    )
    assert Identity(tokens()).challenge(False) == b"Bearer"
    assert identity.resource_metadata("/mcp") == {
        "resource": "https://gateway.example/mcp",
        "authorization_servers": [ISSUER],
        "bearer_methods_supported": ["header"],
    }
    assert Identity(tokens()).resource_metadata("/mcp") is None
