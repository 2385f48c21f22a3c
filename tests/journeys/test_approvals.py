"""A call that needs a person: asked, decided, used once, and void when anything changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams

from tests.callers import api, call_to_be_cut_off, client, error_code
from tests.conftest import two_gateways
from tests.journeys.confirming import (
    IDEMPOTENT,
    ORDER,
    Shop,
    answering,
    config,
    orders_api,
    serving,
    shop_on,
)
from tests.journeys.conftest import ShopMaker
from tests.peers import Provider, soon, until

MODES = ("legacy", "2026-07-28")
BOTH = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(scope="module")
async def asking_shop(
    module_peer: Provider, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Shop]:
    module_peer.document = orders_api(module_peer.url)
    file = tmp_path_factory.mktemp("approvals") / "config.toml"
    async with shop_on(file, module_peer, config(module_peer)) as made:
        yield made


@pytest.fixture
async def shop(asking_shop: Shop, peer: Provider) -> AsyncIterator[Shop]:
    """The one gateway of this module; what a test left undecided or allowed is taken back."""
    yield asking_shop
    root = asking_shop.root
    for waiting in (await root("GET", "/approvals"))[1]["approvals"]:
        decider = asking_shop.eve if waiting["principal"] == "root" else root
        assert (await decider.decide("deny", waiting["id"]))[0] == 200
    for grant in (await root("GET", "/standing-grants"))[1]["standing_grants"]:
        assert (await root("DELETE", f"/standing-grants/{grant['id']}"))[0] == 200
    await root("DELETE", "/permissions")
    peer.document = orders_api(peer.url)
    await asking_shop.refresh()


def changed_order(peer: Provider) -> dict[str, Any]:
    """The shop's definition, with other words on orders."""
    post = peer.document["paths"]["/orders"]["post"]
    return orders_api(peer.url, placeOrder={**post, "summary": "Order at once"})


@BOTH
async def test_client_that_can_be_asked_sees_everything_and_approves(shop: Shop, mode: str) -> None:
    asked: list[ElicitRequestParams] = []
    # In 2026, eve: she has written nothing before.
    name = "ann" if mode == "legacy" else "eve"
    async with shop.agent(name, mode, answering("approve", asked)) as caller:
        result = await caller.call_tool("shop_place_order", {"book": "Emma", "notes": ["a", "b"]})
    assert result.structured_content == {"path": "/orders", "method": "POST"}
    assert shop.peer.sent() == 1
    [question] = asked
    assert isinstance(question, ElicitRequestFormParams)
    session = "in this session" if mode == "legacy" else "by this caller"
    assert question.message.splitlines() == [
        "Allow this call?",
        "Tool: shop_place_order",
        "Connection: Orders (shop)",
        f"Request: POST {shop.peer.url}/orders",
        "Risk: medium",
        "Arguments:",
        '  book: "Emma"',
        '  notes: ["a","b"]',
        f"⚠ The first write to Orders {session}.",
    ]
    decision = question.requested_schema["properties"]["decision"]
    assert (decision["enum"], decision["default"]) == (["deny", "approve", "always_allow"], "deny")


@BOTH
async def test_anything_but_a_clear_yes_is_a_no(shop: Shop, mode: str) -> None:
    for decision in ("deny", None, "perhaps"):
        async with shop.agent("ann", mode, answering(decision, [])) as ann:
            result = await ann.call_tool("shop_place_order", ORDER)
            assert error_code(result) == "approval_denied"
    _, found = await shop.ann("GET", "/executions?limit=3")
    assert shop.peer.sent() == 0
    assert [
        (each["status"], each["error_code"], each["result"]["success"])
        for each in found["executions"]
    ] == [("denied", "approval_denied", False)] * 3


@BOTH
async def test_always_allow_asks_once_and_not_for_high_risk(shop: Shop, mode: str) -> None:
    asked: list[ElicitRequestParams] = []
    async with shop.agent("ann", mode, answering("always_allow", asked)) as ann:
        for book in ("Emma", "Persuasion"):
            assert not (await ann.call_tool("shop_place_order", {"book": book})).is_error
        assert len(asked) == 1
        refused = await ann.call_tool("shop_cancel_order", {"id": "7"})
    assert error_code(refused) == "approval_denied"
    assert isinstance(asked[1], ElicitRequestFormParams)
    offered = asked[1].requested_schema["properties"]["decision"]["enum"]
    assert offered == ["deny", "approve"]
    _, found = await shop.ann("GET", "/executions?limit=3")
    denied, allowed, approved = (each["timeline"] for each in found["executions"])
    assert [each["event"] for each in denied] == ["asked", "decided", "refused", "recorded"]
    by_grant = {"event": "decided", "by": "ann", "from": None, "grant": approved[1]["grant"]}
    assert by_grant["grant"]
    assert allowed[0] == by_grant | {"at": allowed[0]["at"]}
    assert approved[1] == by_grant | {"at": approved[1]["at"], "from": "client"}
    assert (shop.peer.sent(), shop.peer.sent("DELETE")) == (2, 0)


@pytest.mark.parametrize(
    ("mode", "callers", "questions", "words"),
    [
        ("legacy", [("ann", "mcp"), ("ann", "mcp"), ("bob", "mcp")], 3, ""),
        (
            "2026-07-28",
            [("ann", "coder"), ("ann", "coder"), ("ann", "browser")],
            2,
            "always_allow: this tool, for 60 minutes, for coder alone.",
        ),
    ],
)
async def test_always_allow_holds_for_a_session_or_where_there_is_none_for_a_client(
    shop: Shop, mode: str, callers: list[tuple[str, str]], questions: int, words: str
) -> None:
    asked: list[ElicitRequestParams] = []
    for name, called in callers:
        async with shop.agent(name, mode, answering("always_allow", asked), called) as caller:
            await caller.call_tool("shop_place_order", ORDER)
            await caller.call_tool("shop_place_order", ORDER)
    status, _ = await shop.ann.call("shop_place_order", **ORDER)
    assert (len(asked), shop.peer.sent(), status) == (questions, 6, 202)
    assert isinstance(asked[0], ElicitRequestFormParams)
    decision = asked[0].requested_schema["properties"]["decision"]
    assert decision["description"].endswith(words)


@BOTH
async def test_what_is_always_allowed_is_listed_and_revoked(shop: Shop, mode: str) -> None:
    asked: list[ElicitRequestParams] = []
    async with shop.agent("ann", mode, answering("always_allow", asked), "coder") as agent:
        await agent.call_tool("shop_place_order", ORDER)
        callers = (shop.root, shop.ann, shop.bob)
        listed = [(await one("GET", "/standing-grants"))[1]["standing_grants"] for one in callers]
        assert [len(grants) for grants in listed] == [1, 1, 0]
        [grant] = listed[0]
        lasts = 7 * 24 * 60 if mode == "legacy" else 60
        assert round((grant["expires_at"] - grant["created_at"]) / 60) == lasts
        assert grant == grant | {
            "tool": "shop_place_order",
            "connection": "shop",
            "principal": "ann",
            "client": "coder",
            "request": f"POST {shop.peer.url}/orders",
            "granted_by": "ann",
        }
        assert (grant["session"] is not None) == (mode == "legacy")
        allowed = await agent.call_tool("shop_place_order", ORDER)
        record = await shop.root.execution((allowed.meta or {})["gateway/execution_id"])
        assert (len(asked), record["status"]) == (1, "completed")
        path = f"/standing-grants/{grant['id']}"
        for caller, status in ((shop.bob, 404), (shop.ann, 200), (shop.root, 404)):
            assert (await caller("DELETE", path))[0] == status
        await agent.call_tool("shop_place_order", ORDER)
        assert len(asked) == 2


@BOTH
async def test_client_that_can_not_be_asked_waits_with_progress(shop: Shop, mode: str) -> None:
    said: asyncio.Queue[str | None] = asyncio.Queue()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        said.put_nowait(message)

    async with shop.agent("ann", mode) as ann:
        call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER, progress_callback=note))
        [waiting] = await shop.root.pending()
        words = "Waiting for a person to approve shop_place_order: an admin can"
        assert await soon(said.get()) == f"{words} (approval {waiting['id'][:12]})"
        assert waiting == waiting | {
            "tool": "shop_place_order",
            "connection": "shop",
            "principal": "ann",
            "method": "POST",
            "url": f"{shop.peer.url}/orders",
            "arguments": ORDER,
        }
        status, decided = await shop.root.decide("approve", waiting["id"])
        assert (status, decided["status"], decided["decided_by"]) == (200, "approved", "root")
        result = await call
    record = await shop.root.execution(waiting["execution_id"])
    assert not result.is_error
    assert record["status"] == "completed"
    assert (result.meta or {})["gateway/execution_id"] == record["id"]
    assert [(each["event"], each["by"], each["from"]) for each in record["timeline"]] == [
        ("asked", "ann", waiting["client"]),
        ("decided", "root", "rest"),
        ("sent", "ann", waiting["client"]),
        ("answered", "shop", None),
        ("recorded", None, None),
    ]


async def test_of_two_deciders_one_wins(shop: Shop) -> None:
    async with shop.agent() as ann:
        call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
        [waiting] = await shop.root.pending()
        deciders = (shop.root, shop.eve) * 2
        decisions = zip(deciders, ("approve", "approve", "deny", "deny"), strict=True)
        answers = await asyncio.gather(*(one.decide(how, waiting["id"]) for one, how in decisions))
        result = await call
    won = [body for status, body in answers if status == 200]
    lost = [body["error"]["code"] for status, body in answers if status == 409]
    assert (len(won), lost) == (1, ["approval_expired"] * 3)
    assert result.is_error == (won[0]["status"] == "denied")
    assert shop.peer.sent() == (won[0]["status"] == "approved")


async def test_undecided_call_expires(make_shop: ShopMaker) -> None:
    shop = await make_shop(seconds=2)
    for mode in MODES:
        async with shop.agent("ann", mode) as ann:
            call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
            [waiting] = await shop.root.pending()
            assert error_code(await call) == "approval_expired"
        record = await shop.root.execution(waiting["execution_id"])
        assert (record["status"], record["error_code"]) == ("expired", "approval_expired")
        status, late = await shop.root.decide("approve", waiting["id"])
        assert (status, late["error"]["code"]) == (409, "approval_expired")
    assert shop.peer.sent() == 0


async def test_an_admin_decides_on_a_call_of_its_own(shop: Shop) -> None:
    status, waiting = await shop.root.call("shop_place_order", **ORDER)
    assert (status, (await shop.root.decide("approve"))[0]) == (202, 200)
    await shop.root.execution(waiting["execution_id"], "completed")
    assert shop.peer.sent() == 1


@BOTH
async def test_with_four_eyes_nobody_decides_on_a_call_of_their_own(shop: Shop, mode: str) -> None:
    async def never(context: object, params: object) -> Any:
        raise AssertionError("the client was asked about its own call")

    await shop.root("PUT", "/permissions", {"self_approval": False})
    async with shop.agent("root", mode, never) as agent:
        call = asyncio.create_task(agent.call_tool("shop_place_order", ORDER))
        status, answer = await shop.root.decide("approve")
        assert (status, answer["error"]["code"]) == (403, "access_denied")
        assert "permissions.self_approval = false" in answer["error"]["message"]
        assert (await shop.ann("GET", "/approvals"))[0] == 403
        assert (await shop.eve.decide("approve"))[0] == 200
        assert not (await call).is_error


@BOTH
async def test_with_four_eyes_what_one_allowed_oneself_before_counts_no_more(
    make_shop: ShopMaker, mode: str
) -> None:
    shop = await make_shop()
    async with shop.agent("ann", mode, answering("always_allow", [])) as agent:
        await agent.call_tool("shop_place_order", ORDER)
        await shop.root("PUT", "/permissions", {"self_approval": False})
        call = asyncio.create_task(agent.call_tool("shop_place_order", ORDER))
        assert (await shop.root.decide("deny"))[0] == 200
        assert (await call).is_error
    assert shop.peer.sent() == 1


async def test_approval_is_void_once_the_tool_changed(shop: Shop) -> None:
    async with shop.agent() as ann:
        call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
        [waiting] = await shop.root.pending()
        shop.peer.document = changed_order(shop.peer)
        await shop.refresh()
        await shop.root.decide("approve", waiting["id"])
        assert error_code(await call) == "approval_expired"
    assert (await shop.root.execution(waiting["execution_id"]))["status"] == "denied"
    assert shop.peer.sent() == 0


@BOTH
async def test_call_that_was_cut_off_uses_the_approval_given_meanwhile(
    shop: Shop, mode: str
) -> None:
    async with call_to_be_cut_off(shop.ann, "shop_place_order", ORDER, mode):
        [waiting] = await shop.root.pending()
        assert waiting["caller"] == "waiting"
    await until(lambda: not shop.app.mcp.figures()["calls_in_flight"])
    await shop.app.gateway.db.settle()
    assert await shop.root.pending() == [waiting | {"caller": "gone"}]
    await shop.root.decide("approve", waiting["id"])
    assert shop.peer.sent() == 0
    async with shop.agent("ann", mode) as ann:
        result = await ann.call_tool("shop_place_order", ORDER)
        assert (result.meta or {})["gateway/execution_id"] == waiting["execution_id"]
        again = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
        await shop.root.decide("deny")
        assert error_code(await again) == "approval_denied"
    assert shop.peer.sent() == 1


async def test_questions_survive_a_kill_and_what_is_approved_is_done_once(
    tmp_path: Path, peer: Provider
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(config(peer), encoding="utf-8")
    async with (
        serving(tmp_path, "root") as (process, root),
        api(root.base, "ann") as ann,
        call_to_be_cut_off(ann, "shop_place_order", ORDER),
    ):
        [waiting] = await root.pending()
        _, unattended = await ann.call("shop_cancel_order", id="7")
        before = await root.pending(2)
        process.kill()
        await process.wait()
    async with shop_on(file, peer, config(peer)) as shop:
        after = await shop.root.pending(2)
        # One runs by itself once approved; the other's caller went with the process.
        left = {waiting["id"]: "gone"}
        assert after == [each | {"caller": left.get(each["id"], "waiting")} for each in before]
        assert [each["caller"] for each in before] == ["waiting"] * 2
        for each in before:
            assert (await shop.root.decide("approve", each["id"]))[0] == 200
        await shop.root.execution(unattended["execution_id"], "completed")  # by itself
        async with shop.agent() as agent:
            result = await agent.call_tool("shop_place_order", ORDER)
        record = await shop.root.execution(waiting["execution_id"])
        assert await shop.root.pending(0) == []
    assert (result.meta or {})["gateway/execution_id"] == waiting["execution_id"]
    assert record["status"] == "completed"
    assert (peer.sent(), peer.sent("DELETE")) == (1, 1)


async def test_who_waits_when_the_gateway_ends_is_sent_away_and_the_question_stays(
    make_shop: ShopMaker,
) -> None:
    shop = await make_shop()
    async with shop.agent() as ann:
        call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
        [waiting] = await shop.root.pending()
        shop.app.gateway.approvals.draining = True
        assert error_code(await soon(call)) == "busy"
        assert [each["id"] for each in await shop.root.pending()] == [waiting["id"]]
    assert shop.peer.sent() == 0


async def test_sealed_answer_works_once_and_for_its_own_call_only(shop: Shop) -> None:
    async with shop.agent("ann", "2026-07-28", answering("approve", [])) as ann:

        async def call(book: str, **more: Any) -> Any:
            return await ann.session.call_tool(
                "shop_place_order", {"book": book}, allow_input_required=True, **more
            )

        first = await call("Emma")
        [key] = first.input_requests
        answer: dict[str, Any] = {
            "input_responses": {key: {"action": "accept", "content": {"decision": "approve"}}},
            "request_state": first.request_state,
        }
        other = await call("Persuasion", **answer)
        done = await call("Emma", **answer)
        twice = await call("Emma", **answer)
        forged = await call("Emma", **{**answer, "request_state": "nonsense"})
    assert (error_code(other), error_code(twice)) == ("approval_expired", "approval_expired")
    assert isinstance(done, CallToolResult) and not done.is_error
    assert forged.request_state != first.request_state  # asked anew: the state was none of ours
    assert shop.peer.sent() == 1


async def test_what_was_approved_can_be_withdrawn_until_it_is_sent(shop: Shop) -> None:
    async with shop.agent("ann", "2026-07-28", answering("approve", [])) as ann:
        asking = partial(ann.session.call_tool, allow_input_required=True)
        first: Any = await asking("shop_place_order", ORDER)
        await shop.root.decide("approve")
        _, waiting = await shop.ann("GET", "/executions?status=pending_confirmation")
        _, withdrawn = await shop.ann("DELETE", f"/executions/{waiting['executions'][0]['id']}")
        again = await asking("shop_place_order", ORDER, request_state=first.request_state)
    assert (withdrawn["error_code"], error_code(again)) == ("approval_expired",) * 2
    assert shop.peer.sent() == 0


async def test_warnings_say_what_should_make_one_look_twice(make_shop: ShopMaker) -> None:
    shop = await make_shop(connection='trust = "untrusted"\non_change = "accept"')

    async def asked(tool: str, **arguments: Any) -> list[str]:
        """What is warned of in a call, which is then approved and done."""
        _, waiting = await shop.ann.call(tool, **arguments)
        [found] = await shop.root.pending()
        await shop.root.decide("approve")
        await shop.root.execution(waiting["execution_id"], "completed")
        return list(found["warnings"])

    assert await asked("shop_cancel_order", id="1") == [
        "This deletes or destroys something; it can't be undone here.",
        "The first write to Orders by this caller.",
        "Orders is an untrusted source.",
    ]
    await asked("shop_place_order", **ORDER)
    shop.peer.document = changed_order(shop.peer)
    await shop.refresh()
    assert await asked("shop_place_order", book="Emma", notes=[str(n) for n in range(21)]) == [
        "A large number of items: 21 in notes.",
        "The tool has changed since it was last used.",
        "Orders is an untrusted source.",
    ]


async def test_waiting_calls_of_one_principal_are_bounded(shop: Shop) -> None:
    answers = [await shop.ann.call("shop_place_order", book=str(n)) for n in range(17)]
    others = await shop.bob.call("shop_place_order", **ORDER)
    assert [status for status, _ in answers] == [202] * 16 + [503]
    assert answers[-1][1]["error"]["code"] == "busy"
    assert others[0] == 202


async def test_permissions_can_be_put_and_given_back(shop: Shop) -> None:
    async with shop.agent() as agent:
        for caller, level, code in (
            (shop.ann, "full_access", 403),
            (shop.root, "everything", 422),
            (shop.root, "read_only", 200),
        ):
            status, put = await caller("PUT", "/permissions", {"level": level})
            assert status == code
        assert (put["level"], put["source"]) == ("read_only", "stored")
        refused = await agent.call_tool("shop_place_order", ORDER)
        assert error_code(refused) == "read_only"
        await shop.root("PUT", "/permissions", {"level": "full_access"})
        assert not (await agent.call_tool("shop_place_order", ORDER)).is_error
    _, given_back = await shop.root("DELETE", "/permissions")
    assert given_back == (await shop.ann("GET", "/permissions"))[1]
    assert given_back == {
        "level": "execute_with_confirm",
        "tools": {},
        "auto_approve": {"enabled": False, "tools": []},
        "timeout_seconds": 20.0,
        "always_allow_minutes": 60.0,
        "always_allow_high_risk": False,
        "self_approval": True,
        "source": "config.toml",
    }
    assert shop.peer.sent() == 1


async def test_what_waits_on_one_goes_on_once_when_it_is_decided_on_the_other(
    tmp_path: Path, store_url: str, peer: Provider
) -> None:
    text = config(peer, connection=IDEMPOTENT)
    async with (
        two_gateways(tmp_path, text, store_url) as (one, two),
        client(one.url, "ann") as agent,
        api(one.url, "ann") as ann,
        api(two.url, "root") as root,
    ):
        for decision, code in (("approve", None), ("deny", "approval_denied")):
            call = asyncio.create_task(agent.call_tool("shop_place_order", ORDER))
            assert (await root.decide(decision))[0] == 200
            assert error_code(await soon(call)) == code
        assert peer.sent() == 1
        started = [await ann.call("shop_place_order", book=str(n)) for n in range(5)]
        waiting = await root.pending(5)
        await asyncio.gather(*(root.decide("approve", each["id"]) for each in waiting))
        for _, each in started:
            await root.execution(each["execution_id"], "completed")
    books = sorted(body for _, _, body in peer.requests)
    assert books == [*(b'{"book":"%d"}' % n for n in range(5)), b'{"book":"Emma"}']
