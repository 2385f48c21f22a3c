"""Who gets in: by a link once, by a token, by nothing else; and when it ends."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.calls.admission import Throttle
from gateway.limits import ALL_FAILURES_A_MINUTE, FAILURES_A_MINUTE, LINK_SECONDS
from gateway.model import Principal
from gateway.store.secrets import load_seal
from gateway.web.identity import COOKIE, LINK
from tests.conftest import GatewayMaker, Running
from tests.console.conftest import DEMO, TOKENS, WITH_TOKENS, SignedIn, visitor
from tests.peers import until
from tests.processes import START_SECONDS
from tests.web.test_identity import AUDIENCE, ISSUER, OTHER_KEY, RSA_KEY, jwk, signed


def cookie_of(answer: httpx2.Response) -> tuple[str, dict[str, str | bool]]:
    [morsel] = SimpleCookie(answer.headers["set-cookie"]).values()
    flags = ("httponly", "samesite", "path", "secure", "max-age")
    return morsel.key, {name: morsel[name] for name in flags}


async def test_without_a_cookie_there_is_only_the_sign_in_page(module_guarded: Running) -> None:
    async with visitor(module_guarded) as someone:
        for path in ("/console", "/console/tools", "/console/executions?format=json"):
            answer = await someone.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in")
        assert (await someone.get("/console/events")).status_code == 401
        assert (await someone.post("/console/permissions", level="full_access")).status_code == 401
        bearer = {"authorization": f"Bearer {TOKENS['root']}"}
        assert (await someone.get("/console", headers=bearer)).status_code == 303


async def test_a_tokens_session_has_a_cookie_that_no_script_reads(
    module_guarded: Running,
) -> None:
    async with visitor(module_guarded) as someone:
        answer = await someone.sign_in(TOKENS["ann"])
        assert (answer.status_code, answer.headers["location"]) == (303, "/console")
        flags = {"httponly": True, "samesite": "lax", "path": "/", "secure": ""}
        assert cookie_of(answer) == (COOKIE, {**flags, "max-age": "43200"})
        assert TOKENS["ann"] not in answer.headers["set-cookie"]
        assert (await someone.get("/console")).status_code == 200


async def test_the_cookie_is_secure_where_the_world_comes_by_https(
    make_gateway: GatewayMaker,
) -> None:
    text = WITH_TOKENS + '[server]\npublic_url = "https://gateway.example.com"\n'
    async with visitor(await make_gateway(text)) as someone:
        answer = await someone.http.post("/console/sign-in", data={"token": TOKENS["ann"]})
        assert cookie_of(answer)[1]["secure"] is True


async def test_a_wrong_token_is_told_so_and_no_more(module_guarded: Running) -> None:
    async with visitor(module_guarded) as someone:
        for token in ("", "wrong-token-0123456789", "ann-token-012345678", "ä" * 2000):
            answer = await someone.sign_in(token)
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers
            assert "That token is not known here." in answer.text


async def test_the_printed_link_works_once(module_guarded: Running) -> None:
    link = module_guarded.app.console.link(module_guarded.url)
    async with visitor(module_guarded) as first, visitor(module_guarded) as second:
        opened = await first.http.get(link)
        assert opened.status_code == 200
        assert '<meta http-equiv="refresh" content="0;url=/console">' in opened.text
        page = await first.get("/console")
        assert page.status_code == 200
        assert 'title="root"' in page.text  # the first configured admin
        again = await second.http.get(link)
        assert again.status_code == 401
        assert "set-cookie" not in again.headers


async def test_a_link_that_is_too_old_opens_nothing(module_guarded: Running) -> None:
    seal = load_seal(module_guarded.config.parent / "state" / "secret.key")
    old = seal.seal_values(LINK, "a" * 32, time.time() - 1)
    async with visitor(module_guarded) as someone:
        assert (await someone.get("/console/sign-in", params={"link": old})).status_code == 401
    assert LINK_SECONDS == 15 * 60


async def test_a_link_is_no_cookie_and_a_cookie_no_link(module_guarded: Running) -> None:
    link = module_guarded.app.console.backend.sessions.link()
    assert link is not None
    async with visitor(module_guarded) as someone:
        someone.http.cookies.set(COOKIE, link, path="/console")
        assert (await someone.get("/console")).status_code == 303
    async with visitor(module_guarded) as someone:
        answer = await someone.sign_in(TOKENS["ann"])
        cookie = SimpleCookie(answer.headers["set-cookie"])[COOKIE].value
        link_answer = await someone.get("/console/sign-in", params={"link": cookie})
        assert link_answer.status_code == 401


async def test_without_an_admin_no_link_is_made(make_gateway: GatewayMaker) -> None:
    gateway = await make_gateway(WITH_TOKENS.replace("admin = true", "admin = false"))
    assert gateway.app.console.link(gateway.url) == f"{gateway.url}/console/sign-in"


async def test_serving_prints_the_link_beside_its_one_line(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(WITH_TOKENS, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", str(config), "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        async with asyncio.timeout(START_SECONDS):
            ready = (await process.stdout.readline()).decode()
            line = ""
            while not line.startswith("Console: "):
                line = (await process.stderr.readline()).decode()
        own = ready.removeprefix("Gateway ready: ").removesuffix("/mcp\n")
        link = line.removeprefix("Console: ").strip()
        assert link.startswith(f"{own}/console/sign-in?link=")
        async with httpx2.AsyncClient(timeout=60) as http:
            assert (await http.get(link)).status_code == 200
            assert (await http.get(f"{own}/console")).status_code == 200
    finally:
        process.terminate()
        async with asyncio.timeout(START_SECONDS):
            rest, _ = await process.communicate()
    assert (rest, process.returncode) == (b"", 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[principals.ann]", "[principals.other]"),
        (TOKENS["ann"], "another-token-0123456789"),
    ],
    ids=["another name", "another token"],
)
async def test_a_principal_that_is_gone_or_has_another_token_is_signed_out(
    guarded: Running, signed_in: SignedIn, old: str, new: str
) -> None:
    ann, identity = await signed_in(guarded, "ann"), guarded.app.identity

    def known() -> tuple[set[str], Any]:
        return set(identity.principals), identity.token_hashes

    before = known()
    guarded.config.write_text(WITH_TOKENS.replace(old, new), encoding="utf-8")
    await until(lambda: known() != before)
    assert (await ann.get("/console")).status_code == 303


async def test_signing_out_ends_the_cookie_for_good(
    module_guarded: Running, signed_in: SignedIn
) -> None:
    ann = await signed_in(module_guarded, "ann")
    [kept] = [str(c.value) for c in ann.http.cookies.jar if c.name == COOKIE]
    answer = await ann.post("/console/sign-out")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in")
    async with visitor(module_guarded) as thief:
        thief.http.cookies.set(COOKIE, kept, path="/console")
        assert (await thief.get("/console")).status_code == 303


async def test_without_tokens_one_step_signs_in_as_local(shop: Running) -> None:
    async with visitor(shop) as someone:
        assert (await someone.get("/console")).status_code == 303
        assert "Continue as local" in (await someone.get("/console/sign-in")).text
        await someone.sign_in()
        assert 'title="local"' in (await someone.get("/console")).text


async def test_wrong_attempts_are_slowed_down(guarded: Running) -> None:
    async with visitor(guarded) as someone:
        for _ in range(FAILURES_A_MINUTE):
            assert (await someone.sign_in("wrong-token-0123456789")).status_code == 401
        answer = await someone.sign_in(TOKENS["root"])
        assert answer.status_code == 429
        assert 0 < int(answer.headers["retry-after"]) <= 60
        assert "set-cookie" not in answer.headers


def test_a_minute_without_failures_forgets_them() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    for _ in range(FAILURES_A_MINUTE):
        throttle.count_failure("a")
    assert throttle.failure_wait("a") == 60
    assert throttle.failure_wait("b") == 0
    now[0] = 60
    assert throttle.failure_wait("a") == 0


def test_many_addresses_together_are_slowed_down_too() -> None:
    throttle = Throttle(lambda: 0.0)
    for i in range(ALL_FAILURES_A_MINUTE):
        throttle.count_failure(f"address {i}")
    assert throttle.failure_wait("a new one") == 60


@pytest.mark.parametrize("look", [{"method": "HEAD"}, {"headers": {"sec-purpose": "prefetch"}}])
async def test_a_look_ahead_does_not_use_the_link_up(module_guarded: Running, look: Any) -> None:
    link = module_guarded.app.console.link(module_guarded.url)
    async with visitor(module_guarded) as someone:
        ahead = await someone.http.request(url=link, **{"method": "GET", **look})
        assert "set-cookie" not in ahead.headers
        assert "set-cookie" in (await someone.http.get(link)).headers


async def test_a_jwt_opens_a_session_no_longer_than_itself(
    make_gateway: GatewayMaker, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [jwk(RSA_KEY)]}), encoding="utf-8")
    claims = 'role_claim = "role"\nadmin_claim = "boss"'
    auth = f'issuer = "{ISSUER}"\naudience = "{AUDIENCE}"\njwks_file = "{keys}"\n{claims}\n'
    gateway = await make_gateway(DEMO.replace('mode = "none"', f'mode = "jwt"\n{auth}'))
    assert gateway.app.console.link(gateway.url) == f"{gateway.url}/console/sign-in"
    expires = time.time() + 300
    async with visitor(gateway) as someone:
        answer = await someone.sign_in(signed(exp=expires, role="clerk", boss=True))
        assert answer.status_code == 303
        cookie = SimpleCookie(answer.headers["set-cookie"])[COOKIE].value
        session = await gateway.app.console.backend.sessions.current(cookie)
        assert session.principal == Principal("ann", admin=True, role="clerk")
        assert session.expires == pytest.approx(expires)
        refused = await someone.http.post("/console/sign-in", data={"token": signed(key=OTHER_KEY)})
        assert refused.status_code == 401
