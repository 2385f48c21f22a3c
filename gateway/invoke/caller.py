"""Who calls and how they can be reached while they wait; the edges hand in their own kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from gateway.model import Principal

Progress = Callable[[float, float | None, str | None], Awaitable[None]]
Elicit = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


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
    def elicit(self) -> Elicit | None: ...
    @property
    def input_responses(self) -> Mapping[str, Any] | None: ...
    @property
    def request_state(self) -> str | None: ...
