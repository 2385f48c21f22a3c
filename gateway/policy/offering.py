"""Which MCP servers give a view more than tools: their prompts, resources, completion and logs.

They are reads, so read-only access is enough. A bundle names tools: one that leaves some out, or
keeps them behind meta tools, says nothing of prompts and resources, so it does not give them.

A view is transparent when one server without a prefix is all there is: then the gateway answers as
that server would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import McpConnection
from gateway.config.settings import Bundle
from gateway.model import Principal
from gateway.policy.access import level
from gateway.policy.view import View


@dataclass(frozen=True, slots=True)
class Offering:
    """The servers of one view, in the order of connections."""

    servers: tuple[ConnectionState, ...] = ()
    transparent: bool = False

    @property
    def sole(self) -> ConnectionState | None:
        """The server that the view is transparent for."""
        return self.servers[0] if self.transparent else None


def offering(snapshot: Snapshot, principal: Principal, seen: View) -> Offering:
    """What servers the principal reads from in this view."""
    states = [snapshot.connections[name] for name in sorted(seen.connections)]
    readable = [state for state in states if may_read(snapshot, principal, state)]
    bundles = [snapshot.settings.bundles[name] for name in seen.bundle_ids]
    whole = tuple(state for state in readable if _is_whole(state, bundles))
    sole = len(readable) == len(whole) == 1 and whole[0].settings.prefix == ""
    return Offering(whole, sole)


def instructing(offered: Offering, seen: View, snapshot: Snapshot) -> list[ConnectionState]:
    """The trusted servers that a view has something of: they may say how they are to be used."""
    names = {tool.connection for tool in seen.tools.values()} | {s.name for s in offered.servers}
    states = [snapshot.connections[name] for name in sorted(names)]
    servers = [state for state in states if isinstance(state.settings, McpConnection)]
    return [state for state in servers if state.settings.trust == "trusted"]


def askable(capabilities: Mapping[str, Any], server: ConnectionState) -> dict[str, Any]:
    """What a server may ask of a client that says it can be asked for this.

    Its user; and, if the server is trusted, its model (sampling) and its folders (roots) too.
    """
    modes = elicitation_modes(capabilities)
    found: dict[str, Any] = {"elicitation": {mode: {} for mode in modes}} if modes else {}
    if server.settings.trust == "trusted":
        sampling, roots = capabilities.get("sampling"), capabilities.get("roots")
        if isinstance(sampling, Mapping):
            found["sampling"] = {"tools": {}} if "tools" in sampling else {}
        if isinstance(roots, Mapping):
            found["roots"] = {}
    return found


def elicitation_modes(capabilities: Mapping[str, Any]) -> tuple[str, ...]:
    """How a client's user can be asked: with a form, by a page; `elicitation: {}` says form."""
    elicitation = capabilities.get("elicitation")
    if not isinstance(elicitation, Mapping):
        return ()
    return tuple(mode for mode in ("form", "url") if mode in elicitation) or ("form",)


def may_read(snapshot: Snapshot, principal: Principal, state: ConnectionState) -> bool:
    """Whether the principal has at least read-only access."""
    return level(snapshot, principal, state) in ("read-only", "read-write")


def _is_whole(state: ConnectionState, bundles: Sequence[Bundle]) -> bool:
    if not isinstance(state.settings, McpConnection) or state.status == "disabled":
        return False
    here = [bundle for bundle in bundles if state.name in bundle.connections]
    return all("*" in one.allow and not one.deny and one.mode != "meta" for one in here)
