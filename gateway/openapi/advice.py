"""What openapi-spec-validator has to say about a definition: advice, never a verdict.

One in ten real definitions fails it and works all the same. It takes seconds a megabyte and raises
whatever it likes, so it runs in a child of its own, and everything it does is turned into problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from jsonschema.exceptions import ValidationError
from jsonschema_path import SchemaPath
from openapi_spec_validator.shortcuts import get_validator_cls

from gateway.model import Problem
from gateway.openapi.document import read_definition
from gateway.text import cut, visible

MAX_ADVICE = 20
_MAX_MESSAGE = 300


def advise(raw: bytes) -> tuple[Problem, ...]:
    """What the validator finds, at most twenty points."""
    definition = read_definition(raw)
    try:
        return tuple(islice(_problems(definition), MAX_ADVICE))
    except RecursionError:
        return (Problem("info", "", "validation skipped: nested too deeply"),)
    except Exception as error:
        # The validator ends in exceptions of all kinds on definitions that are fine to us.
        return (Problem("info", "", f"validation stopped: {type(error).__name__}"),)


def _problems(definition: dict[str, Any]) -> Iterator[Problem]:
    validator = get_validator_cls(definition)
    path = SchemaPath.from_dict(definition, handlers=_NO_RETRIEVAL)
    for error in validator(path).iter_errors():
        yield Problem("info", _where(error), cut(visible(str(_message(error))), _MAX_MESSAGE))


def _refused(uri: str) -> Any:
    raise LookupError(f"references to other documents are not followed: {uri[:100]}")


# A scheme without a handler would be left to urllib: all that it knows are named here.
_NO_RETRIEVAL = dict.fromkeys(("http", "https", "file", "ftp", "data", ""), _refused)


def _where(error: Exception) -> str:
    steps = list(error.absolute_path) if isinstance(error, ValidationError) else []
    return "/" + "/".join(str(step) for step in steps) if steps else ""


def _message(error: Exception) -> str:
    return error.message if isinstance(error, ValidationError) else str(error)
