"""The log line of a call that did not simply succeed, read off its record like everything else.

What went well is in the ledger and in the figures; logged as well it would only hide the rest.
Names, states and codes, never arguments or answers.
"""

from __future__ import annotations

import structlog

from gateway.store.executions import Execution

log = structlog.get_logger("gateway.call")


def log_call(execution: Execution) -> None:
    """Logs how a call ended, unless it went well."""
    if execution.status == "completed":
        return
    log.info(
        "call ended",
        execution=execution.id,
        tool=execution.tool,
        connection=execution.connection,
        principal=execution.principal,
        status=execution.status,
        code=execution.error_code,
        upstream_status=execution.upstream_status,
        duration_ms=(execution.result or {}).get("duration_ms"),
        session=execution.session,
    )
