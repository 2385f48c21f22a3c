"""A tool over HTTP, made up for tests that start after definitions have become tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from gateway.model import Access, HttpOperation, Risk, Source, Tool
from gateway.naming import fingerprint, token_cost, tool_annotations


def http_tool(
    source: Source,
    http: HttpOperation,
    *,
    name: str,
    operation: str | None,
    access: Access,
    risk: Risk,
    title: str,
    description: str,
    input_schema: Mapping[str, Any],
    security: str = "",
) -> Tool:
    """A tool that makes one HTTP request; `name` has the connection's prefix."""
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
        risk=risk,
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
