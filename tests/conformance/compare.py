"""One upstream behind the gateway behaves like the upstream itself: the runner's word on it.

The official runner is let loose on a server that has everything (`everything`), and on a gateway
process that has this one server behind it with `prefix = ""`. Both must come out alike, check by
check, for both spec versions; `differences.json` names where they may not, with the reason, and
nothing may be named there that comes out alike.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conformance.run import HERE, VERSIONS, free_port, run, wait_until_open

CONFIG = """
[server]
port = {port}
public_url = "http://127.0.0.1:{port}"
[auth]
mode = "none"
[network]
allow = ["127.0.0.1/32"]
[permissions]
level = "full_access"
[demo]
enabled = false
[connections.everything]
kind = "mcp"
url = "{upstream}"
prefix = ""
"""

Outcomes = dict[tuple[str, str], list[str]]  # by scenario and check: how often it came out how


def main() -> int:
    """0 when the gateway comes out like the server, but for what is named."""
    named = {
        (entry["version"], entry["scenario"], check)
        for entry in json.loads((HERE / "differences.json").read_text("utf-8"))
        for check in entry["checks"]
    }
    found: dict[tuple[str, str, str], str] = {}
    with (
        upstream() as direct,
        tempfile.TemporaryDirectory() as folder,
        gateway(Path(folder), direct) as through,
    ):
        for version in VERSIONS:
            found |= differences(version, outcomes(direct, version), outcomes(through, version))
    wrong = [f"{' '.join(key)}: {how}" for key, how in found.items() if key not in named]
    wrong += [f"{' '.join(key)}: comes out alike, but is named" for key in named - found.keys()]
    print("\n".join(wrong) if wrong else "Through the gateway the server is what it is.")
    return 1 if wrong else 0


def outcomes(url: str, version: str) -> Outcomes:
    """How every check came out."""
    found: Outcomes = {}
    for scenario, check, status, message in run(url, version):
        found.setdefault((scenario, check), []).append(status)
        if status == "FAILURE":
            print(f"{version} {url} {scenario}/{check}: {message}")
    passed = sum(statuses.count("SUCCESS") for statuses in found.values())
    print(f"{version} {url}: {len(found)} checks, {passed} passed")
    return {key: sorted(statuses) for key, statuses in found.items()}


def differences(
    version: str, direct: Outcomes, through: Outcomes
) -> dict[tuple[str, str, str], str]:
    """What came out otherwise, and how."""
    return {
        (version, *key): f"{direct.get(key)} directly, {through.get(key)} through the gateway"
        for key in sorted(direct.keys() | through.keys())
        if direct.get(key) != through.get(key)
    }


@contextmanager
def upstream() -> Iterator[str]:
    """The server that has everything, in a process of its own."""
    port = free_port()
    with running([sys.executable, "-m", "tests.conformance.everything", str(port)], port):
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def gateway(folder: Path, upstream: str) -> Iterator[str]:
    """A gateway process with this one server behind it."""
    port = free_port()
    config = folder / "config.toml"
    config.write_text(CONFIG.format(port=port, upstream=upstream), encoding="utf-8")
    with running([sys.executable, "-m", "gateway", "serve", "--config", str(config)], port):
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def running(command: Sequence[str], port: int) -> Iterator[subprocess.Popen[Any]]:
    """A process that serves on this port."""
    process = subprocess.Popen(
        command, cwd=HERE.parents[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until_open(port)
        yield process
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    sys.exit(main())
