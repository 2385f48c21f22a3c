"""The form of a connection: adding, editing, files, with and without scripts, in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import orjson
import pytest
from mcp.client.client import Client
from playwright.async_api import Browser, FilePayload, Page, expect

from gateway.console.forms import read_edit
from tests.conftest import Running, gateway_on
from tests.console.conftest import (
    DEMO,
    PATIENCE_MS,
    SignedIn,
    sign_in_at,
    window_of,
)
from tests.peers import Provider, items_api, provider

expect.set_options(timeout=PATIENCE_MS)
OWNED = """
[connections.written]
kind = "openapi"
spec = '{"openapi": "3.0.0", "info": {"title": "Written", "version": "1"}, "paths": {}}'
base_url = "https://written.example.com"
auth = { type = "bearer", token = "never-shown-0" }
"""


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A gateway whose connections a test puts; one is written into its config.toml."""
    text = DEMO.replace('"execute_with_confirm"', '"full_access"') + OWNED
    async with gateway_on(tmp_path_factory.mktemp("desk") / "config.toml", text) as made:
        yield made


@pytest.fixture
async def peer(desk: Running) -> AsyncIterator[Provider]:
    """An API; what a test connected is taken back."""
    async with provider() as made:
        yield made
    gateway = desk.app.gateway
    for name in set(gateway.snapshot.connections) - {"demo", "written"}:
        await gateway.catalog.delete(name, by="test")


async def call(desk: Running, tool: str, **arguments: Any) -> None:
    async with Client(desk.mcp, mode="legacy") as mcp:
        assert not (await mcp.call_tool(tool, arguments)).is_error


async def choose_auth(page: Page, words: str) -> None:
    await page.click(f".pills >> text={words}")


@pytest.mark.browser
async def test_a_connection_is_added_edited_and_keeps_its_secret(
    browser: Browser, desk: Running, peer: Provider
) -> None:
    async with window_of(browser, desk) as window:
        page = window.page
        await sign_in_at(window)
        await window.open("/connections/new")
        await page.fill("#source", peer.spec)
        await page.fill("[name=name]", "items")
        await choose_auth(page, "Bearer token")
        await page.fill("[name='auth.token']", "hush-1")
        await page.click("summary:has-text('Headers')")
        await page.fill("[name=headers]", "X-Team: hr\nX-Api-Key: hush-2")
        await expect(page.locator("#preview")).to_contain_text("items_get_items")
        await page.click("button:has-text('Add')")
        await page.wait_for_url("**/connections/items")
        peer.document = items_api(peer.url, "items", "parts")
        await page.click("a:has-text('Edit')")
        await window.live()
        await expect(page.locator("#preview")).to_contain_text("1 added")
        assert "hush" not in await page.content()
        await expect(page.locator(".kept:visible")).to_have_text("kept")
        await page.fill("[name=display_name]", "Our things")
        # Somebody else saves in between: nothing is saved, nothing that was typed is lost.
        await put_over(desk, peer, display_name="Theirs")
        await page.click("button:has-text('Save')")
        await expect(page.locator("#said")).to_contain_text("changed meanwhile")
        await expect(page.locator("[name=display_name]")).to_have_value("Our things")
        window.wrong.clear()  # the browser itself reports that it was refused
        await page.check("[name=over]")
        await page.click("button:has-text('Save')")
        await page.wait_for_url("**/connections/items")
        await expect(page.locator("h1")).to_contain_text("Our things")
    await call(desk, "items_get_parts", id="1")
    sent = peer.headers[-1]
    assert (sent["Authorization"], sent["X-Api-Key"], sent["X-Team"]) == (
        "Bearer hush-1",
        "hush-2",
        "hr",
    )


async def put_over(desk: Running, peer: Provider, **more: Any) -> None:
    """Another admin's put, over REST's own function."""
    secrets = {
        "auth": {"type": "bearer", "token": "hush-1"},
        "headers": {"X-Team": "hr", "X-Api-Key": "hush-2"},
    }
    await desk.app.gateway.catalog.put("items", settings_of(peer) | secrets | more, by="eve")


def settings_of(peer: Provider) -> dict[str, Any]:
    return {"kind": "openapi", "spec": peer.spec}


@pytest.mark.browser
async def test_a_file_is_chosen_dropped_and_kept_in_an_edit(
    browser: Browser, desk: Running, peer: Provider
) -> None:
    async with window_of(browser, desk) as window:
        page = window.page
        await sign_in_at(window)
        await window.open("/connections/new")
        await page.set_input_files("[type=file]", file_of(definition(peer, "items")))
        await expect(page.locator("#preview")).to_contain_text("items_get_items")
        await page.click("button:has-text('Add')")
        await page.wait_for_url("**/connections/items")
        await window.open("/connections/items/edit")
        await expect(page.locator("#preview")).to_contain_text("No tool changes")
        await drop(page, definition(peer, "parts").decode())
        await expect(page.locator("#preview")).to_contain_text("1 removed")
        await expect(page.locator("#preview")).to_contain_text("1 added")
        await page.click("button:has-text('Save')")
        await page.wait_for_url("**/connections/items")
        await expect(page.locator("#connection-tools")).to_contain_text("items_get_parts")
        await window.open("/connections/new")
        await page.set_input_files("[type=file]", file_of(b" " * (4 * 1024 * 1024 + 1)))
        assert await page.input_value("[type=file]") == ""


def definition(peer: Provider, *names: str) -> bytes:
    return orjson.dumps(items_api(peer.url, *names))


def file_of(text: bytes) -> FilePayload:
    return {"name": "api.json", "mimeType": "application/json", "buffer": text}


async def drop(page: Page, text: str) -> None:
    """A file dropped on the form, as a person drops it."""
    data = await page.evaluate_handle(
        """text => {
          const data = new DataTransfer();
          data.items.add(new File([text], 'a.json'));
          return data;
        }""",
        text,
    )
    await page.dispatch_event("#new", "drop", {"dataTransfer": data})


@pytest.mark.browser
async def test_the_form_works_without_scripts(
    browser: Browser, desk: Running, peer: Provider
) -> None:
    async with window_of(browser, desk, java_script_enabled=False) as window:
        page = window.page
        await page.goto(f"{window.base}/console/sign-in")
        await page.click("text=Continue as local")
        await page.goto(f"{window.base}/console/connections/new")
        await expect(page.locator("[name='auth.value']")).to_be_hidden()
        await choose_auth(page, "API key")
        await page.fill("[name='auth.value']", "hush-3")
        await page.fill("[name='auth.name']", "X-Key")
        await page.set_input_files("[type=file]", file_of(definition(peer, "items")))
        await page.click("button:has-text('Preview')")
        await expect(page.locator("#preview")).to_contain_text("items_get_items")
        await page.click("button:has-text('Add')")  # with all that was typed before the preview
        await page.wait_for_url("**/connections/items")
        await call(desk, "items_get_items", id="1")
        assert peer.headers[-1]["X-Key"] == "hush-3"
        await page.click("a:has-text('Edit')")
        await put_over(desk, peer)
        await page.fill("[name=display_name]", "Mine")
        await page.click("button:has-text('Save')")
        await expect(page.locator("#said")).to_contain_text("changed meanwhile")
        await expect(page.locator("[name=display_name]")).to_have_value("Mine")
        window.wrong.clear()  # the browser itself reports the page's status


AUTH = {
    "token_url": "https://id.example.com/token",
    "authorize_url": "https://id.example.com/authorize",
    "client_id": "gateway",
}
WAYS: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"auth": "none", "auth.token": "x"}, {}),
    ({"auth": "bearer", "auth.token": "x"}, {"type": "bearer", "token": "x"}),
    ({"auth": "bearer", "auth.token": "x", "auth.per": "user"}, {"type": "bearer", "per": "user"}),
    (
        {"auth": "basic", "auth.username": "ann", "auth.password": " x "},
        {"type": "basic", "username": "ann", "password": " x "},
    ),
    (
        {"auth": "api-key", "auth.value": "x", "auth.name": "K", "auth.in": "query"},
        {"type": "api-key", "value": "x", "name": "K", "in": "query"},
    ),
    (
        {
            **{f"auth.{key}": value for key, value in AUTH.items()},
            "auth": "oauth2",
            "auth.grant": "client_credentials",
            "auth.client_secret": "x",
            "auth.scopes": "read  write",
            "auth.per": "user",
        },
        {
            "type": "oauth2",
            "grant": "client_credentials",
            "token_url": AUTH["token_url"],
            "client_id": "gateway",
            "client_secret": "x",
            "scopes": ["read", "write"],
        },
    ),
    (
        {
            **{f"auth.{key}": value for key, value in AUTH.items()},
            "auth": "oauth2",
            "auth.grant": "authorization_code",
            "auth.per": "user",
        },
        {"type": "oauth2", "grant": "authorization_code", "per": "user", **AUTH},
    ),
]


@pytest.mark.parametrize(("posted", "auth"), WAYS)
def test_what_was_typed_for_another_way_is_left_out(
    posted: dict[str, str], auth: dict[str, Any]
) -> None:
    asked = read_edit({"source": "https://a.example.com/spec", **posted}, {})
    assert asked.values.get("auth", {}) == auth


async def test_an_edit_changes_what_it_names_and_takes_no_secret_elsewhere(
    desk: Running, peer: Provider, signed_in: SignedIn
) -> None:
    someone = await signed_in(desk)
    values = {"inject": {"tenant": "acme"}, "timeout_seconds": 7.0, "base_url": peer.url}
    await put_over(desk, peer, **values)

    async def save(**fields: str) -> str:
        """What an edit by the form is answered: where it leads, or why it is refused."""
        state = desk.app.gateway.snapshot.connections["items"]
        posted = {"kind": "openapi", "name": "items", "revision": str(state.revision), **fields}
        answer = await someone.post("/console/connections", **posted)
        return answer.headers.get("hx-redirect") or answer.text

    def settings() -> dict[str, Any]:
        found = desk.app.gateway.snapshot.connections["items"].settings
        return found.model_dump(by_alias=True, exclude_unset=True)

    before = settings()
    there = "/console/connections/items"
    assert await save(display_name="Shelf") == there
    assert settings() == before | {"display_name": "Shelf"}
    peer.document = items_api(peer.url, "parts")
    held = {
        **values,
        "kind": "openapi",
        "spec": peer.spec,
        "name": "items",
        "on_change": "hold_all",
    }
    async with httpx2.AsyncClient(base_url=desk.url, timeout=60) as http:
        dry = (await http.post("/api/v1/connections/preview", json=held)).json()
    assert (dry["held"], dry["added"]) == (["items_get_items", "items_get_parts"], [])
    revision = str(desk.app.gateway.snapshot.connections["items"].revision)
    form = {"kind": "openapi", "name": "items", "revision": revision, "on_change": "hold_all"}
    assert "2 held" in (await someone.post("/console/connections/preview", **form)).text
    async with provider() as other:
        for elsewhere in ({"source": other.spec}, {"source": definition(other).decode()}):
            said = await save(base_url="", **elsewhere)
            assert f"were not given for http://127.0.0.1:{other.port}" in said
        assert f"given for {other.url}" in await save(base_url=other.url)
        assert not other.fetches
    assert "give the value of" in await save(headers="X-Other-Token: **********")
    assert "is required" in await save(auth="bearer", **{"remove.token": "1"})
    assert await save(auth="none", headers="X-Team: it", **{"tls.server_name": "a"}) == there
    now = settings()
    assert (now["headers"], now["inject"]) == ({"X-Team": "it"}, {"tenant": "acme"})
    assert now["tls"]["server_name"] == "a" and "auth" not in now


async def test_what_config_toml_owns_says_so_and_twins_are_told_apart(
    desk: Running, peer: Provider, signed_in: SignedIn
) -> None:
    someone = await signed_in(desk)
    page = (await someone.get("/console/connections/written/edit")).text
    assert "config.toml owns this connection" in page and "[connections.written]" in page
    assert '<fieldset class="fields" disabled>' in page and "never-shown-0" not in page
    refused = await someone.post("/console/connections", kind="openapi", name="written")
    assert refused.status_code == 422
    async with provider() as other:
        for each in (peer, other):
            form = {"kind": "openapi", "source": definition(each).decode()}
            added = await someone.post("/console/connections", **form)
            assert "hx-redirect" in added.headers, added.text
        await desk.app.gateway.catalog.put("values", settings_of(peer), by="eve")
        listed = (await someone.get("/console/connections")).text
        hosts = [f"127.0.0.1:{each.port}" for each in (peer, other)]
        for name, host in zip(("items", "items-2"), hosts, strict=True):
            assert f"<code>{name}</code> · openapi · {host}" in listed
        assert "<code>values</code>" in listed  # called like a method of what the page looks into
