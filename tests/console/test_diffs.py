"""A change as people read it."""

from __future__ import annotations

from dataclasses import replace

import orjson

from gateway.console.connections import compare
from gateway.limits import PAGE_ENTRIES
from gateway.model import HttpOperation, Tool

TOOL = Tool(
    name="shop_pay",
    local_name="pay",
    connection="shop",
    operation="pay",
    method="POST",
    path="/pay",
    access="write",
    risk="medium",
    trust="trusted",
    title="Pay",
    description="Pays.",
    input_schema=orjson.dumps({"properties": {"sum": {"type": "integer"}}}),
    entry=b"",
    tokens=1,
    fingerprint="f",
    http=HttpOperation("POST", "https://shop.example", "/pay"),
)


def test_only_what_differs_is_shown() -> None:
    other = HttpOperation("POST", "https://evil.example", "/pay")
    after = replace(TOOL, http=other, description="Pays\u202e more.")
    assert compare(TOOL, after).rows == (
        ("Host", "https://shop.example", "https://evil.example"),
        ("Description", "Pays.", "Pays\ufffd more."),
    )


def test_the_schema_is_compared_line_by_line() -> None:
    schema = {"properties": {"sum": {"type": "number"}}}
    diff = compare(TOOL, replace(TOOL, input_schema=orjson.dumps(schema)))
    assert [line for line in diff.lines if line[0] in "+-"] == [
        ("-", '      "type": "integer"'),
        ("+", '      "type": "number"'),
    ]


def test_a_new_operation_shows_all_of_itself() -> None:
    rows = {name: (before, after) for name, before, after in compare(None, TOOL).rows}
    assert rows["Request"] == ("", "POST /pay")
    assert rows["Access"] == ("", "write")


def test_a_huge_difference_is_cut() -> None:
    schema = {"properties": {f"p{i}": {"type": "string"} for i in range(2000)}}
    diff = compare(TOOL, replace(TOOL, input_schema=orjson.dumps(schema)))
    assert (len(diff.lines), diff.cut) == (PAGE_ENTRIES, True)
