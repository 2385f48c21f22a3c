"""Access: an admin sees what each principal is listed, and why not the rest; what was given is
listed and revoked; rules and tokens are made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from playwright.async_api import Browser, expect

from tests.callers import api
from tests.configs import LOCAL, bearer, principal, table, token_of
from tests.conftest import Running, gateway_on
from tests.console.conftest import PATIENCE_MS, visitor, window_of
from tests.definitions import operation
from tests.peers import items_api, provider

expect.set_options(timeout=PATIENCE_MS)

PEOPLE: dict[str, dict[str, Any]] = {
    "root": {"admin": True},
    "boss": {"admin": True, "organization": "acme"},
    "ann": {},
    "bob": {"access": "read-only"},
    "cat": {"connections": {"shop": "disabled"}},
    "dan": {"organization": "acme", "role": "clerk"},
    "eva": {"role": "chief"},
    "fay": {"role": "idle"},
}
BUNDLES: dict[str, dict[str, Any]] = {
    "reading": {"connections": ["shop"], "allow": ["get_*"]},
    "careful": {"connections": ["shop"], "deny": ["del_*"]},
    "behind": {"mode": "meta", "connections": ["quiet"]},
    "large": {"mode": "auto", "token_budget": 1, "connections": ["quiet"]},
}
RULES = "".join(
    [
        '[auth]\nmode = "tokens"\n[demo]\nenabled = true\n',
        LOCAL,
        *(principal(name, **each) for name, each in PEOPLE.items()),
        *(table(f"bundles.{name}", **each) for name, each in BUNDLES.items()),
        table("roles.clerk", bundles=["reading"]),
        table("roles.chief", bundles=list(BUNDLES)),
        table("roles.idle"),
        table("routes.opening.clerk", morning=["careful"]),
    ]
)
ADDRESSES = """/mcp /mcp/bundles/reading+careful /mcp/bundles/behind /mcp/steps/opening/morning
/mcp/steps/opening/evening""".split()
READ_ONLY, NOTHING = "only its reads are shown.", "nothing of it is shown."
REASONS = [  # who, where, which tool or connection, why it is not listed
    ("ann", "/mcp", "desk_get_items", "desk belongs to the organization acme; ann does not."),
    ("bob", "/mcp", "shop_add_item", f"principals.bob.access is read-only: {READ_ONLY}"),
    ("cat", "/mcp", "shop_get_items", f"principals.cat.connections.shop is disabled: {NOTHING}"),
    ("ann", "/mcp", "later_add_item", f"ann chose read-only for later: {READ_ONLY}"),
    ("ann", "/mcp", "quiet_add_item", f"The settings of quiet say access = read-only: {READ_ONLY}"),
    ("ann", "/mcp", "off", f"The settings of off say enabled = false: {NOTHING}"),
    ("ann", "/mcp", "refresh_tools", "It is for admins."),
    ("ann", "/mcp", "list_managed_apis", "There is no [azure] table."),
    ("ann", "/mcp", "mcp_call_tool", "No bundle here keeps its tools behind meta tools."),
    ("dan", "/mcp", "shop_add_item", "Bundle reading does not allow it (get_*)."),
    ("dan", "/mcp", "quiet_get_items", "quiet is in none of the bundles here (reading)."),
    ("fay", "/mcp", "shop_get_items", "There are no bundles for the role idle."),
    ("eva", "/mcp/bundles/careful", "shop_del_item", "Bundle careful denies it (del_*)."),
    ("eva", "/mcp/bundles/careful", "get_execution", "It is listed at /mcp only."),
    (
        *("eva", "/mcp/bundles/behind", "quiet_get_items"),
        "Bundle behind has mode = meta: it is called through mcp_call_tool.",
    ),
    ("ann", "/mcp/bundles/nothing", "shop_get_items", "There is no bundle nothing."),
    (
        *("dan", "/mcp/bundles/reading+careful", "shop_get_items"),
        "Not every bundle at this address is for the role clerk (reading, careful).",
    ),
    (
        *("dan", "/mcp/steps/opening/evening", "shop_get_items"),
        "The step opening/evening has no bundles for the role clerk.",
    ),
    (
        *("ann", "/mcp/steps/opening/morning", "shop_get_items"),
        "The step opening/morning has no bundles for those without a role.",
    ),
    (
        *("ann", "/mcp/steps/opening/morning", "read_result"),
        "No bundle is behind this address for them: it lists nothing.",
    ),
    (
        "ann",
        "/mcp",
        "shop_get_admin",
        "No tool for anybody: its path is on the blocklist (/admin/**).",
    ),
    ("ann", "/mcp", "shop_get_old", "No tool for anybody: excluded by 'get_old'."),
    ("ann", "/mcp", "shop_del_all", "No tool for anybody: dangerous: never exposed."),
]


@pytest.fixture(scope="module")
async def office(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A gateway in which something is hidden from everybody, for every reason there is."""
    async with provider() as peer:
        more = {
            "/item": {"post": operation(operationId="add_item")},
            "/item/{id}": {"delete": operation(operationId="del_item")},
            "/all": {"delete": operation(operationId="del_all")},
            "/admin/keys": {"get": operation(operationId="get_admin")},
        }
        peer.document = items_api(peer.url, "items", "old", **more)
        never = {"exclude": ["get_old"], "blocklist": ["/admin/**"]}
        connections = [
            peer.table("shop", operations={"del_all": {"access": "dangerous"}}, **never),
            peer.table("desk", organization="acme"),
            peer.table("quiet", access="read-only"),
            peer.table("off", enabled=False),
            peer.table("notes", auth={"type": "bearer", "per": "user"}),
        ]
        config = tmp_path_factory.mktemp("office") / "config.toml"
        async with gateway_on(config, RULES + "".join(connections)) as made:
            async with api(made.url, "root") as root, api(made.url, "ann") as ann:
                later = {"kind": "openapi", "spec": peer.spec, "trust": "untrusted"}
                assert (await root("PUT", "/connections/later", later))[0] == 200
                assert (await ann("PUT", "/access/later", {"access": "read-only"}))[0] == 200
                for name in ("shop", "desk", "quiet", "notes"):
                    assert (await root("POST", f"/connections/{name}/refresh"))[0] == 200
            yield made


async def listed_by(gateway: Running, name: str, address: str, mode: str) -> list[str]:
    """What an SDK client of the principal is listed at this address."""
    async with httpx2.AsyncClient(headers=bearer(name), timeout=60) as http:
        transport = streamable_http_client(gateway.url + address, http_client=http)
        async with Client(transport, mode=mode) as client:
            return [tool.name for tool in (await client.list_tools()).tools]


async def test_an_admin_sees_the_very_list_of_each_principal(office: Running) -> None:
    async with api(office.url, "root") as root:
        for number, (name, address) in enumerate(product(PEOPLE, ADDRESSES)):
            mode = ("legacy", "2026-07-28")[number % 2]
            _, seen = await root("GET", f"/access/{name}?address={address.replace('+', '%2B')}")
            shown = [row["name"] for row in seen["tools"] if row["shown"] == "listed"]
            assert shown == await listed_by(office, name, address, mode), (name, address)
            assert seen["listed"] == len(shown)
            others = [row for row in seen["tools"] if row["shown"] != "listed"]
            assert all(row["reason"] for row in others), (name, address)
            assert not any(row["reason"] for row in seen["tools"] if row["shown"] == "listed")
            assert {row["name"] for row in seen["tools"]} > office.app.gateway.snapshot.tools.keys()


async def test_each_tool_that_is_not_listed_has_its_reason(office: Running) -> None:
    async with api(office.url, "root") as root:
        for name, address, what, reason in REASONS:
            _, seen = await root("GET", f"/access/{name}?address={address.replace('+', '%2B')}")
            said = {row["connection"]: row["reason"] for row in seen["connections"]}
            said |= {row["name"]: row["reason"] for row in seen["tools"]}
            assert said[what] == reason, (name, address)
        _, seen = await root("GET", "/access/eva?address=/mcp/bundles/large")
        [over] = {row["reason"] for row in seen["tools"] if row["shown"] == "meta"}
        assert over.endswith("over its token_budget of 1: it is called through mcp_call_tool.")
        tokens = [row["tokens"] for row in seen["tools"] if row["shown"] == "listed"]
        assert (seen["meta"], seen["tokens"]) == (3, sum(tokens))


async def test_only_admins_look_and_those_of_an_organization_at_its_people(
    office: Running,
) -> None:
    async with api(office.url, "boss") as boss, api(office.url, "ann") as ann:
        assert (await ann("GET", "/access/ann"))[0] == 403
        assert (await ann("GET", "/sign-ins"))[0] == 403
        assert (await ann("DELETE", "/sign-ins/notes?owner=bob"))[0] == 403
        assert (await boss("GET", "/access/dan"))[0] == 200
        for name in ("ann", "root", "nobody"):
            assert (await boss("GET", f"/access/{name}"))[0] == 404
        assert (await boss("GET", "/access/dan?address=/elsewhere"))[0] == 422
    async with visitor(office) as ann_too:
        await ann_too.sign_in(token_of("ann"))
        assert (await ann_too.get("/console/access/view?principal=root")).status_code == 403
        for path in ("access/rights/roles", "permissions/tools", "sign-ins/notes/revoke"):
            assert (await ann_too.post(f"/console/{path}", name="x", tool="x")).status_code == 403


async def test_a_rule_is_made_without_scripts(office: Running) -> None:
    async with visitor(office) as root:
        await root.sign_in(token_of("root"))

        async def post(path: str, **fields: str) -> httpx2.Response:
            return await root.http.post(f"/console/{path}", data={"csrf": root.csrf, **fields})

        await post("permissions/tools", tool="demo_add_book", rule="blocked")
        await post("permissions/tools", tool="demo_delete_book", rule="confirm")
        assert (await post("permissions/tools", tool="no_such", rule="allowed")).status_code == 422
        await post("permissions/tools", tool="demo_delete_book")
        assert office.app.gateway.snapshot.permissions.tools == {"demo_add_book": "blocked"}
        answer = await root.get("/console/access/view?principal=ann&q=add_book&format=json")
        [row] = answer.json()["tools"]
        assert (row["shown"], row["when_called"]) == ("listed", "block")
        await post("permissions", reset="1")


@pytest.mark.browser
async def test_a_browser_looks_through_anothers_eyes_and_revokes(
    browser: Browser, office: Running
) -> None:
    async with api(office.url, "ann") as ann, api(office.url, "root") as root:
        assert (await ann("PUT", "/credentials/notes", {"token": "anns-own-key-0123"}))[0] == 200
        await ann.call("demo_update_book", id=1, title="Cosmicomics")
        assert (await root.decide("always_allow"))[0] == 200
        async with window_of(browser, office) as window:
            page = window.page
            await page.goto(f"{window.base}/console/sign-in")
            await page.fill("[name=token]", token_of("root"))
            await page.keyboard.press("Enter")
            await window.live()
            await window.open("/access")
            await page.locator("#look-principal").select_option("dan")
            await page.get_by_role("button", name="Look").click()
            await expect(page.get_by_role("heading", level=1)).to_contain_text("What dan sees")
            await page.get_by_role("link", name="Bundle reading does not allow it").first.click()
            rows = page.locator("#results tbody tr")
            await expect(rows).to_have_count(2)
            await expect(rows.first).to_contain_text("shop_add_item")
            await page.locator("#look-address").select_option("/mcp/steps/opening/morning")
            await page.get_by_role("button", name="Look").click()
            await expect(page.locator("#seen")).to_contain_text("Listed")
            await expect(page.locator("#results")).to_contain_text("Bundle careful denies it")
            await window.open("/access")
            await page.get_by_role("button", name="Revoke the sign-in of ann to notes").click()
            await expect(page.locator("#toasts")).to_contain_text("ann is signed out of notes")
            await expect(page.locator("#signed-in-1")).to_have_count(0)
            grant = page.locator("#grants li", has_text="demo_update_book")
            await grant.get_by_role("button", name="Revoke").click()
            await expect(grant).to_have_count(0)
        assert (await ann("GET", "/standing-grants"))[1] == {"standing_grants": []}
        _, found = await ann("GET", "/credentials")
        assert [row["signed_in"] for row in found["credentials"]] == [False]
