"""Everything that is measured, in one run: prints a table and writes out/bench.json.

    python -m bench [calls listing giant start size workers writes streams console]

Compare ratios, and figures of one run with each other: on a shared machine rates come and go.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
import uvloop

from bench import calls, catalog, console, streams
from bench.processes import ROOT, Measured, running
from bench.rows import Row, table, write

Section = Callable[[Measured, Path], Awaitable[list[Row]]]

SECTIONS: dict[str, Section] = {
    "calls": calls.against_the_floor,
    "listing": catalog.listing,
    "size": calls.by_size,
    "giant": catalog.giant,
    "start": catalog.start,
    "streams": streams.rows,
    "writes": calls.writes,
    "workers": calls.by_processes,
    "console": console.rows,
}


async def main(names: list[str]) -> int:
    """Run these sections; 0 whatever the figures say, for they are for people to judge."""
    rows: list[Row] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        async with running("-m", "bench.peer", "giant") as peer:
            for name in names:
                found = await SECTIONS[name](peer, Path(folder))
                print(table(found), flush=True)
                rows += found
    seconds = time.monotonic() - began
    met = sum(row.met is True for row in rows)
    goals = sum(row.met is not None for row in rows)
    print(f"{met} of {goals} goals met, {seconds:.0f} s")
    write(ROOT / "out" / "bench.json", rows, _about(seconds))
    return 0


def _about(seconds: float) -> dict[str, object]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": psutil.cpu_count(),
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in SECTIONS]
    if unknown:
        sys.exit(f"bench: no such part: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    sys.exit(uvloop.run(main(sys.argv[1:] or list(SECTIONS))))
