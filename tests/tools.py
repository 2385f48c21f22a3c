"""A tool over HTTP, made up for tests that start after definitions have become tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import orjson

from gateway.model import RISK_OF_ACCESS, Access, HttpOperation, Source, Tool
from gateway.naming import fingerprint, token_cost, tool_annotations


def http_tool(
    source: Source,
    http: HttpOperation,
    *,
    name: str,
    access: Access,
    operation: str | None = None,
    title: str = "",
    description: str = "",
    input_schema: Mapping[str, Any] = MappingProxyType({}),
    security: str = "",
) -> Tool:
    """A tool that makes one HTTP request; `name` has the connection's prefix."""
    title, description = title or name, description or name
    input_schema = dict(input_schema)
    schema, words = orjson.dumps(input_schema), {"title": title, "description": description}
    hints = tool_annotations(title, access, http.method)
    entry = orjson.dumps({"name": name, **words, "inputSchema": input_schema, "annotations": hints})
    made = Tool(
        name=name,
        local_name=name.removeprefix(source.prefix),
        connection=source.connection,
        operation=operation,
        method=http.method,
        path=http.path,
        access=access,
        risk=RISK_OF_ACCESS[access],
        trust=source.trust,
        title=title,
        description=description,
        input_schema=schema,
        entry=entry,
        tokens=token_cost(entry),
        http=http,
        security=security,
    )
    return replace(made, fingerprint=fingerprint(source, made))
