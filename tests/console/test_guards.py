"""What every answer says, and which forms are believed."""

from __future__ import annotations

import pytest

from gateway.console.app import STATIC
from gateway.web.guard import PAGE_HEADERS
from tests.conftest import Running
from tests.console.conftest import SignedIn, Visitor, visitor
from tests.console.conftest import module_guarded as guarded
from tests.console.conftest import module_shop as shop

__all__ = ["guarded", "shop"]

PAGES = (
    *("/console", "/console/connections", "/console/connections/new", "/console/connections/demo"),
    *("/console/tools", "/console/tool?name=demo_add_book", "/console/approvals"),
    *("/console/executions", "/console/access", "/console/sign-in"),
)


NOWHERE = ("/console/nowhere", "/console/tool?name=nothing", "/console/executions/nothing")


async def test_every_page_forbids_what_does_not_come_from_here(someone: Visitor) -> None:
    for path in (*PAGES, *NOWHERE):
        answer = await someone.get(path)
        assert (path, answer.status_code) == (path, 404 if path in NOWHERE else 200)
        assert {name: answer.headers[name] for name in PAGE_HEADERS} == PAGE_HEADERS
        for inline in ("<script>", " style=", " onclick"):
            assert inline not in answer.text


def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere() -> None:
    policy = dict(
        rule.strip().split(" ", 1) for rule in PAGE_HEADERS["content-security-policy"].split(";")
    )
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "font-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
    }


ACTIONS = (
    *("/console/permissions", "/console/access/demo", "/console/connections"),
    *("/console/connections/preview", "/console/connections/demo/refresh"),
    *("/console/connections/demo/delete", "/console/tool?name=demo_list_books"),
    *("/console/approvals/1", "/console/changes/1", "/console/sign-out"),
)


@pytest.mark.parametrize("token", ["", "0" * 64, "é"])
async def test_a_form_without_the_sessions_token_does_nothing(
    shop: Running, token: str, someone: Visitor
) -> None:
    before = shop.app.gateway.snapshot
    for path in ACTIONS:
        answer = await someone.http.post(path, data={"csrf": token, "level": "full_access"})
        assert (path, answer.status_code) == (path, 403)
    assert shop.app.gateway.snapshot is before
    assert (await someone.get("/console")).status_code == 200


async def test_one_sessions_token_does_not_fit_another(shop: Running, signed_in: SignedIn) -> None:
    one, other = await signed_in(shop), await signed_in(shop)
    assert one.csrf != other.csrf
    one.csrf = other.csrf
    assert (await one.post("/console/permissions", level="full_access")).status_code == 403


FOREIGN = (
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
)


@pytest.mark.parametrize("path", ["/console/permissions", "/console/sign-in"])
async def test_a_form_of_another_site_does_nothing(
    shop: Running, path: str, someone: Visitor
) -> None:
    form = {"csrf": someone.csrf, "level": "full_access"}
    for headers in FOREIGN:
        answer = await someone.http.post(path, data=form, headers=headers)
        assert (headers, answer.status_code) == (headers, 403)
    assert shop.app.gateway.snapshot.permissions.level == "execute_with_confirm"


async def test_a_form_that_is_none_is_refused(someone: Visitor) -> None:
    answer = await someone.http.post(
        "/console/permissions",
        content=b'{"level": "full_access"}',
        headers={"content-type": "application/json", "x-csrf-token": someone.csrf},
    )
    assert answer.status_code == 415


async def test_files_are_kept_as_long_as_they_are_the_same(shop: Running) -> None:
    async with visitor(shop) as someone:
        for path in STATIC.rglob("*.*"):
            address = f"/console/static/{path.relative_to(STATIC)}"
            answer = await someone.get(address)
            assert (path, answer.status_code, answer.content) == (path, 200, path.read_bytes())
            assert answer.headers["cache-control"] == "no-cache"
            assert answer.headers["x-content-type-options"] == "nosniff"
            known = {"if-none-match": answer.headers["etag"]}
            assert (await someone.get(address, headers=known)).status_code == 304
        assert (await someone.get("/console/static/other.js")).status_code == 404
        assert (await someone.get("/console/static/../../../etc/passwd")).status_code in (303, 404)


async def test_what_is_not_an_admins_is_refused_to_others(
    guarded: Running, signed_in: SignedIn
) -> None:
    ann = await signed_in(guarded, "ann")
    forms: dict[str, dict[str, str]] = {
        "/console/permissions": {"level": "full_access"},
        "/console/connections": {"kind": "openapi", "source": "{}"},
        "/console/connections/preview": {"kind": "openapi", "source": "{}"},
        "/console/connections/demo/refresh": {},
        "/console/connections/demo/delete": {},
        "/console/approvals/1": {"decision": "approve"},
        "/console/changes/1": {"decision": "accept"},
    }
    for path, form in forms.items():
        assert (path, (await ann.post(path, **form)).status_code) == (path, 403)
    assert (await ann.get("/console/connections/new")).status_code == 403
