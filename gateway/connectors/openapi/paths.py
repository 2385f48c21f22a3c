"""The path an operation is called at, out of the path its definition is filed under.

The template's own text stays as it is: slashes are not tidied, some APIs tell operations apart by
them. Three things are not part of a path: a fixed query (kept, as constants), a fragment (AWS files
several operations under one path so; there is no telling how to call them), and `{connectionId}`
in front, where Microsoft's connectors have it and their gateway fills it in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from gateway.connectors.openapi.document import Operation, Unusable, is_internal
from gateway.connectors.openapi.inputs import Input
from gateway.model import Parameter

_VARIABLE = re.compile(r"\{([^{}]*)\}")
_CONNECTION = "{connectionId}"
# The same for all, so that what is remembered of them is as well.
_TEXT = {"type": "string"}
_SAYS_NOTHING: Mapping[str, Any] = {}


def called_path(
    operation: Operation, inputs: tuple[Input, ...], *, microsoft: bool, arm: bool
) -> tuple[str, list[Parameter]]:
    """The template to fill in, beginning with a slash, and what is always in the query."""
    path, question, query = operation.path.partition("?")
    if "#" in operation.path:
        raise Unusable("its path has a fragment (#), so it has no address of its own")
    if question and ("{" in query or not query):
        raise Unusable("its path has a query (?) with variables in it")
    if _is_microsofts(path, inputs, microsoft, arm):
        path = path.replace(_CONNECTION, "", 1).replace("//", "/", 1)
    _check_braces(path)
    constants = [
        Parameter(name, "query", style="form", explode=True, constant=value)
        for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    ]
    return path if path.startswith("/") else f"/{path}", constants


def path_inputs(path: str, inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """The inputs whose place exists; variables nobody declared are required texts."""
    variables = dict.fromkeys(_VARIABLE.findall(path))
    declared = {each.name for each in inputs if each.place == "path"}
    missing = tuple(
        Input(name, "path", True, _TEXT, _SAYS_NOTHING, "simple", False)
        for name in variables
        if name not in declared
    )
    kept = tuple(each for each in inputs if each.place != "path" or each.name in variables)
    return missing + kept


def _is_microsofts(path: str, inputs: tuple[Input, ...], microsoft: bool, arm: bool) -> bool:
    """A `connectionId` elsewhere than in front, or shown to people, is the API's own."""
    if not path.lstrip("/").startswith(_CONNECTION) or not (microsoft or arm):
        return False
    declared = [each for each in inputs if each.place == "path" and each.name == "connectionId"]
    return arm or not declared or is_internal(declared[0].raw)


def _check_braces(path: str) -> None:
    rest = _VARIABLE.sub("", path)
    if "{" in rest or "}" in rest or "{}" in path:
        raise Unusable("its path has braces that don't match")
