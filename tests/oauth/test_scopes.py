"""What a client may do of what its person may: scopes, and how it learns that it lacks one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import update

from gateway.store.tables import oauth_grants
from tests.conftest import Running
from tests.oauth.conftest import NewPerson
from tests.oauth.people import META, Person, Program

BOOK = {"title": "Emma", "author": "Jane Austen", "price": 7.5}


async def call(program: Program, token: str, era: str, name: str, arguments: Any) -> Any:
    """A raw tools/call: what HTTP says of it."""
    headers = {
        "authorization": f"Bearer {token}",
        "accept": "application/json, text/event-stream",
    }
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    if era == "2026":
        params["_meta"] = META
        headers |= {
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": name,
        }
    else:
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "by hand", "version": "1"},
        }
        first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
        opened = await program.http.post("/mcp", json=first, headers=headers)
        headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        headers["mcp-protocol-version"] = "2025-11-25"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return await program.http.post("/mcp", json=body, headers=headers)


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_client_that_may_only_read_is_told_which_scope_a_write_needs(
    gateway: Running, new_person: NewPerson, program: Program, era: str
) -> None:
    tokens = await program.sign_in(new_person("root"), scope="tools:read")
    assert tokens["scope"] == "tools:read"
    token = tokens["access_token"]
    assert (await call(program, token, era, "demo_list_books", {})).status_code == 200
    for name, arguments, scope in (
        ("demo_add_book", BOOK, "tools:read tools:write"),
        ("put_connection", {"name": "x", "settings": {}}, "tools:read tools:write admin"),
    ):
        refused = await call(program, token, era, name, arguments)
        assert refused.status_code == 403
        challenge = refused.headers["www-authenticate"]
        assert 'error="insufficient_scope"' in challenge and f'scope="{scope}"' in challenge
        assert f"{gateway.url}/.well-known/oauth-protected-resource/mcp" in challenge
    through_rest = await program.http.post(
        "/api/v1/tools/demo_add_book/call",
        json={"arguments": BOOK},
        headers={"authorization": f"Bearer {token}"},
    )
    assert through_rest.status_code == 403
    assert through_rest.json()["error"]["code"] == "insufficient_scope"


async def test_a_client_that_may_only_read_changes_nothing(
    person: Person, program: Program
) -> None:
    narrow, whole = [
        (await program.sign_in(person, scope=scope))["access_token"]
        for scope in ("tools:read", "tools:read tools:write")
    ]

    async def ask(token: str, method: str, path: str, body: object = None) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {token}"}
        answer = await program.http.request(method, f"/api/v1{path}", json=body, headers=headers)
        return answer.status_code, answer.text

    status, listed = await ask(narrow, "GET", "/grants")
    assert status == 200
    grants = [f"/grants/{each['id']}" for each in json.loads(listed)["grants"]]
    paths = [("DELETE", path) for path in (*grants, "/standing-grants/1", "/executions/1")]
    for method, path in [*paths, ("PUT", "/access/demo")]:
        status, refused = await ask(narrow, method, path, {"access": "read-only"})
        assert (status, json.loads(refused)["error"]["code"]) == (403, "insufficient_scope")
    assert (await ask(whole, "PUT", "/access/demo", {"access": "read-only"}))[0] == 200
    assert (await ask(whole, "PUT", "/access/demo", {"access": "read-write"}))[0] == 200
    assert (await ask(whole, "DELETE", grants[-1]))[0] == 200


async def test_a_person_may_hold_back_what_a_client_asks_for(
    new_person: NewPerson, program: Program
) -> None:
    root = new_person("root")
    root.withhold = ("admin",)
    tokens = await program.sign_in(root)
    assert tokens["scope"] == "tools:read tools:write"
    headers = {"authorization": f"Bearer {tokens['access_token']}"}
    assert (await program.http.get("/api/v1/approvals", headers=headers)).status_code == 403
    written = await call(program, tokens["access_token"], "2026", "demo_add_book", BOOK)
    assert written.status_code == 200


@pytest.mark.parametrize(
    ("held_back", "scope"),
    [
        ("admin", "tools:read tools:write"),
        ("tools:write", "tools:read"),
        ("tools:write", "tools:read admin"),  # a grant of before, which the page gives no more
    ],
)
async def test_a_client_manages_nothing_unless_it_may_write_and_is_admin(
    gateway: Running, new_person: NewPerson, program: Program, held_back: str, scope: str
) -> None:
    root = new_person("root")
    root.withhold = (held_back,)
    tokens = await program.sign_in(root)
    if scope == "tools:read admin":
        assert tokens["scope"] == "tools:read"
        its = update(oauth_grants).where(oauth_grants.c.client_id == program.id).values(scope=scope)
        await gateway.app.gateway.db.write(lambda tx: tx.execute(its))
        tokens = (await program.refresh(tokens["refresh_token"])).json()
    assert tokens["scope"] == scope
    token, book = tokens["access_token"], {"kind": "openapi", "spec": "{}"}
    for method, path, body in (
        ("PUT", "/connections/x", book),
        ("DELETE", "/connections/x", None),
        ("POST", "/connections/demo/refresh", None),
        ("POST", "/connections/preview", book),
        ("PUT", "/permissions", {"level": "full_access"}),
        ("GET", "/approvals", None),
        ("POST", "/approvals/1", {"decision": "always_allow"}),
        ("POST", "/changes/1/accept", None),
        ("PUT", "/principals/eve", {"new_token": True}),
    ):
        headers = {"authorization": f"Bearer {token}"}
        answer = await program.http.request(method, f"/api/v1{path}", json=body, headers=headers)
        refused = answer.status_code, answer.json()["error"]["code"]
        assert refused == (403, "insufficient_scope"), (method, path)
    for name, arguments in (
        ("put_connection", {"name": "x", **book}),
        ("delete_connection", {"name": "x"}),
        ("refresh_tools", {}),
    ):
        answer = await call(program, token, "2026", name, arguments)
        assert answer.status_code == 403, (name, answer.text)
        assert 'scope="tools:read tools:write admin"' in answer.headers["www-authenticate"]


async def test_nobody_gets_more_than_they_have(person: Person, program: Program) -> None:
    tokens = await program.sign_in(person, scope="admin openid email offline_access")
    assert tokens["scope"] == "tools:read tools:write"
    headers = {"authorization": f"Bearer {tokens['access_token']}"}
    assert (await program.http.get("/api/v1/approvals", headers=headers)).status_code == 403


async def test_static_tokens_go_on_working(gateway: Running, program: Program) -> None:
    for path in ("/mcp", "/mcp/bundles/books", "/api/v1/tools"):
        assert await program.status("ann-token-0123456789", path) == 200


async def test_grants_are_listed_to_their_owner_and_to_admins_and_revoked_by_them(
    gateway: Running, new_person: NewPerson, program: Program
) -> None:
    mine = (await program.sign_in(new_person("bob")))["access_token"]
    theirs = (await program.sign_in(new_person("zoe")))["access_token"]

    def bearer(token: str) -> dict[str, str]:
        return {"authorization": f"Bearer {token}"}

    http = program.http
    [own] = (await http.get("/api/v1/grants", headers=bearer(mine))).json()["grants"]
    assert own["client_name"] == "By hand" and own["resource"] == gateway.mcp
    everything = await http.get("/api/v1/grants", headers=bearer("root-token-0123456789"))
    grants = {each["principal"]: each["id"] for each in everything.json()["grants"]}
    assert grants["bob"] == own["id"]
    foreign = f"/api/v1/grants/{grants['zoe']}"
    assert (await http.delete(foreign, headers=bearer(mine))).status_code == 404
    assert await program.status(theirs) == 200
    assert (await http.delete(foreign, headers=bearer("root-token-0123456789"))).status_code == 200
    assert await program.is_locked_out(theirs)
    assert await program.status(mine) == 200
