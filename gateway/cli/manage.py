"""The commands that talk to a running gateway: its tools as an MCP client sees them, and the REST
API from a terminal (connections, approvals, changes, executions).
"""

from __future__ import annotations

import difflib
import sys
import time
import webbrowser
from getpass import getpass
from typing import Annotated, Any

import orjson
import typer

from gateway.cli.remote import Remote, fail, remote_command, segment, show_progress, show_table
from gateway.limits import MOMENT_SECONDS, SIGN_IN_SECONDS
from gateway.naming import token_cost

top = typer.Typer()  # its commands stand beside `gateway serve`
connections = typer.Typer(help="The APIs that are connected.", no_args_is_help=True)
credentials = typer.Typer(help="What you sign in to as yourself.", no_args_is_help=True)
grants = typer.Typer(help="What clients were given at the front door.", no_args_is_help=True)
approvals = typer.Typer(help="Calls that wait for a person.", no_args_is_help=True)
changes = typer.Typer(help="What refreshes brought, and what is held.", no_args_is_help=True)
executions = typer.Typer(help="Past and running calls.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The connection's name.")]
Id = Annotated[str, typer.Argument(help="Its id.")]


# --- tools ----------------------------------------------------------------------------------------


@remote_command(top, "tools")
def list_tools(
    gateway: Remote,
    search: Annotated[
        list[str] | None, typer.Argument(help="Words for what you want to do, or part of a name.")
    ] = None,
) -> None:
    """List the tools you can call, or find the ones for a task.

    Example: `gateway tools`, `gateway tools add a book`, `gateway tools get_book --json`
    """
    listed = _tools(gateway)
    if words := " ".join(search or ()):
        listed = _found(gateway, words, {tool["name"]: tool for tool in listed})
    rows = [
        {
            "name": tool["name"],
            "title": tool.get("title", ""),
            "access": "read" if tool.get("annotations", {}).get("readOnlyHint") else "write",
            "tokens": f"≈{token_cost(orjson.dumps(tool))}",
        }
        for tool in listed
    ]
    gateway.show(listed, lambda: show_table(rows, "name title access tokens", name="Tool"))


@remote_command(top, "call")
def call_tool(
    gateway: Remote,
    name: Annotated[str, typer.Argument(help="The tool's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="key=value …, or one JSON object.")
    ] = None,
) -> None:
    """Call a tool.

    Values that read as JSON are taken as such (`limit=5`, `tags='["a"]'`), others as text.

    Examples: `gateway call demo_search_books q=time`, `gateway call demo_get_book '{"id": 3}'`
    """
    given = {"name": name, "arguments": _parse_arguments(arguments or [])}
    answer = gateway.mcp("tools/call", given, name)
    if error := answer.get("error"):
        fail(error.get("message", "the call was refused") + _suggestion(gateway, name, error))
    result = answer["result"]
    parts = (p.get("text") or f"[{p['type']} {p.get('mimeType', '')}]" for p in result["content"])
    gateway.show(result, lambda: print(*parts, sep="\n"))
    if result.get("isError"):
        raise typer.Exit(1)


def _tools(gateway: Remote) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        answer = gateway.mcp("tools/list", {"cursor": cursor} if cursor else {})
        if error := answer.get("error"):
            fail(error.get("message", "the list was refused"))
        found += answer["result"]["tools"]
        cursor = answer["result"].get("nextCursor")
        if cursor is None:
            return found


def _found(gateway: Remote, words: str, tools: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that a search by words finds, best first; then those whose name has the words in it."""
    answer = gateway.rest("GET", "/tools", query={"search": words, "limit": "500"})
    literal = (name for name in tools if words.lower() in name.lower())
    names = dict.fromkeys((*(row["name"] for row in answer["tools"]), *literal))
    return [tools[name] for name in names if name in tools]


def _suggestion(gateway: Remote, name: str, error: dict[str, Any]) -> str:
    if error.get("code") != -32602:  # JSON-RPC: what is answered where a name is no tool
        return ""
    known = [tool["name"] for tool in _tools(gateway)]
    if name in known:
        return ""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"\nDid you mean {', '.join(close)}?" if close else "\n`gateway tools` lists yours."


def _parse_arguments(arguments: list[str]) -> dict[str, Any]:
    """The values that a command line gives: key=value …, or one JSON object."""
    if len(arguments) == 1 and arguments[0].lstrip().startswith("{"):
        value = _json_or_text(arguments[0])
        return value if isinstance(value, dict) else fail("that is not a JSON object", 2)
    pairs = [argument.partition("=") for argument in arguments]
    for key, separator, _ in pairs:
        if not separator or not key:
            fail(f"{key!r} is not key=value", 2)
    return {key: _json_or_text(text) for key, _, text in pairs}


def _json_or_text(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


# --- connections ----------------------------------------------------------------------------------


@remote_command(connections, "list")
def list_connections(gateway: Remote) -> None:
    """List the connections.

    Example: `gateway connections list`
    """
    found = gateway.list_rows("/connections", "name kind status effective_access tools tokens")
    for problem in () if gateway.as_json else found["problems"]:
        print(f"{problem['where']}: {problem['message']}", file=sys.stderr)


@remote_command(connections, "put")
def put_connection(
    gateway: Remote,
    name: Name,
    settings: Annotated[list[str], typer.Argument(help="key=value …, or one JSON object.")],
    dry_run: Annotated[bool, typer.Option(help="Only show what it would give.")] = False,
) -> None:
    """Add or replace a connection.

    Example: `gateway connections put shop kind=openapi spec=https://shop.example/openapi.json`
    """
    values = _parse_arguments(settings) | ({"dry_run": True} if dry_run else {})
    answer = gateway.rest("PUT", f"/connections/{segment(name)}", values)
    if dry_run:
        columns = "name access method path"
        gateway.show(answer, lambda: show_table(answer["tools"], columns, name="Tool"))
    else:
        gateway.show(answer, lambda: _print_reports([answer]))


@remote_command(connections, "refresh")
def refresh_connections(
    gateway: Remote,
    name: Annotated[str | None, typer.Argument(help="One connection; default: all.")] = None,
) -> None:
    """Read definitions again.

    Example: `gateway connections refresh shop`
    """
    rows = [{"name": name}] if name else gateway.rest("GET", "/connections")["connections"]
    tell, reports = show_progress(len(rows), "Refreshing", "refreshed"), []
    for row in rows:
        reports.append(gateway.rest("POST", f"/connections/{segment(row['name'])}/refresh"))
        tell(row["name"])
    gateway.show(reports, lambda: _print_reports(reports))
    if any(report["status"] == "failing" for report in reports):
        raise typer.Exit(1)


@remote_command(connections, "delete")
def delete_connection(gateway: Remote, name: Name) -> None:
    """Delete a connection that was put.

    Example: `gateway connections delete shop`
    """
    gateway.act("DELETE", f"/connections/{segment(name)}", "{name} is deleted")


def _print_reports(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        found = {word: len(report[word]) for word in ("added", "removed", "changed", "held")}
        counts = [f"{count} {word}" for word, count in found.items() if count]
        print(f"{report['name']}: {report['status']} ({', '.join(counts) or 'nothing changed'})")
        if report.get("error"):
            print(f"  {report['error']}")


# --- approvals ------------------------------------------------------------------------------------


@remote_command(approvals, "list")
def list_approvals(gateway: Remote) -> None:
    """List the calls that wait for a decision.

    Example: `gateway approvals list`
    """
    gateway.list_rows("/approvals", "id tool principal risk method url arguments")


@remote_command(approvals, "approve")
def approve(
    gateway: Remote,
    id: Id,
    always: Annotated[
        bool, typer.Option(help="Also for later calls of this session, or of this client.")
    ] = False,
) -> None:
    """Let a call go on.

    Example: `gateway approvals approve 01a1…`
    """
    decision = "always_allow" if always else "approve"
    words = decision.replace("_", " ")
    gateway.act("POST", f"/approvals/{segment(id)}", words, {"decision": decision})


@remote_command(approvals, "deny")
def deny(gateway: Remote, id: Id) -> None:
    """Refuse a call.

    Example: `gateway approvals deny 01a1…`
    """
    gateway.act("POST", f"/approvals/{segment(id)}", "deny", {"decision": "deny"})


@remote_command(approvals, "grants")
def list_grants(gateway: Remote) -> None:
    """List what is always allowed: for whom, which tool, how long.

    Example: `gateway approvals grants`
    """
    gateway.list_rows("/standing-grants", "id tool principal client session granted_by expires_at")


@remote_command(approvals, "revoke")
def revoke_grant(gateway: Remote, id: Id) -> None:
    """End what is always allowed: the next call is asked about again.

    Example: `gateway approvals revoke 01a1…`
    """
    gateway.act("DELETE", f"/standing-grants/{segment(id)}", "{tool} is asked about again")


# --- grants ---------------------------------------------------------------------------------------


@remote_command(grants, "list")
def list_oauth_grants(gateway: Remote) -> None:
    """List what clients were given at the front door: which client, for whom, for which address.

    Example: `gateway grants list`
    """
    gateway.list_rows("/grants", "id client_name principal resource scope last_used_at")


@remote_command(grants, "revoke")
def revoke_oauth_grant(gateway: Remote, id: Id) -> None:
    """End what a client was given: it has to ask its person again.

    Example: `gateway grants revoke 01a1…`
    """
    gateway.act("DELETE", f"/grants/{segment(id)}", "{client_name} is let in no longer")


# --- credentials ----------------------------------------------------------------------------------


@remote_command(credentials, "list")
def list_credentials(gateway: Remote) -> None:
    """List the connections that you sign in to, and whether you have.

    Example: `gateway credentials list`
    """
    gateway.list_rows("/credentials", "connection type per signed_in signed_in_at expires_at")


@remote_command(credentials, "put")
def put_credential(
    gateway: Remote,
    name: Name,
    username: Annotated[str, typer.Option(help="For a connection that takes a password.")] = "",
) -> None:
    """Give a key, token or password of your own, for your calls alone; it is read from stdin.

    Example: `gateway credentials put crm < key.txt`
    """
    secret = sys.stdin.readline().strip() if not sys.stdin.isatty() else getpass("Key: ")
    fields = {"token": secret, "value": secret}
    body = {"username": username, "password": secret} if username else fields
    gateway.act("PUT", f"/credentials/{segment(name)}", "your calls of {connection} use it", body)


@remote_command(credentials, "sign-in")
def sign_in(gateway: Remote, name: Name) -> None:
    """Sign in to a connection as yourself: a terminal opens the browser; waits until you are back.

    Example: `gateway credentials sign-in github`
    """
    path = f"/credentials/{segment(name)}"
    before = _signed_in_at(gateway, name)
    link = gateway.rest("POST", f"{path}/sign-in")["sign_in_url"]
    print(f"Open this link to sign in to {name}:\n{link}", file=sys.stderr)
    if sys.stdout.isatty():
        webbrowser.open(link)
    ends = time.monotonic() + SIGN_IN_SECONDS
    while (now := _signed_in_at(gateway, name)) is None or now == before:
        if time.monotonic() > ends:
            fail("nobody has signed in; ask for another link")
        time.sleep(MOMENT_SECONDS / 2)
    gateway.show({"connection": name, "signed_in": True}, lambda: print(f"signed in to {name}"))


def _signed_in_at(gateway: Remote, name: str) -> float | None:
    rows = gateway.rest("GET", "/credentials")["credentials"]
    return next((row["signed_in_at"] for row in rows if row["connection"] == name), None)


@remote_command(credentials, "delete")
def delete_credential(gateway: Remote, name: Name) -> None:
    """Sign out of a connection: what you gave is forgotten, and its provider told.

    Example: `gateway credentials delete github`
    """
    gateway.act("DELETE", f"/credentials/{segment(name)}", "signed out of {connection}")


# --- changes --------------------------------------------------------------------------------------


@remote_command(changes, "list")
def list_changes(gateway: Remote) -> None:
    """List what refreshes brought.

    Example: `gateway changes list`
    """
    gateway.list_rows("/changes", "id connection tool kind class status reason")


@remote_command(changes, "accept")
def accept_change(gateway: Remote, id: Id) -> None:
    """Serve a held change.

    Example: `gateway changes accept 01a1…`
    """
    gateway.act("POST", f"/changes/{segment(id)}/accept", "accepted")


@remote_command(changes, "reject")
def reject_change(gateway: Remote, id: Id) -> None:
    """Keep serving what was there before a held change.

    Example: `gateway changes reject 01a1…`
    """
    gateway.act("POST", f"/changes/{segment(id)}/reject", "rejected")


# --- executions -----------------------------------------------------------------------------------


@remote_command(executions, "list")
def list_executions(
    gateway: Remote,
    status: Annotated[str | None, typer.Option(help="Only in this state.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only of this tool.")] = None,
    connection: Annotated[str | None, typer.Option(help="Only of this connection.")] = None,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=500)] = 50,
) -> None:
    """List calls, newest first.

    Example: `gateway executions list --status failed`
    """
    query = {"status": status, "tool": tool, "connection": connection, "limit": str(limit)}
    given = {key: value for key, value in query.items() if value is not None}
    gateway.list_rows("/executions", "id tool principal status error_code created_at", given)


@remote_command(executions, "show")
def show_execution(gateway: Remote, id: Id) -> None:
    """Show one call with its arguments and its result.

    Example: `gateway executions show 01a1…`
    """
    found = gateway.rest("GET", f"/executions/{segment(id)}")
    shown = {k: v if isinstance(v, str) else orjson.dumps(v).decode() for k, v in found.items()}
    lines = [f"{key}: {text}" for key, text in shown.items() if found[key] is not None]
    gateway.show(found, lambda: print("\n".join(lines)))
