"""The official Python client of the first generation against a gateway: answers of every kind.

It can't be installed beside the second, so it runs in an environment of its own (see Makefile).
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.report_peer import EXPECTED, ROWS, report_gateway

HERE = Path(__file__).parent
PYTHON = HERE / ".venv/bin/python"
JOURNEY_SECONDS = 60.0


async def main() -> int:
    """0 when the client saw what it should."""
    async with report_gateway() as url, asyncio.timeout(JOURNEY_SECONDS):
        process = await asyncio.create_subprocess_exec(
            *(PYTHON, HERE / "answers.py", url, str(ROWS)), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
    seen = json.loads(output) if output else f"exit code {process.returncode}"
    print(f"mcp 1: {'fine' if seen == EXPECTED else f'{seen} instead of {EXPECTED}'}")
    return int(seen != EXPECTED)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
