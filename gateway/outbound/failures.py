"""What a failed exchange is called: every error on the way out becomes one of ours.

The words say what happened and nothing of the foreign text, which names internal addresses.
"""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import dataclass

import aiohttp

from gateway.errors import UpstreamFailed


class NoAnswer(UpstreamFailed):
    """The exchange failed. `sent` is False only if the other side can't have seen the request."""

    def __init__(self, code: str, message: str, hint: str = "", *, sent: bool) -> None:
        super().__init__(code, message, hint)
        self.sent = sent


class BrokenOff(Exception):
    """The answer stopped in its middle, or what was packed in it can't be unpacked."""


class NotHttp(Exception):
    """What came back is no HTTP, or not the HTTP that was asked for."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One way in which an exchange fails, in words."""

    words: str
    hint: str = "Try again later; if it stays so, check the connection's address."
    code: str = "upstream_unreachable"

    def error(self, *, sent: bool, seconds: float = 0) -> NoAnswer:
        message = self.words.format(seconds=f"{seconds:g}")
        return NoAnswer(self.code, message, self.hint, sent=sent)


SLOW = Failure(
    "There was no complete answer within {seconds} s.",
    "Ask for less at once, or raise timeout_seconds of the connection.",
    "upstream_timeout",
)
_PROXY_HINT = "Try again later; if it stays so, an operator must check network.proxy."
PROXY_UNREACHABLE = Failure("The proxy could not be reached.", _PROXY_HINT)
PROXY_WANTS_LOGIN = Failure("The proxy does not accept the gateway's credentials.", _PROXY_HINT)
_PROXY_REFUSED = Failure("The proxy did not connect to the server.", _PROXY_HINT)
_NOT_RESOLVED = Failure("The host's name could not be resolved.")
_REFUSED = Failure("The connection was refused.")
_TLS_ALERT = Failure(
    "The server refused the TLS connection; it may ask for a client certificate.",
    "An operator must check `tls` of the connection.",
)
_BROKEN_OFF = Failure("The answer broke off, or can't be unpacked.")

# The first that fits, from the particular to the general.
_FAILURES: tuple[tuple[tuple[type[Exception], ...], Failure], ...] = (
    ((aiohttp.ClientHttpProxyError,), _PROXY_REFUSED),
    ((aiohttp.ClientProxyConnectionError,), PROXY_UNREACHABLE),
    ((aiohttp.ClientConnectorDNSError, socket.gaierror), _NOT_RESOLVED),
    (
        (aiohttp.ClientConnectorCertificateError,),
        Failure("The server's TLS certificate is not valid."),
    ),
    ((aiohttp.ClientConnectorSSLError,), Failure("No TLS connection could be made.")),
    ((aiohttp.ClientConnectorError,), Failure("No connection could be made.")),
    ((aiohttp.ClientPayloadError, BrokenOff), _BROKEN_OFF),
    ((aiohttp.ClientResponseError, NotHttp), Failure("The answer is not valid HTTP.")),
    ((Exception,), Failure("The connection was closed before it was answered.")),
)


def no_answer(error: Exception, *, sent: bool) -> NoAnswer:
    """Our word for an exchange that failed with this error."""
    return _failure(error).error(sent=sent)


def _failure(error: Exception) -> Failure:
    if isinstance(error, aiohttp.ClientHttpProxyError) and error.status == 407:
        return PROXY_WANTS_LOGIN
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno == errno.ECONNREFUSED:
        proxy = isinstance(error, aiohttp.ClientProxyConnectionError)
        return PROXY_UNREACHABLE if proxy else _REFUSED
    # TLS 1.3 refuses a client's certificate after the handshake, where the answer is awaited.
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or ""):
        return _TLS_ALERT
    return next(failure for kinds, failure in _FAILURES if isinstance(error, kinds))
