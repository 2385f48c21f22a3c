"""What a definition says of looking an input up: read, filled in, and read off the answer. Pure.

Microsoft's connectors say it in several ways: `x-ms-dynamic-values` and `-list` for one list,
`-tree` and the capability file-picker for folders, `-schema` and `-properties` for the shape of a
body. Each comes down to calls of another operation (`Step`) with arguments that are literal, taken
from another input, or from the folder that was chosen. Where the old form and the new one stand
side by side, the new one is used: it is the unambiguous one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.errors import Fixable

MISSING = object()
_VALUES = "x-ms-dynamic-values"
_EQUALS = re.compile(r"\(?\s*([\w/.@$-]+)\s+eq\s+('?)([^')]*)\2\s*\)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Literal:
    """An argument the definition itself gives."""

    value: Any


@dataclass(frozen=True, slots=True)
class Reference:
    """An argument that is another input of the tool: a parameter's name, then a path into it."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Selected:
    """An argument that is part of the folder that was chosen."""

    path: str


Argument = Literal | Reference | Selected


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
    """The rule for an input's values; raises Fixable where there is none that can be followed."""
    old = _mapping(rules.get(_VALUES))
    if tree := _mapping(rules.get("x-ms-dynamic-tree")):
        return _tree(tree)
    if new := _mapping(rules.get("x-ms-dynamic-list")):
        return Rule(_new_step(new))
    if capability := old.get("capability"):
        picker = _mapping(_mapping(rules.get("x-ms-capabilities")).get(capability))
        if picker:
            return _picker(old, picker)
    if built_in := old.get("builtInOperation"):
        raise Fixable(
            "invalid_arguments",
            f"{name} is looked up in Microsoft's directory ({built_in}), which is not connected",
            "Give the value itself: an e-mail address or an id.",
        )
    if not isinstance(old.get("operationId"), str):
        raise _unclear(name)
    return Rule(_old_step(old))


def schema_step(name: str, rules: Mapping[str, Any]) -> Step | None:
    """The call that gives the shape of an input, if the definition has one."""
    if new := _mapping(rules.get("x-ms-dynamic-properties")):
        return _checked(name, replace(_new_step(new), items=_text(new.get("itemValuePath"))))
    if old := _mapping(rules.get("x-ms-dynamic-schema")):
        return _checked(name, replace(_old_step(old), items=_text(old.get("value-path"))))
    return None


def steps(rules: Mapping[str, Any]) -> Iterator[Step]:
    """Every call that these rules may lead to."""
    try:
        rule = values_rule("", rules)
        yield from (step for step in (rule.first, rule.below) if step)
    except Fixable:
        pass
    if (step := schema_step("", rules)) is not None:
        yield step


def _tree(tree: Mapping[str, Any]) -> Rule:
    settings, browse = _mapping(tree.get("settings")), _mapping(tree.get("browse"))
    return Rule(
        _checked("it", _new_step(_mapping(tree.get("open")))),
        _new_step(browse) if browse else None,
        settings.get("canSelectParentNodes") is not False,
        settings.get("canSelectLeafNodes") is not False,
    )


def _picker(rule: Mapping[str, Any], picker: Mapping[str, Any]) -> Rule:
    """A file-picker is one for the whole document; what it asks for, each input's rule may give."""
    given = _mapping(rule.get("parameters"))

    def step(entry: Mapping[str, Any]) -> Step:
        arguments = {
            name: _argument(given.get(_text(_mapping(value).get("parameter")), value))
            for name, value in _mapping(entry.get("parameters")).items()
        }
        return Step(
            _text(entry.get("operationId")),
            arguments,
            _text(picker.get("value-collection")),
            _text(rule.get("value-path")) or "Id",
            _text(picker.get("value-title")),
            _text(picker.get("value-folder-property")),
        )

    browse = _mapping(picker.get("browse"))
    folders = given.get("isFolder") is True
    first = _checked("it", step(_mapping(picker.get("open"))))
    return Rule(first, step(browse) if browse else None, folders, not folders)


def _old_step(rule: Mapping[str, Any]) -> Step:
    value = _text(rule.get("value-path"))
    return Step(
        _text(rule.get("operationId")),
        _arguments(rule),
        _text(rule.get("value-collection")),
        value,
        _text(rule.get("value-title")) or value,
    )


def _new_step(rule: Mapping[str, Any]) -> Step:
    value = _text(rule.get("itemValuePath"))
    return Step(
        _text(rule.get("operationId")),
        _arguments(rule),
        _text(rule.get("itemsPath")),
        value,
        _text(rule.get("itemTitlePath")) or value,
        _text(rule.get("itemIsParent")),
    )


def _checked(name: str, step: Step) -> Step:
    if not step.operation:
        raise _unclear(name)
    return step


def _unclear(name: str) -> Fixable:
    return Fixable(
        "invalid_arguments",
        f"the definition does not say how {name or 'it'} is looked up",
        "Give the value itself.",
    )


def _arguments(rule: Mapping[str, Any]) -> dict[str, Argument]:
    return {name: _argument(value) for name, value in _mapping(rule.get("parameters")).items()}


def _argument(value: Any) -> Argument:
    entry = _mapping(value)
    for key in ("parameter", "parameterReference"):
        if isinstance(entry.get(key), str):
            return Reference(tuple(part for part in entry[key].split("/") if part))
    for key in ("selectedItemValuePath", "value-property"):
        if isinstance(entry.get(key), str):
            return Selected(entry[key])
    return Literal(entry.get("value", value))


# --- reading an answer ----------------------------------------------------------------------------


def items_of(answer: Any, path: str) -> Sequence[Any]:
    """The list a step speaks of; where it is not there, the first list the answer has."""
    found = walk(answer, path)
    if isinstance(found, list):
        return found
    inside = found if isinstance(found, Mapping) else answer
    values = inside.values() if isinstance(inside, Mapping) else ()
    return next((value for value in values if isinstance(value, list)), ())


def entry_of(item: Any, step: Step, rule: Rule) -> dict[str, Any] | None:
    """One value as it is shown; None where the item has none."""
    value = walk(item, step.value) if isinstance(item, Mapping) else item
    if value is MISSING or value is None:
        return None
    title = walk(item, step.title) if isinstance(item, Mapping) else item
    shown = str(value) if title in (MISSING, None) or isinstance(title, (dict, list)) else title
    entry: dict[str, Any] = {"value": value, "title": str(shown)}
    if rule.below is None:
        return entry
    parent = is_parent(item, step.is_parent)
    if parent:
        wanted = [a.path for a in rule.below.arguments.values() if isinstance(a, Selected)]
        entry |= {"folder": True, "node": {path: walk(item, path) for path in wanted}}
    if not (rule.parents if parent else rule.leaves):
        entry["selectable"] = False
    return entry


def is_parent(item: Any, said: str) -> bool:
    """Whether an item is a folder, as a property's name or `(IsFolder eq true)` says."""
    if not said:
        return False
    found = _EQUALS.fullmatch(said.strip())
    if found is None:
        return walk(item, said) is True
    value = walk(item, found[1])
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return shown == (found[3].lower() if isinstance(value, bool) else found[3])


def next_link(answer: Any) -> str:
    """Where an answer says that it goes on."""
    for name in ("nextLink", "@odata.nextLink", "odata.nextLink", "@nextLink"):
        link = answer.get(name) if isinstance(answer, Mapping) else None
        if isinstance(link, str) and link:
            return link
    return ""


def walk(value: Any, path: str | Sequence[str]) -> Any:
    """What is at this path, or MISSING."""
    parts = [part for part in path.split("/") if part] if isinstance(path, str) else path
    for part in parts:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
