from __future__ import annotations

from typing import Any

import pytest

from gateway.calls.encode import joined, pairs, percent, percent_but_reserved, scalar
from gateway.model import Style

LIST = ["blue", "black", "brown"]
OBJECT = {"R": 100, "G": 200, "B": 150}


@pytest.mark.parametrize(
    ("style", "explode", "value", "text"),
    [
        ("simple", False, "blue", "blue"),
        ("simple", False, LIST, "blue,black,brown"),
        ("simple", False, OBJECT, "R,100,G,200,B,150"),
        ("simple", True, LIST, "blue,black,brown"),
        ("simple", True, OBJECT, "R=100,G=200,B=150"),
        ("label", False, "", "."),
        ("label", False, "blue", ".blue"),
        ("label", False, LIST, ".blue,black,brown"),
        ("label", False, OBJECT, ".R,100,G,200,B,150"),
        ("label", True, LIST, ".blue.black.brown"),
        ("label", True, OBJECT, ".R=100.G=200.B=150"),
        ("matrix", False, "", ";color"),
        ("matrix", False, "blue", ";color=blue"),
        ("matrix", False, LIST, ";color=blue,black,brown"),
        ("matrix", False, OBJECT, ";color=R,100,G,200,B,150"),
        ("matrix", True, LIST, ";color=blue;color=black;color=brown"),
        ("matrix", True, OBJECT, ";R=100;G=200;B=150"),
        ("simple", False, ["a,b", "c/d", None], "a%2Cb,c%2Fd"),
        ("simple", True, {"a=b": "c,d", "e": None}, "a%3Db=c%2Cd"),
    ],
)
def test_value_is_one_text_as_the_tables_say(
    style: Style, explode: bool, value: Any, text: str
) -> None:
    assert joined(style, explode, "color", value, percent) == text


@pytest.mark.parametrize(
    ("style", "explode", "value", "expected"),
    [
        ("form", True, "", ["color="]),
        ("form", True, "blue", ["color=blue"]),
        ("form", True, LIST, ["color=blue", "color=black", "color=brown"]),
        ("form", True, OBJECT, ["R=100", "G=200", "B=150"]),
        ("form", False, LIST, ["color=blue,black,brown"]),
        ("form", False, OBJECT, ["color=R,100,G,200,B,150"]),
        ("spaceDelimited", False, LIST, ["color=blue%20black%20brown"]),
        ("spaceDelimited", False, OBJECT, ["color=R%20100%20G%20200%20B%20150"]),
        ("pipeDelimited", False, LIST, ["color=blue%7Cblack%7Cbrown"]),
        ("pipeDelimited", True, LIST, ["color=blue", "color=black", "color=brown"]),
        ("tabDelimited", False, LIST, ["color=blue%09black%09brown"]),
        ("deepObject", True, OBJECT, ["color[R]=100", "color[G]=200", "color[B]=150"]),
        ("deepObject", True, "blue", ["color=blue"]),
        ("deepObject", True, {"a": {"b": [1, 2]}}, ["color[a][b][]=1", "color[a][b][]=2"]),
        ("deepObject", True, [{"a": 1}, {"a": 2}], ["color[0][a]=1", "color[1][a]=2"]),
        ("deepObject", True, {"a": None}, []),
        ("form", True, [], []),
        ("form", False, [], []),
        ("form", True, [None, True, 1.0, 1.5], ["color=true", "color=1", "color=1.5"]),
        ("form", True, ["a&b=c", "d e"], ["color=a%26b%3Dc", "color=d%20e"]),
        ("form", False, ["a,b", "c"], ["color=a%2Cb,c"]),
        ("form", True, [{"a": 1}], ["color=%7B%22a%22%3A1%7D"]),
    ],
)
def test_value_is_pairs_as_the_tables_say(
    style: Style, explode: bool, value: Any, expected: list[str]
) -> None:
    texts = [f"{name}={text}" for name, text in pairs(style, explode, "color", value, percent)]
    assert texts == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-1.0, "-1"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        ("true", "true"),
        ({"a": [1]}, '{"a":[1]}'),
    ],
)
def test_scalar_is_written_as_servers_read_it(value: Any, text: str) -> None:
    assert scalar(value) == text


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("a/b:c?d@e!$'()*+,=[]", "a/b:c?d@e!$'()*+,=[]"),
        ("a b", "a%20b"),
        ("100%", "100%25"),
        ("%2Fx", "%2Fx"),
        ("a&admin=1;b=2#x", "a%26admin=1%3Bb=2%23x"),
        ("é", "%C3%A9"),
    ],
)
def test_reserved_characters_stay_where_allowed_but_for_those_that_would_inject(
    text: str, encoded: str
) -> None:
    assert percent_but_reserved(text) == encoded
