"""How an answer is shown, and how one that is too large is read in parts."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.answer import HEADERS_META, WholeAnswer, part_of, read_part, shape
from gateway.calls.redact import Redactor
from gateway.errors import Fixable
from gateway.limits import STEP_BYTES
from gateway.model import Result
from gateway.outbound.client import Answer
from gateway.outbound.content import may_be_json
from tests.raising import raises


def answered(
    body: bytes, content_type: str = "application/json", status: int = 200, **headers: str
) -> Answer:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Answer(status, (("content-type", content_type), *pairs), body)


def shaped(answer: Answer, limit: int = 100_000, **more: Any) -> Result:
    return shaped_and_kept(answer, limit, **more)[0]


def shaped_and_kept(
    answer: Answer, limit: int = 100_000, **more: Any
) -> tuple[Result, WholeAnswer | None]:
    return shape(answer, Redactor(()), max_output_bytes=limit, result_id="r1", **more)


def told_headers(result: Result) -> dict[str, str]:
    headers: dict[str, str] = result.get("_meta", {}).get(HEADERS_META, {})
    return headers


@pytest.mark.parametrize(
    ("status", "headers", "told", "said"),
    [
        (200, {"etag": '"7"', "date": "now", "server": "x"}, {"etag": '"7"'}, []),
        (200, {"location": "/items/7"}, None, []),
        (201, {"location": "/items/7"}, None, ["Location: /items/7"]),
        (
            202,
            {"operation-location": "https://a/jobs/1", "retry-after": "5"},
            None,
            ["Operation-Location: https://a/jobs/1"],
        ),
        (
            200,
            {"link": '<https://a/?a=1,2&page=3>; title="b, c"; rel="last next", <x>; rel=prev'},
            None,
            ["Next page: https://a/?a=1,2&page=3"],
        ),
        (200, {"link": "<x>; rel=prev, <y>; rel=nextish"}, None, []),
        (200, {"link": "<x>; rel=prev, <y>; Rel=Next"}, None, ["Next page: y"]),
        (200, {"next-page": "abc"}, None, ["Next page: next-page abc"]),
        (
            200,
            {"x-next-page": "", "x-total-pages": "3", "x-per-page": "20", "x-page": "3"},
            {"x-total-pages": "3", "x-per-page": "20", "x-page": "3"},
            [],
        ),
        (
            200,
            {"x-ms-continuationtoken": "t", "content-range": "0-9/99", "x-total-count": "99"},
            None,
            ["Next page: x-ms-continuationtoken t"],
        ),
        (
            200,
            {"x-ratelimit-remaining": "0", "ratelimit-policy": "q", "x-rate-limit-reset": "1"},
            None,
            [],
        ),
        (200, {"x-shopify-shop-api-call-limit": "1/40"}, None, []),
        (200, {"x-trace": "t1"}, None, []),
        (200, {"set-cookie": "a=b", "x-powered-by": "php", "x-frame-options": "x"}, {}, []),
    ],
)
def test_headers_that_say_how_to_go_on_are_told(
    status: int, headers: dict[str, str], told: dict[str, str] | None, said: list[str]
) -> None:
    answer = Answer(status, tuple(headers.items()), b"[1]")
    found = shaped(answer, headers_out=("x-trace",))
    assert told_headers(found) == (headers if told is None else told)
    assert [part["text"] for part in found["content"]] == ["[1]", *said]


def test_a_header_that_comes_several_times_is_joined() -> None:
    pairs = (("link", "<a>; rel=prev"), ("link", "<b>; rel=next"))
    found = shaped(Answer(200, pairs, b""))
    assert told_headers(found) == {"link": "<a>; rel=prev, <b>; rel=next"}
    assert [part["text"] for part in found["content"]][1:] == ["Next page: b"]


def test_an_error_tells_its_headers_and_adds_nothing_to_its_text() -> None:
    pairs = (("retry-after", "7"), ("x-ratelimit-limit", "9"), ("location", "/x"))
    found = shaped(Answer(429, pairs, b""))
    assert (told_headers(found), len(found["content"])) == (dict(pairs), 1)


@pytest.mark.parametrize(
    ("body", "content_type", "text", "structured"),
    [
        (b'{"a": 1}', "application/json", '{"a": 1}', {"a": 1}),
        (b'{"a": 1}', "application/hal+json; charset=utf-8", '{"a": 1}', {"a": 1}),
        (b"[1, 2]", "application/json", "[1, 2]", {"result": [1, 2]}),
        (b"null", "application/json", "null", {"result": None}),
        (b'"x"', "application/json", '"x"', {"result": "x"}),
        (b'\xef\xbb\xbf{"a":1}', "application/json", '{"a":1}', {"a": 1}),
        ('{"é":1}'.encode("latin-1"), "application/json; charset=latin-1", '{"é":1}', {"é": 1}),
        ('{"a":1}'.encode("utf-16"), 'text/json; charset="utf-16"', '{"a":1}', {"a": 1}),
        (b'{"a":1}', "", '{"a":1}', {"a": 1}),
        (b'{"a":1}', "text/plain", '{"a":1}', {"a": 1}),
        (b"12", "text/plain", "12", None),
        (b"{broken", "application/json", "{broken", None),
        (b'{"a":NaN}', "application/json", '{"a":NaN}', None),
        (b"<html/>", "text/html", "<html/>", None),
        (b"<svg/>", "image/svg+xml", "<svg/>", None),
        (b"a,b", "application/csv", "a,b", None),
        (b"plain", "application/octet-stream", "plain", None),
        (b"caf\xe9", "text/plain; charset=iso-8859-1", "café", None),
        (b"caf\xe9", "text/plain; charset=nonsense", "caf\ufffd", None),
    ],
)
def test_text_and_structure_of_an_answer(
    body: bytes, content_type: str, text: str, structured: dict[str, Any] | None
) -> None:
    found, kept = shaped_and_kept(answered(body, content_type))
    assert (found["content"], found.get("structuredContent")) == (
        [{"type": "text", "text": text}],
        structured,
    )
    assert (found["isError"], kept) == (False, None)


def test_what_is_kept_of_a_text_in_another_charset_is_utf_8() -> None:
    _, kept = shaped_and_kept(answered(b"caf\xe9" * 100, "text/plain; charset=iso-8859-1"), 100)
    assert kept == ("text/plain; charset=utf-8", "café".encode() * 100)


def test_image_and_audio_are_themselves() -> None:
    for kind in ("image/png", "audio/mpeg"):
        assert shaped(answered(b"\x89\0", kind))["content"] == [
            {"type": kind.split("/")[0], "data": "iQA=", "mimeType": kind}
        ]


def test_other_file_is_embedded_with_a_sentence() -> None:
    body = b"%PDF\0\xff"
    assert shaped(answered(body, "application/pdf")) == {
        "content": [
            {"type": "text", "text": "A file of 6 bytes, application/pdf."},
            {
                "type": "resource",
                "resource": {
                    "uri": "gateway://answer",
                    "mimeType": "application/pdf",
                    "blob": base64.b64encode(body).decode(),
                },
            },
        ],
        "isError": False,
    }


def test_answer_without_content_says_so() -> None:
    said = {"type": "text", "text": "204 No Content: done, without content."}
    assert shaped(Answer(204, (), b"")) == {"content": [said], "isError": False}


def test_answer_over_the_bound_is_a_preview_and_kept_whole() -> None:
    body = orjson.dumps({"items": ["é" * 10] * 1000})
    result, kept = shaped_and_kept(answered(body), 5000)
    preview = body.decode()[:2000]
    assert result["structuredContent"] == {
        "truncated": True,
        "bytes": len(body),
        "result_id": "r1",
        "preview": preview,
    }
    assert (kept, result["isError"]) == (("application/json", body), False)
    assert result["content"] == [
        {
            "type": "text",
            "text": f"The answer is too large to show: {len(body)} bytes, application/json. "
            f"Read it in parts with read_result and result_id 'r1'. It begins:\n\n{preview}",
        }
    ]


def test_answer_that_was_cut_off_says_so_also_below_the_bound() -> None:
    result = shaped(Answer(200, (("content-type", "application/json"),), b'{"a":', True))
    assert result["structuredContent"] == {
        "truncated": True,
        "bytes": 5,
        "result_id": "r1",
        "preview": '{"a":',
        "incomplete": True,
    }


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "text/plain", ""])
def test_answer_that_was_cut_off_is_never_parsed(kind: str) -> None:
    body = b"[" + b"1," * 5_000_000
    _, kept = shaped_and_kept(Answer(200, (("content-type", kind),), body, True))
    assert kept is not None and not may_be_json(body, kept[0])
    part = part_of(body, kept[0], "", 1, 3)
    assert (part["total"], part["value"]) == (len(body), "1,1")


def test_large_image_is_not_shown_but_kept() -> None:
    result, kept = shaped_and_kept(answered(b"\x89PNG\0" * 1000, "image/png"), 100)
    assert result["structuredContent"]["preview"] == ""
    assert kept == ("image/png", b"\x89PNG\0" * 1000)


def test_json_too_deep_to_be_written_again_is_text_only() -> None:
    deep = b"[" * 300 + b"]" * 300
    assert "structuredContent" not in shaped(answered(deep))
    wide = b"[" + b",".join([b"[]"] * 300) + b"]"
    assert shaped(answered(wide))["structuredContent"] == {"result": [[]] * 300}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"message": "Not yours"}, "Not yours"),
        ({"Message": "Not yours"}, "Not yours"),
        ({"error": "Not yours"}, "Not yours"),
        ({"error": {"code": 5, "message": "Not yours"}}, "Not yours"),
        ({"error": "invalid_grant", "error_description": "Expired"}, "invalid_grant: Expired"),
        ({"errors": [{"message": "One"}, {"detail": "Two"}]}, "One; Two"),
        ({"errors": ["One", "Two"]}, "One; Two"),
        ({"detail": [{"loc": ["body", "a"], "msg": "missing"}]}, "body.a: missing"),
        ({"title": "Bad", "detail": "Really  bad\n"}, "Really bad"),
        ({"fault": {"faultstring": "Quota"}}, "Quota"),
        ([{"message": "First"}], "First"),
        ("Just text", "Just text"),
    ],
)
def test_error_is_told_in_the_words_of_the_api(body: Any, words: str) -> None:
    result = shaped(answered(orjson.dumps(body), status=404))
    text = orjson.dumps(body).decode()
    message = f"The API answered 404 Not Found: {words}"
    hint = "Check the identifiers; list or search to find the right ones."
    assert result["structuredContent"] == {
        "error": {
            "code": "upstream_error",
            "message": message,
            "hint": hint,
            "status": 404,
            "body": text,
        }
    }
    assert result["isError"]
    assert result["content"][0]["text"].startswith(f"{message}\n{hint}")


FAULT = "The fault is on the API's side; try again later."


@pytest.mark.parametrize(
    ("answer", "said", "hint", "more"),
    [
        (
            Answer(401, (), b""),
            "401 Unauthorized.",
            "The API does not accept the connection's credentials; an operator must renew them.",
            {},
        ),
        (
            answered(b"<h1>no</h1>", "text/html", 502),
            "502 Bad Gateway.",
            FAULT,
            {"body": "<h1>no</h1>"},
        ),
        (
            answered(b"slow down", "text/plain", 429, retry_after="7"),
            "429 Too Many Requests: slow down",
            "Wait before calling again.",
            {"body": "slow down", "retry_after": 7},
        ),
        (
            Answer(302, (("location", "https://x.test/"),), b""),
            "302 Found and points elsewhere, which is not followed.",
            "Call the tool for the place it points to, if there is one.",
            {"location": "https://x.test/"},
        ),
        (
            Answer(304, (), b""),
            "304 Not Modified.",
            "What you have is what the API has: nothing has changed.",
            {},
        ),
        (Answer(599, (), b"\xff\0"), "599.", FAULT, {}),
    ],
)
def test_error_says_what_and_what_to_do(
    answer: Answer, said: str, hint: str, more: dict[str, Any]
) -> None:
    error = {"code": "upstream_error", "message": f"The API answered {said}", "hint": hint}
    result = shaped(answer)
    assert result["structuredContent"] == {"error": {**error, "status": answer.status, **more}}
    assert all(str(value) in result["content"][0]["text"] for value in more.values())


@given(
    body=st.binary(max_size=300),
    kind=st.sampled_from(
        ["", "application/json", "text/plain", "image/png", "a/b; charset=\0", ";;"]
    ),
    status=st.sampled_from([200, 204, 302, 400, 500, 999]),
    limit=st.integers(1, 400),
)
def test_no_answer_can_break_the_shaping(body: bytes, kind: str, status: int, limit: int) -> None:
    result = shaped(answered(body, kind, status), limit)
    orjson.dumps(result)


JSON = "application/json"
DOCUMENT = {"items": [{"id": i} for i in range(250)], "note": "héllo", "a/b": {"~": [1]}, "n": None}
BODY = orjson.dumps(DOCUMENT)
ITEMS = [{"id": n, "name": f"Nämé {n}", "text": "line\n" * 3} for n in range(20_000)]
LARGE = orjson.dumps({"items": ITEMS})


def read(body: bytes, media_type: str = JSON, **asked: Any) -> dict[str, Any]:
    return asyncio.run(read_all(body, media_type, **asked))


async def nobody(job: Callable[..., bytes], data: bytes, *arguments: str) -> None:
    """Another process that can't do it."""


async def read_all(
    body: bytes, media_type: str = JSON, work: Any = nobody, **asked: Any
) -> dict[str, Any]:
    wanted = {"pointer": "", "offset": 0, "limit": 0, **asked}
    return await read_part(work, body, media_type, **wanted)


@pytest.mark.parametrize(
    ("asked", "total", "value", "next_offset"),
    [
        ({"pointer": "/items", "limit": 2}, 250, [{"id": 0}, {"id": 1}], 2),
        ({"pointer": "/items", "offset": 248}, 250, [{"id": 248}, {"id": 249}], None),
        ({"pointer": "/items", "offset": 900}, 250, [], None),
        ({"pointer": "/items", "offset": 2**63}, 250, [], None),
        ({"pointer": "/items/7"}, 8, '{"id":7}', None),
        ({"pointer": "items/7/id"}, 1, "7", None),
        ({"pointer": "/note", "offset": 1, "limit": 2}, 5, "él", 3),
        ({"pointer": "/a~1b/~0"}, 1, [1], None),
        ({"pointer": "/n"}, 4, "null", None),
        ({"limit": 9}, len(BODY.decode()), '{"items":', 9),
    ],
)
def test_slice_counts_items_in_arrays_and_characters_elsewhere(
    asked: dict[str, Any], total: int, value: Any, next_offset: int | None
) -> None:
    more = {} if next_offset is None else {"next_offset": next_offset}
    wanted = {"bytes": len(BODY), "total": total, "offset": asked.get("offset", 0), "value": value}
    assert read(BODY, **asked) == wanted | more


def test_array_is_read_a_hundred_items_at_a_time() -> None:
    part = read(BODY, pointer="/items")
    assert (len(part["value"]), part["next_offset"]) == (100, 100)


@pytest.mark.parametrize(
    ("body", "asked", "argument"),
    [
        (BODY, {"pointer": "/nope"}, "/pointer"),
        (BODY, {"pointer": "/items/250"}, "/pointer"),
        (BODY, {"pointer": "/items/-1"}, "/pointer"),
        (BODY, {"pointer": "/note/x"}, "/pointer"),
        (BODY, {"pointer": "/items/" + "9" * 5000}, "/pointer"),
        (BODY, {"pointer": "/\ud800"}, "/pointer"),
        (b"text", {"pointer": "/a"}, "/pointer"),
        (BODY[:-9], {"pointer": "/items"}, "/pointer"),  # it was cut
        (LARGE, {"pointer": "/items"}, "/pointer"),  # no worker process could read it
    ],
)
def test_slice_that_does_not_exist_is_refused_by_name(
    body: bytes, asked: dict[str, Any], argument: str
) -> None:
    with raises(Fixable, problems=[argument]):
        read(body, **asked)


def test_slice_is_bounded_whatever_the_limit() -> None:
    part = part_of(orjson.dumps(["x" * 60_000] * 10), JSON, "", 0, 10)
    assert (len(part["value"]), part["next_offset"]) == (1, 1)
    text = part_of("é".encode() * 50_000, "text/plain", "", 0, 50_000)
    assert (len(text["value"]), text["next_offset"]) == (STEP_BYTES // 2, STEP_BYTES // 2)
    assert len(read(b"x" * 200_000, "text/plain", limit=200_000)["value"]) == STEP_BYTES
    with raises(Fixable, hint="Read it with the pointer /0."):
        part_of(orjson.dumps(["x" * STEP_BYTES] * 2), JSON, "", 0, 0)


@given(
    text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\ufeff"), max_size=60),
    limit=st.integers(1, 20),
)
def test_parts_put_together_are_the_whole(text: str, limit: int) -> None:
    parts, offset = [], 0
    for _ in range(100):
        part = part_of(text.encode(), "text/x; charset=utf-8", "", offset, limit)
        parts.append(part["value"])
        if "next_offset" not in part:
            break
        offset = part["next_offset"]
    assert "".join(parts) == text


async def test_json_that_takes_too_much_is_read_as_text() -> None:
    text = LARGE.decode()
    assert (await read_all(LARGE, limit=9))["value"] == text[:9]
    assert (await read_all(LARGE, offset=len(text) - 9))["value"] == text[-9:]
