"""Client profiles: how a client is served, by the name it gives itself.

The profiles of config.toml come before the shipped ones (`clients.toml` beside this file), each in
the order they are written in; the first whose glob fits the name counts, whole. A name is the
client's own claim: it chooses how answers are written, never which tools may be seen or called.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

from gateway.config.settings import Profile, Results
from gateway.limits import CHARS_A_TOKEN

SHIPPED = Path(__file__).with_name("clients.toml")
Format = Literal["full", "bare", "plain"]  # of a tool's entry: bare is without its output schema


class ShippedProfile(Profile):
    """A profile that comes with the gateway."""

    why: str
    date: str


@dataclass(frozen=True, slots=True)
class Serving:
    """The way a client of a profile is served: looked up for each request."""

    form: Format
    results: Results
    page_tools: int | None
    max_output_chars: int | None
    takes_all: bool  # results go out as they are


def profiles_of(configured: Mapping[str, Profile]) -> Iterator[tuple[str, Profile]]:
    """Every profile with its name, in the order in which they are tried."""
    yield from ((name, each) for name, each in configured.items() if each.match is not None)
    yield from shipped_profiles().items()


def find_serving(configured: Mapping[str, Profile], client: str) -> Serving:
    """The serving of a client that calls itself `name/version`."""
    name = client.rpartition("/")[0].lower()
    fitting = (each for _, each in profiles_of(configured) if name and _fits(name, each))
    return serving_of(next(fitting, Profile()))


def _fits(name: str, profile: Profile) -> bool:
    return fnmatchcase(name, (profile.match or "").lower())


def serving_of(profile: Profile) -> Serving:
    """The serving that a profile asks for."""
    form: Format = "bare" if profile.results == "text" else "full"
    tokens = profile.max_output_tokens
    return Serving(
        "plain" if profile.schema_ == "plain" else form,
        profile.results,
        profile.page_tools,
        None if tokens is None else int(tokens * CHARS_A_TOKEN),
        profile.results == "both" and tokens is None,
    )


@cache
def shipped_profiles() -> Mapping[str, ShippedProfile]:
    """The profiles that come with the gateway, for clients that people use."""
    tables = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))["clients"]
    return {name: ShippedProfile.model_validate(table) for name, table in tables.items()}
