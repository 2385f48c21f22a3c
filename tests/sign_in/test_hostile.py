"""Settings and definitions that change at the wrong moment, answers that nobody expects."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from mcp_types import ElicitResult
from msgspec import structs
from sqlalchemy import Connection, select, update

from gateway.calls.credentials import account_of
from gateway.store import tables
from gateway.store.credentials import CREDENTIAL, get_credential
from tests.oauth.people import form_of
from tests.peers import items_api, until
from tests.sign_in.conftest import House, mcp_client, signed_in_at
from tests.sign_in.servers import notes_api
from tests.sign_in.test_attacks import at_provider, is_signed_in

ERAS = ["legacy", "2026-07-28"]


async def called(house: House, name: str = "ann") -> Any:
    return await house.api(name).call("notes_get_notes", id="1")


async def test_a_token_whose_life_is_not_told_is_good_until_it_is_refused(house: House) -> None:
    house.peer.life = None
    await house.put()
    await house.sign_in("ann")
    assert (await called(house))["output"]["who"] == "ann"
    house.peer.expire()
    assert (await called(house))["output"]["who"] == "ann"
    assert house.peer.refreshes() == 1


@pytest.mark.parametrize("life", [1e300, 10**18, -5, "soon", True])
async def test_a_life_that_nobody_has_harms_no_page(house: House, life: Any) -> None:
    house.peer.life = life
    await house.put()
    await house.sign_in("ann")
    assert (await called(house))["output"]["who"] == "ann"
    person = house.person("ann")
    await person.post("/oauth/sign-in", {"token": person.token, "onward": ""})
    assert (await person.http.get("/console/access")).status_code == 200


@pytest.mark.parametrize("longer", [0, 3000])
async def test_a_definition_that_names_another_server_gets_nobodys_token(
    house: House, longer: int
) -> None:
    """Also one that is too long to be shown anywhere."""
    async with notes_api() as other:

        def settings(url: str) -> dict[str, Any]:
            document = items_api(url, "notes", **{"/notes": {"description": "x" * longer}})
            return {**signed_in_at(house.peer), "spec": json.dumps(document)}

        await house.put(**settings(house.peer.url))
        await house.sign_in("ann")
        assert (await called(house))["output"]["who"] == "ann"
        await house.put(**settings(other.url))
        assert (await called(house))["error"]["code"] == "sign_in_required"
        assert other.asked == []


async def test_an_address_whose_definition_changes_its_server_gets_nobodys_token(
    house: House,
) -> None:
    async with notes_api() as other:
        await house.put()
        await house.sign_in("ann")
        assert (await called(house))["output"]["who"] == "ann"
        house.peer.serves = other.url
        assert "error" not in await house.api("root")("POST", "/connections/notes/refresh")
        assert (await called(house))["error"]["code"] == "sign_in_required"
        assert other.asked == []


async def test_settings_that_change_while_a_person_is_away_get_nothing(house: House) -> None:
    await house.put()
    person = house.person("ann")
    back = await at_provider(house, person, await house.api("ann").link())
    async with notes_api() as other:
        await house.put(**{**signed_in_at(house.peer), "base_url": other.url})
        page = await person.visit(back)
        assert page.status_code in (400, 409), page.text
        assert not await is_signed_in(house, "ann")


async def test_settings_that_change_under_a_form_get_no_key(house: House) -> None:
    keys = {**signed_in_at(house.peer), "auth": {"type": "bearer", "per": "user"}}
    await house.put(**keys)
    person, link = house.person("ann"), await house.api("ann").link()
    path = link.removeprefix(house.url)
    fields = form_of((await person.visit(link)).text, path)
    async with notes_api() as other:
        await house.put(**{**keys, "base_url": other.url})
        answer = await person.post(path, {**fields, "token": "mine"})
        assert answer.status_code == 409, answer.text
        assert not await is_signed_in(house, "ann")


async def test_a_connection_that_goes_while_its_code_is_exchanged_keeps_nothing(
    house: House,
) -> None:
    await house.put()
    person = house.person("ann")
    back = await at_provider(house, person, await house.api("ann").link())
    house.peer.slow = 1.0
    visit = asyncio.create_task(person.visit(back))
    await until(lambda: bool(house.peer.forms))
    await house.api("root")("DELETE", "/connections/notes")
    assert (await visit).status_code == 404
    await house.put()
    assert not await is_signed_in(house, "ann")


async def test_what_one_organization_signed_in_to_is_of_no_use_to_another(house: House) -> None:
    await house.put()
    state = house.gateway.app.gateway.snapshot.connections["notes"]
    settings = [state.settings.model_copy(update={"organization": o}) for o in (None, "a", "b")]
    owned = (account_of(replace(state, settings=each), "ann").binding for each in settings)
    assert len(set(owned)) == 3


async def make_due(house: House) -> None:
    """What ann was given is to be renewed from now on."""
    gateway = house.gateway.app.gateway
    account = account_of(gateway.snapshot.connections["notes"], "ann")
    secret = (await gateway.people.get(account)).secret
    assert secret.tokens is not None
    due = structs.replace(secret.tokens, renew_at=time.time() - 1)
    await gateway.people.save(account, structs.replace(secret, tokens=due), None)


async def test_a_token_refused_while_a_look_for_it_ends_is_looked_for_anew(house: House) -> None:
    """A call may come between the end of a look and the word of that end, whatever the moment."""
    await house.put()
    await house.sign_in("ann")
    gateway = house.gateway.app.gateway
    account = account_of(gateway.snapshot.connections["notes"], "ann")
    kept = await gateway.people.get(account)
    await gateway.people.save(account, kept.secret, None)  # forgotten here, so it is looked for
    rejected = (await get_credential(gateway.db, *account.key)).version  # type: ignore[union-attr]
    first, others = asyncio.create_task(gateway.people.get(account)), []
    while not first.done():
        await asyncio.sleep(0)
        others.append(asyncio.create_task(gateway.people.get(account, rejected)))
    found = await asyncio.gather(*others)
    assert rejected not in {each.version for each in found}


async def test_who_signs_out_while_a_renewal_fails_is_signed_out(house: House) -> None:
    await house.put()
    await house.sign_in("ann")
    await make_due(house)
    house.peer.slow, house.peer.fails = 0.5, [503]
    call = asyncio.create_task(called(house))
    await until(lambda: bool(house.peer.refreshes()))
    await house.api("ann")("DELETE", "/credentials/notes")
    await call
    assert (await called(house))["error"]["code"] == "sign_in_required"


@pytest.mark.parametrize("status", [403, 404])
async def test_a_wall_before_the_token_endpoint_signs_nobody_out(house: House, status: int) -> None:
    await house.put()
    await house.sign_in("ann")
    house.peer.expire()
    house.peer.walled = status
    assert (await called(house))["error"]["code"] == "not_connected"
    house.peer.walled = 0
    assert (await called(house))["output"]["who"] == "ann"


async def test_a_token_that_still_lives_is_used_while_our_own_secret_is_wrong(
    house: House,
) -> None:
    await house.put()
    await house.sign_in("ann")
    await make_due(house)
    house.peer.refuses = "invalid_client"
    assert (await called(house))["output"]["who"] == "ann"
    house.gateway.app.gateway.approvals.signals.hear(CREDENTIAL, "")  # nothing is cached any more
    assert (await called(house))["output"]["who"] == "ann"
    assert house.peer.refreshes() == 1


async def test_what_is_put_in_another_persons_place_is_nothing(house: House) -> None:
    await house.put()
    for name in ("ann", "bob"):
        await house.sign_in(name)
    rows = tables.credentials

    def swap(tx: Connection) -> None:
        of_bob = select(rows.c.sealed).filter_by(owner="bob").scalar_subquery()
        tx.execute(update(rows).filter_by(owner="ann").values(sealed=of_bob))

    await house.gateway.app.gateway.db.write(swap)
    assert (await called(house))["error"]["code"] == "sign_in_required"
    assert (await called(house, "bob"))["output"]["who"] == "bob"


@pytest.mark.parametrize("era", ERAS)
async def test_who_holds_a_token_that_is_refused_for_good_is_asked_again(
    house: House, era: str
) -> None:
    house.peer.life = None
    house.peer._new_refresh = lambda login: ""  # type: ignore[method-assign]
    await house.put()
    await house.sign_in("ann")
    assert (await called(house))["output"]["who"] == "ann"
    house.peer.expire()
    assert (await called(house))["error"]["code"] == "sign_in_required"
    opened: list[asyncio.Task[Any]] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        opened.append(asyncio.create_task(house.person("ann").sign_in(params.url)))
        return ElicitResult(action="accept")

    async with mcp_client(house.gateway.url, "ann", era, answer) as client:
        result = await client.call_tool("notes_get_notes", {"id": "1"})
    assert result.structured_content and result.structured_content.get("who") == "ann"
    assert len(opened) == 1


@pytest.mark.parametrize("iss", ["http://[", "", "\x00"])
async def test_an_issuer_that_is_no_address_is_refused_on_a_page(house: House, iss: str) -> None:
    await house.put()
    person = house.person("ann")
    back = await at_provider(house, person, await house.api("ann").link())
    said = {**dict(parse_qsl(urlsplit(back).query)), "iss": iss}
    page = await person.visit(f"/oauth/callback?{urlencode(said)}")
    assert page.status_code == 400, page.text
    assert not await is_signed_in(house, "ann")
