"""The tool search over real definitions: the right tool is among the first five.

The questions are those of `bench/search.py`; GATEWAY_CORPUS is another folder of definitions.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import search as measured
from gateway.catalog.search import ToolIndex
from gateway.model import Tool

FOLDER = Path(os.environ.get("GATEWAY_CORPUS", measured.CORPUS))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="there are no definitions"),
]
LEAST = {"plain": 0.93, "hard": 0.85}


@pytest.fixture(scope="module")
def tools() -> list[Tool]:
    files = measured.CONNECTIONS.items()
    return [tool for name, file in files for tool in measured.build(name, FOLDER / file).tools]


def test_right_tool_is_among_the_first_five(tools: list[Tool]) -> None:
    index, names = ToolIndex(tools), frozenset(tool.name for tool in tools)
    for section, questions in measured.sections():
        asked = [(question, right) for question, right in questions if right & names]
        answers = [(index.search(each, allowed=names, limit=5), right) for each, right in asked]
        found = sum(not right.isdisjoint(answer) for answer, right in answers)
        assert found >= LEAST[section] * len(asked), section
