"""Azure when it fails, and what is asked of it anew: shown, tried again, never from memory."""

from __future__ import annotations

import asyncio
import time

import httpx2
import pytest

from tests.callers import api
from tests.configs import LOCAL, principal
from tests.conftest import OPEN
from tests.journeys.azure_office import OfficeMaker, make_office, peer
from tests.peers import until
from tests.peers_arm import GROUP, MANAGED, Azure, fixture

__all__ = ["make_office", "peer"]

FAILING = {"/connections": 503}


@pytest.mark.parametrize(
    ("failing", "secret", "words"),
    [
        (FAILING, "secret-of-azure", "Azure answered 503"),
        ({}, "another-secret", "refused to give a token (401"),
    ],
)
async def test_a_first_listing_that_fails_is_shown_and_tried_again_until_azure_is_back(
    peer: Azure, make_office: OfficeMaker, failing: dict[str, int], secret: str, words: str
) -> None:
    peer.add("office365")
    peer.failing, peer.secret = failing, secret
    office = await make_office()
    catalog = office.gateway.app.gateway.catalog
    await until(lambda: catalog.group_problem is not None)
    _, health = await office.rest("GET", "//health")
    assert health["status"] == "degraded"
    [problem] = health["problems"]
    assert (problem["severity"], problem["where"]) == ("error", "azure")
    assert words in problem["message"]
    assert (await office.rest("GET", "/connections"))[1]["problems"] == [problem]
    assert (await office.own("list_connections"))["problems"] == [problem]
    async with httpx2.AsyncClient(
        follow_redirects=True, base_url=office.rest.base, timeout=60
    ) as browser:
        await browser.post("/console/sign-in", data={"token": ""})
        assert words in (await browser.get("/console")).text
    await catalog.refresh_group(by="ann")
    assert catalog.group_problem is not None  # it was asked again, and still fails
    peer.failing, peer.secret = {}, "secret-of-azure"
    await office.has("office365_send_email_v2")
    assert "office365_send_email_v2" in await office.tools()
    _, health = await office.rest("GET", "//health")
    assert (health["status"], health["problems"]) == ("ok", [])


async def test_strangers_learn_that_something_is_wrong_and_not_what(
    peer: Azure, make_office: OfficeMaker
) -> None:
    peer.failing = FAILING
    office = await make_office(settings=principal("ann") + LOCAL)
    await until(lambda: bool(office.gateway.app.gateway.snapshot.problems))
    _, health = await office.rest("GET", "//health")
    assert (health["status"], "problems" in health) == ("degraded", False)
    async with api(office.rest.base, "ann") as ann:
        assert (await ann("GET", "/connections"))[1]["problems"] == []


async def test_a_problem_of_azure_goes_with_its_table(
    peer: Azure, make_office: OfficeMaker
) -> None:
    peer.failing = FAILING
    gateway = (await make_office()).gateway
    await until(lambda: bool(gateway.app.gateway.snapshot.problems))
    gateway.config.write_text(OPEN, encoding="utf-8")
    await until(lambda: not gateway.app.gateway.snapshot.problems)


async def test_an_explicit_refresh_asks_azure_however_lately_it_was_asked(
    peer: Azure, make_office: OfficeMaker
) -> None:
    peer.add("office365")
    peer.add("post")
    own = f'[connections.mail]\nkind = "arm"\nresource_id = "{GROUP}/connections/post"\n'
    office = await make_office(own)
    await office.has("mail_send_email_v2")
    exported = fixture("office365")
    del exported["paths"]["/{connectionId}/v2/Mail"]
    peer.apis[f"{MANAGED}/office365"] = ("plain", exported)
    peer.connections["post"]["properties"]["overallStatus"] = "Unauthenticated"
    for name, status in (("office365", "connected"), ("mail", "unauthenticated")):
        [report] = (await office.own("refresh_tools", connection=name))["connections"]
        assert f"{name}_send_email_v2" in report["removed"], report
        assert report["status"] == status


async def test_many_who_refresh_everything_at_once_cost_one_listing_and_one_export(
    peer: Azure, make_office: OfficeMaker
) -> None:
    peer.add("office365")
    peer.add("mail")
    office = await make_office()
    await office.has("mail_send_email_v2")
    peer.requests.clear()
    catalog = office.gateway.app.gateway.catalog

    async def refresh_all() -> None:
        since = time.monotonic()
        await catalog.list_group(on_demand=True)
        await catalog.refresh(catalog.group(), by="ann", on_demand=True, since=since)

    await asyncio.gather(*(refresh_all() for _ in range(8)))
    paths = ("/connections", "/managedApis/office365", "/connections/mail")
    assert [peer.counted(path) for path in paths] == [1, 1, 0]
