"""What an upstream asks while a call runs, put to the client that made the call.

It asks for words of the client's user (elicitation), for what the client's model says (sampling),
or for the folders the client works in (roots). Questions come by key, one from a server of the 2025
era, any number at once from later ones, and so do the answers. A client is only asked what it said
that it can answer. An elicitation that can't be put is declined, and no answer in time is a
`cancel`; the others have no such words, so there the server's request fails. Of a question and of
an answer nothing goes on but what the protocol says they hold, questions cleared of secrets.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.errors import UpstreamFailed
from gateway.invoke.caller import Ask, AskClient, Caller
from gateway.invoke.redact import Redactor
from gateway.policy.offering import elicitation_modes

ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"
ASKED_BY: Mapping[str, str] = {ELICIT: "elicitation", SAMPLE: "sampling", ROOTS: "roots"}
# What a question of each kind holds. `includeContext` would show one server what others said.
PARAMS: Mapping[str, Sequence[str]] = {
    SAMPLE: """messages modelPreferences systemPrompt temperature maxTokens stopSequences metadata
    tools toolChoice""".split(),
    ROOTS: (),
}
ANSWERS: Mapping[str, tuple[str, ...]] = {  # and an answer, the first of which it must have
    SAMPLE: ("content", "role", "model", "stopReason"),
    ROOTS: ("roots",),
}
OF_TOOLS = ("tools", "toolChoice")
MAX_QUESTION_BYTES = 65_536
MAX_MESSAGE_CHARS = 500
REFUSED = -1  # the protocol's code for a user who said no
CANCEL: dict[str, Any] = {"action": "cancel"}
DECLINE: Mapping[str, Any] = {"action": "decline"}

ByKey = Mapping[str, Any]


def asker(caller: Caller, redactor: Redactor, seconds: float, put: Ask | None = None) -> Ask | None:
    """How questions reach this caller within so many seconds; None: they don't.

    `put` is the way to a client that can't be asked on its request's own stream.
    """
    reach = put or (None if caller.ask is None else one_by_one(caller.ask))
    if reach is None or not caller.askable:
        return None

    async def ask(questions: ByKey) -> ByKey:
        cleared = {key: _plain(question) for key, question in redactor.json(questions).items()}
        check_offered(cleared, caller.askable)
        wanted = {k: q for k, q in cleared.items() if _can_be_put(q, caller.askable)}
        found = await _within(seconds, reach, wanted) if wanted else {}
        answers = {key: _answer(wanted[key]["method"], found.get(key)) for key in wanted}
        return {**dict.fromkeys(cleared.keys() - wanted.keys(), DECLINE), **answers}

    return ask


def one_by_one(ask_client: AskClient) -> Ask:
    """Asks each question on the stream of the client's own request."""

    async def ask(questions: ByKey) -> ByKey:
        return {
            key: await ask_client(each["method"], _of_2025(each["params"]))
            for key, each in questions.items()
        }

    return ask


def check_offered(questions: ByKey, askable: Mapping[str, Any]) -> None:
    """Raises where a server asks for what the client does not offer, and can't be declined."""
    for question in questions.values():
        method = str(question.get("method")) if isinstance(question, Mapping) else ""
        if method != ELICIT and not _is_offered(method, question, askable):
            raise UpstreamFailed(
                "upstream_error",
                "The server asks for something that this client does not offer",
                "Use a client that offers it (elicitation, sampling, roots).",
            )


def _is_offered(method: str, question: Mapping[str, Any], askable: Mapping[str, Any]) -> bool:
    offered, params = askable.get(ASKED_BY.get(method, "")), question.get("params")
    if method != SAMPLE or offered is None or "tools" in offered:
        return offered is not None
    return not isinstance(params, Mapping) or not any(name in params for name in OF_TOOLS)


def unanswered(method: str, error: Any = None) -> dict[str, Any]:
    """What counts as the answer of a client that gave none, or an error; raises if nothing does."""
    if method == ELICIT:
        return CANCEL
    given = error if isinstance(error, Mapping) else {}
    code, said = given.get("code"), given.get("message")
    words = said[:MAX_MESSAGE_CHARS] if isinstance(said, str) else "no answer came"
    raise UpstreamFailed(
        "upstream_error",
        f"The client did not give what the server asked it for ({ASKED_BY[method]}): {words}",
        "Allow it in the client, or use another tool.",
        rpc_code=code if isinstance(code, int) else REFUSED,
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
    if (method := found.get("method")) != ELICIT:
        names = PARAMS.get(str(method), ())
        return {"method": method, "params": {k: v for k, v in params.items() if k in names}}
    mode = "url" if params.get("mode") == "url" else "form"
    fields = ("url", "elicitationId") if mode == "url" else ("requestedSchema",)
    kept = {name: params[name] for name in fields if name in params}
    message = str(params.get("message", ""))
    return {"method": ELICIT, "params": {"mode": mode, "message": message, **kept}}


def _of_2025(params: Mapping[str, Any]) -> dict[str, Any]:
    """A question in the words of 2025: a form is not named as one, a page has an id."""
    if params.get("mode") == "url":
        return {"elicitationId": secrets.token_hex(16), **params}
    return {key: value for key, value in params.items() if key != "mode"}


def _answer(method: str, answer: Any) -> Any:
    """An answer as it goes to the server; what is none is a cancel, where that exists."""
    given = answer if isinstance(answer, Mapping) else {}
    if method == ELICIT:
        return _elicited(given)
    names = ANSWERS[method]
    if names[0] not in given:
        return unanswered(method)
    return {name: given[name] for name in names if name in given}


def _elicited(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if answer.get("action") not in ("accept", "decline"):
        return CANCEL
    content = answer.get("content")
    if answer["action"] == "decline" or not isinstance(content, Mapping):
        return {"action": answer["action"]}
    return {"action": "accept", "content": content}
