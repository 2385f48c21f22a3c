"""The one value that holds the current state: settings, connections, tools, choices.

A handler reads the current snapshot once and passes it on; nothing in it ever changes. Building one
is pure and fast, because what is slow (reading definitions, making tools, hashing entries) was done
when each connection's `ConnectionState` was made, and is shared between snapshots.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Literal

import orjson

from gateway.config.connection import Connection, McpConnection
from gateway.config.settings import Permissions, Settings
from gateway.limits import FORMER_NAME_SECONDS
from gateway.model import (
    OWN_TOOL_NAMES,
    Build,
    BuiltDefinition,
    Level,
    Nameable,
    Override,
    Problem,
    Skipped,
    Status,
    Tool,
    digest,
)
from gateway.naming import exclusion_reason, find_pattern, local_name, override_for, rename_tool
from gateway.store.tables import FormerName, PutRight

FindHolder = Callable[[str], str | None]  # the other holder of a name, if there is one
Origin = Literal["config", "stored", "demo", "azure"]
# The settings that choose tools and the access of each.
TOOL_RULES = frozenset(("operations", "include", "exclude", "tools", "exclude_tools"))
# The lower rank wins where two connections want one name: a put can't take a configured name.
# Among put connections the one that was put first wins.
ORIGIN_ORDER: Mapping[Origin, int] = {"demo": 0, "config": 1, "azure": 2, "stored": 3}


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """One connection: its settings, the definition found, its tools and its status."""

    name: str
    settings: Connection
    origin: Origin
    revision: int = 0
    status: Status = "pending"
    built: BuiltDefinition | None = None  # without the definition's bytes
    tools: tuple[Tool, ...] = ()  # of the build, in stable order, without those that clash
    problems: tuple[Problem, ...] = ()
    clashes: tuple[Skipped, ...] = ()  # operations whose tool names are already taken
    digests: Mapping[str, bytes] = field(default_factory=dict)  # of entries, by tool
    other_digests: Mapping[tuple[str, str], bytes] = field(default_factory=dict)  # and by form

    @property
    def build(self) -> Build | None:
        """The build that the connector made of the definition."""
        return self.built.build if self.built else None

    @property
    def display_name(self) -> str:
        return self.settings.display_name or (self.build.title if self.build else "") or self.name

    @property
    def purpose(self) -> str:
        """The purpose that the definition, or else the server's instructions, states."""
        return (self.build.purpose or self.build.instructions) if self.build else ""

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Every operation that is no tool, with the reason."""
        return (*(self.build.skipped if self.build else ()), *self.clashes)

    @property
    def prefix(self) -> str:
        return prefix_of(self.name, self.settings)


@dataclass(frozen=True, slots=True)
class PutAccess:
    """config.toml, and the settings in force with the rows put beside it: see `catalog.rights`."""

    configured: Settings
    settings: Settings
    rows: tuple[PutRight, ...] = ()
    problems: tuple[Problem, ...] = ()  # of rows that don't hold


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state that requests are served from, as of one revision."""

    revision: int
    settings: Settings
    connections: Mapping[str, ConnectionState] = field(default_factory=dict)
    tools: Mapping[str, Tool] = field(default_factory=dict)
    choices: Mapping[tuple[str, str], Level] = field(default_factory=dict)
    stored_permissions: Permissions | None = None
    problems: tuple[Problem, ...] = ()  # those that belong to no connection
    former_names: Mapping[str, tuple[FormerName, ...]] = field(default_factory=dict)  # by tool
    successors: Mapping[str, tuple[str, float]] = field(default_factory=dict)  # by former name
    permissions_in_force: Permissions | None = None  # None: as written
    put_access: PutAccess | None = None  # None: only config.toml counts

    @property
    def written_permissions(self) -> Permissions:
        """The permissions put at run time, until they are deleted; else config.toml's."""
        return self.stored_permissions or self.settings.permissions

    @property
    def permissions(self) -> Permissions:
        """The permissions in force: as written, with the rules against tools under former names."""
        return self.permissions_in_force or self.written_permissions

    def names_of(self, tool: Tool) -> tuple[str, ...]:
        """A tool's name, and its former names."""
        return (tool.name, *(each.name for each in self.former_names.get(tool.name, ())))

    def local_names_of(self, tool: Tool) -> tuple[str, ...]:
        """A tool's names without prefix: its own, former ones, that of its capability."""
        former = (each.local_name for each in self.former_names.get(tool.name, ()))
        return (tool.local_name, *former, *filter(None, [tool.capability]))

    def find(self, tools: Mapping[str, Tool], name: str, now: float) -> Tool | None:
        """The tool in `tools` that has this name, or had it and still answers to it."""
        found = tools.get(name)
        if found is None and name in self.successors:
            tool, at = self.successors[name]
            found = tools.get(tool) if at > now - FORMER_NAME_SECONDS else None
        return found


def unread_state(
    name: str, settings: Connection, origin: Origin, revision: int = 0
) -> ConnectionState:
    """A connection before anything is known of it."""
    status: Status = "pending" if settings.is_active else "disabled"
    return ConnectionState(name, settings, origin, revision, status)


def prefix_of(name: str, settings: Connection) -> str:
    """The prefix of a connection's tool names: its own name unless another was chosen."""
    return settings.prefix if settings.prefix is not None else f"{name.replace('-', '_')}_"


def with_tools(state: ConnectionState, tools: Iterable[Tool]) -> ConnectionState:
    """The connection with these tools, in stable order and hashed once."""
    allowed = apply_settings(state.settings, tools)
    ordered = tuple(sorted(allowed, key=lambda tool: tool.name))
    return replace(
        state,
        tools=ordered,
        digests={tool.name: blake2b(tool.entry, digest_size=16).digest() for tool in ordered},
        other_digests={
            (form, tool.name): blake2b(entry, digest_size=16).digest()
            for tool in ordered
            for form, entry in tool.forms.items()
        },
    )


def apply_settings(settings: Connection, tools: Iterable[Tool]) -> Iterable[Tool]:
    """The tools that the settings allow, with the access that the settings give them.

    Most were built so. A tool whose change is held back, or was accepted, may have been built
    before the settings were edited: the settings of now hold all the same.
    """
    if not TOOL_RULES & settings.model_fields_set:
        return tools
    rules = {name: Override(access=each.access) for name, each in settings.operations.items()}
    return [found for tool in tools if (found := _apply_settings(settings, rules, tool))]


def _apply_settings(settings: Connection, rules: Mapping[str, Override], tool: Tool) -> Tool | None:
    name = tool.operation or local_name(Nameable(None, tool.method, tool.path))
    names = (name, tool.local_name) if tool.upstream else (name,)
    access = override_for(rules, *names).access
    wrapped = isinstance(settings, McpConnection) and name in {w.tool for w in settings.wrap}
    is_out = find_pattern(name, settings.exclude) if wrapped else exclusion_reason(name, settings)
    if is_out or access == "dangerous":
        return None
    return tool if access in (None, tool.access) else replace(tool, access=access)


def assemble(
    revision: int,
    settings: Settings,
    states: Iterable[ConnectionState],
    *,
    choices: Mapping[tuple[str, str], Level] | None = None,
    stored_permissions: Permissions | None = None,
    problems: tuple[Problem, ...] = (),
    former_names: Collection[FormerName] = (),
    put_access: PutAccess | None = None,
) -> Snapshot:
    """A whole snapshot: no two tools of one name, none with a name of the gateway's own.

    Put connections come in the order of their first put.
    """
    ordered = sorted(states, key=_precedence)
    spaces = NameSpaces(ordered, settings.capabilities)
    tools: dict[str, Tool] = {}
    connections: dict[str, ConnectionState] = {}
    renamed_in = {each.connection for each in former_names}
    operations = {s.name: operations_of(s.built, s.tools) for s in ordered if s.name in renamed_in}
    for state in ordered:
        state = _with_portable(state, settings)
        state = _without_clashes(state, partial(_find_holder, state, spaces, tools))
        connections[state.name] = state
        tools.update((tool.name, tool) for tool in state.tools)

    def is_free(name: FormerName) -> bool:
        state = connections.get(name.connection)
        return state is not None and _find_holder(state, spaces, tools, name.name) is None

    names = _former_names_by_tool(filter(is_free, former_names), operations, tools)
    written = stored_permissions or settings.permissions
    return Snapshot(
        revision,
        settings,
        dict(sorted(connections.items())),
        tools,
        choices or {},
        stored_permissions,
        problems,
        names,
        {n.name: (tool, n.at) for tool, old_names in names.items() for n in old_names},
        _with_shared_rules(written, names, tools),
        put_access,
    )


def _precedence(state: ConnectionState) -> tuple[int, str]:
    return ORIGIN_ORDER[state.origin], "" if state.origin == "stored" else state.name


# --- names that tools had ------------------------------------------------------------------------


def operations_of(found: BuiltDefinition | None, tools: Iterable[Tool]) -> dict[str, Tool]:
    """Tools by the operation that each alone carries out, whatever the tool is called.

    Where several tools carry out the same operation, none of them is included.
    """
    if found is None:
        return {}
    pairs = [(operation_of(found, tool), tool) for tool in tools]
    times = Counter(operation for operation, _ in pairs)
    return {operation: tool for operation, tool in pairs if times[operation] == 1}


def operation_of(found: BuiltDefinition, tool: Tool) -> str:
    """A digest of the operation: where a call goes, and the fixed values that it sends."""
    http, upstream = tool.http, tool.upstream
    if http is not None:
        fixed = [[p.place, p.name, p.constant] for p in http.parameters if p.argument is None]
        inside = http.body.constants if http.body else {}
        place = [http.method, f"{http.base_url}{http.path}", found.build.envelope]
        return digest(orjson.dumps([*place, fixed, dict(inside)]))
    return digest(orjson.dumps([found.definition.location, upstream]))


def _former_names_by_tool(
    former_names: Iterable[FormerName],
    operations: Mapping[str, Mapping[str, Tool]],
    tools: Mapping[str, Tool],
) -> dict[str, tuple[FormerName, ...]]:
    """The former names by each tool's name of now; a name that two tools had is left out."""
    found: defaultdict[str, list[FormerName]] = defaultdict(list)
    for name in former_names:
        tool = operations[name.connection].get(name.operation)
        if tool is not None and getattr(tools.get(tool.name), "connection", "") == tool.connection:
            found[tool.name].append(name)
    times = Counter(each.name for names in found.values() for each in names)
    clear = {tool: tuple(n for n in names if times[n.name] == 1) for tool, names in found.items()}
    return {tool: names for tool, names in clear.items() if names}


def _with_shared_rules(
    written: Permissions, by_tool: Mapping[str, tuple[FormerName, ...]], tools: Mapping[str, Tool]
) -> Permissions | None:
    """The permissions, with each rule that restricts an operation applied to all names of its tool.

    These are the names that the tool had, and those that a capability gives it. None: they change
    nothing. A rule that allows the tool under one name does not allow it under another.
    """
    names = {tool: {tool, *(each.name for each in others)} for tool, others in by_tool.items()}
    same_operation: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for tool in tools.values():
        if tool.capability:
            same_operation[tool.connection, tool.local_name].append(tool.name)
    for group in same_operation.values():
        if len(group) > 1:
            all_names = set(group).union(*(names.get(name, ()) for name in group))
            names |= dict.fromkeys(group, all_names)
    rules = dict(written.tools)
    for name, all_names in names.items():
        tool_rules = {written.tools.get(each) for each in all_names}
        needs_more = written.level == "read_only" and tools[name].access != "read"
        if "blocked" in tool_rules:
            rules[name] = "blocked"
        elif "confirm" in tool_rules and (name in written.tools or not needs_more):
            rules[name] = "confirm"
    return None if rules == written.tools else written.model_copy(update={"tools": rules})


def holder_finder(snapshot: Snapshot, name: str, settings: Connection) -> FindHolder:
    """The function that finds another holder of a name that a put connection would use."""
    state = unread_state(name, settings, "stored")
    spaces = NameSpaces([*snapshot.connections.values(), state], snapshot.settings.capabilities)
    other_tools = {key: tool for key, tool in snapshot.tools.items() if tool.connection != name}
    return partial(_find_holder, state, spaces, other_tools)


def _with_portable(state: ConnectionState, settings: Settings) -> ConnectionState:
    """The connection with its tools once more, under the names that its capabilities give them."""
    prefixes = [key for key, name in settings.capabilities.items() if name == state.name]
    extra = [tool for prefix in prefixes for tool in portable_tools(prefix, state.tools)]
    return with_tools(state, (*state.tools, *extra)) if extra else state


def portable_tools(prefix: str, tools: Iterable[Tool]) -> list[Tool]:
    """The tools that have a capability, under names that outlive a provider.

    `ats_list_candidates` does what `greenhouse_list_candidates` does. The operation behind such a
    name, and with it access, limits and the rules of bundles, stays the provider's own.
    """
    return [rename_tool(tool, f"{prefix}_{tool.capability}") for tool in tools if tool.capability]


class NameSpaces:
    """Finds the connection that a tool's name belongs to, by settings alone.

    What an upstream lists must never take a name that leads elsewhere: not today, and not on the
    day when the other connection is slow to start or drops a tool. So a name that is chosen (`as`),
    or that starts with a connection's prefix, is that connection's whether it has such a tool now
    or not; of two prefixes the longer one counts. Only the lower-ranked connection gives way: a put
    takes nothing from config.toml.
    """

    def __init__(self, states: Iterable[ConnectionState], capabilities: Mapping[str, str]) -> None:
        self._names: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._prefixes: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for state in states:
            rank = ORIGIN_ORDER[state.origin]
            portable = (f"{key}_" for key, name in capabilities.items() if name == state.name)
            for prefix in filter(None, (state.prefix, *portable)):
                self._prefixes[prefix][state.name] = rank
            settings = state.settings
            for rule in settings.wrap if isinstance(settings, McpConnection) else ():
                if rule.as_:
                    self._names[rule.as_][state.name] = rank
        # Longest first: no search through all of them.
        self._lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)

    def find_holder(self, name: str, state: ConnectionState) -> str | None:
        """The other connection that a tool's name belongs to, if there is one."""
        holders = self._holders(name)
        if state.name in holders:
            return None
        rank = ORIGIN_ORDER[state.origin]
        return next((holder for holder, other_rank in holders.items() if other_rank <= rank), None)

    def _holders(self, name: str) -> Mapping[str, int]:
        if name in self._names:
            return self._names[name]
        candidates = (self._prefixes.get(name[:length]) for length in self._lengths)
        return next((holders for holders in candidates if holders), {})


def _find_holder(
    state: ConnectionState, spaces: NameSpaces, tools: Mapping[str, Tool], name: str
) -> str | None:
    """The other holder of a name that a tool would have: the gateway or a connection."""
    if name in OWN_TOOL_NAMES:
        return "the gateway itself"
    holder = tools[name].connection if name in tools else spaces.find_holder(name, state)
    return holder and f"connection {holder!r}"


def _without_clashes(state: ConnectionState, find_holder: FindHolder) -> ConnectionState:
    tools, clashes = without_clashes(state.tools, find_holder)
    if not clashes:
        return state
    problems = (*state.problems, *clash_problems(clashes))
    return replace(with_tools(state, tools), problems=problems, clashes=clashes)


def without_clashes(
    tools: Sequence[Tool], find_holder: FindHolder
) -> tuple[tuple[Tool, ...], tuple[Skipped, ...]]:
    """The tools whose names are free, and the other operations with the reason why not."""
    holders = {tool.name: holder for tool in tools if (holder := find_holder(tool.name))}
    clashes = tuple(
        Skipped(
            tool.operation,
            tool.method,
            tool.path,
            f"the tool name {tool.name!r} belongs to {holders[tool.name]}; set another prefix",
        )
        for tool in tools
        if tool.name in holders
    )
    return tuple(tool for tool in tools if tool.name not in holders), clashes


def clash_problems(clashes: Sequence[Skipped]) -> list[Problem]:
    """The clashes as problems: a tool that an admin expects is missing, and can be renamed."""
    return [Problem("error", c.operation or c.path, f"not exposed: {c.reason}") for c in clashes]


def preview_of(
    name: str, kind: str, found: BuiltDefinition, find_holder: FindHolder, *problems: Problem
) -> dict[str, Any]:
    """The preview of `gateway inspect` and a dry run: tools, skipped operations, problems."""
    build = found.build
    exposed, clashes = without_clashes(build.tools, find_holder)
    keys = ("name", "operation", "method", "path", "access", "risk", "title", "description")
    tools = [
        {key: getattr(tool, key) for key in keys}
        | {"input_schema": orjson.loads(tool.input_schema), "tokens": tool.tokens}
        for tool in sorted(exposed, key=lambda tool: tool.name)
    ]
    return {
        "connection": name,
        "kind": kind,
        "format": build.format,
        "base_url": build.base_url,
        **({"session": found.session} if found.session else {}),
        "tools": tools,
        "skipped": [
            {key: getattr(skipped, key) for key in ("operation", "method", "path", "reason")}
            for skipped in (*build.skipped, *clashes)
        ],
        "problems": [
            problem.as_dict() for problem in (*build.problems, *clash_problems(clashes), *problems)
        ],
        "tokens": sum(tool.tokens for tool in exposed),
    }
