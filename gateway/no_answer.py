"""What a failed exchange is called: every error on the way out becomes one of ours.

The words say what happened and nothing of the foreign text, which names internal addresses.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, replace

from gateway.errors import UpstreamFailed


class NoAnswer(UpstreamFailed):
    """The exchange failed. `sent` is False only if the other side can't have seen the request."""

    def __init__(self, code: str, message: str, hint: str = "", *, sent: bool) -> None:
        super().__init__(code, message, hint)
        self.sent = sent


class Unanswered(Exception):
    """What goes wrong on a connection once the request was sent."""


class Closed(Unanswered):
    """The connection was closed before anything came back."""


class BrokenOff(Unanswered):
    """The answer stopped in its middle, or what was packed in it can't be unpacked."""


class NotHttp(Unanswered):
    """What came back is no HTTP, or more of it than a head may have."""


@dataclass(frozen=True, slots=True)
class _Failure:
    code: str
    words: str
    hint: str = "Try again later; if it stays so, check the connection's address."

    def error(self, *, sent: bool, seconds: float = 0) -> NoAnswer:
        message = self.words.format(seconds=f"{seconds:g}")
        return NoAnswer(self.code, message, self.hint, sent=sent)


def _unreachable(words: str) -> _Failure:
    return _Failure("upstream_unreachable", words)


SLOW = _Failure(
    "upstream_timeout",
    "There was no complete answer within {seconds} s.",
    "Ask for less at once, or raise timeout_seconds of the connection.",
)

_UNANSWERED: dict[type[Unanswered], _Failure] = {
    Closed: _unreachable("The connection was closed before it was answered."),
    BrokenOff: _unreachable("The answer broke off, or can't be unpacked."),
    NotHttp: _unreachable("The answer is not valid HTTP."),
}

# The first that fits, from the particular to the general.
_UNDIALLED: tuple[tuple[type[Exception], _Failure], ...] = (
    (socket.gaierror, _unreachable("The host's name could not be resolved.")),
    (ssl.SSLCertVerificationError, _unreachable("The server's TLS certificate is not valid.")),
    (ssl.SSLError, _unreachable("No TLS connection could be made.")),
    (ConnectionRefusedError, _unreachable("The connection was refused.")),
    (TimeoutError, replace(SLOW, words="The server did not answer in time.")),
    (Exception, _unreachable("No connection could be made.")),
)


def unanswered(error: Unanswered) -> NoAnswer:
    """Our word for a request that was sent and not answered."""
    return _UNANSWERED[type(error)].error(sent=True)


def undialled(error: Exception) -> NoAnswer:
    """Our word for a connection that could not be made, so that nothing was sent."""
    failure = next(failure for kind, failure in _UNDIALLED if isinstance(error, kind))
    return failure.error(sent=False)
