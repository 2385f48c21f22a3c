"""What is installed is all that serving needs: the wheel, in an environment of its own."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from mcp.client.client import Client

from gateway import __version__
from tests.callers import own_call
from tests.house import ROOT
from tests.processes import ready

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source, built from a copy: building leaves things behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "gateway", folder / "gateway")
    run(*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "made", ".", cwd=folder)
    [made] = (folder / "made").iterdir()
    return made


def run(*command: str | Path, cwd: Path) -> None:
    ended = subprocess.run(command, cwd=cwd, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr.decode()


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gateway").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in ZipFile(wheel).namelist() if "dist-info" not in name} == package


async def test_an_installed_gateway_serves_from_an_empty_folder(
    wheel: Path, tmp_path: Path
) -> None:
    environment, folder = tmp_path / "environment", tmp_path / "empty"
    folder.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    await asyncio.to_thread(
        run, *PIP, "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder
    )
    libraries = sysconfig.get_path("purelib", vars={"base": str(environment)})
    (Path(libraries) / "ours.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(environment / "bin" / "gateway", "serve", "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=folder,
    )
    async with ready(process) as url, Client(url) as client:
        assert (await own_call(client, "demo_search_books", q="time"))["total"] > 0
    assert process.returncode == 0


def test_the_change_log_tells_of_this_version() -> None:
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## (\S+)$", log, re.MULTILINE)[0]
    assert newest == __version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"] and "version" not in project
