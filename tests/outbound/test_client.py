from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from gateway.errors import Broken, Fixable, Refused
from gateway.outbound.client import Answer, Egress, NoAnswer, Request, no_answer
from tests.outbound.exchanges import LOOPBACK, ask, names
from tests.peers import until
from tests.raising import raises
from tests.raw_server import Connection, always, answer, once, raw_server, silent


@pytest.fixture
async def egress() -> AsyncIterator[Egress]:
    async with Egress(LOOPBACK) as egress:
        yield egress


# --- what goes out --------------------------------------------------------------------------------


async def test_request_is_on_the_wire_byte_for_byte_as_it_was_built(egress: Egress) -> None:
    path = "/a//b/../%2e%2E/x%2Fy%252Fz/datasets('q')/;m=1/?a=b+c&d=%20e&f=[g]&h=1,2|3"
    headers = (("X-One", "1"), ("x-two", "a, b"), ("Content-Type", "application/json"))
    async with raw_server(always(answer(b"hi"))) as server:
        reply = await ask(egress, server.url + path, "POST", headers, b'{"a":1}')
    assert reply == Answer(200, (("content-length", "2"),), b"hi")
    assert server.requests == [
        (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            "Accept-Encoding: gzip, deflate\r\nUser-Agent: dynamic-mcp-gateway\r\n"
            "X-One: 1\r\nx-two: a, b\r\nContent-Type: application/json\r\n"
            'Content-Length: 7\r\n\r\n{"a":1}'
        ).encode()
    ]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_nothing_is_said_of_a_body_that_there_is_not(egress: Egress, method: str) -> None:
    async with raw_server(always(answer())) as server:
        await ask(egress, server.url, method, (("Accept", "application/json"),))
    assert b"content-type" not in server.requests[0].lower()


async def test_headers_of_the_connection_can_not_be_set_by_callers(egress: Egress) -> None:
    headers = (
        ("Host", "evil.test"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "999"),
        ("Connection", "close"),
        ("Accept-Encoding", "br"),
        ("User-Agent", "mine"),
    )
    async with raw_server(always(answer())) as server:
        await ask(egress, server.url, headers=headers)
    assert server.requests == [
        (
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            "Accept-Encoding: gzip, deflate\r\nUser-Agent: mine\r\n\r\n"
        ).encode()
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("X", "a\r\nY: 1"), ("X", "a\nb"), ("X", "\0"), ("X", "é"), ("X: a\r\nY", "1"), ("", "1")],
)
async def test_header_that_would_inject_is_refused(egress: Egress, name: str, value: str) -> None:
    with raises(Fixable, code="invalid_arguments"):
        await ask(egress, "http://127.0.0.1:1/", headers=[(name, value)])


@pytest.mark.parametrize("method", ["", "get", "GET /x", "TRACE", "CONNECT", "G\r\nX: 1"])
async def test_method_that_is_none_is_refused(egress: Egress, method: str) -> None:
    with pytest.raises(Fixable):
        await ask(egress, "http://127.0.0.1:1/", method=method)


async def test_large_body_arrives_whole(egress: Egress) -> None:
    body = bytes(range(256)) * 8192
    async with raw_server(always(answer())) as server:
        await ask(egress, server.url, "PUT", body=body)
    assert server.requests[0].endswith(b"\r\n\r\n" + body)


async def test_proxy_of_the_environment_is_not_used(
    egress: Egress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with raw_server(always(answer(b"direct"))) as server:
        assert (await ask(egress, server.url)).body == b"direct"


async def test_cookies_are_not_kept(egress: Egress) -> None:
    async with raw_server(always(answer(headers={"Set-Cookie": "a=1; Path=/"}))) as server:
        await ask(egress, server.url)
        await ask(egress, server.url)
    assert server.connections == 1
    assert not any(b"cookie" in request.lower() for request in server.requests)


# --- where it may go ------------------------------------------------------------------------------

SPELLINGS_OF_LOOPBACK = """127.0.0.1 127.1 0x7f.1 0x7f000001 2130706433 0177.0.0.1 127.0.0.1.
１２７.0.0.1 [::1] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::7f00:1]
[2002:7f00:1::] 0.0.0.0 0 [::] localhost""".split()


@pytest.mark.parametrize("host", SPELLINGS_OF_LOOPBACK)
async def test_loopback_is_refused_in_every_spelling(host: str) -> None:
    url = f"http://{host}/"
    async with Egress() as egress:
        for attempt in (ask(egress, url), egress.check(url)):
            with raises(Refused, code="access_denied"):
                await attempt


NOT_PLAIN = r"""ftp://host/ file:///etc/passwd //host/ http:/host http:///x http://
http://user:pw@host/ http://user@host/ http://host:0/ http://host:65536/ http://host:x/
http://host\@other/ http://ho%73t/ http://[::1/ http://[zz]/ http://-host/""".split()


@pytest.mark.parametrize("url", [*NOT_PLAIN, "http://ho st/", "http://host\r\n/", "http://host/\n"])
async def test_url_that_is_no_plain_http_url_is_refused(egress: Egress, url: str) -> None:
    with pytest.raises(Fixable) as refusal:
        await ask(egress, url)
    assert (refusal.value.code, "pw" in refusal.value.message) == ("connection_invalid", False)


async def test_name_is_judged_on_the_address_that_is_dialled() -> None:
    """A name that is public when checked and internal when dialled is refused."""
    calls: list[str] = []
    lookup = names({"rebind.test": ["93.184.216.34", "127.0.0.1"]}, calls)
    async with raw_server(always(answer(b"secret"))) as server, Egress(lookup=lookup) as egress:
        await egress.check(f"http://rebind.test:{server.port}/")
        with pytest.raises(Refused) as refusal:
            await ask(egress, f"http://rebind.test:{server.port}/")
    assert refusal.value.as_dict() == {
        "code": "access_denied",
        "message": "The address of rebind.test is not allowed; add it to network.allow",
        "hint": "Private, loopback and link-local addresses are refused unless an operator "
        "lists them.",
    }
    assert (server.connections, calls) == (0, ["rebind.test", "rebind.test"])


async def test_only_the_permitted_addresses_of_a_name_are_dialled() -> None:
    lookup = names({"both.test": ["10.0.0.1 127.0.0.1"]})
    async with raw_server(always(answer(b"ok"))) as server, Egress(LOOPBACK, lookup=lookup) as out:
        assert (await ask(out, f"http://both.test:{server.port}/")).body == b"ok"


async def test_new_rules_hold_for_a_kept_connection_to_a_name() -> None:
    lookup = names({"local.test": ["127.0.0.1"]})
    async with raw_server(always(answer())) as server, Egress(LOOPBACK, lookup=lookup) as egress:
        await ask(egress, f"http://local.test:{server.port}/")
        egress.follow([], None, None)
        with pytest.raises(Refused):
            await ask(egress, f"http://local.test:{server.port}/")
    assert len(server.requests) == 1


async def test_exchange_under_way_finishes_when_rules_change(egress: Egress) -> None:
    go = asyncio.Event()

    async def conversation(connection: Connection) -> None:
        await connection.request()
        await go.wait()
        await connection.write(answer(b"done"))

    async with raw_server(conversation) as server, asyncio.timeout(60):
        call = asyncio.create_task(ask(egress, server.url))
        await until(lambda: bool(server.requests))
        egress.follow([], None, None)
        go.set()
        assert (await call).body == b"done"


async def test_closing_ends_everything_also_what_is_under_way() -> None:
    async with raw_server(silent) as server, asyncio.timeout(60):
        async with Egress(LOOPBACK) as egress:
            call = asyncio.create_task(ask(egress, server.url))
            await until(lambda: bool(server.requests))
            egress.follow(LOOPBACK, None, None)
        with pytest.raises(NoAnswer):
            await call
        with pytest.raises(Broken):
            await ask(egress, server.url)


# --- redirects ------------------------------------------------------------------------------------


async def redirecting(connection: Connection) -> None:
    """/n redirects to /n-1, /0 is the document, /away leads elsewhere."""
    while request := await connection.request():
        path = request.split()[1].decode()
        if path == "/away":
            to = "http://elsewhere.test/"
        elif path == "/0":
            await connection.write(answer(b"document"))
            continue
        else:
            to = f"/{int(path[1:]) - 1}"
        await connection.write(answer(status="302 Found", headers={"Location": to}))


async def test_redirects_are_answers_for_calls_and_followed_on_the_same_host_where_asked_for(
    egress: Egress,
) -> None:
    async with raw_server(redirecting) as server:
        reply = await ask(egress, server.url + "/1")
        assert (reply.status, reply.header("location"), len(server.requests)) == (302, "/0", 1)
        reply = await ask(egress, server.url + "/5", same_host_redirects=5)
        assert reply.body == b"document"
        assert (await ask(egress, server.url + "/6", same_host_redirects=5)).status == 302
        with raises(Refused, code="access_denied"):
            await ask(egress, server.url + "/away", same_host_redirects=5)


# --- what comes back ------------------------------------------------------------------------------


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("", b"hello" * 100),
        ("identity", b"hello" * 100),
        ("gzip", gzip.compress(b"hello" * 100)),
        ("GZIP", gzip.compress(b"hello" * 50) + gzip.compress(b"hello" * 50)),
        ("deflate", zlib.compress(b"hello" * 100)),
        ("deflate", raw_deflate(b"hello" * 100)),
    ],
    ids=["none", "identity", "gzip", "twice", "deflate", "raw"],
)
async def test_packed_answer_is_unpacked(egress: Egress, encoding: str, packed: bytes) -> None:
    headers = {"Content-Encoding": encoding} if encoding else {}
    async with raw_server(always(answer(packed, headers=headers))) as server:
        reply = await ask(egress, server.url)
    assert (reply.body, reply.truncated) == (b"hello" * 100, False)


@pytest.mark.parametrize(
    ("encoding", "packed", "words"),
    [
        ("gzip", b"not gzip", "The answer broke off, or can't be unpacked."),
        ("deflate", b"\xff\xff\xff", "The answer broke off, or can't be unpacked."),
        ("br", b"anything", "The answer is not valid HTTP."),
    ],
)
async def test_answer_that_can_not_be_unpacked_is_an_error(
    egress: Egress, encoding: str, packed: bytes, words: str
) -> None:
    async with raw_server(always(answer(packed, headers={"Content-Encoding": encoding}))) as server:
        with raises(NoAnswer, code="upstream_unreachable", message=words):
            await ask(egress, server.url)


@pytest.mark.parametrize("packed", [True, False])
async def test_answer_is_cut_at_its_bound_also_after_unpacking(
    egress: Egress, packed: bool
) -> None:
    bomb = bytes(64 * 1024 * 1024)
    body = gzip.compress(bomb, 1) if packed else bomb
    headers = {"Content-Encoding": "gzip"} if packed else {}
    async with raw_server(always(answer(body, headers=headers))) as server:
        reply = await ask(egress, server.url, max_bytes=100_000)
        assert (reply.body, reply.truncated) == (bytes(100_000), True)
        await ask(egress, server.url, max_bytes=100_000)
    assert server.connections == 2  # the rest was not read to keep the connection


async def test_answer_of_exactly_the_bound_is_not_truncated(egress: Egress) -> None:
    async with raw_server(always(answer(b"12345"))) as server:
        assert not (await ask(egress, server.url, max_bytes=5)).truncated


async def test_slow_drip_ends_at_the_deadline(egress: Egress) -> None:
    dripping = asyncio.Event()

    async def conversation(connection: Connection) -> None:
        await connection.request()
        await connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            await connection.write(b".")
            dripping.set()
            await asyncio.sleep(0.02)

    async with raw_server(conversation) as server, asyncio.timeout(60):
        with raises(
            NoAnswer,
            code="upstream_timeout",
            sent=True,
            message="There was no complete answer within 0.5 s.",
        ):
            await ask(egress, server.url, deadline=0.5)
    assert dripping.is_set()


async def test_stream_is_read_as_it_comes(egress: Egress) -> None:
    go = asyncio.Event()

    async def conversation(connection: Connection) -> None:
        await connection.request()
        await connection.write(b"HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n")
        await connection.write(b"3\r\none\r\n")
        await go.wait()
        await connection.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async with (
        raw_server(conversation) as server,
        asyncio.timeout(60),
    ):
        with await egress.open(Request("GET", server.url), deadline=5) as stream:
            assert (stream.status, stream.headers[0]) == (200, ("x-a", "b"))
            assert await stream.read() == b"one"
            go.set()
            assert [await stream.read(), await stream.read()] == [b"two", b""]


# --- what goes wrong ------------------------------------------------------------------------------


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"", "The connection was closed before it was answered."),
        (b"this is not HTTP\r\n\r\n", "The answer is not valid HTTP."),
        (OK + b"Content-Length: 100\r\n\r\nshort", "The answer broke off, or can't be unpacked."),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nxx\r\n", "The answer is not valid HTTP."),
        (OK + b"X: " + b"x" * 200_000, "The answer is not valid HTTP."),
    ],
    ids=["closed", "garbage", "broken off", "bad chunks", "endless head"],
)
async def test_broken_answer_is_named_in_words(egress: Egress, reply: bytes, words: str) -> None:
    async with raw_server(once(reply)) as server:
        with raises(NoAnswer, code="upstream_unreachable", message=words, sent=True):
            await ask(egress, server.url, method="POST")


async def test_refused_connection_is_known_to_have_sent_nothing(egress: Egress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with raises(
        NoAnswer, code="upstream_unreachable", message="The connection was refused.", sent=False
    ):
        await ask(egress, f"http://127.0.0.1:{port}/")


async def test_unknown_name_is_known_to_have_sent_nothing() -> None:
    async with Egress(lookup=names({})) as egress:
        for attempt in (ask(egress, "http://nowhere.test/"), egress.check("http://nowhere.test/")):
            with raises(NoAnswer, message="The host's name could not be resolved.", sent=False):
                await attempt


async def test_deadline_while_connecting_is_known_to_have_sent_nothing() -> None:
    """The name server does not answer in time."""

    def lookup(*_: Any) -> list[Any]:
        released.wait(5)
        return []

    released = threading.Event()
    async with Egress(lookup=lookup) as egress:
        with raises(NoAnswer, code="upstream_timeout", sent=False):
            await ask(egress, "http://slow.test/", deadline=0.1)
        released.set()


async def test_deadline_in_the_midst_of_a_handshake_is_known_to_have_sent_nothing(
    egress: Egress,
) -> None:
    async with raw_server(silent) as server:
        with raises(NoAnswer, code="upstream_timeout", sent=False):
            await ask(egress, f"https://127.0.0.1:{server.port}/", deadline=0.3)


async def test_deadline_of_a_stream_is_for_its_head(egress: Egress) -> None:
    async with raw_server(silent) as server:
        with raises(NoAnswer, code="upstream_timeout", sent=True):
            await egress.open(Request("GET", server.url), deadline=0.5)


@pytest.mark.parametrize(
    "reply", [answer(b"no gzip", headers={"Content-Encoding": "gzip"}), answer(b"xy")[:-1]]
)
async def test_stream_that_can_not_be_unpacked_or_breaks_off_is_an_error(
    egress: Egress, reply: bytes
) -> None:
    async with raw_server(once(reply)) as server:
        with (
            await egress.open(Request("GET", server.url), deadline=5) as stream,
            raises(NoAnswer, sent=True),
        ):
            while await stream.read():
                pass


async def test_plain_server_behind_https_is_named(egress: Egress) -> None:
    async def conversation(connection: Connection) -> None:
        await connection.write(answer(b"I speak no TLS"))

    async with raw_server(conversation) as server:
        with raises(NoAnswer, message="No TLS connection could be made.", sent=False):
            await ask(egress, f"https://127.0.0.1:{server.port}/")


def family(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


def test_every_foreign_failure_has_words_without_its_text() -> None:
    system = [k for k in family(OSError) if k.__module__ in ("builtins", "socket", "ssl")]
    for kind in (*family(aiohttp.ClientError), *system):
        error = kind.__new__(kind, "10.0.0.1")
        error.__dict__.setdefault("status", 502)  # which only a proxy's error must have
        named = no_answer(error, sent=False)
        assert (named.code, named.sent) == ("upstream_unreachable", False)
        assert named.message.endswith(".") and "10.0.0.1" not in named.message


# --- connections that are used again --------------------------------------------------------------


async def stale_after_first(connection: Connection) -> None:
    """Answers once per connection, then closes on the second request without a word."""
    await connection.request()
    await connection.write(answer())
    await connection.request()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_read_is_repeated_once_when_an_idle_connection_had_closed(
    egress: Egress, method: str
) -> None:
    async with raw_server(stale_after_first) as server:
        await ask(egress, server.url)
        assert (await ask(egress, server.url, method=method)).status == 200
    assert (server.connections, len(server.requests)) == (2, 3)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_write_is_never_repeated(egress: Egress, method: str) -> None:
    async with raw_server(stale_after_first) as server:
        await ask(egress, server.url)
        with raises(NoAnswer, sent=True):
            await ask(egress, server.url, method=method)
    assert (server.connections, len(server.requests)) == (1, 2)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE"])
async def test_nothing_is_repeated_on_a_new_connection(egress: Egress, method: str) -> None:
    async with raw_server(once(b"")) as server:
        with raises(NoAnswer, sent=True):
            await ask(egress, server.url, method=method)
    assert len(server.requests) == 1
