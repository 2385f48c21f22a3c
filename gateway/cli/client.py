"""`gateway tools` and `gateway call`: the gateway as an MCP client sees it."""

from __future__ import annotations

import difflib
import math
from typing import Annotated, Any

import orjson
import typer

from gateway.cli.remote import (
    JsonOption,
    Remote,
    TokenOption,
    UrlOption,
    fail,
    remote,
    run,
    show_json,
    show_table,
)

INVALID_PARAMS = -32602  # of JSON-RPC: what is answered where a name is no tool


def tools(
    search: Annotated[str | None, typer.Argument(help="Only those whose name has this.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List the tools you can call.

    Example: `gateway tools`, `gateway tools book --json`
    """
    listed = run(_listed(remote(url, token)))
    if search:
        listed = [tool for tool in listed if search.lower() in tool["name"].lower()]
    if as_json:
        show_json(listed)
        return
    rows = [
        {
            "name": tool["name"],
            "title": tool.get("title", ""),
            "reads": "read" if tool.get("annotations", {}).get("readOnlyHint") else "write",
            "tokens": f"≈{math.ceil(len(orjson.dumps(tool)) / 4.6)}",
        }
        for tool in listed
    ]
    show_table(rows, {"name": "Tool", "title": "Title", "reads": "Access", "tokens": "Tokens"})


def call(
    name: Annotated[str, typer.Argument(help="The tool's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="key=value …, or one JSON object.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Call a tool.

    Values that read as JSON are taken as such (`limit=5`, `tags='["a"]'`), others as text.

    Examples: `gateway call demo_search_books q=time`, `gateway call demo_get_book '{"id": 3}'`
    """
    gateway = remote(url, token)
    given = parsed(arguments or [])
    answer = run(gateway.mcp("tools/call", {"name": name, "arguments": given}, name))
    if error := answer.get("error"):
        fail(error.get("message", "the call was refused") + _suggestion(gateway, name, error))
    result = answer["result"]
    if as_json:
        show_json(result)
    else:
        for part in result.get("content", ()):
            print(part.get("text") or f"[{part.get('type')} {part.get('mimeType', '')}]")
    if result.get("isError"):
        raise typer.Exit(1)


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The arguments of a call from a command line."""
    if len(arguments) == 1 and arguments[0].lstrip().startswith("{"):
        try:
            value = orjson.loads(arguments[0])
        except orjson.JSONDecodeError as error:
            fail(f"that is not JSON: {error}", 2)
        if not isinstance(value, dict):
            fail("the arguments must be a JSON object", 2)
        return value
    given: dict[str, Any] = {}
    for argument in arguments:
        key, separator, text = argument.partition("=")
        if not separator or not key:
            fail(f"{argument!r} is not key=value", 2)
        given[key] = _json_or_text(text)
    return given


def _json_or_text(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


async def _listed(gateway: Remote) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        answer = await gateway.mcp("tools/list", {"cursor": cursor} if cursor else {})
        if error := answer.get("error"):
            fail(error.get("message", "the list was refused"))
        found += answer["result"]["tools"]
        cursor = answer["result"].get("nextCursor")
        if cursor is None:
            return found


def _suggestion(gateway: Remote, name: str, error: dict[str, Any]) -> str:
    if error.get("code") != INVALID_PARAMS:
        return ""
    known = [tool["name"] for tool in run(_listed(gateway))]
    if name in known:
        return ""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"\nDid you mean {', '.join(close)}?" if close else "\n`gateway tools` lists yours."
