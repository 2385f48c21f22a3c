"""The protocol's rules, apart from what carries them: eras, envelopes, questions, results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest

from gateway.errors import Fixable, UpstreamFailed
from gateway.limits import MAX_ROUNDS
from gateway.upstream.protocol import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    Hooks,
    Peer,
    RpcFailed,
    answer_error,
    encode_message,
    negotiate,
    request_message,
    timeout_error,
    unreachable_error,
    without_envelope,
)
from gateway.upstream.session import NOT_OFFERED, answer, ask_until_complete, extend_on_progress
from tests.raising import raises

MODERN = Peer("2026", "2026-07-28")
HANDSHAKE = Peer("2025", "2025-11-25")
DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
INITIALIZED = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s"}}
UNKNOWN = RpcFailed("up", {"code": -32601, "message": "Method not found"})
OTHER_VERSION = RpcFailed("up", {"code": -32022, "message": "Unsupported"})
SLOW = timeout_error("up", 10, sent=True)
DOWN = unreachable_error("up", "is down", sent=False)
FORBIDDEN = answer_error("up", "says no", status=403)
ANY_STATUS = answer_error("up", "says no", status=400)


FIRST_ONE = ["discover", "initialize"]  # and then the other


class Script:
    """Answers each method with the next thing that is written down for it."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(
        self, method: str, params: Mapping[str, Any], peer: Peer, seconds: float
    ) -> dict[str, Any]:
        self.asked.append(method)
        found = self.answers[method.replace("server/", "")].pop(0)
        if isinstance(found, Exception):
            raise found
        return dict(found)


@pytest.mark.parametrize(
    ("remembered", "discover", "initialize", "era", "asked"),
    [
        (None, [DISCOVERED], [], "2026", ["discover"]),
        ("2026", [DISCOVERED], [], "2026", ["discover"]),
        ("2025", [], [INITIALIZED], "2025", ["initialize"]),
        (None, [UNKNOWN], [INITIALIZED], "2025", FIRST_ONE),
        (None, [ANY_STATUS], [INITIALIZED], "2025", FIRST_ONE),
        (None, [SLOW], [INITIALIZED], "2025", FIRST_ONE),
        (None, [{}], [INITIALIZED], "2025", FIRST_ONE),
        (None, [{"supportedVersions": ["2025-11-25"]}], [INITIALIZED], "2025", FIRST_ONE),
        ("2025", [DISCOVERED], [OTHER_VERSION], "2026", ["initialize", "discover"]),
        (None, [SLOW, DISCOVERED], [OTHER_VERSION], "2026", [*FIRST_ONE, "discover"]),
    ],
)
async def test_upstream_is_met_in_the_era_it_speaks(
    remembered: Any, discover: list[Any], initialize: list[Any], era: str, asked: list[str]
) -> None:
    script = Script(discover=discover, initialize=initialize)
    assert (await negotiate(script, remembered, 30)).era == era
    assert [method.removeprefix("server/") for method in script.asked] == asked


@pytest.mark.parametrize(
    ("discover", "initialize", "code"),
    [
        ([DOWN], [], "upstream_unreachable"),
        ([FORBIDDEN], [], "upstream_error"),
        ([UNKNOWN], [UNKNOWN], "upstream_error"),
        ([UNKNOWN], [DOWN], "upstream_unreachable"),
        ([UNKNOWN], [{"protocolVersion": "1999-01-01"}], "upstream_error"),
        ([OTHER_VERSION, OTHER_VERSION], [OTHER_VERSION], "upstream_error"),
    ],
)
async def test_outage_says_nothing_about_eras(
    discover: list[Any], initialize: list[Any], code: str
) -> None:
    with raises(UpstreamFailed, code=code):
        await negotiate(Script(discover=discover, initialize=initialize), None, 30)


ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": CLIENT_INFO,
    "io.modelcontextprotocol/clientCapabilities": CLIENT_CAPABILITIES,
}
THEIRS = {
    "progressToken": "theirs",
    "io.modelcontextprotocol/clientInfo": {"name": "theirs"},
    "traceparent": "00-1",
}


async def ignored(done: float, total: float | None, text: str | None) -> None:
    """Progress that nobody looks at."""


@pytest.mark.parametrize(
    ("peer", "meta", "progress", "sent"),
    [
        (HANDSHAKE, {}, False, None),
        (HANDSHAKE, {}, True, {"progressToken": 3}),
        (HANDSHAKE, THEIRS, False, {"traceparent": "00-1"}),
        (MODERN, {}, False, ENVELOPE),
        (MODERN, THEIRS, True, {"traceparent": "00-1", "progressToken": 3, **ENVELOPE}),
    ],
)
def test_request_carries_our_envelope_and_nothing_of_the_clients(
    peer: Peer, meta: dict[str, Any], progress: bool, sent: dict[str, Any] | None
) -> None:
    hooks = Hooks(progress=ignored if progress else None)
    message = request_message(3, "tools/list", {"cursor": "c", "_meta": meta}, peer, hooks)
    params = {"cursor": "c"} if sent is None else {"cursor": "c", "_meta": sent}
    assert message == {"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": params}


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"method": "ping"}, {"result": {}}),
        ({"method": "elicitation/create", "params": {}}, {"result": {"action": "decline"}}),
        (
            {"method": "sampling/createMessage"},
            {"error": {"code": -32601, "message": f"The upstream {NOT_OFFERED}"}},
        ),
        ({"method": "x"}, {"error": {"code": -32601, "message": f"The upstream {NOT_OFFERED}"}}),
    ],
)
async def test_every_question_of_an_upstream_gets_an_answer(
    question: dict[str, Any], said: dict[str, Any]
) -> None:
    assert await answer({"id": "q1", **question}, None) == {"jsonrpc": "2.0", "id": "q1", **said}


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        ({"content": [], "resultType": "complete"}, {"content": []}),
        ({"resultType": "input_required"}, {"resultType": "input_required"}),
        ({"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s"}}}, {}),
        (
            {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s"}, "a": 1}},
            {"_meta": {"a": 1}},
        ),
        ({"_meta": {}}, {"_meta": {}}),
    ],
)
def test_result_loses_only_what_belongs_to_this_hop(
    result: dict[str, Any], kept: dict[str, Any]
) -> None:
    assert without_envelope(deepcopy(result), "2026") == kept
    kept.pop("resultType", None)
    assert without_envelope(result, "2025") == kept


async def test_progress_gives_a_request_its_seconds_again_and_never_fewer() -> None:
    loop = asyncio.get_running_loop()

    async def progress(done: float, total: float | None, text: str | None) -> None:
        told.append(done)

    async def ask(questions: Mapping[str, Any]) -> Mapping[str, Any]:
        await told_of(2, None, None)  # while a person thinks there is no end to put off
        return {}

    told: list[float] = []
    async with asyncio.timeout(10) as limit:
        hooks = extend_on_progress(Hooks(progress, ask), limit, 20.0, 60.0)
        began = loop.time()
        assert hooks.progress is not None and hooks.ask is not None
        told_of = hooks.progress
        await told_of(1, None, None)
        assert began + 20 <= (limit.when() or 0) <= loop.time() + 20
        await hooks.ask({})
        limit.reschedule(began + 61)  # as where a person took long
        await told_of(3, None, None)
        assert limit.when() == began + 61
        limit.reschedule(began + 5)
        await extend_on_progress(Hooks(progress), limit, 20.0, 10.0).progress(4, None, None)  # type: ignore[misc]
        assert (limit.when() or 0) <= loop.time() + 10
    assert told == [1, 2, 3, 4]


async def test_upstream_that_never_stops_asking_is_given_up() -> None:
    sent: list[Mapping[str, Any]] = []
    question = {"method": "elicitation/create", "params": {}}

    async def send(params: Mapping[str, Any]) -> dict[str, Any]:
        sent.append(params)
        return {"resultType": "input_required", "inputRequests": {"q": question}}

    with raises(UpstreamFailed, code="upstream_error"):
        await ask_until_complete(send, {"name": "t"}, None, "up")
    assert sent[0] == {"name": "t"}
    assert sent[1:] == [{"name": "t", "inputResponses": {"q": {"action": "decline"}}}] * (
        MAX_ROUNDS - 1
    )


async def test_upstream_that_asks_for_what_is_not_offered_is_refused() -> None:
    async def send(params: Mapping[str, Any]) -> dict[str, Any]:
        question = {"method": "sampling/createMessage", "params": {}}
        return {"resultType": "input_required", "inputRequests": {"q": question}}

    with raises(UpstreamFailed, message=f"up {NOT_OFFERED}"):
        await ask_until_complete(send, {"name": "t"}, None, "up")


def test_words_of_an_upstreams_error_are_bounded_and_visible() -> None:
    error = RpcFailed("up", {"code": "x", "message": "a\u200bb" + "c" * 1000})
    assert error.message.startswith("up refused the request: abccc")
    assert len(error.message) <= 530
    assert RpcFailed("up", None).message == "up refused the request: no reason given"


@pytest.mark.parametrize("value", [2**70, [[]]])
def test_arguments_that_json_cannot_hold_are_the_callers_to_mend(value: Any) -> None:
    for _ in range(300):
        value = [value]
    with raises(Fixable, code="invalid_arguments"):
        encode_message({"params": {"arguments": {"a": value}}})
