"""Runs the official conformance runner on a gateway with one server behind it, in both versions.

The server has everything that the runner asks for (`everything`), and stands behind a gateway
process with `prefix = ""`: through it, every check must pass, and as many as ever. `npm install` in
this folder brings the runner.
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

from tests.configs import table

HERE = Path(__file__).parent
NODE = HERE / "node_modules/.bin/node"
RUNNER = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
PASSED = {"2025-11-25": 80, "2026-07-28": 152}  # checks of each version of the protocol
START_SECONDS = 20.0
RUN_SECONDS = 280.0


def main() -> int:
    """0 when everything holds."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder, gateway(Path(folder)) as url:
        for version, wanted in PASSED.items():
            outcome = run(url, version)
            failed = [found for found in outcome if found[2] == "FAILURE"]
            wrong += [f"{version} {scenario}/{check}: {why}" for scenario, check, _, why in failed]
            passed = sum(status == "SUCCESS" for _, _, status, _ in outcome)
            scenarios = len({scenario for scenario, *_ in outcome})
            print(f"{version}: {scenarios} scenarios, {passed} checks passed, {len(failed)} failed")
            if passed < wanted:
                wrong.append(f"{version}: {wanted} checks passed before")
    print("\n".join(wrong) if wrong else "Everything holds.")
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
def gateway(folder: Path) -> Iterator[str]:
    """The address of a gateway process with the server that has everything behind it."""
    upstream, port = free_port(), free_port()
    url, config = f"http://127.0.0.1:{port}", folder / "config.toml"
    server = {"kind": "mcp", "url": f"http://127.0.0.1:{upstream}/mcp", "prefix": ""}
    config.write_text(
        table("server", port=port, public_url=url)
        + table("auth", mode="none")
        + table("network", allow=["127.0.0.1/32"])
        + table("permissions", level="full_access")
        + table("demo", enabled=False)
        + table("connections.everything", **server),
        encoding="utf-8",
    )
    with (
        running("tests.conformance.everything", str(upstream), port=upstream),
        running("gateway", "serve", "--config", str(config), port=port),
    ):
        yield f"{url}/mcp"


@contextmanager
def running(*words: str, port: int) -> Iterator[None]:
    """A process of Python's that serves on this port."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=HERE.parents[1],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_open(port)
        yield
    finally:
        process.terminate()
        process.wait(30)


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
