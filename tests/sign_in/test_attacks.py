"""Links that are forwarded, answers that come from elsewhere, secrets that nobody may see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest

from tests.oauth.people import TOKENS, form_of
from tests.peers import look_until, until
from tests.processes import gateway_process
from tests.sign_in.conftest import TOKENS_MODE, House, Visitor, signed_in_at
from tests.sign_in.servers import Notes


@pytest.fixture
async def ready(house: House) -> AsyncIterator[House]:
    await house.put()
    yield house


async def at_provider(house: House, person: Visitor, link: str) -> str:
    """Where the provider sends the browser back to, which has opened the link."""
    answer = await person.visit(link)
    assert answer.status_code == 302, answer.text
    there: str = (await person.http.get(answer.headers["location"])).headers["location"]
    return there


async def is_signed_in(house: House, name: str) -> bool:
    (row,) = (await house.api(name)("GET", "/credentials"))["credentials"]
    return bool(row["signed_in"])


async def test_a_link_that_was_forwarded_signs_nobody_in(ready: House) -> None:
    link = await ready.api("bob").link()
    ann = ready.person("ann")
    page = await ann.sign_in(link)
    assert page.status_code == 403
    assert "somebody else" in page.text
    assert ready.peer.codes == {}, "nobody was sent to the provider"
    assert not await is_signed_in(ready, "ann") and not await is_signed_in(ready, "bob")
    # It still works for the one it was made for.
    ready.peer.login = "bob"
    assert "Signed in to" in (await ready.person("bob").sign_in(link)).text


async def test_a_browser_that_changes_hands_on_the_way_signs_nobody_in(ready: House) -> None:
    """The attacker begins with their own link, and has the victim's browser come back with it."""
    attacker, victim = ready.person("bob"), ready.person("ann")
    await victim.visit(await ready.api("ann").link())
    back = await at_provider(ready, attacker, await ready.api("bob").link())
    page = await victim.visit(back)
    assert page.status_code == 400 and "another browser" in page.text
    # Also if the cookie came along.
    for cookie in attacker.http.cookies.jar:
        if cookie.name.startswith("gateway_sign_in_"):
            victim.http.cookies.set(cookie.name, cookie.value or "", path="/oauth")
    page = await victim.visit(back)
    assert page.status_code == 403 and "somebody else" in page.text
    assert not await is_signed_in(ready, "ann") and not await is_signed_in(ready, "bob")


async def test_a_link_works_once(ready: House) -> None:
    link, person = await ready.api("ann").link(), ready.person("ann")
    first, second = [await at_provider(ready, person, link) for _ in range(2)]
    assert "Signed in to" in (await person.visit(first)).text
    late = await person.visit(second)
    assert late.status_code == 410
    assert (await person.visit(link)).status_code == 410


@pytest.mark.parametrize("change", ["{}x", "x", "{}"])
async def test_a_link_that_is_not_ours_is_none(ready: House, change: str) -> None:
    sealed = (await ready.api("ann").link()).rpartition("/")[2]
    if change == "{}":  # sealed, but for another purpose
        sealed = ready.gateway.app.console.link("").partition("link=")[2]
    address = f"/oauth/connect/{change.format(sealed)}"
    assert (await ready.person("ann").visit(address)).status_code in (404, 410)


@pytest.mark.parametrize("iss", ["https://evil.example", "http://127.0.0.1:1"])
async def test_an_answer_of_another_issuer_is_refused(ready: House, iss: str) -> None:
    ready.peer.iss = iss
    page = await ready.person("ann").sign_in(await ready.api("ann").link())
    assert page.status_code == 400 and "another provider" in page.text
    assert ready.peer.forms == [], "the code went nowhere"
    assert not await is_signed_in(ready, "ann")


async def test_a_configured_issuer_is_the_only_one(house: House) -> None:
    await house.put(**signed_in_at(house.peer, issuer="https://login.example"))
    page = await house.person("ann").sign_in(await house.api("ann").link())
    assert page.status_code == 400
    house.peer.iss = "https://login.example"
    assert "Signed in" in (await house.person("ann").sign_in(await house.api("ann").link())).text


async def test_another_state_or_an_error_signs_nobody_in(ready: House) -> None:
    person = ready.person("ann")
    back = await at_provider(ready, person, await ready.api("ann").link())
    said = dict(parse_qsl(urlsplit(back).query))
    for change in ({"state": "other"}, {"code": "guessed"}):
        page = await person.visit(f"/oauth/callback?{urlencode({**said, **change})}")
        assert page.status_code == 400
    link = await ready.api("ann").link()
    back = await at_provider(ready, person, link)
    said = dict(parse_qsl(urlsplit(back).query))
    del said["code"]
    page = await person.visit(f"/oauth/callback?{urlencode({**said, 'error': 'access_denied'})}")
    assert page.status_code == 400 and "access_denied" in page.text
    assert not await is_signed_in(ready, "ann")
    assert "Signed in to" in (await person.sign_in(link)).text, "it was not used up"


async def test_a_form_of_another_page_leaves_no_key(house: House) -> None:
    settings = {**signed_in_at(house.peer), "auth": {"type": "bearer", "per": "user"}}
    await house.put(**settings)
    person, link = house.person("ann"), await house.api("ann").link()
    page = await person.visit(link)
    path = link.removeprefix(house.gateway.url)
    own = form_of(page.text, path)
    for fields, headers in (
        ({"token": "mine"}, {}),
        ({**own, "token": "mine", "csrf": "x"}, {}),
        ({**own, "token": "mine"}, {"origin": "https://evil.example"}),
    ):
        answer = await person.post(path, fields, headers=headers)
        assert answer.status_code in (400, 403), answer.text
    assert (await person.post(path, {**own, "token": "a\nb"})).status_code == 422
    assert not await is_signed_in(house, "ann")


def _all_bytes(folder: Path) -> str:
    files = (file for file in folder.rglob("*") if file.is_file())
    return b"".join(file.read_bytes() for file in files).decode("latin-1")


async def test_no_secret_is_shown_to_anybody(
    ready: House, capsys: pytest.CaptureFixture[str]
) -> None:
    await ready.sign_in("ann")
    ann, root = ready.api("ann"), ready.api("root")
    first = await ann.call("notes_get_notes", id="1")
    assert first["output"]["token"] != "", "the API quotes the token"
    ready.peer.expire()
    told = [first, await ann.call("notes_get_notes", id="2")]
    ready.peer.expire()
    ready.peer.refreshable.clear()
    told.append(await ann.call("notes_get_notes", id="3"))
    for path in ("credentials", "connections/notes", "executions", "tools", "capabilities"):
        told += [await each("GET", f"/{path}") for each in (ann, root)]
    told += [await root("GET", f"/executions/{row['id']}") for row in told[8]["executions"]]
    page = await ready.person("root").http.get("/metrics")
    shown = str(told) + page.text + "".join(capsys.readouterr())
    files = await asyncio.to_thread(_all_bytes, ready.gateway.config.parent)
    secrets = [token for form in ready.peer.forms for token in form.values() if len(token) > 12]
    secrets += [*ready.peer.used, "access-"]
    assert len(secrets) > 5
    for secret in secrets:
        if not secret.startswith(("http", "authorization_code", "refresh_token")):
            assert secret not in shown
            assert secret not in files


async def test_other_settings_do_not_get_what_was_given_under_these(ready: House) -> None:
    """Who changes where a connection leads does not get people's tokens sent there."""
    await ready.sign_in("ann")
    assert (await ready.api("ann").call("notes_get_notes", id="1"))["output"]["who"] == "ann"
    moved = {**signed_in_at(ready.peer), "base_url": ready.peer.url.replace("127.0.0.1", "127.1")}
    before = len(ready.peer.asked)
    answer = await ready.api("root")("PUT", "/connections/notes", moved)
    if "error" not in answer:
        found = await ready.api("ann").call("notes_get_notes", id="1")
        assert found["error"]["code"] == "sign_in_required"
    await ready.put(**signed_in_at(ready.peer, token_url=f"{ready.peer.url}/other"))
    found = await ready.api("ann").call("notes_get_notes", id="1")
    assert found["error"]["code"] == "sign_in_required"
    assert len(ready.peer.asked) == before


async def _answers_bob(house: House, status: int) -> None:
    bob = house.api("bob").http
    await look_until(lambda: bob.get("/credentials"), lambda found: found.status_code == status)


async def test_a_connection_or_a_principal_that_is_deleted_takes_it_along(house: House) -> None:
    await house.put()
    await house.sign_in("ann")
    await house.sign_in("bob")
    await house.api("root")("DELETE", "/connections/notes")
    await house.put()
    assert not await is_signed_in(house, "ann")
    for name in ("ann", "bob"):
        await house.sign_in(name)
    without = TOKENS_MODE.replace(
        f'[principals.bob]\ntoken = "{TOKENS["bob"]}"\nadmin = false\n', ""
    )
    house.gateway.config.write_text(without, encoding="utf-8")
    await _answers_bob(house, 401)
    house.gateway.config.write_text(TOKENS_MODE, encoding="utf-8")
    await _answers_bob(house, 200)
    assert not await is_signed_in(house, "bob")
    assert await is_signed_in(house, "ann")


async def _is_filed(house: House, *rows: bool) -> None:
    """Waits until ann is told so of the connection that config.toml names."""

    def told(found: Any) -> bool:
        mine = [row for row in found["credentials"] if row["connection"] == "filed"]
        return [row["signed_in"] for row in mine] == [*rows]

    await look_until(lambda: house.api("ann")("GET", "/credentials"), told)


async def test_a_connection_that_leaves_the_file_takes_it_along(house: House) -> None:
    table = f"""[connections.filed]
kind = "openapi"
spec = "{house.peer.url}/openapi.json"
auth = {{ type = "bearer", per = "user" }}
"""
    house.gateway.config.write_text(TOKENS_MODE + table, encoding="utf-8")
    await _is_filed(house, False)
    await house.api("ann")("PUT", "/credentials/filed", {"token": "mine-0123456789"})
    await _is_filed(house, True)
    house.gateway.config.write_text(TOKENS_MODE, encoding="utf-8")
    await _is_filed(house)
    house.gateway.config.write_text(TOKENS_MODE + table, encoding="utf-8")
    await _is_filed(house, False)
    house.gateway.config.write_text(TOKENS_MODE, encoding="utf-8")
    await _is_filed(house)


async def test_a_process_that_is_killed_between_answer_and_store_uses_no_token_twice(
    tmp_path: Path, peer: Notes
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(TOKENS_MODE, encoding="utf-8")
    async with gateway_process(config) as (process, url), House(url, peer) as house:
        await house.put()
        await house.sign_in("ann")
        peer.expire()
        peer.slow = 30.0
        call = asyncio.create_task(house.api("ann").call("notes_get_notes", id="1"))
        await until(lambda: peer.refreshes() > 0)
        process.kill()  # the provider has the refresh token, and its answer reaches nobody
        with pytest.raises(httpx2.HTTPError):
            await call
    (token,) = [form["refresh_token"] for form in peer.forms if "refresh_token" in form]
    peer.used.add(token)
    peer.slow = 0.0
    async with gateway_process(config) as (_, url), House(url, peer) as house:
        found = await house.api("ann").call("notes_get_notes", id="1")
        assert found["error"]["code"] == "sign_in_required", found
        assert (peer.refreshes(), peer.reused) == (1, [])
        await house.sign_in("ann")
        assert (await house.api("ann").call("notes_get_notes", id="1"))["output"]["who"] == "ann"
