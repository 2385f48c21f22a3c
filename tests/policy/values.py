"""Snapshots and tools from a few words, for tables of rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from gateway.catalog.snapshot import ConnectionState, Snapshot, assemble, with_tools
from gateway.config.file import parse_connection, parse_settings
from gateway.model import Access, HttpOperation, Level, Source, Tool
from tests.tools import http_tool

ACCESS: dict[str, Access] = {"get": "read", "add": "write", "del": "delete", "nuke": "dangerous"}


def tool(connection: str, local_name: str, tokens: int = 10) -> Tool:
    """A tool whose access is in its name: get_*, add_*, del_*, nuke_*."""
    name = f"{connection}_{local_name}"
    access = ACCESS[local_name.split("_")[0]]
    method = "GET" if access == "read" else "POST"
    made = http_tool(
        Source(connection, "openapi", connection, f"{connection}_"),
        HttpOperation(method, "https://x.example", f"/{local_name}"),
        name=name,
        operation=local_name,
        access=access,
    )
    return replace(made, entry=orjson.dumps({"name": name}), tokens=tokens, fingerprint=name)


def connection(name: str, *tools: Tool, **settings: Any) -> ConnectionState:
    """A connected connection with these tools."""
    values = {"kind": "openapi", **settings}
    if values["kind"] == "openapi":
        values = {"spec": "x.yaml", **values}
    state = ConnectionState(name, parse_connection(name, values), "config", status="connected")
    return with_tools(state, tools)


def snapshot(
    *states: ConnectionState,
    config: str = "",
    choices: dict[tuple[str, str], Level] | None = None,
) -> Snapshot:
    """A snapshot of these connections under this configuration."""
    settings = parse_settings(config.encode(), environment={})
    return assemble(1, settings, states, choices=choices)
