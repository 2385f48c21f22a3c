from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.calls.request import build_request, with_headers
from gateway.errors import Fixable, Refused
from gateway.model import Body, HttpOperation, Parameter
from gateway.outbound.client import Egress, Request
from tests.raising import raises
from tests.raw_server import always, answer, raw_server

BASE = "https://api.example.test/v1"


def path_operation(path: str, *parameters: Parameter) -> HttpOperation:
    return HttpOperation("get", BASE, path, parameters)


def url_of(operation: HttpOperation, arguments: dict[str, Any]) -> str:
    return build_request(operation, arguments).url.removeprefix(BASE)


def test_request_holds_every_argument_in_its_place() -> None:
    operation = HttpOperation(
        method="post",
        base_url=BASE,
        path="/users/{user-id}/mail",
        parameters=(
            Parameter("user-id", "path", "user_id"),
            Parameter("$filter", "query", "filter", "form", True),
            Parameter("api-version", "query", None, constant="2016-06-01"),
            Parameter("absent", "query", "absent", "form", True),
            Parameter("where", "query", "where", media_type="application/json"),
            Parameter("X-Trace", "header", "trace"),
            Parameter("session", "cookie", "session", "form"),
            Parameter("tags", "cookie", "tags", "form", True),
        ),
        body=Body("application/json", whole="body"),
        accept="application/json, text/csv",
    )
    arguments = {
        "user_id": "a b/ü",
        "filter": "x eq 'y'&z",
        "absent": None,
        "where": {"a": 1},
        "trace": ["1", 2],
        "session": 'q;"w, e\\',
        "tags": ["a", "b"],
        "body": [1, "é"],
    }
    assert build_request(operation, arguments) == Request(
        "POST",
        BASE + "/users/a%20b%2F%C3%BC/mail?$filter=x%20eq%20%27y%27%26z&api-version=2016-06-01"
        "&where=%7B%22a%22%3A1%7D",
        (
            ("Accept", "application/json, text/csv"),
            ("X-Trace", "1,2"),
            ("Cookie", "session=q%3B%22w%2C%20e%5C; tags=a; tags=b"),
            ("Content-Type", "application/json"),
        ),
        '[1,"é"]'.encode(),
    )


# --- path -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "sent"),
    [
        ("/a/{x}", "b", "/a/b"),
        ("/a/{x}/", "b", "/a/b/"),
        ("a/{x}", "b", "/a/b"),
        ("//{x}//y///", "b", "//b//y///"),
        ("/datasets('{x}')/items", "it's", "/datasets('it%27s')/items"),
        ("/a/{x},{x}", "b", "/a/b,b"),
        ("/a/{x}", "b/c", "/a/b%2Fc"),
        ("/a/{x}", "50%", "/a/50%25"),
        ("/a/{x}", "a?b#c&d", "/a/a%3Fb%23c%26d"),
        ("/a/{x}", "...", "/a/..."),
        ("/a/{x}", "a..b", "/a/a..b"),
        ("/a/{x}", "~_-.z", "/a/~_-.z"),
        ("/a/{x}", 7, "/a/7"),
        ("/a/{x}", 7.0, "/a/7"),
        ("/a/{x}", True, "/a/true"),
        ("/a/{x}", ["p", "q"], "/a/p,q"),
        ("/a/{x}", {"p": 1}, "/a/p,1"),
        ("/a b/%7Eü/{x}", "b", "/a%20b/%7E%C3%BC/b"),
        ("/a/{x}#f", "b", "/a/b%23f"),
        ("/a/{{x}", "b", "/a/%7Bb"),
    ],
)
def test_path_value_is_encoded_and_the_template_is_not(path: str, value: Any, sent: str) -> None:
    assert url_of(path_operation(path, Parameter("x", "path", "x")), {"x": value}) == sent


def test_double_encoded_value_is_encoded_twice() -> None:
    parameter = Parameter("x", "path", "x", double_encoded=True)
    assert url_of(path_operation("/a/{x}/b", parameter), {"x": "https://c.test/d e"}) == (
        "/a/https%253A%252F%252Fc.test%252Fd%2520e/b"
    )


def test_template_variable_that_nobody_declared_is_an_argument() -> None:
    assert url_of(path_operation("/a/{x}"), {"x": "b c"}) == "/a/b%20c"


# What climbs out of a segment; inside one, as in `('..')`, it is no dot segment.
DOTS = r""". .. ../x x/.. ..\x %2e%2e %2E. %252e%252e ..;a=1 ..;/x %c0%ae%c0%ae ．．""".split() + [
    " .. "
]
LEAVING = "x/../../y %2e%2e%2f x%2fy x%2Fy x%252fy x%5cy x%00 x%0d%0ay".split()
UNSENT: list[Any] = ["", " ", "x\0", "x\r\ny", "\x7f", "\u0085", None, [], [""], ["", ""], {}]


@pytest.mark.parametrize("value", [*DOTS, *LEAVING, *UNSENT])
@pytest.mark.parametrize("template", ["/a/{x}", "/a/{x}/b"])
def test_path_value_that_could_leave_its_segment_is_refused(template: str, value: Any) -> None:
    with raises(Fixable, code="invalid_arguments", problems=["/x"]):
        build_request(path_operation(template, Parameter("x", "path", "x")), {"x": value})


@pytest.mark.parametrize("value", [*LEAVING, *UNSENT])
def test_value_inside_a_segment_that_could_leave_it_is_refused(value: Any) -> None:
    with pytest.raises(Fixable):
        build_request(path_operation("/d('{x}')", Parameter("x", "path", "x")), {"x": value})


@pytest.mark.parametrize("value", DOTS)
def test_dots_inside_a_segment_stay_inside(value: str) -> None:
    operation = path_operation("/d('{x}')", Parameter("x", "path", "x"))
    assert url_of(operation, {"x": value}) == f"/d('{quote(value, safe='')}')"


def test_values_can_not_join_up_into_a_dot_segment() -> None:
    operation = path_operation(
        "/a/{x}{y}/b", Parameter("x", "path", "x"), Parameter("y", "path", "y")
    )
    for x, y in [("%2", "e%2e"), (".", "."), ("%2e", "%2e")]:
        with pytest.raises(Fixable):
            build_request(operation, {"x": x, "y": y})


def test_label_of_empty_values_is_no_dot_segment() -> None:
    operation = path_operation("/a/{x}", Parameter("x", "path", "x", "label", True))
    with pytest.raises(Fixable):
        build_request(operation, {"x": ["", ""]})
    with pytest.raises(Fixable):
        build_request(operation, {"x": "."})


anything = st.text(max_size=12) | st.text(alphabet="./\\%25ef;?#@:a ", max_size=12)


@given(first=anything, second=anything, double=st.booleans())
def test_nothing_escapes_its_segment(first: str, second: str, double: bool) -> None:
    operation = path_operation(
        "/a/{x}/b('{y}')/c",
        Parameter("x", "path", "x", double_encoded=double),
        Parameter("y", "path", "y"),
    )
    try:
        url = build_request(operation, {"x": first, "y": second}).url
    except Fixable:
        return
    parsed = urlsplit(url)
    segments = parsed.path.split("/")
    assert (parsed.scheme, parsed.netloc, parsed.query, parsed.fragment) == (
        "https",
        "api.example.test",
        "",
        "",
    )
    assert (segments[:3], len(segments), segments[-1]) == (["", "v1", "a"], 6, "c")
    assert unquote(unquote(segments[3]) if double else segments[3]) == first
    assert unquote(segments[4]) == f"b('{second}')"
    for segment in segments:
        for _ in range(4):
            assert segment not in (".", "..")
            segment = unquote(segment)


# --- blocklist ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["users", "USERS", "users;x", "x/users"])
def test_value_that_completes_a_blocked_path_is_refused(value: str) -> None:
    operation = path_operation("/{x}", Parameter("x", "path", "x"))
    with raises(Refused, code="blocked_path", message="Access to this endpoint is not allowed"):
        build_request(operation, {"x": value}, ["/users", "/x/users"])
    assert build_request(operation, {"x": "books"}, ["/users"]).url == BASE + "/books"


# --- query, headers, cookies ----------------------------------------------------------------------


def test_keys_of_an_exploded_object_can_not_pass_for_another_parameter() -> None:
    operation = path_operation(
        "/a",
        Parameter("extra", "query", "extra", "form", True),
        Parameter("tenant", "query", None, "form", True, constant="ours"),
    )
    assert url_of(operation, {"extra": {"k&=": "v&="}}) == "/a?k%26%3D=v%26%3D&tenant=ours"
    with pytest.raises(Fixable):
        build_request(operation, {"extra": {"tenant": "theirs"}})


def test_a_list_in_an_exploded_object_is_its_name_once_more_for_each_item() -> None:
    operation = path_operation("/a", Parameter("page", "query", "page", "form", True))
    page = {"number": 2, "sort": ["name,asc", None, "id"], "none": [], "deep": [[1]]}
    sent = url_of(operation, {"page": page})
    assert sent == "/a?number=2&sort=name%2Casc&sort=id&deep=%5B%5B1%5D%5D"


def test_reserved_value_can_not_begin_another_parameter() -> None:
    operation = path_operation("/a", Parameter("q", "query", "q", "form", True, reserved=True))
    assert url_of(operation, {"q": "x/y:z&admin=1#f"}) == "/a?q=x/y:z%26admin=1%23f"


@pytest.mark.parametrize(
    ("media_type", "value", "sent"),
    [
        ("text/plain", 'a "b"', 'a "b"'),
        ("text/plain", 5, "5"),
        ("application/xml", "<a/>", "<a/>"),
        ("application/json; charset=utf-8", "a", '"a"'),
        ("application/vnd.x+json", {"a": [1]}, '{"a":[1]}'),
    ],
)
def test_a_value_with_a_media_type_of_its_own_is_written_in_it(
    media_type: str, value: Any, sent: str
) -> None:
    query = Parameter("q", "query", "v", "form", True, media_type=media_type)
    header = Parameter("X-V", "header", "v", media_type=media_type)
    cookie = Parameter("c", "cookie", "v", "form", True, media_type=media_type)
    request = build_request(path_operation("/a", query, header, cookie), {"v": value})
    headers = dict(request.headers)
    assert parse_qsl(urlsplit(request.url).query) == [("q", sent)]
    assert (headers["X-V"], unquote(headers["Cookie"])) == (sent, f"c={sent}")


def test_json_in_a_header_has_only_ascii() -> None:
    header = Parameter("X-V", "header", "v", media_type="application/json")
    request = build_request(path_operation("/a", header), {"v": {"a": "é"}})
    assert dict(request.headers)["X-V"] == r'{"a":"\u00e9"}'


def test_delimiters_of_swagger_stand_in_paths_and_headers_too() -> None:
    path = Parameter("p", "path", "v", "pipeDelimited")
    header = Parameter("X-V", "header", "v", "spaceDelimited")
    request = build_request(path_operation("/{p}", path, header), {"v": ["a", "b"]})
    assert (request.url, dict(request.headers)["X-V"]) == (BASE + "/a%7Cb", "a b")


def test_query_of_the_template_is_kept() -> None:
    operation = path_operation("/a?fixed=1", Parameter("q", "query", "q", "form", True))
    assert url_of(operation, {"q": "x"}) == "/a?fixed=1&q=x"


@pytest.mark.parametrize("value", ["a\r\nX: 1", "a\nb", "a\0", "é", "\u2028", ["a", "b\r\n"]])
def test_header_value_that_would_inject_is_refused(value: Any) -> None:
    operation = path_operation("/a", Parameter("X-A", "header", "a"))
    with raises(Fixable, problems=["/a"]):
        build_request(operation, {"a": value})


@given(value=st.text(max_size=20), name=st.text(min_size=1, max_size=5))
def test_cookie_can_not_be_left(value: str, name: str) -> None:
    operation = path_operation("/a", Parameter(name, "cookie", "c", "form"))
    assume(name.isprintable())
    try:
        cookie = dict(build_request(operation, {"c": value}).headers)["Cookie"]
    except UnicodeEncodeError:
        return
    assert cookie.isascii() and cookie.isprintable()
    assert not set(' ;,"\\') & set(cookie)
    assert cookie.count("=") == 1 + value.count("=")


@given(
    values=st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.one_of(
            st.text(max_size=10), st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3)
        ),
    )
)
def test_query_comes_back_as_it_went_in(values: dict[str, Any]) -> None:
    operation = path_operation("/x", *(Parameter(n, "query", n, "form", True) for n in "abc"))
    query = urlsplit(build_request(operation, values).url).query
    expected = [
        (name, item)
        for name in "abc"
        if name in values
        for item in (values[name] if isinstance(values[name], list) else [values[name]])
    ]
    assert parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)) == expected


def test_configured_header_takes_the_place_of_one_of_the_same_name() -> None:
    request = Request("GET", BASE, (("Accept", "a/b"), ("x", "1")))
    assert with_headers(request, [("accept", "c/d")]).headers == (("x", "1"), ("accept", "c/d"))


# --- on the wire ----------------------------------------------------------------------------------


async def test_bytes_on_the_wire_are_those_that_were_built() -> None:
    async with raw_server(always(answer())) as server, Egress(["127.0.0.1/32"]) as egress:
        operation = HttpOperation(
            "GET",
            server.url + "/p//q",
            "//d('{x}')/{y}//",
            (
                Parameter("x", "path", "x"),
                Parameter("y", "path", "y", double_encoded=True),
                Parameter("a[]", "query", "a", "form", True),
                Parameter("p", "query", "p", "pipeDelimited"),
            ),
        )
        arguments = {"x": "a/b%c:é'", "y": "c/d", "a": ["1+1", "~"], "p": ["x", "y z"]}
        await egress.send(build_request(operation, arguments), deadline=5, max_bytes=1)
    assert server.requests[0].split(b"\r\n")[0] == (
        b"GET /p//q//d('a%2Fb%25c%3A%C3%A9%27')/c%252Fd//"
        b"?a%5B%5D=1%2B1&a%5B%5D=~&p=x%7Cy%20z HTTP/1.1"
    )
