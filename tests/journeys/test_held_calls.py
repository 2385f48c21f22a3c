"""A call that waits for its client's answer, and what may happen to it meanwhile.

A client of 2026 gets the question as its answer and calls again. Until then the call is held by one
process: it may be asked by another one, be answered twice, by somebody else, too late or never, and
the process may end. Whatever happens, nothing is done twice and the ledger tells no lies.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult

from tests.asking_peer import PAGE, AskingPeer
from tests.callers import Api, api, client
from tests.configs import LOCAL, table
from tests.conftest import Running, gateway_on, two_gateways
from tests.journeys.confirming import FREELY, principals
from tests.mcp.speakers import Speaker
from tests.peers import look_until, soon, until
from tests.peers_mcp import Era, mcp_peer
from tests.processes import gateway_process

ERAS: list[Era] = ["2025", "2026"]
ANN = {"action": "accept", "content": {"name": "Ann"}}
every_server = pytest.mark.parametrize("peer", ERAS, indirect=True)
TOOLS = [("2025", "shop_look"), ("2026", "shop_book")]  # a read and a write
each_tool = pytest.mark.parametrize(("peer", "tool"), TOOLS, indirect=["peer"])


@pytest.fixture
async def peer(
    request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AskingPeer]:
    # A server of the SDK whose client was killed wants to tell it so, for 5 seconds.
    monkeypatch.setattr("mcp.shared.jsonrpc_dispatcher._ABANDON_WRITE_TIMEOUT", 0.1)
    found = AskingPeer(tmp_path / "effects")
    async with mcp_peer(request.param, peer=found):
        yield found


def config(peer: AskingPeer, more: str = "", seconds: float = 30, **roles: str) -> str:
    rules = f"[permissions]\n{FREELY}\ntimeout_seconds = {seconds}\n"
    shop = peer.table("shop", operations={"look": {"access": "read"}})
    return principals(**roles) + LOCAL + table("demo", enabled=False) + rules + shop + more


class Ann:
    """One who is asked, and what she does about it."""

    def __init__(self, rest: Api) -> None:
        self.rest = rest
        self.speaker = self.speaking("2026", {"elicitation": {}})

    def speaking(self, *how: Any) -> Speaker:
        return Speaker(self.rest.http, f"{self.rest.base}/mcp", *how)

    async def call(self, tool: str, title: str = "Emma", **more: Any) -> dict[str, Any]:
        arguments = {"title": title, **more}
        result = await self.speaker.request("tools/call", {"name": tool, "arguments": arguments})
        return dict(result)

    async def answer(
        self, asked: dict[str, Any], tool: str, title: str = "Emma", answer: Any = ANN
    ) -> dict[str, Any]:
        params: dict[str, Any] = {"name": tool, "arguments": {"title": title}}
        params |= {"requestState": asked["requestState"]}
        if answer is not None:
            params |= {"inputResponses": dict.fromkeys(asked["inputRequests"], answer)}
        return dict(await self.speaker.request("tools/call", params))

    async def rows(self) -> list[tuple[str, str]]:
        _, found = await self.rest("GET", "/executions")
        return [(row["id"], row["status"]) for row in found["executions"]]


@asynccontextmanager
async def ann_at(url: str, name: str = "ann") -> AsyncIterator[Ann]:
    async with api(url, name) as rest:
        yield Ann(rest)


@asynccontextmanager
async def asked_at(folder: Path, text: str) -> AsyncIterator[tuple[Running, Ann]]:
    """A gateway that has listed its tools, and ann at it."""
    async with gateway_on(folder / "config.toml", text) as gateway, ann_at(gateway.url) as ann:
        await listed(gateway)
        yield gateway, ann


async def listed(*gateways: Running) -> None:
    for gateway in gateways:
        await until(partial(_has_tools, gateway), 20)


def _has_tools(gateway: Running) -> bool:
    return bool(gateway.app.gateway.snapshot.tools)


def outcome(result: dict[str, Any]) -> str:
    """The text of a result, or the code of its error."""
    error = (result.get("structuredContent") or {}).get("error")
    return str(error["code"] if error else result["content"][0]["text"])


def id_of(result: dict[str, Any]) -> str:
    return str(result["_meta"]["gateway/execution_id"])


@every_server
async def test_what_is_answered_twice_happens_once(peer: AskingPeer, tmp_path: Path) -> None:
    async with asked_at(tmp_path, config(peer)) as (_, ann):
        asked = await ann.call("shop_book")
        assert asked["resultType"] == "input_required"
        assert await ann.rows() == [(id_of(asked), "executing")]
        again = await ann.answer(asked, "shop_book", answer=None)
        assert again["inputRequests"] == asked["inputRequests"]
        answers = [ann.answer(asked, "shop_book") for _ in range(3)]
        results = [*await asyncio.gather(*answers), await ann.answer(asked, "shop_book")]
        ends = {(outcome(each), id_of(each)) for each in results}
        assert ends == {("accept Ann", id_of(asked))}
        assert await ann.rows() == [(id_of(asked), "completed")]
    assert peer.happened() == ["Emma Ann False"]


@every_server
async def test_an_answer_is_only_good_for_the_call_that_asked(
    peer: AskingPeer, tmp_path: Path
) -> None:
    async with asked_at(tmp_path, config(peer)) as (gateway, ann):
        async with ann_at(gateway.url, "bob") as bob:
            asked = await ann.call("shop_book")
            wrong = [
                await bob.answer(asked, "shop_book"),
                await ann.answer(asked, "shop_book", "Persuasion"),
                await ann.answer(asked, "shop_buy"),
            ]
        assert [outcome(each) for each in wrong] == ["invalid_arguments"] * 3
        assert peer.happened() == []
        assert outcome(await ann.answer(asked, "shop_book")) == "accept Ann"
    assert peer.happened() == ["Emma Ann False"]


@each_tool
async def test_who_never_answers_has_cancelled(peer: AskingPeer, tmp_path: Path, tool: str) -> None:
    async with asked_at(tmp_path, config(peer, seconds=1)) as (_, ann):
        asked = await ann.call(tool)
        ended = await ann.rest.execution(id_of(asked), "completed")
        assert ended["result"]["output"] == "cancel None"
        assert outcome(await ann.answer(asked, tool)) == "cancel None"
        assert await ann.rows() == [(id_of(asked), "completed")]
    assert peer.happened() == []


@every_server
async def test_who_never_answers_on_their_stream_has_cancelled(
    peer: AskingPeer, tmp_path: Path
) -> None:
    async def never(context: Any, params: Any) -> ElicitResult:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async with (
        asked_at(tmp_path, config(peer, seconds=1)) as (gateway, _),
        client(gateway.url, "ann", answer=never) as made,
    ):
        result = await made.call_tool("shop_book", {"title": "Emma"})
    assert getattr(result.content[0], "text", None) == "cancel None"
    assert peer.happened() == []


@pytest.mark.parametrize("peer", ["2025"], indirect=True)
async def test_a_client_hears_that_its_user_is_done_with_a_page(
    peer: AskingPeer, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []

    def open_page(question: dict[str, Any]) -> dict[str, Any]:
        asked.append(question)
        return {"action": "accept"}

    async with asked_at(tmp_path, config(peer)) as (_, ann):
        speaker = await ann.speaking("2025", {"elicitation": {"url": {}}}, open_page).meet()
        call = {"name": "shop_book", "arguments": {"title": "Emma", "page": True}}
        result = await speaker.request("tools/call", call)
        page = {"mode": "url", "message": "Pay", "url": PAGE, "elicitationId": "pay-1"}
        assert (outcome(result), asked) == ("accept None", [page])
        assert [said["params"] for said in speaker.heard] == [{"elicitationId": "pay-1"}]


@every_server
async def test_a_question_comes_through_a_meta_tool(peer: AskingPeer, tmp_path: Path) -> None:
    bundle = table("bundles.all", mode="meta", connections=["shop"], allow=["book"])
    text = config(peer, bundle + table("roles.buyer", bundles=["all"]), ann="buyer")
    asking = {"server_id": "shop", "tool_name": "book", "args": {"title": "Emma"}}
    async with asked_at(tmp_path, text) as (_, ann):
        call = {"name": "mcp_call_tool", "arguments": asking}
        asked = await ann.speaker.request("tools/call", call)
        answers = dict.fromkeys(asked["inputRequests"], ANN)
        again = {"requestState": asked["requestState"], "inputResponses": answers}
        result = await ann.speaker.request("tools/call", {**call, **again})
        assert (outcome(result), id_of(result)) == ("accept Ann", id_of(asked))
        assert await ann.rows() == [(id_of(asked), "completed")]
    assert peer.happened() == ["Emma Ann False"]


@pytest.mark.parametrize(
    ("peer", "tool", "status"),
    [("2026", "shop_look", "failed"), ("2025", "shop_book", "completed")],
    indirect=["peer"],
)
async def test_who_has_hung_up_is_not_asked(
    peer: AskingPeer, tmp_path: Path, tool: str, status: str
) -> None:
    async with asked_at(tmp_path, config(peer)) as (gateway, ann):
        call = asyncio.create_task(ann.call(tool, wait=True))
        await soon(peer.entered.wait())
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: gateway.app.mcp.figures()["calls_in_flight"] == 0)
        peer.release.set()
        assert await until_ended(ann) == [status]
    assert peer.happened() == []


async def until_ended(ann: Ann) -> list[str]:
    rows = await look_until(
        ann.rows, lambda rows: rows and "executing" not in [status for _, status in rows]
    )
    return [status for _, status in rows]


@each_tool
async def test_a_gateway_that_stops_cancels_what_it_asked(
    peer: AskingPeer, tmp_path: Path, tool: str
) -> None:
    async with asked_at(tmp_path, config(peer)) as (_, ann):
        asked = await ann.call(tool)
    async with asked_at(tmp_path, config(peer)) as (_, ann):
        late = await ann.answer(asked, tool)
        assert (outcome(late), id_of(late)) == ("invalid_arguments", id_of(asked))
        assert await ann.rows() == [(id_of(asked), "completed")]
    assert peer.happened() == []


@pytest.mark.parametrize(
    ("peer", "tool", "code", "statuses"),
    [
        ("2026", "shop_look", "busy", []),
        ("2025", "shop_book", "outcome_unknown", ["unknown"]),
    ],
    indirect=["peer"],
)
async def test_what_a_killed_gateway_asked_is_not_done_and_not_forgotten(
    peer: AskingPeer, tmp_path: Path, tool: str, code: str, statuses: list[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(config(peer), encoding="utf-8")
    async with gateway_process(file) as (process, url):
        async with ann_at(url) as ann:
            asked = await first_asked(ann, tool)
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with asked_at(tmp_path, config(peer)) as (_, ann):
        late = await ann.answer(asked, tool)
        assert (outcome(late), id_of(late)) == (code, id_of(asked))
        assert [status for _, status in await ann.rows()] == statuses
    assert peer.happened() == []


async def first_asked(ann: Ann, tool: str) -> dict[str, Any]:
    """The question of a gateway that may not have listed its tools yet."""
    await look_until(lambda: ann.rest("GET", "/tools"), lambda found: found[1]["total"])
    return await ann.call(tool)


@pytest.fixture
async def replicas(
    tmp_path: Path, store_url: str, peer: AskingPeer
) -> AsyncIterator[tuple[Running, Running]]:
    async with two_gateways(tmp_path, config(peer), store_url) as made:
        await listed(*made)
        yield made


@pytest.mark.parametrize(
    ("store_url", "peer", "tool"),
    [("sqlite", "2025", "shop_look"), ("postgresql", "2026", "shop_book")],
    indirect=["store_url", "peer"],
)
async def test_any_replica_takes_the_answer_however_long(
    replicas: tuple[Running, Running], peer: AskingPeer, tool: str
) -> None:
    one, two = replicas
    title = "Emma" * 3000  # more than a signal holds
    async with ann_at(one.url) as here, ann_at(two.url) as there:
        asked = await here.call(tool, title)
        results = [await there.answer(asked, tool, title), await there.answer(asked, tool, title)]
        assert [(outcome(each), id_of(each)) for each in results] == [
            ("accept Ann", id_of(asked))
        ] * 2
        assert await there.rows() == [(id_of(asked), "completed")]
        assert peer.happened() == [f"{title} Ann False"]
        words = "Emma " * 20_000  # of a client of 2025, which answers on a request of its own
        said = {"role": "assistant", "content": {"type": "text", "text": words}, "model": "m"}
        speaker = await here.speaking("2025", {"sampling": {}}, lambda _: said).meet()
        speaker.answers_to = f"{two.url}/mcp"
        call = {"name": "shop_look", "arguments": {"title": "Emma", "want": "sampling"}}
        result = await speaker.request("tools/call", call)
    assert (result["structuredContent"]["truncated"], result["isError"]) == (True, False)
    assert '"text":"m: Emma Emma' in result["structuredContent"]["preview"]


@pytest.mark.parametrize(
    ("store_url", "peer"),
    [("sqlite", "2026"), ("postgresql", "2025")],
    indirect=True,
)
async def test_a_replica_that_ended_is_not_waited_for(
    tmp_path: Path, store_url: str, peer: AskingPeer
) -> None:
    store = table("store", url=store_url, secret_key_file=f"{tmp_path}/secret.key")
    (tmp_path / "one").mkdir()
    async with gateway_on(tmp_path / "config.toml", config(peer) + store) as two:
        async with gateway_on(tmp_path / "one" / "config.toml", config(peer) + store) as one:
            await listed(one, two)
            async with ann_at(one.url) as ann:
                asked = await ann.call("shop_book")
        async with ann_at(two.url) as ann:
            assert outcome(await ann.answer(asked, "shop_book")) == "invalid_arguments"
            assert await ann.rows() == [(id_of(asked), "completed")]
    assert peer.happened() == []
