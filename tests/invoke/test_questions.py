"""What of a server's question reaches a client, and what of its answer reaches the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import UpstreamFailed
from gateway.invoke.caller import AbsentCaller
from gateway.invoke.questions import MAX_QUESTION_BYTES, asker, one_by_one
from gateway.invoke.redact import Redactor
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

    caller = AbsentCaller(Principal("ann"), askable=askable)
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
        ({**FORM, "message": "x" * MAX_QUESTION_BYTES}, FORMS, None),
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


async def test_what_can_not_be_declined_is_the_servers_fault() -> None:
    sampling = {"method": "sampling/createMessage", "params": {"maxTokens": 1}}
    with pytest.raises(UpstreamFailed):
        await asked(sampling, FORMS, {})
    put, answers = await asked(sampling, {"sampling": {}}, {"role": "assistant"})
    assert (put, answers) == ([sampling], {"q": {"role": "assistant"}})


def test_who_can_not_be_asked_has_no_asker() -> None:
    assert asker(AbsentCaller(Principal("ann"), askable=FORMS), Redactor([]), 5) is None


async def test_a_client_of_2025_is_asked_in_its_own_words() -> None:
    heard: list[dict[str, Any]] = []

    async def elicit(params: dict[str, Any]) -> dict[str, Any]:
        heard.append(params)
        return {"action": "accept"}

    questions = {"a": elicitation({"mode": "form", **FORM}), "b": elicitation(PAGE)}
    assert await one_by_one(elicit)(questions) == dict.fromkeys("ab", {"action": "accept"})
    assert heard == [FORM, {**PAGE, "elicitationId": heard[1]["elicitationId"]}]
