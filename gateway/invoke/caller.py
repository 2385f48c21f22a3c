"""Who calls and how they can be reached while they wait; the edges hand in their own kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.errors import UpstreamRefused
from gateway.model import Principal
from gateway.policy.offering import elicitation_modes

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
AskClient = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]  # method, params → result
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]  # questions → answers, by key
Notice = Callable[[str, Mapping[str, Any]], None]


class Caller(Protocol):
    """What a call needs to know of the one who makes it."""

    @property
    def principal(self) -> Principal: ...
    @property
    def era(self) -> str: ...
    @property
    def session(self) -> str | None: ...
    @property
    def client(self) -> str: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...
    @property
    def capabilities(self) -> Mapping[str, Any]: ...
    @property
    def progress(self) -> Progress | None: ...
    @property
    def ask(self) -> AskClient | None: ...
    @property
    def input_responses(self) -> Mapping[str, Any] | None: ...
    @property
    def request_state(self) -> str | None: ...
    @property
    def gone(self) -> Callable[[], bool] | None: ...
    @property
    def notice(self) -> Notice | None: ...
    @property
    def log_level(self) -> str | None: ...
    @property
    def askable(self) -> Mapping[str, Any]: ...
    @property
    def refused(self) -> Callable[[UpstreamRefused], None] | None: ...


@dataclass(frozen=True, slots=True)
class AbsentCaller:
    """One that does not wait for the answer, or whom nothing can be asked: REST, a restart."""

    principal: Principal
    client: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    era: str = "rest"
    session: str | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    ask: AskClient | None = None
    input_responses: Mapping[str, Any] | None = None
    request_state: str | None = None
    gone: Callable[[], bool] | None = None
    notice: Notice | None = None
    log_level: str | None = None
    askable: Mapping[str, Any] = field(default_factory=dict)
    refused: Callable[[UpstreamRefused], None] | None = None


def takes_forms(caller: Caller) -> bool:
    """Whether this client can be asked by answering it with a question (2026-07-28)."""
    return caller.era == "2026" and "form" in elicitation_modes(caller.capabilities)
