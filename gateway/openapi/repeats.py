"""Words that a definition repeats all over: said once for the connection, not in every tool.

A sentence that most descriptions have says nothing of one operation; the description of an optional
parameter that many operations share is the same everywhere. Both go into the instructions of the
build, which clients read once. A sentence that warns stays in every description that has it. So do
all words of a source that is not trusted: clients are not shown its instructions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.limits import PREVIEW_CHARS, REPEATED_CHARS, REPEATED_OPERATIONS
from gateway.model import Source, Tool, json_text
from gateway.naming import sentences, words_for_model
from gateway.openapi.document import Operation, mapping

_WARNS = re.compile(
    "deprecat|obsolete|sunset|danger|destr|irrever|irrevoc|permanent|undone|caution|warning|careful"
    "|delet|remov|overwrit|charge|bill|lost|loss",
    re.IGNORECASE,
)


def repeated_sentences(operations: Sequence[Operation], source: Source) -> list[str]:
    """The sentences that more than half of the operations' descriptions have."""
    if source.trust != "trusted" or len(operations) < REPEATED_OPERATIONS:
        return []
    texts = (sentences(words_for_model(each.raw, source)) for each in operations)
    counts = Counter(sentence for text in texts for sentence in dict.fromkeys(text))
    return _worth_saying(counts, len(operations) // 2)


def say_inputs_once(
    inputs: Sequence[tuple[Tool, bytes]], source: Source
) -> tuple[list[bytes], list[str]]:
    """Inputs without the words that more than a third of them have, and these words."""
    if source.trust != "trusted" or len(inputs) < REPEATED_OPERATIONS:
        return [schema for _, schema in inputs], []
    roots = [orjson.loads(schema) for _, schema in inputs]
    hints = [_optional_inputs(tool, root) for (tool, _), root in zip(inputs, roots, strict=True)]
    common = _worth_saying(Counter(line for lines in hints for line in lines), len(inputs) // 3)
    schemas = []
    for (_, schema), root, lines in zip(inputs, roots, hints, strict=True):
        if shared := [lines[line] for line in common if line in lines]:
            for name in shared:
                del root["properties"][name]["description"]
            schema = json_text(root)
        schemas.append(schema)
    return schemas, common


def _optional_inputs(tool: Tool, root: Mapping[str, Any]) -> dict[str, str]:
    """Names of optional parameters without look-ups, by a line with name and description."""
    excepted = {*root.get("required", ()), *orjson.loads(tool.lookups or b"{}")}
    parameters = tool.http.parameters if tool.http else ()
    names = [p.argument for p in parameters if p.argument and p.argument not in excepted]
    words = {name: mapping(root["properties"].get(name)).get("description") for name in names}
    return {f"`{name}`: {text}": name for name, text in words.items() if text}


def _worth_saying(counts: Mapping[str, int], more_than: int) -> list[str]:
    chosen, room = list[str](), PREVIEW_CHARS
    for words, count in counts.items():
        is_long = REPEATED_CHARS <= len(words) <= room
        if is_long and count > more_than and not _WARNS.search(words):
            chosen.append(words)
            room -= len(words)
    return chosen


def instructions_of(repeated: Sequence[str], inputs: Sequence[str]) -> str:
    """The words left out of single tools, as instructions for clients that use any of them."""
    lines = [" ".join(repeated)] if repeated else []
    if inputs:
        lines += ["Inputs that several tools have:", *(f"- {line}" for line in inputs)]
    return "\n".join(lines)
