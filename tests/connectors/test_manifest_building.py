"""A manifest becomes the same kind of tools as any other definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest
from mcp_types import Tool as McpTool

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
    digest,
    encode_build,
    pack,
)
from gateway.reader import build_definition
from tests.definitions import an_object, body_of, http_of, schema_of
from tests.raising import raises

from .manifests import CONNECTION, LIBRARY, library, tool

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


NOT_ONE_BOOK = ("searchBooks", "uploadCover", "countBooks")


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


@pytest.mark.parametrize(
    ("changes", "skipped"),
    [
        ({}, {}),
        (
            {"include": ("*Book", "listStaff")},
            dict.fromkeys(NOT_ONE_BOOK, "not among the included operations"),
        ),
        (
            {"exclude": ("*Book",)},
            dict.fromkeys(("lendBook", "addBook"), "excluded by '*Book'"),
        ),
        (
            {"blocklist": ("/BOOKS/*/cover",)},
            {"uploadCover": "its path is on the blocklist (/BOOKS/*/cover)"},
        ),
        (
            {"on_behalf_of": None},
            {"lendBook": "City Library needs to know for which user: set on_behalf_of"},
        ),
        (
            {"operations": {"addBook": Override(access="dangerous")}},
            {"addBook": "dangerous: never exposed"},
        ),
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


def test_skipped_operation_is_named_as_in_the_manifest() -> None:
    build = library()
    spelled = ("burnBooks", "DELETE", "/books", "dangerous: never exposed")
    assert Skipped(*spelled, "dangerous", "city_burn_books", build.base_url) in build.skipped


@pytest.mark.parametrize(
    ("override", "access", "risk", "description"),
    [
        (Override(), "write", "low", "[City Library] Lend a book to a reader."),
        (Override(risk="high"), "write", "high", None),
        (Override(access="read"), "read", "none", None),
        (Override(access="delete"), "delete", "high", None),
        (Override(description="Hand\u200b it out."), "write", "low", "[City Library] Hand it out."),
    ],
)
def test_configuration_has_the_last_word_on_an_operation(
    override: Override, access: str, risk: str, description: str | None
) -> None:
    built = tool(library(operations={"lendBook": override}), "lendBook")
    assert (built.access, built.risk) == (access, risk)
    assert description is None or built.description == description


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


def test_injected_parameter_leaves_the_schema_but_is_still_sent() -> None:
    built = tool(library(inject=("shelf",)), "searchBooks")
    schema = schema_of(built)
    assert "shelf" not in schema["properties"]
    assert "required" not in schema
    assert http_of(built).parameters[0] == Parameter("shelf", "path", "shelf")


def test_parameter_injected_by_its_wire_name_is_sent_too() -> None:
    built = tool(library(inject=("filter[genre]",)), "searchBooks")
    assert "genre" not in schema_of(built)["properties"]
    (genre,) = [p for p in http_of(built).parameters if p.name == "filter[genre]"]
    assert genre.argument == "filter[genre]"


def test_connection_that_can_not_work_is_warned_about() -> None:
    build = library(auth_type="basic", operations={"lendBok": Override(access="read")})
    told = {
        "auth.type": "City Library takes bearer (a token from the desk), not basic",
        "operations.lendBok": "matches no operation (did you mean 'lendBook'?)",
    }
    assert build.problems == tuple(
        Problem("warning", where, words, configured=True) for where, words in told.items()
    )


def test_description_is_cut_and_warns_of_a_missing_sign_in() -> None:
    built = tool(library(authenticated=False, max_description_chars=128), "searchBooks")
    assert built.description == (
        "[City Library] Search books — Find books on… "
        "⚠ This connection is not authenticated yet: calls fail until it has been signed in."
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"region": "south"},
        {"auth_type": "basic"},
        {"operations": {"countBooks": Override(access="write")}},
        {"operations": {"countBooks": Override(description="Other words.")}},
        {"inject": ("genres",)},
    ],
)
def test_fingerprint_changes_with_what_was_approved(changes: dict[str, Any]) -> None:
    plain = tool(library(), "countBooks").fingerprint
    assert tool(library(**changes), "countBooks").fingerprint != plain
    assert tool(library(display_name="City Library"), "countBooks").fingerprint == plain


def test_names_that_fall_together_or_are_long_get_a_suffix() -> None:
    raw = LIBRARY.replace(b'"countBooks"', b'"add_book"').replace(b"uploadCover", b"u" * 80)
    names = [built.name for built in build_definition(pack(raw), CONNECTION).tools]
    assert names == [
        "city_search_books",
        "city_lend_book",
        f"city_add_book_{digest(b'POST /books')[:8]}",
        f"city_{'u' * 50}_{digest(b'PUT /books/{id}/cover')[:8]}",
        f"city_add_book_{digest(b'POST /books/count')[:8]}",
    ]


def test_every_tool_is_valid_for_clients() -> None:
    for built in library().tools:
        McpTool.model_validate_json(built.entry)
        jsonschema_rs.meta.validate(schema_of(built))


def test_what_could_make_the_request_another_one_is_left_out_with_a_reason() -> None:
    params = b'params = [{ name = "id", in = "path", type = "integer" }'
    detours = b', { name = "X-HTTP-Method-Override", in = "header", argument = "verb" }'
    manifest = LIBRARY.replace(params + b"]", params + detours + b"]", 1)
    assert manifest != LIBRARY
    build = build_definition(pack(manifest), CONNECTION)
    lend = tool(build, "lendBook")
    assert schema_of(lend) == LEND_INPUT
    assert lend == tool(library(), "lendBook")
    assert [(p.severity, p.where, p.message.partition(":")[0]) for p in build.problems] == [
        ("warning", "POST /books/{id}/loans", "X-HTTP-Method-Override (header) is left out")
    ]
    given = build_definition(pack(manifest), replace(CONNECTION, inject=("verb",)))
    parameters = http_of(tool(given, "lendBook")).parameters
    assert [each.argument for each in parameters] == ["id", "verb", None, None]
