"""To do: what needs a person is named, with the place where it is mended, and goes when it is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.certificates import authority
from tests.configs import bearer, table
from tests.conftest import Running, gateway_on
from tests.console.conftest import WITH_TOKENS, SignedIn, Visitor
from tests.console.test_live import stream
from tests.definitions import openapi, operation
from tests.peers import provider, until

SIGN_IN = {
    "type": "oauth2",
    "grant": "authorization_code",
    "authorize_url": "https://login.example.com/authorize",
    "token_url": "https://login.example.com/token",
    "client_id": "gateway",
}


def shop(*ids: str, server: str = "http://127.0.0.1:9") -> str:
    """A definition with these operations."""
    paths = {f"/{id}": {"get": operation(operationId=id)} for id in ids}
    return json.dumps(openapi(paths, servers=[{"url": server}]))


def spec(name: str, **values: Any) -> str:
    return table(f"connections.{name}", kind="openapi", spec=f"{name}.json", **values)


@pytest.fixture(scope="module")
async def untidy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A gateway of which many things wait for somebody."""
    folder = tmp_path_factory.mktemp("untidy")
    (folder / "soon").mkdir()
    authority(folder / "soon")
    for name in ("keyless", "signed", "ending", "held", "remarks"):
        (folder / f"{name}.json").write_text(shop("look"), encoding="utf-8")
    host = shop("look", server="https://api.your-company.com/v1")
    (folder / "placeholder.json").write_text(host, encoding="utf-8")
    text = WITH_TOKENS.replace(
        '"execute_with_confirm"', '"execute_with_confirm"\ntools = { demo_burn = "blocked" }'
    )
    text += spec("keyless", auth={"type": "bearer", "token": "${NO_SUCH_TOKEN:-}"})
    text += spec("signed", auth=SIGN_IN) + spec("placeholder")
    text += spec("ending", tls={"ca_file": "soon/ca.pem"}) + spec("held", on_change="hold_all")
    text += spec("remarks", exclude=["nothing"])
    text += table("connections.gone", kind="openapi", spec="http://127.0.0.1:9/openapi.json")
    async with gateway_on(folder / "config.toml", text) as made:
        await until(lambda: status(made, "gone") == "failing" and status(made, "held") != "pending")
        yield made


def status(gateway: Running, name: str) -> str:
    return gateway.app.gateway.snapshot.connections[name].status


async def todo(someone: Visitor, who: str = "root") -> dict[str, dict[str, str]]:
    """What /health tells, by what is to be done."""
    report = (await someone.http.get("/health", headers=bearer(who))).json()
    return {task["what"]: task for task in report.get("todo", ())}


async def test_whatever_needs_a_person_is_named_where_it_can_be_mended(
    untidy: Running, signed_in: SignedIn
) -> None:
    root, held = await signed_in(untidy, "root"), untidy.config.parent / "held.json"
    held.write_text(shop("look", "more"), encoding="utf-8")
    await untidy.app.gateway.catalog.refresh(["held"], by="test")
    await root.post("/console/tool?name=demo_delete_book", **{"/id": "2"})
    page, found = (await root.get("/console")).text, await todo(root)
    edit = "/console/connections/{}/edit".format
    places = [
        ("A call waits for a decision", "/console/approvals"),
        ("gone can't be read", "/console/connections/gone"),
        ("Shop: its host is a placeholder", edit("placeholder")),
        ("Shop: auth.token is empty", edit("keyless")),
        ("Nobody has signed in to Shop", "/console/access#sign-ins"),
        ("permissions.tools.demo_burn does not hold", "/console/access#rules"),
        ("A setting of Shop to correct", edit("remarks")),
        ("The certificate of connections.ending.tls.ca_file ends in 0 days", edit("ending")),
        ("1 change of Shop held", "/console/connections/held#changes"),
    ]
    assert [(what, task["href"]) for what, task in found.items()] == places
    assert [page.index(f"<b>{what}</b>".replace("'", "&#39;")) for what, _ in places] == sorted(
        page.index(f"<b>{what}</b>".replace("'", "&#39;")) for what, _ in places
    )
    assert all(f'href="{href}"' in page for _, href in places)
    assert f'title="{len(places)} things to do">{len(places)}</span>' in page
    assert found["Shop: auth.token is empty"]["where"] == "connections.keyless.auth.token"
    for href in {href.partition("#")[0] for _, href in places}:
        assert (await root.get(href)).status_code == 200
    ann = await signed_in(untidy, "ann")
    theirs = (await ann.get("/console")).text
    assert await todo(ann, "ann") == {}
    assert "can&#39;t be read" in theirs and "does not hold" not in theirs


async def test_what_is_mended_goes_from_an_open_page_by_itself(
    untidy: Running, signed_in: SignedIn
) -> None:
    root, config = await signed_in(untidy, "root"), untidy.config
    good = config.read_text(encoding="utf-8")
    health = untidy.app.health
    async with stream(root, "") as following:

        async def tasks() -> str:
            while '<hx-partial hx-target="#tasks"' not in (message := await following()):
                pass
            return str(message.partition('hx-target="#tasks"')[2].partition("</hx-partial>")[0])

        await tasks()
        config.write_text(good + "[nonsense]\n", encoding="utf-8")
        assert "config.toml was edited and can&#39;t be used" in await tasks()
        config.write_text(good + "[server]\nworkers = 2\n", encoding="utf-8")
        await until(lambda: "workers" in (health.config_problem or ""))
        assert "The gateway needs a restart" in await tasks()
        config.write_text(good, encoding="utf-8")
        await until(lambda: health.config_problem is None)
        assert "restart" not in await tasks()
        async with provider() as peer:
            mended = good.replace("http://127.0.0.1:9/openapi.json", peer.spec)
            config.write_text(mended, encoding="utf-8")
            while "gone can&#39;t be read" in await tasks():
                pass
    assert status(untidy, "gone") != "failing"


async def test_permissions_put_over_stricter_ones_are_to_do_until_they_are_deleted(
    untidy: Running, signed_in: SignedIn
) -> None:
    root = await signed_in(untidy, "root")
    await root.post("/console/permissions", level="full_access")
    put = (await todo(root))["permissions.level does not hold"]
    assert (put["severity"], put["href"]) == ("error", "/console/access#rules")
    assert "permissions.level does not hold" in (await root.get("/console")).text
    await root.post("/console/permissions", reset="1")
    assert "permissions.level does not hold" not in await todo(root)


async def test_remarks_are_folded_and_counted_nowhere(untidy: Running, signed_in: SignedIn) -> None:
    root, catalog = await signed_in(untidy, "root"), untidy.app.gateway.catalog
    text = json.loads(shop("lookAtIt", "look_at_it"))
    async with provider() as peer:
        peer.document = text | {"servers": [{"url": peer.url}]}
        await catalog.put("noted", {"kind": "openapi", "spec": peer.spec}, by="test")
        before = len(await todo(root))
        state = catalog.current.connections["noted"]
        assert {each.severity for each in state.problems} == {"info"}
        page = (await root.get("/console/connections/noted")).text
        row = (await root.get("/console/connections?q=noted")).text
        rows = (await root.http.get("/health", headers=bearer("root"))).json()["connections"]
        await catalog.delete("noted", by="test")
    assert "<summary>1 remark on the definition" in page and 'id="problems"' not in page
    assert "#problems" not in row
    assert [each["problems"] for each in rows if each["name"] == "noted"] == [{}]
    assert len(await todo(root)) == before
