"""Bytes of unknown origin become a plain definition, or one refusal with its place."""

from __future__ import annotations

import codecs
from typing import Any

import pytest

from gateway.errors import DefinitionUnreadable
from gateway.openapi.reading import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_REWRITTEN,
    MAX_TEXT,
    read_definition,
    read_yaml,
)

PLAIN = {"swagger": "2.0", "info": {"title": "Größe"}, "paths": {}}
TEXT = '{"swagger": "2.0", "info": {"title": "Größe"}, "paths": {}}'


@pytest.mark.parametrize(
    "raw",
    [
        TEXT.encode(),
        codecs.BOM_UTF8 + TEXT.encode(),
        TEXT.encode("utf-16"),
        TEXT.encode("utf-16-le"),
        TEXT.encode("utf-16-be"),
        TEXT.encode("cp1252"),
        TEXT.replace("{}}", "{},}").encode(),
        b'{"properties": {"swagger": ' + TEXT.encode() + b"}}",
        b'{"properties": {"apiDefinitions": {"value": ' + TEXT.encode() + b"}}}",
        "swagger: '2.0'\ninfo: {title: Größe}\npaths: {}\n".encode(),
    ],
    ids=[
        "utf-8",
        "byte order mark",
        "utf-16 with mark",
        "utf-16-le",
        "utf-16-be",
        "windows-1252",
        "trailing comma",
        "wrapped as properties.swagger",
        "wrapped as properties.apiDefinitions.value",
        "yaml",
    ],
)
def test_every_encoding_syntax_and_wrapper_gives_the_same_definition(raw: bytes) -> None:
    assert read_definition(raw) == PLAIN


def test_whole_numbers_beyond_64_bits_are_fractions() -> None:
    raw = b'{"a": 99999999999999999999, "b": [18446744073709551615, {"c": -9223372036854775809}]}'

    assert read_definition(raw) == {"a": 1e20, "b": [2**64 - 1, {"c": -(2.0**63)}]}


def test_raw_control_characters_become_spaces() -> None:
    raw = b'{"swagger": "2.0", "info": {"title": "a\x02b"},}'

    assert read_definition(raw) == {"swagger": "2.0", "info": {"title": "a b"}}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "The document is empty."),
        (b" \n ", "The document is empty."),
        (
            b'{"a": 1\n "b": 2}',
            "Not valid JSON or YAML: did not find expected ',' or '}' (line 2, column 5).",
        ),
        (b"[1, 2]", "The document is a list, not an OpenAPI definition."),
        (b"<html></html>", "The document is a web page, not an OpenAPI definition."),
        (b"hello", "The document is plain text, not an OpenAPI definition."),
        (
            b"[" * 1_000_000,
            f"The definition has about 1,000,000 objects and lists; "
            f"at most {MAX_CONTAINERS:,} are read.",
        ),
        (
            b'{"x": "' + b"s" * 3 * MAX_TEXT + b'"}',
            f"The definition has more than {MAX_TEXT:,} bytes in one text; "
            f"at most {MAX_TEXT:,} are read.",
        ),
        (
            b'{"x": "' + b'\\"' * MAX_REWRITTEN + b'" "y": 1}',
            "The definition is not valid JSON (JSON is malformed: expected ',' or '}' "
            f"(byte {2 * MAX_REWRITTEN + 9})), and too large to be read as YAML.",
        ),
        (
            ('{"x": "' + "text\n" * 2 * MAX_TEXT).encode("utf-16"),
            f"The definition has more than {MAX_REWRITTEN:,} bytes and is not in UTF-8.",
        ),
        (
            b"[" * 5_000 + b"]" * 5_000,
            f"The definition can't be read: nested more than {MAX_DEPTH} levels deep "
            f"(line 1, column {MAX_DEPTH + 1}).",
        ),
    ],
    ids=["empty", "blank", "no comma", "list", "page", "text", "containers"]
    + ["long text", "large and broken", "large in UTF-16", "depth"],
)
def test_what_cannot_be_read_is_refused_in_words(raw: bytes, message: str) -> None:
    with pytest.raises(DefinitionUnreadable) as refused:
        read_definition(raw)

    assert refused.value.message == message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: no", "no"),
        ("a: on", "on"),
        ("a: =", "="),
        ("a: 24:00:00", "24:00:00"),
        ("a: 2001-12-14", "2001-12-14"),
        ("a: 0o17", 15),
        ("a: 0x1F", 31),
        ("a: 017", 17),
        ("a: 1e3", 1000.0),
        ("a: .5", 0.5),
        ("a: 1_000", "1_000"),
        ("a: .inf", ".inf"),
        ("a: 99999999999999999999", 1e20),
        ("a: True", True),
        ("a: ~", None),
        ("a:", None),
        ("a: '1'", "1"),
        ("a: !!str 1", "1"),
        ("a: !custom x", "x"),
        ("a: |\n  two\n  lines\n", "two\nlines\n"),
        ("a: [&x {b: 1}, *x]", [{"b": 1}, {"b": 1}]),
        ("a: {<<: {b: 1, c: 1}, c: 2}", {"b": 1, "c": 2}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    assert read_yaml(text) == {"a": value}


def test_keys_are_texts_as_written_and_the_last_of_twins_wins() -> None:
    assert read_yaml("200: a\non: b\nnull: c\ntrue: d\non: e\n") == {
        "200": "a",
        "on": "e",
        "null": "c",
        "true": "d",
    }


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20)]
    text = "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x, x]", *levels])

    with pytest.raises(DefinitionUnreadable, match="aliases stand for more than"):
        read_yaml(text)


def test_an_alias_within_its_own_anchor_is_refused() -> None:
    with pytest.raises(DefinitionUnreadable, match="stands for nothing before it"):
        read_yaml("a: &a [*a]")
