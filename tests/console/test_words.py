"""How values are worded and cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.console.pages import (
    FORMULA,
    ago,
    as_csv,
    clip,
    clip_text,
    compact,
    csv_cell,
    duration,
    pretty,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "just now"),
        (4.9, "just now"),
        (5, "5 s ago"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (7200, "2 h ago"),
        (200_000, "2 d ago"),
        (-90, "in 1 min"),
    ],
)
def test_times_are_told_by_their_distance(seconds: float, words: str) -> None:
    assert ago(1_000_000 - seconds, now=1_000_000) == words


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(None, "–"), (0.2, "<1 ms"), (12.6, "13 ms"), (1500, "1.5 s"), (90_000, "1 min")],
)
def test_durations_have_a_fitting_unit(milliseconds: float | None, words: str) -> None:
    assert duration(milliseconds) == words


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
