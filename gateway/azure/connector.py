"""Azure managed connections: what Azure says of one, and the name it gets here.

A managed connection is a resource in Azure that holds someone's sign-in to an API; the API's own
definition comes from the resource `api.id` points to. Both travel as one definition here: a line
of facts about the connection, then the definition as it was exported. A connection that is signed
in later is then another definition, and is built anew like any that changed.

Little of what Azure answers is documented: everything is read as optional, ids regardless of case.

The tools of an Azure managed connection: its API's, called by way of Azure.

Runs in a worker process, like every reading of a definition.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson

from gateway.errors import DefinitionUnreadable
from gateway.model import Build, BuiltStatus, Problem, Severity, Source, digest
from gateway.naming import cut, visible
from gateway.openapi.build import build_openapi

# Ids become part of URLs as they stand.
_ID = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._()~-]*)+")


@dataclass(frozen=True, slots=True)
class Resource:
    """A connection as Azure describes it."""

    id: str
    name: str
    display_name: str
    api_id: str
    api_name: str
    status: BuiltStatus = "connected"
    problem: str = ""  # what a person should know of its status
    runtime_url: str = ""


def read_resource(value: Any) -> Resource | None:
    """The connection in an answer of Azure; None where there is nothing to call."""
    entry = _mapping(value)
    properties, id_ = _mapping(entry.get("properties")), _text(entry.get("id"))
    api = _mapping(properties.get("api"))
    api_id, name = _text(api.get("id")), _text(entry.get("name")) or _last(id_)
    if not is_id(id_) or not is_id(api_id):
        return None
    status, problem = _status(properties)
    shown = _text(properties.get("displayName")) or _text(api.get("displayName")) or name
    return Resource(
        id_,
        name,
        cut(visible(shown), 128),
        api_id,
        _text(api.get("name")) or _last(api_id),
        status,
        problem,
        _runtime_url(properties.get("connectionRuntimeUrl")),
    )


def is_id(text: str) -> bool:
    """Whether this can be a resource's id: segments of a path, none of them a way out of it."""
    return _ID.fullmatch(text) is not None


def _status(properties: Mapping[str, Any]) -> tuple[BuiltStatus, str]:
    listed = properties.get("statuses")
    first = _mapping(listed[0]) if isinstance(listed, list) and listed else {}
    said = _text(properties.get("overallStatus")) or _text(first.get("status"))
    error = _mapping(first.get("error"))
    words = cut(visible(_text(error.get("message")) or _text(error.get("code"))), 200)
    if _text(properties.get("connectionState")).lower() == "disabled":
        return "failing", "the connection is disabled in Azure"
    match said.lower():
        case "connected" | "ready":
            return "connected", ""
        case "unauthenticated":
            return "unauthenticated", words or "the connection is not signed in"
        case "":
            return "connected", "Azure does not say whether the connection is signed in"
        case "error" if "unauth" in _text(error.get("code")).lower():
            return "unauthenticated", words or "the connection is not signed in"
        case _:
            return "failing", words or f"Azure says of the connection: {said[:50]}"


def _runtime_url(value: Any) -> str:
    text = _text(value).rstrip("/")
    parts = urlsplit(text)
    return text if parts.scheme in ("https", "http") and parts.netloc and not parts.query else ""


# --- names ----------------------------------------------------------------------------------------


def named(resources: Iterable[Resource], taken: Collection[str]) -> dict[str, Resource]:
    """Each connection under a name of its own, the same on every start and replica.

    Names that would give tools the same prefix are told apart by a hash of the resource's id.
    """
    plain = [(connection_name(resource.name), resource) for resource in resources]
    counts = Counter(_prefix(name) for name, _ in plain)
    counts.update(_prefix(name) for name in taken)
    return {
        name if counts[_prefix(name)] == 1 else _with_hash(name, resource): resource
        for name, resource in plain
    }


def connection_name(text: str) -> str:
    """A connection's name made of Azure's: lower case, no dots, at most 32 characters."""
    name = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")
    if not name[:1].isalpha():
        name = f"azure-{name}"
    return name[:32].rstrip("-_")


def _prefix(name: str) -> str:
    return name.replace("-", "_")


def _with_hash(name: str, resource: Resource) -> str:
    return f"{name[:25]}-{digest(resource.id.lower().encode())[:6]}"


# --- definition -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What of a connection's resource shapes its tools and their calls."""

    endpoint: str
    id: str
    status: BuiltStatus = "connected"
    problem: str = ""
    runtime_url: str = ""
    invoke: Literal["dynamic", "runtime"] = "dynamic"


def packed(facts: Facts, export: bytes) -> bytes:
    """The facts and the exported definition as one definition."""
    return orjson.dumps(asdict(facts)) + b"\n" + export


def unpacked(raw: bytes) -> tuple[Facts, bytes]:
    """What `packed` put together."""
    line, _, export = raw.partition(b"\n")
    try:
        return Facts(**orjson.loads(line)), export
    except (orjson.JSONDecodeError, TypeError) as error:
        raise DefinitionUnreadable(
            "The stored definition of this connection is not whole.", "Refresh the connection."
        ) from error


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _last(id_: str) -> str:
    return id_.rpartition("/")[2]


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
