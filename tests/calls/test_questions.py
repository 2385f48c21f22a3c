"""What of a server's question reaches a client, and what of its answer reaches the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.calls.questions import asker, one_by_one, unanswered
from gateway.calls.record import Caller
from gateway.calls.redact import Redactor
from gateway.errors import UpstreamFailed
from gateway.limits import STEP_BYTES
from gateway.model import Principal

FORM = {"message": "Who?", "requestedSchema": {"type": "object"}}
PAGE = {"mode": "url", "message": "Pay", "url": "https://pay.example"}
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
PAGES: dict[str, Any] = {"elicitation": {"url": {}}}
DECLINED, CANCELLED = {"action": "decline"}, {"action": "cancel"}


def elicitation(params: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": params}


async def asked(
    question: dict[str, Any], askable: dict[str, Any], answer: Any, seconds: float = 5
) -> tuple[Any, Any]:
    """What the client is asked, if it is, and what the server is answered."""
    put: list[Any] = []

    async def reach(questions: Any) -> Any:
        put.append(questions["q"])
        return {"q": await answer if asyncio.isfuture(answer) else answer}

    caller = Caller(Principal("ann"), askable=askable)
    ask = asker(caller, Redactor(["s3cret-value"]), seconds, reach)
    assert ask is not None
    answers = await ask({"q": question})
    return put or [None], answers


@pytest.mark.parametrize(
    ("params", "askable", "shown"),
    [
        (FORM, FORMS, {"mode": "form", **FORM}),
        (FORM, {"elicitation": {}}, {"mode": "form", **FORM}),
        (FORM, PAGES, None),
        (PAGE, PAGES, PAGE),
        (PAGE, FORMS, None),
        ({**PAGE, "elicitationId": "7"}, PAGES, {**PAGE, "elicitationId": "7"}),
        ({**FORM, "_meta": {"a": 1}, "task": {}}, FORMS, {"mode": "form", **FORM}),
        ({"message": "no form"}, FORMS, None),
        ({"mode": "url", "url": 7}, PAGES, None),
        ({**FORM, "message": "x" * STEP_BYTES}, FORMS, None),
        (
            {**FORM, "message": "is it s3cret-value"},
            FORMS,
            {"mode": "form", **FORM} | {"message": "is it [redacted]"},
        ),
    ],
)
async def test_a_client_is_asked_what_it_can_answer_and_nothing_else(
    params: dict[str, Any], askable: dict[str, Any], shown: Any
) -> None:
    put, answers = await asked(elicitation(params), askable, {"action": "accept"})
    assert put == [None if shown is None else elicitation(shown)]
    assert answers == {"q": DECLINED if shown is None else {"action": "accept"}}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            {"action": "accept", "content": {"a": 1}, "_meta": {}},
            {"action": "accept", "content": {"a": 1}},
        ),
        ({"action": "decline", "content": {"a": 1}}, DECLINED),
        (CANCELLED, CANCELLED),
        ({"action": "perhaps"}, CANCELLED),
        ({}, CANCELLED),
        (None, CANCELLED),
    ],
)
async def test_what_is_no_answer_is_a_cancel(answer: Any, told: dict[str, Any]) -> None:
    assert (await asked(elicitation(FORM), FORMS, answer))[1] == {"q": told}


async def test_no_answer_in_time_is_a_cancel() -> None:
    never = asyncio.get_running_loop().create_future()
    assert (await asked(elicitation(FORM), FORMS, never, seconds=0.01))[1] == {"q": CANCELLED}


MODEL: dict[str, Any] = {"sampling": {}}
SAID = {"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m"}
PLACES = {"roots": [{"uri": "file:///home"}]}


def sampling(**params: Any) -> dict[str, Any]:
    return {"method": "sampling/createMessage", "params": {"maxTokens": 1, **params}}


@pytest.mark.parametrize(
    ("question", "askable", "answer", "shown", "told"),
    [
        (sampling(), MODEL, SAID, sampling(), SAID),
        (sampling(), MODEL, {**SAID, "_meta": {}, "resultType": "complete"}, sampling(), SAID),
        (sampling(_meta={}, task={}, includeContext="allServers"), MODEL, SAID, sampling(), SAID),
        (
            sampling(systemPrompt="is it s3cret-value"),
            MODEL,
            SAID,
            sampling(systemPrompt="is it [redacted]"),
            SAID,
        ),
        (sampling(tools=[]), {"sampling": {"tools": {}}}, SAID, sampling(tools=[]), SAID),
        (
            {"method": "roots/list", "params": {"_meta": {}}},
            {"roots": {}},
            {**PLACES, "_meta": {}},
            {"method": "roots/list", "params": {}},
            PLACES,
        ),
    ],
)
async def test_a_clients_model_and_folders_are_asked_for_and_answered(
    question: Any, askable: dict[str, Any], answer: Any, shown: Any, told: Any
) -> None:
    assert await asked(question, askable, answer) == ([shown], {"q": told})


@pytest.mark.parametrize(
    ("question", "askable", "answer"),
    [
        (sampling(), FORMS, SAID),
        (sampling(tools=[]), MODEL, SAID),
        ({"method": "roots/list"}, MODEL, PLACES),
        ({"method": "tools/list"}, MODEL, {}),
        (sampling(), MODEL, None),
        (sampling(), MODEL, {"action": "accept"}),
        ({"method": "roots/list"}, {"roots": {}}, SAID),
    ],
)
async def test_what_is_not_offered_or_not_answered_and_can_not_be_declined_fails(
    question: Any, askable: dict[str, Any], answer: Any
) -> None:
    with pytest.raises(UpstreamFailed):
        await asked(question, askable, answer)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        ({"code": -7, "message": "User said no"}, -7, "User said no"),
        ({"code": "x"}, -1, "no answer came"),
        (None, -1, "no answer came"),
    ],
)
def test_a_clients_refusal_keeps_its_code_and_its_words(error: Any, code: int, words: str) -> None:
    with pytest.raises(UpstreamFailed) as refused:
        unanswered("sampling/createMessage", error)
    assert refused.value.details == {"rpc_code": code}
    assert refused.value.message.endswith(f"(sampling): {words}")


def test_who_can_not_be_asked_has_no_asker() -> None:
    assert asker(Caller(Principal("ann"), askable=FORMS), Redactor([]), 5) is None


async def test_a_client_of_2025_is_asked_in_its_own_words() -> None:
    heard: list[dict[str, Any]] = []

    async def elicit(method: str, params: dict[str, Any]) -> dict[str, Any]:
        heard.append(params)
        return {"action": "accept"}

    questions = {"a": elicitation({"mode": "form", **FORM}), "b": elicitation(PAGE)}
    assert await one_by_one(elicit)(questions) == dict.fromkeys("ab", {"action": "accept"})
    assert heard == [FORM, {**PAGE, "elicitationId": heard[1]["elicitationId"]}]
