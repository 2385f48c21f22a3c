"""What an upstream asks while a call runs, put to the user of the client that made the call.

Questions come by key, one from a server of the 2025 era, any number at once from later ones, and so
do the answers. A client is only asked what it said that it can answer; the rest is declined, or is
the server's fault where declining does not exist. No answer in time is a `cancel`. Of a question
and of an answer nothing goes on but what the protocol says they hold, cleared of secrets.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.errors import UpstreamFailed
from gateway.invoke.caller import Ask, Caller, Elicit
from gateway.invoke.redact import Redactor
from gateway.policy.offering import elicitation_modes

ELICIT = "elicitation/create"
ASKED_BY: Mapping[str, str] = {
    ELICIT: "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
MAX_QUESTION_BYTES = 65_536
CANCEL: Mapping[str, Any] = {"action": "cancel"}
DECLINE: Mapping[str, Any] = {"action": "decline"}

ByKey = Mapping[str, Any]


def asker(caller: Caller, redactor: Redactor, seconds: float, put: Ask | None = None) -> Ask | None:
    """How questions reach this caller within so many seconds; None: they don't.

    `put` is the way to a client that can't be asked on its request's own stream.
    """
    reach = put or (None if caller.elicit is None else one_by_one(caller.elicit))
    if reach is None or not caller.askable:
        return None

    async def ask(questions: ByKey) -> ByKey:
        cleared = {key: _plain(question) for key, question in redactor.json(questions).items()}
        check_offered(cleared, caller.askable)
        wanted = {k: q for k, q in cleared.items() if _can_be_put(q, caller.askable)}
        found = await _within(seconds, reach, wanted) if wanted else {}
        answers = {key: _answer(wanted[key], found.get(key)) for key in wanted}
        declined = dict.fromkeys(cleared.keys() - wanted.keys(), DECLINE)
        return {**declined, **{key: said for key, said in answers.items() if said is not None}}

    return ask


def one_by_one(elicit: Elicit) -> Ask:
    """Asks each question on the stream of the client's own request."""

    async def ask(questions: ByKey) -> ByKey:
        return {key: await elicit(_of_2025(each["params"])) for key, each in questions.items()}

    return ask


def check_offered(questions: ByKey, askable: Mapping[str, Any]) -> None:
    """Raises where a server asks for what the client does not offer, and can't be declined."""
    for question in questions.values():
        method = str(question.get("method")) if isinstance(question, Mapping) else ""
        if method != ELICIT and ASKED_BY.get(method) not in askable:
            raise UpstreamFailed(
                "upstream_error",
                "The server asks for something that this client does not offer, or not through"
                " here",
                "Use a client that can be asked, or connect it to the server directly.",
            )


async def _within(seconds: float, reach: Ask, wanted: ByKey) -> ByKey:
    try:
        async with asyncio.timeout(seconds):
            return await reach(wanted)
    except TimeoutError:
        return {}


def _can_be_put(question: Mapping[str, Any], askable: Mapping[str, Any]) -> bool:
    if question["method"] != ELICIT:
        return True
    params, modes = question["params"], elicitation_modes(askable)
    name, kind = ("url", str) if params["mode"] == "url" else ("requestedSchema", dict)
    is_whole = isinstance(params.get(name), kind)
    return is_whole and params["mode"] in modes and _is_small(params)


def _is_small(params: Mapping[str, Any]) -> bool:
    try:
        return len(orjson.dumps(params)) <= MAX_QUESTION_BYTES
    except TypeError:  # nested too deeply
        return False


def _plain(question: Any) -> dict[str, Any]:
    """A question without what belongs to its hop."""
    found = question if isinstance(question, Mapping) else {}
    params = found.get("params")
    params = params if isinstance(params, Mapping) else {}
    if found.get("method") != ELICIT:
        return {"method": found.get("method"), "params": params}
    mode = "url" if params.get("mode") == "url" else "form"
    names = ("url", "elicitationId") if mode == "url" else ("requestedSchema",)
    kept = {name: params[name] for name in names if name in params}
    message = str(params.get("message", ""))
    return {"method": ELICIT, "params": {"mode": mode, "message": message, **kept}}


def _of_2025(params: Mapping[str, Any]) -> dict[str, Any]:
    """A question in the words of 2025: a form is not named as one, a page has an id."""
    if params["mode"] == "form":
        return {key: value for key, value in params.items() if key != "mode"}
    return {"elicitationId": secrets.token_hex(16), **params}


def _answer(question: Mapping[str, Any], answer: Any) -> Any:
    """An answer as it goes to the server; what is none is a cancel, where that exists."""
    if question["method"] != ELICIT:
        return answer
    if not isinstance(answer, Mapping) or answer.get("action") not in ("accept", "decline"):
        return CANCEL
    content = answer.get("content")
    if answer["action"] == "decline" or not isinstance(content, Mapping):
        return {"action": answer["action"]}
    return {"action": "accept", "content": content}
