"""Pages, their filters, and their rows as JSON and CSV; what a caller who is no admin sees."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from gateway.console.forms import suggest_name
from tests.callers import client
from tests.conftest import GatewayMaker, Running
from tests.console.conftest import DEMO, SignedIn, Visitor
from tests.peers import look_until, provider


async def rows(someone: Visitor, path: str, key: str) -> list[dict[str, Any]]:
    answer = await someone.get(path)
    assert answer.headers["content-type"] == "application/json", answer.text
    found: list[dict[str, Any]] = answer.json()[key]
    return found


BY_FILTER = {
    "access=delete": {"demo_delete_book"},
    "risk=medium": {"demo_add_book", "demo_update_book"},
    "confirm=confirm&access=write": {"demo_add_book", "demo_update_book"},
    "connection=nothing": set[str](),
    "q=export_cat": {"demo_export_catalogue"},
}


async def test_tools_are_filtered_by_the_address(reader: Visitor) -> None:
    for query, names in BY_FILTER.items():
        found = await rows(reader, f"/console/tools?format=json&{query}", "tools")
        listed = {row["name"] for row in found}
        assert listed == names if "q=" not in query else names <= listed
        page = (await reader.get(f"/console/tools?{query}")).text
        assert all(f"<code>{name}</code>" in page for name in names)


async def test_calls_are_listed_with_facets_and_given_as_csv(someone: Visitor) -> None:
    for id in ("1", "999"):
        await someone.post("/console/tool?name=demo_get_book", **{"/id": id})
    await calls(someone, 2)
    failed = await rows(someone, "/console/executions?format=json&status=failed", "executions")
    assert [(row["tool"], row["arguments"], row["status"]) for row in failed] == [
        ("demo_get_book", {"id": 999}, "failed")
    ]
    csv = await someone.get("/console/executions?format=csv")
    assert csv.headers["content-type"] == "text/csv; charset=utf-8"
    assert csv.headers["content-disposition"] == 'attachment; filename="executions.csv"'
    assert csv.text.splitlines()[0].startswith("id,tool,connection,principal,status")
    assert len(csv.text.splitlines()) == 3
    page = (await someone.get("/console/executions?status=failed")).text
    assert 'aria-current="true"><span>failed</span><small>1</small>' in page


async def calls(someone: Visitor, count: int) -> list[dict[str, Any]]:
    """The calls there are, once there are so many: reads are recorded soon, not at once."""
    path = "/console/executions?format=json"
    return await look_until(
        lambda: rows(someone, path, "executions"), lambda found: len(found) >= count
    )


async def test_a_call_of_a_tool_that_is_not_there_is_listed(
    shop: Running, someone: Visitor
) -> None:
    async with Client(shop.mcp) as agent:
        with pytest.raises(MCPError):
            await agent.call_tool("demo_burn_books", {})
    await calls(someone, 1)
    [row] = await rows(someone, "/console/executions?format=json", "executions")
    assert (row["tool"], row["connection"], row["status"]) == ("demo_burn_books", "", "denied")
    for path in ("", "/executions", f"/executions/{row['id']}"):
        answer = await someone.get(f"/console{path}")
        assert answer.status_code == 200 and "demo_burn_books" in answer.text


async def test_an_unknown_format_is_told_which_there_are(reader: Visitor) -> None:
    answer = await reader.get("/console/tools?format=xml")
    assert answer.status_code == 422
    assert "json, csv" in answer.text


async def test_a_tool_is_tried_through_its_form_and_its_record_replayed(someone: Visitor) -> None:
    page = (await someone.get("/console/tool?name=demo_search_books")).text
    assert 'name="/q"' in page
    result = await someone.post("/console/tool?name=demo_search_books", **{"/q": "calvino"})
    assert "Invisible Cities" in result.text
    [row] = await calls(someone, 1)
    detail = (await someone.get(f"/console/executions/{row['id']}")).text
    assert f"name=demo_search_books&amp;like={row['id']}" in detail
    again = (await someone.get(f"/console/tool?name=demo_search_books&like={row['id']}")).text
    assert 'value="calvino"' in again


async def waiting(someone: Visitor) -> dict[str, Any]:
    """The card of a call that waits."""
    asked = await someone.post("/console/tool?name=demo_delete_book", **{"/id": "2"})
    assert "It waits for a decision" in asked.text
    [card] = await rows(someone, "/console/approvals?format=json", "approvals")
    return card


async def test_a_tool_that_asks_waits_until_it_is_decided_on_or_cancelled(
    someone: Visitor,
) -> None:
    card = await waiting(someone)
    wanted = {"tool": "demo_delete_book", "arguments": {"id": 2}, "risk": "high"}
    assert card == card | wanted
    decided = await someone.post(f"/console/approvals/{card['id']}", decision="approve")
    assert "Approved demo_delete_book" in decided.text
    again = await someone.post(f"/console/approvals/{card['id']}", decision="deny")
    assert again.status_code in (403, 409)
    card = await waiting(someone)  # a form without a decision denies
    assert "Denied" in (await someone.post(f"/console/approvals/{card['id']}")).text
    page = f"/console/executions/{(await waiting(someone))['execution_id']}"
    assert "Cancel the call" in (await someone.get(page)).text
    assert "The call has ended" in (await someone.post(f"{page}/cancel")).text
    assert (await calls(someone, 3))[0]["status"] == "denied"


async def test_a_connection_is_previewed_added_refreshed_and_deleted(
    module_shop: Running, reader: Visitor
) -> None:
    async with provider() as peer:
        form = {"kind": "openapi", "source": peer.spec, "name": "items"}
        preview = (await reader.post("/console/connections/preview", **form)).text
        assert "items_get_items" in preview and "1 tool" in preview
        assert "items" not in module_shop.app.gateway.snapshot.connections
        added = await reader.post("/console/connections", **form)
        assert added.headers["hx-redirect"] == "/console/connections/items"
        assert "items_get_items" in (await reader.get("/console/connections/items")).text
        again = await reader.post("/console/connections", **form)
        assert again.status_code == 422
        refreshed = await reader.post("/console/connections/items/refresh")
        assert "nothing has changed" in refreshed.text
        await reader.post("/console/connections/items/delete")
    assert "items" not in module_shop.app.gateway.snapshot.connections


async def test_a_definition_that_can_not_be_read_says_why(reader: Visitor) -> None:
    preview = await reader.post(
        "/console/connections/preview", kind="openapi", source="http://127.0.0.1:9/none.json"
    )
    assert preview.status_code == 200
    assert "can&#39;t be fetched" in preview.text


async def test_secrets_of_a_connection_are_never_shown_again(reader: Visitor) -> None:
    async with provider() as peer:
        form = {"kind": "openapi", "source": peer.spec, "name": "items"}
        form |= {"auth": "bearer", "auth.token": "very-secret-1"}
        await reader.post("/console/connections", **form)
        page = (await reader.get("/console/connections/items")).text
        await reader.post("/console/connections/items/delete")
    assert "&#34;type&#34;: &#34;bearer&#34;" in page
    assert "very-secret-1" not in page


def level_of(gateway: Running) -> str:
    return gateway.app.gateway.snapshot.permissions.level


async def test_an_admin_sets_what_runs_and_gives_config_toml_its_force_back(
    shop: Running, someone: Visitor
) -> None:
    await someone.post("/console/permissions", level="read_only")
    assert level_of(shop) == "read_only"
    assert "As in config.toml" in (await someone.get("/console/access")).text
    await someone.post("/console/permissions", reset="1")
    assert level_of(shop) == "execute_with_confirm"
    wrong = await someone.post("/console/permissions", level="anything")
    assert wrong.status_code == 422


async def test_what_clients_are_sent_is_shown_with_reasons(
    make_gateway: GatewayMaker, signed_in: SignedIn
) -> None:
    mine = '[clients.mine]\nmatch = "<b>mine*"\nschema = "plain"\nmax_output_tokens = 1234\n'
    gateway = await make_gateway(DEMO + mine)
    page = (await (await signed_in(gateway)).get("/console/access")).text
    own, shipped = page.index('id="profile-mine"'), page.index('id="profile-claude-code"')
    assert own < shipped
    assert "&lt;b&gt;mine*" in page and "<b>mine*" not in page
    assert "1,234 tokens" in page and "Its API refuses all tools" in page


async def test_a_visitor_chooses_its_own_access(guarded: Running, signed_in: SignedIn) -> None:
    ann = await signed_in(guarded, "ann")
    await ann.post("/console/access/demo", access="read-only")
    [row] = await rows(ann, "/console/access?format=json", "access")
    levels = {"user_access": "read-only", "effective_access": "read-only"}
    assert row == row | levels | {"principal": "ann", "tools": 4}
    wrong = await ann.post("/console/access/demo", access="everything")
    assert wrong.status_code == 422


async def test_who_is_no_admin_sees_only_what_is_its_own(
    guarded: Running, signed_in: SignedIn
) -> None:
    root, ann = await signed_in(guarded, "root"), await signed_in(guarded, "ann")
    await root.post("/console/tool?name=demo_get_book", **{"/id": "1"})
    await root.post("/console/tool?name=demo_delete_book", **{"/id": "1"})
    await ann.post("/console/tool?name=demo_get_book", **{"/id": "2"})
    everyones = await calls(root, 3)
    mine = await rows(ann, "/console/executions?format=json&principal=root", "executions")
    assert [(row["principal"], row["arguments"]) for row in mine] == [("ann", {"id": 2})]
    assert await rows(ann, "/console/approvals?format=json", "approvals") == []
    access = await rows(ann, "/console/access?format=json", "access")
    assert {row["principal"] for row in access} == {"ann"}
    for row in everyones:
        status = (await ann.get(f"/console/executions/{row['id']}")).status_code
        assert status == (200 if row["principal"] == "ann" else 404)
    page = (await ann.get("/console")).text
    assert "root" not in page and "waiting for a decision" not in page
    assert "Settings" not in (await ann.get("/console/connections/demo")).text


async def test_connect_a_client_tells_what_was_heard_of_ones_own_clients(
    guarded: Running, signed_in: SignedIn
) -> None:
    ann = await signed_in(guarded, "ann")
    page = (await ann.get("/console")).text
    assert 'data-heard="0"' in page and "Heard before" not in page
    assert f"claude mcp add --transport http gateway {guarded.mcp}" in page
    assert "Authorization: Bearer YOUR_TOKEN" in page
    async with client(guarded.url, "ann") as mcp:
        await mcp.list_tools()
    assert "Heard before: python-httpx" in (await ann.get("/console")).text
    root = await signed_in(guarded, "root")
    assert 'data-heard="0"' in (await root.get("/console")).text


@pytest.mark.parametrize(
    ("source", "kind", "name"),
    [
        ("https://api.example.com/v1/openapi.json", "openapi", "example"),
        ("https://www.pets.io/spec", "openapi", "pets"),
        ("http://127.0.0.1:8080/openapi.json", "openapi", "api"),
        ("http://[::1]:8080/mcp", "mcp", "api"),
        ('{"info": {"version": "1", "title": "Parcel Post"}}', "openapi", "parcel"),
        ("openapi: 3.0.0\ninfo:\n  title: Ötzi's API\n", "openapi", "tzi"),
        ("zoho-recruit", "manifest", "zoho-recruit"),
        ("x" * 100_000, "openapi", "api"),
    ],
)
def test_a_connection_nobody_named_gets_a_fitting_name(source: str, kind: str, name: str) -> None:
    assert suggest_name(source, kind) == name


async def test_forms_work_without_scripts_too(shop: Running, someone: Visitor) -> None:
    form = {"csrf": someone.csrf, "level": "read_only"}
    back = {shop.url: "/console/access", "http://elsewhere.invalid": "/console"}
    for site, place in back.items():
        headers = {"referer": f"{site}/console/access"}
        answer = await someone.http.post("/console/permissions", data=form, headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, place)
