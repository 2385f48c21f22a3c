"""The path an operation is called at, out of the path its definition is filed under.

The template's own text stays as it is: slashes are not tidied, some APIs tell operations apart by
them. Three things are not part of a path: a fragment (it only tells operations apart, the address
has none), a query (its variables are parameters, the rest is always sent), and `{connectionId}` in
front, where Microsoft's connectors have it and their gateway fills it in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote_plus

from gateway.blocklist import may_reroute
from gateway.connectors.openapi.document import Operation, Unusable, is_internal
from gateway.connectors.openapi.inputs import MAX_INPUTS, Input
from gateway.model import Parameter, Place

_VARIABLE = re.compile(r"\{([^{}]*)\}")
_CONNECTION = "{connectionId}"
# The same for all, so that what is remembered of them is as well.
_TEXT = {"type": "string"}
_SAYS_NOTHING: Mapping[str, Any] = {}


def called_path(
    operation: Operation, declared: Sequence[Input], *, microsoft: bool, arm: bool
) -> tuple[str, list[Input], list[Parameter]]:
    """The template to fill in, the inputs whose place exists, and what is always in the query."""
    path, _, query = operation.path.partition("#")[0].partition("?")
    if _is_microsofts(path, declared, microsoft, arm):
        path = path.replace(_CONNECTION, "", 1).replace("//", "/", 1)
    inputs, fixed = list(declared), list[Parameter]()
    for pair in query.split("&", MAX_INPUTS) if query else ():
        name, equals, value = pair.partition("=")
        wire = unquote_plus(name) if equals else name.strip("{}")
        if "{" in wire:
            raise Unusable("its path has a query (?) in which a name varies")
        if _VARIABLE.fullmatch(value if equals else name):
            _move(inputs, path, (value or name)[1:-1], "query", wire)
        elif may_reroute(wire, "query"):
            raise Unusable(f"its path has {wire} in it, which makes it another request")
        elif "{" in pair:  # filled in where it stands, in the midst of other text
            for variable in _VARIABLE.findall(pair):
                _move(inputs, path, variable, "path", variable)
            path += f"{'&' if '?' in path else '?'}{pair}"
        elif pair:
            constant = unquote_plus(value)
            fixed.append(Parameter(wire, "query", style="form", explode=True, constant=constant))
    _check_braces(path)
    names = {each.name for each in fixed}
    inputs = [each for each in inputs if each.place != "query" or each.name not in names]
    return path if path.startswith("/") else f"/{path}", list(_with_place(path, inputs)), fixed


def _move(inputs: list[Input], path: str, variable: str, place: Place, name: str) -> None:
    """Put a variable of the query where it belongs, wherever the definition thinks it is."""
    known = ((variable, "path"), (variable, "query"), (name, "query"))
    found = [index for index, each in enumerate(inputs) if (each.name, each.place) in known]
    if not found:
        inputs.append(_undeclared(name, place))
        return
    each = inputs[found[0]]
    moved = replace(each, name=name, place=place, required=each.required or place == "path")
    if each.place == "path" and place == "query" and f"{{{variable}}}" in path:
        inputs.append(moved)  # it is in both
    else:
        inputs[found[0]] = moved


def _with_place(path: str, inputs: Sequence[Input]) -> Iterator[Input]:
    """The inputs that can be sent; variables nobody declared are required texts."""
    variables = dict.fromkeys(_VARIABLE.findall(path))
    declared = {each.name for each in inputs if each.place == "path"}
    yield from (_undeclared(name, "path") for name in variables if name not in declared)
    yield from (each for each in inputs if each.place != "path" or each.name in variables)


def _undeclared(name: str, place: Place) -> Input:
    return Input(name, place, True, _TEXT, _SAYS_NOTHING, "simple", False)


def _is_microsofts(path: str, inputs: Sequence[Input], microsoft: bool, arm: bool) -> bool:
    """A `connectionId` elsewhere than in front, or shown to people, is the API's own."""
    if not path.lstrip("/").startswith(_CONNECTION) or not (microsoft or arm):
        return False
    declared = [each for each in inputs if each.place == "path" and each.name == "connectionId"]
    return arm or not declared or is_internal(declared[0].raw)


def _check_braces(path: str) -> None:
    rest = _VARIABLE.sub("", path)
    if "{" in rest or "}" in rest or "{}" in path:
        raise Unusable("its path has braces that don't match")
