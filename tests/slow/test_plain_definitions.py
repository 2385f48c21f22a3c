"""Every tool of real definitions in plain words: nothing in them that clients choke on, and what is
made up from them fits the whole schema, or the refusal says what to change.

As in test_real_definitions, GATEWAY_CORPUS is another folder and GATEWAY_CORPUS_TOOLS how many
tools of a definition are looked at (0: all).
"""

from __future__ import annotations

from random import Random

import orjson
import pytest

from gateway.calls.arguments import fitting_arguments
from gateway.errors import DefinitionUnreadable, Fixable
from gateway.model import Tool
from gateway.openapi.build import build_openapi
from gateway.plain import plain_input
from tests.definitions import SOURCE
from tests.plainness import not_plain
from tests.slow.generating import WAYS, made_up
from tests.slow.test_real_definitions import FOLDER, SEED, TOOLS, Tally, _definitions

pytestmark = pytest.mark.slow

LEAST = 0.98  # of the arguments that could be made up
OF_SCHEMAS = ("schema", "anyOf", "oneOf", "allOf", "$ref")  # words for those who saw the whole one


def test_what_is_made_up_from_plain_schemas_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    if not (paths := _definitions()):
        pytest.skip(f"there are no definitions in {FOLDER}")
    tally = Tally()
    whole = plain = 0
    for path in paths:
        try:
            tools = sorted(build_openapi(path.read_bytes(), SOURCE).tools, key=lambda t: t.name)
        except DefinitionUnreadable:
            continue
        for tool in Random(SEED).sample(tools, min(TOOLS or len(tools), len(tools))):
            whole += len(tool.entry)
            plain += len(tool.forms.get("plain", tool.entry))
            _look_at(tool, f"{path.parent.name}/{path.name}", tally)
    with capsys.disabled():
        print("\n" + "\n".join(tally.lines()), f"\n{plain / whole:.1%} of the bytes")
    assert tally.counts["not plain"] == tally.counts["refused in other words"] == 0
    assert tally.share >= LEAST


def _look_at(tool: Tool, where: str, tally: Tally) -> None:
    shown = plain_input(tool)
    for wrong in not_plain(shown):
        tally.count("not plain", f"{where} {tool.name}: {wrong}")
    for way in WAYS:
        arguments = made_up(shown, way, f"{SEED} {tool.name} {way}")
        tally.counts["calls"] += 1
        if arguments is None:
            tally.counts["not judged"] += 1
            continue
        try:
            fitting_arguments(tool, arguments)
            tally.count("valid", "")
        except Fixable as refusal:
            told = refusal.as_dict()
            good = told["problems"] and not any(word in told["message"] for word in OF_SCHEMAS)
            kind = "refused, with what to change" if good else "refused in other words"
            said = f"{where} {tool.name}: {told['message']}; {orjson.dumps(arguments).decode()}"
            tally.count(kind, said)
