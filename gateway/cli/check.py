"""`gateway check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.serve import ConfigOption
from gateway.config.connection import ManifestConnection
from gateway.config.reading import read_settings
from gateway.config.settings import Settings
from gateway.errors import ConfigInvalid, DefinitionUnreadable
from gateway.model import TlsFiles


def check(
    config: ConfigOption = Path("config.toml"),
    replay: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Rehearse it on the last N recorded calls."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Validate the configuration, its manifests and its certificates without starting.

    Exit 0, or 2 with file, key, what is wrong and what is allowed. Names that match nothing, and
    permissions that were put over stricter ones, are warnings. With `--replay N` it also says which
    of the last N recorded calls this configuration would have refused or asked about.

    Examples: `gateway check --config config.toml`, `gateway check --replay 1000`
    """
    try:
        settings = read_settings(config)
        _check_files(settings, config)
    except ConfigInvalid as error:
        if as_json:
            import orjson

            print(orjson.dumps({"valid": False, "problems": list(error.problems)}).decode())
            raise typer.Exit(2) from error
        raise
    if replay is None:
        _report(settings, config, _warnings(settings, config.resolve()), as_json)
    else:
        _rehearse(settings, config, replay, as_json)


def _rehearse(settings: Settings, config: Path, calls: int, as_json: bool) -> None:
    import asyncio
    from dataclasses import asdict

    from gateway.cli.rehearsal import rehearse_recorded
    from gateway.cli.remote import show_json, show_table

    found = asyncio.run(rehearse_recorded(settings, config.resolve(), calls))
    rows = [asdict(each) for each in found]
    if as_json:
        show_json({"valid": True, "replayed": rows})
        return
    columns = {
        "tool": "Tool",
        "principal": "Who",
        "status": "Was",
        "outcome": "Would be",
        "reason": "Why",
        "execution": "Execution",
    }
    show_table(rows, columns)
    print(f"{len(rows)} of the last {calls} recorded calls would not simply have gone through")


def _check_files(settings: Settings, config: Path) -> None:
    if problems := [*_manifest_problems(settings, config), *_tls_problems(settings, config)]:
        raise ConfigInvalid(problems)


def _tls_problems(settings: Settings, config: Path) -> list[str]:
    from gateway.outbound.dialling import tls_problem

    folder, network = config.parent, TlsFiles(ca_file=settings.network.ca_file)
    tables = {"network": network} | {
        f"connections.{name}.tls": connection.tls_files
        for name, connection in settings.connections.items()
    }
    found = ((where, tls_problem(folder, tls)) for where, tls in tables.items())
    return [f"{config}: {where}.{problem}" for where, problem in found if problem]


def _manifest_problems(settings: Settings, config: Path) -> list[str]:
    from gateway.connectors.manifest import load_builtin, parse_manifest, region_problem

    problems: list[str] = []
    for name, connection in settings.connections.items():
        if not isinstance(connection, ManifestConnection):
            continue
        where = f"{config}: connections.{name}.manifest"
        try:
            if "/" in connection.manifest or connection.manifest.endswith(".toml"):
                raw = (config.parent / connection.manifest).read_bytes()
            else:
                raw = load_builtin(connection.manifest)
            manifest = parse_manifest(raw, connection.manifest)
            if problem := region_problem(manifest, connection.region):
                problems.append(f"{config}: connections.{name}.region: {problem}")
        except DefinitionUnreadable as error:
            problems.append(f"{config}: connections.{name}.{error.message} {error.hint}")
        except OSError as error:
            problems.append(f"{where}: {connection.manifest} can't be read: {error.strerror}")
        except ConfigInvalid as error:
            problems += error.problems
    return problems


def _warnings(settings: Settings, config: Path) -> list[tuple[str, str]]:
    """Key path and what does not hold there, as far as it can be known without starting."""
    import asyncio
    import logging

    from gateway.cli.inspect import upstreams_over
    from gateway.cli.rehearsal import find_problems
    from gateway.cli.remote import quiet
    from gateway.outbound.client import Egress

    async def found() -> list[tuple[str, str]]:
        way_out = Egress(**settings.network.rules, folder=config.parent)
        async with way_out as egress, upstreams_over(egress) as upstreams:
            return await find_problems(settings, config, egress, upstreams.read)

    quiet(logging.ERROR)
    return asyncio.run(found())


def _report(
    settings: Settings, config: Path, warnings: list[tuple[str, str]], as_json: bool
) -> None:
    counts = {
        "connections": len(settings.connections) + settings.demo.enabled,
        "principals": len(settings.principals),
        "bundles": len(settings.bundles),
    }
    if as_json:
        import orjson

        shown = [{"where": where, "message": message} for where, message in warnings]
        print(orjson.dumps({"valid": True, **counts, "warnings": shown}).decode())
    else:
        for where, message in warnings:
            print(f"{config}: warning: {where}: {message}")
        print(f"{config}: fine ({', '.join(f'{n} {noun}' for noun, n in counts.items())})")
