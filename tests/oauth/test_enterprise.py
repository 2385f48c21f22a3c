"""A company's own provider vouches for people (ID-JAG), and JWTs lead to their issuer."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.conftest import GatewayMaker, Running, gateway_on
from tests.oauth.people import OAUTH, Program
from tests.raw_server import always, answer, raw_server

KEY = ec.generate_private_key(ec.SECP256R1())
JWKS = {"keys": [{**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key())), "kid": "k"}]}
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
SECTION = """
[auth.oauth.enterprise]
issuer = "https://idp.example"
jwks_url = "{jwks}"
principal_claim = "email"
[clients.desk]
client_id = "desk"
client_secret = "desk-secret-0123456789"
redirect_uris = ["https://desk.example/back"]
"""


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    config = tmp_path_factory.mktemp("gateway") / "config.toml"
    async with (
        raw_server(always(answer(json.dumps(JWKS).encode()))) as idp,
        gateway_on(config, OAUTH + SECTION.format(jwks=f"{idp.url}/keys")) as made,
    ):
        yield made


def assertion(gateway: Running, typ: str = "oauth-id-jag+jwt", key: Any = KEY, **more: Any) -> str:
    claims = {
        "iss": "https://idp.example",
        "aud": gateway.url,
        "sub": "u1",
        "email": "zoe@people.example",
        "client_id": "desk",
        "jti": str(uuid.uuid4()),
        "iat": time.time(),
        "exp": time.time() + 60,
        "resource": gateway.mcp,
        **more,
    }
    return jwt.encode(claims, key, "ES256", {"kid": "k", "typ": typ})


async def exchanged(program: Program, token: str) -> Any:
    secret = "desk-secret-0123456789"
    return await program.token(grant_type=GRANT, assertion=token, client_secret=secret)


async def test_an_assertion_lets_a_person_in_once_without_a_browser(
    gateway: Running, program: Program
) -> None:
    program.id = "desk"
    good = assertion(gateway)
    tokens = (await exchanged(program, good)).json()
    assert "refresh_token" not in tokens
    assert await program.status(tokens["access_token"]) == 200
    headers = {"authorization": f"Bearer {tokens['access_token']}"}
    [grant] = (await program.http.get("/api/v1/grants", headers=headers)).json()["grants"]
    assert grant["principal"] == "zoe@people.example"
    assert (await exchanged(program, good)).json()["error"] == "invalid_grant"
    document = (await program.http.get("/.well-known/oauth-authorization-server")).json()
    assert GRANT in document["grant_types_supported"]


@pytest.mark.parametrize(
    "change",
    [
        {"typ": "JWT"},
        {"iss": "https://other.example"},
        {"aud": "https://other.example"},
        {"client_id": "other"},
        {"exp": 1},
        {"jti": None},
        {"key": ec.generate_private_key(ec.SECP256R1())},
        {"email": None},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_an_assertion_that_is_not_right_lets_nobody_in(
    gateway: Running, program: Program, change: dict[str, Any]
) -> None:
    program.id = "desk"
    refused = await exchanged(program, assertion(gateway, **change))
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")


async def test_an_assertion_for_another_resource_is_refused(
    gateway: Running, program: Program
) -> None:
    program.id = "desk"
    token = assertion(gateway, resource="https://other.example/mcp")
    assert (await exchanged(program, token)).json()["error"] == "invalid_target"


async def test_in_jwt_mode_every_address_names_the_issuer(make_gateway: GatewayMaker) -> None:
    text = """
[auth]
mode = "jwt"
issuer = "https://idp.example"
audience = "gateway"
jwks_url = "https://idp.example/keys"
"""
    gateway: Running = await make_gateway(text)
    async with (program := Program(gateway.url)).http as http:
        for path in ("/mcp", "/mcp/bundles/books", "/mcp/steps/shop/look"):
            refused = await http.post(path, json={}, headers={"accept": "application/json"})
            where = f"{gateway.url}/.well-known/oauth-protected-resource{path}"
            assert f'resource_metadata="{where}"' in refused.headers["www-authenticate"]
            document = (await program.http.get(where)).json()
            assert document["resource"] == f"{gateway.url}{path}"
            assert document["authorization_servers"] == ["https://idp.example"]
        assert (await http.get("/.well-known/oauth-authorization-server")).status_code == 404
        assert (await http.get("/oauth/authorize")).status_code == 404
