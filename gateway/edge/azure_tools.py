"""Azure for people and models: its catalogue of connectors, and where a connection is signed in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import ArmConnection
from gateway.connectors.text import cut, visible

if TYPE_CHECKING:
    from gateway.edge.gateway import Gateway
    from gateway.edge.meta_tools import Asked

DEFAULT_LIMIT = 50
MAX_DESCRIPTION = 300


async def list_managed_apis(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The connectors that a connection can be made to, by words."""
    rows = [_row(entry) for entry in await asked.gateway.azure.directory.managed_apis()]
    found = _matching(sorted(rows, key=lambda row: str(row["name"])), arguments)
    return {"apis": _page(found, arguments), "total": len(found)}


async def get_managed_api(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One connector: what a connection to it needs, and what it can do."""
    directory, name = asked.gateway.azure.directory, arguments["name"]
    entry, listed = await asyncio.gather(
        directory.managed_api(name), directory.api_operations(name)
    )
    parameters = [_parameter(*pair) for pair in _parameters(entry).items()]
    operations = _matching([_operation(operation) for operation in listed], arguments)
    return {
        **_row(entry),
        "parameters": parameters,
        "needs_consent": any(one["type"] == "oauthSetting" for one in parameters),
        "operations": _page(operations, arguments),
        "total_operations": len(operations),
    }


async def consent_link(gateway: Gateway, state: ConnectionState) -> str | None:
    """Where a person signs this connection in; None where there is nothing to sign, or no link."""
    if state.status != "unauthenticated":
        return None
    return await gateway.azure.directory.sign_in_link(state.name, state.settings)


def known_consent_link(gateway: Gateway, state: ConnectionState) -> str | None:
    """The same as far as it was asked for lately: a listing does not wait for Azure."""
    id_ = azure_resource(state)
    if id_ is None or state.status != "unauthenticated":
        return None
    return gateway.azure.directory.known_consent_link(id_)


def azure_resource(state: ConnectionState) -> str | None:
    """The id of the resource behind a connection."""
    if not isinstance(state.settings, ArmConnection):
        return None
    return state.settings.resource_id or (state.build.envelope if state.build else None)


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    properties = _mapping(entry.get("properties"))
    about = _mapping(properties.get("generalInformation"))
    name = _text(entry.get("name")) or _text(properties.get("name"))
    return {
        "name": name,
        "display_name": _text(about.get("displayName")) or name,
        "description": _text(about.get("description")),
    }


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(_mapping(entry.get("properties")).get("connectionParameters"))


def _parameter(name: str, entry: Any) -> dict[str, Any]:
    parameter = _mapping(entry)
    words = _mapping(parameter.get("uiDefinition"))
    constraints = _mapping(words.get("constraints"))
    return {
        "name": name,
        "type": _text(parameter.get("type")),
        "display_name": _text(words.get("displayName")) or name,
        "description": _text(words.get("description")),
        "required": str(constraints.get("required", "")).lower() == "true",
    }


def _operation(entry: Mapping[str, Any]) -> dict[str, Any]:
    properties = _mapping(entry.get("properties"))
    return {
        "name": _text(entry.get("name")),
        "summary": _text(properties.get("summary")),
        "description": _text(properties.get("description")),
    }


def _matching(
    rows: Sequence[dict[str, Any]], arguments: Mapping[str, Any]
) -> Sequence[dict[str, Any]]:
    """The rows that hold every word; those whose name does come first."""
    words = str(arguments.get("search", "")).lower().split()
    if not words:
        return rows
    found = [row for row in rows if all(word in _all_words(row) for word in words)]
    return sorted(found, key=lambda row: words[0] not in row["name"].lower())


def _all_words(row: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in row.values()).lower()


def _page(rows: Sequence[dict[str, Any]], arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    offset, limit = arguments.get("offset", 0), arguments.get("limit", DEFAULT_LIMIT)
    return list(rows[offset : offset + limit])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return cut(visible(value).strip(), MAX_DESCRIPTION) if isinstance(value, str) else ""
