"""`python -m bench.soak`: runs a soak, prints a table, writes out/soak.json; 1 if it was not flat.

    python -m bench.soak [--seconds 600] [--store postgresql | URL]

SQLite unless said otherwise; "postgresql" alone stands for a server that is started here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import orjson
import uvloop

from bench.processes import ROOT
from bench.rows import Row, table
from bench.soak.run import soak
from bench.soak.verdict import Course, judged
from tests.databases import PostgresServer

SECONDS = 600.0
SQLITE = "sqlite:///state/gateway.db"
SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--store", default=SQLITE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _store(options.store) as store:
        course = uvloop.run(soak(Path(folder), store, options.seconds))
    rows = judged(course)
    _report(course, rows)
    return 1 if any(row.met is False for row in rows) else 0


@contextmanager
def _store(wanted: str) -> Iterator[str]:
    """The store's address; "postgresql" alone stands for a server of our own."""
    if wanted != "postgresql":
        yield wanted
        return
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="soak-pg-")))
    try:
        yield server.url(server.new_database())
    finally:
        server.remove()


def _report(course: Course, rows: list[Row]) -> None:
    """The table, and everything that was seen as JSON."""
    print(table(rows))
    for line in (*course.tally.problems, *course.faults[:SHOWN]):
        print("unexpected:", line)
    found = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": [{**asdict(row), "met": row.met} for row in rows],
        "errands": course.tally.done,
        "error_codes": course.tally.codes,
        "problems": course.tally.problems,
        "faults": course.faults,
        "samples": [asdict(one) for one in (course.before, *course.during, course.after)],
    }
    path = ROOT / "out" / "soak.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    sys.exit(main())
