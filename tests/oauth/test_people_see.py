"""What people see of it: the grants in the console, the pages in a real browser, on a phone too."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.conftest import Running
from tests.console.conftest import chromium
from tests.oauth.people import OAUTH, TOKENS, Person, Program
from tests.processes import gateway_process


async def test_the_console_lists_the_clients_that_were_let_in_and_locks_them_out(
    gateway: Running, person: Person, program: Program
) -> None:
    token = (await program.sign_in(person))["access_token"]
    page = (await person.http.get("/console/access")).text
    assert "Clients that were let in" in page and "By hand" in page
    action = page.split('action="/console/grants/')[1].split('"')[0]
    csrf = page.split('name="csrf" value="')[1].split('"')[0]
    assert (await person.post(f"/console/grants/{action}", {"csrf": csrf})).status_code < 400
    assert await program.is_locked_out(token)
    connect = (await person.http.get("/console")).text
    assert "Claude.ai, ChatGPT" in connect and "YOUR_TOKEN" not in connect


@pytest.mark.browser
@pytest.mark.parametrize("script", [True, False])
async def test_signing_in_and_allowing_fit_a_phone_and_need_no_script(
    gateway: Running, program: Program, script: bool
) -> None:
    await program.register(client_name="A client with a name that is long enough to break a line")
    async with chromium() as browser:
        page = await browser.new_page(
            viewport={"width": 390, "height": 844}, java_script_enabled=script
        )
        refused: list[str] = []
        page.on("console", lambda message: refused.append(message.text))
        await page.goto(f"{gateway.url}{program.link()}")
        await page.fill("input[name=token]", TOKENS["bob"])
        await page.click("text=Sign in >> nth=-1")
        await page.wait_for_selector("text=Allow this client?")
        box = await page.locator("main").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
        async with page.expect_request("http://127.0.0.1:41999/**") as going:
            await page.click("button:has-text('Allow')")
        went = (await going.value).url
    assert "code=" in went
    assert not [each for each in refused if "Content Security Policy" in each]


async def test_a_client_goes_on_after_the_gateway_was_killed(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    port = "41996"
    text = OAUTH + f'[server]\npublic_url = "http://127.0.0.1:{port}"\n'
    config.write_text(text + 'allowed_hosts = ["127.0.0.1:*"]\n', encoding="utf-8")
    async with gateway_process(config) as (process, address):
        url = address.removesuffix("/mcp")
        person, program = Person(url), Program(url)
        async with person.http, program.http:
            await program.register()
            link = program.link(resource=f"http://127.0.0.1:{port}/mcp")
            code = (await person.sent_back(link))["code"]
            tokens = (await program.exchange(code)).json()
            rotated = (await program.refresh(tokens["refresh_token"])).json()
            process.send_signal(signal.SIGKILL)
            await process.wait()
    async with gateway_process(config) as (_, address):
        program.http = Program(address.removesuffix("/mcp")).http
        async with program.http:
            assert await program.status(rotated["access_token"]) == 200
            assert (await program.refresh(rotated["refresh_token"])).status_code == 200
