"""Runs the official conformance runner against our server, for both spec versions.

A check may fail only if `not_applicable.json` names it or its scenario with a reason, and nothing
may be named there that passes everywhere. `npm install` in this folder brings the runner.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
NODE = HERE / "node_modules/.bin/node"
RUNNER = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
VERSIONS = ("2025-11-25", "2026-07-28")
START_SECONDS = 20.0
RUN_SECONDS = 280.0


def main() -> int:
    """0 when everything that applies holds."""
    excused = {
        name
        for entry in json.loads((HERE / "not_applicable.json").read_text("utf-8"))
        for name in (*entry.get("scenarios", ()), *entry.get("checks", ()))
    }
    needed: set[str] = set()
    wrong: list[str] = []
    with served() as url:
        for version in VERSIONS:
            outcome = run(url, version)
            failed = [(s, c, m) for s, c, status, m in outcome if status == "FAILURE"]
            needed |= {name for s, c, _ in failed for name in (s, c)}
            wrong += [
                f"{version} {scenario}/{check}: {message}"
                for scenario, check, message in failed
                if not excused & {scenario, check}
            ]
            passed = sum(status == "SUCCESS" for _, _, status, _ in outcome)
            scenarios = len({scenario for scenario, *_ in outcome})
            print(f"{version}: {scenarios} scenarios, {passed} checks passed, {len(failed)} failed")
    wrong += [f"{name} is excused but does not fail" for name in sorted(excused - needed)]
    print("\n".join(wrong) if wrong else "Everything that applies to a tools server holds.")
    return 1 if wrong else 0


def run(url: str, version: str) -> list[tuple[str, str, str, str]]:
    """(scenario, check, status, message) of every check of one spec version."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(NODE), str(RUNNER), "server", "--url", url, "--suite", "all"]
        subprocess.run(
            [*command, "--spec-version", version, "--output-dir", folder],
            check=False,
            timeout=RUN_SECONDS,
            stdout=subprocess.DEVNULL,
        )
        return [
            (_scenario(path), check["id"], check["status"], check.get("errorMessage", ""))
            for path in sorted(Path(folder).glob("server-*/checks.json"))
            for check in json.loads(path.read_text("utf-8"))
        ]


def _scenario(path: Path) -> str:
    # server-NAME-2026-01-31T12-00-00-000Z
    return path.parent.name.removeprefix("server-").rsplit("-", 6)[0]


@contextmanager
def served() -> Iterator[str]:
    """The server under test, in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "tests.conformance.server", str(port)]
    process = subprocess.Popen(command, cwd=HERE.parents[1])
    try:
        wait_until_open(port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(10)


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_open(port: int) -> None:
    """Returns once someone listens there."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
