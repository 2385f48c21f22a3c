"""A client's token is not its person: it opens no page in their name, and changes no sign-in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import gateway_on
from tests.oauth.people import OAUTH, TOKENS, Program
from tests.sign_in.conftest import House, signed_in_at
from tests.sign_in.servers import notes_api


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    config = tmp_path_factory.mktemp("gateway") / "config.toml"
    async with notes_api() as peer:
        table = f'[connections.notes]\nkind = "openapi"\nspec = "{peer.url}/openapi.json"\n'
        text = f'{OAUTH}{table}auth = {{ type = "bearer", per = "user" }}\n'
        async with gateway_on(config, text) as gateway, House(gateway.url, peer, gateway) as house:
            yield house


async def token_of(house: House, name: str, scope: str) -> str:
    """What a client is given whom this person lets in."""
    program = Program(house.url)
    async with program.http:
        return str((await program.sign_in(house.person(name), scope=scope))["access_token"])


@pytest.mark.parametrize("page", ["/oauth/sign-in", "/console/sign-in"])
@pytest.mark.parametrize("scope", ["tools:read", "tools:read tools:write admin"])
async def test_a_clients_token_signs_no_browser_in(place: House, page: str, scope: str) -> None:
    given = await token_of(place, "root", scope)
    thief = place.person("root")
    for token, status in ((given, 401), (TOKENS["root"], 303)):
        answer = await thief.post(page, {"token": token, "onward": ""})
        assert answer.status_code == status, answer.text
        assert bool(thief.http.cookies) == (status == 303)


async def test_a_client_that_may_only_read_changes_nobodys_key(place: House) -> None:
    async def asked(scope: str, method: str, body: Any = None) -> int:
        headers = {"authorization": f"Bearer {await token_of(place, 'ann', scope)}"}
        http = place.api("ann").http
        answer = await http.request(method, "/credentials/notes", json=body, headers=headers)
        return answer.status_code

    assert await asked("tools:read", "PUT", {"token": "of-another"}) == 403
    assert await asked("tools:read tools:write", "PUT", {"token": "own"}) == 200
    assert await asked("tools:read", "DELETE") == 403
    assert await asked("tools:read tools:write", "DELETE") == 200


async def test_a_client_without_admin_does_not_sign_an_admin_in_for_everybody(place: House) -> None:
    await place.put("shared", **signed_in_at(place.peer, per="connection"))
    http = place.api("root").http
    for scope, status in (("tools:read tools:write", 403), ("admin", 200)):
        headers = {"authorization": f"Bearer {await token_of(place, 'root', scope)}"}
        answer = await http.post("/credentials/shared/sign-in", headers=headers)
        assert answer.status_code == status
        assert ("insufficient_scope" in answer.text) == (status == 403)
