"""`gateway serve`.

`gateway token`.
"""

from __future__ import annotations

import gc
import hashlib
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.config.reading import read_settings
from gateway.config.settings import Settings, check_whole
from gateway.errors import ConfigInvalid

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]


def serve(
    config: ConfigOption = Path("config.toml"),
    host: Annotated[str | None, typer.Option(help="Over server.host.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Over server.port; 0: a free one.")
    ] = None,
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
) -> None:
    """Run the gateway.

    Prints `Gateway ready: http://HOST:PORT/mcp` when it accepts requests. Ctrl-C and SIGTERM let
    calls in flight finish; a second one ends at once.

    Example: `gateway serve --config config.toml --port 0`
    """
    settings = _with_address(read_settings(config), host, port)
    if problems := check_whole(settings):
        raise ConfigInvalid([f"{config}: {where}: {what}" for where, what in problems])
    from gateway.telemetry import set_up

    set_up()
    if settings.server.workers > 1 and not worker:
        from gateway.server import supervise

        sys.exit(supervise(settings, config.resolve()))
    gc.disable()  # while starting: nothing is garbage yet; it is turned on when requests are taken
    from gateway.server import serve as run

    sys.exit(run(settings, config.resolve(), worker=worker))


def _with_address(settings: Settings, host: str | None, port: int | None) -> Settings:
    over = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    return settings.model_copy(update={"server": settings.server.model_copy(update=over)})


def token(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Make a token: shown once, with the line for the configuration.

    Example: `gateway token`
    """
    value = f"gw_{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(value.encode()).hexdigest()
    if as_json:
        import orjson

        print(orjson.dumps({"token": value, "token_sha256": digest}).decode())
        return
    print(f"token: {value}")
    print(f'token_sha256 = "{digest}"')
    typer.echo("The token is not kept anywhere; give it to the client now.", err=True)
