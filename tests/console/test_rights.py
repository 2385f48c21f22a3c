"""Principals, roles, bundles and routes are made and changed in the console, by those who may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from html import unescape

import httpx2
import pytest
from playwright.async_api import Browser

from tests.callers import api
from tests.configs import LOCAL, principal, table, token_of
from tests.conftest import Running, gateway_on
from tests.console.conftest import Visitor, visitor, window_of

CONFIG = (
    LOCAL
    + table("demo", enabled=True)
    + principal("root", admin=True)
    + principal("ann", admin=True, organization="acme")
    + principal("bob")
    + table("bundles.given", connections=["demo"])
    + table("roles.written", bundles=["given"])
)
AT = "/console/access/rights"


@pytest.fixture(scope="module")
async def office(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with gateway_on(tmp_path_factory.mktemp("office") / "config.toml", CONFIG) as made:
        yield made


@pytest.fixture
async def root(office: Running) -> AsyncIterator[Visitor]:
    async with visitor(office) as made:
        await made.sign_in(token_of("root"))
        yield made


async def send(who: Visitor, path: str, **fields: str) -> httpx2.Response:
    """A form, sent as a browser without scripts does."""
    named = {key.replace("__", "."): value for key, value in fields.items()}
    return await who.http.post(f"{AT}/{path}", data={"csrf": who.csrf, **named})


def settings(office: Running, kind: str, name: str) -> object:
    rows = office.app.gateway.catalog.rights.stored.rows
    return next((row.settings for row in rows if (row.kind, row.name) == (kind, name)), None)


async def test_all_four_are_made_changed_and_deleted_without_scripts(
    office: Running, root: Visitor
) -> None:
    bundle = {"name": "reading", "connections__demo": "1", "allow": "list_*\nget_*\n"}
    plan = await send(root, "bundles", plan="1", **bundle)
    assert "It gives <b>2 tools</b>" in plan.text and settings(office, "bundle", "reading") is None
    made = await send(root, "bundles", **bundle, mode="direct", token_budget="900")
    assert (made.status_code, made.headers["location"]) == (303, f"{AT}/bundles")
    kept = {"mode": "direct", "token_budget": 900, "connections": ["demo"]}
    assert settings(office, "bundle", "reading") == {**kept, "allow": ["list_*", "get_*"]}
    await send(root, "roles", name="reader", bundles__reading="1")
    shown = await send(
        root, "principals", name="agent", role="reader", new_token="1", levels="demo = read-only"
    )
    assert shown.headers["cache-control"] == "no-store"
    token = shown.text.split('id="made-token">')[1].split("<")[0]
    assert token not in (await root.get(f"{AT}/principals")).text
    await send(root, "routes", workflow="hiring", role="reader", steps="screen: reading, given")
    assert settings(office, "route", "hiring/reader") == {"screen": ["reading", "given"]}

    form = (await root.get(f"{AT}/principals?name=agent")).text
    revision = form.split('name="revision" value="')[-1].split('"')[0]
    edit = {"name": "agent", "editing": "agent", "role": "reader", "access": "read-only"}
    stale = await send(root, "principals", **edit, revision="1")
    assert "was changed meanwhile" in stale.text and 'value="read-only"' not in stale.text
    assert (await send(root, "principals", **edit, revision=revision)).status_code == 303
    async with api(office.url) as agent:
        agent.http.headers["Authorization"] = f"Bearer {token}"
        assert (await agent("GET", "/tools"))[0] == 200  # the token is as it was
    wrong = unescape((await send(root, "roles", name="reader2", bundles__nope="1")).text)
    assert "there is no bundle 'nope'" in wrong and 'value="reader2"' in wrong
    for path, name in (
        ("principals", "agent"),
        ("routes", "hiring/reader"),
        ("roles", "reader"),
        ("bundles", "reading"),
    ):
        assert (await send(root, f"{path}/delete", name=name)).status_code == 303
    assert office.app.gateway.catalog.rights.stored.rows == ()


async def test_what_config_toml_owns_is_shown_and_has_no_form(root: Visitor) -> None:
    page = (await root.get(f"{AT}/roles")).text
    assert "<b>written</b>" in page and "config.toml</span>" in page
    assert f"{AT}/roles?name=written" not in page and f"{AT}/roles/delete" not in page
    assert (await root.get(f"{AT}/roles?name=written")).status_code == 422
    assert (await root.get(f"{AT}/nothing")).status_code == 404


async def test_a_forged_form_a_stranger_and_an_organizations_admin_change_nothing_beyond(
    office: Running, root: Visitor
) -> None:
    fields = {"name": "thief", "admin": "1", "new_token": "1"}
    forged = {**fields, "csrf": "0" * 64}
    assert (await root.http.post(f"{AT}/principals", data=forged)).status_code == 403
    foreign = {"origin": "https://evil.example"}
    posted = {**fields, "csrf": root.csrf}
    answer = await root.http.post(f"{AT}/principals", data=posted, headers=foreign)
    assert answer.status_code == 403
    async with visitor(office) as nobody, visitor(office) as bob, visitor(office) as ann:
        assert (await send(nobody, "principals", **fields)).status_code == 401
        await bob.sign_in(token_of("bob"))
        await ann.sign_in(token_of("ann"))
        assert (await bob.get(f"{AT}/principals")).status_code == 403
        assert f"{AT}/" not in (await bob.get("/console/access")).text
        assert (await bob.post(f"{AT}/principals", **fields)).status_code == 403
        assert (await ann.get(f"{AT}/roles")).status_code == 403
        assert f"{AT}/roles" not in (await ann.get(f"{AT}/principals")).text
        assert (await ann.post(f"{AT}/bundles", name="b", connections__demo="1")).status_code == 403
        beyond = await ann.post(f"{AT}/principals", **fields, organization="globex")
        assert beyond.status_code == 403
        assert (
            "for admins of no organization" in (await ann.post(f"{AT}/roles/plan", name="x")).text
        )
    assert office.app.gateway.catalog.rights.stored.rows == ()


async def test_a_name_that_is_markup_stays_a_name(office: Running, root: Visitor) -> None:
    name = '<img src=x onerror="alert(1)">'
    assert (await send(root, "principals", name=name, new_token="1")).status_code == 200
    page = (await root.get(f"{AT}/principals")).text
    assert "<img src=x" not in page and "&lt;img src=x" in page
    assert (await root.get(f"{AT}/principals", params={"name": name})).status_code == 200
    await send(root, "principals/delete", name=name)
    assert office.app.gateway.catalog.rights.stored.rows == ()


@pytest.mark.browser
async def test_a_browser_counts_while_one_types_and_saves_by_keyboard(
    browser: Browser, office: Running
) -> None:
    async with api(office.url, "root") as rest:
        await rest("PUT", "/bundles/reading", {"connections": ["demo"], "allow": ["list_*"]})
        await rest("PUT", "/roles/reader", {"bundles": ["reading"]})
        await rest("PUT", "/principals/agent", {"role": "reader", "new_token": True})
        async with window_of(browser, office, viewport={"width": 390, "height": 844}) as window:
            page = window.page
            await page.goto(f"{window.base}/console/sign-in")
            await page.fill("input[name=token]", token_of("root"))
            await page.press("input[name=token]", "Enter")
            await page.wait_for_url("**/console")
            await page.goto(f"{window.base}{AT}/bundles?name=reading")
            await page.fill("#r-allow", "list_*\nget_*")
            await page.wait_for_selector("#gives:has-text('2 tools')")
            await page.wait_for_selector("#plan :text('1 more')")
            await page.focus("form#right .primary")
            await page.keyboard.press("Enter")
            await page.wait_for_url(f"**{AT}/bundles")
            await page.goto(f"{window.base}{AT}/principals")
            await page.fill("#r-name", "typed")
            await page.press("#r-name", "Enter")
            token = await page.inner_text("#made-token")
        async with api(office.url) as typed:
            typed.http.headers["Authorization"] = f"Bearer {token}"
            assert (await typed("GET", "/tools"))[0] == 200
        for path in ("principals/agent", "principals/typed", "roles/reader", "bundles/reading"):
            assert (await rest("DELETE", f"/{path}"))[0] == 200
