"""What a person sees and decides, and what nobody can decide for them."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.conftest import Running
from tests.oauth.conftest import NewPerson
from tests.oauth.people import Person, Program, form_of


async def test_consent_is_asked_once_and_names_who_asks_and_where_it_leads(
    gateway: Running, person: Person, program: Program
) -> None:
    await program.register(client_name="Shiny\u202eagent")
    await program.sign_in(person)
    await program.sign_in(person)
    assert person.questions == 1
    page = person.pages[0]
    for shown in ("Shinyagent", "127.0.0.1:41999", gateway.mcp, "ann", "nobody: it named itself"):
        assert shown in page
    assert "\u202e" not in page


async def test_denying_tells_the_client_and_gives_nothing(person: Person, program: Program) -> None:
    await program.register()
    person.decision = "deny"
    said = await person.sent_back(program.link())
    assert said["error"] == "access_denied" and "code" not in said
    person.decision = "allow"
    await program.sign_in(person)
    assert person.questions == 2  # a denial is not remembered


async def test_a_page_of_the_front_door_can_not_be_framed_or_scripted(
    person: Person, program: Program
) -> None:
    await program.register(redirect_uris=["https://app.example/back"])
    await person.visit("/oauth/sign-in")
    answer = await person.http.get(program.link(redirect_uri="https://app.example/back"))
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy and "script-src 'self'" in policy
    assert "form-action 'self' https://app.example;" in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-store"
    assert "app.example" in answer.text


@pytest.mark.parametrize("broken", ["csrf", "origin", "cookie", "another's", "changed"])
async def test_a_consent_that_is_not_the_persons_own_is_refused(
    gateway: Running, new_person: NewPerson, program: Program, broken: str
) -> None:
    await program.register()
    person, other = new_person("ann"), new_person("bob")
    for each in (person, other):
        await each.visit("/oauth/sign-in")
    page = (await person.http.get(program.link())).text
    fields = {**form_of(page, "/oauth/consent"), "decision": "allow"}
    headers = {}
    if broken == "csrf":
        fields["csrf"] = "0" * 64
    elif broken == "origin":
        headers["origin"] = "https://evil.example"
    elif broken == "cookie":
        person.http.cookies.clear()
    elif broken == "another's":
        theirs = form_of((await other.http.get(program.link())).text, "/oauth/consent")
        fields["request"] = theirs["request"]
    else:
        fields["request"] = fields["request"][:-6] + "AAAAA="
    answer = await person.post("/oauth/consent", fields, headers=headers)
    assert answer.status_code in (400, 403) and "location" not in answer.headers


async def test_somebody_else_may_sign_in_to_answer(
    gateway: Running, person: Person, program: Program
) -> None:
    await program.register()
    await person.visit("/oauth/sign-in")
    page = (await person.http.get(program.link())).text
    answer = await person.post("/oauth/sign-out", form_of(page, "/oauth/sign-out"))
    assert answer.status_code == 303
    person.token = "bob-token-0123456789"
    back = await person.visit(answer.headers["location"])
    code = dict(parse_qsl(urlsplit(back.headers["location"]).query))["code"]
    tokens = (await program.exchange(code)).json()
    headers = {"authorization": f"Bearer {tokens['access_token']}"}
    grants = (await program.http.get("/api/v1/grants", headers=headers)).json()["grants"]
    assert [each["principal"] for each in grants] == ["bob"]


@pytest.mark.parametrize(
    "redirect",
    [
        "http://127.0.0.1:41999/callback/",
        "http://127.0.0.1:41999/callback?x=1",
        "http://localhost:41999/callback",
        "http://127.0.0.1.evil.example/callback",
        "http://user@127.0.0.1:41999/callback",
        "https://127.0.0.1:41999/callback",
        "http://127.0.0.1:41999/callback#x",
        "javascript:alert(1)",
    ],
)
async def test_a_redirect_that_is_not_the_clients_own_gets_a_page_and_no_redirect(
    person: Person, program: Program, redirect: str
) -> None:
    await program.register()
    answer = await person.http.get(program.link(redirect_uri=redirect))
    assert answer.status_code == 400 and "location" not in answer.headers
    unknown = await person.http.get(program.link(client_id="nobody"))
    assert unknown.status_code == 400 and "location" not in unknown.headers


async def test_the_port_of_a_redirect_to_this_machine_is_free(
    person: Person, program: Program
) -> None:
    await program.register(redirect_uris=["http://127.0.0.1/callback", "http://localhost:3118/cb"])
    for redirect in ("http://127.0.0.1:50123/callback", "http://localhost:1/cb"):
        program.redirect = redirect
        assert "code" in await person.sent_back(program.link())


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"resource": "http://127.0.0.1:1/mcp"}, "invalid_target"),
        ({"resource": "no address"}, "invalid_target"),
    ],
)
async def test_what_is_wrong_with_a_request_is_told_to_its_client(
    gateway: Running, person: Person, program: Program, changed: dict[str, str], error: str
) -> None:
    await program.register()
    said = await person.sent_back(program.link(**changed))
    assert (said["error"], said["state"], said["iss"]) == (error, "s-1", gateway.url)


async def test_a_wrong_token_signs_nobody_in_and_guessing_is_slowed_down(
    lone_program: Program,
) -> None:
    http, statuses = lone_program.http, []
    for n in range(12):
        guess = {"token": f"guess-{n}", "onward": "//evil"}
        statuses.append((await http.post("/oauth/sign-in", data=guess)).status_code)
    assert statuses[0] == 401 and statuses[-1] == 429
    assert not http.cookies


async def test_signing_in_leads_only_to_addresses_of_ours(person: Person) -> None:
    for onward in ("https://evil.example", "//evil.example", "/oauth/authorize?x=1\r\nX: y"):
        answer = await person.post("/oauth/sign-in", {"token": person.token, "onward": onward})
        assert answer.status_code == 303
        assert answer.headers["location"].startswith(("/console", "/oauth/authorize?"))
        assert "x" not in answer.headers
