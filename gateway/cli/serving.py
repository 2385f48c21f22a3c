"""What `gateway serve` serves: config.toml, built-in defaults, or what the command line names.

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

from gateway.cli.named import NamedApi, Options, free_name, without_secrets
from gateway.cli.remote import Remote, carry
from gateway.cli.terminal import Tell, note, show_progress, working
from gateway.config.reading import Adjust, read_settings, refuse_parts, settings_of
from gateway.config.settings import Settings
from gateway.errors import ConfigInvalid
from gateway.telemetry import set_up

Beside = Callable[[str], Coroutine[Any, Any, None]] | None
OPEN = {"auth": {"mode": "none"}}  # on loopback, which is the default


@dataclass(frozen=True, slots=True)
class Ground:
    """What is served before options stand over it."""

    settings: Settings
    config: Path  # relative paths count from its folder
    source: str  # what stands before problems
    watched: bool = True


def serve_on(
    specs: Sequence[str],
    config: Path | None,
    options: Options,
    over: Mapping[str, Any],
    *,
    stdio: bool,
    worker: bool,
) -> None:
    """Serves until a signal ends it; `over` stands over [server]."""
    set_up()
    if options != Options() and not specs:
        raise ConfigInvalid(["--bearer-env, --header and --base-url go with a SPEC"])
    with ExitStack() as ending:
        ground = _find_ground(config, specs, stdio, ending)
        with working("Asking what is there"):
            apis = asyncio.run(_name_apis(specs, options, ground))
        names, adjust = [api.name for api in apis], _adjuster(apis, over)
        settings = adjust(ground.settings)
        refuse_parts(settings, ground.source)
        _refuse_folder(settings, ground)
        beside = _client_on_stdio(settings) if stdio else None
        if settings.server.workers > 1 and not worker:
            from gateway.server import supervise

            sys.exit(supervise(settings, ground.config))
        follow = adjust if ground.watched else None
        _serve_here(settings, (ground.config, "", 0, follow, names), worker, beside)


def _find_ground(
    config: Path | None, specs: Sequence[str], stdio: bool, ending: ExitStack
) -> Ground:
    file = (config or Path("config.toml")).resolve()
    if config is not None or (file.exists() and not specs):
        return Ground(read_settings(config or Path("config.toml")), file, str(config or file.name))
    document: dict[str, Any] = {**OPEN, "demo": {"enabled": not specs}}
    if not specs and not stdio:
        note(
            "There is no config.toml here: this is the demo, on built-in defaults, kept in "
            f"{file.parent / 'state'}.\n`gateway init` writes {file}, which is followed."
        )
        return Ground(settings_of(document, "gateway serve"), file, "gateway serve")
    if file.exists():
        note(f"{file} is not used; `--config config.toml` serves these beside what it has.")
    state = TemporaryDirectory(prefix="gateway-", ignore_cleanup_errors=True)
    folder = Path(ending.enter_context(state)).as_posix()
    store = {"url": f"sqlite:///{folder}/gateway.db", "secret_key_file": f"{folder}/secret.key"}
    settings = settings_of({**document, "store": store}, "gateway serve")
    return Ground(settings, file, "gateway serve", watched=False)


async def _name_apis(specs: Sequence[str], options: Options, ground: Ground) -> list[NamedApi]:
    """What is named, each with a name that no other has."""
    taken, folder = {*ground.settings.connections, "demo"}, ground.config.parent
    apis = []
    for what in specs:
        name = free_name(what, taken)
        taken.add(name)
        apis.append(await options.read(what, ground.settings, folder, name))
        note(f"Serving {without_secrets(what)} as {name}")
    if not ground.watched:
        note("Nothing is kept when this ends; `gateway add SPEC` puts one into config.toml.")
    return apis


def _adjuster(apis: Sequence[NamedApi], over: Mapping[str, Any]) -> Adjust:
    """What puts these APIs, and what is said of the server, over settings."""
    tables = {api.name: api.table for api in apis}
    named = settings_of({**OPEN, "connections": tables}, "gateway serve").connections
    allow = [network for api in apis for network in api.allow]

    def adjust(settings: Settings) -> Settings:
        network = {"allow": (*settings.network.allow, *allow)}
        return settings.model_copy(
            update={
                "connections": {**settings.connections, **named},
                "network": settings.network.model_copy(update=network),
                "server": settings.server.model_copy(update=over),
            }
        )

    return adjust


def _refuse_folder(settings: Settings, ground: Ground) -> None:
    """Raises ConfigInvalid where the store's folder can't be written to."""
    if (file := settings.store.file_in(ground.config.parent)) is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise PermissionError(EACCES, "Permission denied")
    except OSError as error:
        words = f"{file.parent} can't be written to: {error.strerror}"
        advice = "serve from a folder of your own, or set store.url"
        raise ConfigInvalid([f"{ground.source}: store.url: {words}; {advice}"]) from error


def _client_on_stdio(settings: Settings) -> Beside:
    """Has standard streams for messages alone: what is printed from now on is for errors."""
    token = os.environ.get("GATEWAY_TOKEN")
    if settings.auth.mode != "none" and not token:
        words = (
            f'auth.mode is "{settings.auth.mode}": set GATEWAY_TOKEN to the token of a principal'
        )
        raise ConfigInvalid([f"--stdio: {words}"])
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return lambda url: carry(Remote(url, token), out)


def _serve_here(settings: Settings, place: tuple[Any, ...], worker: bool, beside: Beside) -> None:
    gc.disable()  # while starting: nothing is garbage yet; it is turned on when requests are taken
    with ExitStack() as starting:
        starting.enter_context(working("Starting the gateway"))
        from gateway.app import Place, serve  # takes a second

        def loading(total: int) -> Tell:
            starting.close()
            return show_progress(total)

        serve(settings, Place(*place), loading, worker=worker, beside=beside)
