"""What a changed configuration would have done to calls that were recorded.

The snapshot that the configuration would give is made from the store, without any network, and each
recorded call is looked up and decided in it as if it came in now. Nothing is sent and nothing is
written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.app import demo_connection, store_url
from gateway.catalog.azure import AzureDirectory
from gateway.catalog.discover import Discoverer
from gateway.catalog.fetch import Fetcher
from gateway.catalog.persistence import StoredCatalog
from gateway.catalog.refresh import Catalog
from gateway.catalog.snapshot import Snapshot
from gateway.config.settings import Settings
from gateway.connectors.portable import portable_tools
from gateway.connectors.workers import Workers
from gateway.edge.own_tools import OWN_TOOLS
from gateway.egress import Egress
from gateway.errors import UpstreamFailed
from gateway.model import Principal
from gateway.policy.decide import decide
from gateway.policy.principals import principal_now
from gateway.policy.view import Scope, view
from gateway.store.database import Database
from gateway.store.executions import Execution
from gateway.store.history import Filter, list_executions
from gateway.store.secrets import check_seal, load_seal

PAGE = 200


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A recorded call that would not simply have gone through."""

    execution: str
    tool: str
    principal: str
    status: str  # as it was
    outcome: str  # refused | asked
    reason: str


async def rehearse_recorded(settings: Settings, config: Path, calls: int) -> list[Rehearsed]:
    """What this configuration would have refused or asked about, of the last so many calls."""
    folder = config.parent
    seal = load_seal(folder / settings.store.secret_key_file, os.environ.get("GATEWAY_SECRET_KEY"))
    async with (
        Database(store_url(settings, folder)) as db,
        Egress(()) as egress,
        Workers(count=1) as workers,
    ):
        await check_seal(db, seal)
        discoverer = Discoverer(
            Fetcher(egress, folder),
            workers,
            _nowhere,
            egress.check,
            AzureDirectory(_nowhere, lambda: settings.azure),
            lambda *_: (None, _nowhere),
        )
        catalog = Catalog(
            settings,
            discoverer,
            StoredCatalog(db, seal),
            portable=portable_tools,
            demo={"demo": demo_connection(f"http://{settings.server.host}")},
        )
        await catalog.load()
        return rehearse(catalog.current, await _last(db, calls))


def rehearse(snapshot: Snapshot, executions: Sequence[Execution]) -> list[Rehearsed]:
    """The calls that would be refused or asked about in this snapshot. Pure."""
    found = []
    for execution in executions:
        judged = _judged(snapshot, execution)
        if judged is not None:
            outcome, reason = judged
            found.append(
                Rehearsed(
                    execution.id,
                    execution.tool,
                    execution.principal,
                    execution.status,
                    outcome,
                    reason,
                )
            )
    return found


def _judged(snapshot: Snapshot, execution: Execution) -> tuple[str, str] | None:
    known = Principal(execution.principal, admin=snapshot.settings.auth.mode == "none")
    principal = principal_now(snapshot.settings, known)
    if principal is None:
        return "refused", f"there is no principal {execution.principal}"
    scope = Scope("bundles", execution.bundle_ids) if execution.bundle_ids else Scope()
    tool = view(snapshot, principal, scope, OWN_TOOLS).tools.get(execution.tool)
    if tool is None:
        return "refused", "the tool is not in the principal's view"
    decision = decide(tool, snapshot.permissions)
    if decision.outcome == "allow":
        return None
    return ("asked" if decision.outcome == "confirm" else "refused"), decision.reason


async def _last(db: Database, calls: int) -> list[Execution]:
    found: list[Execution] = []
    cursor = None
    while len(found) < calls:
        page = await list_executions(
            db, Filter(), limit=min(PAGE, calls - len(found)), cursor=cursor
        )
        found += page.executions
        cursor = page.next
        if cursor is None:
            break
    return found


async def _nowhere(*asked: Any, **more: Any) -> Any:
    raise UpstreamFailed("upstream_unreachable", "a rehearsal asks nobody")
