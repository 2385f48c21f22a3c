"""How clients make themselves known: by registration, by a document, by configuration."""

from __future__ import annotations

import pytest

from gateway.store.database import Database
from gateway.store.oauth import Consent, add_client, get_client, save_consent
from tests.conftest import GatewayMaker, Running
from tests.oauth.people import OAUTH, Person, Program

CURSOR = [
    "cursor://anysphere.cursor-mcp/oauth/callback",
    "https://www.cursor.com/agents/mcp/oauth/callback",
    "http://localhost:8787/callback",
]


@pytest.mark.parametrize(
    "body",
    [
        {"redirect_uris": CURSOR, "client_name": "Cursor", "token_endpoint_auth_method": "none"},
        {"redirect_uris": ["http://127.0.0.1/", "https://vscode.dev/redirect"], "scope": "x y"},
        {"redirect_uris": CURSOR, "application_type": None, "logo_uri": None, "x": {"y": 1}},
        {
            "redirect_uris": CURSOR,
            "grant_types": ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"],
            "software_id": "s",
        },
    ],
)
async def test_bodies_of_real_clients_are_taken(program: Program, body: dict[str, object]) -> None:
    answer = await program.http.post("/oauth/register", json=body)
    assert answer.status_code == 201
    told = answer.json()
    assert told["redirect_uris"] == body["redirect_uris"]
    assert "client_secret" not in told and not told["client_id"].startswith("https:")
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "uri",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "http://app.example/callback",
        "https://user:pw@app.example/",
        "https://app.example/#fragment",
        "https:///path",
        "//app.example/",
        "https://app.example/\nx",
        "",
        7,
    ],
)
async def test_redirects_that_no_client_should_have_are_refused(
    program: Program, uri: object
) -> None:
    body = {"redirect_uris": ["https://good.example/", uri]}
    answer = await program.http.post("/oauth/register", json=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_redirect_uri")


@pytest.mark.parametrize("method", ["client_secret_post", "client_secret_basic"])
async def test_a_client_with_a_secret_has_to_show_it(
    person: Person, program: Program, method: str
) -> None:
    secret = (await program.register(token_endpoint_auth_method=method))["client_secret"]
    said = await person.sent_back(program.link())
    refused = await program.exchange(said["code"], client_secret="wrong")
    assert (refused.status_code, refused.json()["error"]) == (401, "invalid_client")
    if method == "client_secret_post":
        answer = await program.exchange(said["code"], client_secret=secret)
    else:
        program.http.auth = (program.id, secret)
        answer = await program.exchange(said["code"])
    assert answer.status_code == 200


async def test_registration_is_bounded_a_minute(lone_program: Program) -> None:
    body, http = {"redirect_uris": ["https://app.example/"]}, lone_program.http
    statuses = [(await http.post("/oauth/register", json=body)).status_code for _ in range(62)]
    assert statuses[:60] == [201] * 60 and statuses[-1] == 429


async def test_new_clients_take_the_place_of_unused_ones_only(store_url: str) -> None:
    async with Database(store_url) as db:
        await add_client(db, "used", {}, 1.0, most=2)
        await save_consent(db, Consent("ann", "used", "digest", "tools:read", 2.0))
        for at, id in enumerate(("older", "newer"), 3):
            await add_client(db, id, {}, at, most=2)
        kept = [id for id in ("used", "older", "newer") if await get_client(db, id) is not None]
    assert kept == ["used", "newer"]


async def test_only_configured_clients_where_registration_is_off(
    make_gateway: GatewayMaker,
) -> None:
    text = (
        OAUTH
        + """
[auth.oauth]
registration = []
[clients.desk]
client_id = "desk"
display_name = "The desk"
redirect_uris = ["https://desk.example/back"]
[clients.robot]
client_id = "robot"
client_secret = "robot-secret-0123456789"
principal = "bob"
"""
    )
    gateway: Running = await make_gateway(text)
    async with (program := Program(gateway.url)).http as http:
        body = {"redirect_uris": ["https://app.example/"]}
        assert (await http.post("/oauth/register", json=body)).status_code == 403
        document = (await http.get("/.well-known/oauth-authorization-server")).json()
        assert "registration_endpoint" not in document
        assert document["client_id_metadata_document_supported"] is False
        someone = Person(gateway.url)
        async with someone.http:
            program.id, program.redirect = "desk", "https://desk.example/back"
            assert (await program.sign_in(someone))["token_type"] == "Bearer"
        program.id = "robot"
        asked = {"grant_type": "client_credentials", "scope": "tools:read"}
        assert (await program.token(**asked)).status_code == 401
        tokens = (await program.token(**asked, client_secret="robot-secret-0123456789")).json()
        assert tokens["scope"] == "tools:read" and "refresh_token" not in tokens
        assert await program.status(tokens["access_token"]) == 200
        program.id = "desk"
        assert (await program.token(**asked)).json()["error"] == "unauthorized_client"
