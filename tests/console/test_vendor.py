"""What others wrote is here as they published it, with its licence."""

from __future__ import annotations

import hashlib
import re

from gateway.console.app import STATIC

VENDOR = STATIC / "vendor"
LIST = VENDOR / "SHA256SUMS"


def test_every_vendored_file_is_as_it_was_published() -> None:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    found = {
        str(path.relative_to(VENDOR)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path != LIST
    }
    assert found == listed


def test_every_vendored_package_brings_its_licence() -> None:
    packages = {path for path in VENDOR.iterdir() if path.is_dir()}
    assert {path.name for path in packages} == {"htmx", "inter", "jetbrains-mono", "lucide"}
    assert all((path / "LICENSE").is_file() for path in packages)


def test_the_sheet_of_icons_is_made_of_the_published_ones() -> None:
    drawn = 'fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round"'
    sheet = '<svg xmlns="http://www.w3.org/2000/svg">'
    for path in sorted(VENDOR.glob("lucide/*.svg")):
        inner = re.sub(r"<svg[^>]*>(.*)</svg>", r"\1", path.read_text("utf-8"), flags=re.DOTALL)
        sheet += f'<symbol id="{path.stem}" viewBox="0 0 24 24" {drawn} stroke-linejoin="round">'
        sheet += f"{inner}</symbol>"
    assert (STATIC / "icons.svg").read_text("utf-8") == f"{sheet}</svg>"
