"""A real OpenID provider (npm's oidc-provider) as a process, and people who sign in there."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx2
import pytest

from tests.oauth.people import Person
from tests.peers import soon

HERE = Path(__file__).parent
NODE = shutil.which("node")

needs_provider = pytest.mark.skipif(
    NODE is None or not (HERE / "node_modules" / "oidc-provider").exists(),
    reason="needs node and `make tests/oauth/node_modules/ready`",
)


class Provider:
    """The provider's process: its address, and who signs in there."""

    def __init__(self, process: Any, issuer: str) -> None:
        self._process = process
        self.issuer = issuer

    async def answer_at(self, redirect: str) -> None:
        self._process.stdin.write(f"{redirect}\n".encode())
        assert await self._process.stdout.readline() == b"ready\n"


@asynccontextmanager
async def running_provider(*options: str) -> AsyncIterator[Provider]:
    process = await asyncio.create_subprocess_exec(
        *(NODE or "", str(HERE / "provider.mjs"), *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        issuer = (await soon(process.stdout.readline())).decode().strip()
        yield Provider(process, issuer)
    finally:
        process.kill()
        await process.wait()


class Somebody(Person):
    """A person who signs in at the provider's own pages."""

    login = "ann"

    async def visit(self, address: str) -> httpx2.Response:
        answer = await super().visit(address)
        for _ in range(12):
            location = answer.headers.get("location")
            if location is not None:
                target = urljoin(str(answer.url), location)
                if target.startswith("http://127.0.0.1:41999"):
                    return answer
                if target.startswith(self.url):
                    answer = await super().visit(target)
                else:
                    answer = await self.http.get(target)
            elif "/interaction/" in str(answer.url):
                prompt = "login" if 'name="login"' in answer.text else "consent"
                fields = {"prompt": prompt, "login": self.login, "password": "x"}
                answer = await self.http.post(str(answer.url), data=fields)
            else:
                return answer
        return answer
