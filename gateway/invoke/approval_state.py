"""A question as it is kept and as it leaves this process.

What outlives the request is sealed: the exact arguments, for whoever carries the call out later,
and the state a client hands back with its answer, so that nobody else can make or change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cryptography.fernet import InvalidToken

from gateway.invoke.attempt import Attempt, arguments_digest, shown_arguments
from gateway.model import Principal
from gateway.store.approvals import Approval
from gateway.store.ids import new_id
from gateway.store.secrets import Seal

PURPOSE = "approval-state/1"  # one key seals other things too: none of them opens as this
MAX_STATE_CHARS = 8192


def new_approval(
    seal: Seal, attempt: Attempt, method: str, url: str, warnings: tuple[str, ...], now: float
) -> Approval:
    """The question about this call, bound to who asks, the tool as it is and these arguments."""
    caller, tool = attempt.caller, attempt.tool
    return Approval(
        id=new_id(now),
        execution_id=attempt.id,
        principal=caller.principal.name,
        tool=tool.name,
        connection=tool.connection,
        fingerprint=tool.fingerprint,
        args_digest=arguments_digest(attempt.arguments),
        arguments=shown_arguments(attempt),
        sealed_arguments=sealed_ticket(seal, attempt),
        risk=tool.risk,
        created_at=now,
        expires_at=now + attempt.snapshot.permissions.timeout_seconds,
        session=caller.session,
        client=caller.client,
        method=method,
        url=url,
        warnings=warnings,
    )


def sealed_state(seal: Seal, approval: Approval) -> str:
    """What a client of 2026 hands back with its answer."""
    return seal.encrypt_json([PURPOSE, *_binding(approval)]).decode("ascii")


def opened_state(seal: Seal, state: str | None) -> list[Any] | None:
    """The binding in a state of ours; None: it is none of ours."""
    if state is None or len(state) > MAX_STATE_CHARS:
        return None
    try:
        value = seal.decrypt_json(state.encode("utf-8", "replace"))
    except (InvalidToken, ValueError):
        return None
    if not isinstance(value, list) or value[:1] != [PURPOSE]:
        return None
    return value[1:]


def binds(state: list[Any], attempt: Attempt, now: float) -> str | None:
    """The approval's id, if the state was made for exactly this call and is still good."""
    id, expires, *binding = state
    digest = arguments_digest(attempt.arguments)
    wanted = [attempt.caller.principal.name, attempt.tool.name, attempt.tool.fingerprint, digest]
    return id if binding == wanted and now < expires else None


def _binding(approval: Approval) -> list[Any]:
    return [
        approval.id,
        approval.expires_at,
        approval.principal,
        approval.tool,
        approval.fingerprint,
        approval.args_digest,
    ]


@dataclass(frozen=True, slots=True)
class Ticket:
    """All that is needed to carry a call out when its caller is no longer there."""

    principal: Principal
    arguments: Mapping[str, Any]
    door: Mapping[str, Any] = field(default_factory=dict)
    bundle_ids: tuple[str, ...] = ()
    token: str | None = None
    token_given: bool = False
    client: str = ""


def sealed_ticket(seal: Seal, attempt: Attempt) -> bytes:
    """The ticket of a call that waits for a decision."""
    ticket = Ticket(
        attempt.caller.principal,
        attempt.arguments,
        attempt.door.ticket if attempt.door else {},
        attempt.bundle_ids,
        attempt.token,
        attempt.token_given,
        attempt.caller.client,
    )
    return seal.encrypt_json(asdict(ticket))


def opened_ticket(seal: Seal, approval: Approval) -> Ticket | None:
    """The ticket of an approved call; None where the key no longer opens it."""
    try:
        values: Any = seal.decrypt_json(approval.sealed_arguments)
        principal = Principal(**values.pop("principal"))
        bundle_ids = tuple(values.pop("bundle_ids"))
        return Ticket(principal=principal, bundle_ids=bundle_ids, **values)
    except (InvalidToken, ValueError, TypeError, KeyError):
        return None
