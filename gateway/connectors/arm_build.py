"""The tools of an Azure managed connection: its API's, called by way of Azure.

Runs in a worker process, like every reading of a definition.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.connectors.arm import Facts, unpacked
from gateway.connectors.openapi import build_openapi
from gateway.model import Build, Problem, Severity, Source

_AZURES = ("Accept", "Content-Type")  # by dynamicInvoke, what is said of bodies is Azure's to say


def build_arm(raw: bytes, source: Source) -> Build:
    """The tools of a managed connection, called by way of Azure or at its runtime address."""
    facts, export = unpacked(raw)
    direct = facts.invoke == "runtime" and facts.runtime_url
    base_url = facts.runtime_url if direct else facts.endpoint.rstrip("/") + facts.id
    source = replace(
        source,
        base_url=base_url,
        authenticated=facts.status != "unauthenticated",
        location="",
        auth_type="azure" if source.auth_type == "none" else source.auth_type,
        headers=source.headers if direct else (*source.headers, *_AZURES),
    )
    build = build_openapi(export, source)
    return replace(
        build,
        status=facts.status,
        problems=(*_problems(facts), *build.problems),
        envelope=None if direct else facts.id,
    )


def _problems(facts: Facts) -> tuple[Problem, ...]:
    found: list[Problem] = []
    if facts.problem:
        severity: Severity = "warning" if facts.status == "connected" else "error"
        found.append(Problem(severity, "connection", facts.problem))
    if facts.invoke == "runtime" and not facts.runtime_url:
        words = "Azure gives no runtime address for this connection; calls go by dynamicInvoke"
        found.append(Problem("info", "connection", words))
    return tuple(found)
