"""Arguments made up from a tool's listed schema, as a program would that knows nothing else.

Three ways: only what is required, everything there is, and a draw at random. What comes out is
checked against the schema; a schema that nothing fits after some tries gives None.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import jsonschema_rs
import orjson
from faker import Faker
from jsf import JSF

WAYS = {"required": 1.0, "all": 0.0, "random": 0.5}  # the share of what may be left out that is
TRIES = 12
DEEP = 4  # levels, from which on only what is required is given
BYTES = (b'"contentEncoding":"base64"', b'"const":"AAE="')  # the first is foreign to the library
ODD = "abcXYZ019 -_.~/&=+?#:;,'\"<>{}[]()|@!$*"


def made_up(schema: Mapping[str, Any], way: str, seed: object) -> dict[str, Any] | None:
    """Arguments that fit the schema."""
    known = orjson.loads(orjson.dumps(schema).replace(*BYTES))
    validator = jsonschema_rs.Draft202012Validator(known, offline=True, validate_formats=True)
    for turn in range(TRIES):
        random.seed(f"{seed} {turn}")
        Faker.seed(f"{seed} {turn}")
        left_out = WAYS[way] if turn < TRIES // 2 else turn / TRIES
        try:
            arguments = JSF(
                known, allow_none_optionals=left_out, max_recursive_depth=DEEP
            ).generate()
        except Exception:  # the library does not get on with every schema
            continue
        if isinstance(arguments, dict) and validator.is_valid(arguments):
            if way != "required":
                _write_odd_texts(arguments, partial(validator.is_valid, arguments))
            return arguments
    return None


def _write_odd_texts(value: Any, fits: Any) -> None:
    """Gives texts that may be any the letters that addresses and forms must escape."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(inner, (dict, list)):
            _write_odd_texts(inner, fits)
        elif isinstance(inner, str):
            value[key] = f"a{''.join(random.choices(ODD, k=random.randrange(10)))}z"
            if not fits():
                value[key] = inner
