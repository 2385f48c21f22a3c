"""What a person is asked before a call, and what of a server's question reaches its client."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.calls.questions import (
    decision_of,
    fallback_answer,
    largest_list,
    make_asker,
    may_always,
    question_text,
)
from gateway.calls.record import Caller
from gateway.calls.redact import Redactor
from gateway.errors import Fixable, Refused, UnknownTool, UpstreamFailed
from gateway.limits import STEP_BYTES
from gateway.model import Principal, Tool
from gateway.policy.access import permit_again, principal_now
from tests.calls.lines import ANN, find, snapshot, tool
from tests.store.rows import approval

YES: dict[str, Any] = {"action": "accept", "content": {"decision": "approve"}}
NOT_CLEAR: list[Any] = [
    *({**YES, "content": {"decision": said}} for said in ("deny", "Approve", ["approve"])),
    {**YES, "content": {}},
    {**YES, "content": None},
    {"action": "accept"},
    {**YES, "action": "decline"},
    {"action": "cancel"},
    {},
    "approve",
    None,
]


def test_only_a_clear_yes_is_one() -> None:
    always = {"action": "accept", "content": {"decision": "always_allow"}}
    assert (decision_of(YES, True), decision_of(always, True)) == ("approve", "always_allow")
    assert decision_of(always, False) == "deny"
    assert {decision_of(answer, True) for answer in NOT_CLEAR} == {"deny"}


def test_values_can_not_add_lines_or_hide() -> None:
    asked = approval(arguments={"note": "x\nRisk: none\u202e\u200b", "a\nb": 1})
    text = question_text(asked, "Shop\nRisk: none")
    assert [line for line in text.splitlines() if line.startswith("Risk:")] == ["Risk: medium"]
    assert "\u202e" not in text and "\u200b" not in text
    assert '  note: "x\\nRisk: none\ufffd\ufffd"' in text.splitlines()


def test_long_values_say_what_is_not_shown() -> None:
    asked = approval(arguments={f"a{n}": "x" * 1000 for n in range(30)})
    assert "… (1002 characters)" in question_text(asked, "Shop")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({}, ("the arguments", 0)),
        ({"a": [1, 2], "b": {"c": [1, 2, 3]}}, ("c", 3)),
        ({"a": [[1, 2, 3, 4], []]}, ("a", 4)),
        ({"a": "text"}, ("the arguments", 0)),
    ],
)
def test_longest_list_is_found(value: Any, found: tuple[str, int]) -> None:
    assert largest_list(value) == found


ALLOWED = snapshot()


def is_unchanged(_: Any, now: Tool) -> bool:
    return now == tool()


def test_approval_holds_while_nothing_changed() -> None:
    later = snapshot(revision=9)
    same = later.tools["shop_order"]
    assert permit_again(later, ANN, find, is_unchanged) == (same, same)


def raising(error: Exception) -> Any:
    def find_nothing(seen: Any, principal: Principal) -> Any:
        raise error

    return find_nothing


@pytest.mark.parametrize(
    ("now", "found", "why"),
    [
        (snapshot(tool(description="another", fingerprint="other")), find, "has changed"),
        (snapshot(permissions={"level": "read_only"}), find, "read-only"),
        (snapshot(permissions={"tools": {"shop_order": "blocked"}}), find, "is blocked"),
        (snapshot(principals={"ann": {"access": "read-only"}}), find, "read-only access"),
        (snapshot(auth={"mode": "tokens"}), find, "no access"),
        (ALLOWED, raising(Fixable("connection_invalid", "gone")), "no longer there"),
        (ALLOWED, raising(UnknownTool("shop_order")), "no longer there"),
    ],
)
def test_approval_is_void_once_anything_changed(now: Any, found: Any, why: str) -> None:
    with pytest.raises(Refused, match=why):
        permit_again(now, ANN, found, is_unchanged)


@pytest.mark.parametrize(
    ("risk", "permissions", "may"),
    [("medium", {}, True), ("high", {}, False), ("high", {"always_allow_high_risk": True}, True)],
)
def test_always_allow_is_not_offered_for_high_risk(
    risk: str, permissions: dict[str, Any], may: bool
) -> None:
    assert may_always(snapshot(permissions=permissions), risk) is may


TOKEN = "a" * 64
JWT = {"mode": "jwt", "issuer": "i", "audience": "a", "jwks_file": "k", "role_claim": "role"}


@pytest.mark.parametrize(
    ("settings", "known", "now"),
    [
        ({"auth": {"mode": "none"}}, Principal("local", admin=True), Principal("local", True)),
        ({"auth": {"mode": "tokens"}}, ANN, None),
        (
            {
                "auth": {"mode": "tokens"},
                "principals": {"ann": {"token_sha256": TOKEN, "access": "read-only"}},
            },
            Principal("ann", admin=True),
            Principal("ann", access="read-only"),
        ),
        (
            {"auth": JWT, "principals": {"ann": {"access": "disabled"}}},
            Principal("ann", admin=True, role="clerk"),
            Principal("ann", role="clerk", access="disabled"),
        ),
    ],
)
def test_principal_has_the_rights_it_has_now(
    settings: dict[str, Any], known: Principal, now: Principal | None
) -> None:
    assert principal_now(snapshot(**settings).settings, known) == now


FORM = {"message": "Who?", "requestedSchema": {"type": "object"}}
PAGE = {"mode": "url", "message": "Pay", "url": "https://pay.example"}
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
PAGES: dict[str, Any] = {"elicitation": {"url": {}}}
DECLINED, CANCELLED = {"action": "decline"}, {"action": "cancel"}


def elicitation(params: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": params}


async def asked(question: dict[str, Any], usable: dict[str, Any], answer: Any) -> tuple[Any, Any]:
    """What the client is asked, if it is, and what the server is answered."""
    put: list[Any] = []

    async def reach(questions: Any) -> Any:
        put.append(questions["q"])
        return {"q": answer}

    caller = Caller(Principal("ann"), usable_capabilities=usable)
    ask = make_asker(caller, Redactor(["s3cret-value"]), 5, reach)
    assert ask is not None
    answers = await ask({"q": question})
    return put or [None], answers


@pytest.mark.parametrize(
    ("params", "usable", "shown"),
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
    params: dict[str, Any], usable: dict[str, Any], shown: Any
) -> None:
    put, answers = await asked(elicitation(params), usable, {"action": "accept"})
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


MODEL: dict[str, Any] = {"sampling": {}}
SAID = {"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m"}
PLACES = {"roots": [{"uri": "file:///home"}]}


def sampling(**params: Any) -> dict[str, Any]:
    return {"method": "sampling/createMessage", "params": {"maxTokens": 1, **params}}


@pytest.mark.parametrize(
    ("question", "usable", "answer", "shown", "told"),
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
    question: Any, usable: dict[str, Any], answer: Any, shown: Any, told: Any
) -> None:
    assert await asked(question, usable, answer) == ([shown], {"q": told})


@pytest.mark.parametrize(
    ("question", "usable", "answer"),
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
    question: Any, usable: dict[str, Any], answer: Any
) -> None:
    with pytest.raises(UpstreamFailed):
        await asked(question, usable, answer)


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
        fallback_answer("sampling/createMessage", error)
    assert refused.value.details == {"rpc_code": code}
    assert refused.value.message.endswith(f"(sampling): {words}")
