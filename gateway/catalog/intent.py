"""What a question wants done, and how well each kind of tool fits that.

The first verb decides; a question word, or a verb nobody knows before an article, says at least
whether something is to be read or done. The fit only tips the scale between tools whose words say
the same, so a wrong guess costs little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gateway.catalog import words
from gateway.model import Tool

_FITTING_ACTION = 1.15
_POSSIBLE_ACTION = 1.1
_CLASHING_ACTION = 0.85
_FITTING_SHAPE = 1.06

_VERBS: Mapping[str, str] = {
    words.stem(verb): action
    for action, verbs in (
        ("read", f"{words.READ} who check count download export"),
        ("create", f"{words.CREATE} invite send upload"),
        ("update", f"{words.UPDATE} enable disable"),
        ("delete", words.DELETE),
    )
    for verb in verbs.split()
}
_QUESTION = frozenset("what which who whose where when why".split())
_DETERMINERS = frozenset("a an the my our your this that these those all every each".split())
_METHODS: Mapping[str, Mapping[str, float]] = {
    "GET": {"read": _FITTING_ACTION},
    "HEAD": {"read": _FITTING_ACTION},
    "POST": {"create": _FITTING_ACTION, "update": _POSSIBLE_ACTION, "do": _FITTING_ACTION},
    "PUT": {"create": _POSSIBLE_ACTION, "update": _FITTING_ACTION, "do": _FITTING_ACTION},
    "PATCH": {"update": _FITTING_ACTION, "do": _FITTING_ACTION},
    "DELETE": {"delete": _FITTING_ACTION, "do": _FITTING_ACTION},
}
_SHAPES = (False, True)

# A kind is a method and whether the path names a collection. Tools without a method fit all alike.
_KINDS = [(method, many) for method in ("", *_METHODS) for many in _SHAPES]


@dataclass(frozen=True, slots=True)
class Intent:
    """What is wanted: read, create, update, delete, do something, or unknown; to many or one."""

    action: str
    many: bool

    def fits(self) -> list[float]:
        """A factor for each kind of tool, to be looked up by `kind_of`."""
        return [self._fit(method, many) for method, many in _KINDS]

    def _fit(self, method: str, many: bool) -> float:
        if not self.action or method not in _METHODS:
            return 1.0
        fit = _METHODS[method].get(self.action, _CLASHING_ACTION)
        return fit * _FITTING_SHAPE if self.action == "read" and self.many == many else fit


def kind_of(tool: Tool) -> int:
    """Which kind a tool is, as an index into `Intent.fits()`."""
    method = tool.method.upper() if tool.method.upper() in _METHODS else ""
    names_one = tool.path.rstrip("/').").endswith("}")
    return _KINDS.index((method, not names_one))


def intent_of(asked: Sequence[str]) -> Intent:
    """What the words of a question want done."""
    return Intent(_action(asked), _many(asked))


def _action(asked: Sequence[str]) -> str:
    for word, following in pairwise((*asked, "")):
        if word in _QUESTION:
            return "read"
        if word in words.STOP:
            continue
        if action := _VERBS.get(words.stem(word)):
            return action
        if following in _DETERMINERS:
            return "do"  # an imperative: "merge the …"
    return ""


def _many(asked: Sequence[str]) -> bool:
    if "list" in asked or "all" in asked:
        return True
    return any(words.singular(word) != word for word in asked if word not in words.STOP)
