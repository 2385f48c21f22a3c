"""The errors of the gateway, ordered by who can do something about them.

    GatewayError                 code, a message that is safe to show, a hint for what to do
    ├── Refused                  a rule said no: read_only, access_denied, blocked_path,
    │   │                        not_connected, unsupported_provider, approval_denied,
    │   │                        approval_expired
    │   ├── NotApproved          a person refused, or time ran out; ApprovalVoid: it no longer holds
    │   └── InsufficientScope    the person has the right, but the client's token lacks a scope
    ├── Fixable                  the caller can correct it: invalid_arguments, connection_invalid,
    │   │                        idempotency_conflict, precondition (REST: a wrong If-Match)
    │   ├── DefinitionUnreadable a definition that can't be read or is out of bounds
    │   └── NotFound             what was named does not exist, or not for this caller
    ├── Overloaded               try later: rate_limited, busy, circuit_open
    ├── UpstreamFailed           the other side: upstream_error, upstream_timeout,
    │   │                        upstream_unreachable, outcome_unknown, sign_in_required (with
    │   │                        sign_in_url: where a person signs the connection in)
    │   ├── UpstreamRefused      an MCP server's own JSON-RPC error, to be passed on
    │   └── UpstreamUnreadable   it answered, and nobody knows what: the call may have been made
    └── Broken                   ours: store_unavailable, internal
    UnknownTool                  the one error that is a JSON-RPC error and not a result
    ConfigInvalid                config.toml or a manifest: the process does not start (exit 2)
    Unauthenticated              no valid token

No message or hint may hold a secret, a stack or an internal address: they go to models, people and
the audit log as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Every code there is, with the status that HTTP has for it.
STATUS_OF_CODE: Mapping[str, int] = {
    code: status
    for status, codes in {
        403: "read_only access_denied blocked_path approval_denied approval_expired"
        " insufficient_scope",
        404: "unsupported_provider",
        409: "not_connected sign_in_required idempotency_conflict",
        412: "precondition",
        422: "invalid_arguments connection_invalid",
        429: "rate_limited",
        500: "internal cancelled",
        502: "upstream_error upstream_unreachable outcome_unknown",
        503: "busy circuit_open store_unavailable",
        504: "upstream_timeout",
    }.items()
    for code in codes.split()
}
CODES = frozenset(STATUS_OF_CODE)


class GatewayError(Exception):
    """An error that the caller is told as `{code, message, hint, …details}`."""

    def __init__(self, code: str, message: str, hint: str = "", **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.details: Mapping[str, Any] = details

    @property
    def sentence(self) -> str:
        """Message and hint as sentences for people."""
        if not self.hint:
            return self.message
        return f"{self.message.rstrip('.')}. {self.hint}".replace("?. ", "? ", 1)

    def as_dict(self) -> dict[str, Any]:
        """The shape every edge shows: `{"code", "message", "hint", …}`."""
        return {"code": self.code, "message": self.message, "hint": self.hint, **self.details}


class Refused(GatewayError):
    """A rule said no."""


class NotApproved(Refused):
    """A person refused, or time ran out. The record of the call says so already."""


class ApprovalVoid(NotApproved):
    """The approval no longer holds: the tool or the rights changed, or its call can't be read."""


class InsufficientScope(Refused):
    """The person has the right, but did not give it to their client."""

    def __init__(self, *scopes: str) -> None:
        words = f"this client was let in without {scopes[-1]}"
        hint = "Sign in again from the client, and allow it."
        super().__init__("insufficient_scope", words, hint, scope=" ".join(scopes))
        self.scopes = scopes


class Fixable(GatewayError):
    """The caller can correct the request and try again."""


class DefinitionUnreadable(Fixable):
    """A definition that can't be read, or that exceeds a bound."""

    def __init__(self, message: str, hint: str = "", **details: Any) -> None:
        super().__init__("connection_invalid", message, hint, **details)


class NotFound(Fixable):
    """The thing named does not exist, or not for this caller: both get the same answer."""


class Overloaded(GatewayError):
    """There is no room now; the same request may work later."""


class UpstreamFailed(GatewayError):
    """The API or server behind the connection did not do its part.

    `sent` is False only where it is known that nothing of the request went out.
    """

    def __init__(
        self, code: str, message: str, hint: str = "", *, sent: bool = True, **details: Any
    ) -> None:
        super().__init__(code, message, hint, **details)
        self.sent = sent


class UpstreamRefused(UpstreamFailed):
    """An MCP server's own JSON-RPC error, kept so that it can be passed on to the client."""

    rpc_code: int = 0
    rpc_message: str = ""
    rpc_data: Any = None


class UpstreamUnreadable(UpstreamFailed):
    """An answer that breaks the protocol or its bounds: what was done is not known."""


class Broken(GatewayError):
    """Our own fault."""


class UnknownTool(Exception):
    """A name that is not in the caller's view, whether or not it exists in another view."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown tool: {name}")
        self.name = name


class Unauthenticated(Exception):
    """The request carries no token we know."""


class ConfigInvalid(Exception):
    """A configuration file that is not valid: all its problems, each with its place."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
