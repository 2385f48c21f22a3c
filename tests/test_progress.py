"""How loading is told."""

from __future__ import annotations

import pytest

from gateway.app import bar, loading


def test_each_connection_is_a_plain_line_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = loading(2)
    told("shop")
    told("desk")
    assert capsys.readouterr().err == "loaded shop (1 of 2)\nloaded desk (2 of 2)\n"


def test_one_connection_is_not_worth_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    loading(1)("shop")
    assert capsys.readouterr().err == ""


def test_the_bar_fills_up_and_leaves_no_trace() -> None:
    assert bar(1, 2, "shop") == "\r\x1b[KLoading " + "█" * 12 + "░" * 12 + " 1/2 shop"
    assert bar(2, 2, "desk") == "\r\x1b[K"
