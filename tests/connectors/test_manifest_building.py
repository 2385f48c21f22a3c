"""A manifest becomes the same kind of tools as any other definition."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import DefinitionUnreadable
from gateway.model import (
    Body,
    Field,
    HttpOperation,
    Override,
    Parameter,
    Problem,
    RateLimit,
    Skipped,
    decode_build,
    encode_build,
)
from tests.definitions import an_object, body_of, http_of, schema_of
from tests.raising import raises

from .manifests import library, tool

SEARCH_INPUT = an_object(
    {
        "shelf": {"type": "string", "description": "Shelf.", "minLength": 1},
        "genre": {"type": "array", "items": {"type": "string", "enum": ["poetry", "prose"]}},
        "sort": {"type": "string", "enum": ["title", "year"], "default": "title"},
        "trace": {"type": "string", "minLength": 4, "maxLength": 32},
        "from": {"type": "integer", "minimum": 0, "description": "Where to go on."},
    },
    "shelf",
    additionalProperties=False,
)
SEARCH_WORDS = (
    "[City Library] Search books — Find books on a shelf. Returns an array of books. "
    "Pages: go on with `from`."
)
MARKS = {"colour": {"type": "string"}, "page": {"type": "number"}}
LEND_INPUT = an_object(
    {
        "id": {"type": "integer"},
        "body_id": {"type": "string", "description": "Reader's card."},
        "days": {"type": "integer", "default": 14, "minimum": 1, "maximum": 60},
        "marks": an_object(MARKS, "colour", additionalProperties=False),
    },
    *("id", "body_id"),
    additionalProperties=False,
)


def test_read_operation_becomes_a_tool() -> None:
    built = tool(library(), "searchBooks")
    assert (built.name, built.title, built.description) == (
        "city_search_books",
        "Search books",
        SEARCH_WORDS,
    )
    assert (built.access, built.risk, built.capability) == ("read", "none", "search_items")
    assert built.security == "bearer Library-token"
    assert schema_of(built) == SEARCH_INPUT
    assert built.http == HttpOperation(
        method="GET",
        base_url="https://north.library.example/api",
        path="/shelves/{shelf}/books",
        parameters=(
            Parameter("shelf", "path", "shelf"),
            Parameter("filter[genre]", "query", "genre", style="form", explode=True),
            Parameter("sort", "query", "sort", style="form"),
            Parameter("from", "query", "from", style="form"),
            Parameter("X-Trace", "header", "trace"),
            Parameter("X-Client", "header", constant="gateway"),
        ),
    )


def test_write_operation_is_wrapped_and_made_on_behalf_of_somebody() -> None:
    built = tool(library(), "lendBook")
    assert (built.access, built.risk) == ("write", "low")
    assert schema_of(built) == LEND_INPUT
    assert http_of(built).parameters == (
        Parameter("id", "path", "id"),
        Parameter("X-Client", "header", constant="gateway"),
        Parameter("X-Reader", "header", constant="reader-7"),
    )
    assert body_of(built) == Body(
        "application/json",
        fields=(Field("body_id", "id"), Field("days", "days"), Field("marks", "marks")),
        required=True,
        wrap="data",
    )


def test_open_body_is_one_argument() -> None:
    built = tool(library(), "addBook")
    assert body_of(built) == Body("application/json", whole="body", required=True, wrap="data")
    extra = an_object({}, additionalProperties=True)
    properties = {"title": {"type": "string"}, "extra": extra}
    body = an_object(properties, "title", additionalProperties=True)
    assert schema_of(built) == an_object({"body": body}, "body", additionalProperties=False)


def test_file_comes_as_base64_with_a_file_name() -> None:
    built = tool(library(), "uploadCover")
    assert body_of(built) == Body(
        "multipart/form-data",
        fields=(
            Field("cover", "cover", True, "cover_filename", "cover_content_type"),
            Field("caption", "caption"),
        ),
        required=True,
    )
    properties = schema_of(built)["properties"]
    assert [*properties] == ["id", "cover", "cover_filename", "cover_content_type", "caption"]
    assert properties["cover"] == {"type": "string", "contentEncoding": "base64"}


def test_build_carries_what_the_provider_says_of_itself() -> None:
    build = library()
    assert (build.format, build.title, build.base_url) == (
        "manifest",
        "City Library",
        "https://north.library.example/api",
    )
    assert build.blocklist == ("/staff",)
    assert build.rate_limit == RateLimit(5, 2.5)
    assert build.auth_scheme == "Library-token"
    assert build.problems == ()
    assert decode_build(encode_build(build)) == build


NO_USER = {"lendBook": "City Library needs to know for which user: set on_behalf_of"}


@pytest.mark.parametrize(
    ("changes", "skipped"),
    [
        ({}, {}),
        ({"on_behalf_of": None}, NO_USER),
        ({"operations": {"burnBooks": Override(access="write")}}, {}),
    ],
)
def test_operation_that_is_no_tool_says_why(
    changes: dict[str, Any], skipped: dict[str, str]
) -> None:
    build = library(**changes)
    always = {
        "listStaff": "its path is on the blocklist (/staff)",
        "burnBooks": "dangerous: never exposed",
    }
    assert {skip.operation: skip.reason for skip in build.skipped} == always | skipped
    assert len(build.tools) + len(build.skipped) == 7
    spelled = ("burnBooks", "DELETE", "/books", "dangerous: never exposed")
    assert Skipped(*spelled, "dangerous", "city_burn_books", build.base_url) in build.skipped


def test_connection_names_itself_and_its_region() -> None:
    built = tool(library(display_name="Branch", region="south", prefix=""), "countBooks")
    assert built.name == "count_books"
    assert built.description == "[Branch] Count books — How many there are."
    assert built.access == "read"
    assert http_of(built).base_url == "https://south.library.example/api"


def test_unknown_region_is_refused() -> None:
    with raises(
        DefinitionUnreadable, message="region: 'west' is not allowed; allowed: north, south"
    ):
        library(region="west")


def test_connection_that_can_not_work_is_warned_about() -> None:
    build = library(auth_type="basic", operations={"lendBok": Override(access="read")})
    told = {
        "auth.type": "City Library takes bearer (a token from the desk), not basic",
        "operations.lendBok": "matches no operation (did you mean 'lendBook'?)",
    }
    assert build.problems == tuple(
        Problem("warning", where, words, configured=True) for where, words in told.items()
    )
