"""The gateway's own tools as clients see them: names, words, schemas and who gets them.

What each one does is in `meta_tools`; this is the table both it and the views read. Serialised
once, at import.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Literal

import orjson

from gateway.policy.view import OwnTool

Audience = Literal["all", "admin", "azure", "meta", "everywhere"]

_TEXT = {"type": "string"}
_NAME = {"type": "string", "description": "The connection's name."}
_OFFSET = {"type": "integer", "minimum": 0, "description": "Entries to pass over."}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": 500, "description": "Entries to give."}
_SERVER = {"type": "string", "description": "The connection's name, as mcp_search_tools gives it."}
_TOOL = {"type": "string", "description": "The tool's name as it is listed there."}
_TOOL_NAME = {"type": "string", "description": "The tool's name."}
_INPUT = {"type": "string", "description": "The name of its input."}
_KNOWN = {"type": "object", "description": "The tool's inputs that are known already, by name."}

CONNECTION_KEYS: dict[str, Any] = {
    "kind": {"type": "string", "enum": ["openapi", "manifest", "mcp", "arm"]},
    "display_name": _TEXT,
    "enabled": {"type": "boolean"},
    "organization": _TEXT,
    "access": {"type": "string", "enum": ["read-write", "read-only", "disabled"]},
    "trust": {"type": "string", "enum": ["trusted", "untrusted"]},
    "prefix": {"type": "string", "description": "Before each tool's name; default: NAME_."},
    "spec": {"type": "string", "description": "openapi: URL, path, or the definition itself."},
    "base_url": {"type": "string", "description": "openapi: where calls go, over the definition."},
    "manifest": {
        "type": "string",
        "description": "manifest: greenhouse, zoho-recruit, lever, path.",
    },
    "api": {"type": "string", "description": "arm: the connector's name; see list_managed_apis."},
    "parameter_values": {"type": "object", "description": "arm: what the connector asks for."},
    "resource_id": {"type": "string", "description": "arm: a connection that is there already."},
    "invoke": {"type": "string", "enum": ["dynamic", "runtime"]},
    "url": {"type": "string", "description": "mcp: the server's streamable HTTP address."},
    "auth": {
        "type": "object",
        "description": "type: none | bearer | basic | api-key | oauth2 | nango, with its keys.",
    },
    "include": {"type": "array", "items": _TEXT, "description": "Globs over operation ids."},
    "exclude": {"type": "array", "items": _TEXT},
    "blocklist": {"type": "array", "items": _TEXT, "description": "Paths never reached."},
    "headers": {"type": "object", "additionalProperties": _TEXT},
}


def _schema(properties: dict[str, Any], *required: str, open_ended: bool = False) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": open_ended,
    }


SCHEMAS: dict[str, bytes] = {}


def _own(
    name: str,
    audience: Audience,
    title: str,
    description: str,
    schema: dict[str, Any],
    *,
    reads: bool = True,
    destructive: bool = False,
) -> OwnTool:
    hints = {
        "title": title,
        "readOnlyHint": reads,
        "destructiveHint": destructive,
        "idempotentHint": True,
        "openWorldHint": False,
    }
    SCHEMAS[name] = orjson.dumps(schema)
    entry = orjson.dumps(
        {
            "name": name,
            "title": title,
            "description": description,
            "inputSchema": schema,
            "annotations": hints,
        }
    )
    return OwnTool(name, entry, blake2b(entry, digest_size=16).digest(), audience)


OWN_TOOLS: tuple[OwnTool, ...] = (
    _own(
        "list_dynamic_tools",
        "all",
        "List tools",
        "The tools of all connections that you may call, with their access, risk and token cost. "
        "Give `search` to find one by words, `connection` to see one API's.",
        _schema({"connection": _NAME, "search": _TEXT, "offset": _OFFSET, "limit": _LIMIT}),
    ),
    _own(
        "list_connections",
        "all",
        "List connections",
        "The APIs that are connected here, how they are, and what you may do with each.",
        _schema({}),
    ),
    _own(
        "get_connection",
        "all",
        "Get a connection",
        "One connection: status, your access, number of tools, last refresh, problems, settings.",
        _schema({"name": _NAME}, "name"),
    ),
    _own(
        "refresh_tools",
        "admin",
        "Refresh tools",
        "Reads the definition of one connection, or of all, again and reports what changed.",
        _schema({"connection": _NAME}),
        reads=False,
    ),
    _own(
        "put_connection",
        "admin",
        "Connect an API",
        "Adds or replaces a connection; its tools are there at once. With dry_run nothing is kept "
        "and you see the tools it would give, what is skipped and why, and the token cost.",
        _schema(
            {"name": _NAME, "dry_run": {"type": "boolean"}, **CONNECTION_KEYS},
            "name",
            "kind",
            open_ended=True,
        ),
        reads=False,
    ),
    _own(
        "delete_connection",
        "admin",
        "Delete a connection",
        "Removes a connection that was added at run time, and its tools.",
        _schema({"name": _NAME}, "name"),
        reads=False,
        destructive=True,
    ),
    _own(
        "read_result",
        "everywhere",
        "Read a large result",
        "The rest of an answer that was too large: a part of its text, or with a JSON pointer the "
        "value there; for an array `offset` and `limit` count items.",
        _schema(
            {
                "result_id": _TEXT,
                "offset": {"type": "integer", "minimum": 0},
                "limit": {"type": "integer", "minimum": 1},
                "pointer": {"type": "string", "description": "JSON pointer such as /items/3."},
            },
            "result_id",
        ),
    ),
    _own(
        "list_executions",
        "all",
        "List executions",
        "Your past calls, newest first: tool, status, times, arguments with secrets masked.",
        _schema(
            {
                "status": _TEXT,
                "tool": _TEXT,
                "connection": _TEXT,
                "limit": _LIMIT,
                "cursor": _TEXT,
            }
        ),
    ),
    _own(
        "get_execution",
        "all",
        "Get an execution",
        "One past or running call with its state and result.",
        _schema({"id": _TEXT}, "id"),
    ),
    _own(
        "find_execution",
        "all",
        "Find an execution",
        "The call that used an idempotency token, with the values recorded from its answer.",
        _schema({"token": _TEXT}, "token"),
    ),
    _own(
        "lookup_values",
        "all",
        "Look up values",
        "What may go into an input of a tool whose description says that it can be looked up. Give "
        "the inputs you have in `known`. To open a folder, give its `node` as the input's value.",
        _schema(
            {"tool": _TOOL_NAME, "parameter": _INPUT, "known": _KNOWN},
            "tool",
            "parameter",
        ),
    ),
    _own(
        "lookup_schema",
        "all",
        "Look up a schema",
        "The input schema of a tool whose inputs depend on each other, for those you have.",
        _schema({"tool": _TOOL_NAME, "known": _KNOWN}, "tool"),
    ),
    _own(
        "list_managed_apis",
        "azure",
        "List Azure's connectors",
        "The APIs that put_connection with kind arm can connect by way of Azure.",
        _schema({"search": _TEXT, "offset": _OFFSET, "limit": _LIMIT}),
    ),
    _own(
        "get_managed_api",
        "azure",
        "Get one of Azure's connectors",
        "What a connection to it needs, and what it can do. `search` finds an operation by words.",
        _schema(
            {"name": _TEXT, "search": _TEXT, "offset": _OFFSET, "limit": _LIMIT},
            "name",
        ),
    ),
    _own(
        "mcp_list_tools",
        "meta",
        "List a server's tools",
        "The tools of one connection by name and first words. Call them with mcp_call_tool.",
        _schema({"server_id": _SERVER, "offset": _OFFSET, "limit": _LIMIT}, "server_id"),
    ),
    _own(
        "mcp_search_tools",
        "meta",
        "Search tools",
        "Finds the tools for a task by words, best first. Then read the schema and call.",
        _schema({"query": _TEXT, "limit": _LIMIT}, "query"),
    ),
    _own(
        "mcp_get_tool_schema",
        "meta",
        "Get a tool's schema",
        "What a tool takes and gives: read this before mcp_call_tool.",
        _schema({"server_id": _SERVER, "tool_name": _TOOL}, "server_id", "tool_name"),
    ),
    _own(
        "mcp_call_tool",
        "meta",
        "Call a tool",
        "Calls a tool of a connection with `args` that fit its schema.",
        _schema(
            {"server_id": _SERVER, "tool_name": _TOOL, "args": {"type": "object"}},
            "server_id",
            "tool_name",
        ),
        reads=False,
    ),
)
