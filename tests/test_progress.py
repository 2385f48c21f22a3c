"""How loading is told."""

from __future__ import annotations

import pytest

from gateway.cli.terminal import show_progress


def test_connections_are_plain_lines_where_there_is_no_terminal_and_one_is_not_worth_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_progress(1)("shop")
    assert capsys.readouterr().err == ""
    tell = show_progress(2)
    tell("shop")
    tell("desk")
    assert capsys.readouterr().err == "loaded shop (1 of 2)\nloaded desk (2 of 2)\n"


def test_a_terminal_gets_a_bar_that_leaves_no_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    tell = show_progress(2)
    tell("shop")
    tell("desk")
    said = capsys.readouterr().err
    assert "Loading desk" in said and "100%" in said
    assert said.endswith("\x1b[2K")
