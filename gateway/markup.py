"""HTML in the words of definitions becomes text: models read it as well, and it costs half.

Only HTML is changed. A tag counts if HTML has its name, if its attributes look like attributes and,
where HTML wants both ends, if it is opened and closed; `List<string>`, `<your-id>`, `a < b` and
everything in a code span stay as they are written, and so do comments and scripts that can't be
told from text. A line end in a text means nothing: only paragraphs, items, rows and breaks make
lines. It is one pass over the text by patterns that never look back, so that hostile texts take no
longer than others.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

_UNSEEN = re.compile(r"<!--[^<]*?-->|<(script|style)\b[^<>]*>[^<]*</\1\s*>", re.IGNORECASE)
_PARTS = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`++)[^`]++(?P=ticks)(?!`))"
    r"|<(?P<end>/?)(?P<tag>[a-z][a-z0-9]*+)(?P<rest>[^<>]*+)>"
    r"|(?P<entity>&(?:#[0-9]{1,7}|#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,30});)",
    re.IGNORECASE,
)
_ATTRIBUTE = r"""\b%s\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))"""
_HREF, _ALT, _SRC = (
    re.compile(_ATTRIBUTE % name, re.IGNORECASE) for name in ("href", "alt", "src")
)
_PARAGRAPHS = re.compile(r"\n\s*\n")
_BLANKS = re.compile(r"[^\S\n]+")
_LINES = re.compile(r"\s*\n\s*")
_CELL = "\0"  # stands before each cell, until the first cell of each row is known
_CODE = ("code", "tt", "kbd", "samp")

# The marks that replace a tag: before its content, and after it.
_LINE = ("\n", "\n")
_NOTHING = ("", "")
_BLOCKS = "p div ul ol dl table tr blockquote pre h1 h2 h3 h4 h5 h6 section article header footer"
_MARKS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(f"{_BLOCKS} hr br details summary center caption".split(), _LINE),
    **dict.fromkeys("b strong i em u span font small big sub tbody thead tfoot".split(), _NOTHING),
    **dict.fromkeys("abbr cite dfn ins mark nobr figure figcaption a img wbr".split(), _NOTHING),
    **dict.fromkeys(_CODE, ("`", "`")),
    **dict.fromkeys(("s", "del", "strike"), ("~~", "~~")),
    "li": ("\n- ", "\n"),
    "dt": ("\n", ""),
    "dd": (": ", "\n"),
    "td": (_CELL, ""),
    "th": (_CELL, ""),
    "sup": ("^", ""),
    "q": ('"', '"'),
}
_UNCLOSED = frozenset("p li dt dd tr td th tbody thead tfoot br hr img wbr".split())


def plain_text(text: str) -> str:
    """The text without HTML, with a line for each of its blocks."""
    if "<" not in text and "&" not in text:
        if "\n" not in text:
            return " ".join(text.split())
        paragraphs = (" ".join(part.split()) for part in _PARAGRAPHS.split(text))
        return "\n".join(filter(None, paragraphs))
    return _Text(_UNSEEN.sub(" ", text)).read()


class _Text:
    """One text on its way out of HTML."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.openings: dict[str, int] = {}  # by tag: where it is first opened, and last closed
        self.closings: dict[str, int] = {}
        for part in _PARTS.finditer(text):
            if name := (part["tag"] or "").lower():
                if part["end"]:
                    self.closings[name] = part.start()
                else:
                    self.openings.setdefault(name, part.start())
        self.words: list[str] = []  # the text as far as it is made
        self.link: tuple[str, int] | None = None  # an open link: its address, where its words begin
        self.in_pre = False  # white space stays as it is inside <pre>

    def read(self) -> str:
        end = 0
        for part in _PARTS.finditer(self.text):
            self._write(self.text[end : part.start()])
            end = part.end()
            if part["entity"]:
                self.words.append(html.unescape(part[0]))
            elif part["code"] or not self._is_tag(part):
                self._write(part[0])
            else:
                self._mark(part)
        self._write(self.text[end:])
        lines = _LINES.sub("\n", _BLANKS.sub(" ", "".join(self.words)))
        lines = lines.replace("\n-\n", "\n- ").replace(f"\n{_CELL}", "\n")
        return re.sub(f" ?{_CELL} ?", " | ", lines).strip()

    def _write(self, words: str) -> None:
        if not self.in_pre:
            words = "\n".join(each.replace("\n", " ") for each in _PARAGRAPHS.split(words))
        self.words.append(words)

    def _is_tag(self, part: re.Match[str]) -> bool:
        name, rest = part["tag"].lower(), part["rest"].strip()
        is_bare = rest in ("", "/")
        if name not in _MARKS or not (is_bare or (part["rest"][0].isspace() and "=" in rest)):
            return False
        if name in _UNCLOSED or rest.endswith("/"):
            return True
        if part["end"]:
            return self.openings.get(name, part.start()) < part.start()
        return self.closings.get(name, 0) > part.start()

    def _mark(self, part: re.Match[str]) -> None:
        name, rest, is_end = part["tag"].lower(), part["rest"], bool(part["end"])
        if name == "pre":
            self.in_pre = not is_end
        if name == "a":
            self._close_link()
            self.link = None if is_end else (_attribute(_HREF, rest), len(self.words))
        elif name == "img":
            self.words.append(_attribute(_ALT, rest) or _attribute(_SRC, rest))
        elif not (name in _CODE and self.in_pre):
            self.words.append(_MARKS[name][is_end])

    def _close_link(self) -> None:
        """Says where a link leads, if its words don't and a reader could go there."""
        if self.link is not None:
            address, start = self.link
            words = "".join(self.words[start:]).strip()
            if address.startswith(("http://", "https://")) and address not in words:
                self.words.append(f" ({address})" if words else address)


def _attribute(pattern: re.Pattern[str], rest: str) -> str:
    match = pattern.search(rest)
    return html.unescape(next(filter(None, match.groups()), "")).strip() if match else ""
