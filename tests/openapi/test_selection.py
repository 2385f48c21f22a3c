"""Which operations become tools, and the reason for each that does not."""

from __future__ import annotations

import pytest

from gateway.model import Override
from tests.definitions import Json, built, openapi, operation, rules, skip_reasons, swagger

_ADDRESS = {"type": "string", "x-ms-notification-url": True}


@pytest.mark.parametrize(("method", "mark", "reason"), rules("skipped"))
def test_marked_operations_are_skipped_with_their_reason(
    method: str, mark: Json, reason: str
) -> None:
    definition = swagger(
        {"/a": {method: operation(**mark)}, "/b": {"get": operation(operationId="fine")}},
        definitions={"Address": _ADDRESS},
        **{"x-ms-capabilities": {}},
    )

    build = built(definition)

    assert skip_reasons(build) == {"act": reason}
    assert [tool.operation for tool in build.tools] == ["fine"]


@pytest.mark.parametrize(("path", "reason"), rules("skipped_paths"))
def test_paths_that_cannot_be_called_are_skipped(path: str, reason: str) -> None:
    build = built(swagger({path: {"get": operation(**{"x-ms-summary": "x"})}}))

    assert skip_reasons(build) == {"act": reason}


def test_a_trigger_takes_its_subscription_along() -> None:
    trigger = operation(
        operationId="On", **{"x-ms-trigger": "single", "x-ms-notification": {"operationId": "Sub"}}
    )
    paths = {"/on": {"get": trigger}, "/sub": {"post": operation(operationId="Sub")}}

    assert skip_reasons(built(swagger(paths))) == {
        "On": "a trigger: it starts workflows and can't be called",
        "Sub": "it subscribes a trigger",
    }


def test_a_trigger_hint_and_the_word_subscription_are_ordinary() -> None:
    paths = {
        "/subscriptions/{id}": {"get": operation(operationId="a", **{"x-ms-trigger-hint": "x"})},
        "/b": {"head": operation(operationId="b")},
    }

    assert [tool.operation for tool in built(swagger(paths)).tools] == ["a", "b"]


@pytest.mark.parametrize(("marks", "left"), rules("revisions"))
def test_the_newest_revision_among_what_is_usable_stays(
    marks: dict[str, Json], left: list[str]
) -> None:
    paths = {f"/{n}": {"get": operation(operationId=n, **mark)} for n, mark in marks.items()}

    build = built(swagger(paths, **{"x-ms-capabilities": {}}))

    assert [tool.operation for tool in build.tools] == left


def test_configuration_chooses_by_glob_blocklist_and_danger() -> None:
    names = ["list_pets", "getPet", "deletePet", "adminAll", "purge"]
    paths: Json = {f"/{name}": {"get": operation(operationId=name)} for name in names}
    paths["/users/{id}"] = {"get": operation(operationId="readUser")}
    paths["/no/id"] = {"get": {"responses": {}}}

    build = built(
        openapi(paths),
        include=("*Pet*", "*_pets", "purge", "read*"),
        exclude=("delete*",),
        blocklist=("/users",),
        operations={"purge": Override(access="dangerous")},
    )

    assert [tool.operation for tool in build.tools] == ["list_pets", "getPet"]
    assert skip_reasons(build) == {
        "deletePet": "excluded by 'delete*'",
        "adminAll": "not among the included operations",
        "purge": "dangerous: never exposed",
        "readUser": "its path is on the blocklist (/users)",
        "/no/id": "not among the included operations",
    }


def test_an_operation_without_an_id_is_matched_by_its_generated_name() -> None:
    build = built(openapi({"/pets/{id}": {"get": {"responses": {}}}}), include=("get_pets_by_*",))

    assert [tool.name for tool in build.tools] == ["shop_get_pets_by_id"]


LOOKUP = {"x-ms-dynamic-values": {"operationId": "ListThings", "value-path": "id"}}


def test_what_look_ups_call_is_kept_but_never_listed() -> None:
    parameter = {"name": "thing", "in": "query", "type": "string", **LOOKUP}
    paths = {
        "/a": {"get": operation(operationId="Use", parameters=[parameter])},
        "/b": {"get": operation(operationId="ListThings", **{"x-ms-visibility": "internal"})},
        "/c": {"get": operation(operationId="Other", **{"x-ms-visibility": "internal"})},
    }

    build = built(swagger(paths))

    assert [tool.operation for tool in build.tools] == ["Use"]
    assert [(tool.operation, tool.name) for tool in build.hidden] == [
        ("ListThings", "shop_list_things")
    ]


def test_what_is_excluded_or_blocked_is_not_even_looked_up() -> None:
    paths = {
        "/a": {"get": operation(operationId="Use", **LOOKUP)},
        "/b": {"get": operation(operationId="ListThings")},
    }

    assert built(swagger(paths), exclude=("List*",)).hidden == ()
    assert built(swagger(paths), blocklist=("/b",)).hidden == ()


def test_microsofts_own_word_against_agents_raises_the_risk() -> None:
    (tool,) = built(swagger({"/a": {"get": operation(tags=["AgentHidden"])}})).tools

    assert (tool.access, tool.risk) == ("read", "high")


def test_one_bad_operation_does_not_fail_the_rest() -> None:
    paths: Json = {
        "/a": "text",
        "/b": {"get": "text"},
        "/c": {"get": operation(operationId="c", parameters=[7])},
        "/d": {"get": operation(operationId="d")},
        "/e": {"$ref": "#/nowhere"},
    }

    build = built(openapi(paths))

    assert [tool.operation for tool in build.tools] == ["d"]
    assert skip_reasons(build) == {
        "/a": "the path item is not an object",
        "/b": "the operation is not an object",
        "c": "a reference leads to something that is not an object",
        "/e": "reference leads nowhere: #/nowhere",
    }
