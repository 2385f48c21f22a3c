"""TLS contexts: whom we trust beside the system's list, and what we show to a server that asks.

Reading the files takes its time, so it is done on a thread, once for each set of them. They are
looked at again from time to time, so that a renewed certificate needs no restart.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from cachetools import LRUCache
from msgspec import Struct

from gateway.errors import Fixable
from gateway.model import TlsFiles

MAX_CONTEXTS = 64
LOOK_AGAIN_SECONDS = 30.0

Stamps = tuple[tuple[int, int], ...]


class _Known(Struct):
    context: ssl.SSLContext
    stamps: Stamps
    look_again: float = 0.0


class Contexts:
    """The TLS contexts in use. Relative paths count from `folder`."""

    def __init__(
        self,
        folder: Path,
        ca_file: str | None,
        *,
        look_again_seconds: float = LOOK_AGAIN_SECONDS,
    ) -> None:
        self._folder = folder
        self._look_again_seconds = look_again_seconds
        self.ca_file = ca_file
        self._known: LRUCache[TlsFiles, _Known] = LRUCache(MAX_CONTEXTS)

    async def get(self, tls: TlsFiles) -> ssl.SSLContext:
        """The context for these files."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(tls)
        if known is None or now >= known.look_again:
            known = await asyncio.to_thread(self._read, tls, known)
            known.look_again = now + self._look_again_seconds
            self._known[tls] = known
        return known.context

    def _read(self, tls: TlsFiles, known: _Known | None) -> _Known:
        files = (self.ca_file, tls.ca_file, tls.cert_file, tls.key_file)
        stamps = tuple(_stamp(self._folder / file) for file in files if file)
        if known is not None and known.stamps == stamps:
            return known
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        general = _load(context, self._folder, TlsFiles(ca_file=self.ca_file))
        problem = f"network.{general}" if general else _load(context, self._folder, tls)
        if problem:
            raise Fixable("connection_invalid", f"TLS can't be used: {problem}", _HINT)
        return _Known(context, stamps)


_HINT = "An operator must give the path of a PEM file; it counts from config.toml."


def tls_problem(folder: Path, tls: TlsFiles) -> str | None:
    """What is wrong with these files, after the key that names one of them."""
    return _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), folder, tls)


def _load(context: ssl.SSLContext, folder: Path, tls: TlsFiles) -> str | None:
    """Have the context use these files; or what is wrong with them."""
    key = "ca_file"
    try:
        if tls.ca_file:
            context.load_verify_locations(folder / tls.ca_file)
        key = "cert_file"
        if tls.cert_file:
            key_file = folder / (tls.key_file or tls.cert_file)
            key = key if key_file.exists() else "key_file"
            # With a password, though an empty one, OpenSSL does not ask for one at the terminal.
            context.load_cert_chain(folder / tls.cert_file, key_file, password="")
    except ssl.SSLError:
        what = "certificates" if key == "ca_file" else "a certificate with its key, unencrypted"
        return f"{key}: the file does not hold {what}, in PEM format"
    except OSError as error:
        return f"{key}: the file can't be read: {error.strerror}"
    return None


def _stamp(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0  # the error comes where it is read
    return found.st_mtime_ns, found.st_size
