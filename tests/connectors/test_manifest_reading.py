"""A manifest that says what it may not say is refused, with every problem and its place."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.connectors.manifest import (
    BUILTIN,
    load_builtin,
    parse_manifest,
    region_problem,
)
from gateway.errors import ConfigInvalid, DefinitionUnreadable
from gateway.model import pack
from gateway.reader import build_definition

from .manifests import CONNECTION, FIXTURES, LIBRARY

INVALID = sorted((FIXTURES / "invalid").glob("*.toml"))


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_invalid_manifest_is_refused_with_every_problem_in_its_place(path: Path) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse_manifest(path.read_bytes(), path.name)
    assert f"{refused.value}\n" == path.with_suffix(".txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("raw", [b"a = '\xff'", b"\n\na = ", b"a = " + b"[" * 100_000])
def test_text_that_is_no_toml_is_refused(raw: bytes) -> None:
    with pytest.raises(ConfigInvalid, match="m.toml: not valid TOML: "):
        parse_manifest(raw, "m.toml")


def test_value_nested_too_deeply_is_refused() -> None:
    nested = [f"caption.{'items.' * level}type = 'array'" for level in range(300)]
    raw = LIBRARY.replace(b"caption = {}", "\n".join(nested).encode())
    with pytest.raises(ConfigInvalid, match="caption.items.items."):
        parse_manifest(raw, "m.toml")


@pytest.mark.parametrize("number", ["nan", "inf", "1" + "0" * 40, "-1e300"])
@pytest.mark.parametrize("key", ["minimum", "default"])
def test_number_that_json_can_not_hold_is_refused(key: str, number: str) -> None:
    raw = LIBRARY.replace(
        b"caption = {}", f"caption = {{ type='number', {key}={number} }}".encode()
    )
    with pytest.raises(ConfigInvalid, match=f"caption.{key}"):
        parse_manifest(raw, "m.toml")


def test_byte_order_mark_is_no_problem() -> None:
    assert parse_manifest(b"\xef\xbb\xbf" + LIBRARY, "m.toml").provider == "library"


def test_unknown_provider_gets_a_guess_and_the_list() -> None:
    with pytest.raises(DefinitionUnreadable) as refused:
        load_builtin("zoho-recrut")
    assert refused.value.as_dict() == {
        "code": "connection_invalid",
        "message": "manifest: 'zoho-recrut' does not come with the gateway "
        "(did you mean 'zoho-recruit'?)",
        "hint": "Use one of greenhouse, lever, zoho-recruit, or the path of a file.",
    }


@pytest.mark.parametrize("name", ["../model", "greenhouse.toml", "", "."])
def test_name_that_is_a_path_reads_no_file(name: str) -> None:
    with pytest.raises(DefinitionUnreadable):
        load_builtin(name)


def test_connection_with_a_broken_manifest_is_told_what_is_wrong() -> None:
    with pytest.raises(DefinitionUnreadable) as refused:
        build_definition(pack(b"provider = 'p'\nprovidr = 'p'"), CONNECTION)
    assert refused.value.code == "connection_invalid"
    assert refused.value.message.startswith("library.toml: display_name: is required; ")
    assert refused.value.details["problems"][-1].startswith("library.toml: providr: unknown key")


@pytest.mark.parametrize(
    ("name", "region", "problem"),
    [
        ("zoho-recruit", "eu", None),
        ("zoho-recruit", None, None),
        ("greenhouse", None, None),
        ("greenhouse", "eu", "region: Greenhouse has no regions; remove the key"),
        ("lever", "europe", "region: 'europe' is not allowed; allowed: us, eu, sandbox"),
        (
            "lever",
            "sandbx",
            "region: 'sandbx' is not allowed (did you mean 'sandbox'?); allowed: us, eu, sandbox",
        ),
    ],
)
def test_region_is_one_of_the_provider(name: str, region: str | None, problem: str | None) -> None:
    assert region_problem(parse_manifest(load_builtin(name), name), region) == problem


TEXTS = [*(load_builtin(name).decode() for name in BUILTIN), LIBRARY.decode()]
KEYS = ["id", "in", "type", "name", "path", "params", "body", "open", "access", "capability"]
VALUES = [
    *("1", "-1", "1.5", "true", "nan", "2026-01-01", "100000000000000000000"),
    *("''", "'x'", "'{id}'", "'/x/{y}'", "'DELETE'", "'https://{region}'", "'dangerous'"),
    *("'object'", "'array'", "'path'", "'multipart/form-data'"),
    *("[]", "['a']", "[1, 'a']", "[{}]", "[{ name = 'id' }]"),
    *("{}", "{ a = 1 }", "{ type = 'string' }", "{ properties = { a = {} } }"),
]


@given(st.sampled_from(TEXTS), st.data())
def test_manifest_changed_anywhere_is_taken_or_refused_but_never_breaks(
    text: str, data: st.DataObject
) -> None:
    found = list(re.finditer(r"\b(\w+) = ('[^']*'|\"[^\"]*\"|[\w.]+)", text))
    place = data.draw(st.sampled_from(found))
    key = data.draw(st.sampled_from([place[1], place[1], *KEYS]))
    value = data.draw(st.sampled_from([place[2], *VALUES]))
    changed = f"{text[: place.start()]}{key} = {value}{text[place.end() :]}"
    try:
        build = build_definition(pack(changed.encode()), CONNECTION)
    except DefinitionUnreadable as refused:
        assert all(line.count(": ") >= 2 for line in refused.details["problems"])
    else:
        assert all(jsonschema_rs.validator_for(orjson.loads(t.input_schema)) for t in build.tools)
