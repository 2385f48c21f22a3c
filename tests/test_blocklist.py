from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.blocklist import blocked_by, may_mean, may_reroute

BASE = "https://api.example.test/v1"
PATTERNS = ["/users", "/admin/**", "/a/*/b"]


SPELLINGS: dict[str | None, str] = {
    "/users": """/users /users/ /users/{id} /users/1/photo /USERS /users%00.json /%75sers
        /%2575sers /%252575sers /%u0075sers //users /./users /books/../users /books/%2e%2e/users
        /books%2f..%2fusers /books/%252e%252e%252fusers /books/..;/users /books/..\\users
        /books/%c0%ae%c0%ae/users /users;x=1 /users;/1 /users%3Bx=1/1 /users. /users%20 /users%00
        /users%3Fx /users?x=1 /users#x /ｕｓｅｒｓ /u\u200bsers users /../v1/users /../../users""",
    "/admin/**": "/admin /admin/x/y",
    "/a/*/b": "/a/1/b /a/{id}/b /a/1/b/c",
    None: "/v1/users /userships /my/users /administrators /a/b /a/1/2/b /{id} /",
}


@pytest.mark.parametrize(
    ("path", "pattern"),
    [(path, pattern) for pattern, paths in SPELLINGS.items() for path in paths.split()],
)
def test_path_is_blocked_in_every_spelling_and_only_then(path: str, pattern: str | None) -> None:
    assert blocked_by(PATTERNS, BASE, path) == pattern


@pytest.mark.parametrize(
    ("pattern", "path", "blocked"),
    [
        ("/v1/users", "/users/7", True),
        ("/v1/users", "/../V1/users", True),
        ("/users/{id}", "/users/7", True),
        ("/users/{id}", "/users", False),
        ("/Users/", "/users", True),
        ("%2Fusers", "/users", False),
        ("users", "/users", True),
        ("/user*", "/userships/1", True),
        ("/**/secrets", "/a/b/secrets/c", True),
        ("/**/secrets", "/secrets", True),
        ("/**/**/**/x", "/a/b/c", False),
        ("/", "/anything", True),
        ("", "/anything", False),
    ],
)
def test_pattern_means_what_an_operator_would_expect(
    pattern: str, path: str, blocked: bool
) -> None:
    assert (blocked_by([pattern], BASE, path) is not None) is blocked


def test_no_patterns_block_nothing() -> None:
    assert blocked_by([], BASE, "/users") is None


noise = st.sampled_from(["/", "//", "/./", "/x/../", "/;a=1/", "/%2e/", "/x/%2E%2E/", "\\"])


@given(lead=noise, rounds=st.integers(0, 4), upper=st.booleans(), tail=st.text(max_size=5))
def test_blocked_path_stays_blocked_however_it_is_dressed_up(
    lead: str, rounds: int, upper: bool, tail: str
) -> None:
    word = "USERS" if upper else "users"
    for _ in range(rounds):
        word = "".join(f"%{ord(c):02x}" for c in word) if "%" not in word else quote(word)
    below = quote(tail.replace("..", "").replace(".", ""), safe="")
    assert blocked_by(["/users"], BASE, f"{lead}{word}/x{below}") == "/users"


ELSEWHERE = """X-HTTP-Method-Override x-http-method X_METHOD_OVERRIDE X-HTTP-Verb _method
_HttpMethod %5Fmethod _method[] .method $httpMethod methodOverride X-REST-HTTP-Method
X-Override-Method override_method X-HTTP-Override""".split()
HEADERS = """Host X-Host X-Forwarded-Host X-Forwarded-For Forwarded X-Original-URL X-Rewrite-Url
X-Original-Host X_Override_URL Connection Transfer-Encoding X-Envoy-Original-Path""".split()
HARMLESS = """method http_method payment_method method_id shipping-method verbs hostname host_id
X-Request-Id X-Method-Id Access-Control-Request-Method origin path url""".split()


@pytest.mark.parametrize("place", ["header", "query", "cookie", "body"])
def test_a_second_word_on_the_method_is_known_in_every_spelling(place: str) -> None:
    assert [name for name in ELSEWHERE if not may_reroute(name, place)] == []
    assert [name for name in HARMLESS if may_reroute(name, place)] == []


def test_a_second_address_is_known_among_headers_only() -> None:
    assert [name for name in HEADERS if not may_reroute(name, "header")] == []
    assert [name for name in HEADERS if may_reroute(name, "query")] == []


def test_a_variable_of_the_path_may_have_any_name() -> None:
    assert not may_reroute("_method", "path")


@pytest.mark.parametrize("template", ["/users/{id}", "/users/{id}#purge", "/users/{id}?all={all}"])
def test_an_address_is_told_by_its_path_alone(template: str) -> None:
    assert may_mean(template, BASE, "/users/7")
    assert not may_mean(template, BASE, "/users/7/photo")
