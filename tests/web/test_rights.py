"""Principals, roles, bundles and routes over REST: what can be put, and what nobody gets by it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.store.catalog import load_choices
from tests.callers import Api, api
from tests.configs import LOCAL, principal, table, token_of
from tests.conftest import Running, gateway_on
from tests.peers import provider

CONFIG = (
    LOCAL
    + table("demo", enabled=True)
    + table("permissions", level="full_access")
    + principal("root", admin=True)
    + principal("eve", admin=True)
    + principal("ann", admin=True, organization="acme")
    + principal("gus", admin=True, organization="globex")
    + principal("cat", admin=True, organization="acme", role="written")
    + principal("bob")
    + table("bundles.given", connections=["demo"])
    + table("roles.written", bundles=["given"])
)
READS = {"connections": ["demo"], "allow": ["list_*", "get_*"]}
KINDS = ("principals", "roles", "bundles", "routes")


@pytest.fixture(scope="module")
async def office(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with gateway_on(tmp_path_factory.mktemp("office") / "config.toml", CONFIG) as made:
        yield made


@pytest.fixture
async def people(office: Running) -> AsyncIterator[dict[str, Api]]:
    """The REST API as each of them; what a test puts is deleted after it."""
    async with AsyncExitStack() as stack:
        names = ("root", "eve", "ann", "gus", "cat", "bob")
        found = {n: await stack.enter_async_context(api(office.url, n)) for n in names}
        yield found
        for kind in ("principals", "routes", "roles", "bundles"):
            for row in (await found["root"]("GET", f"/{kind}"))[1][kind]:
                if row["origin"] == "store" or row["overridden"]:
                    status, _ = await found["root"]("DELETE", f"/{kind}/{row['name']}")
                    assert status == 200


@asynccontextmanager
async def bearing(gateway: Running, token: str) -> AsyncIterator[Api]:
    async with api(gateway.url) as made:
        made.http.headers["Authorization"] = f"Bearer {token}"
        yield made


async def put_agent(root: Api, **values: Any) -> str:
    """A principal `agent` with a new token, which is given."""
    status, made = await root("PUT", "/principals/agent", {"new_token": True, **values})
    assert status == 200, made
    return str(made["token"])


async def tools(who: Api) -> set[str]:
    return {each["name"] for each in (await who("GET", "/tools"))[1]["tools"]}


async def test_a_principal_with_role_and_bundle_is_made_used_changed_and_deleted(
    office: Running, people: dict[str, Api]
) -> None:
    root = people["root"]
    with capture_logs() as logs:
        assert (await root("PUT", "/bundles/reading", READS))[0] == 200
        assert (await root("PUT", "/roles/reader", {"bundles": ["reading"]}))[0] == 200
        token = await put_agent(root, role="reader")
        assert (await root("PUT", "/routes/hiring/reader", {"screen": ["reading"]}))[0] == 200
    said = [(each["event"], each["name"], each["by"]) for each in logs if "by" in each]
    assert said[2:] == [("principal put", "agent", "root"), ("route put", "hiring/reader", "root")]
    assert token not in str(logs)
    async with bearing(office, token) as agent:
        reads = await tools(agent)
        assert "demo_list_books" in reads and "demo_add_book" not in reads
        step = {"workflow": "hiring", "step": "screen"}
        _, given = await agent("POST", "/steps/resolve", step)
        assert {each["name"] for each in given["tools"]} == reads
        assert (await agent("GET", "/principals"))[0] == 403
        wider = {**READS, "allow": ["list_*", "add_*"]}
        assert (await root("PUT", "/bundles/reading", wider))[0] == 200
        assert "demo_add_book" in await tools(agent)
        assert (await root("PUT", "/principals/agent", {"role": "reader", "access": "read-only"}))[
            0
        ] == 200
        assert "demo_add_book" not in await tools(agent)  # and the token is as it was
        newer = await put_agent(root, role="reader")
        assert (await agent("GET", "/tools"))[0] == 401
        async with bearing(office, newer) as again:
            assert (await again("GET", "/tools"))[0] == 200
            assert (await root("DELETE", "/principals/agent"))[0] == 200
            assert (await again("GET", "/tools"))[0] == 401


async def test_each_item_says_whose_it_is_who_changed_it_and_never_a_token(
    people: dict[str, Api],
) -> None:
    root = people["root"]
    token = await put_agent(root, role="written")
    for kind in KINDS:
        assert (await people["bob"]("GET", f"/{kind}"))[0] == 403
    _, listed = await root("GET", "/principals")
    rows = {row["name"]: row for row in listed["principals"]}
    agent, bob = rows["agent"], rows["bob"]
    assert agent["origin"] == "store" and agent["updated_by"] == "root" and agent["has_token"]
    assert agent["settings"] == {"role": "written"} and agent["revision"] > 0
    assert (bob["origin"], bob["revision"], bob["updated_by"]) == ("config", 0, None)
    shown = str(listed) + str((await root("GET", "/principals/agent"))[1])
    assert token not in shown and hashlib.sha256(token.encode()).hexdigest() not in shown
    assert token_of("bob") not in shown
    assert (await root("GET", "/principals/nobody"))[0] == 404
    assert (await root("GET", "/bundles/given"))[1]["settings"] == {"connections": ["demo"]}


async def test_what_config_toml_owns_is_changed_there_only(people: dict[str, Api]) -> None:
    root = people["root"]
    for path, body in (("/principals/bob", {}), ("/roles/written", {}), ("/bundles/given", READS)):
        for method in ("PUT", "DELETE"):
            status, refused = await root(method, path, body if method == "PUT" else None)
            assert (status, "config.toml" in refused["error"]["message"]) == (422, True)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/roles/r", {"bundles": ["nope"]}, "there is no bundle 'nope'; known: given"),
        ("/roles/r", {"bundle": []}, "bundle: unknown key; did you mean 'bundles'?"),
        ("/roles/a%20b", {}, "is no role's name"),
        ("/roles/..%2Fx", {}, "Not Found"),
        ("/principals/x", {"role": "nope", "new_token": True}, "there is no role 'nope'"),
        ("/principals/x", {}, "needs token_sha256"),
        ("/principals/x", {"token": "a-token-of-somebody"}, "token: a token itself is never kept"),
        ("/principals/x", {"token_sha256": "xyz"}, "token_sha256: must match"),
        ("/principals/x", {"new_token": "yes"}, "new_token must be true or false"),
        ("/principals/x%E2%80%8B", {"new_token": True}, "is no principal's name"),
        ("/principals/x", [1], "must be a JSON object"),
        ("/bundles/b", {"allow": ["*"]}, "connections: is required"),
        ("/bundles/b", {"connections": ["demo"], "mode": "wide"}, "'wide' is not allowed"),
        ("/routes/w/nope", {"s": ["given"]}, "there is no role 'nope'"),
        ("/routes/w/written", {"a b": ["given"]}, "is part of an address"),
    ],
)
async def test_what_the_file_would_be_refused_for_is_refused_here_in_the_same_words(
    people: dict[str, Api], path: str, body: Any, words: str
) -> None:
    status, refused = await people["root"]("PUT", path, body)
    assert status in (404, 422) and words in refused["error"]["message"], refused


async def test_a_token_that_somebody_has_is_nobody_elses(people: dict[str, Api]) -> None:
    root, ann = people["root"], people["ann"]
    token = await put_agent(root)
    for known in (token, token_of("gus"), token_of("root")):
        stolen = {"token_sha256": hashlib.sha256(known.encode()).hexdigest()}
        status, refused = await root("PUT", "/principals/thief", stolen)
        assert status == 422 and "has the same token as" in refused["error"]["message"]
        status, refused = await ann("PUT", "/principals/thief", stolen)
        assert status == 422 and "needs a token that nobody has" in refused["error"]["message"]
        assert not any(name in str(refused) for name in ("agent", "gus", "root"))


async def test_nobody_takes_their_own_rights_away(office: Running, people: dict[str, Api]) -> None:
    token = await put_agent(people["root"], admin=True)
    async with bearing(office, token) as agent:
        for change in ({"admin": False}, {}, {"admin": True, "organization": "acme"}):
            status, refused = await agent("PUT", "/principals/agent", change)
            assert status == 422 and "your own rights" in refused["error"]["message"]
        assert (await agent("DELETE", "/principals/agent"))[0] == 422
        assert (await agent("PUT", "/principals/agent", {"admin": True, "role": "written"}))[
            0
        ] == 200


async def test_of_two_admins_who_delete_each_other_at_once_one_stays(
    office: Running, people: dict[str, Api]
) -> None:
    root = people["root"]
    tokens = {}
    for name in ("kim", "lou"):
        _, made = await root("PUT", f"/principals/{name}", {"admin": True, "new_token": True})
        tokens[name] = made["token"]
    async with bearing(office, tokens["kim"]) as kim, bearing(office, tokens["lou"]) as lou:
        done = await asyncio.gather(
            kim("DELETE", "/principals/lou"), lou("DELETE", "/principals/kim")
        )
    assert sorted(status for status, _ in done)[0] == 200
    assert sorted(status for status, _ in done)[1] in (401, 403)


async def test_an_organizations_admin_manages_its_own_principals_and_nothing_more(
    office: Running, people: dict[str, Api]
) -> None:
    ann, gus = people["ann"], people["gus"]
    for kind, body in (("roles/r", {}), ("bundles/b", READS), ("routes/w/written", {})):
        assert (await ann("PUT", f"/{kind}", body))[0] == 403
        assert (await ann("GET", f"/{kind.split('/')[0]}"))[0] == 403
    status, made = await ann("PUT", "/principals/acme-bot", {"new_token": True, "admin": True})
    assert status == 200 and made["settings"]["organization"] == "acme"
    for beyond in ({"organization": "globex"}, {"organization": None}, {"organization": ""}):
        status, _ = await ann("PUT", "/principals/acme-bot", {"admin": True, **beyond})
        assert status == 403
    names = [row["name"] for row in (await ann("GET", "/principals"))[1]["principals"]]
    assert names == ["acme-bot", "ann", "cat"]
    assert (await gus("GET", "/principals/acme-bot"))[0] == 404
    assert (await gus("DELETE", "/principals/acme-bot"))[0] == 404
    taken = await gus("PUT", "/principals/acme-bot", {"new_token": True})
    assert taken[0] == 422 and taken[1]["error"]["message"] == "this name can't be used"
    for name in ("root", "bob", "gus", "local"):  # config.toml's or our own, and none of acme's
        status, refused = await ann("PUT", f"/principals/{name}", {"new_token": True})
        assert status == 422 and refused["error"]["message"] == "this name can't be used"
        assert (await ann("DELETE", f"/principals/{name}"))[0] == 404
    async with bearing(office, made["token"]) as bot:
        assert (await bot("PUT", "/principals/second", {"new_token": True}))[0] == 200
        assert (await bot("PUT", "/roles/r", {}))[0] == 403
        assert (await bot("DELETE", "/principals/second"))[0] == 200
    assert (await ann("DELETE", "/principals/acme-bot"))[0] == 200


async def test_an_admin_with_a_role_gives_no_other_one(people: dict[str, Api]) -> None:
    assert (await people["root"]("PUT", "/roles/wider", {}))[0] == 200
    for role in ({}, {"role": None}, {"role": "wider"}):
        status, _ = await people["cat"]("PUT", "/principals/new", {"new_token": True, **role})
        assert status == 403
    own = {"new_token": True, "role": "written"}
    assert (await people["cat"]("PUT", "/principals/new", own))[0] == 200


async def test_a_name_under_which_something_was_done_is_no_organizations_to_take(
    office: Running, people: dict[str, Api]
) -> None:
    root, gus = people["root"], people["gus"]
    token = await put_agent(root, organization="acme")
    async with bearing(office, token) as agent:
        _, called = await agent.call("demo_list_books")
    await root.execution(called["execution_id"], "completed")
    assert (await root("DELETE", "/principals/agent"))[0] == 200
    status, refused = await gus("PUT", "/principals/agent", {"new_token": True})
    assert status == 422 and refused["error"]["message"] == "this name can't be used"


async def test_choices_and_standing_of_a_deleted_name_do_not_come_back(
    office: Running, people: dict[str, Api]
) -> None:
    root = people["root"]
    async with bearing(office, await put_agent(root)) as agent:
        await agent("PUT", "/access/demo", {"access": "disabled"})
        assert "demo_list_books" not in await tools(agent)
    assert (await root("DELETE", "/principals/agent"))[0] == 200
    assert await load_choices(office.app.gateway.db) == {}
    async with bearing(office, await put_agent(root)) as agent:
        assert "demo_list_books" in await tools(agent)


async def test_what_is_in_use_is_not_deleted(people: dict[str, Api]) -> None:
    root = people["root"]
    await root("PUT", "/bundles/reading", READS)
    await root("PUT", "/roles/reader", {"bundles": ["reading"]})
    await put_agent(root, role="reader")
    status, refused = await root("DELETE", "/bundles/reading")
    assert status == 422 and "roles.reader.bundles" in refused["error"]["message"]
    status, refused = await root("DELETE", "/roles/reader")
    assert status == 422 and "principals.agent.role" in refused["error"]["message"]


async def test_an_etag_keeps_two_editors_from_overwriting_each_other(
    office: Running, people: dict[str, Api]
) -> None:
    http, url = people["root"].http, f"{office.url}/api/v1/roles/reader"

    async def put(body: dict[str, Any], **headers: str) -> tuple[int, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with http.put(url, json=body, headers=named) as answer:
            return answer.status, answer.headers.get("etag", "")

    assert (await put({}, if_match="*"))[0] == 412
    status, first = await put({}, if_none_match="*")
    assert status == 200 and (await put({}, if_none_match="*"))[0] == 412
    done = await asyncio.gather(*(put({"bundles": []}, if_match=first) for _ in range(5)))
    assert sorted(status for status, _ in done) == [200, 412, 412, 412, 412]
    async with http.get(url) as answer:
        now = answer.headers["etag"]
    assert now != first and (await put({}, if_match='"x"'))[0] == 412
    async with http.delete(url, headers={"if-match": first}) as answer:
        assert answer.status == 412
    async with http.delete(url, headers={"if-match": now}) as answer:
        assert answer.status == 200


async def test_a_token_that_was_replaced_never_comes_back_by_an_edit_at_the_same_time(
    office: Running, people: dict[str, Api]
) -> None:
    root = people["root"]
    for _ in range(5):
        old = await put_agent(root)
        edit = root("PUT", "/principals/agent", {"access": "read-only"})
        (status, _), new = await asyncio.gather(edit, put_agent(root))
        async with bearing(office, old) as late, bearing(office, new) as agent:
            assert status == 200
            assert (await late("GET", "/tools"))[0] == 401
            assert (await agent("GET", "/tools"))[0] == 200


async def test_a_dry_run_tells_who_would_see_what_and_changes_nothing(
    people: dict[str, Api],
) -> None:
    root = people["root"]
    await root("PUT", "/bundles/reading", READS)
    await root("PUT", "/roles/reader", {"bundles": ["reading"]})
    await put_agent(root, role="reader")
    narrower = {**READS, "allow": ["list_*"]}
    _, found = await root("PUT", "/bundles/reading?dry_run=true", narrower)
    assert found["gives"]["tools"] == ["demo_list_books"] and found["gives"]["tokens"] > 0
    [agent] = found["principals"]
    assert (agent["principal"], agent["more"], agent["fewer"]) == ("agent", 0, 1)
    assert agent["removed"] == ["demo_get_book"]
    assert (await root("GET", "/bundles/reading"))[1]["settings"] == READS
    status, _ = await root("PUT", "/roles/reader?dry_run=true", {"bundles": ["nope"]})
    assert status == 422
    _, found = await root("PUT", "/principals/new?dry_run=true", {"new_token": True})
    assert [row["principal"] for row in found["principals"]] == ["new"]
    assert (await root("GET", "/principals/new"))[0] == 404


async def test_an_edit_of_config_toml_leaves_what_was_put_and_takes_over_its_names(
    tmp_path: Path,
) -> None:
    text = f"{LOCAL}{table('demo', enabled=True)}{principal('root', admin=True)}"
    text += table("bundles.given", connections=["demo"]) + table("roles.written", bundles=["given"])
    async with gateway_on(tmp_path / "config.toml", text) as made, api(made.url, "root") as root:
        token = await put_agent(root, role="written")
        await root("PUT", "/roles/own", {"bundles": ["given"]})

        async def edited(to: str, problem: str) -> list[str]:
            made.config.write_text(to, encoding="utf-8")
            async with asyncio.timeout(15):
                while True:
                    _, health = await root("GET", "//health")
                    said = [f"{p['where']}: {p['message']}" for p in health["problems"]]
                    if any(problem in line for line in said) if problem else not said:
                        return said
                    await asyncio.sleep(0.02)

        async with bearing(made, token) as agent:
            assert "demo_list_books" in await tools(agent)
            # The role's bundle is gone: nobody who has it sees more for that.
            bare = text.split("[bundles")[0]
            await edited(bare, "principals.agent.role: there is no role 'written'")
            assert (await agent("GET", "/tools"))[0] == 401
            _, item = await root("GET", "/principals/agent")
            assert item["problems"] and not item["has_token"]
            await edited(text, "")
            assert "demo_list_books" in await tools(agent)
            taken = text + table("principals.agent", token="another-token-0123456789")
            await edited(taken, "principals.agent: config.toml has one of this name")
            assert (await agent("GET", "/tools"))[0] == 401
            _, item = await root("GET", "/principals/agent")
            assert (item["origin"], item["overridden"]) == ("config", True)
            assert (await root("DELETE", "/principals/agent"))[0] == 200
            await edited(taken, "")
            async with bearing(made, "another-token-0123456789") as other:
                assert (await other("GET", "/tools"))[0] == 200


async def test_a_new_token_from_somebody_else_uses_nothing_that_its_person_gave(
    tmp_path: Path,
) -> None:
    async with provider() as peer:
        notes = peer.table("notes", auth={"type": "bearer", "per": "user"})
        text = f"{LOCAL}{principal('root', admin=True)}{notes}"
        async with (
            gateway_on(tmp_path / "config.toml", text) as made,
            api(made.url, "root") as root,
        ):

            async def signed_in(token: str) -> bool:
                async with bearing(made, token) as agent:
                    _, found = await agent("GET", "/credentials")
                    return bool(found["credentials"][0]["signed_in"])

            first = await put_agent(root, admin=True)
            async with bearing(made, first) as agent:
                await agent("PUT", "/credentials/notes", {"token": "agents-own-key-0123"})
                own = await put_agent(agent, admin=True)
            assert await signed_in(own)  # it was theirs to change
            assert not await signed_in(await put_agent(root, admin=True))
