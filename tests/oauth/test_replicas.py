"""Any process lets in whom another has let in, and locks out whom another has locked out."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.callers import api
from tests.conftest import two_gateways
from tests.journeys.confirming import ORDER, orders_api
from tests.oauth.people import OAUTH, Person, Program
from tests.peers import provider

PUBLIC = "http://127.0.0.1:41998"


async def test_what_one_gives_the_other_takes_renews_and_revokes(
    tmp_path: Path, store_url: str
) -> None:
    text = OAUTH + f'[server]\npublic_url = "{PUBLIC}"\nallowed_hosts = ["127.0.0.1:*"]\n'
    async with two_gateways(tmp_path, text, store_url) as (one, two):
        program, there = Program(one.url), Program(two.url)
        person = Person(one.url)
        async with program.http, there.http, person.http:
            await program.register()
            there.id, there.verifier = program.id, program.verifier
            link = program.link(resource=f"{PUBLIC}/mcp")
            code = (await person.sent_back(link))["code"]
            tokens = (await there.exchange(code)).json()
            for each in (program, there):
                assert await each.status(tokens["access_token"]) == 200
            # Both refresh at the same moment: one answer for both, and nobody is locked out.
            refresh = tokens["refresh_token"]
            answers = await asyncio.gather(*(each.refresh(refresh) for each in (program, there)))
            assert [answer.status_code for answer in answers] == [200, 200]
            first, second = (answer.json() for answer in answers)
            assert first == second
            # The code again, at the other one: what it gave is revoked everywhere.
            assert (await program.exchange(code)).json()["error"] == "invalid_grant"
            for each in (program, there):
                assert await each.is_locked_out(first["access_token"])


async def test_a_call_that_waits_is_not_made_once_its_clients_grant_is_revoked_anywhere(
    tmp_path: Path, store_url: str
) -> None:
    text = OAUTH.replace("full_access", "execute_with_confirm")
    text += f'[server]\npublic_url = "{PUBLIC}"\nallowed_hosts = ["127.0.0.1:*"]\n'
    async with (
        provider(orders_api("/")) as peer,
        two_gateways(tmp_path, text + peer.table(), store_url) as (one, two),
        api(one.url, "ann") as ann,
        api(two.url, "root") as root,
        (person := Person(one.url)).http,
        (program := Program(one.url)).http,
    ):
        await program.register()
        code = (await person.sent_back(program.link(resource=f"{PUBLIC}/mcp")))["code"]
        tokens = (await program.exchange(code)).json()
        program.http.headers["authorization"] = f"Bearer {tokens['access_token']}"
        [grant] = (await ann("GET", "/grants"))[1]["grants"]
        path = "/api/v1/tools/shop_place_order/call"
        ends = []
        for is_revoked in (False, True):
            waiting = (await program.http.post(path, json={"arguments": ORDER})).json()
            if is_revoked:
                assert (await root("DELETE", f"/grants/{grant['id']}"))[0] == 200
            assert (await root.decide("approve"))[0] == 200
            over = await ann.execution(waiting["execution_id"], "completed", "denied", "failed")
            ends.append((over["status"], over["error_code"]))
    assert ends == [("completed", None), ("denied", "approval_expired")]
    assert peer.sent() == 1
