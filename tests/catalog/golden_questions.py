"""The golden set: tools of invented APIs, and questions with the tools that answer them.

Both are tables in `fixtures/search`, so that a line can be added without touching code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.model import Access, Nameable, Tool
from gateway.naming import tool_names

FIXTURES = Path(__file__).parents[2] / "fixtures" / "search"
_ACCESS: dict[str, Access] = {"GET": "read", "DELETE": "delete"}


def golden_tools(table: str = "tools.txt") -> list[Tool]:
    """Every tool of the table, as a connector would have built it."""
    return [made_tool(*(cells + [""] * (7 - len(cells)))) for cells in _rows(FIXTURES / table)]


def golden_questions(table: str = "questions.txt") -> list[tuple[str, frozenset[str]]]:
    """Each question with the names that are right answers."""
    return [(cells[0], frozenset(cells[1:])) for cells in _rows(FIXTURES / table)]


def made_tool(
    connection: str,
    method: str,
    path: str,
    operation: str,
    title: str = "",
    description: str = "",
    keywords: str = "",
) -> Tool:
    """One tool from what search looks at; the rest is left empty."""
    (name,) = tool_names(f"{connection}_", [Nameable(operation, method, path)])
    local = name.removeprefix(f"{connection}_")
    text = " — ".join(part for part in (title, description) if part)
    return Tool(
        name=name,
        local_name=local,
        connection=connection,
        operation=operation,
        method=method,
        path=path,
        access=_ACCESS.get(method, "write"),
        risk="none",
        trust="trusted",
        title=title or local.replace("_", " ").capitalize(),
        description=f"[{connection.title()}] {text or local}",
        input_schema=b"{}",
        entry=b"{}",
        tokens=0,
        fingerprint="",
        keywords=keywords,
    )


def _rows(table: Path) -> Iterator[list[str]]:
    for line in table.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield [cell.strip() for cell in line.split("|")]
