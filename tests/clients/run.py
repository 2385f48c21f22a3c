"""Claude Code, Codex and Gemini CLI as they are, against a gateway, with a stand-in model behind.

`npm install` in this folder brings them. `gateway connect` writes their configuration. Each lists
once, calls a tool, adds an API in the middle of its conversation, and reaches the new tool though
it may never list again; what the model was told on the way must be what is written here. A client
that lists again by itself need not be told that its list is old.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.clients.model import Step, model
from tests.conftest import OPEN, gateway_on
from tests.peers import provider

HERE = Path(__file__).parent
CLIENT_SECONDS = 120.0
NEW_TOOL = "late_get_items"
EXPECTED = ("SPQR", NEW_TOOL, "list_dynamic_tools", "/items/1")
TOLD = 2  # the step whose answer says that there are other tools now


def plan(spec: str) -> list[Step]:
    """The steps of the conversation."""
    late = {"name": "late", "kind": "openapi", "spec": spec}
    return [
        ("demo_get_book", {"id": 3}),
        ("put_connection", late),
        ("demo_get_book", {"id": 4}),
        ("call_dynamic_tool", {"name": NEW_TOOL, "arguments": {"id": "1"}}),
    ]


def _claude_code(home: Path, url: str) -> tuple[list[str], dict[str, str]]:
    words = ["claude", "-p", "Look a book up", "--allowedTools", "mcp__gateway"]
    return words, {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _codex(home: Path, url: str) -> tuple[list[str], dict[str, str]]:
    file = home / ".codex/config.toml"
    file.write_text(
        'model = "stand-in"\nmodel_provider = "stand-in"\n[model_providers.stand-in]\n'
        f'name = "stand-in"\nbase_url = "{url}/v1"\nwire_api = "responses"\n\n{file.read_text()}'
    )
    words = ["codex", "exec", "--skip-git-repo-check", "Look a book up"]
    return [*words, "--dangerously-bypass-approvals-and-sandbox"], {}


def _gemini(home: Path, url: str) -> tuple[list[str], dict[str, str]]:
    file = home / ".gemini/settings.json"
    auth = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    file.write_text(json.dumps(json.loads(file.read_text()) | auth))
    (home / ".gemini/trustedFolders.json").write_text(json.dumps({str(home): "TRUST_FOLDER"}))
    words = ["gemini", "-y", "-m", "gemini-2.5-pro", "-p", "Look a book up"]
    return words, {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": url}


Start = Callable[[Path, str], tuple[list[str], dict[str, str]]]
CLIENTS: dict[str, Start] = {"claude-code": _claude_code, "codex": _codex, "gemini": _gemini}


async def main(names: list[str]) -> int:
    """0 when every client got where it should."""
    fine = True
    async with provider() as peer:
        for name in names or CLIENTS:
            with tempfile.TemporaryDirectory() as folder:
                home = Path(folder)
                settings = f"{OPEN}\n[demo]\nenabled = true\n"
                async with gateway_on(home / "config.toml", settings) as gateway:
                    fine &= await _converse(name, home, gateway.url, plan(peer.spec))
    return 0 if fine else 1


async def _converse(name: str, home: Path, gateway: str, steps: list[Step]) -> bool:
    connect = (sys.executable, "-m", "gateway", "connect", name, "--url", gateway)
    await _run(connect, home, {"PYTHONPATH": os.getcwd()})
    async with model(steps) as stand_in:
        words, environment = CLIENTS[name](home, stand_in.url)
        command = str(HERE / "node_modules/.bin" / words[0])
        output = await _run((command, *words[1:]), home, environment)
    lists_again = any(name.endswith(NEW_TOOL) for tools in stand_in.tools for name in tools)
    missing = [
        f"after step {number} {words!r} is not in {told[:2000]}"
        for number, (words, told) in enumerate(zip(EXPECTED, stand_in.told, strict=False))
        if words not in told and not (number == TOLD and lists_again)
    ]
    if len(stand_in.told) < len(EXPECTED):
        missing.append(f"only {len(stand_in.told)} results came to the model: {output[-2000:]}")
    how = "lists again" if lists_again else "lists once"
    print(f"{name}: {how}; {'; '.join(missing) or 'fine'}")
    return not missing


async def _run(command: tuple[str, ...], home: Path, environment: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=home,
        env={**os.environ, "HOME": str(home), **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(CLIENT_SECONDS):
        output, _ = await process.communicate()
    return output.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
