"""The parts of pages: differences, forms, pictures, words, and files that others wrote."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import OpenApiConnection
from gateway.console.app import STATIC
from gateway.console.calls import client_name, draw, sum_hour
from gateway.console.charts import duration, spark
from gateway.console.connections import compare
from gateway.console.pages import (
    FORMULA,
    ago,
    as_csv,
    clip,
    clip_text,
    compact,
    csv_cell,
    pretty,
)
from gateway.console.tools import form_arguments, form_fields
from gateway.errors import Fixable
from gateway.limits import FORM_FIELDS, PAGE_ENTRIES
from gateway.model import HttpOperation, Source, Status
from gateway.store.figures import Count
from tests.definitions import an_object
from tests.raising import raises
from tests.tools import http_tool

TOOL = http_tool(
    Source("shop", "openapi", "Shop", "shop_"),
    HttpOperation("POST", "https://shop.example", "/pay"),
    name="shop_pay",
    access="write",
    description="Pays.",
    input_schema={"properties": {"sum": {"type": "integer"}}},
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


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "maxLength": 4000},
        "id": {"type": "integer", "description": "Which one."},
        "when": {"type": "string", "format": "date"},
        "size": {"enum": ["s", "m", 3]},
        "fast": {"type": "boolean", "default": False},
        "tags": {"type": "array", "items": {"type": "string"}},
        "owner": {"$ref": "#/$defs/person"},
        "maybe": {"type": ["number", "null"], "examples": [1.5]},
    },
    "required": ["id"],
    "$defs": {
        "person": an_object(
            {"name": {"type": "string"}, "boss": {"$ref": "#/$defs/person"}}, "name"
        )
    },
}


def test_each_value_gets_the_control_that_fits() -> None:
    shown = [(f.name, f.control, f.kind, f.required, f.hint) for f in form_fields(SCHEMA)]
    assert shown == [
        ("/id", "number", "number", True, "integer"),
        ("/note", "area", "text", False, "string"),
        ("/when", "text", "date", False, "string"),
        ("/size", "choice", "", False, "any JSON value"),
        ("/fast", "yes_no", "boolean", False, "default: false"),
        ("/tags", "json", "text", False, "a JSON list"),
        ("/owner/name", "text", "text", False, "string"),
        ("/owner/boss", "json", "text", False, "a JSON object"),
        ("/maybe", "number", "number", False, "e.g. 1.5"),
    ]


def test_what_an_object_must_have_is_required_where_the_object_is() -> None:
    needed = form_fields({**SCHEMA, "required": ["id", "owner"]})
    assert [field.name for field in needed if field.required] == ["/id", "/owner/name"]


def test_a_filled_form_means_the_arguments_it_was_made_for() -> None:
    arguments = {
        "id": 7,
        "note": "a\nb",
        "size": 3,
        "fast": False,
        "tags": ["x"],
        "owner": {"name": "Ann", "boss": {"name": "Bob"}},
        "maybe": 1.5,
    }
    form = {field.name: field.value for field in form_fields(SCHEMA, arguments)}
    assert form_arguments(SCHEMA, form) == arguments


def test_what_is_left_empty_is_no_argument() -> None:
    form = {"/id": "1", "/note": " ", "/owner/name": "", "/unknown": "x"}
    assert form_arguments(SCHEMA, form) == {"id": 1}


def test_written_json_goes_before_the_fields() -> None:
    assert form_arguments(SCHEMA, {"/id": "1", "json": '{"id": 2}'}) == {"id": 2}


@pytest.mark.parametrize("form", [{"json": "{"}, {"json": "[1]"}, {"/id": "1", "/tags": "x"}])
def test_what_is_not_json_is_told_where_it_is(form: dict[str, str]) -> None:
    with raises(Fixable, code="invalid_arguments"):
        form_arguments(SCHEMA, form)


def test_a_number_that_is_none_is_left_to_the_check_of_the_call() -> None:
    assert form_arguments(SCHEMA, {"/id": "seven"}) == {"id": "seven"}


def test_a_form_has_a_bounded_number_of_fields() -> None:
    wide = {"type": "object", "properties": {f"p{i}": {} for i in range(1000)}}
    assert len(form_fields(wide)) == FORM_FIELDS


KEYWORDS = ("properties", "$ref", "enum", "required", "maxLength", "format", "examples", "a")
values = st.recursive(
    st.none() | st.integers(-9, 999) | st.sampled_from(["a", "object", "string", "#/$defs/a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["object", "string", "integer", None, ["null"], 3])},
            optional=dict.fromkeys(KEYWORDS, inner),
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=8), values, max_size=5), values)
def test_no_schema_breaks_the_form(properties: dict[str, Any], definitions: Any) -> None:
    schema = {"type": "object", "properties": properties, "$defs": definitions}
    for field in form_fields(schema, {"a": {}}):
        assert field.name.startswith("/")


COUNTS = [
    Count(59, "shop", "Claude Code/2.1", "completed", "read", 90),
    Count(59, "shop", "Claude Code/1.0", "failed", "write", 9),
    Count(0, "mail", "Cursor/1", "denied", "delete", 1),
]


def state(name: str, status: Status = "connected") -> ConnectionState:
    settings = OpenApiConnection(kind="openapi", spec="{}")
    return ConnectionState(name, settings, "stored", status=status)


def test_an_hour_is_summed_from_its_counts() -> None:
    hour = sum_hour(COUNTS, [0.1] * 95 + [2.0] * 5)
    assert (hour.calls, hour.rate, hour.errors, hour.refused) == (100, 99, 9, 1)
    assert hour.by_client == Counter({"Claude Code": 99, "Cursor": 1})
    assert hour.by_access == Counter(
        {("shop", "read"): 90, ("shop", "write"): 9, ("mail", "delete"): 1}
    )
    assert hour.p95_ms == 100.0
    assert sum_hour([], []).p95_ms is None


def test_clients_are_named_without_their_version() -> None:
    names = ["Claude Code/2.1", "a/b/1", "plain", "", "x" * 99]
    shown = [client_name(name) for name in names]
    assert shown == ["Claude Code", "a/b", "plain", "unnamed client", "x" * 40]


def test_the_line_of_an_hour_stays_in_its_box() -> None:
    line = spark((0,) * 59 + (1_000_000,))
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    assert len(points) == 60
    assert all(0 <= x <= 240 and 0 <= y <= 44 for x, y in points)


def test_every_box_has_its_place_and_no_two_overlap() -> None:
    counts = [Count(0, f"c{i}", f"client {i}/1", "completed", "read", i) for i in range(40)]
    picture = draw(sum_hour(counts, []), "Asks", 3, [state(f"c{i}") for i in range(40)], {})
    assert len(picture.boxes) == 5 + 1 + 7 + 3
    for box in picture.boxes:
        assert box.x >= 0 and box.x + box.width <= 1040
        assert box.y >= 0 and box.y + box.height <= picture.height
    for one in picture.boxes:
        for other in picture.boxes:
            apart = one.x != other.x or abs(one.y - other.y) >= min(one.height, other.height)
            assert one is other or apart


def test_busy_ways_are_thicker_and_broken_ones_show() -> None:
    states = [state("mail", "failing"), state("shop")]
    picture = draw(sum_hour(COUNTS, []), "Asks", 0, states, {})
    ways = {curve.tone: curve.width for curve in picture.curves}
    assert ways["busy"] > ways["bad"] > 1
    assert all(re.fullmatch(r"M[\d. ]+C[\d. ]+", curve.path) for curve in picture.curves)


def test_connections_of_one_name_are_told_apart() -> None:
    settings = OpenApiConnection(kind="openapi", spec="{}", display_name="Ledgers")
    alike = [replace(state(name), settings=settings) for name in ("eu", "us")]
    picture = draw(sum_hour(COUNTS, []), "Asks", 0, [*alike, state("shop")], {})
    notes = {box.title: (box.label, box.note) for box in picture.boxes if box.icon == "plug"}
    assert notes == {
        "Ledgers (eu): connected": ("Ledgers", "eu · 0 calls"),
        "Ledgers (us): connected": ("Ledgers", "us · 0 calls"),
        "shop (shop): connected": ("shop", "0 tools · 99 calls"),
    }


def test_an_empty_gateway_says_what_comes_next() -> None:
    picture = draw(sum_hour([], []), "Asks", 0, [], {})
    assert [box.label for box in picture.boxes] == [
        *("No client yet", "Asks", "No connection yet", "0 read", "0 write", "0 delete"),
    ]


def test_times_are_told_by_their_distance_and_durations_in_a_fitting_unit() -> None:
    seconds = (0, 4.9, 5, 59, 60, 7200, 200_000, -90)
    told = "just now, just now, 5 s ago, 59 s ago, 1 min ago, 2 h ago, 2 d ago, in 1 min"
    assert ", ".join(ago(1_000_000 - each, now=1_000_000) for each in seconds) == told
    times = (None, 0.2, 12.6, 1500, 90_000)
    assert [*map(duration, times)] == ["–", "<1 ms", "13 ms", "1.5 s", "1 min"]


def test_text_that_hides_or_turns_its_neighbours_is_shown() -> None:
    assert clip("pay\u202egnp.exe\u200b\x00") == "pay\ufffdgnp.exe\ufffd\ufffd"
    assert clip_text("two\nlines\u2028more\u202e") == "two\nlines\nmore\ufffd"


@given(st.text(max_size=400), st.integers(2, 50))
def test_nothing_shown_is_longer_than_its_bound(text: str, length: int) -> None:
    assert len(clip(text, length)) <= length
    assert len(clip_text(text, length)) <= length
    assert "\n" not in clip(text, length)


def test_a_hundred_kilobytes_cost_no_more_than_their_bound() -> None:
    assert len(clip("x" * 100_000)) == 128
    assert len(pretty({"x" * 100_000: "y" * 100_000})) == 20_000
    assert len(compact(["x" * 100_000], 110)) == 110


@given(st.text(max_size=40))
def test_no_cell_is_a_formula(text: str) -> None:
    assert not csv_cell(text).lstrip(" ").startswith(FORMULA)


def test_rows_become_csv_that_no_spreadsheet_runs() -> None:
    rows = [
        {"name": "=HYPERLINK(1)", "n": -3, "on": True, "more": {"a": 1}, "none": None},
        {"name": 'a,"b"\n', "n": 1.5, "on": False, "more": [], "none": "@x"},
    ]
    assert as_csv(rows) == (
        "name,n,on,more,none\r\n"
        '\'=HYPERLINK(1),-3,True,"{""a"":1}",\r\n'
        '"a,""b""\n",1.5,False,[],\'@x\r\n'
    )
    assert as_csv([]) == "\r\n"


VENDOR = STATIC / "vendor"
LIST = VENDOR / "SHA256SUMS"


def test_every_vendored_file_is_as_it_was_published() -> None:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    found = {
        str(path.relative_to(VENDOR)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path != LIST
    }
    assert found == listed


def test_every_vendored_package_brings_its_licence() -> None:
    packages = {path for path in VENDOR.iterdir() if path.is_dir()}
    assert {path.name for path in packages} == {"htmx", "inter", "jetbrains-mono", "lucide"}
    assert all((path / "LICENSE").is_file() for path in packages)


def test_the_sheet_of_icons_is_made_of_the_published_ones() -> None:
    drawn = 'fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round"'
    sheet = '<svg xmlns="http://www.w3.org/2000/svg">'
    for path in sorted(VENDOR.glob("lucide/*.svg")):
        inner = re.sub(r"<svg[^>]*>(.*)</svg>", r"\1", path.read_text("utf-8"), flags=re.DOTALL)
        sheet += f'<symbol id="{path.stem}" viewBox="0 0 24 24" {drawn} stroke-linejoin="round">'
        sheet += f"{inner}</symbol>"
    assert (STATIC / "icons.svg").read_text("utf-8") == f"{sheet}</svg>"
