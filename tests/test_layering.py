"""Who may import whom, held by reading the imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PLAIN = {"model", "errors"}
CONFIG = PLAIN | {"config"}
OUT = PLAIN | {"outbound", "blocklist"}
LOW = CONFIG | OUT | {"store", "connectors"}

# `catalog.snapshot` is a value that policy and invoke may know; the rest of catalog is not.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors"},
    "config": PLAIN,
    "store": PLAIN,
    "outbound": PLAIN,
    "blocklist": PLAIN,
    "connectors": OUT,
    "demo": set(),
    "logs": set(),
    "catalog": LOW,
    "policy": CONFIG | {"catalog.snapshot"},
    "invoke": CONFIG | OUT | {"policy", "store", "catalog.snapshot"},
    "edge": LOW | {"invoke", "policy", "catalog"},
    "reload": CONFIG,
    "rehearsal": LOW | {"app", "policy", "catalog", "edge"},
    "tracing": {"store"},
    "line": LOW | {"invoke", "policy", "catalog", "edge"},
    "app": LOW
    | {"invoke", "policy", "catalog", "edge", "line", "demo", "reload"}
    | {"first_look", "logs", "progress", "tracing"},
    "at_once": set(),
    "patience": {"at_once"},
    "progress": set(),
    "first_look": {"catalog", "progress"},
    "serve": CONFIG | {"app", "patience", "progress"},
    "supervise": CONFIG | {"serve"},
    "cli": LOW
    | {"invoke", "policy", "catalog", "edge", "app", "serve", "supervise", "rehearsal"}
    | {"reload", "logs"},
    "__main__": {"cli"},
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        parts = path.relative_to(ROOT / "gateway").with_suffix("").parts
        if parts != ("__init__",):
            yield parts[0], path


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def allowed(part: str, name: str) -> bool:
    inner = name.removeprefix("gateway.")
    if inner.split(".")[0] in {part, "__version__"}:
        return True
    return any(inner == rule or inner.startswith(f"{rule}.") for rule in MAY_IMPORT[part]) or any(
        rule.startswith(f"{inner}.") for rule in MAY_IMPORT[part]
    )


@pytest.mark.parametrize(
    ("part", "path"), [pytest.param(*m, id=str(m[1].relative_to(ROOT))) for m in modules()]
)
def test_a_module_imports_only_what_lies_below_it(part: str, path: Path) -> None:
    wrong = {
        name for name in imported(path) if name.startswith("gateway.") and not allowed(part, name)
    }
    assert wrong == set()


WORDS = ("reason", "message", "hint")
SEARCHES = ("startswith", "endswith", "find", "index", "count")


def judged(node: ast.AST) -> list[ast.expr]:
    """What an expression compares, or searches for something."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    searched = isinstance(node, ast.Attribute) and node.attr in SEARCHES
    return [node.value] if searched and isinstance(node, ast.Attribute) else []


def test_no_decision_hangs_on_the_text_of_a_message() -> None:
    found = []
    for _, path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = judged(node)
            absent = any(isinstance(part, ast.Constant) and part.value is None for part in parts)
            texts = [part for part in parts if isinstance(part, ast.Attribute)]
            if not absent and any(part.attr in WORDS for part in texts):
                found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    assert found == []


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=str(path.relative_to(ROOT))) for _, path in modules()]
)
def test_no_file_is_longer_than_600_lines(path: Path) -> None:
    assert path.read_text(encoding="utf-8").count("\n") <= 600
