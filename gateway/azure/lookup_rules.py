"""A definition's rules for looking an input up: reading them, their calls, their answers. Pure.

Microsoft's connectors say it in several ways: `x-ms-dynamic-values` and `-list` for one list,
`-tree` and the capability file-picker for folders, `-schema` and `-properties` for the shape of a
body. Each comes down to calls of another operation (`Step`) with arguments that are literal, taken
from another input, or from the folder that was chosen. Where the old form and the new one stand
side by side, the new one is used: it is the unambiguous one.

Rules speak of the names in the definition; a tool's inputs may be called otherwise, be filled in by
the connection, or be fixed: `call_of` translates both sides by how the tool's request is made up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import orjson

from gateway.blocklist import has_dot_segments
from gateway.errors import Fixable, GatewayError
from gateway.limits import LOOKED_UP_DEPTH
from gateway.model import Build, HttpOperation, Parameter, Tool, digest
from gateway.openapi.document import mapping, text_of
from gateway.outbound.client import locate

MISSING = object()
# Keys of a rule: the list's path, and in an item the value's, its title's and the folder mark's.
_OLD = ("value-collection", "value-path", "value-title", "")
_NEW = ("itemsPath", "itemValuePath", "itemTitlePath", "itemIsParent")
_EQUALS = re.compile(r"\(?\s*([\w/.@$-]+)\s+eq\s+('?)([^')]*)\2\s*\)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Literal:
    """An argument whose value the definition itself gives."""

    value: Any


@dataclass(frozen=True, slots=True)
class Reference:
    """An argument that is another input of the tool: a parameter's name, then a path into it."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FolderPart:
    """An argument that is part of the folder that was chosen."""

    path: str


Argument = Literal | Reference | FolderPart


@dataclass(frozen=True, slots=True)
class Step:
    """One call that a look-up makes, and where in its answer to look."""

    operation: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    items: str = ""  # paths are JSON pointers without the first slash; "": the whole
    value: str = ""
    title: str = ""
    is_parent: str = ""  # `(IsFolder eq true)`, or the name of a property that is true


@dataclass(frozen=True, slots=True)
class Rule:
    """How the values of one input are found."""

    first: Step
    below: Step | None = None  # of a tree: what is inside a folder
    parents: bool = True  # whether folders may be chosen
    leaves: bool = True


def values_rule(name: str, rules: Mapping[str, Any]) -> Rule:
    """The rule for an input's values; raises Fixable where no rule can be followed."""
    old = mapping(rules.get("x-ms-dynamic-values"))
    if tree := mapping(rules.get("x-ms-dynamic-tree")):
        return _tree_rule(tree)
    if new := mapping(rules.get("x-ms-dynamic-list")):
        return Rule(_step(new, _NEW))
    if capability := old.get("capability"):
        picker = mapping(mapping(rules.get("x-ms-capabilities")).get(capability))
        if picker:
            return _picker_rule(old, picker)
    if built_in := old.get("builtInOperation"):
        raise Fixable(
            "invalid_arguments",
            f"{name} is looked up in Microsoft's directory ({built_in}), which is not connected",
            "Give the value itself: an e-mail address or an id.",
        )
    return Rule(_check_step(name, _step(old, _OLD)))


def schema_step(name: str, rules: Mapping[str, Any]) -> Step | None:
    """The call that gives the shape of an input, if the definition has one."""
    forms = (("x-ms-dynamic-properties", _NEW), ("x-ms-dynamic-schema", _OLD))
    for form, keys in forms:
        if rule := mapping(rules.get(form)):
            step = _check_step(name, _step(rule, keys))
            return replace(step, items=step.value)
    return None


def _tree_rule(tree: Mapping[str, Any]) -> Rule:
    settings, browse = mapping(tree.get("settings")), mapping(tree.get("browse"))
    return Rule(
        _check_step("it", _step(mapping(tree.get("open")), _NEW)),
        _step(browse, _NEW) if browse else None,
        settings.get("canSelectParentNodes") is not False,
        settings.get("canSelectLeafNodes") is not False,
    )


def _picker_rule(rule: Mapping[str, Any], picker: Mapping[str, Any]) -> Rule:
    """A file-picker serves the whole document; each input's rule may give its parameters."""
    own = mapping(rule.get("parameters"))

    def step(entry: Mapping[str, Any]) -> Step:
        arguments = {
            name: _argument(own.get(text_of(mapping(value).get("parameter")), value))
            for name, value in mapping(entry.get("parameters")).items()
        }
        return Step(
            text_of(entry.get("operationId")),
            arguments,
            text_of(picker.get("value-collection")),
            text_of(rule.get("value-path")) or "Id",
            text_of(picker.get("value-title")),
            text_of(picker.get("value-folder-property")),
        )

    browse = mapping(picker.get("browse"))
    folders = own.get("isFolder") is True
    first = _check_step("it", step(mapping(picker.get("open"))))
    return Rule(first, step(browse) if browse else None, folders, not folders)


def _step(rule: Mapping[str, Any], keys: Sequence[str]) -> Step:
    items, value, title, parent = (text_of(rule.get(key)) for key in keys)
    arguments = {name: _argument(v) for name, v in mapping(rule.get("parameters")).items()}
    return Step(text_of(rule.get("operationId")), arguments, items, value, title or value, parent)


def _check_step(name: str, step: Step) -> Step:
    if not step.operation:
        raise Fixable(
            "invalid_arguments",
            f"the definition does not say how {name or 'it'} is looked up",
            "Give the value itself.",
        )
    return step


def _argument(value: Any) -> Argument:
    entry = mapping(value)
    for key in ("parameter", "parameterReference"):
        if isinstance(entry.get(key), str):
            return Reference(tuple(part for part in entry[key].split("/") if part))
    for key in ("selectedItemValuePath", "value-property"):
        if isinstance(entry.get(key), str):
            return FolderPart(entry[key])
    return Literal(entry.get("value", value))


# --- the call of a step ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnownInputs:
    """The inputs of a tool that the caller has given, and those that the gateway fills in."""

    tool: Tool
    values: Mapping[str, Any]
    injected: Mapping[str, Any]
    node: Any = None  # the folder that was chosen


@dataclass(frozen=True, slots=True)
class Call:
    """A tool to be called, and its arguments."""

    tool: Tool
    arguments: Mapping[str, Any]


def call_of(step: Step, target: Tool, inputs: KnownInputs, input_name: str) -> Call:
    """The call that a step makes; raises Fixable for what must be known first."""
    assert target.http is not None
    required = orjson.loads(target.input_schema).get("required", ())
    arguments: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    missing: list[str] = []
    for name, argument in step.arguments.items():
        place = _place(target.http, tuple(part for part in name.split("/") if part))
        value = _argument_value(argument, inputs)
        if value is MISSING:
            if place is not None and place.argument in required:
                missing.append(_input_name(argument, inputs))
        elif place is not None and value is not None:
            _put_value(arguments, fixed, place, value)
    if missing:
        raise _missing_inputs(inputs.tool, input_name, missing)
    return Call(_with_fixed(target, fixed), arguments)


def _argument_value(argument: Argument, inputs: KnownInputs) -> Any:
    if isinstance(argument, Literal):
        return argument.value
    if isinstance(argument, Reference):
        return _input_value(inputs, argument.path)
    if isinstance(inputs.node, dict):  # as `entry_of` made it: the path is its key
        return inputs.node.get(argument.path, walk(inputs.node, argument.path))
    return MISSING if inputs.node is None else inputs.node


def _input_value(inputs: KnownInputs, path: Sequence[str]) -> Any:
    """The value of an input that a rule names, from wherever it is known."""
    assert inputs.tool.http is not None
    place = _place(inputs.tool.http, path)
    if place is None:
        return walk(inputs.values, path)
    value = {**inputs.injected, **inputs.values}.get(place.argument or "", place.constant)
    return MISSING if value is None else walk(value, place.rest)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value goes in a request: an argument, or a name whose value is fixed."""

    name: str
    argument: str | None
    constant: Any = None
    rest: tuple[str, ...] = ()


def _place(http: HttpOperation, path: Sequence[str]) -> _Place | None:
    """The place that a rule's name means: a parameter, or a property of the body."""
    if not path:
        return None
    name, *rest = path
    for parameter in http.parameters:
        if parameter.name == name:
            return _Place(name, parameter.argument, parameter.constant, tuple(rest))
    body = http.body
    if body is None:
        return None
    if body.whole is not None:
        return _Place("", body.whole, rest=tuple(rest))
    for names, inner in ((rest[:1], rest[1:]), ([name], rest)):
        for part in body.fields:
            if [part.name] == names:
                return _Place(part.name, part.argument, rest=tuple(inner))
    return None


def _put_value(arguments: dict[str, Any], fixed: dict[str, Any], place: _Place, value: Any) -> None:
    if place.argument is None:
        fixed[place.name] = value
        return
    *outer, last = place.argument, *place.rest
    for part in outer:
        arguments = arguments.setdefault(part, {})
    arguments[last] = value


def _with_fixed(tool: Tool, fixed: Mapping[str, Any]) -> Tool:
    """The tool with these values for the parameters that its callers can't give."""
    if not fixed or tool.http is None:
        return tool
    parameters = tuple(
        replace(parameter, constant=fixed[parameter.name])
        if parameter.argument is None and parameter.name in fixed
        else parameter
        for parameter in tool.http.parameters
    )
    return replace(tool, http=replace(tool.http, parameters=parameters))


def _input_name(argument: Argument, inputs: KnownInputs) -> str:
    """The tool's own name for the input that an argument comes from."""
    if not isinstance(argument, Reference):
        return "the folder to open"
    assert inputs.tool.http is not None
    place = _place(inputs.tool.http, argument.path) or _Place("", None)
    return "/".join((place.argument or argument.path[-1], *place.rest))


def _missing_inputs(tool: Tool, input_name: str, missing: Sequence[str]) -> Fixable:
    names = list(dict.fromkeys(missing))
    rules = orjson.loads(tool.lookups)
    with_rules = [name for name in names if name.partition("/")[0] in rules]
    hint = f"Look up {with_rules[0]} first, or give it." if with_rules else "Give them in `known`."
    words = f"to look up {input_name or 'the schema'}, `known` must hold {', '.join(names)}"
    return Fixable("invalid_arguments", words, hint, needed=names)


# --- reading an answer ----------------------------------------------------------------------------


def items_of(answer: Any, path: str) -> Sequence[Any]:
    """The list at the step's path; where there is none, the first list of the answer."""
    part = walk(answer, path)
    if isinstance(part, list):
        return part
    inside = part if isinstance(part, Mapping) else answer
    values = inside.values() if isinstance(inside, Mapping) else ()
    return next((value for value in values if isinstance(value, list)), ())


def entry_of(item: Any, step: Step, rule: Rule) -> dict[str, Any] | None:
    """A value as a look-up lists it; None where the item has none."""
    value = walk(item, step.value) if isinstance(item, Mapping) else item
    if value is MISSING or value is None:
        return None
    title = walk(item, step.title) if isinstance(item, Mapping) else item
    label = str(value) if title in (MISSING, None) or isinstance(title, (dict, list)) else title
    entry: dict[str, Any] = {"value": value, "title": str(label)}
    if rule.below is None:
        return entry
    is_folder = is_parent(item, step.is_parent)
    if is_folder:
        paths = [a.path for a in rule.below.arguments.values() if isinstance(a, FolderPart)]
        entry |= {"folder": True, "node": {path: walk(item, path) for path in paths}}
    if not (rule.parents if is_folder else rule.leaves):
        entry["selectable"] = False
    return entry


def is_parent(item: Any, condition: str) -> bool:
    """Whether an item is a folder; the condition is a property or `(IsFolder eq true)`."""
    if not condition:
        return False
    equation = _EQUALS.fullmatch(condition.strip())
    if equation is None:
        return walk(item, condition) is True
    value = walk(item, equation[1])
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text == (equation[3].lower() if isinstance(value, bool) else equation[3])


def walk(value: Any, path: str | Sequence[str]) -> Any:
    """The value at this path, or MISSING."""
    parts = [part for part in path.split("/") if part] if isinstance(path, str) else path
    for part in parts:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value


def fill_in(schema: dict[str, Any], argument: str, found: dict[str, Any]) -> None:
    """Puts a looked-up schema in place of an argument's, or of the body's properties."""
    inner = _as_schema(found)
    properties = schema.setdefault("properties", {})
    if argument:
        words = {
            key: value
            for key, value in properties.get(argument, {}).items()
            if key in ("title", "description")
        }
        properties[argument] = {**inner, **words}
        return
    for name, value in inner.get("properties", {}).items():
        if isinstance(properties.get(name), dict) and isinstance(value, dict):
            properties[name] = {**properties[name], **value}


def _as_schema(found: dict[str, Any]) -> dict[str, Any]:
    """A schema, also where the answer is only the map of its properties."""
    is_schema = isinstance(found.get("type"), (str, list)) or any(
        isinstance(found.get(key), (dict, list)) for key in ("properties", "items", "allOf")
    )
    plain = _clean_schema(found if is_schema else {"type": "object", "properties": found}, 0)
    assert isinstance(plain, dict)
    return plain


def _clean_schema(value: Any, depth: int) -> Any:
    """The schema without references, which lead nowhere here, and without `x-ms-` keys."""
    if depth > LOOKED_UP_DEPTH:
        return {}
    if isinstance(value, list):
        return [_clean_schema(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {
        key: _clean_schema(item, depth + 1)
        for key, item in value.items()
        if not key.startswith("x-ms-") and key != "$ref" and item is not None
    }
    summary = value.get("x-ms-summary")
    if isinstance(summary, str) and summary:
        schema.setdefault("title", summary)
    if not isinstance(schema.get("required", []), list):
        del schema["required"]
    return schema


# --- the next page --------------------------------------------------------------------------------


def next_link(answer: Any) -> str:
    """The link to the next page that an answer gives; empty without one."""
    for name in ("nextLink", "@odata.nextLink", "odata.nextLink", "@nextLink"):
        link = answer.get(name) if isinstance(answer, Mapping) else None
        if isinstance(link, str) and link:
            return link
    return ""


def next_page(tool: Tool, link: str, build: Build | None) -> Call | None:
    """The call that reads the next page; None where the link leads somewhere else.

    A link is not trusted: it becomes a request under the connection's own base URL
    again, checked like any other, or it is not followed.
    """
    http = tool.http
    if http is None or build is None or tool.method != "GET":
        return None
    base = build.links_base or http.base_url
    path = _path_below(base, urljoin(f"{base}/", link))
    if path is None or "{" in path or has_dot_segments(path):
        return None
    if build.links_base and tool.path.lstrip("/").startswith("{connectionId}"):
        path = "/" + path.removeprefix("/").partition("/")[2]  # its key, which Azure fills in
    query = tuple(
        Parameter(name, "query", style="form", explode=True, constant=value)
        for name, value in parse_qsl(urlsplit(link).query, keep_blank_values=True)
    )
    headers = tuple(p for p in http.parameters if p.place == "header" and p.argument is None)
    page = replace(http, path=path, parameters=query + headers, body=None)
    # Its arguments are all in the link, so it is not checked against the tool's own schema.
    fingerprint = digest(f"{tool.fingerprint} next".encode())
    next_tool = replace(tool, http=page, input_schema=b'{"type":"object"}', fingerprint=fingerprint)
    return Call(next_tool, {})


def _path_below(base: str, link: str) -> str | None:
    """The rest of a link's path below the base on the same host; else None."""
    prefix = urlsplit(base).path.rstrip("/") + "/"
    try:
        is_here = locate(base).origin() == locate(link).origin()
    except GatewayError:
        return None
    path = urlsplit(link).path
    return f"/{path.removeprefix(prefix)}" if is_here and path.startswith(prefix) else None
