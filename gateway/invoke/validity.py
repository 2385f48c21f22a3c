"""Whether what a person approved still holds, and what a decision gives. Pure.

An approval is for one tool as it was, asked for by someone with the right to it. Before it is used
all of that is looked at again, on the newest snapshot.
"""

from __future__ import annotations

from gateway.catalog.snapshot import Snapshot
from gateway.config.settings import Permissions
from gateway.errors import GatewayError, Refused, UnknownTool
from gateway.invoke.attempt import Attempt
from gateway.invoke.outcomes import NotApproved
from gateway.model import Principal, Tool
from gateway.policy.access import level, shows
from gateway.policy.decide import decide
from gateway.policy.principals import principal_now
from gateway.store.approvals import Approval, StandingGrant
from gateway.store.ids import new_id

MAX_REQUEST_CHARS = 500
SESSION_GRANT_SECONDS = 7 * 24 * 3600.0  # a session's longest life


def judged_again(snapshot: Snapshot, attempt: Attempt, approval: Approval) -> tuple[Snapshot, Tool]:
    """The snapshot and the tool the call may be made on now; raises Refused."""
    principal = principal_now(snapshot.settings, attempt.caller.principal)
    if principal is None:
        raise Refused("access_denied", "the caller has no access any more")
    try:
        tool = _found(snapshot, attempt, principal)
    except (UnknownTool, GatewayError):
        raise Refused("access_denied", "the tool is no longer there for the caller") from None
    state = snapshot.connections[tool.connection]
    if not shows(level(snapshot, principal, state), tool):
        raise Refused("access_denied", "the caller has no access to the tool any more")
    if tool.fingerprint != approval.fingerprint:
        raise Refused("access_denied", "the tool has changed since")
    judged = attempt.door.judged if attempt.door else None
    decision = decide(judged or tool, snapshot.permissions)
    if decision.outcome == "block":
        raise Refused(decision.code, decision.reason)
    return snapshot, tool


def may_always(snapshot: Snapshot, risk: str) -> bool:
    """Whether "always allow" is offered for tools of this risk."""
    return risk != "high" or snapshot.permissions.always_allow_high_risk


def too_late(approval: Approval | None) -> NotApproved:
    """Why an approval can't be decided or used any more."""
    words = {
        "approved": "it has been approved already",
        "denied": "it has been denied already",
        "used": "it has been used already",
        "void": "the tool or the caller's rights have changed since",
    }
    status = approval.status if approval else ""
    why = words.get(status, "nobody decided in time")
    error = NotApproved(
        "approval_expired", f"The approval can't be used: {why}.", "Call again to ask anew."
    )
    error.void = status == "void"
    return error


def _found(snapshot: Snapshot, attempt: Attempt, principal: Principal) -> Tool:
    if attempt.door is not None:
        return attempt.door.find(snapshot, principal)
    tool = snapshot.tools.get(attempt.tool.name)
    if tool is None:
        raise UnknownTool(attempt.tool.name)
    return tool


def grant_of(approval: Approval, by: str, now: float, permissions: Permissions) -> StandingGrant:
    """ "Always allow": for the rest of the session, or for a while where there is none."""
    lasts = SESSION_GRANT_SECONDS if approval.session else permissions.always_allow_minutes * 60
    return StandingGrant(
        id=new_id(now),
        principal=approval.principal,
        tool=approval.tool,
        connection=approval.connection,
        fingerprint=approval.fingerprint,
        session=approval.session or "",
        client=name_of_client(approval.client),
        request=f"{approval.method} {approval.url.partition('?')[0]}"[:MAX_REQUEST_CHARS],
        granted_by=by,
        created_at=now,
        expires_at=now + lasts,
    )


def always_words(snapshot: Snapshot, approval: Approval) -> str:
    """What "always allow" means for this call; "" where it is not offered."""
    if not may_always(snapshot, approval.risk):
        return ""
    if approval.session:
        return "for the rest of this session"
    client = name_of_client(approval.client) or "this client"
    return f"for {snapshot.permissions.always_allow_minutes:g} minutes, for {client} alone"


def name_of_client(client: str) -> str:
    """The name of `name/version`: a client that was updated is the same one."""
    return client.rpartition("/")[0] or client.strip("/")
