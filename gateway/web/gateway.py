"""The one door: every call of every tool comes in here, whatever edge it came through.

A request takes the current snapshot once, in `inquiry` or `look`, and works on that value to its
end; only a call that waited for a person goes on with the newest. A name is looked up in the
caller's view; a tool that is not there does not exist for the caller. Views are remembered by
revision and principal, so that the many requests between two changes find theirs ready.

A call that waits for a person has a ticket in the store: principal, arguments, token and, as plain
data, its tool's reference. So any process can make it, with the tool that its caller sees by then.
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
from gateway.calls.record import Caller, ToolReference, mention_rename, record_without_tool
from gateway.calls.result_forms import error_result, value_result
from gateway.catalog.catalog import Catalog
from gateway.catalog.search import ToolIndex
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.profiles import Format, Serving, find_serving
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
from gateway.model import Principal, Tool, ViewAddress
from gateway.outbound.content import RunInWorker
from gateway.policy.access import may_know, oversees, oversight
from gateway.policy.view import (
    OwnTool,
    View,
    make_view,
    refused_capabilities,
    servers_of_view,
    usable_capabilities,
    view_key,
)
from gateway.sign_in.credentials import PeopleCredentials
from gateway.store import approvals
from gateway.store.cluster import Signals, signal_soon
from gateway.store.credentials import SIGNED
from gateway.store.database import Database, Oversight, signal
from gateway.store.ledger import Filter, get_execution
from gateway.store.tables import EVENTS, RESULT, Approval, Execution, StandingGrant
from gateway.web.display import execution_record
from gateway.web.guard import EventStream, WriteNews
from gateway.web.identity import SCOPES
from gateway.web.proxy import ProxyRequest, resolve_request

log = structlog.get_logger("gateway.edge")

WATCHED = "watched"  # the signal: the feed has a reader
CallRow = Execution | Approval | StandingGrant


class Inquiry(Struct, frozen=True):
    """One request: its caller, the snapshot it began on, and the view the caller has there."""

    gateway: Gateway
    caller: Caller
    snapshot: Snapshot
    view: View

    @property
    def principal(self) -> Principal:
        return self.caller.principal

    @property
    def edge(self) -> str:
        """The way a request came in, as decisions are recorded with it."""
        era = self.caller.era
        return era if era in ("console", "rest") else "mcp"

    def serving(self, client: str = "") -> Serving:
        """How a client of this name is to be served; without a name: the caller's client."""
        client = f"{client[: limits.NAME_CHARS]}/" if client else self.caller.client
        return self.gateway.serving(self.snapshot, client)

    def require_admin(self) -> None:
        """Refuses callers who are not admins, and clients that are not to act as one."""
        if "admin" in self.principal.withheld:
            raise InsufficientScope(*SCOPES)
        if not self.principal.admin:
            hint = "Ask an admin of the gateway."
            raise Refused("access_denied", "only an admin may do this", hint)

    def oversees(self, row: CallRow) -> bool:
        """Whether the caller may see what other principals did there."""
        return oversees(self.snapshot, self.principal, row.connection, row.organization)

    def concerns(self, row: CallRow) -> bool:
        """Whether the row is the caller's, or one that the caller oversees."""
        return row.principal == self.principal.name or self.oversees(row)

    def oversight(self) -> Oversight:
        """The organization and the connections whose rows are the caller's business; None: all."""
        return oversight(self.snapshot, self.principal)

    def visible_rows(self) -> approvals.VisibleRows:
        """Whose rows the caller may see: its own, and those it oversees."""
        return self.principal.name, self.oversight() if self.principal.admin else ("", (), ())

    def calls_with(self, principal: str = "", **columns: Any) -> Filter:
        """A filter for those calls that the caller may see and that have these values."""
        if not self.principal.admin:
            return Filter(principal=self.principal.name, **columns)
        return Filter(principal=principal, oversight=self.oversight(), **columns)

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
        """The tool that `find_tool` finds; raises NotFound where there is none."""
        tool = self.find_tool(name)
        if tool is None:
            hint = "list_dynamic_tools, or GET /api/v1/tools, names those you can call."
            raise NotFound("invalid_arguments", f"Unknown tool: {name}", hint)
        return tool

    async def nearest_tool(self, server: str, name: str) -> Tool | None:
        """The tool of the caller's view that a wrong name may mean: by spelling or by words."""
        tools = self.view.tools
        by_name = {tool.local_name: tool for tool in tools.values() if tool.connection == server}
        by_name = by_name or dict(tools)  # no such server: the whole name
        if close := await asyncio.to_thread(get_close_matches, name, by_name, 1):
            return by_name[close[0]]
        matches = await self.gateway.search(self.snapshot, f"{server} {name}", tools, 1)
        return tools[matches[0]] if matches else None

    def server(self, name: str) -> tuple[ConnectionState, str, tuple[Tool, ...]]:
        """A server of the caller's view, its own words on its purpose, and its tools there."""
        state = self.snapshot.connections[name]
        purpose = self.gateway.invoker.redactor(self.snapshot, name).clear_text(state.purpose)
        return state, purpose, self.view.connections[name]

    def instructions(self, name: str) -> str:
        """The instructions of a trusted connection for all its tools."""
        state = self.snapshot.connections[name]
        build = state.build if state.settings.trust == "trusted" else None
        text = build.instructions if build else ""
        return self.gateway.invoker.redactor(self.snapshot, name).clear_text(text) if text else ""

    async def execution(self, id: str) -> Execution:
        """The execution of this id, if it exists for the caller."""
        db = self.gateway.db
        execution = await get_execution(db, id)
        if execution is None:  # a call that has just been answered may not be on disk yet
            await db.settle()
            execution = await get_execution(db, id)
        if execution is None or not self.concerns(execution):
            hint = "list_executions names yours."
            raise NotFound("invalid_arguments", "there is no such execution", hint)
        return execution

    async def records(self, executions: Sequence[Execution]) -> list[dict[str, Any]]:
        """Executions as every edge gives them, each with its approval."""
        by_id = await approvals.approvals_of(self.gateway.db, [each.id for each in executions])
        return [execution_record(each, by_id.get(each.id)) for each in executions]

    async def cancel(self, id: str) -> Execution:
        """Ends a call that runs or waits, where it can be ended; returns its execution then."""
        gateway, execution = self.gateway, await self.execution(id)
        if execution.status == "pending_confirmation":
            await gateway.approvals.withdraw(id, self.principal.name, self.edge)
        elif execution.status == "executing":
            if tasks := gateway.invoker.running.cancel(id):
                await asyncio.wait(tasks, timeout=limits.MOMENT_SECONDS)
            else:
                await gateway.db.write(lambda tx: signal(tx, CANCEL, id))
        return await self.execution(id)

    async def approval(self, id: str) -> Approval:
        """The approval of this id, if it is the caller's to decide on."""
        self.require_admin()
        approval = await approvals.get_approval(self.gateway.db, id)
        if approval is None or not self.oversees(approval):
            hint = "GET /approvals lists those that wait."
            raise NotFound("invalid_arguments", "there is no such approval", hint)
        return approval

    def call(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        caller: Caller | None = None,
        *,
        unattended: bool = False,  # no client waits while a person decides
        raw: ProxyRequest | None = None,  # the raw request that the tool stands for
        judged_tool: Tool | None = None,  # permissions are asked about it, if it is given
    ) -> Awaitable[dict[str, Any]]:
        """The tool's result."""
        address = self.caller.view_address
        reference = {"tool": tool.name, "scope": [address.kind, *address.names]}
        return self.gateway.invoker.call(
            *(self.snapshot, tool, arguments, caller or self.caller),
            {"proxy": raw.as_dict()} if raw else reference,
            self.view.bundle_ids,
            judged_tool=judged_tool,
            unattended=unattended,
        )


Run = Callable[..., Awaitable[Any]]  # takes the inquiry, then the arguments by name


@dataclass(frozen=True, slots=True)
class ServedTool(OwnTool):
    """One of the gateway's own tools, with its function."""

    schema: bytes
    run: Run
    gives_result: bool = False  # `run` returns another tool's result, as it is, and not a value


@dataclass(eq=False)
class Gateway:
    """The gateway as MCP, REST and the console call it."""

    catalog: Catalog
    invoker: Invoker
    approvals: Approvals
    db: Database
    feed: Feed
    directory: AzureDirectory
    people: PeopleCredentials
    work: RunInWorker
    own_tools: Mapping[str, ServedTool]
    wake: Callable[[str], None] = lambda name: None  # has a lazy connection read soon
    unknown_calls: int = 0

    def __post_init__(self) -> None:
        self._unknown_throttle = Throttle()  # calls beyond its bounds are counted only
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
        """The inquiry of this caller, on the snapshot of this moment."""
        snapshot = self.catalog.current
        caller_view = self.view_of(snapshot, caller.principal, caller.view_address)
        return Inquiry(self, caller, snapshot, caller_view)

    def look(
        self, person: Principal, address: ViewAddress, client: str
    ) -> tuple[Snapshot, View, Serving]:
        """The snapshot of now, the principal's view of it, and how this client is served."""
        snapshot = self.catalog.current
        serving = self.serving(snapshot, client)
        return snapshot, self.view_of(snapshot, person, address, serving.form), serving

    def serving(self, snapshot: Snapshot, client: str) -> Serving:
        """The serving of this client."""
        key = (snapshot.revision, client)
        serving = self._servings.get(key)
        if serving is None:
            if len(self._servings) >= limits.MAX_REMEMBERED:
                self._forget()
            serving = self._servings[key] = find_serving(snapshot.settings.clients, client)
        return serving

    def view_of(
        self, snapshot: Snapshot, person: Principal, address: ViewAddress, form: Format = "full"
    ) -> View:
        """The principal's view at this address, in this snapshot and form."""
        traits = person.name, person.role, person.organization, person.admin, person.access
        # A stream may hold the principal with the rights it had when the stream was opened.
        rights = *traits, *person.connections.items()
        key = (snapshot.revision, address.kind, address.names, form, *rights)
        cached = self._views.get(key)
        if cached is None:
            if len(self._views) >= limits.MAX_REMEMBERED:
                self._forget()
            cached = self._views[key] = self._shared_view(snapshot, person, address, form)
            self._wake_sleepers(snapshot, cached)
        return cached

    def _shared_view(
        self, snapshot: Snapshot, person: Principal, address: ViewAddress, form: Format
    ) -> View:
        """One view for all principals who see the same: a thousand cost the memory of one."""
        key = (snapshot.revision, view_key(snapshot, person, address), form)
        shared = self._views.get(key)
        if shared is None:
            shared = make_view(snapshot, person, address, tuple(self.own_tools.values()), form)
            self._views[key] = shared
        return shared

    def _wake_sleepers(self, snapshot: Snapshot, new_view: View) -> None:
        """Wakes lazy connections that nothing is known of yet: a caller needs them now."""
        for name in new_view.connections:
            if snapshot.connections[name].status == "pending":
                self.wake(name)

    def input_schema(self, inquiry: Inquiry, name: str) -> bytes | None:
        """The input schema of a tool in the caller's view, as JSON."""
        if name in inquiry.view.own_names:
            return self.own_tools[name].schema
        tool = inquiry.snapshot.find(inquiry.view.direct_tools, name, time.time())
        return tool.input_schema if tool else None

    async def call(self, inquiry: Inquiry, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The tool's result. Raises UnknownTool where the view lacks it."""
        tool = inquiry.snapshot.find(inquiry.view.direct_tools, name, time.time())
        if inquiry.principal.withheld:
            self.check_scope(inquiry.principal, name, tool)
        if tool is not None and tool.upstream is not None:
            return mention_rename(await self._call_upstream(inquiry, tool, arguments), name, tool)
        if tool is not None:
            return mention_rename(await inquiry.call(tool, arguments), name, tool)
        if name in inquiry.view.own_names:
            return await self._call_own(inquiry, self.own_tools[name], arguments)
        self.note_unknown(inquiry, name)
        raise UnknownTool(name)

    def check_scope(self, principal: Principal, name: str, tool: Tool | None) -> None:
        """Refuses a tool that the client's token is too narrow for, so that the client can ask."""
        if tool is not None and tool.access != "read" and "tools:write" in principal.withheld:
            raise InsufficientScope("tools:read", "tools:write")
        own = self.own_tools.get(name)
        if own is not None and own.audience == "admin" and "admin" in principal.withheld:
            raise InsufficientScope(*SCOPES)

    def note_unknown(self, inquiry: Inquiry, name: str) -> None:
        """Records a call of a tool that this caller does not have, though another one may."""
        self.unknown_calls += 1
        principal = inquiry.principal.name
        if self._unknown_throttle.failure_wait(principal) > 0:
            return
        self._unknown_throttle.count_failure(principal)
        error = Refused("access_denied", "there is no such tool for this caller")
        self.invoker.record(record_without_tool(inquiry.snapshot, inquiry.caller, name, error))

    async def _call_upstream(
        self, inquiry: Inquiry, tool: Tool, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Where a server is all there is, its own errors reach the client as they are."""
        refusals: list[UpstreamRefused] = []
        inquiry.caller.on_refusal = refusals.append
        allow_questions(inquiry.caller, inquiry.snapshot.connections[tool.connection])
        result = await inquiry.call(tool, arguments)
        if refusals and servers_of_view(inquiry.snapshot, inquiry.principal, inquiry.view).sole:
            raise refusals[0]
        return result

    async def _call_own(
        self, inquiry: Inquiry, tool: ServedTool, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            check_arguments(tool.schema, arguments)
            value = await tool.run(inquiry, **whole_numbers(arguments))
            return value if tool.gives_result else value_result(value)
        except InsufficientScope:
            raise  # the client is to ask for more rights, as it would for the tool itself
        except GatewayError as error:
            return error_result(error)
        except Exception:  # the boundary: nothing of ours may reach a model as a stack
            log.exception("own tool failed", tool=tool.name)
            return error_result(Broken("internal", "the gateway failed on this call"))

    def find_tool(
        self, reference: ToolReference, snapshot: Snapshot, principal: Principal
    ) -> tuple[Tool, Tool]:
        """The tool of a reference, and the tool whose permissions it falls under."""
        kind, *names = reference.get("scope", ("own",))
        seen = self.view_of(snapshot, principal, ViewAddress(kind, tuple(names)))
        if "proxy" in reference:
            return resolve_request(snapshot, principal, seen, ProxyRequest(**reference["proxy"]))
        tool = snapshot.find(seen.tools, reference["tool"], time.time())
        if tool is None:
            raise UnknownTool(reference["tool"])
        return tool, tool

    async def search(
        self, snapshot: Snapshot, query: str, names: Collection[str], limit: int
    ) -> list[str]:
        """The names among these that fit the words best; the index is made off the event loop."""
        async with self._indexing:
            if self._index is None or self._index[0] != snapshot.revision:
                index = await asyncio.to_thread(ToolIndex, list(snapshot.tools.values()))
                self._index = (snapshot.revision, index)
            return await asyncio.to_thread(self._index[1].search, query, allowed=names, limit=limit)


class Feed:
    """The live feed: its events, and the readers of them.

    Confirmations and results go through the store, so that every replica's readers get them all.
    Results of reads are many. They are only stored while some replica's feed has a reader.
    """

    def __init__(self, db: Database, signals: Signals, catalog: Catalog) -> None:
        self._db = db
        self._readers: dict[asyncio.Event, str] = {}  # by what wakes a reader: its principal
        self._watched_until = 0.0
        self._announced_at = 0.0
        self.closing = False
        self.news = 0  # how often readers were woken
        # Open pages look at the store one after the other: calls don't wait behind all of them.
        self.turn = asyncio.Lock()
        for kind in (*EVENTS, SIGNED):
            signals.on(kind, lambda _: self.wake())
        signals.on(WATCHED, lambda _: self._note_reader())
        catalog.on_change(self.wake)

    def result(self, execution: Execution) -> None:
        """Tells the feed's readers of a call that ended."""
        if execution.access != "read" or time.monotonic() < self._watched_until:
            signal_soon(self._db, RESULT, execution.id)

    def wake(self) -> None:
        """Wakes every reader: there may be something new."""
        self.news += 1
        for reader in self._readers:
            reader.set()

    def close(self) -> None:
        """Ends every stream."""
        self.closing = True
        self.wake()

    def stream(self, principal: str, step: WriteNews, *, rest: float = 0.0) -> EventStream:
        """A stream that is woken by events and by changes. Raises where there are too many.

        The more readers there are, the longer each rests: a burst costs no more for many readers.
        """
        own = sum(name == principal for name in self._readers.values())
        if own >= limits.STREAMS_A_PRINCIPAL or self.closing:
            raise Overloaded("busy", "Too many readers of events.", "Close one.", retry_after=5)
        woken = asyncio.Event()
        self._readers[woken] = principal

        def leave() -> None:
            del self._readers[woken]

        return EventStream(step, woken, leave, lambda: rest * max(1.0, len(self._readers) / 4))

    async def announce_reader(self) -> None:
        """Tells every replica that the feed has a reader, who wants results of reads too."""
        self._note_reader()
        if time.monotonic() - self._announced_at > limits.PING_SECONDS:
            self._announced_at = time.monotonic()
            await self._db.write(lambda tx: signal(tx, WATCHED))

    def _note_reader(self) -> None:
        self._watched_until = time.monotonic() + 4 * limits.PING_SECONDS


def allow_questions(caller: Caller, server: ConnectionState) -> None:
    """Lets the server ask this client, as far as it may and a question can reach the client."""
    offered = caller.capabilities if caller.era != "2025" or caller.ask is not None else {}
    caller.usable_capabilities = usable_capabilities(offered, server)
    caller.refused_capabilities = refused_capabilities(caller.capabilities, server)
