"""Azure when it fails, and what is asked of it anew: shown, tried again, never from memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client

from tests.conftest import OPEN, GatewayMaker, Running
from tests.journeys.test_azure import names, own_call
from tests.peers import until
from tests.peers_arm import GROUP, MANAGED, Azure, azure, fixture


def fail_listings(peer: Azure) -> None:
    peer.failing = {"/connections": 503}


def refuse_the_secret(peer: Azure) -> None:
    peer.secret = "another-secret"


def mend(peer: Azure) -> None:
    peer.failing, peer.secret = {}, "secret-of-azure"


async def shown(gateway: Running, path: str) -> Any:
    async with httpx2.AsyncClient() as http:
        answer = await http.get(f"{gateway.url}{path}")
        assert answer.status_code == 200
        return answer.json() if "json" in answer.headers["content-type"] else answer.text


@pytest.mark.parametrize(
    ("break_it", "words"),
    [(fail_listings, "Azure answered 503"), (refuse_the_secret, "refused to give a token (401)")],
)
async def test_a_first_listing_that_fails_is_shown_and_tried_again_until_azure_is_back(
    make_gateway: GatewayMaker, break_it: Callable[[Azure], None], words: str
) -> None:
    async with azure("office365") as peer:
        break_it(peer)
        gateway: Running = await make_gateway(OPEN + peer.table)
        catalog = gateway.app.gateway.catalog
        await until(lambda: catalog.group_problem is not None)
        health = await shown(gateway, "/health")
        assert health["status"] == "degraded"
        [problem] = health["problems"]
        assert (problem["severity"], problem["where"]) == ("error", "azure")
        assert words in problem["message"]
        assert (await shown(gateway, "/api/v1/connections"))["problems"] == [problem]
        async with Client(gateway.mcp) as client:
            assert (await own_call(client, "list_connections"))["problems"] == [problem]
            await catalog.refresh_group(by="ann")
            assert catalog.group_problem is not None  # it was asked again, and still fails
            mend(peer)
            await until(lambda: "office365_send_email_v2" in catalog.current.tools, seconds=20)
            assert "office365_send_email_v2" in await names(client)
        health = await shown(gateway, "/health")
        assert (health["status"], health["problems"]) == ("ok", [])


async def test_a_listing_that_fails_is_to_do_in_the_console(make_gateway: GatewayMaker) -> None:
    async with azure() as peer, httpx2.AsyncClient(follow_redirects=True) as browser:
        fail_listings(peer)
        gateway: Running = await make_gateway(OPEN + peer.table)
        await until(lambda: bool(gateway.app.gateway.snapshot.problems))
        await browser.post(f"{gateway.url}/console/sign-in", data={"token": ""})
        page = (await browser.get(f"{gateway.url}/console")).text
        assert "Azure answered 503" in page


async def test_strangers_learn_that_something_is_wrong_and_not_what(
    make_gateway: GatewayMaker,
) -> None:
    tokens = OPEN.replace('"none"', '"tokens"') + '[principals.ann]\ntoken = "ann-token-01234567"\n'
    async with azure() as peer:
        fail_listings(peer)
        gateway: Running = await make_gateway(tokens + peer.table)
        await until(lambda: bool(gateway.app.gateway.snapshot.problems))
        health = await shown(gateway, "/health")
        assert (health["status"], health["problems"]) == ("degraded", [])
        async with httpx2.AsyncClient() as http:
            headers = {"Authorization": "Bearer ann-token-01234567"}
            answer = await http.get(f"{gateway.url}/api/v1/connections", headers=headers)
        assert answer.json()["problems"] == []


async def test_a_problem_of_azure_goes_with_its_table(make_gateway: GatewayMaker) -> None:
    async with azure() as peer:
        fail_listings(peer)
        gateway: Running = await make_gateway(OPEN + peer.table)
        await until(lambda: bool(gateway.app.gateway.snapshot.problems))
        gateway.config.write_text(OPEN, encoding="utf-8")
        await until(lambda: not gateway.app.gateway.snapshot.problems)


async def test_an_explicit_refresh_asks_azure_however_lately_it_was_asked(
    make_gateway: GatewayMaker,
) -> None:
    async with azure("office365") as peer:
        own = f'[connections.mail]\nkind = "arm"\nresource_id = "{GROUP}/connections/post"\n'
        peer.add("post")
        gateway: Running = await make_gateway(OPEN + own + peer.table)
        await until(lambda: "mail_send_email_v2" in gateway.app.gateway.snapshot.tools)
        exported = fixture("office365")
        del exported["paths"]["/{connectionId}/v2/Mail"]
        peer.apis[f"{MANAGED}/office365"] = ("plain", exported)
        peer.connections["post"]["properties"]["overallStatus"] = "Unauthenticated"
        async with Client(gateway.mcp) as client:
            for name, status in (("office365", "connected"), ("mail", "unauthenticated")):
                answer = await own_call(client, "refresh_tools", connection=name)
                report = answer["connections"][0]
                assert f"{name}_send_email_v2" in report["removed"], report
                assert report["status"] == status


async def test_many_who_refresh_everything_at_once_cost_one_listing_and_one_export(
    make_gateway: GatewayMaker,
) -> None:
    async with azure("office365", "mail") as peer:
        gateway: Running = await make_gateway(OPEN + peer.table)
        await until(lambda: "mail_send_email_v2" in gateway.app.gateway.snapshot.tools)
        peer.requests.clear()
        catalog = gateway.app.gateway.catalog

        async def refresh_all() -> None:
            since = time.monotonic()
            await catalog.list_group(asked=True)
            await catalog.refresh(catalog.group(), by="ann", asked=True, since=since)

        await asyncio.gather(*(refresh_all() for _ in range(8)))
        assert peer.counted("/connections") == 1
        assert peer.counted("/managedApis/office365") == 1
        assert peer.counted("/connections/mail") == 0
