"""Templates: escaped always, and a name that is missing is an error, not a blank.

The files a page needs, under addresses that change with their content, so caches keep them.

Style sheets name fonts by their plain names; the addresses they are served under are put in as they
are read. The icons' sheet is made of the vendored icon files, each as one symbol.

How values are worded for people: times, sizes, cut text. Pure, and the templates' filters.

Lines to paste, one for each client people use.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gateway import __version__
from gateway.store.tables import json_bytes

FOLDER = Path(__file__).parent / "static"
VENDOR = FOLDER / "vendor"
PREFIX = "/console/static/"
KEPT = "public, max-age=31536000, immutable"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
HASH_CHARS = 12
_STYLE_URL = re.compile(r"url\(([a-z0-9./-]+)\)")
_SYMBOL = re.compile(r"<svg[^>]*>(.*)</svg>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is served."""

    address: str
    body: bytes
    media_type: str


@cache
def assets() -> Mapping[str, Asset]:
    """Every file by its plain name, such as `app.css`."""
    found: dict[str, Asset] = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in (".js", ".woff2"):
            found[path.name] = _asset(path.name, path.read_bytes())
    found["icons.svg"] = _asset("icons.svg", _icon_sheet())
    for path in sorted(FOLDER.glob("*.svg")):
        found[path.name] = _asset(path.name, path.read_bytes())
    for path in sorted(FOLDER.glob("*.css")):
        text = _STYLE_URL.sub(lambda m: f"url({found[m[1]].address})", path.read_text("utf-8"))
        found[path.name] = _asset(path.name, text.encode())
    return found


@cache
def served() -> Mapping[str, Asset]:
    """Every file by the address it is served under."""
    return {asset.address: asset for asset in assets().values()}


def address_of(name: str) -> str:
    """Where a page finds a file."""
    return assets()[name].address


def _asset(name: str, body: bytes) -> Asset:
    digest = hashlib.sha256(body).hexdigest()[:HASH_CHARS]
    return Asset(f"{PREFIX}{digest}/{name}", body, TYPES[Path(name).suffix])


def _icon_sheet() -> bytes:
    drawn = (
        'fill="none" stroke="currentColor" stroke-width="2" '
        'stroke-linecap="round" stroke-linejoin="round"'
    )
    symbols = []
    for path in sorted((VENDOR / "lucide").glob("*.svg")):
        match = _SYMBOL.search(path.read_text("utf-8"))
        assert match is not None, path.name
        symbols.append(f'<symbol id="{path.stem}" viewBox="0 0 24 24" {drawn}>{match[1]}</symbol>')
    return f'<svg xmlns="http://www.w3.org/2000/svg">{"".join(symbols)}</svg>'.encode()


MAX_NAME = 128
MAX_TEXT = 2000
MAX_CODE = 20_000
# Characters that change what stands beside them, or show nothing at all.
HIDDEN = frozenset("Cc Cf Co Cs Zl Zp".split())
SHOWN_CONTROLS = frozenset("\n\t")

RISK_WORDS = {
    "none": "reads only",
    "low": "low risk",
    "medium": "medium risk",
    "high": "high risk",
}
RISK_ICONS = {
    "none": "eye",
    "low": "info",
    "medium": "triangle-alert",
    "high": "octagon-alert",
}
STATUS_WORDS = {
    "pending_confirmation": "waiting",
    "executing": "running",
    "completed": "ok",
    "failed": "failed",
    "denied": "denied",
    "expired": "expired",
    "unknown": "unknown",
}


def clip(value: object, length: int = MAX_NAME) -> str:
    """Text on one line, without characters that hide or turn their neighbours, cut to a length."""
    return _cut(" ".join(visible(str(value)[: length * 4]).split()), length)


def clip_text(value: object, length: int = MAX_TEXT) -> str:
    """The same for running text, which keeps its lines."""
    return _cut(visible(str(value)[: length * 4]), length)


def visible(text: str) -> str:
    """The text with hidden and direction-changing characters shown as U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "\ufffd" if unicodedata.category(char) in HIDDEN and char not in SHOWN_CONTROLS else char
        for char in text
    )


def pretty(value: Any, length: int = MAX_CODE) -> str:
    """A JSON value as people read it."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        text = json_bytes(value).decode("utf-8", "replace")
    return clip_text(text, length)


def compact(value: Any, length: int = MAX_NAME) -> str:
    """A JSON value on one line."""
    return clip(json_bytes(value).decode("utf-8", "replace").strip(), length)


def ago(at: float | None, now: float | None = None) -> str:
    """How long ago, or in how long."""
    if at is None:
        return "never"
    seconds = (time.time() if now is None else now) - at
    word = _span(abs(seconds))
    if word == "now":
        return "just now"
    return f"{word} ago" if seconds >= 0 else f"in {word}"


def full_time(at: float | None) -> str:
    """The whole time, for those who point at it."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso_time(at: float | None) -> str:
    """The time as machines read it."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def clock(at: float | None) -> str:
    """The time of day."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def duration(milliseconds: float | None) -> str:
    """How long something took."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 1 else "<1 ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 60_000 else _span(milliseconds / 1000)


def number(value: float) -> str:
    """A count with its thousands apart."""
    return f"{value:,.0f}"


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def segment(value: object) -> str:
    """Text as one part of an address."""
    return quote(str(value)[:4096], safe="", errors="replace")


FILTERS = {
    "clip": clip,
    "clip_text": clip_text,
    "pretty": pretty,
    "compact": compact,
    "ago": ago,
    "full_time": full_time,
    "iso_time": iso_time,
    "clock": clock,
    "duration": duration,
    "number": number,
    "plural": plural,
    "segment": segment,
    "risk_words": lambda risk: RISK_WORDS.get(risk, clip(risk)),
    "risk_icon": lambda risk: RISK_ICONS.get(risk, "triangle-alert"),
    "status_words": lambda status: STATUS_WORDS.get(status, clip(status)),
}


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _span(seconds: float) -> str:
    if seconds < 5:
        return "now"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "now"


TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    """The one environment, made at the first page."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(FILTERS)
    made.globals.update(asset=address_of, version=__version__, now=time.time)
    return made


def render(template: str, **values: Any) -> str:
    """A template with these values."""
    return environment().get_template(template).render(values)


TOKEN = "YOUR_TOKEN"


@dataclass(frozen=True, slots=True)
class Snippet:
    """What to do in one client."""

    id: str
    client: str
    words: str
    text: str


def snippets(url: str, *, with_token: bool) -> list[Snippet]:
    """How each client is pointed at this address."""
    return [
        Snippet("cc", "Claude Code", "Run once in your project:", _claude_code(url, with_token)),
        Snippet(
            "cd",
            "Claude Desktop",
            "It speaks stdio only, so it starts the bridge. In claude_desktop_config.json:",
            _json({"mcpServers": {"gateway": _bridge(url, with_token)}}),
        ),
        Snippet(
            "cu",
            "Cursor",
            "In ~/.cursor/mcp.json:",
            _json({"mcpServers": {"gateway": _http(url, with_token)}}),
        ),
        Snippet(
            "vs",
            "VS Code",
            "In .vscode/mcp.json:",
            _json({"servers": {"gateway": {"type": "http", **_http(url, with_token)}}}),
        ),
    ]


def _claude_code(url: str, with_token: bool) -> str:
    line = f"claude mcp add --transport http gateway {url}"
    return f'{line} \\\n  --header "Authorization: Bearer {TOKEN}"' if with_token else line


def _bridge(url: str, with_token: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"command": "gateway", "args": ["stdio", "--url", url]}
    return entry | ({"env": {"GATEWAY_TOKEN": TOKEN}} if with_token else {})


def _http(url: str, with_token: bool) -> dict[str, Any]:
    headers = {"headers": {"Authorization": f"Bearer {TOKEN}"}}
    return {"url": url} | (headers if with_token else {})


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2)
