"""The files a page needs, under addresses that change with their content, so caches keep them.

Style sheets name fonts by their plain names; the addresses they are served under are put in as they
are read. The icons' sheet is made of the vendored icon files, each as one symbol.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
