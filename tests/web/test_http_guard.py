"""What passes the guard, and what is refused with which status."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from gateway.mcp.endpoint import accepted_types
from gateway.web.guard import check_host, fold, host_rules, read_body, require_json

PUBLIC = host_rules(
    "https://gateway.example", ["internal:9000", "lab:*"], ["https://app.example", "http://lab:*"]
)


HOSTS = {
    None: """gateway.example gateway.example:443 GATEWAY.example localhost:8080 127.0.0.1:8080
    [::1]:8080 internal:9000 lab:1""".split(),
    421: """gateway.example:80 gateway.example.evil.com localhost:8081 localhost evil.com:8080
    lab""".split()
    + [""],
}
ORIGINS = {
    "localhost:8080 http://localhost:8080": None,
    "localhost:8080 https://localhost:8080": 403,
    "localhost:8080 http://localhost:3000": 403,
    "gateway.example https://gateway.example": None,
    "gateway.example http://gateway.example": 403,
    "gateway.example https://app.example": None,
    "gateway.example https://app.example.evil.com": 403,
    "gateway.example http://lab:5173": None,
    "gateway.example null": 403,
    "gateway.example ": 403,
}


def refused(**lines: str) -> int | None:
    """The status with which a request with these headers is refused."""
    fields = fold([(name.encode(), value.encode()) for name, value in lines.items()])
    try:
        check_host(PUBLIC, {"server": ("10.0.0.1", 8080)}, fields)
    except HTTPException as refusal:
        return refusal.status_code
    return None


def test_only_our_own_names_pass() -> None:
    found = {status: [refused(host=host) for host in hosts] for status, hosts in HOSTS.items()}
    assert found == {status: [status] * len(hosts) for status, hosts in HOSTS.items()}
    pairs = (pair.split(" ") for pair in ORIGINS)
    assert [refused(host=host, origin=origin) for host, origin in pairs] == [*ORIGINS.values()]


def test_a_refusal_names_the_key_to_change_and_repeats_nothing_strange() -> None:
    for header, value, said in (
        ("host", "10.0.0.7:8080", 'server.allowed_hosts = ["10.0.0.7:8080"]'),
        ("host", '"]\n<b>', 'server.allowed_hosts = ["gateway.example.com"]'),
        ("origin", "https://evil.example", 'server.allowed_origins = ["https://evil.example"]'),
    ):
        lines = {"host": "localhost:8080", header: value}
        fields = fold([(name.encode(), value.encode()) for name, value in lines.items()])
        with pytest.raises(HTTPException) as raised:
            check_host(PUBLIC, {"server": ("10.0.0.1", 8080)}, fields)
        assert said in raised.value.detail
        assert "<b>" not in raised.value.detail


@pytest.mark.parametrize("name", [b"host", b"authorization", b"mcp-session-id", b"content-length"])
def test_second_copy_of_a_single_header_is_refused(name: bytes) -> None:
    with pytest.raises(HTTPException) as refused:
        fold([(name, b"a"), (name, b"b")])
    assert refused.value.status_code == 400


def test_copies_of_a_list_header_are_joined_and_blanks_are_cut() -> None:
    folded = fold([(b"accept", b"a"), (b"x", b" y \t"), (b"accept", b"b ")])
    assert folded == {b"accept": b"a, b", b"x": b"y"}


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (b"", (False, False)),
        (b"application/json", (True, False)),
        (b"text/event-stream", (False, True)),
        (b"Application/JSON;q=0.9, text/event-stream", (True, True)),
        (b"*/*", (True, True)),
        (b"application/*", (True, False)),
        (b"text/*, text/html", (False, True)),
        (b"application/jsonp", (False, False)),
    ],
)
def test_accept_is_read_as_media_ranges(accept: bytes, expected: tuple[bool, bool]) -> None:
    assert accepted_types(accept) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"application/json", True),
        (b"application/json; charset=utf-8", True),
        (b"APPLICATION/JSON", True),
        (b"application/json-patch+json", False),
        (b"text/plain", False),
        (b"", False),
    ],
)
def test_content_type_must_be_json_itself(value: bytes, expected: bool) -> None:
    with nullcontext() if expected else pytest.raises(HTTPException):
        require_json({b"content-type": value})


async def test_cancelling_from_outside_is_not_taken_for_a_deadline() -> None:
    async def receive() -> Any:
        await asyncio.Event().wait()

    reading = asyncio.create_task(read_body({}, receive, seconds=5))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_client_that_leaves_midway_is_a_connection_error() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ConnectionError):
        await read_body({}, receive)
