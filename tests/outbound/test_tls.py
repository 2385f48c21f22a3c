"""Servers with certificates of a private authority, some of which ask for one of ours."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.errors import Fixable
from gateway.model import NO_TLS_FILES, TlsFiles
from gateway.outbound.addresses import Contexts
from gateway.outbound.client import Egress, NoAnswer
from tests.certificates import Authority, authority
from tests.forward_proxy import forward_proxy
from tests.outbound.exchanges import LOOPBACK, ask
from tests.raising import raises
from tests.raw_server import Connection, always, answer, raw_server


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return authority(tmp_path)


async def get(egress: Egress, url: str, tls: TlsFiles = NO_TLS_FILES) -> bytes:
    return (await ask(egress, url, tls=tls)).body


async def test_authority_is_trusted_beside_the_systems_for_all_or_for_one_connection(
    ca: Authority,
) -> None:
    """Paths count from the folder that the configuration is in."""
    async with (
        raw_server(always(answer(b"hi")), ca.server("localhost")) as server,
        Egress(LOOPBACK, folder=ca.folder) as strict,
        Egress(LOOPBACK, folder=ca.folder, ca_file="ca.pem") as trusting,
    ):
        url = f"https://localhost:{server.port}/"
        assert await get(trusting, url) == b"hi"
        assert await get(strict, url, TlsFiles(ca_file="ca.pem")) == b"hi"
        for tls in (NO_TLS_FILES, NO_TLS_FILES):  # also not on a connection that another made
            with raises(NoAnswer, message="The server's TLS certificate is not valid.", sent=False):
                await get(strict, url, tls)
        strict.follow(LOOPBACK, None, "ca.pem")
        assert await get(strict, url) == b"hi"


@pytest.mark.parametrize("proxied", [False, True])
async def test_client_certificate_is_shown_to_a_server_that_asks_for_it(
    ca: Authority, proxied: bool
) -> None:
    shown: list[str] = []

    async def conversation(connection: Connection) -> None:
        peer = connection.writer.get_extra_info("peercert")
        shown.append(dict(pair[0] for pair in peer["subject"])["commonName"])
        await connection.request()
        await connection.write(answer(b"welcome"))

    ca.issue("gateway")
    files = TlsFiles(ca_file="ca.pem", cert_file="gateway.pem", server_name="far.test")
    async with (
        raw_server(conversation, ca.server("far.test", asks_for_client=True)) as server,
        forward_proxy({f"127.0.0.1:{server.port}": server.port}) as proxy,
        Egress(LOOPBACK, folder=ca.folder) as egress,
    ):
        if proxied:
            egress.follow(LOOPBACK, f"http://127.0.0.1:{proxy.port}", None)
        url = f"https://127.0.0.1:{server.port}/"
        assert await get(egress, url, files) == b"welcome"
        assert (shown, len(proxy.heads)) == (["gateway"], int(proxied))


def turn_away(listening: socket.socket, context: ssl.SSLContext) -> None:
    """One handshake by OpenSSL itself, which says why it ends; asyncio's servers don't."""
    connection, _ = listening.accept()
    with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as tls:
        with suppress(ssl.SSLError):
            tls.do_handshake()
        tls.shutdown(socket.SHUT_WR)
        while tls.recv(1000):  # what is not read would be answered by a reset
            pass


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_server_that_misses_a_client_certificate_is_named(
    ca: Authority, version: ssl.TLSVersion
) -> None:
    context = ca.server("localhost", asks_for_client=True)
    context.minimum_version = context.maximum_version = version
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = asyncio.create_task(asyncio.to_thread(turn_away, listening, context))
        async with Egress(LOOPBACK, folder=ca.folder, ca_file="ca.pem") as egress:
            words = "The server refused the TLS connection; it may ask for a client certificate."
            with raises(NoAnswer, message=words):
                await get(egress, f"https://localhost:{listening.getsockname()[1]}/")
        await server


async def test_name_in_the_certificate_is_checked(ca: Authority) -> None:
    async with (
        raw_server(always(answer()), ca.server("other.test")) as server,
        Egress(LOOPBACK, folder=ca.folder, ca_file="ca.pem") as egress,
    ):
        with raises(NoAnswer, message="The server's TLS certificate is not valid."):
            await get(egress, f"https://localhost:{server.port}/")
        await get(egress, f"https://localhost:{server.port}/", TlsFiles(server_name="other.test"))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (TlsFiles("none.pem"), "ca_file: the file can't be read: No such file or directory"),
        (TlsFiles("text.pem"), "ca_file: the file does not hold certificates, in PEM format"),
        (TlsFiles(None, "none.pem", "one.pem"), "cert_file: the file can't be read: No such file"),
        (TlsFiles(None, "one.pem", "none.pem"), "key_file: the file can't be read: No such file"),
        (TlsFiles(None, "ca.pem"), "cert_file: the file does not hold a certificate with its key"),
        (TlsFiles(None, "one.pem", "two.pem"), "cert_file: the file does not hold a certificate"),
    ],
)
async def test_file_that_can_not_be_used_is_named_by_its_key(
    ca: Authority, files: TlsFiles, words: str
) -> None:
    (ca.folder / "text.pem").write_text("not a certificate", encoding="utf-8")
    ca.issue("one"), ca.issue("two")
    async with Egress(LOOPBACK, folder=ca.folder) as egress:
        with pytest.raises(Fixable) as failure:
            await get(egress, "https://127.0.0.1:1/", files)
    assert failure.value.code == "connection_invalid"
    assert failure.value.message.startswith(f"TLS can't be used: {words}")
    assert str(ca.folder) not in failure.value.message


async def test_renewed_certificate_is_used_without_a_restart(ca: Authority) -> None:
    ca.issue("gateway")
    contexts, files = (
        Contexts(ca.folder, None, look_again_seconds=0),
        TlsFiles(cert_file="gateway.pem"),
    )
    first = await contexts.get(files)
    assert await contexts.get(files) is first  # as long as its connections can be used again
    ca.issue("gateway")
    os.utime(ca.folder / "gateway.pem", (0, 0))
    assert await contexts.get(files) is not first
