"""Clients that describe themselves in a document of their own (Client ID Metadata Documents)."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.model import json_bytes
from gateway.oauth.clients import Clients, _client_of_document
from gateway.oauth.grants import OAuthError
from gateway.outbound.client import Answer, Egress
from gateway.store.database import Database
from tests.certificates import Authority, authority
from tests.conftest import Running, gateway_on
from tests.oauth.people import CALLBACK, OAUTH, Kept, Person, Program, sdk_auth, sdk_client
from tests.raw_server import Connection, answer, raw_server

TRUSTING = OAUTH.replace("[network]", '[network]\nca_file = "ca.pem"')


@dataclass
class Site:
    """The client's own web site."""

    said: dict[str, Any] = field(default_factory=dict)
    head: dict[str, str] = field(default_factory=dict)
    status: str = "200 OK"
    asked: int = 0
    url: str = ""

    def document(self, **more: Any) -> None:
        """What the document says, but for what is None."""
        said = {
            "client_id": self.url,
            "client_name": "The app",
            "redirect_uris": [CALLBACK],
            "token_endpoint_auth_method": "none",
            **more,
        }
        self.said = {name: value for name, value in said.items() if value is not None}


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
async def gateway(trusted: Authority) -> AsyncIterator[Running]:
    async with gateway_on(trusted.folder / "config.toml", TRUSTING) as made:
        yield made


Pair = tuple[Site, Running]


@pytest.fixture
async def pair(trusted: Authority, gateway: Running) -> AsyncIterator[Pair]:
    """A site of this test alone, since documents are believed for a while."""
    site = Site()

    async def serve(connection: Connection) -> None:
        while await connection.request():
            site.asked += 1
            body = json.dumps(site.said).encode()
            await connection.write(answer(body, site.status, site.head))

    async with raw_server(serve, trusted.server("localhost")) as server:
        site.url = f"https://localhost:{server.port}/{uuid.uuid4()}.json"
        site.document()
        yield site, gateway


async def test_the_sdks_client_is_known_by_its_document(pair: Pair) -> None:
    site, gateway = pair
    kept = Kept()
    person = Person(gateway.url)
    auth = sdk_auth(gateway.mcp, person, kept, site.url)
    client, http = sdk_client(gateway.mcp, auth)
    async with person.http, http, client:
        assert (await client.list_tools()).tools
    assert kept.client is not None and kept.client.client_id == site.url
    assert site.asked == 1  # it is believed for a while
    assert site.url.split("/")[2] in person.pages[0]


async def test_a_changed_document_is_asked_about_again(pair: Pair) -> None:
    site, gateway = pair
    async with (person := Person(gateway.url)).http, (program := Program(gateway.url)).http:
        program.id = site.url
        await program.sign_in(person)
        site.document(client_name="Another app")
        await program.sign_in(person)
        assert (person.questions, site.asked) == (1, 1)  # a document is believed for a while
    async with (
        gateway_on(gateway.config, TRUSTING) as other,  # on the same store
        (person := Person(other.url)).http,
        (program := Program(other.url)).http,
    ):
        program.id = site.url
        await program.sign_in(person)
        assert person.questions == 1 and "Another app" in person.pages[0]


@pytest.mark.parametrize(
    "change",
    [
        {"client_id": "https://localhost/other.json"},
        {"client_name": None},
        {"redirect_uris": []},
        {"redirect_uris": None},
        {"client_secret": "x"},
        {"client_secret_expires_at": 0},
        {"token_endpoint_auth_method": "client_secret_post"},
        {"jwks": {"keys": [{"kty": "EC", "d": "private"}]}},
        {"jwks": "keys"},
        {"jwks": {"keys": 5}},
        {"jwks": {"keys": [None]}},
        {"jwks_uri": "http://localhost/keys"},
        {"padding": "x" * 20_000},
    ],
)
async def test_a_document_that_is_not_right_lets_nobody_in(
    pair: Pair, change: dict[str, Any]
) -> None:
    site, gateway = pair
    site.document(**change)
    async with (person := Person(gateway.url)).http, (program := Program(gateway.url)).http:
        program.id = site.url
        for _ in range(2):
            answered = await person.http.get(program.link())
            assert answered.status_code == 400 and "location" not in answered.headers
    assert site.asked == 2  # what failed is not believed


@pytest.mark.parametrize(
    ("status", "head"),
    [("302 Found", {"Location": "/other.json"}), ("404 Not Found", {}), ("500 Oops", {})],
)
async def test_a_document_is_taken_from_its_very_address(
    pair: Pair, status: str, head: dict[str, str]
) -> None:
    site, gateway = pair
    site.status, site.head = status, head
    async with (person := Person(gateway.url)).http, (program := Program(gateway.url)).http:
        program.id = site.url
        assert (await person.http.get(program.link())).status_code == 400
    assert site.asked == 1


@pytest.mark.parametrize(
    "id",
    [
        "https://localhost/",
        "https://localhost",
        "https://u@localhost/c.json",
        "https://localhost/a/../c.json",
        "https://localhost/c.json#x",
        "https://10.1.2.3/c.json",
        "https://169.254.169.254/latest/c.json",
        "http://localhost/c.json",
        "https://[/c.json",
        "https://a..b/c.json",
        f"https://{'a' * 70}.example/c.json",
    ],
)
async def test_addresses_that_hide_where_they_lead_or_lead_inside_are_refused(
    gateway: Running, person: Person, program: Program, id: str
) -> None:
    program.id = id
    answered = await person.http.get(program.link())
    assert answered.status_code == 400 and "location" not in answered.headers


ODD: list[Any] = [
    None,
    True,
    0,
    -1.5,
    10**30,
    "",
    "x",
    "\0",
    "https://[",
    [],
    [None],
    [[]],
    [{}],
    {},
]
ODD += [{"keys": odd} for odd in (*ODD, [{"kty": "RSA", "n": 5, "e": []}], [{"kty": ["EC"]}])]
FIELDS = """client_id client_name redirect_uris token_endpoint_auth_method jwks jwks_uri
    client_secret logo_uri grant_types scope""".split()
ADDRESS = "https://app.example/c.json"


async def test_a_field_of_any_kind_breaks_neither_documents_nor_registrations(
    tmp_path: Path,
) -> None:
    good = {"client_id": ADDRESS, "client_name": "The app", "redirect_uris": [CALLBACK]}
    outcomes = Counter[str]()
    async with Database(f"sqlite:///{tmp_path}/gateway.db") as db, Egress() as egress:
        clients = Clients(db, egress, list, lambda: ["dynamic"])
        for field_name, odd in itertools.product(FIELDS, ODD):
            body = {**good, field_name: odd}
            try:
                described = _client_of_document(ADDRESS, Answer(200, (), json_bytes(body)))
                outcomes[f"document {len(described.digest)}"] += 1
            except OAuthError as refusal:
                outcomes[f"document {refusal.code}"] += 1
            try:
                outcomes[f"registration {len(await clients.register(body))}"] += 1
            except OAuthError as refusal:
                outcomes[f"registration {refusal.code}"] += 1
    assert len(outcomes) >= 4 and outcomes.total() == 2 * len(FIELDS) * len(ODD)


async def test_a_client_with_a_key_has_to_sign_and_each_signature_counts_once(pair: Pair) -> None:
    site, gateway = pair
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    keys = {"keys": [{**public, "kid": "k", "alg": "ES256"}]}
    site.document(token_endpoint_auth_method="private_key_jwt", jwks=keys)

    def assertion(signer: Any = key, **more: Any) -> dict[str, str]:
        claims = {
            "iss": site.url,
            "sub": site.url,
            "aud": gateway.url,
            "exp": time.time() + 60,
            "jti": str(uuid.uuid4()),
            **more,
        }
        signed = jwt.encode(claims, signer, "ES256", {"kid": "k"})
        kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        return {"client_assertion": signed, "client_assertion_type": kind}

    other = ec.generate_private_key(ec.SECP256R1())
    async with (person := Person(gateway.url)).http, (program := Program(gateway.url)).http:
        program.id = site.url
        code = (await person.sent_back(program.link()))["code"]
        bad = [
            {},
            assertion(other),
            assertion(aud="https://elsewhere.example"),
            assertion(sub="x"),
            assertion(exp=time.time() - 100),
            assertion(exp=float("inf")),
            assertion(exp=10**400),
        ]
        for proof in bad:
            refused = await program.exchange(code, **proof)
            assert (refused.status_code, refused.json()["error"]) == (401, "invalid_client")
        good = assertion()
        tokens = (await program.exchange(code, **good)).json()
        assert await program.status(tokens["access_token"]) == 200
        assert (await program.refresh(tokens["refresh_token"], **good)).status_code == 401
        assert (await program.refresh(tokens["refresh_token"], **assertion())).status_code == 200
