"""Bodies of requests, and values in the styles of OpenAPI."""

from __future__ import annotations

import base64
import email
import email.policy
import json
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.encode import (
    encode_body,
    join_value,
    name_value_pairs,
    percent_but_reserved,
    percent_encode,
    scalar_text,
)
from gateway.errors import Fixable
from gateway.model import Body, Field, Style
from tests.raising import raises

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
OCTETS = "application/octet-stream"
NOT_BASE64 = ["A", "A A=", "é", 1]
WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


@pytest.mark.parametrize(
    ("body", "arguments", "sent"),
    [
        (Body(JSON, whole="body"), {"body": {"a": None}}, (JSON, b'{"a":null}')),
        (Body(JSON, whole="body"), {"body": None}, None),
        (Body(JSON, whole="body"), {}, None),
        (Body(JSON, whole="body", required=True), {"body": None}, (JSON, b"null")),
        (
            Body("application/vnd.x+json", (Field("body_id", "id"), Field("b", "b"))),
            {"id": 1, "body_id": 2, "other": 3},
            ("application/vnd.x+json", b'{"id":2}'),
        ),
        (Body(JSON, (Field("a", "a"),)), {}, None),
        (
            Body(JSON, (Field("a", "a"),), all_but=frozenset({"a", "q"})),
            {"z": 1, "a": 2, "q": 3, "b": None},
            (JSON, b'{"a":2,"z":1,"b":null}'),
        ),
        (Body(JSON, (Field("a", "a"),), required=True), {}, (JSON, b"{}")),
        (
            Body(JSON, (Field("a", "$a"), Field("b", "$b")), all_but=frozenset({"a", "b"})),
            {"$a": 1, "$b": 2, "b": 3},
            (JSON, b'{"$b":3,"$a":1}'),
        ),
        (Body(JSON, constants={"a": 1}), {}, (JSON, b'{"a":1}')),
        (
            Body(JSON, (Field("a", "a"),), constants={"a": {"x": 1, "y": {"z": 2}}, "b": 3}),
            {"a": {"w": 0, "x": 9, "y": {"v": 4}}},
            (JSON, b'{"a":{"w":0,"x":1,"y":{"v":4,"z":2}},"b":3}'),
        ),
        (Body(JSON, (Field("a", "a"),), wrap="data"), {"a": 1}, (JSON, b'{"data":[{"a":1}]}')),
        (Body(JSON, whole="r", wrap="data"), {"r": [1, 2]}, (JSON, b'{"data":[1,2]}')),
        (
            Body("text/plain", whole="body"),
            {"body": "é"},
            ("text/plain; charset=utf-8", "é".encode()),
        ),
        (
            Body("text/csv; charset=UTF-8", whole="body"),
            {"body": "a,b"},
            ("text/csv; charset=UTF-8", b"a,b"),
        ),
        (Body("application/xml", whole="body"), {"body": "<a/>"}, ("application/xml", b"<a/>")),
        (Body(OCTETS, whole="body", binary=True), {"body": "AAH/"}, (OCTETS, b"\x00\x01\xff")),
        (
            Body(
                FORM,
                (
                    Field("a", "a"),
                    Field("l", "l"),
                    Field("c", "c", explode=False),
                    Field("d", "d", style="deepObject"),
                    Field("o", "o"),
                    Field("j", "j", media_type="application/json"),
                    Field("n", "n"),
                ),
                constants={"k&": True},
            ),
            {
                "a": "1 &=+",
                "l": [1, 2],
                "c": ["x", "y"],
                "d": {"e": {"f": 1}},
                "o": {"p": 1},
                "j": [1],
                "n": None,
            },
            (
                FORM,
                b"a=1%20%26%3D%2B&l=1&l=2&c=x,y&d%5Be%5D%5Bf%5D=1&o=%7B%22p%22%3A1%7D&j=%5B1%5D"
                b"&k%26=true",
            ),
        ),
        (Body(FORM, whole="body"), {"body": {"a": 1, "b": [1, 2]}}, (FORM, b"a=1&b=1&b=2")),
    ],
)
def test_body_is_sent_as_its_media_type_wants(
    body: Body, arguments: dict[str, Any], sent: tuple[str, bytes] | None
) -> None:
    assert encode_body(body, arguments) == sent


@pytest.mark.parametrize(
    ("body", "arguments", "argument"),
    [
        (Body(JSON, whole="body", required=True), {}, "/body"),
        *((Body(OCTETS, whole="raw", binary=True), {"raw": raw}, "/raw") for raw in NOT_BASE64),
        (Body(MULTIPART, (Field("f", "file", file=True),)), {"f": "%"}, "/f"),
        (Body(FORM, whole="body"), {"body": [1]}, "/body"),
    ],
)
def test_body_that_can_not_be_made_is_refused_by_name(
    body: Body, arguments: dict[str, Any], argument: str
) -> None:
    with raises(Fixable, problems=[argument]):
        encode_body(body, arguments)


def parts_of(sent: tuple[str, bytes] | None) -> list[tuple[str, str | None, str, bytes]]:
    """Name, file name, media type and content of each part, read by Python's own parser."""
    assert sent
    text = f"Content-Type: {sent[0]}\r\n\r\n".encode() + sent[1]
    message = email.message_from_bytes(text, policy=email.policy.HTTP)
    parts = []
    for part in message.iter_parts():
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        name = part.get_param("name", header="content-disposition")
        parts.append((str(name), part.get_filename(), part.get_content_type(), content))
    return parts


def test_multipart_holds_files_values_and_objects() -> None:
    body = Body(
        MULTIPART,
        (
            Field("doc", "document", file=True, file_name_argument="doc_filename"),
            Field("pics", "pics", file=True, media_type="image/png"),
            Field("note", "note"),
            Field("tags", "tags"),
            Field("meta", "meta"),
            Field("list", "list", media_type="application/json; charset=utf-8"),
            Field("csv", "csv", explode=False),
            Field("pipes", "pipes", style="pipeDelimited", explode=False),
        ),
        constants={"kind": "cv"},
    )
    arguments = {
        "doc": base64.b64encode(b"\r\n--x\0").decode(),
        "doc_filename": "cv.pdf",
        "pics": ["AA==", "AQ=="],
        "note": "hé",
        "tags": ["a", "b"],
        "meta": {"x": 1},
        "list": [1, 2],
        "csv": ["a", 2],
        "pipes": ["a", "b c"],
    }
    sent = encode_body(body, arguments)
    assert parts_of(sent) == [
        ("document", "cv.pdf", "application/pdf", b"\r\n--x\0"),
        ("pics", "pics", "image/png", b"\0"),
        ("pics", "pics", "image/png", b"\1"),
        ("note", None, "text/plain", "hé".encode()),
        ("tags", None, "text/plain", b"a"),
        ("tags", None, "text/plain", b"b"),
        ("meta", None, "application/json", b'{"x":1}'),
        ("list", None, "application/json", b"[1,2]"),
        ("csv", None, "text/plain", b"a,2"),
        ("pipes", None, "text/plain", b"a|b c"),
        ("kind", None, "text/plain", b"cv"),
    ]
    assert sent == encode_body(body, arguments)


@pytest.mark.parametrize(
    ("accepted", "said", "type_sent"),
    [
        (None, {"n": "Cat.PNG"}, "image/png"),
        (None, {"n": "notes.docx"}, WORD),
        (None, {"n": "logs.tar.gz"}, "application/gzip"),
        (None, {"n": "no ending"}, OCTETS),
        (None, {}, OCTETS),
        (None, {"n": "cat.png", "t": "image/x-own; v=1"}, "image/x-own"),
        ("image/png", {}, "image/png"),
        ("image/png", {"n": "cat.jpg"}, "image/png"),
        ("image/png", {"t": "image/webp"}, "image/webp"),
        ("image/png, image/jpeg", {"n": "cat.jpg"}, "image/jpeg"),
        ("image/png, image/jpeg", {"n": "cat.gif"}, "image/png"),
        ("image/*", {"n": "cat.gif"}, "image/gif"),
        ("image/*", {"n": "cat.txt"}, OCTETS),
        ("*/*", {"n": "cat.txt"}, "text/plain"),
    ],
)
def test_file_has_the_type_that_is_said_or_its_name_tells(
    accepted: str | None, said: dict[str, str], type_sent: str
) -> None:
    body = Body(MULTIPART, (Field("f", "f", True, "n", "t", accepted),))
    [(_, _, found, _)] = parts_of(encode_body(body, {"f": "QUJD", **said}))
    assert found == type_sent


def test_each_of_several_files_has_a_name_and_a_type() -> None:
    body = Body(MULTIPART, (Field("f", "f", True, "n", "t"),))
    names, types = ["a.png", "b.pdf"], ["", "application/x-own"]
    sent = encode_body(body, {"f": ["QQ==", "Qg==", "Qw=="], "n": names, "t": types})
    assert parts_of(sent) == [
        ("f", "a.png", "image/png", b"A"),
        ("f", "b.pdf", "application/x-own", b"B"),
        ("f", "f", OCTETS, b"C"),
    ]


@pytest.mark.parametrize("said", ["png", "image/png\r\nX-Evil: 1", "image/\u00e9", "a/b;\n"])
def test_a_type_that_is_none_is_refused_by_name(said: str) -> None:
    body = Body(MULTIPART, (Field("f", "f", True, "n", "t"),))
    with raises(Fixable, problems=["/t"]):
        encode_body(body, {"f": "QUJD", "t": said})


@given(name=st.text(min_size=1, max_size=10), file_name=st.text(min_size=1, max_size=10))
def test_names_can_not_inject_into_a_multipart_body(name: str, file_name: str) -> None:
    body = Body(MULTIPART, (Field("f", name, file=True, file_name_argument="n"),))
    sent = encode_body(body, {"f": "QUJD", "n": file_name})
    assert sent
    boundary = sent[0].partition("boundary=")[2].encode()
    head, content = sent[1].split(b"\r\n\r\n", 1)
    assert content == b"ABC\r\n--" + boundary + b"--\r\n"
    lines = head.split(b"\r\n")
    assert (len(lines), lines[0], lines[2]) == (
        3,
        b"--" + boundary,
        b"Content-Type: application/octet-stream",
    )
    assert lines[1].count(b'"') == 4 and b"\n" not in lines[1]


@given(content=st.binary(max_size=40))
def test_file_arrives_as_it_was(content: bytes) -> None:
    body = Body(MULTIPART, (Field("f", "f", file=True),))
    encoded = base64.b64encode(content).decode()
    sent = encode_body(body, {"f": encoded})
    assert sent and sent[1].split(b"\r\n\r\n", 1)[1].startswith(content + b"\r\n--")


@given(
    values=st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.one_of(st.text(max_size=10), st.integers(-(2**63), 2**63), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_form_comes_back_as_it_went_in(values: dict[str, Any]) -> None:
    sent = encode_body(Body(FORM, whole="body"), {"body": values})
    assert sent
    expected = [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in values.items()
    ]
    decoded = parse_qsl(sent[1].decode(), keep_blank_values=True, max_num_fields=10)
    assert decoded == expected


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
    assert join_value(style, explode, "color", value, percent_encode) == text


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
    texts = [
        f"{name}={text}"
        for name, text in name_value_pairs(style, explode, "color", value, percent_encode)
    ]
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
    assert scalar_text(value) == text


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
