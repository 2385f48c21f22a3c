"""What a definition says in every operation is said once; what it says of one stays with it."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.model import Build
from tests.definitions import Json, built, openapi, operation

LOGIN = "Requires authentication, see https://docs.shop.example/login."
LIMITS = "You may make 100 requests a minute with one key"
GONE = "This operation is deprecated and its data is lost when it goes."
SOME = "Needs the scope that is called shop:orders:write."
TRACE = "Any text, by which the request can be found again in the logs."


def _operation(number: int, description: str, **more: object) -> Json:
    trace = {"name": "X-Trace", "in": "header", "schema": {"type": "string"}, "description": TRACE}
    shop = {**trace, "name": "shop", "in": "query", "required": True}
    own = {**trace, "name": "size", "in": "query", "description": f"{number} {TRACE}"}
    described = {"description": description} if description else {}
    return operation(operationId=f"act{number}", parameters=[trace, shop, own], **described, **more)


def _build(count: int = 10, **changes: Any) -> Build:
    """Operations that repeat themselves, each with a sentence of its own, and two without."""
    paths: Json = {}
    for number in range(count):
        own = f"<p>{LOGIN}</p>Does what number {number} does. {GONE}\n\n{LIMITS}\n\nAnd more."
        own += f" {SOME}" if number < count / 2 else ""
        paths[f"/{number}"] = {"get": _operation(number, own)}
    paths["/bare"] = {"get": _operation(98, f"{LOGIN}\n\n{LIMITS}")}
    paths["/named"] = {"get": _operation(99, LOGIN, summary="Names it")}
    return built(openapi(paths), **changes)


def test_what_every_operation_says_is_in_the_instructions_and_not_in_the_tools() -> None:
    build = _build()
    words = {tool.local_name: tool.description for tool in build.tools}

    assert words["act7"] == f"[Shop] Does what number 7 does. {GONE}\nAnd more."
    assert words["act2"] == f"[Shop] Does what number 2 does. {GONE}\nAnd more. {SOME}"
    assert words["act98"] == f"[Shop] {LOGIN}\n{LIMITS}"  # it has no other words
    assert words["act99"] == "[Shop] Names it"
    inputs = f"Inputs that several tools have:\n- `X-Trace`: {TRACE}"
    assert build.instructions == f"{LOGIN} {LIMITS}\n{inputs}"


def test_inputs_that_many_operations_share_are_described_once_unless_they_must_be_given() -> None:
    properties = orjson.loads(_build().tools[3].input_schema)["properties"]

    assert properties["X-Trace"] == {"type": "string"}
    assert properties["shop"]["description"] == TRACE
    assert properties["size"]["description"] == f"3 {TRACE}"


def test_few_operations_and_untrusted_sources_keep_all_their_words() -> None:
    for build in (_build(5), _build(trust="untrusted")):
        assert build.instructions == ""
        assert all(LOGIN in tool.description for tool in build.tools)
        assert all(TRACE in tool.input_schema.decode() for tool in build.tools)
