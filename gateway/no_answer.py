"""What a failed exchange is called: every foreign error on the way out becomes one of ours.

The words say what happened and nothing of the foreign text, which names internal addresses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from gateway.errors import UpstreamFailed


class NoAnswer(UpstreamFailed):
    """The exchange failed. `sent` is False only if the other side can't have seen the request."""

    def __init__(self, code: str, message: str, hint: str = "", *, sent: bool) -> None:
        super().__init__(code, message, hint)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class _Failure:
    code: str
    words: str
    hint: str = "Try again later; if it stays so, check the connection's address."
    before_sending: bool = False

    def error(self, *, sent: bool, seconds: float = 0) -> NoAnswer:
        message = self.words.format(seconds=f"{seconds:g}")
        return NoAnswer(self.code, message, self.hint, sent=sent and not self.before_sending)


def _unreachable(words: str, *, before_sending: bool = False) -> _Failure:
    return _Failure("upstream_unreachable", words, before_sending=before_sending)


SLOW = _Failure(
    "upstream_timeout",
    "There was no complete answer within {seconds} s.",
    "Ask for less at once, or raise timeout_seconds of the connection.",
)
NAME_UNKNOWN = _unreachable("The host's name could not be resolved.", before_sending=True)
CLOSED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
FOREIGN = (aiohttp.ClientError, HttpProcessingError, OSError, EOFError)

# The first that fits, from the particular to the general.
_FAILURES: tuple[tuple[type[BaseException], _Failure], ...] = (
    (aiohttp.ClientConnectorDNSError, NAME_UNKNOWN),
    (
        aiohttp.ClientConnectorCertificateError,
        _unreachable("The server's TLS certificate is not valid.", before_sending=True),
    ),
    (
        aiohttp.ClientSSLError,
        _unreachable("No TLS connection could be made.", before_sending=True),
    ),
    (aiohttp.ServerTimeoutError, replace(SLOW, words="The server did not answer in time.")),
    (aiohttp.ClientPayloadError, _unreachable("The answer broke off.")),
    (aiohttp.ClientResponseError, _unreachable("The answer is not valid HTTP.")),
    (HttpProcessingError, _unreachable("The answer is not valid HTTP.")),
    (aiohttp.InvalidURL, _unreachable("The URL can't be dialled.", before_sending=True)),
    (aiohttp.NonHttpUrlClientError, _unreachable("The URL is not http.", before_sending=True)),
    (aiohttp.ClientError, _unreachable("The connection was closed before it was answered.")),
    (TimeoutError, replace(SLOW, words="The server did not answer in time.")),
    (Exception, _unreachable("The connection broke.")),
)


def translated(error: Exception, *, sent: bool) -> NoAnswer:
    """Our word for a foreign error. It holds nothing of the foreign text, which names addresses."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(
        error, (aiohttp.ClientConnectorDNSError, aiohttp.ClientSSLError)
    ):
        refused = isinstance(error.os_error, ConnectionRefusedError)
        words = "The connection was refused." if refused else "No connection could be made."
        return _unreachable(words, before_sending=True).error(sent=sent)
    failure = next(failure for kind, failure in _FAILURES if isinstance(error, kind))
    return failure.error(sent=sent)
