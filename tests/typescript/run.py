"""The official TypeScript clients, in both eras, against our endpoint.

`npm install` in this folder brings them. Each client makes the same journey (`journey.mjs`), over a
listing that is cut into pages, with a token, and must see exactly what is written here; then
another one to a tool that promises what it answers (see `tests/report_peer.py`), and one from
nothing but an address through the front door (`sign_in.mjs`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet

from gateway.store.secrets import Seal
from gateway.web.identity import Identity
from tests.conftest import gateway_on
from tests.mcp.conftest import TOKENS, with_tokens
from tests.mcp.toolbox import Toolbox, endpoint_over, tool
from tests.oauth.people import OAUTH
from tests.oauth.people import TOKENS as PEOPLE
from tests.peers_mcp import serving
from tests.report_peer import EXPECTED, ROWS, report_gateway

HERE = Path(__file__).parent
NODE = HERE / "node_modules/.bin/node"
CLIENTS = ("v1", "v2-legacy", "v2-modern")
JOURNEY_SECONDS = 30.0
SIGNED_IN = {"listed": True, "failed": False, "asked": 1, "later": True}


async def main() -> int:
    """0 when every client saw what it should."""
    toolbox = Toolbox(page_size=2)
    for name in ("report", "grow"):
        toolbox.tools[name] = tool(name)
    seal, fine = Seal([Fernet.generate_key().decode()]), True
    over = endpoint_over(toolbox, Identity(with_tokens("ann")), seal)
    async with over as endpoint, serving(endpoint) as base:
        for client in CLIENTS:
            expected = _expected(client, len(toolbox.tools))
            fine &= await _sees(expected, client, f"{base}/mcp")
    async with report_gateway() as url:
        for client in CLIENTS:
            fine &= await _sees(EXPECTED, client, url, str(ROWS))
    with tempfile.TemporaryDirectory() as folder:
        async with gateway_on(Path(folder) / "config.toml", OAUTH) as gateway:
            for client in CLIENTS:
                for path in ("/mcp", "/mcp/bundles/books"):
                    where = (f"{gateway.url}{path}", PEOPLE["ann"])
                    fine &= await _sees(SIGNED_IN, client, *where, script="sign_in.mjs")
    return 0 if fine else 1


async def _sees(
    expected: dict[str, Any], client: str, *journey: str, script: str = "journey.mjs"
) -> bool:
    seen = await _journey(script, client, *journey)
    print(f"{client}: {'fine' if seen == expected else f'{seen} instead of {expected}'}")
    return seen == expected


def _expected(client: str, listed: int) -> dict[str, Any]:
    return {
        "before": listed,
        "result": {"greeting": "grüß dich"},
        "progress": [1, 2, 3],
        "unknown": -32602,
        "heard": 1,
        "added": [f"made_by_{client}"],
    }


async def _journey(script: str, client: str, url: str, *more: str) -> object:
    process = await asyncio.create_subprocess_exec(
        NODE,
        *(str(HERE / script), url, client, *more),
        env={**os.environ, "GATEWAY_TOKEN": TOKENS["ann"]},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(JOURNEY_SECONDS):
        output, _ = await process.communicate()
    return json.loads(output) if output else f"exit code {process.returncode}"


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
