"""People sign in at a real OpenID provider that knows nothing of dynamic registration."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
import pytest

from tests.conftest import GatewayMaker, Running
from tests.oauth.people import OAUTH, Kept, Person, Program, sdk_auth, sdk_client

HERE = Path(__file__).parent
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(
    NODE is None or not (HERE / "node_modules" / "oidc-provider").exists(),
    reason="needs node and `make tests/oauth/node_modules/ready`",
)

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


class Provider:
    """The provider's process: its address, and who signs in there."""

    def __init__(self, process: Any, issuer: str) -> None:
        self._process = process
        self.issuer = issuer

    async def answer_at(self, redirect: str) -> None:
        self._process.stdin.write(f"{redirect}\n".encode())
        assert await self._process.stdout.readline() == b"ready\n"


@asynccontextmanager
async def running_provider(*options: str) -> AsyncIterator[Provider]:
    process = await asyncio.create_subprocess_exec(
        *(NODE or "", str(HERE / "provider.mjs"), *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            issuer = (await process.stdout.readline()).decode().strip()
        yield Provider(process, issuer)
    finally:
        process.kill()
        await process.wait()


class Somebody(Person):
    """A person who signs in at the provider's own pages."""

    login = "ann"

    async def visit(self, address: str) -> httpx2.Response:
        answer = await super().visit(address)
        for _ in range(12):
            location = answer.headers.get("location")
            if location is not None:
                target = urljoin(str(answer.url), location)
                if target.startswith("http://127.0.0.1:41999"):
                    return answer
                if target.startswith(self.url):
                    answer = await super().visit(target)
                else:
                    answer = await self.http.get(target)
            elif "/interaction/" in str(answer.url):
                prompt = "login" if 'name="login"' in answer.text else "consent"
                fields = {"prompt": prompt, "login": self.login, "password": "x"}
                answer = await self.http.post(str(answer.url), data=fields)
            else:
                return answer
        return answer


Set = tuple[Running, Provider, Callable[..., Somebody]]


@pytest.fixture(params=["id_token", "userinfo"])
async def signed(make_gateway: GatewayMaker, request: pytest.FixtureRequest) -> AsyncIterator[Set]:
    """A gateway behind the provider, whose claims are in the ID token, or only in userinfo."""
    async with running_provider(request.param) as provider, AsyncExitStack() as stack:
        secret = "provider-secret-0123456789"
        section = SECTION.format(issuer=provider.issuer, secret=secret, claim="email")
        gateway: Running = await make_gateway(OAUTH + section)
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
    async with httpx2.AsyncClient(base_url=gateway.url, headers=headers) as http:
        [grant] = (await http.get("/api/v1/grants")).json()["grants"]
        assert grant["principal"] == "ann@people.example"


async def test_claims_say_who_is_an_admin(signed: Set) -> None:
    gateway, _, somebody = signed
    async with (program := Program(gateway.url)).http as http:
        for login, status in (("root", 200), ("ann", 403)):
            tokens = await program.sign_in(somebody(login))
            headers = {"authorization": f"Bearer {tokens['access_token']}"}
            answer = await http.get("/api/v1/approvals", headers=headers)
            assert answer.status_code == status
        [mine] = (await http.get("/api/v1/grants", headers=headers)).json()["grants"]
        assert mine["principal"] == "ann@people.example"


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
