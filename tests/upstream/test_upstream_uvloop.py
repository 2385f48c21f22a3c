"""The gateway runs on uvloop: children and streams end there as they do on asyncio's own loop."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import uvloop

from gateway.errors import UpstreamFailed
from tests.upstream.upstream_doors import running, stdio, text_of, upstreams


def test_child_killed_during_a_call_is_noticed_and_everything_ends() -> None:
    async def scenario() -> tuple[int, ...]:
        async with upstreams(stdio("up"), stdio("other")) as ups:
            child = int(text_of(await ups.call("up", "pid", {})))
            other = int(text_of(await ups.call("other", "pid", {})))
            stray = int(text_of(await ups.call("up", "spawn", {})))
            call = asyncio.create_task(ups.call("up", "slow", {}))
            assert text_of(await ups.call("up", "echo", {"text": "after it"})) == "after it"
            os.kill(child, signal.SIGKILL)
            with pytest.raises(UpstreamFailed) as caught:
                await call
            assert (caught.value.code, caught.value.sent) == ("upstream_unreachable", True)
            return child, other, stray

    assert [pid for pid in uvloop.run(scenario()) if running(pid)] == []
