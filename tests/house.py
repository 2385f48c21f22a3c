"""What the source of the gateway says of itself, read without importing it: the figures that
`test_house` holds."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
LOADERS = {"spec_from_file_location", "exec_module", "SourceFileLoader", "spec_from_loader"}


@dataclass(frozen=True)
class Import:
    """One module of ours that another one imports."""

    importer: str  # dotted, without `gateway.`
    imported: str
    when: str  # "start", "later" (inside a function) or "typing"
    line: int


@dataclass(frozen=True)
class Module:
    """One file."""

    name: str  # dotted, without `gateway.`; "" for the package itself
    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder, or the file itself where it lies at the top."""
        return self.name.split(".")[0]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of its tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def code_lines(self) -> int:
        """Lines that hold code: no blank ones, no comments, no docstrings."""
        return len(_lines_with_tokens(self.text) - _docstring_lines(self.tree))


class House:
    """The package."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Every file, by its dotted name."""
        found: dict[str, Module] = {}
        for path in sorted(self._folder.rglob("*.py")):
            parts = path.relative_to(self._folder).with_suffix("").parts
            if not {"node_modules", ".venv"}.isdisjoint(parts):  # see the Makefile
                continue
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            found[name] = Module(name, path, text, ast.parse(text))
        return found

    @cached_property
    def imports(self) -> list[Import]:
        """Whatever one of them imports of another."""
        return [found for module in self.modules.values() for found in self._of(module)]

    def _of(self, module: Module) -> Iterator[Import]:
        for node, when in _import_nodes(module.tree, "start"):
            for alias in node.names:
                for name in (f"{node.module}.{alias.name}", node.module or ""):
                    found = name.removeprefix("gateway").removeprefix(".")
                    if name.split(".")[0] == "gateway" and found in self.modules:
                        if found != module.name and found:
                            yield Import(module.name, found, when, node.lineno)
                        break

    def longest_chain(self) -> tuple[str, ...]:
        """The longest way from import to import; a cycle is an error."""
        graph: dict[str, set[str]] = defaultdict(set)
        for each in self.imports:
            if each.when == "start":
                graph[each.importer].add(each.imported)
        known: dict[str, tuple[str, ...]] = {}

        def chain(name: str, above: tuple[str, ...]) -> tuple[str, ...]:
            assert name not in above, f"modules import each other: {(*above, name)}"
            if name not in known:
                below = [chain(other, (*above, name)) for other in sorted(graph[name])]
                known[name] = (name, *max(below, key=len, default=()))
            return known[name]

        return max((chain(name, ()) for name in self.modules), key=len)

    def numbers(self) -> list[str]:
        """Names that a module gives to numbers."""
        return [
            f"{module.name}.{target.id}"
            for module in self.modules.values()
            for node in module.tree.body
            for target, value in _bindings(node)
            if isinstance(target, ast.Name) and _is_number(value)
        ]

    def classes(self) -> dict[str, list[str]]:
        """Modules by the name of a class they define; aliases count once for each definition."""
        found: dict[str, list[str]] = defaultdict(list)
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(module.name)
            for target, value in (pair for node in module.tree.body for pair in _bindings(node)):
                name, text = ast.unparse(target), ast.unparse(value)
                if name[0].isupper() and not name.isupper() and text not in found[name]:
                    found[name].append(text)
        return found

    def protocols(self) -> dict[str, frozenset[str]]:
        """The methods and attributes of each Protocol."""
        return {
            node.name: _members(node)
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, ast.ClassDef)
            and any(_last_name(base) == "Protocol" for base in node.bases)
        }

    def functions(self) -> Iterator[tuple[str, int]]:
        """Each function with the number of its lines."""
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, FUNCTIONS):
                    assert node.end_lineno is not None
                    yield f"{module.name}.{node.name}", node.end_lineno - node.lineno + 1

    def raised_codes(self) -> set[str]:
        """The codes that errors of ours are made with, where they are written out."""
        return {
            node.args[0].value
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, ast.Call)
            and _last_name(node.func) in CODED
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        }

    def tricks(self) -> list[str]:
        """Places that rely on what a library or Python does not promise."""
        return [
            f"{module.name}:{node.lineno} {what}"
            for module in self.modules.values()
            for what, node in _tricks(module.tree)
        ]

    def text_decisions(self) -> list[str]:
        """Places where something hangs on the wording of a reason or message."""
        return [
            f"{module.name}:{node.lineno}"
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, ast.expr) and _compares_text(node)
        ]


CODED = {
    *("GatewayError", "Refused", "Fixable", "NotFound", "Overloaded"),
    *("UpstreamFailed", "UpstreamRefused", "Broken", "NotApproved"),
}


def _lines_with_tokens(text: str) -> set[int]:
    return {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }


def _docstring_lines(tree: ast.Module) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS))
        and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }


def _import_nodes(node: ast.AST, when: str) -> Iterator[tuple[ast.ImportFrom, str]]:
    for child in ast.iter_child_nodes(node):
        inside = when
        if isinstance(child, FUNCTIONS):
            inside = "later"
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            inside = "typing"
        if isinstance(child, ast.ImportFrom):
            yield child, inside
        yield from _import_nodes(child, inside)


def _bindings(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield target, node.value


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _members(node: ast.ClassDef) -> frozenset[str]:
    methods = {each.name for each in node.body if isinstance(each, FUNCTIONS)}
    fields = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return frozenset(methods | fields)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _tricks(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    theirs = dict(_third_parties(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in {"__self__", *LOADERS}:
                yield node.attr, node
            elif node.attr == "__class__" and isinstance(node.ctx, ast.Store):
                yield "assigns __class__", node
            elif _is_private(node.attr) and _root_name(node) in theirs:
                yield f"private {ast.unparse(node)}", node
        elif isinstance(node, ast.ImportFrom):
            words = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            if any(map(_is_private, words)) and _is_third_party(words[0]):
                yield f"private {node.module}", node


def _third_parties(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                source = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
                if _is_third_party(source.split(".")[0]):
                    yield (alias.asname or alias.name).split(".")[0], source


def _is_third_party(name: str) -> bool:
    return name not in {"gateway", "_typeshed", *sys.stdlib_module_names}


def _root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return getattr(node, "id", "")


def _compares_text(node: ast.expr) -> bool:
    def is_text(each: ast.expr) -> bool:
        return isinstance(each, ast.Attribute) and each.attr in ("reason", "message")

    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        others = [each for each in sides if not is_text(each)]
        to_none = all(isinstance(each, ast.Constant) and each.value is None for each in others)
        return any(map(is_text, sides)) and not to_none
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("startswith", "endswith", "find")
        and is_text(node.func.value)
    )
