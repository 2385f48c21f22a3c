"""Sets up what `gateway serve` serves: config.toml, defaults, or APIs that the command line names.

Without a config.toml the demo is served on loopback, the state lies in `state/` here, and a
config.toml that appears is followed. Definitions that are named are served by themselves: nobody
signs in, and the state is in a temporary folder that goes with the process, so that nothing is left
behind. With `--config` they stand beside what the file has. With `--stdio` the client is on
standard input and output: the gateway listens on a free port, for the console, and ends with it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from errno import EACCES
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.cli.named_apis import NamedApi, Options, free_name, without_secrets
from gateway.cli.remote import Remote, carry_messages
from gateway.cli.terminal import Tell, note, show_progress, show_spinner
from gateway.config.file import Adjust, read_settings, refuse_parts, settings_of
from gateway.config.settings import Settings
from gateway.errors import ConfigInvalid
from gateway.telemetry import set_up

Beside = Callable[[str], Coroutine[Any, Any, None]] | None
OPEN = {"auth": {"mode": "none"}}  # safe: the default host is loopback


@dataclass(frozen=True, slots=True)
class Base:
    """The configuration to serve, before the command line's options are applied."""

    settings: Settings
    config: Path  # relative paths count from its folder
    source: str  # the name of its source, for messages
    watched: bool = True


def serve_on(
    specs: Sequence[str],
    config: Path | None,
    options: Options,
    server_options: Mapping[str, Any],
    *,
    stdio: bool,
    worker: bool,
) -> None:
    """Serves until a signal ends it; `server_options` override [server]."""
    set_up()
    if options != Options() and not specs:
        raise ConfigInvalid(["--bearer-env, --header and --base-url go with a SPEC"])
    with ExitStack() as stack:
        base = _find_base(config, specs, stdio, stack)
        with show_spinner("Asking what is there"):
            apis = asyncio.run(_name_apis(specs, options, base))
        names, adjust = [api.name for api in apis], _make_adjust(apis, server_options)
        settings = adjust(base.settings)
        refuse_parts(settings, base.source)
        _refuse_folder(settings, base)
        beside = _open_stdio(settings) if stdio else None
        if settings.server.workers > 1 and not worker:
            from gateway.server import supervise

            sys.exit(supervise(settings, base.config))
        follow = adjust if base.watched else None
        _serve_here(settings, (base.config, "", 0, follow, names), worker, beside)


def _find_base(config: Path | None, specs: Sequence[str], stdio: bool, stack: ExitStack) -> Base:
    file = (config or Path("config.toml")).resolve()
    if config is not None or (file.exists() and not specs):
        return Base(read_settings(config or Path("config.toml")), file, str(config or file.name))
    document: dict[str, Any] = {**OPEN, "demo": {"enabled": not specs}}
    if not specs and not stdio:
        note(
            "There is no config.toml here: this is the demo, on built-in defaults, kept in "
            f"{file.parent / 'state'}.\n`gateway init` writes {file}, which is followed."
        )
        return Base(settings_of(document, "gateway serve"), file, "gateway serve")
    if file.exists():
        note(f"{file} is not used; `--config config.toml` serves these beside what it has.")
    state = TemporaryDirectory(prefix="gateway-", ignore_cleanup_errors=True)
    folder = Path(stack.enter_context(state)).as_posix()
    store = {"url": f"sqlite:///{folder}/gateway.db", "secret_key_file": f"{folder}/secret.key"}
    settings = settings_of({**document, "store": store}, "gateway serve")
    return Base(settings, file, "gateway serve", watched=False)


async def _name_apis(specs: Sequence[str], options: Options, base: Base) -> list[NamedApi]:
    """The APIs of the specs, each with a name that no other connection has."""
    used_names, folder = {*base.settings.connections, "demo"}, base.config.parent
    apis = []
    for spec in specs:
        name = free_name(spec, used_names)
        used_names.add(name)
        apis.append(await options.read(spec, base.settings, folder, name))
        note(f"Serving {without_secrets(spec)} as {name}")
    if not base.watched:
        note("Nothing is kept when this ends; `gateway add SPEC` puts one into config.toml.")
    return apis


def _make_adjust(apis: Sequence[NamedApi], server_options: Mapping[str, Any]) -> Adjust:
    """A function that puts these APIs and the server's options over settings."""
    tables = {api.name: api.table for api in apis}
    added = settings_of({**OPEN, "connections": tables}, "gateway serve").connections
    allow = [network for api in apis for network in api.allow]

    def adjust(settings: Settings) -> Settings:
        network = {"allow": (*settings.network.allow, *allow)}
        return settings.model_copy(
            update={
                "connections": {**settings.connections, **added},
                "network": settings.network.model_copy(update=network),
                "server": settings.server.model_copy(update=server_options),
            }
        )

    return adjust


def _refuse_folder(settings: Settings, base: Base) -> None:
    """Raises ConfigInvalid where the store's folder can't be written to."""
    if (file := settings.store.file_in(base.config.parent)) is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise PermissionError(EACCES, "Permission denied")
    except OSError as error:
        words = f"{file.parent} can't be written to: {error.strerror}"
        advice = "serve from a folder of your own, or set store.url"
        raise ConfigInvalid([f"{base.source}: store.url: {words}; {advice}"]) from error


def _open_stdio(settings: Settings) -> Beside:
    """Keeps standard output for messages alone: later prints go to standard error."""
    token = os.environ.get("GATEWAY_TOKEN")
    if settings.auth.mode != "none" and not token:
        words = (
            f'auth.mode is "{settings.auth.mode}": set GATEWAY_TOKEN to the token of a principal'
        )
        raise ConfigInvalid([f"--stdio: {words}"])
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return lambda url: carry_messages(Remote(url, token), out)


def _serve_here(settings: Settings, place: tuple[Any, ...], worker: bool, beside: Beside) -> None:
    gc.disable()  # while starting: nothing is garbage yet; it is turned on when requests are taken
    with ExitStack() as starting:
        starting.enter_context(show_spinner("Starting the gateway"))
        from gateway.app import Place, serve  # takes a second

        def show_loading(total: int) -> Tell:
            starting.close()
            return show_progress(total)

        serve(settings, Place(*place), show_loading, worker=worker, sidecar=beside)
