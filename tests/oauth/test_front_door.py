"""Clients that know only an address are let in by a person; with `sign_in = "token"`."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.conftest import Running, gateway_on
from tests.mcp.raw import ACCEPT
from tests.oauth.conftest import NewPerson
from tests.oauth.people import OAUTH, TOKENS, Kept, Person, Program, form_of, sdk_auth, sdk_client


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
@pytest.mark.parametrize(
    ("path", "name"),
    [("/mcp", "ann"), ("/mcp/bundles/books", "ann"), ("/mcp/steps/shop/look", "zoe")],
)
async def test_the_sdks_client_signs_in_lists_calls_and_refreshes(
    gateway: Running, new_person: NewPerson, path: str, name: str, era: str
) -> None:
    person, kept = new_person(name), Kept()
    address = f"{gateway.url}{path}"
    client, http = sdk_client(address, sdk_auth(address, person, kept), mode=era)
    async with http, client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "demo_list_books" in names
        result = await client.call_tool("demo_list_books", {})
        assert not result.is_error
    assert person.questions == 1 and kept.tokens is not None
    # Its access token is lost, its refresh token is not: nobody is asked again.
    kept.tokens = kept.tokens.model_copy(update={"access_token": "gone", "expires_in": 1})
    auth = sdk_auth(address, person, kept)
    await auth._initialize()
    auth.context.token_expiry_time = 1.0
    client, http = sdk_client(address, auth, mode=era)
    async with http, client:
        assert (await client.list_tools()).tools
    assert person.questions == 1


async def test_a_challenge_names_the_document_of_the_very_address(
    gateway: Running, program: Program
) -> None:
    for path in ("/mcp", "/mcp/bundles/books", "/mcp/steps/shop/look"):
        answer = await program.http.post(path, json={}, headers={"accept": "application/json"})
        assert answer.status_code == 401
        where = answer.headers["www-authenticate"].split('resource_metadata="')[1].split('"')[0]
        assert where == f"{gateway.url}/.well-known/oauth-protected-resource{path}"
        document = (await program.http.get(where)).json()
        assert document["resource"] == f"{gateway.url}{path}"
        assert document["authorization_servers"] == [gateway.url]
    root = (await program.http.get("/.well-known/oauth-protected-resource")).json()
    assert root["resource"] == gateway.mcp
    for name in ("oauth-authorization-server", "openid-configuration"):
        server = (await program.http.get(f"/.well-known/{name}")).json()
        assert server["issuer"] == gateway.url
        assert server["code_challenge_methods_supported"] == ["S256"]


async def test_a_token_opens_its_own_address_and_nothing_else(
    gateway: Running, person: Person, program: Program
) -> None:
    whole = (await program.sign_in(person))["access_token"]
    bundle = f"{gateway.url}/mcp/bundles/books"
    narrow = (await program.sign_in(person, resource=bundle))["access_token"]
    found = {
        path: (await program.status(whole, path), await program.status(narrow, path))
        for path in ("/mcp", "/mcp/bundles/books", "/mcp/bundles/other", "/api/v1/tools")
    }
    assert found == {
        "/mcp": (200, 401),
        "/mcp/bundles/books": (401, 200),
        "/mcp/bundles/other": (401, 401),
        "/api/v1/tools": (200, 401),
    }
    said = await person.sent_back(program.link(resource="https://elsewhere.example/mcp"))
    assert said["error"] == "invalid_target" and said["iss"] == gateway.url


async def test_what_was_sealed_for_another_use_is_no_token(
    person: Person, program: Program
) -> None:
    token = (await program.sign_in(person))["access_token"]
    params = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "x", "version": "1"}}
    params["capabilities"] = {}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    headers = ACCEPT | {"authorization": f"Bearer {token}"}
    met = await program.http.post("/mcp", json=body, headers=headers)
    await program.register()  # anew: the person is asked again
    page = (await person.http.get(program.link())).text
    asked = form_of(page, "/oauth/consent")["request"]
    for sealed in (asked, *person.http.cookies.values(), met.headers["mcp-session-id"]):
        assert await program.status(sealed) == await program.status(sealed, "/api/v1/tools") == 401
        assert (await program.refresh(sealed)).json()["error"] == "invalid_grant"
        assert (await program.exchange(sealed)).json()["error"] == "invalid_grant"
        fields = {"token": sealed, "client_id": program.id}
        assert (await program.http.post("/oauth/revoke", data=fields)).status_code == 200


async def test_a_form_whose_charset_makes_halves_of_letters_is_refused(program: Program) -> None:
    part = 'content-disposition: form-data; name="code_verifier"\r\n\r\n+2AA-'  # half of a letter
    headers = {"content-type": "multipart/form-data; boundary=x; charset=utf-7"}
    answer = await program.http.post(
        "/oauth/token", content=f"--x\r\n{part}\r\n--x--\r\n", headers=headers
    )
    assert answer.status_code == 400 and "UTF-8" in answer.text


async def test_a_code_works_once_and_its_second_use_revokes_what_it_gave(
    gateway: Running, person: Person, program: Program
) -> None:
    await program.register()
    said = await person.sent_back(program.link())
    assert said["state"] == "s-1" and said["iss"] == gateway.url
    wrong = await program.exchange(said["code"], code_verifier="x" * 50)
    assert wrong.json()["error"] == "invalid_grant"
    other = await program.exchange(said["code"], redirect_uri="http://127.0.0.1:1/callback")
    assert other.json()["error"] == "invalid_grant"
    first = (await program.exchange(said["code"])).json()
    assert await program.status(first["access_token"]) == 200
    assert (await program.exchange(said["code"])).json()["error"] == "invalid_grant"
    assert await program.is_locked_out(first["access_token"])
    assert (await program.refresh(first["refresh_token"])).json()["error"] == "invalid_grant"


async def test_refresh_tokens_rotate_and_an_old_one_revokes_the_grant(
    gateway: Running, person: Person, program: Program
) -> None:
    first = await program.sign_in(person)
    second = (await program.refresh(first["refresh_token"])).json()
    again = (await program.refresh(first["refresh_token"])).json()
    assert again == second  # the answer was lost, or two processes asked
    third = (await program.refresh(second["refresh_token"])).json()
    assert third["refresh_token"] != second["refresh_token"]
    assert (await program.refresh(first["refresh_token"])).json()["error"] == "invalid_grant"
    assert (await program.refresh(third["refresh_token"])).json()["error"] == "invalid_grant"
    assert await program.is_locked_out(third["access_token"])


async def test_grants_outlive_the_process(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    async with gateway_on(config, OAUTH) as one:
        person, program = Person(one.url), Program(one.url)
        async with person.http, program.http as http:
            kept, revoked = [await program.sign_in(person) for _ in range(2)]
            given = {"client_id": program.id, "token": revoked["refresh_token"]}
            assert (await http.post("/oauth/revoke", data=given)).status_code == 200
    text = OAUTH + f'[server]\npublic_url = "{one.url}"\n'
    async with gateway_on(config, text) as two:
        program.http = Program(two.url).http
        async with program.http:
            assert await program.status(kept["access_token"]) == 200
            assert await program.status(revoked["access_token"]) == 401
            assert (await program.refresh(kept["refresh_token"])).status_code == 200


async def test_pages_of_any_site_may_ask_what_takes_proof_of_its_own(program: Program) -> None:
    origin = {"origin": "https://inspector.example"}
    asks = {**origin, "access-control-request-method": "POST"}
    for path in ("/oauth/token", "/oauth/register", "/oauth/revoke", "/token", "/register"):
        preflight = await program.http.options(path, headers=asks)
        assert preflight.status_code == 204
        answer = await program.http.post(path, headers=origin)
        for each in (preflight, answer):
            assert each.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in each.headers
        assert answer.status_code in (400, 401)
    for name in ("oauth-protected-resource/mcp", "oauth-authorization-server"):
        document = await program.http.get(f"/.well-known/{name}", headers=origin)
        assert (document.status_code, document.headers["access-control-allow-origin"]) == (200, "*")
    for path in ("/oauth/authorize", "/api/v1/tools", "/console/sign-in"):
        assert (await program.http.get(path, headers=origin)).status_code == 403


async def test_too_many_requests_of_one_address_are_put_off(lone_program: Program) -> None:
    async with aiohttp.ClientSession() as http:  # quicker, so that a busy machine needs no minute
        link = f"{lone_program.url}/oauth/authorize"
        statuses = [(await http.get(link)).status for _ in range(601)]
    assert set(statuses[:600]) == {400} and statuses[600] == 429


async def test_a_replaced_token_ends_what_clients_were_let_in_for_by_it(
    gateway: Running, program: Program
) -> None:
    async def token_of_guest() -> str:
        """A new one, as after the old one fell into wrong hands, or the name went to another."""
        address, root = "/api/v1/principals/guest", {"authorization": f"Bearer {TOKENS['root']}"}
        made = await program.http.put(address, json={"new_token": True}, headers=root)
        return str(made.json()["token"])

    first = Person(gateway.url, await token_of_guest())
    async with first.http:
        given = await program.sign_in(first)
        assert await program.status(given["access_token"]) == 200
        second = Person(gateway.url, await token_of_guest())
        assert await program.is_locked_out(given["access_token"])
        assert (await program.refresh(given["refresh_token"])).json()["error"] == "invalid_grant"
    async with second.http:
        newer = await program.sign_in(second)
        assert second.questions == 1  # what the other one allowed is not theirs
        assert await program.status(newer["access_token"]) == 200


async def test_a_token_that_config_replaces_ends_what_clients_were_let_in_for_by_it(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.toml"
    edited = OAUTH.replace(TOKENS["ann"], "another-token-0123456789")
    async with gateway_on(config, OAUTH) as one:
        ann, bob = (Person(one.url, TOKENS[name]) for name in ("ann", "bob"))
        program, port = Program(one.url), one.port
        async with ann.http, bob.http, program.http:
            live, later, others = [await program.sign_in(each) for each in (ann, ann, bob)]
            config.write_text(edited, encoding="utf-8")
            assert await program.is_locked_out(live["access_token"])
            refused = await program.refresh(live["refresh_token"])
            assert refused.json()["error"] == "invalid_grant"
            assert await program.status(others["access_token"]) == 200
            newer = Person(one.url, "another-token-0123456789")
            async with newer.http:
                assert newer.questions == 0
                await program.sign_in(newer)
                assert newer.questions == 1  # what the other token allowed is not theirs
    async with gateway_on(config, edited, at=port) as two:  # which never knew the other token
        program.http = Program(two.url).http
        async with program.http:
            assert await program.status(later["access_token"]) == 401
            refused = await program.refresh(later["refresh_token"])
            assert refused.json()["error"] == "invalid_grant"
            assert (await program.refresh(others["refresh_token"])).status_code == 200
