"""`gateway tools` and `gateway call`: a running gateway's tools as an MCP client sees them."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from urllib.parse import quote

import orjson
import typer

from gateway.cli.remote import CLIENT, OnProgress, Remote, completes, in_commands, remote_command
from gateway.cli.terminal import console_of, fail, note, say, show_table, span, strip_controls
from gateway.naming import token_cost

top = typer.Typer()  # its commands stand beside `gateway serve`
tool_names = completes("/tools", "name")
APPROVAL_ID = re.compile(r"\(approval ([0-9a-f]+)\)")  # in the progress of a call that waits


@remote_command(top, "tools")
def list_tools(
    gateway: Remote,
    search: Annotated[
        list[str] | None, typer.Argument(help="Words for what you want to do, or part of a name.")
    ] = None,
    client: Annotated[str, typer.Option(help="As a client of this name is sent them.")] = CLIENT,
) -> None:
    """List the tools you can call, or find the ones for a task.

    Example: `gateway tools`, `gateway tools add a book`, `gateway tools get_book --json`
    """
    found = fetch_tools(gateway, client)
    words = " ".join(search or ())
    if words == "list" and all(tool["name"] != words for tool in found):
        words = ""  # elsewhere this word is the command that lists all
    if words:
        found = _search_tools(gateway, words, {tool["name"]: tool for tool in found})
    rows = [
        {
            "name": tool["name"],
            "title": tool.get("title", ""),
            "access": _access_in(tool.get("annotations", {})),
            "tokens": f"≈{token_cost(orjson.dumps(tool))}",
        }
        for tool in found
    ]
    empty = f"No tool is found by {words!r}.\n`gateway tools` lists all."
    if not words:
        empty = "There are no tools.\n`gateway connections put NAME spec=URL` connects an API."
    columns = "name access tokens title"
    gateway.show(found, lambda: show_table(rows, columns, empty, name="Tool"))


@remote_command(top, "call")
def call_tool(
    gateway: Remote,
    name: Annotated[str, typer.Argument(help="The tool's name.", autocompletion=tool_names)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="key=value …, or one JSON object.")
    ] = None,
) -> None:
    """Call a tool.

    Values that read as JSON are taken as such (`limit=5`, `tags='["a"]'`), others as text; so are
    those that the tool takes as text alone (`q=1984`). A call that needs a person's word says so
    and waits; Ctrl-C leaves, and the question stays open.

    Examples: `gateway call demo_search_books q=time`, `gateway call demo_get_book '{"id": 3}'`
    """
    values = parse_arguments(arguments or [])
    if any(isinstance(value, (int, float)) for value in values.values()):
        values = parse_arguments(arguments or [], _text_inputs(gateway, name))
    params = {"name": name, "arguments": values}
    with _show_waiting(gateway) as on_progress:
        # A client name of its own, which never lists: a person who types a name has no old list.
        answer = gateway.mcp("tools/call", params, on_progress, f"{CLIENT}-call")
    if error := answer.get("error"):
        fail(error.get("message", "the call was refused") + _suggestion(gateway, name, error))
    result = answer["result"]
    parts = [p.get("text") or f"[{p['type']} {p.get('mimeType', '')}]" for p in result["content"]]
    failed = result.get("isError", False)
    text = "\n".join(parts)
    gateway.show(result, lambda: say(in_commands(text) if failed else text))
    if failed:
        raise typer.Exit(1)


@contextmanager
def _show_waiting(gateway: Remote) -> Iterator[OnProgress]:
    """Prints what a call waits for, and what happens to the question after Ctrl-C."""
    status, time_left, approval = console_of(stderr=True).status(""), "", ""

    def on_progress(progress: dict[str, Any]) -> None:
        nonlocal time_left, approval
        words = strip_controls(progress.get("message", ""))
        if match := APPROVAL_ID.search(words):
            time_left = span(progress["total"] - progress["progress"])
            if not approval:
                approval = match[1]
                note(f"{words}, {time_left} left.")
                note(f"Decide with `gateway approvals approve {approval}` (or deny),")
                note(f"or at {gateway.base}/console/approvals")
            words = f"{time_left} left; Ctrl-C leaves, the question stays open"
        if words and sys.stderr.isatty():
            status.update(words)
            status.start()

    try:
        yield on_progress
    except KeyboardInterrupt:
        if approval:
            status.stop()
            note(f"\nThe question stays open for {time_left} (approval {approval}).")
            note("Once it is approved, the same call goes through without asking.")
        raise
    finally:
        status.stop()


def fetch_tools(gateway: Remote, client: str = CLIENT) -> list[dict[str, Any]]:
    """All of the caller's tools, as a client of this name is sent them."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        answer = gateway.mcp("tools/list", {"cursor": cursor} if cursor else {}, client=client)
        if error := answer.get("error"):
            fail(error.get("message", "the list was refused"))
        found += answer["result"]["tools"]
        cursor = answer["result"].get("nextCursor")
        if cursor is None:
            return found


def _search_tools(gateway: Remote, words: str, tools: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools that a search by words finds, best first; then by the words in names."""
    answer = gateway.rest("GET", "/tools", query={"search": words, "limit": "500"})
    literal = (name for name in tools if words.lower() in name.lower())
    names = dict.fromkeys((*(row["name"] for row in answer["tools"]), *literal))
    return [tools[name] for name in names if name in tools]


def _suggestion(gateway: Remote, name: str, error: dict[str, Any]) -> str:
    if error.get("code") != -32602:  # JSON-RPC's code for a name that is no tool
        return ""
    names = [tool["name"] for tool in fetch_tools(gateway)]
    if name in names:
        return ""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"\nDid you mean {', '.join(close)}?" if close else "\n`gateway tools` lists yours."


def _access_in(hints: dict[str, Any]) -> str:
    if hints.get("readOnlyHint"):
        return "read"
    return "delete" if hints.get("destructiveHint") else "write"


def _text_inputs(gateway: Remote, name: str) -> set[str]:
    """The inputs that the tool takes as text alone; none where the gateway does not say."""
    status, raw = gateway.exchange("GET", f"/api/v1/tools/{quote(name, safe='')}", {}, None)
    schema = orjson.loads(raw)["input_schema"] if status == 200 else {}
    kinds = {key: _kinds(each) for key, each in schema.get("properties", {}).items()}
    return {key for key in kinds if kinds[key] in ({"string"}, {"string", "null"})}


def _kinds(schema: Any) -> set[str]:
    """The types that a schema names, those of its alternatives among them."""
    if not isinstance(schema, dict):
        return set()
    kinds = schema.get("type", [])
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return {*([kinds] if isinstance(kinds, str) else kinds)}.union(*map(_kinds, alternatives))


def parse_arguments(arguments: list[str], texts: Collection[str] = ()) -> dict[str, Any]:
    """The values that a command line gives: key=value …, or one JSON object.

    The values of the keys in `texts` are text, even where they would read as JSON.
    """
    if len(arguments) == 1 and arguments[0].lstrip().startswith("{"):
        value = _json_or_text(arguments[0])
        return value if isinstance(value, dict) else fail("that is not a JSON object", 2)
    pairs = [argument.partition("=") for argument in arguments]
    for key, separator, _ in pairs:
        if not separator or not key:
            fail(f"{key!r} is not key=value", 2)
    return {key: text if key in texts else _json_or_text(text) for key, _, text in pairs}


def _json_or_text(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
