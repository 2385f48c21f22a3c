"""Principals, roles, bundles and routes from a terminal: the same four commands for each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from gateway.cli.remote import Remote, completes, remote_command, segment
from gateway.cli.terminal import show_details, show_table
from gateway.cli.tools import parse_arguments

KINDS = {  # by kind: its purpose, its columns beside the name, an example of a put
    "principals": ("Who may call, and as what.", "role organization admin", "agent new_token=true"),
    "roles": ("Which bundles a role has.", "bundles", "reader bundles='[\"reading\"]'"),
    "bundles": (
        "Selections of tools.",
        "mode connections allow deny",
        "reading connections='[\"shop\"]' allow='[\"list_*\"]'",
    ),
    "routes": (
        "What a workflow's steps give a role.",
        "settings",
        "hiring/reader screen='[\"a\"]'",
    ),
}


def _known_names(ctx: typer.Context, incomplete: str) -> list[str]:
    kind = ctx.parent.info_name if ctx.parent else None
    return completes(f"/{kind}", "name")(ctx, incomplete)


RightName = Annotated[
    str, typer.Argument(help="Its name; a route's is WORKFLOW/ROLE.", autocompletion=_known_names)
]
KeyValues = Annotated[list[str] | None, typer.Argument(help="key=value …, or one JSON object.")]


def _commands(kind: str, purpose: str, columns: str, example: str) -> typer.Typer:
    """The commands for one kind, with help texts that name the kind."""
    group, noun = typer.Typer(help=purpose, no_args_is_help=True), kind.removesuffix("s")

    def list_all(gateway: Remote) -> None:
        found = gateway.rest("GET", f"/{kind}")
        rows = [{**row["settings"], **row} for row in found[kind]]
        all_columns = f"name origin {columns} updated_by updated_at"
        empty = f"There is none.\n`gateway {kind} put {example}` makes one."
        gateway.show(found, lambda: show_table(rows, all_columns, empty))

    def show(gateway: Remote, name: RightName) -> None:
        found = gateway.rest("GET", _path(kind, name))
        gateway.show(found, lambda: show_details(found))

    def put(
        gateway: Remote,
        name: RightName,
        settings: KeyValues = None,
        dry_run: Annotated[bool, typer.Option(help="Only show who would see what.")] = False,
    ) -> None:
        query = {"dry_run": "true"} if dry_run else None
        answer = gateway.rest("PUT", _path(kind, name), parse_arguments(settings or []), query)
        gateway.show(answer, lambda: _print_plan(answer) if dry_run else _print_put(answer))

    def delete(gateway: Remote, name: RightName) -> None:
        gateway.act("DELETE", _path(kind, name), "{name} is deleted")

    words: dict[str, tuple[Callable[..., None], str, str]] = {
        "list": (list_all, f"List the {kind} of config.toml, and those that were put.", ""),
        "show": (show, f"Show one of the {kind}.", f" {example.split()[0]}"),
        "put": (put, f"Add or replace a {noun} beside those of config.toml.", f" {example}"),
        "delete": (delete, f"Delete a {noun} that was put.", f" {example.split()[0]}"),
    }
    for name, (function, does, arguments) in words.items():
        function.__doc__ = f"{does}\n\nExample: `gateway {kind} {name}{arguments}`"
        remote_command(group, name)(function)
    return group


def _path(kind: str, name: str) -> str:
    parts = name.split("/", 1) if kind == "routes" else [name]
    return "/".join([f"/{kind}", *map(segment, parts)])


def _print_put(answer: dict[str, Any]) -> None:
    print(f"{answer['name']} is put")
    if "token" in answer:
        print(f"token: {answer['token']}\nIt is shown this once: give it to the client now.")


def _print_plan(answer: dict[str, Any]) -> None:
    if "gives" in answer:
        gives = answer["gives"]
        print(f"It gives {len(gives['tools'])} tools, ≈ {gives['tokens']:,} tokens.")
    show_table(answer["principals"], "principal more fewer tools tokens", "Nobody sees a change.")


groups = {kind: _commands(kind, *words) for kind, words in KINDS.items()}
