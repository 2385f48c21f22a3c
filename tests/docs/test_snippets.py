"""Every block of code in the documentation runs, page by page, in the order of the page.

    sh      runs with bash in the page's own folder, against a gateway with the demo; each command
            must succeed
    python  runs as a program of its own, there
    toml    is read by the reader of config.toml; titled "config.toml" it is written there, titled
            "add to config.toml" it is added to it; with another title it is that file
    json, yaml  must be what they say; with a title they are that file
    text    right below a block that ran is what it printed: these lines, in this order; `…` is
            anything

Where a page says `gateway serve`, a gateway of its own is started, and the rest of the page is
about that one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tomllib
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from gateway.config.file import VARIABLE, parse_settings
from tests.conftest import Running, gateway_on
from tests.docs.pages import ROOT, Block, blocks_of, name_of, page_paths
from tests.docs.quick_command import commands_in

WAIT_SECONDS = 60.0
ADDRESS = "127.0.0.1:8080"  # what pages call the gateway; here it has another port
READY = re.compile(r"Gateway ready: http://(127\.0\.0\.1:\d+)/mcp")
MOST_NOT_RUN = 8
CONFIG = """
[auth]
mode = "none"
[network]
allow = ["127.0.0.1/32"]
[demo]
enabled = true
"""
PAGES = {name_of(path): blocks for path in page_paths() if (blocks := blocks_of(path))}


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """The gateway that pages talk to which start none."""
    async with gateway_on(tmp_path_factory.mktemp("served") / "config.toml", CONFIG) as made:
        yield made


@pytest.mark.parametrize("page", PAGES)
async def test_every_block_of_a_page_runs(page: str, served: Running, tmp_path: Path) -> None:
    commands, address = tmp_path / "commands", f"127.0.0.1:{served.port}"
    async with commands_in(commands), reading(tmp_path, address, commands) as reader:
        for block in PAGES[page]:
            await reader.take(block)


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    left_out = {
        b.place: b.why_not_run for blocks in PAGES.values() for b in blocks if b.why_not_run
    }
    assert len(left_out) <= MOST_NOT_RUN, left_out
    assert all(len(why.split()) > 2 for why in left_out.values()), left_out


@asynccontextmanager
async def reading(folder: Path, address: str, commands: Path) -> AsyncIterator[Reader]:
    """Somebody who does what a page says; whatever they started ends with the page."""
    reader = Reader(folder, address, commands)
    try:
        yield reader
        await reader.finish()
    finally:
        for _, process, serves in reader.beside:
            with suppress(ProcessLookupError):  # it has ended, and the test says why
                os.killpg(process.pid, signal.SIGTERM)
            async with asyncio.timeout(WAIT_SECONDS):
                assert await process.wait() == 0 or not serves


@dataclass
class Reader:
    """What a reader has in front of them: a folder, the gateway's address, the last output."""

    folder: Path
    address: str
    commands: Path  # what is found first on the PATH
    printed: str | None = None
    beside: list[tuple[Block, Process, bool]] = field(default_factory=list)

    async def take(self, block: Block) -> None:
        """Does what a block says, or checks that it is what it says."""
        printed, self.printed = self.printed, None
        if block.why_not_run:
            return
        text = block.text.replace(ADDRESS, self.address)
        match block.language:
            case "sh":
                await self._run(block, text.replace("gateway serve", "gateway serve --port 0"))
            case "python":
                self.printed = await self._finished(block, sys.executable, "-c", text)
            case "text":
                if block.follows and printed is not None:
                    check_printed(block.place, text, printed)
            case "toml":
                self._take_toml(block, text)
            case "json":
                json.loads(text)
                self._write(block.title, text)
            case "yaml":
                list(yaml.safe_load_all(text))
                self._write(block.title, text)
            case other:
                pytest.fail(
                    f"{block.place}: nothing is known of {other or 'blocks without a name'}"
                )

    def _take_toml(self, block: Block, text: str) -> None:
        named = block.title.removeprefix("add to ")
        file = self.folder / "config.toml"
        before = file.read_text(encoding="utf-8") if named != block.title else ""
        if named in ("", "config.toml"):
            whole = f"{before}\n{text}"
            variables = {name: "0" * 64 for name, default in VARIABLE.findall(whole) if not default}
            parse_settings(whole.encode(), block.place, variables)
        else:
            tomllib.loads(text)
        self._write(named, f"{before}\n{text}")

    def _write(self, name: str, text: str) -> None:
        if name:
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")

    async def _run(self, block: Block, script: str) -> None:
        # `make` would set up and start what the tests have already: its targets must be there.
        script = re.sub(r"^make ", f"make --dry-run -C {ROOT} ", script, flags=re.MULTILINE)
        words = ("bash", "-euo", "pipefail", "-c", script)
        if not block.goes_on:
            self.printed = await self._finished(block, *words)
            return
        process = await self._start(*words)
        serves = "gateway serve" in script
        self.beside.append((block, process, serves))
        said = await first_words(block, process, READY if serves else re.compile(r"\S"))
        if serves:
            self.address = said[1]

    async def _start(self, *words: str) -> Process:
        environment = {
            "PATH": f"{self.commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "GATEWAY_URL": f"http://{self.address}",
            "GATEWAY_TOKEN": "gw_a_token_of_the_reader_of_this_page",
            "COLUMNS": "200",
        }
        return await asyncio.create_subprocess_exec(
            *words, cwd=self.folder, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
            start_new_session=True,
        )  # fmt: skip

    async def _finished(self, block: Block, *words: str) -> str:
        process = await self._start(*words)
        async with asyncio.timeout(WAIT_SECONDS):
            printed, _ = await process.communicate()
        told = printed.decode()
        assert process.returncode == 0, f"{block.place}: exit {process.returncode}\n{told}"
        return told

    async def finish(self) -> None:
        """Waits for what was left running and has an end."""
        for block, process, serves in self.beside:
            if not serves:
                async with asyncio.timeout(WAIT_SECONDS):
                    told, _ = await process.communicate()
                assert process.returncode == 0, f"{block.place}: {told.decode()}"


async def first_words(block: Block, process: Process, wanted: re.Pattern[str]) -> re.Match[str]:
    """The first line of a process that has these words."""
    assert process.stdout is not None
    heard = []
    async with asyncio.timeout(WAIT_SECONDS):
        async for line in process.stdout:
            heard.append(line.decode())
            if found := wanted.search(heard[-1]):
                return found
    pytest.fail(f"{block.place}: ended, and said {''.join(heard)!r}")


def check_printed(place: str, text: str, printed: str) -> None:
    """Whether these lines were printed, in this order."""
    rest = [" ".join(line.split()) for line in printed.splitlines()]
    for line in text.splitlines():
        wanted = re.compile(re.escape(" ".join(line.split())).replace("…", ".*"))
        found = next((n for n, each in enumerate(rest) if wanted.fullmatch(each)), None)
        assert found is not None, f"{place}: {line!r} was not printed:\n{printed}"
        rest = rest[found + 1 :]
