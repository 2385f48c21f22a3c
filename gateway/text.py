"""Words of others, made safe to show: what a person can't see must not reach a model either.

Zero-width and bidirectional controls, tag characters, variation selectors, invisible fillers,
private-use and control characters can carry instructions that no reviewer sees.
"""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad"
    "\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff"
    "]"
)
_LINE_ENDS = re.compile("\r\n?|[\u2028\u2029]")


def visible(text: str, instead: str = "") -> str:
    """The text with `instead` of each character that a person would not see; line ends as `\\n`."""
    return _HIDDEN.sub(instead, _LINE_ENDS.sub("\n", text))


def cut(text: str, limit: int) -> str:
    """At most `limit` characters, ending in `…` where something is missing."""
    if len(text) <= limit:
        return text
    return text[: limit - 1].rstrip() + "…" if limit > 0 else ""
