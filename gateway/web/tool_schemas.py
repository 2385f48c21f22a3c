"""Declares the gateway's own tools: the schemas of their inputs, and their list entries.

A tool is a function of the inquiry and of its arguments by name. The annotations of the arguments
are their schemas, an argument without a default is required, and models read the docstring.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_origin

import orjson

Json = dict[str, Any]


def text_of(words: str) -> Json:
    """The schema of a text input with this description."""
    return {"type": "string", "description": words}


def count_from(least: int, **keywords: Any) -> Json:
    """The schema of a whole number that is not below `least`."""
    return {"type": "integer", "minimum": least, **keywords}


# The inputs that tools have in common, as their schemas show them.
_TEXT: Json = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_KNOWN_DESCRIPTION = "The tool's inputs that are known already, by name."
Text = Annotated[str, _TEXT]
Flag = Annotated[bool, {"type": "boolean"}]
Name = Annotated[str, text_of("The connection's name.")]
Cursor = Annotated[str, text_of("`next` of the page before.")]
ToolArguments = Annotated[Mapping[str, Any], {"type": "object"}]
Offset = Annotated[int, count_from(0, description="Entries to pass over.")]
Limit = Annotated[int, count_from(1, maximum=500, description="Entries to give.")]
ServerId = Annotated[str, text_of("The connection's name, as mcp_search_tools gives it.")]
LocalName = Annotated[str, text_of("The tool's name as it is listed there.")]
ToolName = Annotated[str, text_of("The tool's name.")]
Input = Annotated[str, text_of("The name of its input.")]
Known = Annotated[Mapping[str, Any], {"type": "object", "description": _KNOWN_DESCRIPTION}]
Pointer = Annotated[str, text_of("JSON pointer such as /items/3.")]
ConnectionKind = Annotated[str, {"type": "string", "enum": ["openapi", "manifest", "mcp", "arm"]}]

_AUTH = "type: none | bearer | basic | api-key | oauth2 | nango, with its keys."
CONNECTION: Json = {
    "display_name": _TEXT,
    "enabled": {"type": "boolean"},
    "organization": _TEXT,
    "access": {"type": "string", "enum": ["read-write", "read-only", "disabled"]},
    "trust": {"type": "string", "enum": ["trusted", "untrusted"]},
    "prefix": text_of("Before each tool's name; default: NAME_."),
    "names": {"type": "string", "enum": ["short", "full"]},
    "spec": text_of("openapi: URL, path, or the definition itself."),
    "base_url": text_of("openapi: where calls go, over the definition."),
    "manifest": text_of("manifest: greenhouse, zoho-recruit, lever, path."),
    "api": text_of("arm: the connector's name; see list_managed_apis."),
    "parameter_values": {"type": "object", "description": "arm: what the connector asks for."},
    "resource_id": text_of("arm: a connection that is there already."),
    "invoke": {"type": "string", "enum": ["dynamic", "runtime"]},
    "url": text_of("mcp: the server's streamable HTTP address."),
    "auth": {"type": "object", "description": _AUTH},
    "include": {**_TEXTS, "description": "Globs over operation ids."},
    "exclude": _TEXTS,
    "blocklist": {**_TEXTS, "description": "Paths never reached."},
    "headers": {"type": "object", "description": "By name, sent with every call."},
}


def declare_tool(
    run: Callable[..., Any],
    title: str,
    *,
    reads: bool = True,
    destructive: bool = False,
    extra_inputs: Json | None = None,
) -> tuple[bytes, bytes]:
    """The entry of a tool in lists, and its input schema; `extra_inputs` allow for any input."""
    parameters = [*inspect.signature(run, eval_str=True).parameters.values()]
    inputs = [p for p in parameters if get_origin(p.annotation) is Annotated]
    properties = {p.name: p.annotation.__metadata__[0] for p in inputs}
    required = [p.name for p in inputs if p.default is p.empty]
    schema = {
        "type": "object",
        "properties": {**properties, **(extra_inputs or {})},
        **({"required": required} if required else {}),
        "additionalProperties": extra_inputs is not None,
    }
    hints = {
        "title": title,
        "readOnlyHint": reads,
        "destructiveHint": destructive,
        "idempotentHint": True,
        "openWorldHint": False,
    }
    entry = orjson.dumps(
        {
            "name": run.__name__,
            "title": title,
            "description": " ".join((run.__doc__ or "").split()),
            "inputSchema": schema,
            "annotations": hints,
        }
    )
    return entry, orjson.dumps(schema)
