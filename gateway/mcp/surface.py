"""The seam between the protocol and what it serves.

The MCP edge knows views, names and wire dicts; it does not know connections, policies or calls.
Whatever answers these four questions can be put behind it. `Offers` is for all that is not a tool:
without one there are tools and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.calls.record import Caller
from gateway.model import Principal
from gateway.policy.view import Scope


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

    async def call(self, name: str, arguments: dict[str, Any], context: Caller) -> dict[str, Any]:
        """The wire dict of a CallToolResult or InputRequiredResult. Raises errors.UnknownTool."""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after each change of what is served; returns how to stop it."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a view has beside tools, for whoever meets the gateway there."""

    capabilities: Mapping[str, Any] = field(default_factory=dict)
    instructions: str | None = None  # None: the gateway's own


@dataclass(frozen=True, slots=True)
class Told:
    """A notice of a server: about a resource that some watch, or a log message."""

    server: str
    method: str
    params: Mapping[str, Any]
    principal: str | None = None  # whom it concerns; None: whoever wants to hear of it


class Offers(Protocol):
    """Prompts, resources, completion and logs of the servers in a view."""

    async def hello(self, principal: Principal, scope: Scope) -> Hello: ...

    async def answer(
        self, method: str, params: Mapping[str, Any], context: Caller
    ) -> dict[str, Any]:
        """The wire dict of a result. Raises RpcError and errors.UpstreamRefused."""

    def marks(self, principal: Principal, scope: Scope) -> tuple[str, str]:
        """Change exactly when the prompts, or the resources, of a view may have changed."""

    async def listen(
        self, holder: str, principal: Principal, scope: Scope, wanted: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Takes note of what a stream wants to hear of; gives the part that it will hear."""

    def attend(self, holder: str) -> None:
        """A stream of this session, or the one that is its own holder, is open."""

    def leave(self, holder: str) -> None:
        """That stream is closed."""

    def forget(self, holder: str) -> None:
        """A session or a stream is over."""

    def concerns(self, told: Told, principal: Principal, scope: Scope, holder: str) -> bool:
        """Whether a notice is for this session or stream."""

    def log_level(self, session: str | None) -> str | None:
        """From which level on a session reads logs, if it said so."""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has `listener` called when the marks of some view may have changed."""

    def on_notice(self, listener: Callable[[Told], None]) -> Callable[[], None]:
        """Has `listener` called with each notice."""
