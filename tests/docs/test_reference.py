"""The reference names what a gateway really has."""

from __future__ import annotations

import asyncio
import hashlib
import re

import aiohttp

from docs import config_keys, reference
from tests.conftest import Running
from tests.docs.pages import DOCS, ROOT, inline_code, page_paths


async def test_every_figure_is_explained_and_none_that_is_not_there(
    module_gateway: Running,
) -> None:
    async with aiohttp.ClientSession(module_gateway.url) as http:
        text = await (await http.get("/metrics")).text()
    page = await asyncio.to_thread(reference.metrics_page)
    told = set(re.findall(r"^# TYPE (gateway_\S+)", text, re.MULTILINE))
    assert told == set(re.findall(r"^\| `(gateway_\w+)`", page, re.MULTILINE))


def test_commands_in_the_text_exist_with_their_options() -> None:
    known = {words[1:]: command for words, command in reference.command_tree()}
    wrong = []
    for path in page_paths():
        for code in inline_code(path):
            words = code.split()
            if words[0] != "gateway" or len(words) < 2 or words[1].startswith("-"):
                continue
            found = known.get(tuple(words[1:3])) or known.get((words[1],))
            options = {word for each in found.params for word in each.opts} if found else set()
            given = {word.split("=")[0] for word in words if word.startswith("--")}
            if found is None or given - options:
                wrong.append(f"{path.name}: {code}")
    assert wrong == []


def test_keys_in_the_text_exist() -> None:
    said = config_keys.sentences((ROOT / "config.toml").read_text(encoding="utf-8"))
    tables = {path.partition(".")[0] for path, _ in said}
    keys = {f"{path}.{key}" for path, key in said if key} | {path for path, _ in said}
    wrong = [
        f"{path.name}: {code}"
        for path in page_paths()
        for code in inline_code(path)
        if (found := re.fullmatch(r"([a-z]+)\.(?!py$|toml$)[a-z_.]+", code.partition(" =")[0]))
        and found[1] in tables - {"connections", "bundles", "config"}
        and not {found[0], f"connections.NAME.{found[0]}"} & keys
    ]
    assert wrong == []


def test_links_of_the_readme_lead_somewhere() -> None:
    """Those of the other pages are followed when the site is built."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", text)
    assert len(links) > 20
    assert [link for link in map("".join, links) if not (ROOT / link).exists()] == []


def test_every_page_is_in_the_navigation() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert {page for page in pages if page not in site} == set()


def test_what_is_vendored_is_as_it_was_published() -> None:
    folder = DOCS / "vendor"
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    found = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}"
        for path in sorted(folder.glob("*/*"))
    ]
    assert found == lines
    assert all((path / "LICENSE").is_file() for path in folder.iterdir() if path.is_dir())


def test_pages_ask_no_other_host_for_anything() -> None:
    site = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in site
    for path in page_paths():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"!\[[^]]*\]\(https?:|<script|<iframe|```mermaid", text), path
