"""Puts the commands together and turns our errors into exit codes.

0 fine, 1 failed, 2 wrong usage or configuration.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gateway import __version__
from gateway.cli import bridge, check, inspect, manage, serve
from gateway.cli import inspect as discover
from gateway.cli import remote as client
from gateway.cli import serve as token
from gateway.errors import ConfigInvalid, GatewayError

app = typer.Typer(
    name="gateway",
    help="Point any MCP client at one URL; every API you connect becomes tools there.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("check")(check.check)
app.command("inspect")(inspect.inspect)
app.command("token")(token.token)
app.command("discover")(discover.discover)
app.command("stdio")(bridge.stdio)
app.command("tools")(client.tools)
app.command("call")(client.call)
app.add_typer(manage.connections, name="connections")
app.add_typer(manage.approvals, name="approvals")
app.add_typer(manage.changes, name="changes")
app.add_typer(manage.executions, name="executions")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script."""
    try:
        app()
    except ConfigInvalid as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except GatewayError as error:
        print(f"{error.message}\n{error.hint}".strip(), file=sys.stderr)
        sys.exit(1)
