"""A manifest becomes the same kind of tools as any other definition."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.model import (
    Override,
    Problem,
    Skipped,
    decode_build,
    encode_build,
)
from tests.definitions import golden, http_of, shown

from .manifests import library, tool


def test_a_manifest_becomes_whole_tools() -> None:
    build = library()

    assert shown(build) == golden("library")
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


def test_connection_that_can_not_work_is_warned_about() -> None:
    build = library(auth_type="basic", operations={"lendBok": Override(access="read")})
    told = {
        "auth.type": "City Library takes bearer (a token from the desk), not basic",
        "operations.lendBok": "matches no operation (did you mean 'lendBook'?)",
    }
    assert build.problems == tuple(
        Problem("warning", where, words, configured=True) for where, words in told.items()
    )
