"""Reads when certificates end: those in files that the gateway presents or trusts, and servers'.

A server's certificate is looked at where a connection to it is made anyway (`client`), or asked for
by `gateway doctor`, which serves nothing. Files are read on a thread, and again after some seconds,
so that a renewed certificate is seen soon.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from cachetools import TTLCache
from cryptography import x509

from gateway.limits import CERTIFICATE_DAYS, FETCH_SECONDS, REMEMBER_SECONDS
from gateway.model import TlsFiles

Ends = Mapping[str, datetime]  # by the key that names a file, or the address


@dataclass(frozen=True, slots=True)
class Ending:
    """A certificate that has ended, or soon will."""

    where: str
    at: datetime
    days: int

    @property
    def is_over(self) -> bool:
        return self.days < 0

    @property
    def words(self) -> str:
        return f"ended on {self.at:%Y-%m-%d}" if self.is_over else f"ends in {self.days} days"


def ending_soon(ends: Ends) -> list[Ending]:
    """The certificates that should be renewed, the next to end first."""
    now = datetime.now(UTC)
    endings = [Ending(where, at, (at - now).days) for where, at in ends.items()]
    return sorted((e for e in endings if e.days < CERTIFICATE_DAYS), key=lambda e: e.at)


class Certificates:
    """A running gateway's certificates: in its files, read again after a while, and of servers."""

    def __init__(self, folder: Path, server_ends: Ends) -> None:
        self._folder = folder
        self._server_ends = server_ends
        self._cache: TTLCache[object, Ends] = TTLCache(1, REMEMBER_SECONDS)

    async def ends(self, tables: Mapping[str, TlsFiles]) -> Ends:
        """The end of each certificate: in these files by the file's key, of servers by address."""
        key = tuple(tables.items())
        file_ends = self._cache.get(key)
        if file_ends is None:
            file_ends = self._cache[key] = await asyncio.to_thread(read_ends, self._folder, tables)
        return {**file_ends, **self._server_ends}


def read_ends(folder: Path, tables: Mapping[str, TlsFiles]) -> Ends:
    """The first end in each file; a file that can't be read is reported where it is used."""
    ends = dict[str, datetime]()
    for where, file in _files(tables):
        with suppress(OSError, ValueError):
            certificates = x509.load_pem_x509_certificates((folder / file).read_bytes())
            ends[where] = min(each.not_valid_after_utc for each in certificates)
    return ends


def _files(tables: Mapping[str, TlsFiles]) -> Iterator[tuple[str, str]]:
    for where, tls in tables.items():
        for key, file in (("ca_file", tls.ca_file), ("cert_file", tls.cert_file)):
            if file:
                yield f"{where}.{key}", file


def end_of(transport: asyncio.BaseTransport) -> datetime | None:
    """When the certificate of this connection's server ends; None: it has none."""
    tls_object = transport.get_extra_info("ssl_object")
    raw = tls_object.getpeercert(binary_form=True) if tls_object else None
    return x509.load_der_x509_certificate(raw).not_valid_after_utc if raw else None


async def ask_end(url: str, expected: str | None) -> datetime | None:
    """When a server's certificate ends. Whether it is trusted shows where the server is called."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    name = expected or parts.hostname
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            _, writer = await asyncio.open_connection(
                parts.hostname, parts.port or 443, ssl=context, server_hostname=name
            )
    except (OSError, TimeoutError):
        return None
    try:
        return end_of(writer.transport)
    finally:
        writer.transport.abort()
