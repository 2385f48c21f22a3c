"""Arguments that a schema would take for ever to check are refused; others pass as they did."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.calls.arguments import check_arguments
from gateway.errors import Fixable

N = {"$ref": "#/$defs/N"}


def recursive(**more: Any) -> dict[str, Any]:
    return {"properties": {"v": N}, "$defs": {"N": {"type": "object", **more}}}


def twice(key: str, **inner: Any) -> dict[str, Any]:
    return recursive(properties={"v": N}, **{key: [inner, inner]})


def chain(keyword: str, levels: int) -> dict[str, Any]:
    """Each part twice the next, without going in a circle."""
    parts: dict[str, Any] = {
        f"S{n}": {keyword: [{"$ref": f"#/$defs/S{n + 1}"}] * 2} for n in range(levels)
    }
    return {
        "properties": {"v": {"$ref": "#/$defs/S0"}},
        "$defs": {**parts, f"S{levels}": {"type": "string"}},
    }


def nested(levels: int, inside: Any = 1) -> Any:
    for _ in range(levels):
        inside = {"v": inside}
    return {"v": inside}


WORD = {"$anchor": "n", "allOf": [{"properties": {"v": {"$ref": "#n"}}}] * 2}
PLACE = {"$id": "http://a.example/n", "allOf": [{"properties": {"v": {"$ref": "n"}}}] * 2}
HOSTILE = {
    "anyOf": twice("anyOf", properties={"v": N}),
    "oneOf": twice("oneOf", properties={"v": N}),
    "allOf": twice("allOf", properties={"v": N}),
    "patterns": recursive(patternProperties={"v": N, "^v": N, ".": N}),
    "not": recursive(properties={"v": N}, **{"not": {"properties": {"v": N}}}),
    "if": recursive(properties={"v": N}, **{"if": {"properties": {"v": N}}}),
    "dependent": recursive(properties={"v": N}, dependentSchemas={"v": {"properties": {"v": N}}}),
    "anchor": {"properties": {"v": WORD}},
    "place": {
        "properties": {"v": {**PLACE, "allOf": [{"properties": {"v": N}}] * 2}},
        **twice("allOf", properties={"v": N}),
    },
    "root": {
        "properties": {"v": {"$ref": "#"}},
        "allOf": [{"properties": {"v": {"$ref": "#"}}}] * 2,
    },
    "encoded": {
        "properties": {"v": {"$ref": "#/%24defs/a~1b"}},
        "$defs": {"a/b": {"anyOf": [{"properties": {"v": {"$ref": "#/$defs/a~1b"}}}] * 3}},
    },
}


def check(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    check_arguments(orjson.dumps(schema), arguments)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("inside", [1, {}, [], "x"])
def test_what_multiplies_with_every_level_passes_or_is_refused_at_once(
    name: str, inside: Any
) -> None:
    try:
        check(HOSTILE[name], nested(40, inside))
    except Fixable as refusal:
        assert "nested too deeply to be checked" in refusal.message


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "oneOf"])
def test_references_that_only_multiply_are_refused_for_any_value(keyword: str) -> None:
    with pytest.raises(Fixable, match="nested too deeply to be checked"):
        check(chain(keyword, 40), {"v": "x"})
    check(chain(keyword, 8), {"v": "x"})


LISTS = recursive(properties={"v": {"type": "array", "items": N}})
ANYTHING = {
    "properties": {"v": N},
    "$defs": {
        "N": {
            "anyOf": [
                {"type": ["string", "number", "boolean", "null"]},
                {"type": "array", "items": N},
                {"type": "object", "additionalProperties": N},
            ]
        }
    },
}
FILTER = {
    "properties": {"v": N},
    "$defs": {
        "N": {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"and": {"type": "array", "items": N}},
                    "required": ["and"],
                },
                {
                    "type": "object",
                    "properties": {"or": {"type": "array", "items": N}},
                    "required": ["or"],
                },
                {"type": "object", "properties": {"is": {"type": "string"}}, "required": ["is"]},
            ]
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (recursive(properties={"v": N}), nested(60, {})),
        (LISTS, {"v": {"v": [{"v": []}] * 3_000}}),
        (ANYTHING, {"v": [[n, str(n), {"a": [n]}] for n in range(3_000)]}),
        (FILTER, {"v": {"and": [{"or": [{"is": "a"}] * 50}, {"and": [{"is": "b"}]}] * 20}}),
        (twice("anyOf", properties={"v": N}), nested(5, {})),
    ],
    ids=["deep", "lists", "anything", "filter", "a little"],
)
def test_schemas_that_refer_to_themselves_are_checked_as_ever(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    check(schema, arguments)
