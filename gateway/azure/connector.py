"""The tools of an Azure managed connection: its API's, called by way of Azure.

The definition of such a connection is one line of facts about its resource in Azure, as JSON, then
the definition of its API as Azure exported it. So a connection that is signed in later has another
definition, and is built anew like any that changed. `build_arm` runs in a reader process, like
every reading of a definition; `AzureDirectory.definition` writes what it reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import orjson

from gateway.errors import DefinitionUnreadable
from gateway.model import Build, BuiltStatus, Problem, Severity, Source
from gateway.openapi.build import build_openapi

_AZURES = ("Accept", "Content-Type")  # by dynamicInvoke, what is said of bodies is Azure's to say


@dataclass(frozen=True, slots=True)
class Facts:
    """What of a connection's resource shapes its tools and their calls."""

    endpoint: str
    id: str
    status: BuiltStatus = "connected"
    problem: str = ""
    runtime_url: str = ""
    invoke: Literal["dynamic", "runtime"] = "dynamic"


def build_arm(raw: bytes, source: Source) -> Build:
    """The tools of a managed connection, called by way of Azure or at its runtime address."""
    facts, export = _split(raw)
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


def _split(raw: bytes) -> tuple[Facts, bytes]:
    """The facts, and the definition that follows them."""
    line, _, export = raw.partition(b"\n")
    try:
        return Facts(**orjson.loads(line)), export
    except (orjson.JSONDecodeError, TypeError) as error:
        raise DefinitionUnreadable(
            "The stored definition of this connection is not whole.", "Refresh the connection."
        ) from error
