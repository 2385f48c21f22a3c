"""`gateway token`."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated

import typer


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
