"""How calls come in, and how one that waited for a person finds its way in again.

A door finds the tool for a principal in a snapshot: in the caller's view, or as a raw request to a
connection. Its ticket is the same as plain data, so that another process can open the same door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.catalog.snapshot import Snapshot
from gateway.edge.proxy import ProxyRequest, proxied
from gateway.errors import GatewayError, UnknownTool
from gateway.invoke.approval_state import Ticket
from gateway.invoke.attempt import Door
from gateway.invoke.caller import AbsentCaller
from gateway.model import Principal, Tool
from gateway.policy.principals import principal_now
from gateway.policy.view import Scope
from gateway.store.approvals import Approval

if TYPE_CHECKING:
    from gateway.edge.gateway import Gateway


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
    caller = AbsentCaller(principal, ticket.client)
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
