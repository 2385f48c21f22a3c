"""The core of the suite on every other Python there is: `make pythons`.

Each gets an environment of its own under out/pythons, with what running needs and what these tests
need. A Python that is not on this machine is skipped, and said to be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.house import ROOT

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TOOLS = ("hypothesis", "psutil", "pytest", "pytest-asyncio", "pytest-xdist", "setuptools")
CORE = """
tests/policy tests/config tests/openapi/test_build.py tests/calls/test_arguments.py
tests/calls/test_request.py tests/mcp/test_wire_2025.py tests/mcp/test_wire_2026.py
tests/cli/test_first_commands.py tests/test_workers.py tests/test_system.py tests/test_wheel.py
tests/journeys/test_first_minute.py
""".split()


def main() -> int:
    """Runs them; the exit code says whether all that ran went well."""
    gone = [path for path in CORE if not (ROOT / path).exists()]
    if gone:  # which the runner's processes leave unsaid
        sys.exit(f"{', '.join(gone)}: no such test; CORE in tests/pythons.py names it")
    tested = "{}.{}".format(*sys.version_info)  # by `make test`
    found = {version: find(version) for version in VERSIONS if version != tested}
    for version, python in found.items():
        if python is None:
            print(f"Python {version} is not on this machine: skipped", flush=True)
    there = {version: python for version, python in found.items() if python is not None}
    with ThreadPoolExecutor(max_workers=2) as pool:
        made = dict(zip(there, pool.map(make_environment, there, there.values()), strict=True))
    return max((run_core(version, python) for version, python in made.items()), default=0)


def find(version: str) -> Path | None:
    """A Python of this version: by its name, or where pyenv keeps those that have none here."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = sorted(pyenv.glob(f"{version}.*/bin/python"))
    for python in (f"python{version}", *map(str, kept)):
        try:
            asked = (python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])")
            said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
        except OSError:
            continue
        if said.stdout.strip() == version:
            return Path(python)
    return None


def make_environment(version: str, python: Path) -> Path:
    """An environment with what the tests need; its own Python."""
    folder = ROOT / "out" / "pythons" / version
    own, done = folder / "bin" / "python", folder / "made-of"
    given = (ROOT / "pyproject.toml", ROOT / "constraints.txt")
    wanted = "".join(each.read_text("utf-8") for each in given)
    if not done.exists() or done.read_text("utf-8") != wanted:
        subprocess.run((python, "-m", "venv", "--clear", folder), check=True)
        pip = (own, "-m", "pip", "install", "-qq", "--disable-pip-version-check")
        subprocess.run((*pip, "-c", "constraints.txt", *needed(), *TOOLS), cwd=ROOT, check=True)
        [libraries] = folder.glob("lib/python*/site-packages")
        (libraries / "source.pth").write_text(str(ROOT), "utf-8")  # for the processes of tests
        done.write_text(wanted, "utf-8")
    return own


def needed() -> list[str]:
    """What running needs, as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return list(project["dependencies"])


def run_core(version: str, python: Path) -> int:
    """Runs these tests on one Python; its exit code."""
    print(f"Python {version}", flush=True)
    command = (str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *CORE)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
