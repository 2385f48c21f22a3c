"""The one door: every call of every tool comes in here, whatever edge it came through.

A request reads the current snapshot once, here, and everything after works on that value. A name is
looked up in the caller's view; what is not there does not exist. Views are remembered by revision
and principal, so that the many requests between two changes find theirs ready.

How calls come in, and how one that waited for a person finds its way in again.

A door finds the tool for a principal in a snapshot: in the caller's view, or as a raw request to a
connection. Its ticket is the same as plain data, so that another process can open the same door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from gateway.calls.approvals import Approvals
from gateway.calls.arguments import check_arguments
from gateway.calls.asking import Ticket
from gateway.calls.call import Invoker
from gateway.calls.lookups import LookUps
from gateway.calls.record import Caller, Door, refusal_of
from gateway.catalog.catalog import Catalog
from gateway.catalog.schedule import AzureWatch
from gateway.catalog.search import ToolIndex
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import Broken, GatewayError, NotFound, Refused, UnknownTool, UpstreamRefused
from gateway.model import Principal, Tool
from gateway.outbound.content import Work
from gateway.policy.access import principal_now
from gateway.policy.view import Scope, View, askable, offering, standing, view
from gateway.store.approvals import Approval
from gateway.store.database import Database
from gateway.web.guard import Throttle
from gateway.web.meta_tools import HANDLERS, Asked, reached_tool
from gateway.web.own_tools import OWN_TOOLS, SCHEMAS
from gateway.web.proxy import ProxyRequest, proxied
from gateway.web.shown import error_result, value_result

if TYPE_CHECKING:
    pass


def tool_door(gateway: Gateway, name: str, scope: Scope, *, unattended: bool = False) -> Door:
    """For a tool of the caller's view."""

    def find(snapshot: Snapshot, principal: Principal) -> Tool:
        tool = gateway.view_of(snapshot, principal, scope).tools.get(name)
        if tool is None:
            raise UnknownTool(name)
        return tool

    return Door(find, {"tool": name, "scope": [scope.kind, *scope.names]}, unattended=unattended)


def proxy_door(gateway: Gateway, request: ProxyRequest, judged: Tool) -> Door:
    """For a raw request to a connection."""

    def find(snapshot: Snapshot, principal: Principal) -> Tool:
        seen = gateway.view_of(snapshot, principal, Scope())
        return proxied(snapshot, principal, seen, request).tool

    return Door(find, {"proxy": request.as_dict()}, judged, unattended=True)


async def resume(gateway: Gateway, approval: Approval, ticket: Ticket) -> None:
    """Makes a call that was approved after its caller had left."""
    snapshot = gateway.snapshot
    principal = principal_now(snapshot.settings, ticket.principal)
    try:
        if principal is None:
            raise UnknownTool(approval.tool)
        door, tool = _opened(gateway, snapshot, principal, ticket.door)
    except (GatewayError, UnknownTool):
        await gateway.approvals.void(approval)
        return
    caller = Caller(principal, client=ticket.client)
    invoker = gateway.invoker
    attempt = invoker.attempt(snapshot, tool, ticket.arguments, caller, ticket.bundle_ids, door)
    attempt.id, attempt.at = approval.execution_id, approval.created_at
    attempt.token, attempt.token_given = ticket.token, ticket.token_given
    await gateway.approvals.recheck(attempt, approval)
    await invoker.resume(attempt, approval)


def _opened(
    gateway: Gateway, snapshot: Snapshot, principal: Principal, ticket: Any
) -> tuple[Door, Tool]:
    if "proxy" in ticket:
        request = ProxyRequest(**ticket["proxy"])
        seen = gateway.view_of(snapshot, principal, Scope())
        wanted = proxied(snapshot, principal, seen, request)
        return proxy_door(gateway, request, wanted.judged), wanted.tool
    kind, *names = ticket["scope"]
    door = tool_door(gateway, ticket["tool"], Scope(kind, tuple(names)), unattended=True)
    return door, door.find(snapshot, principal)


log = structlog.get_logger("gateway.edge")

MAX_VIEWS = 2048
MAX_WHOLE = 2**53  # beyond it, a float is no longer exact


class Gateway:
    """What the gateway serves over MCP, REST and the console."""

    def __init__(
        self,
        catalog: Catalog,
        invoker: Invoker,
        approvals: Approvals,
        db: Database,
        azure: AzureWatch,
        work: Work,
    ) -> None:
        self.catalog = catalog
        self.invoker = invoker
        self.approvals = approvals
        self.db = db
        self.azure = azure
        self.work = work
        self.lookups = LookUps(invoker, db)
        self.wake: Callable[[str], None] = lambda name: None
        self.unknown_calls = 0
        self._unknown = Throttle()  # what is beyond its bounds is counted, not recorded
        self._views: dict[tuple[Any, ...], View] = {}
        catalog.on_change(self._views.clear)  # they would hold all the tools that were replaced
        self._index: tuple[int, ToolIndex] | None = None
        self._indexing = asyncio.Lock()

    @property
    def snapshot(self) -> Snapshot:
        return self.catalog.current

    def view(self, principal: Principal, scope: Scope) -> View:
        """What the principal sees at this address now."""
        return self.view_of(self.catalog.current, principal, scope)

    def view_of(self, snapshot: Snapshot, principal: Principal, scope: Scope) -> View:
        """What the principal sees at this address, in this snapshot."""
        who = principal.name, principal.role, principal.organization, principal.admin
        key = (snapshot.revision, scope.kind, scope.names, *who)
        found = self._views.get(key)
        if found is None:
            found = self._remember(key, self._shared_view(snapshot, principal, scope))
            self._wake_sleepers(snapshot, found)
        return found

    def _shared_view(self, snapshot: Snapshot, principal: Principal, scope: Scope) -> View:
        """One view for all who see the same: a thousand principals cost the memory of one."""
        key = (snapshot.revision, standing(snapshot, principal, scope))
        found = self._views.get(key)
        return found or self._remember(key, view(snapshot, principal, scope, OWN_TOOLS))

    def _remember(self, key: tuple[Any, ...], seen: View) -> View:
        if len(self._views) >= MAX_VIEWS:
            del self._views[next(iter(self._views))]
        self._views[key] = seen
        return seen

    def _wake_sleepers(self, snapshot: Snapshot, seen: View) -> None:
        """Has lazy connections that nothing is known of yet looked at: somebody needs them."""
        for name in seen.connections:
            if snapshot.connections[name].status == "pending":
                self.wake(name)

    def input_schema(self, principal: Principal, scope: Scope, name: str) -> bytes | None:
        """The input schema of a tool in the caller's view, as JSON."""
        seen = self.view(principal, scope)
        if name in seen.own:
            return SCHEMAS[name]
        tool = seen.direct.get(name)
        return tool.input_schema if tool else None

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has `listener` called after each change of what is served."""
        return self.catalog.on_change(listener)

    async def call(self, name: str, arguments: dict[str, Any], context: Caller) -> dict[str, Any]:
        """The wire dict of a tool's result. Raises UnknownTool for what is not in the view."""
        snapshot = self.catalog.current
        seen = self.view_of(snapshot, context.principal, context.scope)
        tool = seen.direct.get(name)
        if tool is not None and tool.upstream is not None:
            return await self._call_upstream(snapshot, seen, tool, arguments, context)
        if tool is not None:
            door = tool_door(self, name, context.scope)
            return await self.invoker.call(
                snapshot, tool, arguments, context, seen.bundle_ids, door
            )
        if name in seen.own:
            return await self._call_own(name, arguments, Asked(self, context, snapshot, seen))
        self.note_unknown(snapshot, context, name)
        raise UnknownTool(name)

    def note_unknown(self, snapshot: Snapshot, caller: Caller, name: str) -> None:
        """Records a call of a tool that the caller does not have, whoever else may have it."""
        self.unknown_calls += 1
        principal = caller.principal.name
        if self._unknown.wait(principal) > 0:
            return
        self._unknown.failed(principal)
        error = Refused("access_denied", "there is no such tool for this caller")
        self.invoker.record(refusal_of(snapshot, caller, name, error))

    async def _call_upstream(
        self,
        snapshot: Snapshot,
        seen: View,
        tool: Tool,
        arguments: dict[str, Any],
        context: Caller,
    ) -> dict[str, Any]:
        """Where a server is all there is, its own errors reach the client as they are."""
        refusals: list[UpstreamRefused] = []
        context.refused = refusals.append
        if context.capabilities:
            context.askable = askable_of(context, snapshot.connections[tool.connection])
        door = tool_door(self, tool.name, context.scope)
        result = await self.invoker.call(snapshot, tool, arguments, context, seen.bundle_ids, door)
        if refusals and offering(snapshot, context.principal, seen).transparent:
            raise refusals[0]
        return result

    async def _call_own(self, name: str, arguments: dict[str, Any], asked: Asked) -> dict[str, Any]:
        try:
            check_arguments(name, SCHEMAS[name], arguments)
            if name == "mcp_call_tool":
                return await self._call_reached(arguments, asked)
            return value_result(await HANDLERS[name](asked, _whole_numbers(arguments)))
        except GatewayError as error:
            return error_result(error)
        except Exception:  # the boundary: nothing of ours may reach a model as a stack
            log.exception("own tool failed", tool=name)
            return error_result(Broken("internal", "the gateway failed on this call"))

    async def _call_reached(self, arguments: dict[str, Any], asked: Asked) -> dict[str, Any]:
        server, name = arguments["server_id"], arguments["tool_name"]
        try:
            tool = reached_tool(asked.view, server, name)
        except NotFound:
            self.note_unknown(asked.snapshot, asked.context, f"{server} {name}")
            raise
        reached = asked.snapshot.connections[tool.connection]
        asked.context.askable = askable_of(asked.context, reached)
        door = tool_door(self, tool.name, asked.context.scope)
        return await self.invoker.call(
            asked.snapshot,
            tool,
            arguments.get("args", {}),
            asked.context,
            asked.view.bundle_ids,
            door,
        )

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


def askable_of(caller: Caller, server: ConnectionState) -> Mapping[str, Any]:
    """What this server may ask of this client, if there is a way to ask it anything."""
    if caller.era == "2025" and caller.ask is None:
        return {}
    return askable(caller.capabilities, server)


def _whole_numbers(arguments: dict[str, Any]) -> dict[str, Any]:
    """JSON has one kind of number: `2.0` fits an integer, but Python can't count with it."""
    return {
        name: int(min(value, MAX_WHOLE))
        if isinstance(value, float) and value.is_integer()
        else value
        for name, value in arguments.items()
    }
