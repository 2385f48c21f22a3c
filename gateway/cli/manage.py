"""A running gateway's REST API from a terminal: connections, approvals, changes, executions."""

from __future__ import annotations

import sys
import time
import webbrowser
from getpass import getpass
from typing import Annotated, Any, Literal

import typer

from gateway.cli.remote import Remote, completes, remote_command, segment
from gateway.cli.terminal import fail, note, show_details, show_progress, show_table, span
from gateway.cli.tools import parse_arguments, tool_names
from gateway.limits import LIVE_SECONDS, MAX_TOLD_ITEMS, MOMENT_SECONDS, SIGN_IN_SECONDS

connections = typer.Typer(help="The APIs that are connected.", no_args_is_help=True)
credentials = typer.Typer(help="What you sign in to as yourself.", no_args_is_help=True)
grants = typer.Typer(help="What clients were given at the front door.", no_args_is_help=True)
approvals = typer.Typer(help="Calls that wait for a person.", no_args_is_help=True)
changes = typer.Typer(help="What refreshes brought, and what is held.", no_args_is_help=True)
executions = typer.Typer(help="Past and running calls.", no_args_is_help=True)

connection_names = completes("/connections", "name")


def _id_argument(path: str, by: str = "id", **query: str) -> Any:
    """An argument for an id, or for a start of it that no other id has."""
    words = "Its id, or a start of it that no other has."
    return typer.Argument(help=words, autocompletion=completes(path, by, **query))


ConnectionName = Annotated[
    str, typer.Argument(help="The connection's name.", autocompletion=connection_names)
]
CredentialConnection = Annotated[str, _id_argument("/credentials", "connection")]
ApprovalId = Annotated[str, _id_argument("/approvals")]
StandingGrantId = Annotated[str, _id_argument("/standing-grants")]
GrantId = Annotated[str, _id_argument("/grants")]
ChangeId = Annotated[str, _id_argument("/changes", status="held")]
ExecutionId = Annotated[str, _id_argument("/executions")]
StatusFilter = Literal[
    "pending_confirmation", "executing", "completed", "failed", "denied", "expired", "unknown"
]


# --- connections ----------------------------------------------------------------------------------


@remote_command(connections, "list")
def list_connections(gateway: Remote) -> None:
    """List the connections.

    Example: `gateway connections list`
    """
    columns = "name status kind tools problems effective_access tokens last_refresh"
    empty = "Nothing is connected.\n`gateway connections put NAME spec=URL` connects an API."
    found = gateway.rest("GET", "/connections")
    rows = [row | {"problems": _count_problems(row)} for row in found["connections"]]
    gateway.show(found, lambda: show_table(rows, columns, empty))
    for problem in () if gateway.as_json else found["problems"]:
        note(f"{problem['where']}: {problem['message']}")


def _count_problems(connection: dict[str, Any]) -> str:
    """The number of problems that want a person, as a cell."""
    serious = [each for each in connection["problems"] if each["severity"] != "info"]
    return str(len(serious) or "")


@remote_command(connections, "show")
def show_connection(gateway: Remote, name: ConnectionName) -> None:
    """Show one connection: its state, its settings with secrets masked, and its problems.

    Example: `gateway connections show shop`
    """
    found = gateway.rest("GET", f"/connections/{segment(name)}")
    gateway.show(found, lambda: show_details(found))


@remote_command(connections, "put")
def put_connection(
    gateway: Remote,
    name: ConnectionName,
    settings: Annotated[list[str], typer.Argument(help="key=value …, or one JSON object.")],
    dry_run: Annotated[bool, typer.Option(help="Only show what it would give.")] = False,
) -> None:
    """Add or replace a connection.

    Example: `gateway connections put shop kind=openapi spec=https://shop.example/openapi.json`
    """
    values = parse_arguments(settings) | ({"dry_run": True} if dry_run else {})
    answer = gateway.rest("PUT", f"/connections/{segment(name)}", values)
    gateway.show(answer, lambda: _print_plan(answer) if dry_run else _print_reports([answer]))


def _print_plan(plan: dict[str, Any]) -> None:
    """What a put would give and change, in words."""
    from gateway.cli.inspect import print_preview

    print_preview(plan, MAX_TOLD_ITEMS)
    for outcome in ("added", "removed", "changed", "held"):
        if names := plan[outcome]:
            more = f" and {len(names) - MAX_TOLD_ITEMS} more" * (len(names) > MAX_TOLD_ITEMS)
            print(f"{outcome:8} {', '.join(names[:MAX_TOLD_ITEMS])}{more}")


@remote_command(connections, "refresh")
def refresh_connections(
    gateway: Remote,
    name: Annotated[
        str | None,
        typer.Argument(help="One connection; default: all.", autocompletion=connection_names),
    ] = None,
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
def delete_connection(gateway: Remote, name: ConnectionName) -> None:
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
    columns = "id tool principal risk expires_at arguments method url"
    empty = "No call waits for a decision.\n`gateway executions list` shows what became of others."
    gateway.list_rows("/approvals", columns, empty)


@remote_command(approvals, "approve")
def approve(
    gateway: Remote,
    id: ApprovalId,
    always: Annotated[
        bool, typer.Option(help="Also for later calls of this session, or of this client.")
    ] = False,
) -> None:
    """Let a call go on.

    Example: `gateway approvals approve 01a1…`
    """
    decision = "always_allow" if always else "approve"
    decided = gateway.rest("POST", gateway.find("/approvals", id), {"decision": decision})
    gateway.show(decided, lambda: print(f"Approved: {_follow_call(gateway, decided)}"))
    if always and not gateway.as_json:
        print("Later calls are not asked about: `gateway approvals grants` lists what is allowed.")


@remote_command(approvals, "deny")
def deny(gateway: Remote, id: ApprovalId) -> None:
    """Refuse a call.

    Example: `gateway approvals deny 01a1…`
    """
    decided = gateway.rest("POST", gateway.find("/approvals", id), {"decision": "deny"})
    gateway.show(decided, lambda: print(f"Denied: {decided['tool']} was not called."))


def _follow_call(gateway: Remote, decided: dict[str, Any]) -> str:
    """Words for the state of an approved call, a moment after its approval."""
    tool, ends = decided["tool"], time.monotonic() + MOMENT_SECONDS
    while True:
        found = gateway.rest("GET", f"/executions/{segment(decided['execution_id'])}")
        going_on = found["status"] in ("pending_confirmation", "executing")
        if not going_on or time.monotonic() > ends:
            break
        time.sleep(LIVE_SECONDS)
    if found["status"] == "completed":
        return f"{tool} was called, and has completed."
    if found["status"] == "pending_confirmation":
        left = span(decided["expires_at"] - time.time())
        return f"nobody waits for {tool} now; the same call goes through within {left}."
    error = (found["result"] or {}).get("error") or {}
    reason = f": {error['message']}" if error.get("message") else ""
    return f"{tool} is {found['status']}{reason}. `gateway executions show {found['id']}` has more."


@remote_command(approvals, "grants")
def list_grants(gateway: Remote) -> None:
    """List what is always allowed: for whom, which tool, how long.

    Example: `gateway approvals grants`
    """
    columns = "id tool principal expires_at granted_by client session"
    empty = "Nothing is always allowed.\n`gateway approvals approve ID --always` allows a tool."
    gateway.list_rows("/standing-grants", columns, empty)


@remote_command(approvals, "revoke")
def revoke_grant(gateway: Remote, id: StandingGrantId) -> None:
    """End what is always allowed: the next call is asked about again.

    Example: `gateway approvals revoke 01a1…`
    """
    gateway.act("DELETE", gateway.find("/standing-grants", id), "{tool} is asked about again")


# --- grants ---------------------------------------------------------------------------------------


@remote_command(grants, "list")
def list_oauth_grants(gateway: Remote) -> None:
    """List what clients were given at the front door: which client, for whom, for which address.

    Example: `gateway grants list`
    """
    columns = "id client_name principal last_used_at scope resource"
    empty = "No client was let in.\nClients sign people in themselves where auth.mode is oauth."
    gateway.list_rows("/grants", columns, empty)


@remote_command(grants, "revoke")
def revoke_oauth_grant(gateway: Remote, id: GrantId) -> None:
    """End what a client was given: it has to ask its person again.

    Example: `gateway grants revoke 01a1…`
    """
    gateway.act("DELETE", gateway.find("/grants", id), "{client_name} is let in no longer")


# --- credentials ----------------------------------------------------------------------------------


@remote_command(credentials, "list")
def list_credentials(gateway: Remote) -> None:
    """List the connections that you sign in to, and whether you have.

    Example: `gateway credentials list`
    """
    columns = "connection signed_in type per expires_at signed_in_at"
    empty = "No connection wants anybody to sign in as themselves."
    gateway.list_rows("/credentials", columns, empty)


@remote_command(credentials, "put")
def put_credential(
    gateway: Remote,
    name: CredentialConnection,
    username: Annotated[str, typer.Option(help="For a connection that takes a password.")] = "",
) -> None:
    """Give a key, token or password of your own, for your calls alone; it is read from stdin.

    Example: `gateway credentials put crm < key.txt`
    """
    path = gateway.find("/credentials", name, "connection")
    secret = sys.stdin.readline().strip() if not sys.stdin.isatty() else getpass("Key: ")
    fields = {"token": secret, "value": secret}
    body = {"username": username, "password": secret} if username else fields
    gateway.act("PUT", path, "your calls of {connection} use it", body)


@remote_command(credentials, "sign-in")
def sign_in(gateway: Remote, name: CredentialConnection) -> None:
    """Sign in to a connection as yourself: a terminal opens the browser; waits until you are back.

    Example: `gateway credentials sign-in github`
    """
    name = gateway.find_id("/credentials", name, "connection")
    before = _signed_in_at(gateway, name)
    link = gateway.rest("POST", f"/credentials/{segment(name)}/sign-in")["sign_in_url"]
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
def delete_credential(gateway: Remote, name: CredentialConnection) -> None:
    """Sign out of a connection: what you gave is forgotten, and its provider told.

    Example: `gateway credentials delete github`
    """
    path = gateway.find("/credentials", name, "connection")
    gateway.act("DELETE", path, "signed out of {connection}")


# --- changes --------------------------------------------------------------------------------------


@remote_command(changes, "list")
def list_changes(gateway: Remote) -> None:
    """List what refreshes brought.

    Example: `gateway changes list`
    """
    columns = "id tool kind class status at reason connection"
    empty = "No refresh brought a change.\n`gateway connections refresh` reads definitions again."
    gateway.list_rows("/changes", columns, empty)


@remote_command(changes, "accept")
def accept_change(gateway: Remote, id: ChangeId) -> None:
    """Serve a held change.

    Example: `gateway changes accept 01a1…`
    """
    path = gateway.find("/changes", id, status="held")
    gateway.act("POST", f"{path}/accept", "{tool} is {status}")


@remote_command(changes, "reject")
def reject_change(gateway: Remote, id: ChangeId) -> None:
    """Keep serving what was there before a held change.

    Example: `gateway changes reject 01a1…`
    """
    path = gateway.find("/changes", id, status="held")
    gateway.act("POST", f"{path}/reject", "{tool} is {status}")


# --- executions -----------------------------------------------------------------------------------


@remote_command(executions, "list")
def list_executions(
    gateway: Remote,
    status: Annotated[StatusFilter | None, typer.Option(help="Only in this state.")] = None,
    tool: Annotated[
        str | None, typer.Option(help="Only of this tool.", autocompletion=tool_names)
    ] = None,
    connection: Annotated[
        str | None,
        typer.Option(help="Only of this connection.", autocompletion=connection_names),
    ] = None,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=500)] = 50,
) -> None:
    """List calls, newest first.

    Example: `gateway executions list --status failed`
    """
    query = {"status": status, "tool": tool, "connection": connection, "limit": str(limit)}
    params = {key: value for key, value in query.items() if value is not None}
    found = gateway.rest("GET", "/executions", query=params)
    rows = [row | {"took": _duration(row)} for row in found["executions"]]
    columns = "id tool status created_at took error_code principal"
    empty = "No such call was made.\n`gateway tools` lists what can be called."
    gateway.show(found, lambda: show_table(rows, columns, empty))


def _duration(execution: dict[str, Any]) -> str:
    milliseconds = (execution["result"] or {}).get("duration_ms")
    return "" if milliseconds is None else span(milliseconds / 1000)


@remote_command(executions, "show")
def show_execution(gateway: Remote, id: ExecutionId) -> None:
    """Show one call with its arguments and its result.

    Example: `gateway executions show 01a1…`
    """
    found = gateway.rest("GET", gateway.find("/executions", id))
    gateway.show(found, lambda: show_details(found))
