"""`gateway connections`, `approvals`, `changes` and `executions`: the REST API from a terminal."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
import typer

from gateway.cli.remote import (
    JsonOption,
    TokenOption,
    UrlOption,
    parsed,
    remote,
    run,
    segment,
    show_json,
    show_table,
)

connections = typer.Typer(help="The APIs that are connected.", no_args_is_help=True)
approvals = typer.Typer(help="Calls that wait for a person.", no_args_is_help=True)
changes = typer.Typer(help="What refreshes brought, and what is held.", no_args_is_help=True)
executions = typer.Typer(help="Past and running calls.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The connection's name.")]
Id = Annotated[str, typer.Argument(help="Its id.")]


@connections.command("list")
def list_connections(
    as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None
) -> None:
    """List the connections.

    Example: `gateway connections list`
    """
    found = run(remote(url, token).rest("GET", "/connections"))
    columns = {
        "name": "Name",
        "kind": "Kind",
        "status": "Status",
        "effective_access": "Access",
        "tools": "Tools",
        "tokens": "≈ Tokens",
    }
    if as_json:
        show_json(found)
        return
    show_table(found["connections"], columns)
    for problem in found["problems"]:
        print(f"{problem['where']}: {problem['message']}", file=sys.stderr)


@connections.command("put")
def put_connection(
    name: Name,
    settings: Annotated[list[str], typer.Argument(help="key=value …, or one JSON object.")],
    dry_run: Annotated[bool, typer.Option(help="Only show what it would give.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Add or replace a connection.

    Example: `gateway connections put shop kind=openapi spec=https://shop.example/openapi.json`
    """
    values = parsed(settings) | ({"dry_run": True} if dry_run else {})
    answer = run(remote(url, token).rest("PUT", f"/connections/{segment(name)}", values))
    if as_json:
        show_json(answer)
    elif dry_run:
        columns = {"name": "Tool", "access": "Access", "method": "Method", "path": "Path"}
        show_table(answer["tools"], columns)
    else:
        _report(answer)


@connections.command("refresh")
def refresh_connections(
    name: Annotated[str | None, typer.Argument(help="One connection; default: all.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Read definitions again.

    Example: `gateway connections refresh shop`
    """
    gateway = remote(url, token)
    names = (
        [name]
        if name
        else [c["name"] for c in run(gateway.rest("GET", "/connections"))["connections"]]
    )
    reports = [
        run(gateway.rest("POST", f"/connections/{segment(each)}/refresh"))
        for each in _with_progress(names)
    ]
    if as_json:
        show_json(reports)
    else:
        for report in reports:
            _report(report)
    if any(report["status"] == "failing" for report in reports):
        raise typer.Exit(1)


@connections.command("delete")
def delete_connection(
    name: Name, as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None
) -> None:
    """Delete a connection that was put.

    Example: `gateway connections delete shop`
    """
    answer = run(remote(url, token).rest("DELETE", f"/connections/{segment(name)}"))
    show_json(answer) if as_json else print(f"{name} is deleted")


@approvals.command("list")
def list_approvals(
    as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None
) -> None:
    """List the calls that wait for a decision.

    Example: `gateway approvals list`
    """
    found = run(remote(url, token).rest("GET", "/approvals"))
    columns = {
        "id": "Id",
        "tool": "Tool",
        "principal": "Who",
        "risk": "Risk",
        "method": "Method",
        "url": "URL",
        "arguments": "Arguments",
    }
    show_json(found) if as_json else show_table(found["approvals"], columns)


@approvals.command("approve")
def approve(
    id: Id,
    always: Annotated[
        bool, typer.Option(help="Also for later calls of this session, or of this client.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Let a call go on.

    Example: `gateway approvals approve 01a1…`
    """
    _decide(id, "always_allow" if always else "approve", as_json, url, token)


@approvals.command("deny")
def deny(
    id: Id, as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None
) -> None:
    """Refuse a call.

    Example: `gateway approvals deny 01a1…`
    """
    _decide(id, "deny", as_json, url, token)


@approvals.command("grants")
def list_grants(
    as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None
) -> None:
    """List what is always allowed: for whom, which tool, how long.

    Example: `gateway approvals grants`
    """
    found = run(remote(url, token).rest("GET", "/standing-grants"))
    columns = {
        "id": "Id",
        "tool": "Tool",
        "principal": "Who",
        "client": "Client",
        "session": "Session",
        "granted_by": "By",
        "expires_at": "Until",
    }
    if as_json:
        show_json(found)
        return
    grants = found["standing_grants"]
    show_table([{**row, "expires_at": _time(row["expires_at"])} for row in grants], columns)


@approvals.command("revoke")
def revoke_grant(
    id: Id, as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None
) -> None:
    """End what is always allowed: the next call is asked about again.

    Example: `gateway approvals revoke 01a1…`
    """
    answer = run(remote(url, token).rest("DELETE", f"/standing-grants/{segment(id)}"))
    show_json(answer) if as_json else print(f"{answer['tool']} is asked about again")


@changes.command("list")
def list_changes(
    as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None
) -> None:
    """List what refreshes brought.

    Example: `gateway changes list`
    """
    found = run(remote(url, token).rest("GET", "/changes"))
    columns = {
        "id": "Id",
        "connection": "Connection",
        "tool": "Tool",
        "kind": "Kind",
        "class": "Class",
        "status": "Status",
        "reason": "Reason",
    }
    show_json(found) if as_json else show_table(found["changes"], columns)


@changes.command("accept")
def accept_change(
    id: Id, as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None
) -> None:
    """Serve a held change.

    Example: `gateway changes accept 01a1…`
    """
    answer = run(remote(url, token).rest("POST", f"/changes/{segment(id)}/accept"))
    show_json(answer) if as_json else print("accepted")


@changes.command("reject")
def reject_change(
    id: Id, as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None
) -> None:
    """Keep serving what was there before a held change.

    Example: `gateway changes reject 01a1…`
    """
    answer = run(remote(url, token).rest("POST", f"/changes/{segment(id)}/reject"))
    show_json(answer) if as_json else print("rejected")


@executions.command("list")
def list_executions(
    status: Annotated[str | None, typer.Option(help="Only in this state.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only of this tool.")] = None,
    connection: Annotated[str | None, typer.Option(help="Only of this connection.")] = None,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=500)] = 50,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List calls, newest first.

    Example: `gateway executions list --status failed`
    """
    query = {"status": status, "tool": tool, "connection": connection, "limit": str(limit)}
    given = {key: value for key, value in query.items() if value is not None}
    found = run(remote(url, token).rest("GET", "/executions", query=given))
    columns = {
        "id": "Id",
        "tool": "Tool",
        "principal": "Who",
        "status": "Status",
        "error_code": "Error",
        "created_at": "At",
    }
    if as_json:
        show_json(found)
        return
    rows = [{**row, "created_at": _time(row["created_at"])} for row in found["executions"]]
    show_table(rows, columns)


@executions.command("show")
def show_execution(
    id: Id, as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None
) -> None:
    """Show one call with its arguments and its result.

    Example: `gateway executions show 01a1…`
    """
    found = run(remote(url, token).rest("GET", f"/executions/{segment(id)}"))
    if as_json:
        show_json(found)
        return
    for key, value in found.items():
        if value is not None:
            print(f"{key}: {value if isinstance(value, str) else orjson.dumps(value).decode()}")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


Decision = Literal["approve", "deny", "always_allow"]


def _decide(id: str, decision: Decision, as_json: bool, url: str | None, token: str | None) -> None:
    answer = run(
        remote(url, token).rest("POST", f"/approvals/{segment(id)}", {"decision": decision})
    )
    show_json(answer) if as_json else print(decision.replace("_", " "))


def _report(report: dict[str, Any]) -> None:
    counts = [f"{len(report[k])} {k}" for k in ("added", "removed", "changed", "held") if report[k]]
    print(f"{report['name']}: {report['status']} ({', '.join(counts) or 'nothing changed'})")
    if report.get("error"):
        print(f"  {report['error']}")


def _with_progress(names: list[str]) -> Any:
    """The names, with a bar on a terminal and plain lines elsewhere."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal:
        return track(names, "Refreshing", console=console)
    return _told(names)


def _told(names: list[str]) -> Any:
    for number, name in enumerate(names, 1):
        typer.echo(f"refreshing {name} ({number} of {len(names)})", err=True)
        yield name
