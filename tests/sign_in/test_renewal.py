"""Tokens are renewed ahead of their end, once, whoever wants it and whatever is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Running, two_gateways
from tests.peers import until
from tests.sign_in.conftest import TOKENS_MODE, House
from tests.sign_in.servers import Notes

PUBLIC = "http://127.0.0.1:41997"


async def called(house: House, name: str = "ann") -> Any:
    return await house.api(name).call("notes_get_notes", id="1")


async def test_a_token_is_renewed_ahead_of_its_end(house: House) -> None:
    house.peer.life = 2.0  # renewed four tenths of a second before
    await house.put()
    await house.sign_in("ann")
    async with asyncio.timeout(60):
        while house.peer.refreshes() < 2:
            assert (await called(house))["output"]["who"] == "ann"
            await asyncio.sleep(0.05)
    assert ("", "/notes/1") not in house.peer.asked, "the API saw an old token"
    assert house.peer.reused == []


async def test_a_token_that_the_api_refuses_is_renewed_once_for_all_calls(house: House) -> None:
    await house.put()
    await house.sign_in("ann")
    house.peer.expire()
    house.peer.slow = 0.2
    answers = await asyncio.gather(*(called(house) for _ in range(30)))
    assert {answer["output"]["who"] for answer in answers} == {"ann"}
    assert (house.peer.refreshes(), house.peer.reused) == (1, [])


async def test_a_server_that_keeps_its_refresh_token_is_asked_with_it_again(house: House) -> None:
    house.peer.rotates = False
    await house.put()
    await house.sign_in("ann")
    for _ in range(3):
        house.peer.expire()
        assert (await called(house))["output"]["who"] == "ann"
    assert house.peer.refreshes() == 3


async def test_a_refused_refresh_asks_for_another_sign_in_and_keeps_the_tools(
    house: House,
) -> None:
    await house.put()
    await house.sign_in("ann")
    house.peer.expire()
    house.peer.refreshable.clear()
    refused = await called(house)
    assert refused["error"]["code"] == "sign_in_required"
    assert (await called(house))["error"]["code"] == "sign_in_required"
    assert house.peer.refreshes() == 1, "a token that was refused is not tried again"
    ann = house.api("ann")
    (row,) = (await ann("GET", "/credentials"))["credentials"]
    assert row["signed_in"] is False
    assert (await ann("GET", "/connections/notes"))["status"] == "connected"
    assert "notes_get_notes" in str(await ann("GET", "/tools"))
    await house.person("ann").sign_in(refused["error"]["sign_in_url"])
    assert (await called(house))["output"]["who"] == "ann"


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_server_that_fails_for_a_moment_leaves_the_sign_in_as_it_is(
    house: House, status: int
) -> None:
    await house.put()
    await house.sign_in("ann")
    house.peer.expire()
    house.peer.fails = [status]
    failed = (await called(house))["error"]
    assert failed["code"] == "upstream_error"
    assert (await called(house))["output"]["who"] == "ann"
    assert house.peer.reused == []


async def test_an_answer_that_is_no_token_is_told_and_nothing_is_lost(house: House) -> None:
    await house.put()
    await house.sign_in("ann")
    house.peer.expire()
    house.peer.giant = True
    assert (await called(house))["error"]["code"] == "upstream_error"
    house.peer.giant = False
    assert (await called(house))["output"]["who"] == "ann"


async def test_a_secret_of_ours_that_is_wrong_is_the_operators_to_mend(house: House) -> None:
    await house.put()
    await house.sign_in("ann")
    house.peer.expire()
    right, house.peer.clients["gw"] = house.peer.clients["gw"], "another"
    assert (await called(house))["error"]["code"] == "not_connected"
    house.peer.clients["gw"] = right
    assert (await called(house))["output"]["who"] == "ann"


async def test_an_api_that_refuses_what_is_fresh_asks_for_another_sign_in(house: House) -> None:
    await house.put()
    await house.sign_in("ann")
    give = house.peer._give

    def useless(login: str, refresh: str) -> Any:
        answer = give(login, refresh)
        house.peer.expire()
        return answer

    house.peer._give = useless  # type: ignore[method-assign]
    house.peer.expire()
    assert (await called(house))["error"]["code"] == "sign_in_required"
    assert house.peer.refreshes() == 1
    assert len(house.peer.asked) == 2
    assert (await called(house))["error"]["code"] == "sign_in_required"
    assert len(house.peer.asked) == 2, "it goes out again only after a sign-in"


# --- replicas -------------------------------------------------------------------------------------


@asynccontextmanager
async def replicas(folder: Path, peer: Notes, store_url: str) -> AsyncIterator[tuple[House, House]]:
    text = TOKENS_MODE + f'[server]\npublic_url = "{PUBLIC}"\nallowed_hosts = ["127.0.0.1:*"]\n'
    async with two_gateways(folder, text, store_url) as gateways:
        one, two = (House(gateway.url, peer, gateway) for gateway in gateways)
        async with one, two:
            yield one, two


async def open_at(house: House, name: str) -> None:
    """The person signs in by a link that names the balancer, at this very process."""
    house.peer.login = name
    link = (await house.api(name).link()).replace(PUBLIC, house.gateway.url)
    person = house.person(name)
    answer = await person.visit(link)
    there = (await person.http.get(answer.headers["location"])).headers["location"]
    back = await person.visit(there.replace(PUBLIC, house.gateway.url))
    assert "Signed in to" in back.text, back.text


async def has_tools(gateway: Running) -> None:
    await until(lambda: "notes_get_notes" in gateway.app.gateway.snapshot.tools)


async def test_two_replicas_and_many_calls_make_one_refresh(
    tmp_path: Path, peer: Notes, store_url: str
) -> None:
    async with replicas(tmp_path, peer, store_url) as (one, two):
        await one.put()
        await open_at(one, "ann")
        await has_tools(two.gateway)
        for each in (one, two):
            assert (await called(each))["output"]["who"] == "ann"
        peer.expire()
        peer.slow = 0.3
        apis = [house.api("ann") for house in (one, two)]
        # So many that none has to wait for its turn.
        calls = [apis[n % 2].call("notes_get_notes", id="1") for n in range(60)]
        answers = await asyncio.gather(*calls)
        assert {str(each["output"] or each["error"]) for each in answers} <= {
            str(each["output"]) for each in answers if each["output"]
        }
        assert (peer.refreshes(), peer.reused) == (1, [])
