"""A manifest held against a definition: what is missing, what differs, what it leaves out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.connectors.drift import Comparison, Difference, Missing, Unlisted, compare
from gateway.connectors.manifest import parse_manifest
from gateway.errors import DefinitionUnreadable

from .manifests import LIBRARY

MANIFEST = parse_manifest(LIBRARY, "library.toml")


def test_definition_that_agrees_has_nothing_to_report() -> None:
    comparison = compare(MANIFEST, _definition())
    assert comparison == Comparison()
    assert comparison.agrees


@pytest.mark.parametrize(
    ("server", "prefix"),
    [
        ("https://north.library.example/api", ""),
        ("https://north.library.example", "/api"),
        ("https://elsewhere.example/v9", ""),
        (None, ""),
        (None, "/api"),
    ],
)
def test_paths_match_wherever_their_beginning_is_written(server: str | None, prefix: str) -> None:
    assert compare(MANIFEST, _definition(server=server, prefix=prefix)) == Comparison()


def test_operation_that_is_gone_or_unusable_is_missing() -> None:
    paths = _paths()
    del paths["/staff"]
    paths["/books/count"]["post"]["deprecated"] = True
    assert compare(MANIFEST, _definition(paths)) == Comparison(
        missing=(
            Missing("countBooks", "POST", "/books/count", "in the definition, but deprecated"),
            Missing("listStaff", "GET", "/staff", "not in the definition"),
        )
    )


def test_operation_only_the_definition_has_is_information() -> None:
    paths = _paths()
    paths["/members/{id}"] = {"get": {"operationId": "getMember"}}
    comparison = compare(MANIFEST, _definition(paths))
    assert comparison == Comparison(unlisted=(Unlisted("getMember", "GET", "/members/{id}"),))
    assert comparison.agrees


@pytest.mark.parametrize(
    ("parameters", "difference"),
    [
        ([], ("sort", "unknown", "the definition has no such parameter in query")),
        (
            [{"name": "sort", "in": "header"}],
            ("sort", "place", "in query here, in header in the definition"),
        ),
        (
            [{"name": "sort", "in": "query", "required": True}],
            ("sort", "required", "optional here, required in the definition"),
        ),
        (
            [{"name": "sort", "in": "query"}, {"name": "lang", "in": "query", "required": True}],
            ("lang", "lacking", "the definition requires it in query; the manifest lacks it"),
        ),
    ],
    ids=["unknown", "place", "required", "lacking"],
)
def test_parameter_that_differs_is_named(
    parameters: list[dict[str, Any]], difference: tuple[str, Any, str]
) -> None:
    paths = _paths()
    search = paths["/shelves/{name}/books"]["get"]
    others = [given for given in search["parameters"] if given["name"] != "sort"]
    search["parameters"] = [*others, *({"schema": {"type": "string"}, **p} for p in parameters)]
    assert compare(MANIFEST, _definition(paths)) == Comparison(
        differing=(Difference("searchBooks", *difference),)
    )


def test_optional_parameter_the_manifest_leaves_out_is_no_difference() -> None:
    paths = _paths()
    extra = {"name": "lang", "in": "query", "schema": {"type": "string"}}
    paths["/shelves/{name}/books"]["get"]["parameters"].append(extra)
    assert compare(MANIFEST, _definition(paths)).agrees


def test_body_property_that_differs_is_named() -> None:
    paths = _paths()
    schema = {"type": "object", "properties": {"kinds": {}}, "required": ["kinds"]}
    paths["/books/count"]["post"]["requestBody"] = _json(schema)
    assert compare(MANIFEST, _definition(paths)) == Comparison(
        differing=(
            Difference(
                "countBooks", "genres", "unknown", "the definition has no such parameter in body"
            ),
            Difference(
                "countBooks",
                "kinds",
                "lacking",
                "the definition requires it in body; the manifest lacks it",
            ),
        )
    )


def test_user_a_write_is_made_for_is_not_asked_of_the_agent() -> None:
    paths = _paths()
    lend = paths["/books/{book}/loans"]["post"]
    lend["parameters"] = [given for given in lend["parameters"] if given["name"] != "X-Reader"]
    assert compare(MANIFEST, _definition(paths)) == Comparison(
        differing=(
            Difference(
                "lendBook", "X-Reader", "unknown", "the definition has no such parameter in header"
            ),
        )
    )


def test_unreadable_definition_is_refused() -> None:
    with pytest.raises(DefinitionUnreadable):
        compare(MANIFEST, b"[")


def _definition(
    paths: dict[str, Any] | None = None,
    *,
    server: str | None = "https://north.library.example/api",
    prefix: str = "",
) -> bytes:
    document: dict[str, Any] = {"openapi": "3.0.3", "info": {"title": "Library", "version": "3"}}
    if server:
        document["servers"] = [{"url": server}]
    found = _paths() if paths is None else paths
    return orjson.dumps(document | {"paths": {prefix + path: item for path, item in found.items()}})


def _paths() -> dict[str, Any]:
    """The library's API as its owner would define it."""
    return {
        "/shelves/{name}/books": {
            "get": {
                "parameters": [
                    _parameter("name", "path", required=True),
                    _parameter("filter[genre]", "query"),
                    _parameter("sort", "query"),
                    _parameter("X-Trace", "header"),
                    _parameter("from", "query"),
                ]
            }
        },
        "/books/{book}/loans": {
            "post": {
                "parameters": [
                    _parameter("book", "path", required=True),
                    _parameter("X-Reader", "header", required=True),
                ],
                "requestBody": _json({"type": "object", "properties": {"data": {"type": "array"}}}),
            }
        },
        "/books": {
            "post": {"requestBody": _json({"type": "object", "additionalProperties": True})},
            "delete": {"responses": {}},
        },
        "/books/{id}/cover": {
            "put": {
                "parameters": [_parameter("id", "path", required=True)],
                "requestBody": {
                    "content": {
                        "multipart/form-data": {
                            "schema": {
                                "type": "object",
                                "properties": {
                                    "cover": {"type": "string", "format": "binary"},
                                    "caption": {"type": "string"},
                                },
                                "required": ["cover"],
                            }
                        }
                    },
                    "required": True,
                },
            }
        },
        "/books/count": {
            "post": {
                "requestBody": _json(
                    {
                        "type": "object",
                        "properties": {"genres": {"type": "array", "items": {"type": "string"}}},
                    }
                )
            }
        },
        "/staff": {"get": {"responses": {}}},
    }


def _parameter(name: str, place: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": {"type": "string"}}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}, "required": True}
