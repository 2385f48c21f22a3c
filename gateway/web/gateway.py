"""The one door: every call of every tool comes in here, whatever edge it came through.

A request reads the current snapshot once, in `inquiry`, and everything after works on that value. A
name is looked up in the caller's view; what is not there does not exist. Views are remembered by
revision and principal, so that the many requests between two changes find theirs ready.

A call that waits for a person remembers its door as plain data (its ticket), so that any process
can find its tool again, in the caller's view of that moment, and carry it out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import structlog
from msgspec import Struct

from gateway import limits
from gateway.azure.directory import AzureDirectory
from gateway.calls.admission import CANCEL, Throttle
from gateway.calls.approvals import Approvals
from gateway.calls.arguments import check_arguments, whole_numbers
from gateway.calls.call import Invoker
from gateway.calls.fitting import error_result, value_result
from gateway.calls.record import Caller, Door, refusal_of, with_line
from gateway.catalog.catalog import Catalog
from gateway.catalog.search import ToolIndex
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.profiles import Form, Serving, find_serving
from gateway.errors import (
    Broken,
    GatewayError,
    InsufficientScope,
    NotFound,
    Overloaded,
    Refused,
    UnknownTool,
    UpstreamRefused,
)
from gateway.model import Principal, Scope, Tool
from gateway.outbound.content import Work
from gateway.policy.access import may_know, oversees
from gateway.policy.view import OwnTool, View, askable, offering, standing, view, withheld
from gateway.sign_in.keeper import Keeper
from gateway.store import approvals
from gateway.store.cluster import Signals, signal_soon
from gateway.store.credentials import SIGNED
from gateway.store.database import Database, signal
from gateway.store.ledger import get_execution
from gateway.store.tables import EVENTS, RESULT, Approval, Execution
from gateway.web.guard import EventStream, Step
from gateway.web.identity import SCOPES
from gateway.web.proxy import ProxyRequest, proxied
from gateway.web.shown import execution_record

log = structlog.get_logger("gateway.edge")

RENAMED_META = "gateway/renamed"  # in a result's `_meta`: what was called, and what it is now
WATCHED = "watched"  # the signal: someone reads the feed


class Inquiry(Struct, frozen=True):
    """One request: who asks, the snapshot it began on, and the view the caller has there."""

    gateway: Gateway
    caller: Caller
    snapshot: Snapshot
    view: View

    @property
    def principal(self) -> Principal:
        return self.caller.principal

    @property
    def door(self) -> str:
        """How the request came in, as decisions are recorded with it."""
        era = self.caller.era
        return era if era in ("console", "rest") else "mcp"

    def serving(self, client: str = "") -> Serving:
        """How a client of this name is to be served; none given: the caller's."""
        client = f"{client[: limits.NAME_CHARS]}/" if client else self.caller.client
        return self.gateway.serving(self.snapshot, client)

    def require_admin(self) -> None:
        """Refuses callers who are not admins."""
        if not self.principal.admin:
            hint = "Ask an admin of the gateway."
            raise Refused("access_denied", "only an admin may do this", hint)

    def oversees(self, connection: str) -> bool:
        """Whether what others do with the connection is the caller's business."""
        return oversees(self.snapshot, self.principal, connection)

    def concerns(self, principal: str, connection: str) -> bool:
        """Whether what this principal did with the connection is the caller's business."""
        return principal == self.principal.name or self.oversees(connection)

    def overseen(self) -> tuple[str, ...] | None:
        """The connections an admin of an organization is kept to; None: no such bound."""
        if not self.principal.admin or self.principal.organization is None:
            return None
        return tuple(state.name for state in self.connections())

    def connections(self) -> list[ConnectionState]:
        """Every connection that exists for the caller."""
        states = self.snapshot.connections.values()
        return [state for state in states if may_know(self.principal, state)]

    def connection(self, name: str) -> ConnectionState:
        """The connection of this name, if it exists for the caller."""
        state = self.snapshot.connections.get(name)
        if state is None or not may_know(self.principal, state):
            hint = "list_connections names those you can use."
            raise NotFound("connection_invalid", f"there is no connection {name!r}", hint)
        return state

    def find_tool(self, name: str) -> Tool | None:
        """The tool that has this name, or had it lately, if the caller sees it."""
        return self.snapshot.find(self.view.tools, name, time.time())

    def tool(self, name: str) -> Tool:
        """The same, where it must be there."""
        tool = self.find_tool(name)
        if tool is None:
            hint = "list_dynamic_tools, or GET /api/v1/tools, names those you can call."
            raise NotFound("invalid_arguments", f"Unknown tool: {name}", hint)
        return tool

    async def nearest_tool(self, server: str, name: str) -> Tool | None:
        """The tool of the caller's view that a wrong name means: spelled alike, or by its words."""
        tools = self.view.tools
        here = {tool.local_name: tool for tool in tools.values() if tool.connection == server}
        here = here or dict(tools)  # no such server: the whole name
        if close := await asyncio.to_thread(get_close_matches, name, here, 1):
            return here[close[0]]
        found = await self.gateway.search(self.snapshot, f"{server} {name}", tools, 1)
        return tools[found[0]] if found else None

    def server(self, name: str) -> tuple[ConnectionState, str, tuple[Tool, ...]]:
        """A server of the caller's view, what it says that it is for, and its tools there."""
        state = self.snapshot.connections[name]
        said = self.gateway.invoker.redactor(self.snapshot, name).text(state.purpose)
        return state, said, self.view.connections[name]

    def instructions(self, name: str) -> str:
        """What a connection that is trusted says of all its tools."""
        state = self.snapshot.connections[name]
        build = state.build if state.settings.trust == "trusted" else None
        said = build.instructions if build else ""
        return self.gateway.invoker.redactor(self.snapshot, name).text(said) if said else ""

    async def execution(self, id: str) -> Execution:
        """The execution of this id, if it exists for the caller."""
        db = self.gateway.db
        found = await get_execution(db, id)
        if found is None:  # a call that has just been answered may not be on disk yet
            await db.settle()
            found = await get_execution(db, id)
        if found is None or not self.concerns(found.principal, found.connection):
            hint = "list_executions names yours."
            raise NotFound("invalid_arguments", "there is no such execution", hint)
        return found

    async def records(self, executions: Sequence[Execution]) -> list[dict[str, Any]]:
        """Executions as every edge gives them, with what was asked about each."""
        asked = await approvals.approvals_of(self.gateway.db, [each.id for each in executions])
        return [execution_record(each, asked.get(each.id)) for each in executions]

    async def cancel(self, id: str) -> Execution:
        """Ends a call that runs or waits, where it can still be ended; how it is then."""
        gateway, execution = self.gateway, await self.execution(id)
        if execution.status == "pending_confirmation":
            await gateway.approvals.withdraw(id, self.principal.name, self.door)
        elif execution.status == "executing":
            if tasks := gateway.invoker.running.cancel(id):
                await asyncio.wait(tasks, timeout=limits.MOMENT_SECONDS)
            else:
                await gateway.db.write(lambda tx: signal(tx, CANCEL, id))
        return await self.execution(id)

    async def approval(self, id: str) -> Approval:
        """The approval of this id, if it is the caller's to decide on."""
        self.require_admin()
        found = await approvals.get_approval(self.gateway.db, id)
        if found is None or not self.oversees(found.connection):
            hint = "GET /approvals lists those that wait."
            raise NotFound("invalid_arguments", "there is no such approval", hint)
        return found

    def call(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        caller: Caller | None = None,
        *,
        unattended: bool = False,  # nobody waits while a person decides
        raw: ProxyRequest | None = None,  # that the tool was made of
        judged: Tool | None = None,
    ) -> Awaitable[dict[str, Any]]:
        """The wire dict of a tool's result."""
        scope = self.caller.scope
        door = {"tool": tool.name, "scope": [scope.kind, *scope.names]}
        return self.gateway.invoker.call(
            self.snapshot,
            tool,
            arguments,
            caller or self.caller,
            {"proxy": raw.as_dict()} if raw else door,
            self.view.bundle_ids,
            judged=judged,
            unattended=unattended,
        )


Run = Callable[..., Awaitable[Any]]  # takes the inquiry, then the arguments by name


@dataclass(frozen=True, slots=True)
class ServedTool(OwnTool):
    """One of the gateway's own tools, with what it does."""

    schema: bytes
    run: Run
    gives_result: bool = False  # another tool's result, as it is, and not a value


@dataclass(eq=False)
class Gateway:
    """What the gateway serves over MCP, REST and the console."""

    catalog: Catalog
    invoker: Invoker
    approvals: Approvals
    db: Database
    feed: Feed
    directory: AzureDirectory
    keeper: Keeper
    work: Work
    own_tools: Mapping[str, ServedTool]
    wake: Callable[[str], None] = lambda name: None  # has a connection looked at soon
    unknown_calls: int = 0

    def __post_init__(self) -> None:
        self._unknown = Throttle()  # what is beyond its bounds is counted, not recorded
        self._views: dict[tuple[object, ...], View] = {}
        self._servings: dict[tuple[int, str], Serving] = {}
        self.catalog.on_change(self._forget)
        self._index: tuple[int, ToolIndex] | None = None
        self._indexing = asyncio.Lock()

    @property
    def snapshot(self) -> Snapshot:
        return self.catalog.current

    def _forget(self) -> None:
        """Lets go of views: they would hold all the tools that were replaced."""
        self._views.clear()
        self._servings.clear()

    def inquiry(self, caller: Caller) -> Inquiry:
        """What this caller asks, on the snapshot of this moment."""
        snapshot = self.catalog.current
        seen = self.view_of(snapshot, caller.principal, caller.scope)
        return Inquiry(self, caller, snapshot, seen)

    def serving(self, snapshot: Snapshot, client: str) -> Serving:
        """How this client is to be served."""
        key = (snapshot.revision, client)
        found = self._servings.get(key)
        if found is None:
            if len(self._servings) >= limits.MAX_REMEMBERED:
                self._forget()
            found = self._servings[key] = find_serving(snapshot.settings.clients, client)
        return found

    def view_of(
        self, snapshot: Snapshot, principal: Principal, scope: Scope, form: Form = "full"
    ) -> View:
        """What the principal sees at this address, in this snapshot and form."""
        who = principal.name, principal.role, principal.organization, principal.admin
        key = (snapshot.revision, scope.kind, scope.names, form, *who)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= limits.MAX_REMEMBERED:
                self._forget()
            found = self._views[key] = self._shared_view(snapshot, principal, scope, form)
            self._wake_sleepers(snapshot, found)
        return found

    def _shared_view(self, snapshot: Snapshot, who: Principal, scope: Scope, form: Form) -> View:
        """One view for all who see the same: a thousand principals cost the memory of one."""
        key = (snapshot.revision, standing(snapshot, who, scope), form)
        found = self._views.get(key)
        if found is None:
            found = view(snapshot, who, scope, tuple(self.own_tools.values()), form)
            self._views[key] = found
        return found

    def _wake_sleepers(self, snapshot: Snapshot, seen: View) -> None:
        """Has lazy connections that nothing is known of yet looked at: somebody needs them."""
        for name in seen.connections:
            if snapshot.connections[name].status == "pending":
                self.wake(name)

    def input_schema(self, inquiry: Inquiry, name: str) -> bytes | None:
        """The input schema of a tool in the caller's view, as JSON."""
        if name in inquiry.view.own:
            return self.own_tools[name].schema
        tool = inquiry.snapshot.find(inquiry.view.direct, name, time.time())
        return tool.input_schema if tool else None

    async def call(self, inquiry: Inquiry, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The wire dict of a tool's result. Raises UnknownTool for what is not in the view."""
        tool = inquiry.snapshot.find(inquiry.view.direct, name, time.time())
        if inquiry.principal.withheld:
            self.check_scope(inquiry.principal, name, tool)
        if tool is not None and tool.upstream is not None:
            return told_name(await self._call_upstream(inquiry, tool, arguments), name, tool)
        if tool is not None:
            return told_name(await inquiry.call(tool, arguments), name, tool)
        if name in inquiry.view.own:
            return await self._call_own(inquiry, self.own_tools[name], arguments)
        self.note_unknown(inquiry, name)
        raise UnknownTool(name)

    def check_scope(self, principal: Principal, name: str, tool: Tool | None) -> None:
        """Refuses at the door what the client's token is too narrow for, so that it can ask."""
        if tool is not None and tool.access != "read" and "tools:write" in principal.withheld:
            raise InsufficientScope("tools:read", "tools:write")
        own = self.own_tools.get(name)
        if own is not None and own.audience == "admin" and "admin" in principal.withheld:
            raise InsufficientScope(*SCOPES)

    def note_unknown(self, inquiry: Inquiry, name: str) -> None:
        """Records a call of a tool that the caller does not have, whoever else may have it."""
        self.unknown_calls += 1
        principal = inquiry.principal.name
        if self._unknown.wait(principal) > 0:
            return
        self._unknown.failed(principal)
        error = Refused("access_denied", "there is no such tool for this caller")
        self.invoker.record(refusal_of(inquiry.snapshot, inquiry.caller, name, error))

    async def _call_upstream(
        self, inquiry: Inquiry, tool: Tool, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Where a server is all there is, its own errors reach the client as they are."""
        refusals: list[UpstreamRefused] = []
        inquiry.caller.refused = refusals.append
        let_ask(inquiry, tool)
        result = await inquiry.call(tool, arguments)
        if refusals and offering(inquiry.snapshot, inquiry.principal, inquiry.view).sole:
            raise refusals[0]
        return result

    async def _call_own(
        self, inquiry: Inquiry, tool: ServedTool, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            check_arguments(tool.schema, arguments)
            found = await tool.run(inquiry, **whole_numbers(arguments))
            return found if tool.gives_result else value_result(found)
        except InsufficientScope:
            raise  # its client is to ask for more, as it would for the tool itself
        except GatewayError as error:
            return error_result(error)
        except Exception:  # the boundary: nothing of ours may reach a model as a stack
            log.exception("own tool failed", tool=tool.name)
            return error_result(Broken("internal", "the gateway failed on this call"))

    def find_tool(self, door: Door, snapshot: Snapshot, principal: Principal) -> tuple[Tool, Tool]:
        """The tool behind a door, and the one that permissions are asked about."""
        kind, *names = door.get("scope", ("own",))
        seen = self.view_of(snapshot, principal, Scope(kind, tuple(names)))
        if "proxy" in door:
            return proxied(snapshot, principal, seen, ProxyRequest(**door["proxy"]))
        tool = snapshot.find(seen.tools, door["tool"], time.time())
        if tool is None:
            raise UnknownTool(door["tool"])
        return tool, tool

    async def search(
        self, snapshot: Snapshot, query: str, names: Collection[str], limit: int
    ) -> list[str]:
        """The names, of these, that fit the words best; the index is made off the event loop."""
        async with self._indexing:
            if self._index is None or self._index[0] != snapshot.revision:
                index = await asyncio.to_thread(ToolIndex, list(snapshot.tools.values()))
                self._index = (snapshot.revision, index)
            index = self._index[1]
            return await asyncio.to_thread(index.search, query, allowed=names, limit=limit)


class Feed:
    """The live feed: where its events are put, and who reads them.

    Confirmations and results go through the store, so that every replica's readers get them all.
    Results of reads are many. They are only kept while someone reads the feed, on whichever
    replica.
    """

    def __init__(self, db: Database, signals: Signals, catalog: Catalog) -> None:
        self._db = db
        self._readers: dict[asyncio.Event, str] = {}  # what wakes each, and whose it is
        self._watched_until = 0.0
        self._said_watched = 0.0
        self.closing = False
        self.news = 0  # how often there was something new
        # Open pages look at the store one after the other: calls don't wait behind all of them.
        self.turn = asyncio.Lock()
        for kind in (*EVENTS, SIGNED):
            signals.on(kind, lambda _: self.wake())
        signals.on(WATCHED, lambda _: self._watched())
        catalog.on_change(self.wake)

    def result(self, execution: Execution) -> None:
        """Tells of a call that ended."""
        if execution.access != "read" or time.monotonic() < self._watched_until:
            signal_soon(self._db, RESULT, execution.id)

    def wake(self) -> None:
        """There may be something new for every reader."""
        self.news += 1
        for woken in self._readers:
            woken.set()

    def close(self) -> None:
        """Ends every stream."""
        self.closing = True
        self.wake()

    def stream(self, principal: str, step: Step, *, rest: float = 0.0) -> EventStream:
        """A stream that is woken by events and by changes. Raises where there are too many.

        The more readers there are, the longer each rests: a burst costs as much for many.
        """
        own = sum(name == principal for name in self._readers.values())
        if own >= limits.STREAMS_A_PRINCIPAL or self.closing:
            raise Overloaded("busy", "Too many readers of events.", "Close one.", retry_after=5)
        woken = asyncio.Event()
        self._readers[woken] = principal

        def leave() -> None:
            del self._readers[woken]

        return EventStream(step, woken, leave, lambda: rest * max(1.0, len(self._readers) / 4))

    async def say_watched(self) -> None:
        """Lets every replica know that results of reads are wanted."""
        self._watched()
        if time.monotonic() - self._said_watched > limits.PING_SECONDS:
            self._said_watched = time.monotonic()
            await self._db.write(lambda tx: signal(tx, WATCHED))

    def _watched(self) -> None:
        self._watched_until = time.monotonic() + 4 * limits.PING_SECONDS


def let_ask(inquiry: Inquiry, tool: Tool) -> None:
    """Lets the tool's server ask this client what it may, while the call runs."""
    server = inquiry.snapshot.connections[tool.connection]
    inquiry.caller.askable = askable_of(inquiry.caller, server)
    inquiry.caller.withheld = withheld(inquiry.caller.capabilities, server)


def askable_of(caller: Caller, server: ConnectionState) -> Mapping[str, Any]:
    """What this server may ask of this client, if there is a way to ask it anything."""
    if not caller.capabilities or (caller.era == "2025" and caller.ask is None):
        return {}
    return askable(caller.capabilities, server)


def told_name(result: dict[str, Any], name: str, tool: Tool) -> dict[str, Any]:
    """The result of a call by this name; where it is one that the tool had, the result says so."""
    if name == tool.name or "content" not in result:  # which questions to the client don't have
        return result
    words = f"{name} is called {tool.name} now, and answers to the old name for 30 days at most."
    return with_line(result, words, {RENAMED_META: {"from": name, "to": tool.name}})
