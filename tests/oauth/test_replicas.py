"""Any process lets in whom another has let in, and locks out whom another has locked out."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.conftest import two_gateways
from tests.oauth.people import OAUTH, Person, Program

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
