"""A connection with one write and one read, and callers, for tests of a call's way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.calls.record import Attempt, Caller
from gateway.calls.redact import Redactor
from gateway.catalog.snapshot import ConnectionState, Snapshot, assemble, with_tools
from gateway.config.connection import OpenApiConnection
from gateway.config.settings import Settings
from gateway.model import (
    Access,
    Body,
    Build,
    BuiltDefinition,
    HttpOperation,
    Principal,
    Source,
    Tool,
)
from tests.tools import http_tool

ANN = Principal("ann")
SCHEMA: dict[str, Any] = {"type": "object", "additionalProperties": True}


def find(seen: Snapshot, principal: Principal) -> tuple[Tool, Tool]:
    """Finds the tool in the snapshot, as a view does."""
    return seen.tools["shop_order"], seen.tools["shop_order"]


def tool(name: str = "shop_order", access: Access = "write", **changed: Any) -> Tool:
    method = {"read": "GET", "write": "POST", "delete": "DELETE"}[access]
    http = HttpOperation(
        method, "https://shop.example", "/orders", body=Body("application/json", whole="body")
    )
    made = http_tool(
        Source("shop", "openapi", "Shop", "shop_"),
        replace(http, idempotency_header="Idempotency-Key" if access != "read" else None),
        name=name,
        operation=name,
        access=access,
        input_schema=SCHEMA,
    )
    return replace(made, **changed)


def snapshot(*tools: Tool, revision: int = 1, **settings: Any) -> Snapshot:
    connection = OpenApiConnection(kind="openapi", spec="shop.json", display_name="Shop")
    listed = tools or (tool(), tool("shop_look", "read"))
    state = ConnectionState(
        "shop",
        connection,
        "stored",
        status="connected",
        built=BuiltDefinition(Build("openapi-3.1", "Shop", "https://shop.example", listed)),
    )
    whole = Settings.model_validate({"auth": {"mode": "none"}, **settings})
    return assemble(revision, whole, [with_tools(state, listed)])


def attempt(
    used: Tool | None = None,
    arguments: dict[str, Any] | None = None,
    *,
    seen: Snapshot | None = None,
    principal: Principal = ANN,
    **caller: Any,
) -> Attempt:
    used = used or tool()
    return Attempt(
        seen or snapshot(),
        used,
        used,
        {"book": "Emma"} if arguments is None else arguments,
        Caller(principal, **caller),
        Redactor(()),
        "replica",
    )
