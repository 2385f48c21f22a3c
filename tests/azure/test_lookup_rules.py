"""The forms a look-up is written in, and that every one in real definitions can be followed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.azure.lookup_rules import (
    MISSING,
    Argument,
    FolderPart,
    KnownInputs,
    Literal,
    Reference,
    Rule,
    Step,
    call_of,
    entry_of,
    is_parent,
    items_of,
    schema_step,
    values_rule,
    walk,
)
from gateway.errors import DefinitionUnreadable, Fixable
from gateway.model import Source
from gateway.openapi.build import build_openapi
from tests.definitions import CORPUS, FIXTURES


def test_the_new_form_goes_before_the_old_one() -> None:
    rules = {
        "x-ms-dynamic-values": {"operationId": "Old", "value-path": "id"},
        "x-ms-dynamic-list": {
            "operationId": "New",
            "itemsPath": "value",
            "itemValuePath": "id",
            "parameters": {
                "a": {"parameterReference": "body/x/y"},
                "b": {"value": None},
                "c": "text",
                "d": {"parameter": "p"},
            },
        },
    }
    arguments: dict[str, Argument] = {
        "a": Reference(("body", "x", "y")),
        "b": Literal(None),
        "c": Literal("text"),
        "d": Reference(("p",)),
    }
    assert values_rule("it", rules) == Rule(Step("New", arguments, "value", "id", "id"))


def test_a_file_picker_takes_what_the_inputs_own_rule_gives() -> None:
    picker = {
        "open": {"operationId": "Open", "parameters": {"dataset": {"parameter": "dataset"}}},
        "browse": {"operationId": "Browse", "parameters": {"id": {"value-property": "Id"}}},
        "value-collection": "value",
        "value-title": "DisplayName",
        "value-folder-property": "IsFolder",
    }
    values = {
        "capability": "file-picker",
        "parameters": {"dataset": "default", "isFolder": False},
        "value-path": "Path",
    }
    rules = {
        "x-ms-dynamic-values": values,
        "x-ms-capabilities": {"file-picker": picker},
    }
    ways = ("value", "Path", "DisplayName", "IsFolder")
    assert values_rule("file", rules) == Rule(
        Step("Open", {"dataset": Literal("default")}, *ways),
        Step("Browse", {"id": FolderPart("Id")}, *ways),
        parents=False,
        leaves=True,
    )


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"x-ms-dynamic-values": {"builtInOperation": "AadGraph.GetUsers"}}, "directory"),
        ({"x-ms-dynamic-values": {"value-path": "id"}}, "does not say"),
        ({"x-ms-dynamic-tree": {"open": {}}}, "does not say"),
        ({}, "does not say"),
    ],
)
def test_a_rule_that_cannot_be_followed_says_why(rules: dict[str, Any], words: str) -> None:
    with pytest.raises(Fixable, match=words):
        values_rule("it", rules)


@pytest.mark.parametrize(
    ("answer", "path", "items"),
    [
        ({"value": [1]}, "value", [1]),
        ({"a": {"b": [2]}}, "a/b", [2]),
        ([3], "", [3]),
        ({"other": [4]}, "value", [4]),
        ({"a": {"list": [5]}}, "a", [5]),
        ({"nothing": 6}, "value", ()),
        (None, "value", ()),
    ],
)
def test_items_are_where_the_rule_says_or_in_the_first_list(
    answer: object, path: str, items: object
) -> None:
    assert items_of(answer, path) == items


@pytest.mark.parametrize(
    ("item", "said", "folder"),
    [
        ({"IsFolder": True}, "(IsFolder eq true)", True),
        ({"IsFolder": False}, "(IsFolder eq true)", False),
        ({"kind": "dir"}, "kind eq 'dir'", True),
        ({"IsFolder": True}, "IsFolder", True),
        ({}, "(IsFolder eq true)", False),
        ({"IsFolder": True}, "", False),
    ],
)
def test_a_folder_is_told_by_its_property(item: Any, said: str, folder: bool) -> None:
    assert is_parent(item, said) is folder


def test_plain_items_are_their_own_value_and_title() -> None:
    rule = Rule(Step("List"))
    assert entry_of("red", rule.first, rule) == {"value": "red", "title": "red"}
    assert entry_of({"x": 1}, Step("List", value="id"), rule) is None


def test_a_path_leads_into_lists_and_objects_or_nowhere() -> None:
    assert walk({"a": [{"b/c": 1}]}, ["a", "0", "b/c"]) == 1
    assert walk({"a": 1}, "a/b") is MISSING


def definitions() -> list[Path]:
    ours = [FIXTURES / "openapi" / name for name in ("office365.json", "teams.json")]
    return ours + [
        path
        for path in sorted(CORPUS.glob("*.json"))
        if path.name.startswith(("arm-", "pfx-", "ppc-"))
    ]


def possible_steps(rules: dict[str, Any]) -> Iterator[Step]:
    with suppress(Fixable):
        rule = values_rule("", rules)
        yield from (step for step in (rule.first, rule.below) if step)
    if (step := schema_step("", rules)) is not None:
        yield step


@pytest.mark.parametrize("path", definitions(), ids=lambda path: path.name)
def test_every_look_up_of_an_operation_that_is_there_can_be_made(path: Path) -> None:
    source = Source("c", "openapi", "C", "c_", base_url="https://api.example")
    try:
        build = build_openapi(path.read_bytes(), source)
    except DefinitionUnreadable:
        return
    by_id = {tool.operation: tool for tool in (*build.tools, *build.hidden)}
    for tool in build.tools:
        for argument, rules in orjson.loads(tool.lookups or b"{}").items():
            for step in possible_steps(rules):
                if (target := by_id.get(step.operation)) is None:
                    continue  # the look-up itself will say so
                everything = orjson.loads(tool.input_schema)["properties"]
                known = KnownInputs(tool, dict.fromkeys(everything, "x"), {}, node="x")
                call = call_of(step, target, known, argument)
                required = orjson.loads(target.input_schema).get("required", [])
                assert set(required) <= set(call.arguments), (tool.operation, argument)
            schema_step(argument, rules)
