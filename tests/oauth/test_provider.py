"""People sign in at a real OpenID provider that knows nothing of dynamic registration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.conftest import Running, gateway_on
from tests.oauth.openid import Provider, Somebody, needs_provider, running_provider
from tests.oauth.people import OAUTH, Kept, Program, sdk_auth, sdk_client

pytestmark = needs_provider

SECTION = """
[auth.oauth]
sign_in = "oidc"
issuer = "{issuer}"
client_id = "gateway"
client_secret = "{secret}"
scopes = ["openid", "email"]
principal_claim = "{claim}"
role_claim = "team"
admin_claim = "boss"
"""


Set = tuple[Running, Provider, Callable[..., Somebody]]


@pytest.fixture(scope="module", params=["id_token", "userinfo"])
async def signed(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Set]:
    """A gateway behind the provider, whose claims are in the ID token, or only in userinfo."""
    async with running_provider(request.param) as provider, AsyncExitStack() as stack:
        secret = "provider-secret-0123456789"
        section = SECTION.format(issuer=provider.issuer, secret=secret, claim="email")
        config = tmp_path_factory.mktemp("gateway") / "config.toml"
        gateway = await stack.enter_async_context(gateway_on(config, OAUTH + section))
        await provider.answer_at(f"{gateway.url}/oauth/callback")

        def somebody(login: str = "ann") -> Somebody:
            made = Somebody(gateway.url)
            made.login = login
            stack.push_async_callback(made.http.aclose)
            return made

        yield gateway, provider, somebody


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_the_sdks_client_is_let_in_by_whoever_the_provider_knows(
    signed: Set, era: str
) -> None:
    gateway, _, somebody = signed
    person, kept = somebody("ann"), Kept()
    client, http = sdk_client(gateway.mcp, sdk_auth(gateway.mcp, person, kept), mode=era)
    async with http, client:
        assert "demo_list_books" in {tool.name for tool in (await client.list_tools()).tools}
    assert kept.tokens is not None
    headers = {"authorization": f"Bearer {kept.tokens.access_token}"}
    async with httpx2.AsyncClient(base_url=gateway.url, headers=headers, timeout=60) as http:
        grants = (await http.get("/api/v1/grants")).json()["grants"]
        assert {grant["principal"] for grant in grants} == {"ann@people.example"}


async def test_claims_say_who_is_an_admin(signed: Set) -> None:
    gateway, _, somebody = signed
    async with (program := Program(gateway.url)).http as http:
        for login, status in (("root", 200), ("ann", 403)):
            tokens = await program.sign_in(somebody(login))
            headers = {"authorization": f"Bearer {tokens['access_token']}"}
            answer = await http.get("/api/v1/approvals", headers=headers)
            assert answer.status_code == status


async def test_an_email_that_nobody_verified_lets_nobody_in(signed: Set) -> None:
    gateway, _, somebody = signed
    async with (program := Program(gateway.url)).http:
        await program.register()
        answer = await somebody("unverified").visit(program.link())
        assert answer.status_code == 400 and "not verified this email" in answer.text


async def test_a_sign_in_goes_on_only_in_the_browser_that_began_it(signed: Set) -> None:
    gateway, provider, somebody = signed
    victim, attacker = somebody("ann"), somebody("mallory")
    async with (program := Program(gateway.url)).http:
        await program.register()
        begun = await attacker.http.get(program.link())
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        for forged in (f"code=abc&state={state}", "code=abc&state=", "code=abc&state=other"):
            answer = await victim.http.get(f"/oauth/callback?{forged}")
            assert answer.status_code == 400 and not answer.headers.get("set-cookie")
        wrong = await attacker.http.get(
            f"/oauth/callback?code=abc&state={state}&iss=https://elsewhere.example"
        )
        assert wrong.status_code == 400 and "another provider" in wrong.text
        made_up = await attacker.http.get(f"/oauth/callback?code=abc&state={state}")
        assert made_up.status_code == 400 and "invalid_grant" in made_up.text
        assert provider.issuer not in made_up.text
