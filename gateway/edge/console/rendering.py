"""Templates: escaped always, and a name that is missing is an error, not a blank."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gateway import __version__
from gateway.edge.console.assets import address_of
from gateway.edge.console.words import FILTERS

TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    """The one environment, made at the first page."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(FILTERS)
    made.globals.update(asset=address_of, version=__version__, now=time.time)
    return made


def render(template: str, **values: Any) -> str:
    """A template with these values."""
    return environment().get_template(template).render(values)
