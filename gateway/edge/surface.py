"""The seam between the protocol and what it serves.

The MCP edge knows views, names and wire dicts; it does not know connections, policies or calls.
Whatever answers these four questions can be put behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gateway.model import Principal
from gateway.policy.view import Scope

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
Elicit = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
Era = Literal["2025", "2026"]


@dataclass(slots=True)
class CallContext:
    """What a tool call knows of its client."""

    principal: Principal
    scope: Scope
    era: Era
    protocol_version: str
    session: str | None = None  # stable id of the session, where the era has them
    client: str = ""  # name/version as the client says, bounded
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None  # None: nobody asked for it
    elicit: Elicit | None = None  # None: this client can't be asked on this request
    input_responses: Mapping[str, Any] | None = None  # 2026: answers to an InputRequiredResult
    request_state: str | None = None
    gone: Callable[[], bool] | None = None  # whether nobody is there any more to be answered


class ListedView(Protocol):
    """What a principal sees at one address."""

    @property
    def digest(self) -> str:
        """Changes exactly when the bytes of the list change."""

    def page(self, cursor: str | None) -> bytes | None:
        """`"tools":[…]` with `,"nextCursor":"…"` where more follow; None: a bad cursor."""


class Surface(Protocol):
    """What the gateway serves over MCP."""

    def view(self, principal: Principal, scope: Scope) -> ListedView: ...

    def input_schema(self, principal: Principal, scope: Scope, name: str) -> bytes | None:
        """The input schema of a tool in the caller's view, as JSON."""

    async def call(
        self, name: str, arguments: dict[str, Any], context: CallContext
    ) -> dict[str, Any]:
        """The wire dict of a CallToolResult or InputRequiredResult. Raises errors.UnknownTool."""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after each change of what is served; returns how to stop it."""
