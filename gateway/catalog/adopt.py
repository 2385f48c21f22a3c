"""What a discovery means for a connection: new tools, what changed, what is held. Pure.

A refresh that brings nothing usable is a failure, not an empty connection; only an MCP server that
answers and lists no tools has none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from gateway.catalog.changes import (
    Change,
    asks_other_credential,
    compare,
    held,
    served,
    with_credentials_of,
)
from gateway.catalog.discover import Found
from gateway.catalog.snapshot import ConnectionState, with_tools
from gateway.errors import DefinitionUnreadable, GatewayError
from gateway.model import Problem


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one connection in a put or a refresh."""

    name: str
    status: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    error: str | None = None
    revision: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The entry of `refresh_tools`' answer."""
        entry: dict[str, Any] = {
            "name": self.name,
            "status": self.status,
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": list(self.changed),
            "held": list(self.held),
        }
        return entry | ({"error": self.error} if self.error else {})


@dataclass(frozen=True, slots=True)
class Adoption:
    """A connection after a discovery, and how it got there."""

    state: ConnectionState
    found: Found  # with the tools that are served, held ones as they were
    changes: tuple[Change, ...]
    waiting: tuple[Change, ...]
    first: bool  # there was nothing to compare with
    at: float


def adopt(state: ConnectionState, found: Found, now: float) -> Adoption:
    """The connection with what was found; changes its settings hold back are left out."""
    if state.tools and not found.build.tools and found.build.format != "mcp":
        raise DefinitionUnreadable(
            "the definition has no usable operation left",
            "The tools served so far are kept; `gateway inspect` says why each was skipped.",
        )
    first = state.build is None
    changes = compare(state.build.tools if state.build else (), found.build.tools)
    waiting = [] if first else held(changes, state.settings.held)
    build = replace(found.build, tools=tuple(served(found.build.tools, waiting)))
    if state.build is not None and any(asks_other_credential(change) for change in waiting):
        build = with_credentials_of(build, state.build)
    after = replace(state, build=build, status=build.status, problems=build.problems)
    if not state.settings.enabled or state.settings.access == "disabled":
        after = replace(after, status="disabled")
    return Adoption(
        with_tools(after, build.tools),
        replace(found, build=build, at=now),
        tuple(changes),
        tuple(waiting),
        first,
        now,
    )


def with_last_good(base: ConnectionState, old: ConnectionState | None) -> ConnectionState:
    """The new settings with the tools served so far, until theirs are known."""
    if old is None or base.status == "disabled" or old.build is None:
        return base
    return with_tools(replace(base, build=old.build), old.tools)


def failed(state: ConnectionState, error: GatewayError) -> ConnectionState:
    """The connection after a failed refresh: as it was, with a problem that says so."""
    kept = state.build.problems if state.build else ()
    problem = Problem("error", "definition", error.message)
    return replace(state, status="failing", problems=(*kept, problem))


def light(found: Found) -> Found:
    """The same without the definition's bytes: they are in the store."""
    return replace(found, definition=replace(found.definition, packed=b""))


def report_of(adoption: Adoption, revision: int, exposed: Collection[str] | None = None) -> Report:
    """What to tell the one who asked; of what is new, only what is exposed."""
    waiting = {change.operation for change in adoption.waiting}
    names: dict[str, list[str]] = {"added": [], "removed": [], "changed": [], "held": []}
    for change in adoption.changes:
        kind = "held" if change.operation in waiting else change.kind
        if exposed is None or kind not in ("added", "changed") or change.tool in exposed:
            names[kind].append(change.tool)
    state = adoption.state
    return Report(
        state.name,
        state.status,
        tuple(names["added"]),
        tuple(names["removed"]),
        tuple(names["changed"]),
        tuple(names["held"]),
        revision=revision,
    )
