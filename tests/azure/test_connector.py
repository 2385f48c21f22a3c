"""A request inside a request, and the answer that comes out of the answer."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.azure.connector import status_number, unwrap_answer, wrap_request
from gateway.blocklist import decodings
from gateway.calls.request import build_request
from gateway.errors import Fixable
from gateway.limits import LARGE_BYTES
from gateway.model import HttpOperation, Parameter
from gateway.outbound.client import Answer, Request

ID = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Web/connections/mail"
BASE = f"https://azure.example{ID}"


def wrapped(request: Request) -> Any:
    outer = wrap_request(request, BASE, ID)
    assert (outer.method, outer.url) == ("POST", f"{BASE}/dynamicInvoke?api-version=2016-06-01")
    assert outer.body is not None
    return orjson.loads(outer.body)["request"]


@pytest.mark.parametrize(
    ("content_type", "body", "inner"),
    [
        ("application/json", b'{"a":1}', {"a": 1}),
        ("application/vnd.x+json; v=1", b"[1]", [1]),
        ("text/plain; charset=utf-8", "é".encode(), "é"),
        (
            "application/octet-stream",
            b"\x00\xff",
            {"$content-type": "application/octet-stream", "$content": "AP8="},
        ),
        (
            "multipart/form-data; boundary=b",
            b"--b--",
            {"$content-type": "multipart/form-data; boundary=b", "$content": "LS1iLS0="},
        ),
    ],
)
def test_a_body_goes_in_as_json_text_or_base64(
    content_type: str, body: bytes, inner: object
) -> None:
    headers = (("Accept", "x"), ("Content-Type", content_type), ("Prefer", "y"))
    request = Request("PUT", f"{BASE}/a%20b/?q=1%202&q=3&e=", headers, body)

    assert wrapped(request) == {
        "method": "PUT",
        "path": "/a%20b/",
        "queries": {"q": "1 2,3", "e": ""},
        "headers": {"Prefer": "y"},
        "body": inner,
    }


def test_a_request_without_a_body_has_none_inside() -> None:
    assert wrapped(Request("GET", f"{BASE}/a")) == {
        "method": "GET",
        "path": "/a",
        "queries": {},
        "headers": {},
    }


@given(st.text(max_size=20), st.booleans())
def test_no_value_climbs_out_of_its_path_however_often_it_is_decoded(
    value: str, double: bool
) -> None:
    parameter = Parameter("id", "path", "id", double_encoded=double)
    operation = HttpOperation("GET", BASE, "/mail/{id}/read", (parameter,))
    try:
        request = build_request(operation, {"id": value})
    except Fixable:
        return
    path = wrapped(request)["path"]
    assert path.count("/") == 3
    for text in decodings(path):
        segments = text.replace("\\", "/").split("/")
        assert segments[:2] == ["", "mail"] and segments[-1] == "read"
        assert not {".", ".."} & set(segments)


STATUSES: dict[object, int] = {
    "OK": 200,
    "Created": 201,
    "NoContent": 204,
    "Ambiguous": 300,
    "BadRequest": 400,
    "RequestEntityTooLarge": 413,
    "TooManyRequests": 429,
    "BadGateway": 502,
    404: 404,
    "404": 404,
    "Nonsense": 502,
    True: 502,
    None: 502,
    9999: 502,
}


def test_a_status_is_a_name_of_dotnet_or_a_number() -> None:
    assert {said: status_number(said) for said in STATUSES} == STATUSES


def answered(response: object, status: int = 200, *headers: tuple[str, str]) -> Answer:
    body = orjson.dumps({"response": response})
    return Answer(status, (("content-type", "application/json"), *headers), body)


JSON = {"content-type": "application/json"}
NAMED = {"x-ms-client-request-id": "r1", "Content-Type": "application/json"}
PNG = {"$content-type": "image/png", "$content": base64.b64encode(b"png").decode()}


@pytest.mark.parametrize(
    ("response", "status", "headers", "body"),
    [
        (
            {"statusCode": "OK", "body": {"a": 1}, "headers": {"Content-Length": "9"}},
            200,
            JSON,
            b'{"a":1}',
        ),
        (
            {"statusCode": "NotFound", "body": {"error": {"message": "gone"}}, "headers": NAMED},
            404,
            {**JSON, "x-ms-client-request-id": "r1"},
            b'{"error":{"message":"gone"}}',
        ),
        (
            {"statusCode": 429, "headers": {"Retry-After": "7"}, "body": "slow"},
            429,
            {"retry-after": "7", "content-type": "text/plain; charset=utf-8"},
            b"slow",
        ),
        ({"statusCode": "OK", "body": PNG}, 200, {"content-type": "image/png"}, b"png"),
        ({"statusCode": "NoContent"}, 204, {}, b""),
        ({"statusCode": "OK", "body": "x", "headers": JSON}, 200, JSON, b'"x"'),
    ],
)
async def test_the_answer_inside_comes_out_as_if_the_api_had_given_it(
    response: object, status: int, headers: dict[str, str], body: bytes
) -> None:
    out = await unwrap_answer(answered(response), nobody)
    assert (out.status, dict(out.headers), out.body) == (status, headers, body)


async def test_a_large_answer_is_opened_elsewhere_or_left_as_it_is() -> None:
    text = "x" * LARGE_BYTES
    answer = answered({"statusCode": "NotFound", "body": text})

    async def elsewhere(job: Callable[..., bytes], data: bytes, *arguments: str) -> bytes:
        return job(data, *arguments)

    out = await unwrap_answer(answer, elsewhere)
    assert (out.status, out.body) == (404, text.encode())
    assert await unwrap_answer(answer, nobody) is answer


async def nobody(job: Callable[..., bytes], data: bytes, *arguments: str) -> None:
    """Another process that can't do it."""


async def test_azures_own_answer_is_left_as_it_is() -> None:
    for answer in (
        Answer(403, (), b'{"error":{"code":"Forbidden"}}'),
        Answer(200, (), b"not json"),
        Answer(200, (("content-type", "application/json"),), b'{"other":1}'),
    ):
        assert await unwrap_answer(answer, nobody) is answer


async def test_azures_request_id_stands_in_where_the_api_gives_none() -> None:
    answer = answered({"statusCode": "BadGateway"}, 200, ("x-ms-request-id", "r2"))
    out = await unwrap_answer(answer, nobody)
    assert (out.status, out.header("x-ms-client-request-id")) == (502, "r2")
