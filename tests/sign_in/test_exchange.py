"""Calls that go out with what the caller's own token was exchanged for."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conftest import GatewayMaker, Running
from tests.oauth.people import OAUTH, Program
from tests.peers import until
from tests.sign_in.conftest import House
from tests.sign_in.servers import Notes, notes_mcp


def exchanged(peer: Notes, table: str, more: str = "") -> str:
    auth = (
        f'{{ type = "oauth2", grant = "token_exchange", token_url = "{peer.url}/token",'
        ' client_id = "gw", client_secret = "gw-secret-0123456789" }'
    )
    return f"{OAUTH}{more}[connections.notes]\n{table}auth = {auth}\n"


async def token_of(house: House, name: str, scope: str) -> str:
    program = Program(house.url)
    async with program.http:
        return str((await program.sign_in(house.person(name), scope=scope))["access_token"])


async def test_an_mcp_server_is_listed_and_called_with_exchanged_tokens(
    make_gateway: GatewayMaker, peer: Notes
) -> None:
    async with notes_mcp(peer) as url:
        gateway: Running = await make_gateway(exchanged(peer, f'kind = "mcp"\nurl = "{url}"\n'))
        async with House(gateway.url, peer, gateway) as house:
            token = await token_of(house, "ann", "tools:read tools:write")
            headers = {"authorization": f"Bearer {token}"}
            http = house.api("ann").http
            await http.get("/connections/notes", headers=headers)
            await until(lambda: "notes_who_am_i" in gateway.app.gateway.snapshot.tools)
            body: Any = {"arguments": {}}
            path = "/tools/notes_who_am_i/call"
            said = (await http.post(path, json=body, headers=headers)).json()
            assert "you are exchanged" in str(said), said
            assert "access-" not in str(said)


async def test_each_client_of_a_person_goes_out_with_its_own_token(
    make_gateway: GatewayMaker, peer: Notes
) -> None:
    """While one waits for its turn, another one comes."""
    table = f'kind = "openapi"\nspec = "{peer.url}/openapi.json"\n'
    limits = "[limits]\nmax_concurrent_calls = 1\n"
    gateway: Running = await make_gateway(exchanged(peer, table, limits))
    async with House(gateway.url, peer, gateway) as house:
        narrow = await token_of(house, "ann", "tools:read")
        wide = await token_of(house, "ann", "tools:read tools:write")
        peer.slow = 0.5

        async def call(token: str, after: float) -> Any:
            await asyncio.sleep(after)
            body = {"arguments": {"id": "1"}}
            headers = {"authorization": f"Bearer {token}"}
            path = "/tools/notes_get_notes/call"
            return (await house.api("ann").http.post(path, json=body, headers=headers)).json()

        calls = ((wide, 0.0), (narrow, 0.2), (wide, 0.4))
        answers = await asyncio.gather(*(call(*each) for each in calls))
        assert all(answer["success"] for answer in answers), answers
    assert [form["subject_token"] for form in peer.forms] == [wide, narrow]


async def test_a_token_that_is_not_exchanged_any_more_is_its_callers_trouble_alone(
    make_gateway: GatewayMaker, peer: Notes
) -> None:
    async with notes_mcp(peer) as url:
        table = f'kind = "mcp"\nurl = "{url}"\n'
        gateway: Running = await make_gateway(exchanged(peer, table))
        async with House(gateway.url, peer, gateway) as house:
            token = await token_of(house, "ann", "tools:read tools:write")
            http = house.api("ann").http
            headers = {"authorization": f"Bearer {token}"}
            await http.get("/connections/notes", headers=headers)
            await until(lambda: "notes_who_am_i" in gateway.app.gateway.snapshot.tools)
            peer.expire()
            peer.refuses = "invalid_grant"
            path = "/tools/notes_who_am_i/call"
            said = (await http.post(path, json={"arguments": {}}, headers=headers)).json()
            assert said["error"]["code"] == "sign_in_required", said
            shown = (await http.get("/connections/notes", headers=headers)).json()
            assert shown["status"] == "connected", shown
