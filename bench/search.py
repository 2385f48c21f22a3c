"""How often the tool search has the right tool among the first five, over real definitions.

Reads the definitions beside the project (`../shared/corpus`), puts all their tools into one index,
asks `fixtures/search/corpus_questions.txt` and prints the rate, the misses and the time taken.

    python -m bench.search
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gateway.catalog.search import ToolIndex
from gateway.model import Build, Source, Tool
from gateway.openapi.build import build_openapi

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "../shared/corpus"
QUESTIONS = ROOT / "fixtures/search/corpus_questions.txt"
FIRST = 5
CONNECTIONS = {
    "outlook": "arm-office365.json",
    "figma": "figma-openapi-openapi.yaml",
    "github": "github-descriptions-ghes-3.6-ghes-3.6.json",
    "launchdarkly": "guru-launchdarkly.com-5.3.0.yaml",
    "stripe": "guru-stripe.com-2022-11-15.yaml",
    "kubernetes": "kubernetes-openapi-spec-v3-apis-apps-v1-openapi.json",
    "kanbanize": "ppc-kanbanize.json",
    "monday": "ppc-monday.json",
    "planner": "ppc-planner.json",
    "signnow": "ppc-signnow.json",
    "groups": "pfx-office-365-groups.json",
    "blob": "pfx-azureblobstorage.json",
    "excel": "pfx-excelonlinebusiness.json",
    "cognito": "ppc-cognito-forms.json",
    "trains": "readmeio-3.1-json-train-travel.json",
    "museum": "redocly-openapi.yaml",
    "fisheye": "guru-fecru.local-1.0.0.yaml",
    "catalog": "guru-redhat.com-catalog-inventory-1.0.0.yaml",
    "logicapps": "guru-azure.com-web-logicappsmanagementclient-2016-06-01.yaml",
    "sql": "pfx-sql-server.json",
    "weather": "pfx-testswagger.json",
}


def main() -> int:
    """Print the report; 0 where the definitions are not there."""
    if not CORPUS.is_dir():
        print("search: no definitions beside the project, nothing to measure")
        return 0
    tools = [
        tool for name, file in CONNECTIONS.items() for tool in build(name, CORPUS / file).tools
    ]
    started = time.perf_counter()
    index = ToolIndex(tools)
    print(f"search: {len(tools)} tools indexed in {1000 * (time.perf_counter() - started):.0f} ms")
    for section, questions in sections():
        _report(section, questions, index, tools)
    return 0


def build(connection: str, file: Path) -> Build:
    """The tools of one of the definitions."""
    source = Source(
        connection=connection,
        kind="openapi",
        display_name=connection.title(),
        prefix=f"{connection}_",
        base_url="https://api.example.com",
    )
    return build_openapi(file.read_bytes(), source)


def sections() -> Iterator[tuple[str, list[tuple[str, frozenset[str]]]]]:
    """The questions with their right answers, by how hard they are."""
    for part in QUESTIONS.read_text(encoding="utf-8").split("\n[")[1:]:
        title, _, table = part.partition("]\n")
        rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
        yield title, [(row[0], frozenset(row[1:])) for row in rows]


def _report(
    section: str, questions: list[tuple[str, frozenset[str]]], index: ToolIndex, tools: list[Tool]
) -> None:
    names = frozenset(tool.name for tool in tools)
    asked = [(question, right) for question, right in questions if right & names]
    started = time.thread_time()
    answers = [index.search(question, allowed=names, limit=FIRST) for question, _ in asked]
    took = 1000 * (time.thread_time() - started) / max(1, len(asked))
    missed = [
        f"  missed: {question}  (got {', '.join(found[:3])})"
        for (question, right), found in zip(asked, answers, strict=True)
        if right.isdisjoint(found)
    ]
    hits = len(asked) - len(missed)
    top = sum(
        not right.isdisjoint(found[:1]) for (_, right), found in zip(asked, answers, strict=True)
    )
    print(
        f"search, {section} questions: {hits} of {len(asked)} right in the first {FIRST} "
        f"({100 * hits / max(1, len(asked)):.0f} %), {top} at once, {took:.1f} ms a question"
    )
    for question, right in questions:
        if not right & names:
            print(f"  not asked, no such tool: {question}")
    print("\n".join(missed))


if __name__ == "__main__":
    sys.exit(main())
