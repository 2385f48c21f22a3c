from __future__ import annotations

import asyncio
import gzip
import ipaddress
import socket
import ssl
import threading
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.addresses import locate, networks, permitted
from gateway.egress import Answer, Egress, NoAnswer, Request
from gateway.errors import Broken, Fixable, GatewayError, Refused
from gateway.no_answer import Unanswered, unanswered, undialled
from tests.raw_server import Connection, always, answer, raw_server

LOOPBACK = ["127.0.0.1/32"]


@pytest.fixture
async def egress() -> AsyncIterator[Egress]:
    async with Egress(LOOPBACK) as egress:
        yield egress


async def get(egress: Egress, url: str, method: str = "GET", **options: Any) -> Answer:
    limits = {"deadline": 5.0, "max_bytes": 1_000_000} | options
    return await egress.send(Request(method, url), **limits)


# --- what goes out --------------------------------------------------------------------------------


async def test_request_is_on_the_wire_byte_for_byte_as_it_was_built(egress: Egress) -> None:
    path = "/a//b/../%2e%2E/x%2Fy%252Fz/datasets('q')/;m=1/?a=b+c&d=%20e&f=[g]&h=1,2|3"
    headers = (("X-One", "1"), ("x-two", "a, b"), ("Content-Type", "application/json"))
    async with raw_server(always(answer(b"hi"))) as server:
        reply = await egress.send(
            Request("POST", server.url + path, headers, b'{"a":1}'), deadline=5, max_bytes=10
        )
    assert reply == Answer(200, (("content-length", "2"),), b"hi", url=server.url + path)
    assert server.requests == [
        (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            "Accept-Encoding: gzip, deflate\r\nX-One: 1\r\nx-two: a, b\r\n"
            "Content-Type: application/json\r\nUser-Agent: dynamic-mcp-gateway\r\n"
            'Content-Length: 7\r\n\r\n{"a":1}'
        ).encode()
    ]


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
        await egress.send(Request("GET", server.url, headers), deadline=5, max_bytes=10)
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
    with pytest.raises(Fixable) as refusal:
        await egress.send(
            Request("GET", "http://127.0.0.1:1/", ((name, value),)), deadline=5, max_bytes=1
        )
    assert refusal.value.code == "invalid_arguments"


@pytest.mark.parametrize("method", ["", "get", "GET /x", "TRACE", "CONNECT", "G\r\nX: 1"])
async def test_method_that_is_none_is_refused(egress: Egress, method: str) -> None:
    with pytest.raises(Fixable):
        await get(egress, "http://127.0.0.1:1/", method=method)


async def test_large_body_arrives_whole(egress: Egress) -> None:
    body = bytes(range(256)) * 8192
    async with raw_server(always(answer())) as server:
        await egress.send(Request("PUT", server.url, (), body), deadline=5, max_bytes=1)
    assert server.requests[0].endswith(b"\r\n\r\n" + body)


async def test_proxy_of_the_environment_is_not_used(
    egress: Egress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with raw_server(always(answer(b"direct"))) as server:
        assert (await get(egress, server.url)).body == b"direct"


async def test_cookies_are_not_kept(egress: Egress) -> None:
    async with raw_server(always(answer(headers={"Set-Cookie": "a=1; Path=/"}))) as server:
        await get(egress, server.url)
        await get(egress, server.url)
    assert server.connections == 1
    assert not any(b"cookie" in request.lower() for request in server.requests)


# --- where it may go ------------------------------------------------------------------------------

SPELLINGS_OF_LOOPBACK = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://0x7f.1/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://0177.0.0.1/",
    "http://127.0.0.1./",
    "http://１２７.0.0.1/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://0.0.0.0/",
    "http://0/",
    "http://[::]/",
    "http://localhost/",
]


@pytest.mark.parametrize("url", SPELLINGS_OF_LOOPBACK)
async def test_loopback_is_refused_in_every_spelling(url: str) -> None:
    async with Egress() as egress:
        for attempt in (get(egress, url), egress.check(url)):
            with pytest.raises(Refused) as refusal:
                await attempt
            assert refusal.value.code == "access_denied"


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("1.1.1.1", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("172.32.0.1", True),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("100.128.0.1", True),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("198.18.0.1", False),
        ("2606:4700:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("::ffff:10.0.0.1", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("2001:db8::1", False),
        ("2001::1", False),
        ("2002:808:808::1", True),
        ("2002:a00:1::1", False),
        ("64:ff9b::808:808", True),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b:1::808:808", False),
    ],
)
def test_only_public_addresses_are_permitted(address: str, public: bool) -> None:
    assert permitted(ipaddress.ip_address(address), ()) is public


def test_address_inside_an_allowed_network_is_permitted() -> None:
    allowed = networks(["10.0.0.0/8", "fd00::/8", "127.0.0.1"])
    inside = ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "fd00::1", "127.0.0.1"]
    outside = ["192.168.0.1", "fe80::1", "127.0.0.2", "::1"]
    judged = {a: permitted(ipaddress.ip_address(a), allowed) for a in inside + outside}
    assert judged == dict.fromkeys(inside, True) | dict.fromkeys(outside, False)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/",
        "file:///etc/passwd",
        "//host/",
        "http:/host",
        "http:///x",
        "http://",
        "http://user:pw@host/",
        "http://user@host/",
        "http://host:0/",
        "http://host:65536/",
        "http://host:x/",
        "http://host\\@other/",
        "http://ho st/",
        "http://ho%73t/",
        "http://host\r\n/",
        "http://host/\n",
        "http://[::1/",
        "http://[zz]/",
        "http://-host/",
    ],
)
async def test_url_that_is_no_plain_http_url_is_refused(egress: Egress, url: str) -> None:
    with pytest.raises(Fixable) as refusal:
        await get(egress, url)
    assert refusal.value.code == "connection_invalid"
    assert "pw" not in refusal.value.message


def test_international_host_is_dialled_by_its_ascii_name() -> None:
    assert str(locate("https://bücher.example/é?é").url) == (
        "https://xn--bcher-kva.example/%C3%A9?%C3%A9"
    )


def names(table: dict[str, list[str]], calls: list[str]) -> Any:
    """A name server with this table; each name takes its next address and stays at the last."""

    def lookup(host: str, port: int, *_: Any) -> list[Any]:
        calls.append(host)
        if host not in table:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        addresses = table[host]
        address = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in address.split()
        ]

    return lookup


async def test_name_is_judged_on_the_address_that_is_dialled() -> None:
    """A name that is public when checked and internal when dialled is refused."""
    calls: list[str] = []
    lookup = names({"rebind.test": ["93.184.216.34", "127.0.0.1"]}, calls)
    async with raw_server(always(answer(b"secret"))) as server, Egress(lookup=lookup) as egress:
        await egress.check(f"http://rebind.test:{server.port}/")
        with pytest.raises(Refused) as refusal:
            await get(egress, f"http://rebind.test:{server.port}/")
    assert refusal.value.as_dict() == {
        "code": "access_denied",
        "message": "The address of rebind.test is not allowed; add it to network.allow",
        "hint": "Private, loopback and link-local addresses are refused unless an operator "
        "lists them.",
    }
    assert (server.connections, calls) == (0, ["rebind.test", "rebind.test"])


async def test_only_the_permitted_addresses_of_a_name_are_dialled() -> None:
    lookup = names({"both.test": ["10.0.0.1 127.0.0.1"]}, [])
    async with raw_server(always(answer(b"ok"))) as server, Egress(LOOPBACK, lookup=lookup) as out:
        assert (await get(out, f"http://both.test:{server.port}/")).body == b"ok"


async def test_new_rules_hold_for_connections_that_were_already_open(egress: Egress) -> None:
    async with raw_server(always(answer())) as server:
        await get(egress, server.url)
        egress.allow([])
        with pytest.raises(Refused):
            await get(egress, server.url)
        egress.allow(LOOPBACK)
        await get(egress, server.url)
    assert server.connections == 2


async def test_exchange_under_way_finishes_when_rules_change(egress: Egress) -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    async def conversation(connection: Connection) -> None:
        await connection.request()
        arrived.set()
        await go.wait()
        await connection.write(answer(b"done"))

    async with raw_server(conversation) as server, asyncio.timeout(5):
        call = asyncio.create_task(get(egress, server.url))
        await arrived.wait()
        egress.allow([])
        go.set()
        assert (await call).body == b"done"


async def test_call_that_still_dials_when_rules_change_is_answered() -> None:
    asked, go, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def lookup(host: str, port: int, *_: Any) -> list[Any]:
        loop.call_soon_threadsafe(asked.set)
        go.wait(5)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async with (
        raw_server(always(answer(b"ok"))) as server,
        Egress(LOOPBACK, lookup=lookup) as egress,
        asyncio.timeout(5),
    ):
        await get(egress, server.url)  # leaves an idle connection, the only one, which then goes
        call = asyncio.create_task(get(egress, f"http://slow.test:{server.port}/"))
        await asked.wait()
        egress.allow([*LOOPBACK, "10.0.0.0/8"])
        await get(egress, server.url)
        go.set()
        assert (await call).body == b"ok"


async def test_closing_ends_everything_also_what_is_under_way() -> None:
    arrived = asyncio.Event()

    async def conversation(connection: Connection) -> None:
        await connection.request()
        arrived.set()
        await connection.request()

    async with raw_server(conversation) as server, asyncio.timeout(5):
        egress = Egress(LOOPBACK)
        await egress.start()
        call = asyncio.create_task(get(egress, server.url))
        await arrived.wait()
        egress.allow(LOOPBACK)
        await egress.close()
        with pytest.raises(NoAnswer):
            await call
        with pytest.raises(Broken):
            await get(egress, server.url)


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


async def test_redirect_is_an_answer_like_any_other_for_calls(egress: Egress) -> None:
    async with raw_server(redirecting) as server:
        reply = await get(egress, server.url + "/1")
    assert (reply.status, reply.header("location"), len(server.requests)) == (302, "/0", 1)


async def test_redirects_on_the_same_host_are_followed_up_to_the_bound(egress: Egress) -> None:
    async with raw_server(redirecting) as server:
        reply = await get(egress, server.url + "/5", same_host_redirects=5)
        assert (reply.body, reply.url) == (b"document", server.url + "/0")
        assert (await get(egress, server.url + "/6", same_host_redirects=5)).status == 302


async def test_redirect_to_another_host_is_refused(egress: Egress) -> None:
    async with raw_server(redirecting) as server:
        with pytest.raises(Refused) as refusal:
            await get(egress, server.url + "/away", same_host_redirects=5)
    assert refusal.value.code == "access_denied"


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
        ("gzip", gzip.compress(b"hello" * 100) + b"\0\0"),
        ("deflate", zlib.compress(b"hello" * 100)),
        ("deflate", raw_deflate(b"hello" * 100)),
    ],
)
async def test_packed_answer_is_unpacked(egress: Egress, encoding: str, packed: bytes) -> None:
    headers = {"Content-Encoding": encoding} if encoding else {}
    async with raw_server(always(answer(packed, headers=headers))) as server:
        reply = await get(egress, server.url)
    assert (reply.body, reply.truncated) == (b"hello" * 100, False)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", b"not gzip"),
        ("gzip", gzip.compress(b"hello" * 100)[:-12]),
        ("deflate", b"\xff\xff\xff"),
        ("br", b"anything"),
    ],
)
async def test_answer_that_can_not_be_unpacked_is_an_error(
    egress: Egress, encoding: str, packed: bytes
) -> None:
    async with raw_server(always(answer(packed, headers={"Content-Encoding": encoding}))) as server:
        with pytest.raises(NoAnswer) as failure:
            await get(egress, server.url)
    assert (failure.value.code, failure.value.message) == (
        "upstream_unreachable",
        "The answer broke off, or can't be unpacked.",
    )


@pytest.mark.parametrize("packed", [True, False])
async def test_answer_is_cut_at_its_bound_also_after_unpacking(
    egress: Egress, packed: bool
) -> None:
    bomb = bytes(64 * 1024 * 1024)
    body = gzip.compress(bomb, 1) if packed else bomb
    headers = {"Content-Encoding": "gzip"} if packed else {}
    began = time.process_time()
    async with raw_server(always(answer(body, headers=headers))) as server:
        began = time.process_time()
        reply = await get(egress, server.url, max_bytes=100_000)
        assert time.process_time() - began < 1
        assert (reply.body, reply.truncated) == (bytes(100_000), True)
        await get(egress, server.url, max_bytes=100_000)
    assert server.connections == 2  # the rest was not read to keep the connection


async def test_answer_of_exactly_the_bound_is_not_truncated(egress: Egress) -> None:
    async with raw_server(always(answer(b"12345"))) as server:
        assert not (await get(egress, server.url, max_bytes=5)).truncated


async def test_slow_drip_ends_at_the_deadline(egress: Egress) -> None:
    dripping = asyncio.Event()

    async def conversation(connection: Connection) -> None:
        await connection.request()
        await connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            await connection.write(b".")
            dripping.set()
            await asyncio.sleep(0.02)

    async with raw_server(conversation) as server, asyncio.timeout(5):
        with pytest.raises(NoAnswer) as failure:
            await get(egress, server.url, deadline=0.2)
    assert dripping.is_set()
    assert (failure.value.code, failure.value.sent) == ("upstream_timeout", True)
    assert failure.value.message == "There was no complete answer within 0.2 s."


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
        asyncio.timeout(5),
        egress.open(Request("GET", server.url), deadline=5) as stream,
    ):
        assert (stream.status, stream.headers[0]) == (200, ("x-a", "b"))
        first = await anext(stream.chunks)
        go.set()
        assert (first, [chunk async for chunk in stream.chunks]) == (b"one", [b"two"])


# --- what goes wrong ------------------------------------------------------------------------------


async def closing(connection: Connection) -> None:
    await connection.request()


async def garbage(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"this is not HTTP\r\n\r\n")


async def breaking_off(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")


async def bad_chunks(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nxx\r\n")


async def endless_head(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000)


@pytest.mark.parametrize(
    ("conversation", "words"),
    [
        (closing, "The connection was closed before it was answered."),
        (garbage, "The answer is not valid HTTP."),
        (breaking_off, "The answer broke off, or can't be unpacked."),
        (bad_chunks, "The answer is not valid HTTP."),
        (endless_head, "The answer is not valid HTTP."),
    ],
)
async def test_broken_answer_is_named_in_words(
    egress: Egress, conversation: Any, words: str
) -> None:
    async with raw_server(conversation) as server:
        with pytest.raises(NoAnswer) as failure:
            await get(egress, server.url, method="POST")
    error = failure.value
    assert (error.code, error.message, error.sent) == ("upstream_unreachable", words, True)


async def test_refused_connection_is_known_to_have_sent_nothing(egress: Egress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NoAnswer) as failure:
        await get(egress, f"http://127.0.0.1:{port}/")
    error = failure.value
    assert (error.code, error.message, error.sent) == (
        "upstream_unreachable",
        "The connection was refused.",
        False,
    )


async def test_unknown_name_is_known_to_have_sent_nothing() -> None:
    async with Egress(lookup=names({}, [])) as egress:
        for attempt in (get(egress, "http://nowhere.test/"), egress.check("http://nowhere.test/")):
            with pytest.raises(NoAnswer) as failure:
                await attempt
            assert (failure.value.message, failure.value.sent) == (
                "The host's name could not be resolved.",
                False,
            )


async def test_deadline_while_connecting_is_known_to_have_sent_nothing() -> None:
    """The name server does not answer in time."""

    def lookup(*_: Any) -> list[Any]:
        released.wait(5)
        return []

    released = threading.Event()
    async with Egress(lookup=lookup) as egress:
        with pytest.raises(NoAnswer) as failure:
            await get(egress, "http://slow.test/", deadline=0.1)
        released.set()
    assert (failure.value.code, failure.value.sent) == ("upstream_timeout", False)


def certificate(folder: Path) -> Path:
    """A self-signed certificate for localhost, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "localhost.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + built.public_bytes(serialization.Encoding.PEM)
    )
    return file


@pytest.fixture
def tls_files(tmp_path: Path) -> Iterator[tuple[ssl.SSLContext, Path]]:
    file = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    yield context, file


async def test_tls_is_verified_and_its_failure_named(
    tls_files: tuple[ssl.SSLContext, Path],
) -> None:
    context, file = tls_files
    trusting = ssl.create_default_context(cafile=file)
    async with (
        raw_server(always(answer(b"ok")), context) as server,
        Egress(LOOPBACK) as strict,
        Egress(LOOPBACK, tls=trusting) as trusted,
    ):
        url = f"https://localhost:{server.port}/"
        assert (await get(trusted, url)).body == b"ok"
        with pytest.raises(NoAnswer) as failure:
            await get(strict, url)
    assert (failure.value.message, failure.value.sent) == (
        "The server's TLS certificate is not valid.",
        False,
    )


async def test_plain_server_behind_https_is_named(egress: Egress) -> None:
    async def conversation(connection: Connection) -> None:
        await connection.write(answer(b"I speak no TLS"))

    async with raw_server(conversation) as server:
        with pytest.raises(NoAnswer) as failure:
            await get(egress, f"https://127.0.0.1:{server.port}/")
    assert (failure.value.message, failure.value.sent) == (
        "No TLS connection could be made.",
        False,
    )


def family(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


@pytest.mark.parametrize("kind", sorted(set(family(Unanswered)) - {Unanswered}, key=str))
def test_every_failure_after_sending_has_words(kind: type[Unanswered]) -> None:
    ours = unanswered(kind("10.0.0.1"))
    assert (ours.code, ours.sent) == ("upstream_unreachable", True)
    assert ours.message.endswith(".") and "10.0.0.1" not in ours.message


OF_THE_SYSTEM = {k for k in family(OSError) if k.__module__ in ("builtins", "socket", "ssl")}


@pytest.mark.parametrize("kind", sorted(OF_THE_SYSTEM, key=str))
def test_every_failure_to_connect_has_words_without_its_text(kind: type[Exception]) -> None:
    ours = undialled(kind.__new__(kind, "10.0.0.1"))
    assert ours.code in ("upstream_unreachable", "upstream_timeout") and not ours.sent
    assert ours.message.endswith(".") and "10.0.0.1" not in ours.message
    assert isinstance(ours, GatewayError)


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
        await get(egress, server.url)
        assert (await get(egress, server.url, method=method)).status == 200
    assert (server.connections, len(server.requests)) == (2, 3)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_write_is_never_repeated(egress: Egress, method: str) -> None:
    async with raw_server(stale_after_first) as server:
        await get(egress, server.url)
        with pytest.raises(NoAnswer) as failure:
            await get(egress, server.url, method=method)
    assert failure.value.sent
    assert (server.connections, len(server.requests)) == (1, 2)


async def test_read_on_a_new_connection_is_not_repeated(egress: Egress) -> None:
    async with raw_server(closing) as server:
        with pytest.raises(NoAnswer):
            await get(egress, server.url)
    assert len(server.requests) == 1
