"""Children that speak MCP over their standard streams: their calls, their faults, their end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import uvloop

from gateway.errors import UpstreamFailed
from gateway.limits import MAX_MESSAGE_BYTES
from gateway.upstream.protocol import Hooks
from tests.peers import soon, until
from tests.raising import raises
from tests.upstream.upstream_doors import (
    QUICK,
    Told,
    asking,
    both_eras,
    running,
    stdio,
    upstreams,
)


@both_eras
async def test_child_is_met_in_the_era_it_speaks(era: str) -> None:
    async with upstreams(stdio("up", "--era", era)) as ups:
        tools = await ups.list_tools("up")
        assert "echo" in [tool["name"] for tool in tools]
        peer = ups.listing_link("up").peer
        assert peer is not None
        assert peer.version == ("2026-07-28" if era == "2026" else "2025-06-18")
        hi = {"content": [{"type": "text", "text": "hi"}]}
        assert await ups.call("up", "echo", {"text": "hi"}) == hi


async def accepting(params: Mapping[str, Any]) -> Mapping[str, Any]:
    assert params["message"] == "Who are you?"
    return {"action": "accept", "content": {"name": "Ann"}}


async def test_question_that_could_be_anybodys_is_declined() -> None:
    async with upstreams(stdio("up")) as ups:
        other = asyncio.create_task(ups.call("up", "slow", {}))
        await ups.pid()  # the slow call went out before
        assert await ups.text("ask", hooks=Hooks(ask=asking(accepting))) == "decline None"
        other.cancel()


async def test_progress_reaches_the_caller_and_a_slow_one_holds_up_nobody() -> None:
    seen: list[float] = []
    gate = asyncio.Event()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        await gate.wait()
        seen.append(done)

    async with upstreams(stdio("up")) as ups:
        call = asyncio.create_task(ups.text("steps", hooks=Hooks(progress=progress)))
        assert await ups.text("echo", text="quick") == "quick"
        gate.set()
        assert await call == "done"
    assert seen == [1, 2, 3]


async def test_call_over_its_deadline_and_one_given_up_are_cancelled_in_the_child() -> None:
    async with upstreams(stdio("up")) as ups:
        await ups.pid()  # it is up, however busy the machine is
        with raises(UpstreamFailed, code="upstream_timeout", sent=True):
            await ups.call("up", "slow", {}, deadline=0.3)
        begun = asyncio.Event()

        async def progress(done: float, total: float | None, message: str | None) -> None:
            begun.set()

        call = asyncio.create_task(ups.call("up", "slow", {}, Hooks(progress=progress)))
        await soon(begun.wait())
        call.cancel()
        await asyncio.wait([call])
        seen = (await ups.text("seen")).split("\n")
        slow = [line.split()[1] for line in seen if line.startswith("slow")]
        gone = [line.split()[1] for line in seen if line.startswith("notifications/cancelled")]
        assert len(slow) == 2 and gone == slow


async def test_child_sees_only_the_environment_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_SECRET_KEY", "not for children")
    async with upstreams(stdio("up", env={"API_KEY": "for the child"})) as ups:
        seen = json.loads(await ups.text("env"))
    assert seen["API_KEY"] == "for the child"
    basics = {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ"}
    assert set(seen) - basics <= {"API_KEY", "USER"}


async def test_what_is_no_message_is_ignored_and_logged_without_secrets() -> None:
    with structlog.testing.capture_logs() as logs:
        async with upstreams(stdio("up", "--noise", env={"API_KEY": "hunter2hunter2"})) as ups:
            assert await ups.pid()
    lines = [entry["line"] for entry in logs if entry["event"] == "upstream_stderr"]
    assert lines == ["secret is ***"]
    assert "upstream_line_ignored" in [entry["event"] for entry in logs]


async def test_answer_over_its_bound_fails_its_own_call_only() -> None:
    async with upstreams(stdio("up")) as ups:
        small = asyncio.create_task(ups.text("huge", bytes=50_000))
        for size, of, bound in (
            (MAX_MESSAGE_BYTES, "x", f"{MAX_MESSAGE_BYTES} bytes"),
            (250_001, "[", "250000 lists and objects"),
        ):
            with raises(UpstreamFailed, message=f"up sent an answer of more than {bound}"):
                await ups.text("huge", bytes=size, of=of)
        assert len(await small) == 50_000
        assert await ups.text("echo", text="still here") == "still here"


@both_eras
async def test_change_is_told_where_the_child_that_lists_announces_it(era: str) -> None:
    async with upstreams(stdio("up", "--era", era)) as ups:
        told = Told(ups)
        before = len(await ups.list_tools("up"))
        await ups.text("grow", principal="ann")
        with pytest.raises(TimeoutError):
            await told.next(0.2)
        await ups.text("grow")
        assert await told.next() == "up"
        assert len(await ups.list_tools("up")) == before + 1


async def test_what_is_logged_during_a_call_is_told_to_its_caller_alone() -> None:
    everyone: list[tuple[str, str, Mapping[str, Any]]] = []
    caller: list[tuple[str, Mapping[str, Any]]] = []
    async with upstreams(stdio("up")) as ups:
        ups.on_notification = lambda *notice: everyone.append(notice)
        await ups.call("up", "log", {}, Hooks(notice=lambda *notice: caller.append(notice)))
        await ups.call("up", "log", {})
    assert caller == [("notifications/message", {"level": "info", "data": "hello"})]
    assert everyone == []


async def test_child_that_dies_is_noticed_although_its_own_child_holds_the_pipe() -> None:
    async with upstreams(stdio("up"), pace=replace(QUICK, patience=5.0)) as ups:
        stray = int(await ups.text("spawn"))
        async with asyncio.timeout(60):
            with raises(UpstreamFailed, code="upstream_unreachable"):
                await ups.call("up", "die", {})
        assert await ups.pid()
        assert not running(stray)


async def test_crash_looping_child_is_backed_off_and_reaped(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    pace = replace(QUICK, first_rest=0.1, longest_rest=30.0)

    def pids() -> list[int]:
        return [int(line) for line in starts.read_text().split()] if starts.exists() else []

    async with upstreams(stdio("up", "--crash", "--starts", str(starts)), pace=pace) as ups:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(60):
            while len(pids()) < 4:
                with raises(
                    UpstreamFailed,
                    code="upstream_unreachable",
                    message="up ended before it answered",
                ):
                    await ups.call("up", "echo", {})
                await asyncio.sleep(0.02)
        assert loop.time() - began > 0.35  # rests of 0.1, 0.2, 0.4 s, each up to half as long
        await until(lambda: not any(map(running, pids())), 60)


@pytest.mark.parametrize("flags", [(), ("--stubborn",)])
async def test_closing_leaves_no_process_behind(flags: tuple[str, ...]) -> None:
    async with upstreams(stdio("up", *flags)) as ups:
        pids = [await ups.pid(who) for who in (None, "ann")]
        pids.append(int(await ups.text("spawn")))
        assert all(map(running, pids))
    assert not any(map(running, pids))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"command": "no-such-command"}, "can't be started: No such file or directory"),
        ({"cwd": "/no/such/folder"}, "can't be started: No such file or directory"),
        ({"args": ("-c", "raise SystemExit")}, "ended before it answered"),
    ],
)
async def test_child_that_does_not_come_up_says_why(change: dict[str, Any], why: str) -> None:
    settings = replace(stdio("up"), **change)
    async with upstreams(settings) as ups:
        with raises(UpstreamFailed, code="upstream_unreachable", message=f"up {why}", sent=False):
            await ups.list_tools("up")


async def test_child_that_says_nothing_delays_nobody_and_leaves_at_once() -> None:
    silent = replace(stdio("silent"), args=("-c", "import sys; sys.stdin.read()"))
    async with upstreams(silent, stdio("up")) as ups:
        assert await ups.pid()
        with raises(UpstreamFailed, code="upstream_timeout", sent=False):
            await ups.call("silent", "echo", {}, deadline=0.1)


def test_child_killed_during_a_call_is_noticed_and_everything_ends_on_uvloop_too() -> None:
    async def scenario() -> tuple[int, ...]:
        async with upstreams(stdio("up"), stdio("other")) as ups:
            child, other = await ups.pid(), int(await ups.text("pid", "other"))
            stray = int(await ups.text("spawn"))
            call = asyncio.create_task(ups.call("up", "slow", {}))
            assert await ups.text("echo", text="after it") == "after it"
            os.kill(child, signal.SIGKILL)
            with raises(UpstreamFailed, code="upstream_unreachable", sent=True):
                await call
            return child, other, stray

    assert [pid for pid in uvloop.run(scenario()) if running(pid)] == []
