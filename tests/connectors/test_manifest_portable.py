"""A portable name stands for whichever provider is there."""

from __future__ import annotations

import math
from dataclasses import replace

import orjson
import pytest

from gateway.catalog.snapshot import portable_tools
from gateway.connectors.manifest import BUILTIN

from .manifests import library, provider, tool


def test_portable_tool_is_the_same_tool_under_another_name() -> None:
    build = library()
    found = tool(build, "searchBooks")
    entry = orjson.dumps({**orjson.loads(found.entry), "name": "books_search_items"})
    assert portable_tools("books", build.tools) == [
        replace(
            found,
            name="books_search_items",
            entry=entry,
            tokens=math.ceil(len(entry.decode()) / 4.6),
        )
    ]


def test_tools_without_a_capability_are_left_out() -> None:
    assert portable_tools("ats", [tool(library(), "lendBook")]) == []


@pytest.mark.parametrize("name", BUILTIN)
def test_swapped_provider_keeps_the_names(name: str) -> None:
    names = {built.name for built in portable_tools("ats", provider(name).tools)}
    assert names >= {
        "ats_list_candidates",
        "ats_get_candidate",
        "ats_create_candidate",
        "ats_update_candidate",
        "ats_list_jobs",
        "ats_get_job",
        "ats_list_applications",
        "ats_list_interviews",
        "ats_add_note",
    }


def test_no_dangerous_operation_gets_a_portable_name() -> None:
    for name in BUILTIN:
        for built in portable_tools("ats", provider(name).tools):
            assert built.access != "dangerous"
