"""What may be configured of people's own credentials, and what else goes by whose they are."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.fernet import Fernet, InvalidToken
from sqlalchemy import select

from gateway.catalog.discover import source_of
from gateway.config.connection import ManifestConnection
from gateway.config.file import parse_connection, parse_settings
from gateway.config.settings import Azure, Limits
from gateway.connectors.manifest import load_builtin
from gateway.errors import ConfigInvalid
from gateway.model import pack
from gateway.reader import build_definition
from gateway.sign_in.client import authorize_address
from gateway.sign_in.discovery import Discovery
from gateway.store import tables
from gateway.store.secrets import Seal
from tests.conftest import GatewayMaker, Running, gateway_on
from tests.oauth.people import OAUTH, TOKENS, Program
from tests.peers import until
from tests.processes import gateway_command
from tests.sign_in.conftest import TOKENS_MODE, House, mcp_client, signed_in_at
from tests.sign_in.servers import Notes

CODE = 'grant = "authorization_code", per = "user"'
GITHUB = 'authorize_url = "https://x/a", token_url = "https://x/t", client_id = "c"'


@pytest.mark.parametrize(
    ("auth", "kind", "problem"),
    [
        (f'type = "oauth2", {CODE}', "openapi", "auth.authorize_url is required"),
        (f'type = "oauth2", {CODE}, {GITHUB}', "openapi", None),
        (f'type = "oauth2", {CODE}', "mcp", None),
        (
            f'type = "oauth2", {CODE}, {GITHUB.replace("https://x/t", "http://10.0.0.1/t")}',
            "openapi",
            "auth.token_url: must be https",
        ),
        ('type = "bearer", per = "user"', "openapi", None),
        ('type = "bearer", per = "user", token = "t"', "openapi", "remove `token`"),
        ('type = "oauth2", grant = "token_exchange", token_url = "https://x"', "openapi", "jwt"),
        ('type = "oauth2", per = "user", token_url = "x"', "openapi", "is required for grant"),
    ],
)
def test_what_may_be_configured(auth: str, kind: str, problem: str | None) -> None:
    place = 'spec = "x.json"' if kind == "openapi" else 'url = "https://x.example/mcp"'
    text = f'[connections.x]\nkind = "{kind}"\n{place}\nauth = {{ {auth} }}\n'
    if problem is None:
        parse_settings(text.encode(), "config.toml")
        return
    with pytest.raises(ConfigInvalid) as caught:
        parse_settings(text.encode(), "config.toml")
    assert problem in "\n".join(caught.value.problems)


async def test_an_approval_shows_on_whose_behalf_the_call_goes_out(
    make_gateway: GatewayMaker, peer: Notes
) -> None:
    text = TOKENS_MODE.replace("full_access", "execute_with_confirm")
    gateway: Running = await make_gateway(text)
    asked: list[Any] = []

    async def answer(context: Any, params: Any) -> Any:
        asked.append(params.message)
        await asyncio.sleep(30)

    async with House(gateway.url, peer, gateway) as house:
        await house.put()
        await house.sign_in("ann")
        async with mcp_client(house.url, "ann", "legacy", answer) as client:
            call = asyncio.create_task(client.call_tool("notes_add_note", {"text": "hi"}))
            await until(lambda: bool(asked))
            (row,) = (await house.api("root")("GET", "/approvals"))["approvals"]
            assert row["on_behalf_of"] == "ann"
            assert "On behalf of: ann" in asked[0]
            page = await house.person("root").http.get("/console/approvals")
            assert page.status_code == 303  # nobody is signed in to the console yet
            await house.api("root")("POST", f"/approvals/{row['id']}", {"decision": "approve"})
            result = await call
            assert result.structured_content and result.structured_content["who"] == "ann"


@pytest.mark.parametrize(("per", "others"), [("user", "go on"), ("connection", "wait")])
async def test_rate_limits_are_a_persons_own_or_of_all(house: House, per: str, others: str) -> None:
    limit = {"requests": 2, "window_seconds": 60, "per": per}
    await house.put(**signed_in_at(house.peer), rate_limit=limit)
    for name in ("ann", "bob"):
        await house.sign_in(name)
    ann, bob = house.api("ann"), house.api("bob")
    codes = [(await ann.call("notes_get_notes", id="1"))["error"] for _ in range(3)]
    assert [code and code["code"] for code in codes] == [None, None, "rate_limited"]
    found = await bob.call("notes_get_notes", id="1")
    assert (found["error"] is None) == (others == "go on")


async def test_one_persons_failures_leave_the_circuit_of_others_closed(house: House) -> None:
    limit = {"requests": 1000, "window_seconds": 60, "per": "user"}
    await house.put(**signed_in_at(house.peer), rate_limit=limit)
    for name in ("ann", "bob"):
        await house.sign_in(name)
    house.peer.broken_for = "ann"
    ann, bob = house.api("ann"), house.api("bob")
    codes = [(await ann.call("notes_get_notes", id="1"))["error"]["code"] for _ in range(7)]
    assert codes[-1] == "circuit_open"
    assert (await bob.call("notes_get_notes", id="1"))["output"]["who"] == "bob"


async def test_the_callers_own_token_is_exchanged(make_gateway: GatewayMaker, peer: Notes) -> None:
    auth = (
        f'{{ type = "oauth2", grant = "token_exchange", token_url = "{peer.url}/token",'
        ' client_id = "gw", client_secret = "gw-secret-0123456789", audience = "notes" }'
    )
    table = f'[connections.notes]\nkind = "openapi"\nspec = "{peer.url}/openapi.json"\n'
    gateway: Running = await make_gateway(f"{OAUTH}{table}auth = {auth}\n")
    async with House(gateway.url, peer, gateway) as house:
        program = Program(gateway.url)
        async with program.http:
            tokens = await program.sign_in(house.person("ann"), scope="tools:read tools:write")
            headers = {"authorization": f"Bearer {tokens['access_token']}"}
            path = "/api/v1/tools/notes_get_notes/call"
            body = {"arguments": {"id": "1"}}
            for _ in range(3):
                answer = await program.http.post(path, json=body, headers=headers)
                assert answer.json()["output"]["who"].startswith("exchanged "), answer.text
    (form,) = peer.forms
    assert form["subject_token"] == tokens["access_token"]
    assert (form["audience"], form["grant_type"]) == (
        "notes",
        "urn:ietf:params:oauth:grant-type:token-exchange",
    )


async def until_sealed(gateway: Running, seal: Seal) -> None:
    """Waits until what people gave can be opened with this key."""
    db, rows = gateway.app.gateway.db, select(tables.credentials.c.sealed)
    async with asyncio.timeout(60):
        while True:
            (sealed,) = await db.read(lambda tx: list(tx.execute(rows).scalars()))
            with suppress(InvalidToken):
                seal.decrypt(sealed)
                return
            await asyncio.sleep(0.02)


async def test_a_key_that_was_replaced_can_go(
    tmp_path: Path, peer: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    config = tmp_path / "config.toml"
    for keys in (old, f"{new}\n{old}", new):
        monkeypatch.setenv("GATEWAY_SECRET_KEY", keys)
        async with (
            gateway_on(config, TOKENS_MODE) as gateway,
            House(gateway.url, peer, gateway) as house,
        ):
            if keys == old:
                await house.put()
                await house.sign_in("ann")
            found = await house.api("ann").call("notes_get_notes", id="1")
            assert found["output"]["who"] == "ann"
            sealed = Seal([keys.split()[0]])  # with the first key alone, in the background
            await until_sealed(gateway, sealed)


async def test_the_command_signs_in_and_out(house: House) -> None:
    await house.put()
    server = ("--url", house.url, "--token", TOKENS["ann"])
    _, out, _ = await gateway_command("credentials", "list", *server)
    assert "notes" in out and " no " in out
    waiting = asyncio.create_task(gateway_command("credentials", "sign-in", "notes", *server))
    async with asyncio.timeout(60):
        while not waiting.done():  # whenever the command begins to wait, the next one is for it
            await house.sign_in("ann")
            await asyncio.sleep(0.2)
    code, out, err = await waiting
    assert (code, out.strip()) == (0, "signed in to notes")
    assert f"{house.url}/oauth/connect/" in err
    assert (await house.api("ann").call("notes_get_notes", id="1"))["output"]["who"] == "ann"
    code, out, _ = await gateway_command("credentials", "delete", "notes", *server)
    assert (code, out.strip()) == (0, "signed out of notes")
    (row,) = (await house.api("ann")("GET", "/credentials"))["credentials"]
    assert not row["signed_in"]


async def test_everything_is_there_in_the_console(house: House) -> None:
    await house.put()
    person = house.person("ann")
    await person.post("/oauth/sign-in", {"token": person.token, "onward": ""})
    page = await person.http.get("/console/access")
    assert "My sign-ins" in page.text and "not yet" in page.text
    csrf = page.text.split('name="csrf" value="')[1].split('"')[0]
    answer = await person.post("/console/credentials/notes/sign-in", {"csrf": csrf})
    link = answer.headers["location"]
    assert "Signed in to" in (await person.sign_in(link)).text
    page = await person.http.get("/console/access")
    assert "Sign out" in page.text
    answer = await person.post("/console/credentials/notes/sign-out", {"csrf": csrf})
    assert answer.status_code in (200, 303)
    (row,) = (await house.api("ann")("GET", "/credentials"))["credentials"]
    assert not row["signed_in"]


async def test_without_tokens_whoever_reaches_the_gateway_signs_in(
    gateway: Running, peer: Notes
) -> None:
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as http:
        put = await http.put("/api/v1/connections/notes", json=signed_in_at(peer))
        assert put.status_code == 200, put.text
        found = (
            await http.post("/api/v1/tools/notes_get_notes/call", json={"arguments": {"id": "1"}})
        ).json()
        link = found["error"]["sign_in_url"]
        async with House(gateway.url, peer, gateway) as house:
            page = await house.person("ann").sign_in(link)
            assert "Signed in to" in page.text, page.text
        found = (
            await http.post("/api/v1/tools/notes_get_notes/call", json={"arguments": {"id": "1"}})
        ).json()
        assert found["output"]["who"] == "ann"


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        (
            {"kind": "manifest", "manifest": "zoho-recruit", "region": "eu"},
            "https://accounts.zoho.eu/oauth/v2/auth?access_type=offline&prompt=consent",
        ),
        (
            {"kind": "manifest", "manifest": "lever"},
            "https://auth.lever.co/authorize?audience=https%3A%2F%2Fapi.lever.co%2Fv1%2F"
            "&prompt=consent",
        ),
        (
            {"kind": "arm", "api": "office365"},
            "https://login.example/t/oauth2/v2.0/authorize",
        ),
    ],
)
async def test_where_to_sign_in_is_known_of_providers_and_azure(
    connection: dict[str, Any], expected: str
) -> None:
    auth = {"type": "oauth2", "grant": "authorization_code", "per": "user", "client_id": "c"}
    settings = parse_connection("x", {**connection, "auth": auth})
    build = None
    if isinstance(settings, ManifestConnection):
        raw = load_builtin(settings.manifest)
        build = build_definition(pack(raw), source_of("x", settings, Limits(), settings.manifest))
    token_url = "https://login.example/t/oauth2/v2.0/token"
    gateways = {"type": "oauth2", "token_url": token_url, "client_id": "g", "client_secret": "s"}
    azure = Azure.model_validate(
        {"subscription_id": "s", "resource_group": "r", "location": "l", "auth": gateways}
    )
    nothing: Any = None
    discovery = Discovery(nothing, nothing, nothing, lambda: (), "https://gw.example")
    server = await discovery.server_of("x", settings, build, azure)
    address = authorize_address(server, "https://gw.example/oauth/callback", "s", "v")
    assert server.authorize_url == expected
    assert address.startswith(f"{expected}{'&' if '?' in expected else '?'}response_type=code")
