"""Each person calls an API as themselves: they sign in once, from wherever they are asked to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp_types import ElicitResult

from tests.callers import api
from tests.oauth.people import form_of
from tests.peers import soon
from tests.sign_in.conftest import House, Visitor, mcp_client, signed_in_at

ERAS = ["legacy", "2026-07-28"]


async def test_each_person_calls_as_themselves(house: House) -> None:
    await house.put()
    ann, bob = house.api("ann"), house.api("bob")
    refused = await ann.call("notes_get_notes", id="1")
    error = refused["error"]
    assert error["code"] == "sign_in_required"
    assert error["sign_in_url"].startswith(f"{house.gateway.url}/oauth/connect/")
    assert house.peer.asked == []
    page = await house.person("ann").sign_in(error["sign_in_url"])
    assert "Signed in to" in page.text
    assert (await ann.call("notes_get_notes", id="1"))["output"]["who"] == "ann"
    assert (await bob.call("notes_get_notes", id="1"))["error"]["code"] == "sign_in_required"
    await house.sign_in("bob")
    answers = await asyncio.gather(*(each.call("notes_get_notes", id="2") for each in (ann, bob)))
    assert [each["output"]["who"] for each in answers] == ["ann", "bob"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("tool", ["notes_get_notes", "notes_add_note"])
async def test_a_client_that_opens_pages_is_asked_and_its_call_goes_on(
    house: House, era: str, tool: str
) -> None:
    await house.put()
    asked: list[Any] = []
    opened: list[asyncio.Task[Any]] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params)
        opened.append(asyncio.create_task(house.person("ann").sign_in(params.url)))
        return ElicitResult(action="accept")

    async with mcp_client(house.gateway.url, "ann", era, answer) as client:
        arguments = {"id": "1"} if tool == "notes_get_notes" else {"text": "hi"}
        result = await client.call_tool(tool, arguments)
        assert result.structured_content is not None, result
        assert result.structured_content["who"] == "ann"
        again = await client.call_tool(tool, arguments)
        assert again.structured_content and again.structured_content["who"] == "ann"
    assert [params.mode for params in asked] == ["url"]
    assert "Signed in to" in (await opened[0]).text
    assert [path for _, path in house.peer.asked].count("/notes" + "/1" * (tool[6] == "g")) == 2


@pytest.mark.parametrize("era", ERAS)
async def test_a_person_who_declines_gets_the_link_and_nothing_is_sent(
    house: House, era: str
) -> None:
    await house.put()

    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    async with mcp_client(house.gateway.url, "ann", era, answer) as client:
        result = await client.call_tool("notes_get_notes", {"id": "1"})
        assert result.is_error and result.structured_content is not None
        assert result.structured_content["error"]["code"] == "sign_in_required"
    assert house.peer.asked == []


async def test_a_client_that_never_answers_goes_on_when_its_person_signs_in_elsewhere(
    house: House,
) -> None:
    await house.put()
    asked = asyncio.Event()

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.set()
        await asyncio.sleep(60)
        return ElicitResult(action="decline")

    async with mcp_client(house.gateway.url, "ann", "legacy", answer) as client:
        call = asyncio.create_task(client.call_tool("notes_get_notes", {"id": "1"}))
        await soon(asked.wait())
        await house.sign_in("ann")
        result = await call
        assert result.structured_content and result.structured_content["who"] == "ann"


@pytest.mark.parametrize("era", ERAS)
async def test_tools_are_listed_for_those_who_have_not_signed_in(house: House, era: str) -> None:
    await house.put()
    async with mcp_client(house.gateway.url, "bob", era) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert "notes_get_notes" in names


async def test_an_admin_signs_in_for_everybody(house: House) -> None:
    await house.put(**signed_in_at(house.peer, per="connection"))
    refused = await house.api("ann").call("notes_get_notes", id="1")
    assert refused["error"]["code"] == "sign_in_required"
    assert "sign_in_url" not in refused["error"]
    told = await house.api("ann")("POST", "/credentials/notes/sign-in")
    assert told["error"]["code"] == "access_denied"
    assert (await house.api("ann")("GET", "/credentials"))["credentials"] == []
    await house.sign_in("root")
    for name in ("ann", "bob"):
        found = await house.api(name).call("notes_get_notes", id="1")
        assert found["output"]["who"] == "root"


async def test_an_admin_with_an_organization_does_not_sign_in_for_everybody(house: House) -> None:
    shared = signed_in_at(house.peer, per="connection")
    await house.put(**shared)
    root = house.api("root")
    gus = {"admin": True, "organization": "globex", "new_token": True}
    token = (await root("PUT", "/principals/gus", gus))["token"]
    async with api(house.url) as ask:
        ask.http.headers["authorization"] = f"Bearer {token}"
        _, refused = await ask.call("notes_get_notes", id="1")
        visitor = Visitor(house.url, token)
        async with visitor.http:
            page = await visitor.sign_in(refused["error"]["sign_in_url"])
        assert page.status_code == 403 and "Only an admin of the connection" in page.text
        await house.sign_in("root")
        for method, path in (
            ("POST", "/credentials/notes/sign-in"),
            ("DELETE", "/credentials/notes"),
        ):
            assert (await ask(method, path))[0] == 403
        assert (await ask("DELETE", "/sign-ins/notes"))[0] == 404
        listed = [(await ask("GET", path))[1] for path in ("/credentials", "/sign-ins")]
        assert listed == [{"credentials": []}, {"sign_ins": []}]
        assert (await house.api("bob").call("notes_get_notes", id="1"))["output"]["who"] == "root"
        await house.put(**shared, organization="globex")
        assert (await ask("POST", "/credentials/notes/sign-in"))[0] == 200
    await root("DELETE", "/principals/gus")


@pytest.mark.parametrize(
    ("auth", "given", "who"),
    [
        ({"type": "bearer"}, {"token": "access-own"}, "ann"),
        ({"type": "basic"}, {"username": "ann", "password": "pw-123456"}, "ann"),
        ({"type": "api-key", "name": "X-Api-Key", "in": "header"}, {"value": "access-own"}, "ann"),
    ],
)
async def test_a_key_of_ones_own(house: House, auth: Any, given: Any, who: str) -> None:
    house.peer.owners["access-own"] = "ann"
    settings = {**signed_in_at(house.peer), "auth": {**auth, "per": "user"}}
    await house.put(**settings)
    ann = house.api("ann")
    link = (await ann.call("notes_get_notes", id="1"))["error"]["sign_in_url"]
    put = await ann("PUT", "/credentials/notes", given)
    assert (put["signed_in"], put["type"]) == (True, auth["type"])
    assert not any(value in str(put) for value in given.values() if value != "ann")
    assert (await ann.call("notes_get_notes", id="1"))["output"]["who"] == who
    other = await house.api("bob").call("notes_get_notes", id="1")
    assert other["error"]["code"] == "sign_in_required"
    await ann("DELETE", "/credentials/notes")
    assert (await ann.call("notes_get_notes", id="1"))["error"]["code"] == "sign_in_required"
    # The same by the page behind the link.
    person = house.person("ann")
    page = await person.visit(link)
    path = link.removeprefix(house.gateway.url)
    done = await person.post(path, {**form_of(page.text, path), **given})
    assert "Signed in to" in done.text
    assert (await ann.call("notes_get_notes", id="1"))["output"]["who"] == who


async def test_what_is_listed_of_ones_own(house: House) -> None:
    await house.put()
    ann = house.api("ann")
    (row,) = (await ann("GET", "/credentials"))["credentials"]
    assert (row["connection"], row["type"], row["signed_in"]) == ("notes", "oauth2", False)
    await house.sign_in("ann")
    (row,) = (await ann("GET", "/credentials"))["credentials"]
    assert row["signed_in"] and row["expires_at"] is not None
    (other,) = (await house.api("root")("GET", "/credentials"))["credentials"]
    assert not other["signed_in"]
    gone = await ann("DELETE", "/credentials/notes")
    assert not gone["signed_in"]
    assert house.peer.revoked == [*house.peer.refreshable]
    assert (await ann.call("notes_get_notes", id="1"))["error"]["code"] == "sign_in_required"
