"""The commands of the first minute: `gateway serve`, `gateway init`, `gateway add`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.prompt import Prompt

from gateway.cli.remote import JsonOption
from gateway.errors import ConfigInvalid

SignInMode = Literal["none", "token", "oidc"]
ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
CONFIG = Path("config.toml")
BearerOption = Annotated[
    str | None, typer.Option("--bearer-env", help="The variable with a token for what is named.")
]
HeaderOption = Annotated[
    list[str] | None, typer.Option("--header", help="NAME=VALUE, sent to what is named.")
]
BaseOption = Annotated[
    str | None, typer.Option("--base-url", help="Where the API is, if not as it says itself.")
]


def serve(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SPEC_OR_URL …]", help="Definitions or MCP servers to serve by themselves."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The configuration, if not config.toml.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Over server.host.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Over server.port; 0: a free one.")
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve the client that starts this, and end with it.")
    ] = False,
    bearer_env: BearerOption = None,
    header: HeaderOption = None,
    base_url: BaseOption = None,
    worker: Annotated[bool, typer.Option("--worker", hidden=True)] = False,
) -> None:
    """Run the gateway: on config.toml, on the demo where there is none, or on what is named.

    Prints `Gateway ready: http://HOST:PORT/mcp` when it accepts requests. Ctrl-C and SIGTERM let
    calls in flight finish; a second one ends at once.

    Examples: `gateway serve`, `gateway serve openapi.yaml --bearer-env TOKEN`,
    `gateway serve --config config.toml --port 0`, `gateway serve openapi.yaml --stdio`
    """
    from gateway.cli.named_apis import Options
    from gateway.cli.server_setup import serve_on

    server_options = {"host": host, "port": 0 if stdio and port is None else port}
    server_options |= {"workers": 1} if stdio or specs else {}  # workers only read config.toml
    serve_on(
        specs or (),
        config,
        Options(bearer_env, tuple(header or ()), base_url),
        {key: value for key, value in server_options.items() if value is not None},
        stdio=stdio,
        worker=worker,
    )


def init(
    config: ConfigFile = CONFIG,
    sign_in: Annotated[
        SignInMode | None,
        typer.Option(help="How people prove who they are; asked if not given."),
    ] = None,
    api: Annotated[
        str | None, typer.Option(help="A first API: a definition's path or URL; else the demo.")
    ] = None,
) -> None:
    """Write a first config.toml: how people sign in, and a first API or the demo.

    Both are asked for on a terminal. A file that is there is never written over.

    Examples: `gateway init`, `gateway init --sign-in token --api openapi.yaml`
    """
    from gateway.cli.config_edits import write_first

    if config.exists():
        raise ConfigInvalid([f"{config}: is there already; `gateway add` puts an API into it"])
    is_terminal, choices = sys.stdin.isatty(), ["none", "token", "oidc"]
    chosen: str = sign_in or "none"
    if sign_in is None and is_terminal:
        words = "How do people sign in? (none: this machine only)"
        chosen = Prompt.ask(words, choices=choices, default="none")
    if api is None and is_terminal:
        words = "A first API (path or URL of its OpenAPI definition; nothing: the demo)"
        api = Prompt.ask(words, default="", show_default=False).strip() or None
    write_first(config, chosen, api)


def add(
    spec: Annotated[str, typer.Argument(help="A definition (path, URL) or an MCP server's URL.")],
    name: Annotated[str | None, typer.Option(help="The connection's; else after the API.")] = None,
    bearer_env: BearerOption = None,
    header: HeaderOption = None,
    base_url: BaseOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Without asking.")] = False,
    config: ConfigFile = CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Put an API into config.toml: shows which tools it gives, asks, and writes.

    All that is in the file stays as it is. Write secrets as `${VARIABLE}`: they are read from the
    gateway's environment. A gateway that runs on the file has the new tools at once.

    Examples: `gateway add openapi.yaml`, `gateway add https://shop.example/openapi.json --name shop
    --bearer-env SHOP_TOKEN --yes`
    """
    from gateway.cli.config_edits import add_connection
    from gateway.cli.named_apis import Options

    options = Options(bearer_env, tuple(header or ()), base_url)
    add_connection(config, spec, options, name, yes=yes, as_json=as_json)
