"""Makes the view of one principal at one address: a pure function of a snapshot.

`/mcp` is the principal's own view: every connection it has access to, or what its role's bundles
give, with the gateway's own tools beside. A bundle or step address holds what the bundles give and
nothing else. Several bundles on one connection narrow each other: a tool must be allowed by all of
them and denied by none.

MCP servers may give a view more than tools (`servers_of_view`): prompts, resources, completion and
logs. These are reads, so read-only access is enough; a bundle that leaves tools out, or keeps them
behind meta tools, does not give them.

Each rule that keeps something out of a view is a function that says so in a sentence, or "" where
it does not apply: the view is made by the same rules that `why_hidden` reads out.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import McpConnection
from gateway.config.profiles import Format
from gateway.config.settings import Bundle
from gateway.model import Principal, Tool, ViewAddress, elicitation_modes
from gateway.naming import find_pattern
from gateway.policy.access import level, may_see, visible_tools, why_limited

CURSOR = re.compile(r"(own|tool):([A-Za-z0-9_.-]{1,128})")


@dataclass(frozen=True, slots=True)
class OwnTool:
    """A tool of the gateway itself, and in which views it is listed."""

    name: str
    entry: bytes
    digest: bytes
    audience: Literal["all", "admin", "azure", "meta", "everywhere"]


@dataclass(frozen=True, slots=True)
class View:
    """The tools of one principal at one address."""

    address: ViewAddress
    bundle_ids: tuple[str, ...]
    direct_tools: Mapping[str, Tool]
    meta_tools: Mapping[str, Tool]  # reached through mcp_call_tool only
    own_names: frozenset[str]
    names: tuple[str, ...]  # as listed: the gateway's own tools in their order, then the others
    entries: tuple[bytes, ...]
    digests: tuple[bytes, ...]  # of the entries
    digest: str
    connections: Mapping[str, tuple[Tool, ...]]  # the view's tools of each; of some none yet

    def page(self, cursor: str | None, size: int) -> bytes | None:
        """`"tools":[…]` with `"nextCursor"` where more follow; None for a cursor we never gave.

        A cursor names the last tool of its page, so it leads to the same place in any process, and
        in another list than the one it was given for.
        """
        start = 0 if cursor is None else self._after(cursor)
        if start is None:
            return None
        end = start + size
        body = b'"tools":[' + b",".join(self.entries[start:end]) + b"]"
        if end < len(self.entries):
            kind = "own" if end <= len(self.own_names) else "tool"
            body += b',"nextCursor":"%b"' % f"{kind}:{self.names[end - 1]}".encode()
        return body

    def _after(self, cursor: str) -> int | None:
        match = CURSOR.fullmatch(cursor)
        if match is None:
            return None
        first, last = (0, len(self.own_names)) if match[1] == "own" else (len(self.own_names), None)
        return bisect_right(self.names, match[2], first, last)

    @property
    def tools(self) -> dict[str, Tool]:
        """Every tool of a connection that can be reached from here, directly or not."""
        return {**self.meta_tools, **self.direct_tools}


def view_key(snapshot: Snapshot, principal: Principal, address: ViewAddress) -> tuple[object, ...]:
    """All that a view depends on: two principals with the same key see the same."""
    levels = tuple(level(snapshot, principal, state) for state in snapshot.connections.values())
    return address, bundles_of(snapshot, principal, address), principal.admin, levels


def make_view(
    snapshot: Snapshot,
    principal: Principal,
    address: ViewAddress,
    own_tools: Sequence[OwnTool],
    form: Format = "full",
) -> View:
    """The view of this principal at this address, as clients are sent it in this form."""
    point = _viewpoint(snapshot, principal, address)
    states = [
        state
        for state in snapshot.connections.values()
        if point.bundles_with(state)
        or (point.open and level(snapshot, principal, state) not in (None, "disabled"))
    ]
    tools_of = {state.name: _allowed_tools(point, state) for state in states}
    meta_bundles = [b for key, b in point.bundles.items() if _why_behind_meta(key, b, tools_of)]
    in_meta = {name for bundle in meta_bundles for name in bundle.connections}
    names = sorted(
        tool.name for name, tools in tools_of.items() if name not in in_meta for tool in tools
    )
    direct = {name: snapshot.tools[name] for name in names}
    meta = {tool.name: tool for name in in_meta for tool in tools_of.get(name, ())}
    behind_meta = in_meta & tools_of.keys()
    ordered = sorted(own_tools, key=_name)
    own = [tool for tool in ordered if not _why_own_hidden(tool, point, behind_meta)]
    digests = {name: value for state in states for name, value in state.digests.items()}
    for state in states if form != "full" else ():
        other_digests = state.other_digests.items()
        digests |= {name: value for (kind, name), value in other_digests if kind == form}
    listed_digests = (*(tool.digest for tool in own), *(digests[name] for name in names))
    return View(
        address,
        tuple(point.bundles),
        direct,
        meta,
        frozenset(map(_name, own)),
        (*map(_name, own), *names),
        (*map(_entry, own), *(tool.forms.get(form, tool.entry) for tool in direct.values())),
        listed_digests,
        blake2b(b"".join(listed_digests), digest_size=16).hexdigest(),
        tools_of,
    )


_name, _entry = attrgetter("name"), attrgetter("entry")


def bundles_of(
    snapshot: Snapshot, principal: Principal, address: ViewAddress
) -> tuple[str, ...] | None:
    """The bundles that make up a view; None: no bundle narrows it. Deny by default."""
    settings = snapshot.settings
    role = settings.roles.get(principal.role or "")
    if address.kind == "own":
        if principal.role is None or not settings.roles:
            return None
        return role.bundles if role else ()
    if address.kind == "step":
        workflow, step = address.names
        steps = settings.routes.get(workflow, {}).get(principal.role or "", {})
        return tuple(sorted(set(steps.get(step, ()))))
    candidates = role.bundles if role else settings.bundles if principal.role is None else ()
    if not all(name in candidates for name in address.names):
        return ()
    return tuple(sorted(set(address.names)))


Bundles = Mapping[str, Bundle]


class Viewpoint(NamedTuple):
    """The principal, the address and the snapshot: all that the rules of a view go by."""

    snapshot: Snapshot
    principal: Principal
    address: ViewAddress
    bundles: Bundles
    open: bool  # no bundle narrows the view

    def bundles_with(self, state: ConnectionState) -> Bundles:
        """The bundles that the connection is in."""
        return {key: each for key, each in self.bundles.items() if state.name in each.connections}


def _viewpoint(snapshot: Snapshot, principal: Principal, address: ViewAddress) -> Viewpoint:
    ids = bundles_of(snapshot, principal, address)
    bundles = {name: snapshot.settings.bundles[name] for name in ids or ()}
    return Viewpoint(snapshot, principal, address, bundles, ids is None)


def why_hidden(
    snapshot: Snapshot, principal: Principal, view: View, state: ConnectionState, tool: Tool | None
) -> str:
    """The rule that keeps a tool out of a list, or, where no tool is given, a whole connection.

    "": no rule does.
    """
    point, access = _viewpoint(snapshot, principal, view.address), level(snapshot, principal, state)
    bundles = point.bundles_with(state)
    if not (may_see(access, tool) if tool else access not in (None, "disabled")):
        return why_limited(snapshot, principal, state)
    if not bundles and not point.open:
        return _why_unbundled(point, state)
    rules = [_why_distrusted(state, bundles), _why_denied(snapshot, bundles, tool) if tool else ""]
    rules += [_why_behind_meta(key, each, view.connections) for key, each in bundles.items()]
    return next(filter(None, rules), "")


def why_own_hidden(tool: OwnTool, snapshot: Snapshot, principal: Principal, view: View) -> str:
    """The rule that keeps a tool of the gateway's own out of a list; "": no rule does."""
    return _why_own_hidden(tool, _viewpoint(snapshot, principal, view.address), view.meta_tools)


def _allowed_tools(point: Viewpoint, state: ConnectionState) -> tuple[Tool, ...]:
    """The connection's tools that the principal may see and every bundle that names it gives."""
    bundles = point.bundles_with(state)
    if _why_distrusted(state, bundles):
        return ()
    tools = visible_tools(point.snapshot, point.principal, state)
    if not bundles:
        return tools
    return tuple(tool for tool in tools if not _why_denied(point.snapshot, bundles, tool))


def _why_unbundled(point: Viewpoint, state: ConnectionState) -> str:
    """Why no bundle of the view has a connection."""
    role, address = point.principal.role, point.address
    audience = f"the role {role}" if role else "those without a role"
    if point.bundles:
        return f"{state.name} is in none of the bundles here ({', '.join(point.bundles)})."
    if address.kind == "step":
        return f"The step {'/'.join(address.names)} has no bundles for {audience}."
    if address.kind == "own":
        return f"There are no bundles for {audience}."
    unknown = [name for name in address.names if name not in point.snapshot.settings.bundles]
    if unknown:
        return f"There is no bundle {unknown[0]}."
    return f"Not every bundle at this address is for {audience} ({', '.join(address.names)})."


def _why_distrusted(state: ConnectionState, bundles: Bundles) -> str:
    # config.toml is checked for this, but not for what was put while an older file was in force.
    if state.settings.trust == "trusted":
        return ""
    loose = [key for key, each in bundles.items() if each.mode != "meta" or not each.is_explicit]
    if not loose:
        return ""
    return f"{state.name} is untrusted: bundle {loose[0]} must have mode = meta and name its tools."


def _why_denied(snapshot: Snapshot, bundles: Bundles, tool: Tool) -> str:
    """Why one of the bundles does not give a tool, under any of its names."""
    names = snapshot.local_names_of(tool)
    for key, bundle in bundles.items():
        if find_pattern(tool.local_name, bundle.allow) is None:
            return f"Bundle {key} does not allow it ({', '.join(bundle.allow)})."
        for name in names:
            if (pattern := find_pattern(name, bundle.deny)) is not None:
                return f"Bundle {key} denies it ({pattern})."
    return ""


def _why_behind_meta(key: str, bundle: Bundle, tools_of: Mapping[str, tuple[Tool, ...]]) -> str:
    """Why a bundle's tools are not listed but reached through meta tools."""
    if bundle.mode == "meta":
        return f"Bundle {key} has mode = meta: it is called through mcp_call_tool."
    if bundle.mode == "direct":
        return ""
    tokens = sum(tool.tokens for name in bundle.connections for tool in tools_of.get(name, ()))
    if tokens <= bundle.token_budget:
        return ""
    return (
        f"Bundle {key} costs {tokens:,} tokens, over its token_budget of {bundle.token_budget:,}: "
        "it is called through mcp_call_tool."
    )


def _why_own_hidden(tool: OwnTool, point: Viewpoint, behind_meta: Collection[str]) -> str:
    is_own_view = point.address.kind == "own"
    if not is_own_view and not point.bundles:
        return "No bundle is behind this address for them: it lists nothing."
    if tool.audience in ("everywhere", "meta"):
        is_there = behind_meta or tool.audience == "everywhere"
        return "" if is_there else "No bundle here keeps its tools behind meta tools."
    if not is_own_view:
        return "It is listed at /mcp only."
    if tool.audience == "admin" and not point.principal.admin:
        return "It is for admins."
    if tool.audience == "azure" and point.snapshot.settings.azure is None:
        return "There is no [azure] table."
    return ""


@dataclass(frozen=True, slots=True)
class Offering:
    """The servers of one view, in the order of connections.

    A view is transparent when one server without a prefix is all there is: then the gateway answers
    as that server would.
    """

    servers: tuple[ConnectionState, ...] = ()
    sole: ConnectionState | None = None  # the server that the view is transparent for


def servers_of_view(snapshot: Snapshot, principal: Principal, view: View) -> Offering:
    """The servers that the principal reads from in this view."""
    states = [snapshot.connections[name] for name in sorted(view.connections)]
    readable = [s for s in states if level(snapshot, principal, s) not in (None, "disabled")]
    bundles = [snapshot.settings.bundles[name] for name in view.bundle_ids]
    servers = tuple(state for state in readable if _is_whole(state, bundles))
    is_sole = len(readable) == len(servers) == 1 and servers[0].settings.prefix == ""
    return Offering(servers, servers[0] if is_sole else None)


def trusted_sources(offer: Offering, view: View, snapshot: Snapshot) -> list[ConnectionState]:
    """The trusted sources that a view has something of: they may say how they are to be used."""
    names = {tool.connection for tool in view.tools.values()} | {s.name for s in offer.servers}
    states = [snapshot.connections[name] for name in sorted(names)]
    return [state for state in states if state.settings.trust == "trusted"]


NEEDS_TRUST = frozenset(("sampling", "roots"))


def refused_capabilities(
    capabilities: Mapping[str, Any], server: ConnectionState
) -> frozenset[str]:
    """The capabilities that the client offers and this server, not being trusted, may not use."""
    is_trusted = server.settings.trust == "trusted"
    return frozenset() if is_trusted else NEEDS_TRUST & capabilities.keys()


def usable_capabilities(capabilities: Mapping[str, Any], server: ConnectionState) -> dict[str, Any]:
    """The capabilities of a client that a server may use.

    The client's user may be asked; a trusted server may also ask its model (sampling) and for its
    folders (roots).
    """
    modes = elicitation_modes(capabilities)
    usable: dict[str, Any] = {"elicitation": {mode: {} for mode in modes}} if modes else {}
    if server.settings.trust == "trusted":
        sampling, roots = capabilities.get("sampling"), capabilities.get("roots")
        if isinstance(sampling, Mapping):
            usable["sampling"] = {"tools": {}} if "tools" in sampling else {}
        if isinstance(roots, Mapping):
            usable["roots"] = {}
    return usable


def _is_whole(state: ConnectionState, bundles: Sequence[Bundle]) -> bool:
    if not isinstance(state.settings, McpConnection) or state.status == "disabled":
        return False
    own_bundles = [bundle for bundle in bundles if state.name in bundle.connections]
    return all("*" in b.allow and not b.deny and b.mode != "meta" for b in own_bundles)
