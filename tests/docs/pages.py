"""The documentation as its tests see it: pages of Markdown, and the blocks of code in them.

A comment right above a block says what is special about it:

    <!-- not run: WHY -->                     it can't be run here, and the reason is given
    <!-- goes on while the next blocks run --> it is left running, and must have ended well by the
                                              end of the page (`gateway serve` need not end)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^( *)```(\w*)(?: title=\"([^\"]*)\")?\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
ABOVE = re.compile(r"<!-- (.+?) -->\s*\Z")
GOES_ON = "goes on while the next blocks run"
NOT_RUN = "not run: "


@dataclass(frozen=True)
class Block:
    """One block of code on a page."""

    page: str
    line: int
    language: str
    title: str
    text: str
    follows: bool  # right below another one
    goes_on: bool
    why_not_run: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def page_paths() -> list[Path]:
    """Every page that is written by hand."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks_of(path: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    return list(read_blocks(name_of(path), path.read_text(encoding="utf-8")))


def read_blocks(page: str, text: str) -> Iterator[Block]:
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) % 2 == 0, f"{page}: a block has no end"
    end = 0
    for found in FENCE.finditer(text):
        indent, language, title, body = found.groups()
        above = ABOVE.search(text[: found.start()])
        said = above[1] if above else ""
        yield Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            language,
            title or "",
            re.sub(f"^{indent}", "", body, flags=re.MULTILINE),
            not text[end : found.start()].strip(),
            said == GOES_ON,
            said.removeprefix(NOT_RUN) if said.startswith(NOT_RUN) else "",
        )
        end = found.end()


def inline_code(path: Path) -> set[str]:
    """What stands between single backticks in the prose of a page."""
    prose = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", prose)}
