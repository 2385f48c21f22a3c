"""Past and running calls, and what is always allowed: a caller's own, and all for an admin."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import structlog

from gateway.edge.shown_history import execution_record
from gateway.errors import Fixable, NotFound
from gateway.model import Principal
from gateway.policy.access import oversees
from gateway.store import approvals
from gateway.store import executions as ledger
from gateway.store.approvals import StandingGrant
from gateway.store.executions import Execution, ExecutionStatus
from gateway.store.history import Filter, find_by_token
from gateway.store.history import list_executions as read_page

if TYPE_CHECKING:
    from gateway.edge.meta_tools import Asked

log = structlog.get_logger("gateway.approvals")

DEFAULT_LIMIT = 50
STATUSES = get_args(ExecutionStatus)


async def list_executions(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One page, newest first, with the cursor behind it."""
    status = arguments.get("status")
    if status is not None and status not in STATUSES:
        raise Fixable("invalid_arguments", f"status must be one of {', '.join(STATUSES)}")
    await asked.gateway.db.settle()
    page = await read_page(
        asked.gateway.db,
        Filter(
            status=status,
            tool=arguments.get("tool"),
            connection=arguments.get("connection"),
            principal=_readable(asked.context.principal, arguments.get("principal")),
            token=arguments.get("token"),
            since=arguments.get("since"),
            connections=overseen(asked),
        ),
        limit=arguments.get("limit", DEFAULT_LIMIT),
        cursor=arguments.get("cursor"),
    )
    return {"executions": [execution_record(e) for e in page.executions], "next": page.next}


async def get_execution(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One execution by its id."""
    return execution_record(await known_execution(asked, arguments["id"]))


async def find_execution(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The call that used a token; under `executions`, every one that tried to."""
    principal = _readable(asked.context.principal, None)
    found = await find_by_token(asked.gateway.db, arguments["token"], principal)
    kept_to = overseen(asked)
    found = [each for each in found if kept_to is None or each.connection in kept_to]
    if not found:
        raise NotFound("invalid_arguments", "no call has used this token")
    records = [execution_record(execution) for execution in found]
    # What never left its token free for a later one, which then is the call that counts.
    return records[0] | {"executions": records}


async def known_execution(asked: Asked, id: str) -> Execution:
    """The execution of this id, if it exists for the caller."""
    found = await ledger.get_execution(asked.gateway.db, id)
    if found is None:  # a call that has just been answered may not be on disk yet
        await asked.gateway.db.settle()
        found = await ledger.get_execution(asked.gateway.db, id)
    caller = asked.context.principal
    if found is None or not (
        found.principal == caller.name or oversees(asked.snapshot, caller, found.connection)
    ):
        raise NotFound(
            "invalid_arguments", "there is no such execution", "list_executions names yours."
        )
    return found


async def known_grants(asked: Asked) -> list[StandingGrant]:
    """The standing grants that hold and are this caller's business."""
    found = await approvals.list_grants(asked.gateway.db, time.time())
    return [grant for grant in found if _concerns(asked, grant)]


async def revoke_grant(asked: Asked, id: str) -> StandingGrant:
    """Ends a standing grant: the next call is asked about again."""
    grant = await approvals.get_grant(asked.gateway.db, id)
    if grant is None or not _concerns(asked, grant):
        raise NotFound("invalid_arguments", "there is no such standing grant")
    await approvals.revoke_grant(asked.gateway.db, id)
    by = asked.context.principal.name
    log.info("standing grant revoked", grant=id, tool=grant.tool, of=grant.principal, by=by)
    return grant


def _concerns(asked: Asked, grant: StandingGrant) -> bool:
    caller = asked.context.principal
    return grant.principal == caller.name or oversees(asked.snapshot, caller, grant.connection)


def overseen(asked: Asked) -> tuple[str, ...] | None:
    """The connections an admin of an organization is kept to; None: no such bound."""
    caller = asked.context.principal
    if not caller.admin or caller.organization is None:
        return None
    names = asked.snapshot.connections
    return tuple(name for name in names if oversees(asked.snapshot, caller, name))


def _readable(caller: Principal, wanted: str | None) -> str | None:
    """Whose executions are read: anyone's for an admin, else one's own."""
    return (wanted or None) if caller.admin else caller.name
