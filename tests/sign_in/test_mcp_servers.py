"""MCP servers that take people's own tokens: found by their documents, registered as they allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from mcp_types import ElicitResult

from gateway.config.file import parse_connection
from gateway.outbound.client import Egress
from gateway.sign_in.discovery import Discovery
from tests.peers import until
from tests.sign_in.conftest import Api, House, mcp_client
from tests.sign_in.servers import notes_mcp


@pytest.fixture
async def server(house: House) -> AsyncIterator[str]:
    async with notes_mcp(house.peer) as url:
        yield url


def people(url: str, **more: Any) -> dict[str, Any]:
    auth = {"type": "oauth2", "grant": "authorization_code", "per": "user", **more}
    return {"kind": "mcp", "url": url, "auth": auth}


async def tool(house: House, name: str = "notes_who_am_i") -> None:
    await until(lambda: name in house.gateway.app.gateway.snapshot.tools)


async def ann_at(house: House, **settings: Any) -> Api:
    """Ann, who has signed in to the server and called it."""
    await house.put(**settings)
    await house.sign_in("ann")
    await tool(house)
    ann = house.api("ann")
    assert "you are ann" in str(await ann.call("notes_who_am_i"))
    return ann


async def test_tools_are_learned_at_the_first_sign_in_and_listed_for_everybody(
    house: House, server: str
) -> None:
    put = await house.put(**people(server))
    assert put["status"] == "unauthenticated"
    await house.sign_in("ann")
    await tool(house)
    ann, bob = house.api("ann"), house.api("bob")
    assert (await bob("GET", "/connections/notes"))["status"] == "connected"
    said = (await ann.call("notes_who_am_i"))["output"]
    assert "you are ann" in str(said) and "access-" not in str(said)
    assert (await bob.call("notes_who_am_i"))["error"]["code"] == "sign_in_required"
    await house.sign_in("bob")
    assert "you are bob" in str((await bob.call("notes_who_am_i"))["output"])
    assert {who for who, path in house.peer.asked if path == "who_am_i"} == {"ann", "bob"}
    # Registered once, for both; tokens are asked for the server's own address.
    assert len(house.peer.registered) == 1
    assert house.peer.registered[0]["redirect_uris"] == [f"{house.url}/oauth/callback"]
    assert {form["resource"] for form in house.peer.forms} == {server}


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_client_is_asked_and_its_call_goes_on(house: House, server: str, era: str) -> None:
    await house.put(**people(server))
    await house.sign_in("ann")
    await tool(house)
    house.peer.login = "bob"
    opened: list[asyncio.Task[Any]] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        opened.append(asyncio.create_task(house.person("bob").sign_in(params.url)))
        return ElicitResult(action="accept")

    async with mcp_client(house.url, "bob", era, answer) as client:
        for _ in range(2):
            result = await client.call_tool("notes_who_am_i", {})
            assert "you are bob" in str(result.content)
    assert len(opened) == 1


async def test_a_renewed_token_reaches_the_server_and_a_refused_one_asks_again(
    house: House, server: str
) -> None:
    ann = await ann_at(house, **people(server))
    house.peer.expire()
    assert "you are ann" in str(await ann.call("notes_who_am_i"))
    assert house.peer.reused == []
    house.peer.expire()
    house.peer.refreshable.clear()
    refused = await ann.call("notes_who_am_i")
    assert refused["error"]["code"] == "sign_in_required"
    assert refused["error"]["sign_in_url"]
    assert (await ann("GET", "/connections/notes"))["status"] == "connected"
    house.peer.login = "ann"
    await house.person("ann").sign_in(refused["error"]["sign_in_url"])
    assert "you are ann" in str(await ann.call("notes_who_am_i"))


async def test_many_calls_whose_token_is_refused_renew_it_once(house: House, server: str) -> None:
    ann = await ann_at(house, **people(server))
    house.peer.expire()
    house.peer.slow = 0.2
    before = house.peer.refreshes()
    answers = await asyncio.gather(*(ann.call("notes_who_am_i") for _ in range(20)))
    assert all("you are ann" in str(each) for each in answers), answers
    assert (house.peer.refreshes() - before, house.peer.reused) == (1, [])


async def test_who_signs_in_as_somebody_else_gets_a_session_of_theirs(
    house: House, server: str
) -> None:
    ann = await ann_at(house, **people(server))
    house.peer.login = "ann-at-work"
    await house.person("ann").sign_in(await ann.link())
    assert "you are ann-at-work" in str(await ann.call("notes_who_am_i"))


async def test_one_sign_in_for_all(house: House, server: str) -> None:
    await house.put(**people(server, per="connection"))
    await house.sign_in("root")
    await tool(house)
    assert "you are root" in str(await house.api("bob").call("notes_who_am_i"))


async def test_a_client_that_is_configured_is_not_registered(house: House, server: str) -> None:
    secret = house.peer.clients["gw"]
    await ann_at(house, **people(server, client_id="gw", client_secret=secret))
    assert house.peer.registered == []


async def test_a_server_that_takes_no_new_clients_says_what_to_set(
    house: House, server: str
) -> None:
    house.peer.new_clients = False
    await house.put(**people(server))
    page = await house.person("ann").sign_in(await house.api("ann").link())
    assert page.status_code == 503
    assert "auth.client_id" in page.text


async def test_an_issuer_that_must_name_itself_and_does_not_is_refused(
    house: House, server: str
) -> None:
    await house.put(**people(server))
    house.peer.iss = None
    house.peer.odd = {"authorization_response_iss_parameter_supported": True}
    page = await house.person("ann").sign_in(await house.api("ann").link())
    assert page.status_code == 400 and "another provider" in page.text
    assert house.peer.forms == []


async def test_a_token_that_was_renewed_for_a_call_is_not_shown_by_its_answer(
    house: House, server: str
) -> None:
    ann = await ann_at(house, **people(server))
    house.peer.expire()
    said = str(await ann.call("notes_who_am_i"))
    assert "you are ann" in said and "access-" not in said


@pytest.mark.parametrize("protocol", ["2025", "2026"])
async def test_a_server_that_refuses_what_is_fresh_asks_for_another_sign_in(
    house: House, server: str, protocol: str
) -> None:
    await house.put(**people(server) | {"protocol": protocol})
    for name in ("ann", "bob"):
        await house.sign_in(name)
    await tool(house)
    ann, bob = house.api("ann"), house.api("bob")
    for each in (ann, bob):
        assert "you are" in str(await each.call("notes_who_am_i"))
    give = house.peer._give

    def useless(login: str, refresh: str) -> Any:
        answer = give(login, refresh)
        house.peer.owners = {token: who for token, who in house.peer.owners.items() if who == "bob"}
        return answer

    house.peer._give = useless  # type: ignore[method-assign]
    house.peer.owners = {token: who for token, who in house.peer.owners.items() if who == "bob"}
    for _ in range(2):
        refused = await ann.call("notes_who_am_i")
        assert refused["error"]["code"] == "sign_in_required", refused
        assert refused["error"]["sign_in_url"]
    assert house.peer.refreshes() == 1
    assert (await bob("GET", "/connections/notes"))["status"] == "connected"
    assert "you are bob" in str(await bob.call("notes_who_am_i"))


@pytest.mark.parametrize("protocol", ["2025", "2026"])
async def test_one_persons_wrong_key_leaves_the_tools_of_all_to_be_read(
    house: House, server: str, protocol: str
) -> None:
    auth = {"type": "bearer", "per": "user"}
    await house.put(**people(server) | {"auth": auth, "protocol": protocol})
    house.peer.owners["key-of-ann"] = "ann"
    ann, bob = house.api("ann"), house.api("bob")
    await bob("PUT", "/credentials/notes", {"token": "wrong"})
    await ann("PUT", "/credentials/notes", {"token": "key-of-ann"})
    await tool(house)
    assert "you are ann" in str(await ann.call("notes_who_am_i"))
    assert (await bob.call("notes_who_am_i"))["error"]["code"] == "sign_in_required"
    root = house.api("root")
    report = await root("POST", "/connections/notes/refresh")
    assert "error" not in report or not report["error"], report
    assert (await root("GET", "/connections/notes"))["status"] == "connected"


async def test_a_session_with_a_server_goes_on_when_its_token_is_renewed(
    house: House, server: str
) -> None:
    ann = await ann_at(house, **people(server) | {"protocol": "2025"})
    for _ in range(2):
        house.peer.expire()
        assert "you are ann" in str(await ann.call("notes_who_am_i"))
        await asyncio.sleep(0.3)  # every process hears of it
    assert len(house.peer.sessions) == 3 and len(set(house.peer.sessions)) == 1
    assert house.peer.sessions[0]
    await house.sign_in("ann")  # it may be as somebody else
    assert "you are ann" in str(await ann.call("notes_who_am_i"))
    assert len(set(house.peer.sessions)) == 2


@pytest.mark.parametrize(
    "odd",
    [
        {"code_challenge_methods_supported": 5},
        {"token_endpoint_auth_methods_supported": 5},
        {"authorization_endpoint": "https://["},
        {"token_endpoint": ["x"]},
        {"registration_endpoint": "https://["},
        {"revocation_endpoint": "http://["},
        {"issuer": {"a": 1}},
        {"authorization_endpoint": "javascript:alert(1)//"},
    ],
)
async def test_documents_that_say_nonsense_are_told_on_a_page(
    house: House, server: str, odd: dict[str, Any]
) -> None:
    await house.put(**people(server))
    house.peer.odd = odd
    page = await house.person("ann").sign_in(await house.api("ann").link())
    assert page.status_code == 503 and "That did not work" in page.text, page.text
    assert house.peer.codes == {}


async def test_a_server_that_takes_documents_knows_the_gateway_by_its_own(
    house: House, server: str
) -> None:
    """Where the gateway is reached over https; then nothing is registered."""
    house.peer.documents = True
    settings, nothing = parse_connection("notes", people(server)), cast(Any, None)
    async with Egress(["127.0.0.1/32"]) as egress:
        ways = (nothing, nothing, egress, lambda: ("127.0.0.1/32",), "https://gw.example")
        found = await Discovery(*ways).server_of("notes", settings, None, None)
    assert (found.client_id, found.client_secret) == ("https://gw.example/oauth/client.json", "")
    assert (found.issuer, found.resource, found.names_itself) == (house.peer.url, server, True)
    assert house.peer.registered == []
    told = (await house.person("ann").http.get("/oauth/client.json")).json()
    assert told["client_id"] == f"{house.url}/oauth/client.json"
    assert told["redirect_uris"] == [f"{house.url}/oauth/callback"]
