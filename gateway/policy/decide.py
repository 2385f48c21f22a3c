"""Allow, ask or refuse one call, with the rule that said so.

The tool is already known to be in the caller's view. What is left are the permissions: a word about
this very tool first, then the level. The reason goes to the model, the audit row and the console
alike.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.config.settings import Permissions
from gateway.model import Tool


class Decision(msgspec.Struct, frozen=True):
    """What happens to a call, and why."""

    outcome: Literal["allow", "confirm", "block"]
    reason: str
    code: str = "access_denied"


def caution(decision: Decision) -> int:
    """How strict a decision is."""
    return ("allow", "confirm", "block").index(decision.outcome)


def decide(tool: Tool, permissions: Permissions) -> Decision:
    """The decision on calling this tool under these permissions."""
    match permissions.tools.get(tool.name):
        case "blocked":
            return Decision("block", f"permissions.tools blocks {tool.name}")
        case "allowed":
            return Decision("allow", f"permissions.tools allows {tool.name}")
        case "confirm":
            return _unless_auto_approved(tool, permissions, "permissions.tools asks for it")
    if tool.access == "read":
        return Decision("allow", "a read needs no confirmation")
    if permissions.level == "full_access":
        return Decision("allow", "permissions.level is full_access")
    if permissions.level == "read_only":
        return Decision("block", "permissions.level is read_only", "read_only")
    return _unless_auto_approved(tool, permissions, f"a {tool.access} asks for confirmation")


def _unless_auto_approved(tool: Tool, permissions: Permissions, reason: str) -> Decision:
    approval = permissions.auto_approve
    if approval.enabled and tool.name in approval.tools:
        return Decision("allow", "permissions.auto_approve lists it")
    return Decision("confirm", reason)
