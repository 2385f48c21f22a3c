"""A call that needs a person: asked, decided, used once, and void when anything changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams

from tests.conftest import Running, gateway_on
from tests.journeys.confirming import (
    ORDER,
    Api,
    answering,
    api,
    call_to_be_cut_off,
    client,
    config,
    error_code,
    orders_api,
    sent,
    serving,
)
from tests.peers import Provider, until

MODES = ("legacy", "2026-07-28")
BOTH = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(scope="module")
async def module_shop(
    module_peer: Provider, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    file = tmp_path_factory.mktemp("approvals") / "config.toml"
    async with gateway_on(file, config(module_peer)) as gateway:
        yield gateway


@pytest.fixture
def peer(fresh_peer: Provider) -> Provider:
    return fresh_peer


@pytest.fixture
async def shop(module_shop: Running, peer: Provider) -> AsyncIterator[Running]:
    """The one gateway of this module; what a test left undecided or allowed is taken back."""
    yield module_shop
    async with api(module_shop.url, "root") as root, api(module_shop.url, "eve") as eve:
        for waiting in (await root("GET", "/approvals"))[1]["approvals"]:
            decider = eve if waiting["principal"] == "root" else root
            assert (await decider.decide("deny", waiting["id"]))[0] == 200
        for grant in (await root("GET", "/standing-grants"))[1]["standing_grants"]:
            assert (await root("DELETE", f"/standing-grants/{grant['id']}"))[0] == 200
        await root("DELETE", "/permissions")
        peer.document = orders_api(peer.url)
        assert (await root("POST", "/connections/shop/refresh"))[0] == 200


@BOTH
async def test_client_that_can_be_asked_sees_everything_and_approves(
    shop: Running, peer: Provider, mode: str
) -> None:
    asked: list[ElicitRequestParams] = []
    # In 2026, eve: she has written nothing before.
    name = "ann" if mode == "legacy" else "eve"
    async with client(shop.url, name, mode, answering("approve", asked)) as caller:
        result = await caller.call_tool("shop_place_order", {"book": "Emma", "notes": ["a", "b"]})
    assert result.structured_content == {"path": "/orders", "method": "POST"}
    assert sent(peer) == 1
    [question] = asked
    assert isinstance(question, ElicitRequestFormParams)
    session = "in this session" if mode == "legacy" else "by this caller"
    assert question.message.splitlines() == [
        "Allow this call?",
        "Tool: shop_place_order",
        "Connection: Orders (shop)",
        f"Request: POST {peer.url}/orders",
        "Risk: medium",
        "Arguments:",
        '  book: "Emma"',
        '  notes: ["a","b"]',
        f"⚠ The first write to Orders {session}.",
    ]
    decision = question.requested_schema["properties"]["decision"]
    assert (decision["enum"], decision["default"]) == (["deny", "approve", "always_allow"], "deny")


@BOTH
async def test_anything_but_a_clear_yes_is_a_no(shop: Running, peer: Provider, mode: str) -> None:
    decisions = ("deny", None, "perhaps")
    for decision in decisions:
        async with client(shop.url, "ann", mode, answering(decision, [])) as ann:
            result = await ann.call_tool("shop_place_order", ORDER)
            assert error_code(result) == "approval_denied"
    async with api(shop.url, "ann") as rest:
        _, found = await rest("GET", f"/executions?limit={len(decisions)}")
    assert sent(peer) == 0
    assert [
        (each["status"], each["error_code"], each["result"]["success"])
        for each in found["executions"]
    ] == [("denied", "approval_denied", False)] * len(decisions)


@BOTH
async def test_always_allow_asks_once_and_not_for_high_risk(
    shop: Running, peer: Provider, mode: str
) -> None:
    asked: list[ElicitRequestParams] = []
    async with client(shop.url, "ann", mode, answering("always_allow", asked)) as ann:
        for book in ("Emma", "Persuasion"):
            assert not (await ann.call_tool("shop_place_order", {"book": book})).is_error
        assert len(asked) == 1
        refused = await ann.call_tool("shop_cancel_order", {"id": "7"})
    assert error_code(refused) == "approval_denied"
    assert isinstance(asked[1], ElicitRequestFormParams)
    offered = asked[1].requested_schema["properties"]["decision"]["enum"]
    assert offered == ["deny", "approve"]
    assert (sent(peer), sent(peer, "DELETE")) == (2, 0)


async def test_always_allow_holds_for_one_session_and_one_principal(
    shop: Running, peer: Provider
) -> None:
    asked: list[ElicitRequestParams] = []
    for name in ("ann", "ann", "bob"):
        async with client(shop.url, name, "legacy", answering("always_allow", asked)) as caller:
            await caller.call_tool("shop_place_order", ORDER)
            await caller.call_tool("shop_place_order", ORDER)
    assert (len(asked), sent(peer)) == (3, 6)


async def test_without_sessions_always_allow_holds_for_one_client(
    shop: Running, peer: Provider
) -> None:
    asked: list[ElicitRequestParams] = []
    for called in ("coder", "coder", "browser"):
        answer = answering("always_allow", asked)
        async with client(shop.url, "ann", "2026-07-28", answer, called) as ann:
            await ann.call_tool("shop_place_order", ORDER)
            await ann.call_tool("shop_place_order", ORDER)
    async with api(shop.url, "ann") as rest:
        status, _ = await rest("POST", "/tools/shop_place_order/call", {"arguments": ORDER})
    assert (len(asked), sent(peer), status) == (2, 6, 202)
    assert isinstance(asked[0], ElicitRequestFormParams)
    words = asked[0].requested_schema["properties"]["decision"]["description"]
    assert words.endswith("always_allow: this tool, for 60 minutes, for coder alone.")


@BOTH
async def test_what_is_always_allowed_is_listed_and_revoked(
    shop: Running, peer: Provider, mode: str
) -> None:
    asked: list[ElicitRequestParams] = []
    async with (
        client(shop.url, "ann", mode, answering("always_allow", asked), "coder") as agent,
        api(shop.url, "ann") as ann,
        api(shop.url, "bob") as bob,
        api(shop.url, "root") as root,
    ):
        await agent.call_tool("shop_place_order", ORDER)
        listed = [await one("GET", "/standing-grants") for one in (root, ann, bob)]
        assert [len(body["standing_grants"]) for _, body in listed] == [1, 1, 0]
        [grant] = listed[0][1]["standing_grants"]
        lasts = 7 * 24 * 60 if mode == "legacy" else 60
        assert round((grant["expires_at"] - grant["created_at"]) / 60) == lasts
        assert {
            key: grant[key] for key in ("tool", "connection", "principal", "client", "request")
        } == {
            "tool": "shop_place_order",
            "connection": "shop",
            "principal": "ann",
            "client": "coder",
            "request": f"POST {peer.url}/orders",
        }
        assert ((grant["session"] is not None), grant["granted_by"]) == (mode == "legacy", "ann")
        allowed = await agent.call_tool("shop_place_order", ORDER)
        record = await root.execution((allowed.meta or {})["gateway/execution_id"])
        assert (len(asked), record["status"]) == (1, "completed")
        path = f"/standing-grants/{grant['id']}"
        assert (await bob("DELETE", path))[0] == 404
        assert (await ann("DELETE", path))[0] == 200
        assert (await root("DELETE", path))[0] == 404
        await agent.call_tool("shop_place_order", ORDER)
        assert len(asked) == 2


@BOTH
async def test_client_that_can_not_be_asked_waits_with_progress(
    shop: Running, peer: Provider, mode: str
) -> None:
    said: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        said.append(message)

    async with client(shop.url, "ann", mode) as ann, api(shop.url, "root") as root:
        call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER, progress_callback=note))
        [waiting] = await root.pending()
        assert {key: waiting[key] for key in ("tool", "connection", "principal", "method")} == {
            "tool": "shop_place_order",
            "connection": "shop",
            "principal": "ann",
            "method": "POST",
        }
        assert (waiting["url"], waiting["arguments"]) == (f"{peer.url}/orders", ORDER)
        status, decided = await root.decide("approve", waiting["id"])
        assert (status, decided["status"], decided["decided_by"]) == (200, "approved", "root")
        result = await call
        record = await root.execution(waiting["execution_id"])
    assert not result.is_error
    assert said[0] == "Waiting for a person to approve shop_place_order"
    assert record["status"] == "completed"
    assert (result.meta or {})["gateway/execution_id"] == record["id"]


async def test_denied_by_an_admin_is_told_to_the_agent(shop: Running, peer: Provider) -> None:
    async with client(shop.url, "ann") as ann, api(shop.url, "root") as root:
        call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
        await root.decide("deny")
        assert error_code(await call) == "approval_denied"
    assert sent(peer) == 0


async def test_of_two_deciders_one_wins(shop: Running, peer: Provider) -> None:
    async with (
        client(shop.url, "ann") as ann,
        api(shop.url, "root") as root,
        api(shop.url, "eve") as eve,
    ):
        call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
        [waiting] = await root.pending()
        answers = await asyncio.gather(
            *(
                one.decide(decision, waiting["id"])
                for one in (root, eve)
                for decision in ("approve", "deny")
            )
        )
        result = await call
    won = [body for status, body in answers if status == 200]
    lost = [body["error"]["code"] for status, body in answers if status == 409]
    assert (len(won), lost) == (1, ["approval_expired"] * 3)
    assert result.is_error == (won[0]["status"] == "denied")
    assert sent(peer) == (won[0]["status"] == "approved")


async def test_undecided_call_expires(tmp_path: Path, peer: Provider) -> None:
    text = config(peer).replace("= 20", "= 2")
    async with gateway_on(tmp_path / "config.toml", text) as shop, api(shop.url, "root") as root:
        for mode in MODES:
            async with client(shop.url, "ann", mode) as ann:
                call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
                [waiting] = await root.pending()
                assert error_code(await call) == "approval_expired"
            record = await root.execution(waiting["execution_id"])
            assert (record["status"], record["error_code"]) == ("expired", "approval_expired")
            status, late = await root.decide("approve", waiting["id"])
            assert (status, late["error"]["code"]) == (409, "approval_expired")
    assert sent(peer) == 0


async def test_nobody_decides_on_a_call_of_their_own(shop: Running, peer: Provider) -> None:
    async with client(shop.url, "root") as agent, api(shop.url, "root") as root:
        call = asyncio.create_task(agent.call_tool("shop_place_order", ORDER))
        status, answer = await root.decide("approve")
        assert (status, answer["error"]["code"]) == (403, "access_denied")
        async with api(shop.url, "ann") as ann:
            assert (await ann("GET", "/approvals"))[0] == 403
        async with api(shop.url, "eve") as eve:
            assert (await eve.decide("approve"))[0] == 200
        assert not (await call).is_error


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("the tool changed", {"summary": "Place an order, at once"}),
    ("the tool is gone", {"deprecated": True}),
]


@pytest.mark.parametrize("change", [c for _, c in CHANGES], ids=[name for name, _ in CHANGES])
async def test_approval_is_void_once_the_tool_changed(
    shop: Running, peer: Provider, change: dict[str, Any]
) -> None:
    async with client(shop.url, "ann") as ann, api(shop.url, "root") as root:
        call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
        [waiting] = await root.pending()
        operation = orders_api(peer.url)["paths"]["/orders"]["post"]
        peer.document = orders_api(peer.url, placeOrder={**operation, **change})
        assert (await root("POST", "/connections/shop/refresh"))[0] == 200
        await root.decide("approve", waiting["id"])
        assert error_code(await call) == "approval_expired"
        record = await root.execution(waiting["execution_id"])
    assert record["status"] == "denied"
    assert sent(peer) == 0


async def test_approval_is_void_once_rights_are_lost(shop: Running, peer: Provider) -> None:
    async with (
        client(shop.url, "ann") as agent,
        api(shop.url, "ann") as ann,
        api(shop.url, "root") as root,
    ):
        call = asyncio.create_task(agent.call_tool("shop_place_order", ORDER))
        [waiting] = await root.pending()
        await ann("PUT", "/access/shop", {"access": "read-only"})
        await root.decide("approve", waiting["id"])
        assert error_code(await call) == "approval_expired"
        await ann("PUT", "/access/shop", {"access": "read-write"})
    assert sent(peer) == 0


async def test_approval_is_for_exact_arguments(shop: Running, peer: Provider) -> None:
    async with client(shop.url, "ann") as ann, api(shop.url, "root") as root:
        one = asyncio.create_task(ann.call_tool("shop_place_order", {"book": "Emma"}))
        [first] = await root.pending()
        two = asyncio.create_task(ann.call_tool("shop_place_order", {"book": "Persuasion"}))
        await root.pending(2)
        await root.decide("approve", first["id"])
        assert not (await one).is_error
        [left] = await root.pending()
        assert left["arguments"] == {"book": "Persuasion"}
        await root.decide("deny", left["id"])
        assert error_code(await two) == "approval_denied"
    assert sent(peer) == 1


@BOTH
async def test_call_that_was_cut_off_uses_the_approval_given_meanwhile(
    shop: Running, peer: Provider, mode: str
) -> None:
    async with api(shop.url, "root") as root:
        async with call_to_be_cut_off(shop.url, "ann", "shop_place_order", ORDER, mode):
            [waiting] = await root.pending()
        await until(lambda: not shop.app.mcp.figures()["calls_in_flight"])
        await root.decide("approve", waiting["id"])
        async with client(shop.url, "ann", mode) as ann:
            result = await ann.call_tool("shop_place_order", ORDER)
            assert (result.meta or {})["gateway/execution_id"] == waiting["execution_id"]
            again = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
            [asked_anew] = await root.pending()
            await root.decide("deny", asked_anew["id"])
            assert error_code(await again) == "approval_denied"
    assert sent(peer) == 1


async def test_questions_survive_a_kill_and_what_is_approved_is_done_once(
    tmp_path: Path, peer: Provider
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(config(peer), encoding="utf-8")
    call = "/tools/shop_cancel_order/call"
    async with (
        serving(tmp_path, "root") as (process, root),
        api(root.base, "ann") as ann,
        call_to_be_cut_off(root.base, "ann", "shop_place_order", ORDER),
    ):
        [waiting] = await root.pending()
        _, unattended = await ann("POST", call, {"arguments": {"id": "7"}})
        before = await root.pending(2)
        process.kill()
        await process.wait()
    async with gateway_on(file, config(peer)) as shop, api(shop.url, "root") as root:
        assert await root.pending(2) == before
        for each in before:
            assert (await root.decide("approve", each["id"]))[0] == 200
        await root.execution(unattended["execution_id"], "completed")  # by itself
        async with client(root.base, "ann") as agent:
            result = await agent.call_tool("shop_place_order", ORDER)
        record = await root.execution(waiting["execution_id"])
        assert await root.pending(0) == []
    assert (result.meta or {})["gateway/execution_id"] == waiting["execution_id"]
    assert record["status"] == "completed"
    assert (sent(peer), sent(peer, "DELETE")) == (1, 1)


async def test_who_waits_when_the_gateway_ends_is_sent_away_and_the_question_stays(
    tmp_path: Path, peer: Provider
) -> None:
    async with (
        gateway_on(tmp_path / "config.toml", config(peer)) as shop,
        client(shop.url, "ann") as ann,
        api(shop.url, "root") as root,
    ):
        call = asyncio.create_task(ann.call_tool("shop_place_order", ORDER))
        [waiting] = await root.pending()
        shop.app.gateway.approvals.drain()
        assert error_code(await asyncio.wait_for(call, 5)) == "busy"
        assert [each["id"] for each in await root.pending()] == [waiting["id"]]
    assert sent(peer) == 0


async def test_sealed_answer_works_once_and_for_its_own_call_only(
    shop: Running, peer: Provider
) -> None:
    async with client(shop.url, "ann", "2026-07-28", answering("approve", [])) as ann:

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
    assert error_code(other) == "approval_expired"
    assert isinstance(done, CallToolResult) and not done.is_error
    assert error_code(twice) == "approval_expired"
    assert forged.request_state != first.request_state  # asked anew: the state was none of ours
    assert sent(peer) == 1


async def test_auto_approved_and_blocked_tools_ask_nobody(tmp_path: Path, peer: Provider) -> None:
    rules = """auto_approve = { enabled = true, tools = ["shop_place_order"] }
tools = { shop_cancel_order = "blocked" }"""
    async with (
        gateway_on(tmp_path / "config.toml", config(peer, rules)) as shop,
        client(shop.url, "ann") as ann,
    ):
        assert not (await ann.call_tool("shop_place_order", ORDER)).is_error
        blocked = await ann.call_tool("shop_cancel_order", {"id": "1"})
    assert error_code(blocked) == "access_denied"
    assert (sent(peer), sent(peer, "DELETE")) == (1, 0)


async def test_warnings_say_what_should_make_one_look_twice(tmp_path: Path, peer: Provider) -> None:
    untrusted = 'trust = "untrusted"\non_change = "accept"'
    async with (
        gateway_on(tmp_path / "config.toml", config(peer, connection=untrusted)) as shop,
        api(shop.url, "ann") as ann,
        api(shop.url, "root") as root,
    ):
        await ann("POST", "/tools/shop_cancel_order/call", {"arguments": {"id": "1"}})
        [first] = await root.pending()
        await root.decide("approve", first["id"])
        await root.execution(first["execution_id"], "completed")
        operation = orders_api(peer.url)["paths"]["/orders"]["post"]
        many = {"book": "Emma", "notes": [str(n) for n in range(21)]}
        _, used = await ann("POST", "/tools/shop_place_order/call", {"arguments": ORDER})
        await root.decide("approve")
        await root.execution(used["execution_id"], "completed")
        peer.document = orders_api(peer.url, placeOrder={**operation, "summary": "Order now"})
        await root("POST", "/connections/shop/refresh")
        await ann("POST", "/tools/shop_place_order/call", {"arguments": many})
        [second] = await root.pending()
    assert first["warnings"] == [
        "This deletes or destroys something; it can't be undone here.",
        "The first write to Orders by this caller.",
        "Orders is an untrusted source.",
    ]
    assert second["warnings"] == [
        "A large number of items: 21 in notes.",
        "The tool has changed since it was last used.",
        "Orders is an untrusted source.",
    ]


async def test_waiting_calls_of_one_principal_are_bounded(shop: Running, peer: Provider) -> None:
    async with api(shop.url, "ann") as ann, api(shop.url, "bob") as bob:
        path = "/tools/shop_place_order/call"
        answers = [await ann("POST", path, {"arguments": {"book": str(n)}}) for n in range(17)]
        others = await bob("POST", path, {"arguments": ORDER})
    assert [status for status, _ in answers] == [202] * 16 + [503]
    assert answers[-1][1]["error"]["code"] == "busy"
    assert others[0] == 202


async def put_permissions(rest: Api, **values: Any) -> tuple[int, Any]:
    return await rest("PUT", "/permissions", values)


async def test_permissions_can_be_put_and_given_back(shop: Running, peer: Provider) -> None:
    async with (
        client(shop.url, "ann") as agent,
        api(shop.url, "root") as root,
        api(shop.url, "ann") as ann,
    ):
        assert (await put_permissions(ann, level="full_access"))[0] == 403
        status, wrong = await put_permissions(root, level="everything")
        assert (status, wrong["error"]["code"]) == (422, "invalid_arguments")
        status, put = await put_permissions(root, level="read_only")
        assert (status, put["level"], put["source"]) == (200, "read_only", "stored")
        refused = await agent.call_tool("shop_place_order", ORDER)
        assert error_code(refused) == "read_only"
        assert (refused.structured_content or {})["error"]["message"] == (
            "You have read-only access to Orders"
        )
        await put_permissions(root, level="full_access")
        assert not (await agent.call_tool("shop_place_order", ORDER)).is_error
        _, given_back = await root("DELETE", "/permissions")
        _, read = await ann("GET", "/permissions")
    assert (
        given_back
        == read
        == {
            "level": "execute_with_confirm",
            "tools": {},
            "auto_approve": {"enabled": False, "tools": []},
            "timeout_seconds": 20.0,
            "always_allow_minutes": 60.0,
            "always_allow_high_risk": False,
            "source": "config.toml",
        }
    )
    assert sent(peer) == 1
